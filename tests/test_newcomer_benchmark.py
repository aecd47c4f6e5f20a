"""What a newcomer sees who brings a checkpoint, a policy or a benchmark of their own."""

import os

import numpy as np
import pytest
import torch

from lerobot_nb import EvalConfig, Policy, evaluate, make_env_config, make_policy
from lerobot_nb.policies.asking import PolicyError, check_actions, predict
from lerobot_nb.policies.checkpoints import PolicyLoadError


class Looks(Policy):
    """Asks for one key of the batch."""

    needs_images = False

    def __init__(self, key="observation.environment_state", batch_format="torch"):
        self.key, self.batch_format = key, batch_format

    def predict(self, slots, batch):
        return torch.zeros(len(batch[self.key]), 1, 4)


@pytest.mark.parametrize(
    ("key", "batch_format", "cure"),
    [
        ("observation.environment_state", "torch", "--obs_type state"),
        ("agent_pos", "torch", 'batch_format = "numpy"'),
        ("observation.state", "numpy", 'batch_format = "torch"'),
        ("environment_state", "numpy", "--obs_type state"),
        ("privileged", "numpy", "needs_privileged = True"),
    ],
)
def test_a_policy_that_looks_for_what_is_not_there_is_told_what_is(
    tmp_path, key, batch_format, cure
):
    env = make_env_config("metaworld", task="reach-v3", obs_type="pixels_agent_pos")
    policy = Looks(key, batch_format)
    run = evaluate(
        env,
        policy,
        EvalConfig(n_episodes=1, batch_size=1, render="none", max_error_rate=1.0),
        output_dir=tmp_path / "run",
    )
    said = run.records()[0].error
    assert repr(key) in said and cure in said.splitlines()[0]
    assert ("agent_pos" if batch_format == "numpy" else "observation.state") in said.splitlines()[0]
    assert "Traceback" in said  # and where it looked


def test_a_key_of_the_policys_own_stays_a_key_error():
    with pytest.raises(KeyError, match="mine"):
        predict(Looks("mine"), [0], {"observation.state": np.zeros((1, 4))})


def test_a_policy_that_returns_nothing_is_told_so():
    from gymnasium.spaces import Box

    with pytest.raises(PolicyError, match="None; does predict end with a return"):
        check_actions(None, 1, Box(-1, 1, (4,)))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("ws:/127.0.0.1:8000", "ws://127.0.0.1:8000"),
        ("127.0.0.1:8000", "ws://127.0.0.1:8000"),
        ("localhost:8000", "ws://localhost:8000"),
        ("http://gpu-1:8000/", "ws://gpu-1:8000"),
    ],
)
def test_an_address_without_ws_is_known_as_one(typed, meant):
    with pytest.raises(ValueError, match=f"is written '{meant}'"):
        make_policy(typed)


def test_a_file_of_weights_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("net.pt", "best/model.safetensors"):
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        open(name, "wb").close()
        with pytest.raises(ValueError, match="is a file; give the folder") as caught:
            make_policy(name)
        assert "'my_module:load_policy'" in str(caught.value) and "hub:" + name not in str(
            caught.value
        )


def test_the_folder_of_a_training_names_the_checkpoint_in_it(tmp_path):
    (tmp_path / "checkpoints/best").mkdir(parents=True)
    (tmp_path / "config.json").write_text('{"steps": 3}')
    (tmp_path / "checkpoints/best/config.json").write_text('{"policy_class": "a:B"}')
    with pytest.raises(PolicyLoadError, match="checkpoint is in .*checkpoints/best"):
        make_policy(str(tmp_path))
    (tmp_path / "config.json").unlink()
    with pytest.raises(PolicyLoadError, match="checkpoint is in .*checkpoints/best"):
        make_policy(str(tmp_path / "checkpoints"))


def test_a_served_policy_that_looks_for_what_is_not_there_says_so_to_its_client(tmp_path):
    from lerobot_nb import PolicyServer

    env = make_env_config("metaworld", task="reach-v3", obs_type="pixels_agent_pos")
    with PolicyServer(Looks(), port=0) as server:
        run = evaluate(
            env,
            server.address,
            EvalConfig(n_episodes=1, batch_size=1, render="none", max_error_rate=1.0),
            output_dir=tmp_path / "run",
        )
    assert "--obs_type state" in run.records()[0].error.splitlines()[0]
