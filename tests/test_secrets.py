"""No key and no token in anything that this package writes or prints: runs, data sets, trainings, notebooks, logs, errors, reprs."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_papermill import papermill

from lerobot_nb.cli import main
from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import evaluate
from lerobot_nb.evaluation.parameters import EvalParameters
from lerobot_nb.policies.base import PolicySpec
from lerobot_nb.policies.factory import make_policy, policy_wishes
from lerobot_nb.policies.remote import TOKEN_VARIABLE, RemotePolicy
from lerobot_nb.policies.serve import PolicyServer

ROOT = Path(__file__).resolve().parent.parent
SECRETS = {
    "WANDB_API_KEY": "wandbsecret0123456789012345678901234567a",
    "HF_TOKEN": "hf_huggingsecret0123456789",
    TOKEN_VARIABLE: "tokensecret0123456789",
}


@pytest.fixture
def secrets(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_MODE", "offline")


def assert_none(text):
    assert not [name for name, value in SECRETS.items() if value in text], text[:2000]


def assert_none_in(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        content = path.read_bytes()
        found = [name for name, value in SECRETS.items() if value.encode() in content]
        assert not found, (path, found)


def command(*words, level="DEBUG"):
    """A command of its own process, with every library's debug messages on stderr."""
    code = (
        "import logging, sys; logging.basicConfig(level=logging.DEBUG, stream=sys.stderr); "
        "from lerobot_nb.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        capture_output=True,
        text=True,
        cwd=ROOT / "tests",
        timeout=280,
    )


def test_an_evaluation_behind_a_token(secrets, tmp_path, caplog, capsys):
    """Both sides, with debug messages of the websocket library."""
    words = [*("--benchmark", "gym", "--task", "CartPole-v1", "--n_episodes", "2")]
    words += ["--episode_length", "5", "--render", "none", "--output_dir", tmp_path / "run"]
    with caplog.at_level(logging.DEBUG):
        with PolicyServer(make_policy("random"), port=0, token=SECRETS[TOKEN_VARIABLE]) as server:
            done = command("eval", *words, "--policy", server.address)
            policy = RemotePolicy(server.address)
            for thing in (policy, server, policy.server, policy.identity(), vars(policy)):
                assert_none(repr(thing))
            policy.end_run()
    assert done.returncode == 0, done.stderr
    assert_none(done.stdout + done.stderr)
    assert_none(caplog.text)
    assert_none_in(tmp_path / "run")


