"""Checkpoints as far as they can be tried without lerobot: finding, trusting, comparing; and how policies that are objects are asked.

The checkpoints here are configurations with empty weights, and the policies are small stand-ins with lerobot's methods; the real ones are in test_lerobot.py.
"""

import importlib.util
import json
from collections import deque

import numpy as np
import pytest
import torch
from synthetic import synthetic_envs

from lerobot_nb.envs.config import make_env_config
from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import evaluate
from lerobot_nb.evaluation.parameters import EvalParameters
from lerobot_nb.policies.base import (
    AdaptedPolicy,
    Policy,
    PolicyLoadError,
    PolicyLost,
    PolicyUnavailable,
)
from lerobot_nb.policies.checkpoints import (
    Checkpoint,
    FeatureMismatch,
    checkpoint_class,
    compare_features,
    features_of_batch,
    weights_file,
)
from lerobot_nb.policies.factory import make_policy, policy_wishes
from lerobot_nb.results.records import same_episode

IMAGE, STATE = "observation.image", "observation.state"


def write_checkpoint(
    folder, type="act", image=(3, 96, 96), camera=IMAGE, state=4, action=4, **more
):
    folder.mkdir(parents=True, exist_ok=True)
    inputs = {}
    if state is not None:
        inputs[STATE] = {"type": "STATE", "shape": [state]}
    if camera is not None:
        inputs[camera] = {"type": "VISUAL", "shape": list(image)}
    config = {
        "type": type,
        "n_obs_steps": 1,
        "input_features": inputs,
        "output_features": {"action": {"type": "ACTION", "shape": [action]}},
    } | more
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def metaworld(**fields):
    return make_env_config("metaworld", **{"task": "reach-v3"} | fields)


# --- finding ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, words",
    [
        (None, "has no config.json"),
        ("[1]", "does not say what policy"),
        ("{}", "does not say what policy"),
        ("{", "can't be read"),
        ('{"type": "act", "input_features": {"a": {"type": "PICTURE", "shape": [3]}}}', "PICTURE"),
    ],
)
def test_a_folder_that_is_no_checkpoint(tmp_path, text, words):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(PolicyLoadError, match=words):
        Checkpoint.find(str(tmp_path)).features("input_features")


def test_the_folder_of_a_training_points_to_its_checkpoint(tmp_path):
    write_checkpoint(tmp_path / "checkpoints/last/pretrained_model")
    with pytest.raises(PolicyLoadError, match="checkpoints/last/pretrained_model"):
        Checkpoint.find(str(tmp_path))


def test_names_that_nobody_knows_say_what_is_allowed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="hub:lerobot/act_aloha"):
        make_policy("lerobot/act_aloha")
    with pytest.raises(PolicyLoadError, match="hub:user/repo"):
        make_policy("hub:act")


def test_what_the_name_says_is_not_said_again(tmp_path):
    with pytest.raises(ValueError, match="says the checkpoint already"):
        make_policy(str(write_checkpoint(tmp_path)), checkpoint="elsewhere")


def test_a_repository_is_known_by_its_commit(tmp_path, monkeypatch):
    """The real hub client, on a cache as it lays it out; nothing is downloaded."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--someone--act_reach"
    write_checkpoint(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)
    (repository / "refs/v1").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for source in (
        "hub:someone/act_reach",
        "hub:someone/act_reach@v1",
        f"hub:someone/act_reach@{commit}",
    ):
        found = Checkpoint.find(source)
        assert (found.revision, found.type, found.source) == (commit, "act", source)
    for source in ("hub:someone/act_reach@v2", "hub:someone/else"):
        with pytest.raises(PolicyLoadError, match="can't be fetched from the hub"):
            Checkpoint.find(source)


# --- trust --------------------------------------------------------------------------------------------------------------


def test_a_pickle_is_opened_only_when_asked(tmp_path):
    folder = write_checkpoint(tmp_path / "one")
    (folder / "model.safetensors").unlink()
    with pytest.raises(PolicyLoadError, match="model.safetensors is missing"):
        weights_file(Checkpoint.find(str(folder)))
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/owned'\ntR.")
    with pytest.raises(PolicyLoadError, match="allow_pickle"):
        weights_file(Checkpoint.find(str(folder)))
    assert weights_file(Checkpoint.find(str(folder)), allow_pickle=True).name == "pytorch_model.bin"


def test_code_that_a_checkpoint_names_is_not_run(tmp_path):
    """policy_class may name this package's own classes; anything else has to be named by the user."""
    for named in (
        "os:system",
        "synthetic:Noisy",
        "lerobot_nb_evil:Policy",
        3,
        "lerobot_nb.policies.simple",
    ):
        with pytest.raises(PolicyLoadError, match="not run without your consent"):
            checkpoint_class(str(write_checkpoint(tmp_path, policy_class=named)))
    assert (
        checkpoint_class(
            str(write_checkpoint(tmp_path, policy_class="lerobot_nb.policies.simple:ZeroPolicy"))
        )
        == "lerobot_nb.policies.simple:ZeroPolicy"
    )


