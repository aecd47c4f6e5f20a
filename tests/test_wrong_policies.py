"""What is wrong with a checkpoint or a server, asked through Python, the command line and the notebook: one clear sentence, exit code 2 before anything ran, and nothing that was recorded is lost."""

import json
import re
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from synthetic import synthetic_envs
from test_papermill import papermill

from lerobot_nb.cli import main
from lerobot_nb.envs.config import make_env_config
from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import EvalRun, evaluate
from lerobot_nb.evaluation.parameters import EvalParameters
from lerobot_nb.policies.base import Policy, PolicyLoadError, PolicyUnavailable
from lerobot_nb.policies.cloned import ClonedNetwork, ClonedPolicyConfig, save_checkpoint
from lerobot_nb.policies.factory import make_policy
from lerobot_nb.policies.remote import TOKEN_VARIABLE, pack
from lerobot_nb.policies.serve import PolicyServer

TASK = {"benchmark": "metaworld", "task": "reach-v3", "episode_length": 5}
STATES = {"observation.state": (4,), "observation.environment_state": (39,)}


@pytest.fixture(autouse=True)
def no_token(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


# --- the entries --------------------------------------------------------------------------------------------------------


def through_python(policy, folder, kwargs):
    env_config = make_env_config("metaworld", task="reach-v3", episode_length=5, obs_type="state")
    with pytest.raises((ValueError, TypeError)) as caught:
        evaluate(env_config, policy, output_dir=folder, policy_kwargs=kwargs)
    return str(caught.value)


def through_the_command_line(policy, folder, kwargs, capsys):
    words = [word for name, value in TASK.items() for word in (f"--{name}", str(value))]
    code = main(
        ["eval", *words, "--policy", policy, "--policy_kwargs", json.dumps(kwargs)]
        + ["--output_dir", str(folder)]
    )
    said = capsys.readouterr()
    assert code == 2 and "Traceback" not in said.err + said.out
    return said.err


def through_the_notebook(policy, folder, kwargs):
    """What eval.ipynb calls."""
    parameters = EvalParameters(**TASK, policy=policy, policy_kwargs=kwargs, output_dir=str(folder))
    with pytest.raises((ValueError, TypeError)) as caught:
        parameters.overview()
        parameters.evaluate()
    return str(caught.value)


def everywhere(policy, folder, capsys, **kwargs):
    """What each entry says; none of them leaves a run folder."""
    said = [
        through_python(policy, folder, kwargs),
        through_the_command_line(policy, folder, kwargs, capsys),
        through_the_notebook(policy, folder, kwargs),
    ]
    assert not folder.exists()
    return said


# --- checkpoints --------------------------------------------------------------------------------------------------------


def checkpoint(folder, features=STATES, action_dim=4):
    config = ClonedPolicyConfig(dict(features), action_dim, 4, 2, (8,))
    torch.manual_seed(0)
    return save_checkpoint(ClonedNetwork(config), folder)


def change_weights(change):
    def apply(folder):
        path = folder / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return apply


def change_config(**entries):
    def apply(folder):
        path = folder / "config.json"
        config = json.loads(path.read_text()) | entries
        path.write_text(
            json.dumps({name: value for name, value in config.items() if value is not None})
        )

    return apply


WRONG = {
    "no configuration": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "of nobody": (change_config(policy_class=None), "'type' .* or 'policy_class'"),
    "of a stranger": (change_config(policy_class="os:system"), "not run without your consent"),
    "without an entry": (change_config(hidden=None), "does not describe .*'hidden'"),
    "without weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "model.safetensors is missing",
    ),
    "torn": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"torn"),
        "model.safetensors can't be read",
    ),
    "missing key": (
        change_weights(lambda tensors: tensors.pop("head.0.bias")),
        "missing, unexpected or of another shape: head.0.bias.*saved with",
    ),
    "wrong shape": (
        change_weights(lambda tensors: tensors.update({"head.0.weight": torch.zeros(3, 3)})),
        "head.0.weight.*saved with",
    ),
    "nan": (
        change_weights(lambda tensors: tensors["head.0.weight"].fill_(float("nan"))),
        "head.0.weight hold NaN or infinity.*earlier checkpoint",
    ),
    "infinite statistics": (
        change_weights(lambda tensors: tensors["action_std"].fill_(float("inf"))),
        "action_std hold NaN or infinity",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_checkpoints(tmp_path, capsys, what):
    folder = checkpoint(tmp_path / "policy")
    break_it, words = WRONG[what]
    break_it(folder)
    for said in everywhere(str(folder), tmp_path / "run", capsys):
        assert re.search(words, said), said
        assert str(folder) in said  # which one


@pytest.mark.parametrize(
    "features, action_dim, words",
    [
        (
            {"observation.state": (4,), "observation.gripper": (2,)},
            4,
            r"gripper +not given +\(2,\)",
        ),
        ({"observation.state": (9,)}, 4, r"observation.state +\(4,\) +\(9,\)"),
        ({"observation.state": (4,)}, 7, r"action +\(4,\) +\(7,\)"),
    ],
)
def test_a_checkpoint_of_another_benchmark(tmp_path, capsys, features, action_dim, words):
    folder = checkpoint(tmp_path / "policy", features, action_dim)
    for said in everywhere(str(folder), tmp_path / "run", capsys):
        assert re.search(words, said), said


@pytest.mark.parametrize(
    "kwargs, words",
    [
        ({"n_action_steps": 99}, "n_action_steps=99 must be between 1 and 4"),
        ({"checkpoint": "other"}, "leave it out of policy_kwargs"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_wrong_arguments_of_a_checkpoint(tmp_path, capsys, kwargs, words):
    folder = checkpoint(tmp_path / "policy")
    for said in everywhere(str(folder), tmp_path / "run", capsys, **kwargs):
        assert re.search(words, said), said


def test_the_executed_notebook_shows_the_sentence(tmp_path):
    folder = checkpoint(tmp_path / "policy")
    WRONG["nan"][0](folder)
    output = tmp_path / "out.ipynb"
    done = papermill(
        output,
        *("-p", "benchmark", "metaworld", "-p", "task", "reach-v3"),
        *("-p", "policy", folder, "-p", "output_dir", tmp_path / "run"),
    )
    assert done.returncode != 0 and "head.0.weight hold NaN or infinity" in done.stderr
    assert "head.0.weight hold NaN or infinity" in output.read_text()
    assert not (tmp_path / "run").exists()


# --- servers ------------------------------------------------------------------------------------------------------------


@contextmanager
def served(handler, **settings):
    """Stands in for servers that are not ours, or not well."""
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.server import serve

    def quietly(connection):
        try:
            handler(connection)
        except ConnectionClosed:
            pass  # the client has heard enough

    server = serve(quietly, "127.0.0.1", 0, compression=None, **settings)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
    finally:
        server.shutdown()
        thread.join()


def test_a_server_that_is_not_there(tmp_path, capsys):
    with served(lambda connection: None) as address:
        pass  # its port is free again
    for said in everywhere(address, tmp_path / "run", capsys, connect_timeout_s=0.2):
        assert "no policy server answers at" in said and "lerobot-nb serve --policy" in said


@pytest.mark.parametrize(
    "token, words", [(None, "it wants a token"), ("wr0ng", "it refuses the token")]
)
def test_a_wrong_token(tmp_path, capsys, monkeypatch, token, words):
    if token is not None:
        monkeypatch.setenv(TOKEN_VARIABLE, token)
    with PolicyServer(make_policy("random"), port=0, token="s3cret") as server:
        for said in everywhere(server.address, tmp_path / "run", capsys):
            assert words in said and TOKEN_VARIABLE in said
            assert "wr0ng" not in said and "s3cret" not in said


@pytest.mark.parametrize(
    "greeting", [b"\xc1\xc1", pack([1, 2]), pack({"lerobot_nb": {"protocol": 1}})]
)
def test_a_server_whose_greeting_is_nonsense(tmp_path, capsys, greeting):
    with served(lambda connection: connection.send(greeting)) as address:
        for said in everywhere(address, tmp_path / "run", capsys):
            assert re.search("not a policy server|metadata is not valid", said), said


def finished_then(n_good, bad):
    """A server that answers `n_good` messages, and then what `bad` says."""
    left = [n_good]

    def handler(connection):
        connection.send(pack({}))
        for _ in connection:
            left[0] -= 1
            good = pack({"actions": np.zeros((5, 4), np.float32)})
            connection.send(good if left[0] >= 0 else bad)

    return handler


# one look an episode: the first two end, and the others are errors
LOOKS = {"n_action_steps": 5, "connect_timeout_s": 5.0, "reconnect_timeout_s": 1.0}


@pytest.mark.parametrize(
    "answer, words",
    [
        (b"\xc1", "not a msgpack message"),
        (pack({"action": 1}), "it has to be {'actions': an array"),
        (pack({"actions": np.zeros((5, 7), np.float32)}), r"shape \(1, 5, 7\)"),
        (pack({"actions": np.full((5, 4), np.nan, np.float32)}), "non-finite"),
        ("oh no", "raised: oh no"),
    ],
)
def test_answers_that_are_nonsense_cost_no_finished_episode(tmp_path, capsys, answer, words):
    with served(finished_then(2, answer)) as address:
        code = main(
            [*("eval", "--benchmark", "metaworld", "--task", "reach-v3", "--policy", address)]
            + ["--n_episodes", "4", "--batch_size", "1", "--episode_length", "5"]
            + ["--obs_type", "state", "--render", "none", "--progress", "none"]
            + ["--policy_kwargs", json.dumps(LOOKS), "--output_dir", str(tmp_path / "run")]
        )
    said = capsys.readouterr()
    records = EvalRun.load(tmp_path / "run").records()
    errors = [record.error for record in records if record.error is not None]
    assert len(records) - len(errors) == 2 and errors
    assert all(re.search(words, error) for error in errors), errors
    assert code == 3 and "Traceback" not in said.err
    assert "--retry_errors" in said.err  # what to type when the server is mended


def test_a_message_that_is_too_large(tmp_path, capsys):
    """The sentence names the setting on the side that refuses."""
    with PolicyServer(make_policy("random"), port=0, max_message_mb=0.001) as server:
        code = main(
            [*("eval", "--benchmark", "metaworld", "--task", "reach-v3")]
            + ["--policy", server.address, "--obs_type", "pixels", "--n_episodes", "1"]
            + ["--env_kwargs", '{"observation_height": 32, "observation_width": 32}']
            + ["--episode_length", "5", "--render", "none", "--progress", "none"]
            + ["--output_dir", str(tmp_path / "run")]
        )
    (record,) = EvalRun.load(tmp_path / "run").records()
    assert code == 3 and "serve --max_message_mb" in record.error
    assert "Traceback" not in capsys.readouterr().err


def test_a_server_that_goes_away_keeps_what_ended(tmp_path, capsys):
    """Exit code 1, the way on, and the finished episodes; the same run goes on when it is back."""
    left = [2]

    def handler(connection):
        connection.send(pack({}))
        for _ in connection:
            left[0] -= 1
            if left[0] < 0:
                gone.set()
                connection.close()
                return
            connection.send(pack({"actions": np.zeros((5, 4), np.float32)}))

    gone = threading.Event()
    words = [*("eval", "--benchmark", "metaworld", "--task", "reach-v3")]
    words += ["--n_episodes", "4", "--batch_size", "1", "--episode_length", "5"]
    words += ["--obs_type", "state", "--render", "none", "--progress", "none"]
    words += ["--policy_kwargs", json.dumps(LOOKS | {"reconnect_timeout_s": 0.2})]
    words += ["--output_dir", str(tmp_path / "run")]

    def refuse(connection, request):
        return connection.respond(503, "away") if gone.is_set() else None

    with served(handler, process_request=refuse) as address:
        code = main([*words, "--policy", address])
        said = capsys.readouterr().err
        assert code == 1 and "did not come back" in said and "--resume" in said
        assert "Traceback" not in said
        lines = (tmp_path / "run/episodes.jsonl").read_text().splitlines()
        assert len(lines) == 2
        left[0] = 100
        gone.clear()
        assert main(["eval", "--resume", str(tmp_path / "run"), "--trust"]) == 0, (
            capsys.readouterr().err
        )
    records = EvalRun.load(tmp_path / "run").records()
    assert [record.end_reason for record in records] == ["time_limit"] * 4


class Going(Policy):
    """Is gone for good at its `at`-th look, and remembers how many episodes had ended by then."""

    name, batch_format = "going", "numpy"

    def __init__(self, at):
        self.left, self.n_ended, self.n_ended_before = at, 0, None

    def end_episode(self, slot):
        self.n_ended += 1

    def predict(self, slots, batch):
        self.left -= 1
        if self.left <= 0 and self.n_ended_before is None:
            self.n_ended_before = self.n_ended
        if self.left <= 0:
            raise PolicyUnavailable("nobody answers")
        return np.ones((len(slots), 3, 2), np.float32)


def test_whenever_a_policy_goes_what_had_ended_is_kept(tmp_path):
    """Also an episode that ended in the very round in which the policy went."""
    kept = []
    for at in range(6, 20):
        policy = Going(at)
        with pytest.raises(PolicyUnavailable):
            evaluate(
                synthetic_envs(n_tasks=1),
                policy,
                EvalConfig(12, batch_size=3, max_wait_s=0.0),
                output_dir=tmp_path / str(at),
            )
        path = tmp_path / str(at) / "episodes.jsonl"
        n_lines = len(path.read_text().splitlines()) if path.exists() else 0
        kept.append((n_lines, policy.n_ended_before))
    assert [n_lines for n_lines, _ in kept] == [n_ended for _, n_ended in kept]
    assert kept[-1][0] > 0


def test_a_served_checkpoint_that_is_wrong(tmp_path, capsys):
    folder = checkpoint(tmp_path / "policy")
    WRONG["nan"][0](folder)
    assert main(["serve", "--policy", str(folder), "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert "hold NaN or infinity" in said and "Traceback" not in said
    with pytest.raises(PolicyLoadError, match="hold NaN or infinity"):
        make_policy(str(folder))
