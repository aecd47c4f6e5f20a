"""Wrong configurations: each is refused before a worker starts, with a message that names the value and what is allowed."""

import numpy as np
import pytest

from lerobot_nb.envs.config import make_env_config
from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import evaluate
from lerobot_nb.evaluation.parameters import EvalParameters


class NoPolicy:
    """Has neither of the methods."""


class NoReset:
    def select_action(self, batch):
        return np.zeros((1, 4))


def metaworld(**fields):
    return make_env_config("metaworld", **({"task": "reach-v3", "obs_type": "state"} | fields))


WRONG = {
    # the benchmark and its tasks
    "benchmark": (lambda: evaluate("metawrold", "random"), "metaworld"),
    "task": (lambda: evaluate(metaworld(task="push-v33"), "random"), "push-v3"),
    "empty task": (lambda: evaluate(metaworld(task="push-v3,"), "random"), "empty name"),
    "task twice": (lambda: evaluate(metaworld(task="push-v3,push-v3"), "random"), "more than once"),
    "task of two suites": (
        lambda: evaluate(metaworld(task="mt10,mt10"), "random"),
        "more than once",
    ),
    "task id too large": (
        lambda: evaluate(metaworld(task="mt10", task_ids=[10]), "random"),
        "0 to 9",
    ),
    "task id negative": (
        lambda: evaluate(metaworld(task="mt10", task_ids=[-1]), "random"),
        "from 0 on",
    ),
    "task ids no numbers": (
        lambda: evaluate(metaworld(task="mt10", task_ids="a-b"), "random"),
        "0-4,7",
    ),
    "obs_type": (lambda: evaluate(metaworld(obs_type="image"), "random"), "pixels_agent_pos"),
    "render_mode": (lambda: evaluate(metaworld(render_mode="human"), "random"), "rgb_array"),
    "episode_length": (lambda: evaluate(metaworld(episode_length=0), "random"), "at least 1"),
    "size": (lambda: evaluate(metaworld(observation_width=-64), "random"), "at least 1"),
    "camera": (lambda: evaluate(metaworld(camera_name="corner9"), "random"), "corner2"),
    "field": (lambda: evaluate(metaworld(camera="corner2"), "random"), "camera_name"),
    "gym id": (
        lambda: evaluate(make_env_config("gym", gym_id="NoSuchEnv-v0"), "random"),
        "NoSuchEnv",
    ),
    "gym package": (
        lambda: evaluate(
            make_env_config("gym", gym_id="CartPole-v1", package_name="no_such_package"), "random"
        ),
        "no_such_package",
    ),
    "empty mapping": (lambda: evaluate({}, "random"), "make_env"),
    # the policy
    "policy name": (lambda: evaluate(metaworld(), "exprt"), "expert"),
    "policy path": (lambda: evaluate(metaworld(), "no_such_module:Policy"), "no module"),
    "policy attribute": (lambda: evaluate(metaworld(), "collections:Policy"), "has no"),
    "policy object": (lambda: evaluate(metaworld(), NoPolicy()), "predict_action_chunk"),
    "policy without reset": (lambda: evaluate(metaworld(), NoReset()), "reset"),
    "no expert": (
        lambda: evaluate(make_env_config("gym", gym_id="CartPole-v1"), "expert"),
        "no scripted expert",
    ),
    "placement of the policy": (
        lambda: evaluate(metaworld(), WithReset(), EvalConfig(placement="worker")),
        "driver",
    ),
    "policy argument": (
        lambda: evaluate(metaworld(), "random", policy_kwargs={"temperature": 1}),
        "temperature",
    ),
    # the evaluation
    "n_episodes": (lambda: EvalConfig(n_episodes=0), "at least 1"),
    "n_episodes text": (lambda: EvalConfig(n_episodes="10"), "whole number"),
    "batch_size": (lambda: EvalConfig(batch_size=-2), "at least 0"),
    "seed": (lambda: EvalConfig(seed=-1), "at least 0"),
    "seed too large": (
        lambda: evaluate(metaworld(), "random", EvalConfig(seed=2**31 - 3)),
        "2**31",
    ),
    "placement": (lambda: EvalConfig(placement="gpu"), "driver"),
    "render": (lambda: EvalConfig(render="first"), "first:N"),
    "render number": (lambda: EvalConfig(render="first:x"), "first:N"),
    "n_spare": (lambda: EvalConfig(n_spare=-2), "at least -1"),
    "max_error_rate": (lambda: EvalConfig(max_error_rate=1.5), "between 0 and 1"),
    "step_timeout_s": (lambda: EvalConfig(step_timeout_s=0), "more than 0"),
    "use_async_envs": (lambda: EvalConfig(use_async_envs="no"), "True or False"),
    "resume without folder": (lambda: evaluate(metaworld(), "random", resume=True), "output_dir"),
    "resume of nothing": (
        lambda: evaluate(metaworld(), "random", resume=True, output_dir="no/such/run"),
        "run.json is missing",
    ),
    "folder not writable": (
        lambda: evaluate(metaworld(), "random", output_dir="/proc/run"),
        "can't be written",
    ),
    # the same through the parameters of the notebook and the command line
    "parameter type": (lambda: EvalParameters(n_episodes="many"), "whole number"),
    "parameter device": (lambda: EvalParameters(device="gpu"), "cuda"),
    "parameter policy_kwargs": (lambda: EvalParameters(policy_kwargs="{broken"), "JSON"),
    "parameter protocol": (lambda: EvalParameters(preset="openvla").env_config(), "no presets"),
    "unknown parameter": (lambda: EvalParameters.from_namespace({"n_episode": 3}), "n_episodes"),
}


class WithReset(NoReset):
    def reset(self):
        pass


@pytest.mark.parametrize("name", WRONG)
def test_it_is_refused(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "lerobot_nb.evaluation.seats.start_worker",
        lambda *args, **kwargs: pytest.fail("a worker was started"),
    )
    attempt, words = WRONG[name]
    with pytest.raises((ValueError, TypeError, OSError, ImportError, RuntimeError)) as error:
        attempt()
    assert words in str(error.value), str(error.value)
    assert not list(tmp_path.rglob("episodes.jsonl"))


def test_there_are_many():
    assert len(WRONG) >= 30