# --- comparing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "checkpoint, env, settings, keys, cure",
    [
        (dict(), dict(observation_height=96, observation_width=96), {}, [], None),
        (dict(), dict(), {}, [IMAGE], "observation_height=96, observation_width=96"),
        (dict(), dict(), dict(resize_images=True), [], None),
        (
            dict(camera="observation.images.top"),
            dict(observation_height=96, observation_width=96),
            {},
            ["observation.images.top"],
            'rename_map={"observation.image": "observation.images.top"}',
        ),
        (
            dict(camera="observation.images.top"),
            dict(),
            {},
            ["observation.images.top"],
            "observation_height=96",
        ),
        (
            dict(camera="observation.images.top"),
            dict(),
            dict(rename_map={IMAGE: "observation.images.top"}),
            ["observation.images.top"],
            "observation_height=96",
        ),
        (
            dict(camera="observation.images.top"),
            dict(observation_height=96, observation_width=96),
            dict(rename_map={"observation.images.wrist": "observation.images.top"}),
            ["observation.images.wrist", "observation.images.top"],
            "the environment gives action, observation.image",
        ),
        (
            dict(state=39),
            dict(observation_height=96, observation_width=96),
            {},
            [STATE],
            "other numbers",
        ),
        (
            dict(action=7),
            dict(observation_height=96, observation_width=96),
            {},
            ["action"],
            "another benchmark",
        ),
        (dict(), dict(obs_type="state"), {}, [IMAGE], "obs_type='pixels_agent_pos'"),
        (
            dict(),
            dict(obs_type="pixels", observation_height=96, observation_width=96),
            {},
            [STATE],
            "obs_type='pixels_agent_pos'",
        ),
        (dict(camera=None), dict(obs_type="state"), {}, [], None),
    ],
)
def test_features_are_compared(tmp_path, checkpoint, env, settings, keys, cure):
    problems = compare_features(
        Checkpoint.find(str(write_checkpoint(tmp_path, **checkpoint))), metaworld(**env), **settings
    )
    assert [problem.key for problem in problems] == keys
    assert cure is None or any(cure in problem.cure for problem in problems)


def test_cameras_that_the_policy_fills_in(tmp_path):
    folder = write_checkpoint(tmp_path, "smolvla", empty_cameras=0)
    config = json.loads((folder / "config.json").read_text())
    config["input_features"]["observation.images.wrist"] = {"type": "VISUAL", "shape": [3, 96, 96]}
    config["input_features"]["observation.images.empty_camera_0"] = {
        "type": "VISUAL",
        "shape": [3, 480, 640],
    }
    (folder / "config.json").write_text(json.dumps(config))
    found, env = (
        Checkpoint.find(str(folder)),
        metaworld(observation_height=96, observation_width=96),
    )
    (problem,) = compare_features(found, env)
    assert problem.key == "observation.images.wrist" and "empty_cameras=1" in problem.cure
    assert compare_features(found, env, empty_cameras=1) == [] and found.image_size() == (96, 96)


def test_the_saved_names_count_unless_others_are_given(tmp_path):
    folder = write_checkpoint(tmp_path, camera="observation.images.top")
    steps = [
        {
            "registry_name": "rename_observations_processor",
            "config": {"rename_map": {IMAGE: "observation.images.top"}},
        }
    ]
    (folder / "policy_preprocessor.json").write_text(
        json.dumps({"name": "policy_preprocessor", "steps": steps})
    )
    found, env = (
        Checkpoint.find(str(folder)),
        metaworld(observation_height=96, observation_width=96),
    )
    assert (
        compare_features(found, env) == [] and len(compare_features(found, env, rename_map={})) == 1
    )
    (folder / "policy_preprocessor.json").write_text("{}")
    with pytest.raises(PolicyLoadError, match="not a processor"):
        compare_features(found, env)


