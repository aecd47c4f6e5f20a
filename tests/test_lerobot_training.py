"""accelerate launch, and lerobot's own trainer with evaluations here. Needs an environment with lerobot: make test-lerobot."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("accelerate", reason="accelerate is not installed: make test-lerobot")
pytestmark = pytest.mark.slow

from accelerated import CONFIG, env_config

from lerobot_nb import EvalConfig
from lerobot_nb.training.behaviour_cloning import Training
from lerobot_nb.training.demonstrations import record_demonstrations

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    return record_demonstrations(
        env_config(),
        tmp_path_factory.mktemp("data") / "reach",
        n_episodes=3,
        only_successes=False,
        config=EvalConfig(batch_size=1),
    )


def run(*words: str, **environment: str) -> subprocess.CompletedProcess:
    found = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": found, "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.fixture(scope="module")
def alone(demonstrations, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "t"
    config = EvalConfig(batch_size=1)
    return Training(folder, demonstrations, env_config(), CONFIG, eval_config=config).run(
        lambda line: None
    )


@pytest.mark.parametrize("n_processes", [1, 2])
def test_accelerate_launch(alone, demonstrations, tmp_path, n_processes):
    """One process or two: the same batches, and up to rounding the same losses and weights."""
    launcher = {  # on CPUs `accelerate launch` starts one process; several of them are torchrun's
        1: ("accelerate.commands.launch", "--cpu", "--num_machines", "1", "--num_processes", "1")
        + ("--mixed_precision", "no", "--dynamo_backend", "no"),
        2: ("torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
    }[n_processes]
    done = run(
        *("-m", *launcher, str(ROOT / "tests/accelerated.py")),
        *(str(demonstrations.folder), str(tmp_path / "t")),
        ACCELERATE_USE_CPU="true",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    log = [json.loads(line) for line in (tmp_path / "t/log.jsonl").read_text().splitlines()]
    for one, other in zip(log, alone.log(), strict=True):
        assert one["kind"] == other["kind"] and one["step"] == other["step"]
        if one["kind"] == "loss":
            assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)
    state = torch.load(tmp_path / "t/state.pt", weights_only=True)["network"]
    for name, value in alone.network.state_dict().items():
        assert torch.allclose(state[name], value, rtol=1e-2, atol=1e-3), name
    assert f"{n_processes} processes" in done.stdout
    assert done.stdout.count("step 12 of 12") == 1  # only one process reports
    assert (tmp_path / "t/checkpoints/best/model.safetensors").is_file()


def test_lerobots_trainer_calls_the_evaluation(demonstrations, tmp_path):
    """The example of the guide, as it stands there."""
    pytest.importorskip("lerobot.scripts.lerobot_train")
    notebook = json.loads((ROOT / "nbs/guides/training.ipynb").read_text())
    (code,) = [
        "".join(cell["source"])
        for cell in notebook["cells"]
        if "update_last_checkpoint" in "".join(cell["source"]) and cell["cell_type"] == "markdown"
    ]
    script = tmp_path / "train_act.py"
    script.write_text(code.split("```python\n")[1].split("```")[0])
    output = tmp_path / "act"
    done = run(
        str(script),
        *("--dataset.repo_id=local/reach", f"--dataset.root={demonstrations.folder}"),
        *("--policy.type=act", "--policy.device=cpu", "--policy.push_to_hub=false"),
        *("--policy.chunk_size=8", "--policy.n_action_steps=8", "--policy.dim_model=32"),
        *("--policy.n_heads=2", "--policy.dim_feedforward=32", "--policy.use_vae=false"),
        *("--steps=2", "--save_freq=1", "--batch_size=4", "--num_workers=0", "--log_freq=1"),
        *("--wandb.enable=false", f"--output_dir={output}"),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for step in ("000001", "000002"):
        run_json = json.loads((output / f"evaluations/{step}/run.json").read_text())
        assert run_json["status"] == "finished"
        assert run_json["policy"]["checkpoint"].endswith(f"checkpoints/{step}/pretrained_model")
        assert run_json["policy"]["sha256"] and run_json["policy"]["type"] == "act"