def test_a_recording(secrets, tmp_path):
    done = command(
        *("record", "--benchmark", "metaworld", "--task", "reach-v3", "--obs_type", "state"),
        *("--n_episodes", "1", "--episode_length", "5", "--failures", "--policy", "zero"),
        *("--output_dir", tmp_path / "data"),
    )
    assert done.returncode == 0, done.stderr
    assert_none(done.stdout + done.stderr)
    assert_none_in(tmp_path / "data")


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb"])
def test_a_training_in_the_notebook(secrets, tmp_path, tracker):
    pytest.importorskip(tracker)
    done = papermill(
        tmp_path / "train.ipynb",
        *("-p", "task", "reach-v3", "-p", "steps", "1", "-p", "eval_freq", "1"),
        *("-p", "n_episodes", "1", "-p", "n_demonstrations", "1", "-p", "tracker", tracker),
        *("-p", "output_dir", tmp_path / "t"),
        notebook=ROOT / "nbs/train.ipynb",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert_none(done.stdout + done.stderr)
    kind = {"tensorboard": "events.out.*", "wandb": "wandb/offline-run-*/*.wandb"}[tracker]
    assert len(list((tmp_path / "t").glob(kind))) == 1
    assert_none_in(tmp_path)


ADDRESSES = ["ws://me:s3cret@127.0.0.1:1", "wss://s3cret@127.0.0.1:1", "ws://127.0.0.1:1/?t=s3cret"]


@pytest.mark.parametrize("address", [*ADDRESSES, "ws://[?t=s3cret"])
def test_a_secret_in_an_address(tmp_path, capsys, address):
    """Refused before anything connects, and not repeated."""
    said = []
    for ask in (
        lambda: make_policy(address),
        lambda: policy_wishes(address),
        lambda: RemotePolicy(address),
        lambda: evaluate("metaworld", address, output_dir=tmp_path / "run"),
        lambda: EvalParameters("metaworld", task="reach-v3", policy=address).overview(),
        lambda: make_policy("lerobot_nb.policies.noisy:NoisyPolicy", base=address, scale=0.1),
    ):
        with pytest.raises(ValueError, match="LEROBOT_NB_TOKEN") as caught:
            ask()
        said.append(str(caught.value))
    words = ["--benchmark", "metaworld", "--task", "reach-v3", "--policy", address]
    for command in ("eval", "record"):
        assert main([command, *words, "--output_dir", str(tmp_path / "run")]) == 2
        captured = capsys.readouterr()
        assert "LEROBOT_NB_TOKEN" in captured.err
        said.append(captured.out + captured.err)
    assert not any("s3cret" in text for text in said) and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "kwargs", [{"token": "s3cret"}, {"api_key": "s3cret"}, {"hub": {"hf_token": "s3cret"}}]
)
def test_a_secret_among_arguments(tmp_path, capsys, kwargs):
    said = []
    for ask in (
        lambda: make_policy("random", **kwargs),
        lambda: policy_wishes("random", **kwargs),
        lambda: PolicySpec("synthetic:Noisy", kwargs),
        lambda: evaluate("metaworld", "random", output_dir=tmp_path / "run", policy_kwargs=kwargs),
    ):
        with pytest.raises(ValueError, match="environment variable") as caught:
            ask()
        said.append(str(caught.value))
    code = main(
        ["eval", "--benchmark", "metaworld", "--task", "reach-v3", "--policy", "random"]
        + ["--policy_kwargs", json.dumps(kwargs), "--output_dir", str(tmp_path / "run")]
    )
    assert code == 2
    said.append(capsys.readouterr().err)
    assert not any("s3cret" in text for text in said) and not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", [["--token", "s3cret"], ["--token=s3cret"]])
@pytest.mark.parametrize("command", ["serve", "eval"])
def test_a_token_as_an_option(capsys, command, words):
    with pytest.raises(SystemExit) as end:
        main([command, "--policy", "zero", *words])
    said = capsys.readouterr().err
    assert end.value.code == 2 and "s3cret" not in said
    assert command == "eval" or "LEROBOT_NB_TOKEN" in said


def test_a_server_that_is_started_with_a_token(secrets, tmp_path):
    """What it prints, with the debug messages of its libraries, while a client asks."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lerobot_nb.cli", "serve", "--policy", "zero", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"WEBSOCKETS_DEBUG": "1"},
    )
    try:
        line = process.stdout.readline()
        assert "token wanted" in line
        address = line.split(" at ")[1].split(" ")[0]
        RemotePolicy(address).end_run()
    finally:
        process.terminate()
        rest, _ = process.communicate(timeout=20)
    assert_none(line + rest)


def test_trackers_leave_secrets_out_of_the_settings(monkeypatch, tmp_path):
    from types import SimpleNamespace

    from lerobot_nb.training.tracking import make_tracker

    seen = {}
    run = SimpleNamespace(log=lambda *_, **__: None, finish=lambda: None)
    for name in ("wandb", "trackio"):
        module = SimpleNamespace(
            init=lambda name=name, **kwargs: seen.update({name: kwargs}) or run
        )
        monkeypatch.setitem(sys.modules, name, module)
        tracker = make_tracker(name, tmp_path, settings={"lr": 1, "hub": {"token": "s3cret"}})
        tracker.log({"a": 1.0}, 1)
        tracker.close()
    assert [kwargs["config"] for kwargs in seen.values()] == [{"lr": 1, "hub": {}}] * 2


def test_a_record_of_a_policy_that_fails(secrets, tmp_path):
    from served import Troubled
    from synthetic import synthetic_envs

    evaluate(
        synthetic_envs(n_tasks=1),
        Troubled("raises"),
        EvalConfig(1, max_error_rate=1.0),
        output_dir=tmp_path / "run",
    )
    assert_none_in(tmp_path / "run")