def test_the_table_names_everything_at_once(tmp_path):
    folder = write_checkpoint(tmp_path, state=3, action=7, camera="observation.images.top")
    with pytest.raises(FeatureMismatch) as caught:
        from lerobot_nb.policies.checkpoints import check_features

        check_features(Checkpoint.find(str(folder)), metaworld())
    lines = str(caught.value).splitlines()
    assert len(lines) == 5 and all(
        word in lines[1] for word in ("key", "environment", "checkpoint", "what mends it")
    )
    assert (
        "(3, 480, 480)" not in str(caught.value)
        and "(3, 96, 96)" in str(caught.value)
        and "(7,)" in str(caught.value)
    )


def test_what_a_checkpoint_wishes_for(tmp_path):
    config = make_env_config("metaworld")
    assert policy_wishes(str(write_checkpoint(tmp_path / "pixels")), config) == {
        "observation_height": 96,
        "observation_width": 96,
    }
    assert policy_wishes(str(write_checkpoint(tmp_path / "states", camera=None)), config) == {
        "obs_type": "state"
    }
    assert (
        policy_wishes("expert", config) == {"obs_type": "state"}
        and policy_wishes("synthetic:WholeBatch", config) == {}
    )
    assert policy_wishes(str(tmp_path / "states"), make_env_config("libero")) == {
        "obs_type": "state"
    }


def test_the_wish_is_granted_unless_something_else_is_said(tmp_path):
    folder = str(write_checkpoint(tmp_path / "pixels"))
    assert EvalParameters("metaworld", policy=folder).env_config().observation_height == 96
    said = EvalParameters(
        "metaworld", policy=folder, env_kwargs={"observation_height": 64}
    ).env_config()
    assert (said.observation_height, said.observation_width) == (64, 96)
    assert (
        EvalParameters("metaworld", policy=str(write_checkpoint(tmp_path / "states", camera=None)))
        .env_config()
        .obs_type
        == "state"
    )


def test_a_benchmark_that_does_not_say_what_it_observes(tmp_path):
    """Nothing is compared, and nothing wished for, before its first observation."""
    found, gym = (
        Checkpoint.find(str(write_checkpoint(tmp_path))),
        make_env_config("gym", task="CartPole-v1"),
    )
    assert (
        compare_features(found, gym) == []
        and policy_wishes(str(tmp_path), gym) == {}
        and policy_wishes("random", gym) == {}
    )
    seen = features_of_batch(
        {IMAGE: torch.zeros(2, 3, 64, 64), STATE: torch.zeros(2, 5), "task": ["", ""]}
    )
    problems = compare_features(found, None, named=seen)
    assert [problem.key for problem in problems] == [STATE, IMAGE] and "resize_images" in problems[
        1
    ].cure
    assert (
        compare_features(
            found,
            None,
            named=features_of_batch({IMAGE: torch.zeros(2, 3, 96, 96), STATE: torch.zeros(2, 4)}),
        )
        == []
    )


def test_liberos_names(tmp_path):
    folder = write_checkpoint(
        tmp_path, camera="observation.images.image", image=(3, 256, 256), state=8, action=7
    )
    assert (
        compare_features(
            Checkpoint.find(str(folder)), make_env_config("libero", task="libero_object")
        )
        == []
    )


# --- entry points without lerobot ---------------------------------------------------------------------------------------


@pytest.mark.skipif(importlib.util.find_spec("lerobot") is not None, reason="lerobot is installed")
def test_without_lerobot_every_entry_says_what_to_do(tmp_path, capsys):
    from lerobot_nb.cli import main

    folder, run = str(write_checkpoint(tmp_path / "act")), tmp_path / "run"
    assert (
        main(
            [
                "eval",
                "--benchmark",
                "metaworld",
                "--task",
                "reach-v3",
                "--policy",
                folder,
                "--output_dir",
                str(run),
            ]
        )
        == 2
    )
    said = capsys.readouterr().err
    assert "make setup-lerobot" in said and "lerobot-nb serve" in said and "Traceback" not in said
    with pytest.raises(PolicyLoadError, match="make setup-lerobot"):
        evaluate("metaworld", folder, output_dir=run)
    with pytest.raises(PolicyLoadError, match="make setup-lerobot"):
        EvalParameters("metaworld", task="reach-v3", policy=folder).overview()
    assert not run.exists()


# --- objects with lerobot's methods -------------------------------------------------------------------------------------


class Queued(torch.nn.Module):
    """Stands in for Diffusion and TDMPC: a chunk method that reads a queue which `select_action`
    fills, with one observation in it.
    """

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(0.7))
        self.reset()

    def reset(self):
        self._queues = {"observation.state": deque(maxlen=1), "action": deque(maxlen=2)}

    def predict_action_chunk(self, batch):
        return torch.tanh(
            torch.stack(list(self._queues["observation.state"]), dim=1)[:, :1, :2].repeat(1, 2, 1)
            * self.weight
        )

    def select_action(self, batch):
        self._queues["observation.state"].append(batch["observation.state"])
        if not self._queues["action"]:
            self._queues["action"].extend(self.predict_action_chunk(batch).transpose(0, 1))
        return self._queues["action"].popleft()


def test_a_chunk_method_that_reads_queues_is_not_taken_for_stateless(tmp_path):
    policy = make_policy(Queued())
    assert policy.lock_step and policy.identity()["lock_step"]
    run = evaluate(
        synthetic_envs(), policy, EvalConfig(3, batch_size=2), output_dir=tmp_path / "run"
    )
    assert [record.error for record in run.records() if record.error] == []
    alone = evaluate(
        synthetic_envs(), Queued(), EvalConfig(3, batch_size=1), output_dir=tmp_path / "alone"
    )
    assert [same_episode(a, b) for a, b in zip(run.records(), alone.records(), strict=True)] == [
        []
    ] * 9


class Step:
    """Stands in for a step of lerobot's processors."""

    def __init__(self, mean):
        self.mean = torch.tensor(mean)

    def get_config(self):
        return {"eps": 1e-8}

    def state_dict(self):
        return {"mean": self.mean}


class Pipeline:
    def __init__(self, *steps):
        self.steps = steps

    def __call__(self, batch):
        return batch


def test_processors_are_part_of_who_a_policy_is():
    def identity(mean):
        return AdaptedPolicy(
            Queued(), preprocessor=Pipeline(Step(mean)), postprocessor=abs
        ).identity()

    assert identity(0.5) == identity(0.5) != identity(0.25)
    assert AdaptedPolicy(Queued()).identity() != identity(0.5)
    assert (
        AdaptedPolicy(Queued(), postprocessor=abs).identity()
        != AdaptedPolicy(Queued(), postprocessor=round).identity()
    )


# --- policies that are lost ---------------------------------------------------------------------------------------------


class Losing(Policy):
    """Is lost at its `at`-th call, `times` times in a row; `gone`: for good."""

    name, batch_format = "losing", "numpy"

    def __init__(self, at=4, times=1, gone=False):
        self.at, self.times, self.gone, self.n_calls = at, times, gone, 0

    def predict(self, slots, batch):
        self.n_calls += 1
        if self.at <= self.n_calls < self.at + self.times:
            raise (
                PolicyUnavailable("nobody answers")
                if self.gone
                else PolicyLost("the server began anew")
            )
        return np.tanh(batch["agent_pos"][:, None, :2]).astype(np.float32)


def test_episodes_of_a_policy_that_was_lost_run_again(tmp_path):
    expected = evaluate(
        synthetic_envs(),
        Losing(times=0),
        EvalConfig(3, batch_size=2),
        output_dir=tmp_path / "expected",
    ).records()
    run = evaluate(
        synthetic_envs(), Losing(), EvalConfig(3, batch_size=2), output_dir=tmp_path / "run"
    )
    assert [
        same_episode(a, b, ignore=["attempt"]) for a, b in zip(run.records(), expected, strict=True)
    ] == [[]] * 9
    assert sorted({record.attempt for record in run.records()}) == [1, 2]


def test_a_policy_that_is_lost_again_and_again_is_an_error(tmp_path):
    run = evaluate(
        synthetic_envs(n_tasks=1),
        Losing(at=1, times=10**6),
        EvalConfig(2, batch_size=1, max_retries=1, max_error_rate=1.0),
        output_dir=tmp_path / "run",
    )
    assert [(record.end_reason, record.attempt) for record in run.records()] == [("error", 2)] * 2
    assert "the server began anew" in run.records()[0].error


def test_a_policy_that_is_gone_ends_the_run_and_loses_nothing(tmp_path):
    with pytest.raises(PolicyUnavailable, match="nobody answers"):
        evaluate(
            synthetic_envs(),
            Losing(at=40, gone=True, times=10**6),
            EvalConfig(3, batch_size=2),
            output_dir=tmp_path / "run",
        )
    manifest = json.loads((tmp_path / "run/run.json").read_text())
    assert manifest["status"] == "interrupted" and "nobody answers" in manifest["reason"]
    kept = len((tmp_path / "run/episodes.jsonl").read_text().splitlines())
    run = evaluate(
        synthetic_envs(),
        Losing(times=0),
        EvalConfig(3, batch_size=2),
        output_dir=tmp_path / "run",
        resume=True,
    )
    assert 0 < kept < 9 == len(run.records()) and run.status == "finished"
