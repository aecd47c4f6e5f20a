"""A policy with noise on its actions is in everything else the policy that it disturbs."""

import inspect
import json
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from synthetic import synthetic_envs

from lerobot_nb.envs.config import make_env_config
from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import evaluate
from lerobot_nb.policies.base import Policy
from lerobot_nb.policies.factory import make_policy, policy_wishes
from lerobot_nb.results.records import same_episode

NOISY = "lerobot_nb.policies.noisy:NoisyPolicy"


class Spy(Policy):
    """Remembers what it was asked, and differs from a plain policy in everything it says."""

    name, placements, batch_format = "spy", ("worker", "driver"), "numpy"
    needs_privileged, needs_images, n_action_steps, lock_step = True, False, 7, True
    last = None

    def __init__(self, secret_sauce=1):
        self.secret_sauce, self.calls = secret_sauce, []
        Spy.last = self

    @property
    def state_holder(self):
        return self.calls

    def begin_run(self):
        self.calls.append("begin_run")

    def end_run(self):
        self.calls.append("end_run")

    def begin_episode(self, slot, episode):
        self.calls.append("begin_episode")

    def end_episode(self, slot):
        self.calls.append("end_episode")

    def predict(self, slots, batch):
        self.calls.append("predict")
        return np.zeros((len(slots), 7, 2), np.float32)

    def check_tasks(self, tasks):
        self.calls.append("check_tasks")

    def check_env(self, env_config):
        self.calls.append("check_env")

    def env_wishes(self):
        self.calls.append("env_wishes")
        return {"obs_type": "spied"}

    def identity(self):
        self.calls.append("identity")
        return super().identity() | {"weights_sha256": f"{self.secret_sauce}"}

    def features_of_clients(self):
        return {"type": "spy"}


def episode(space):
    return SimpleNamespace(action_space=space, seed_sequence=lambda: np.random.SeedSequence(1))


def test_every_question_reaches_the_policy_that_is_disturbed():
    noisy = make_policy(NOISY, base="test_noisy_policy:Spy", scale=0.5)
    spy, box = Spy.last, gymnasium.spaces.Box(-1.0, 1.0, (2,))
    arguments = {
        "begin_episode": (0, episode(box)),
        "predict": ([0], {}),
        "end_episode": (0,),
        "check_tasks": ([],),
        "check_env": (None,),
    }
    asked = [name for name, value in vars(Policy).items() if inspect.isfunction(value)]
    asked = [name for name in asked if not name.startswith("_")]
    for name in ("begin_run", *arguments, "env_wishes", "identity", "end_run"):
        getattr(noisy, name)(*arguments.get(name, ()))
        assert spy.calls[-1] == name
        asked.remove(name)
    assert asked == []  # a method that Policy gets later is asked for here, too
    for name, value in vars(Policy).items():
        if not name.startswith("_") and not callable(value) and name not in ("name", "spec"):
            assert getattr(noisy, name) == getattr(spy, name), name
    assert noisy.features_of_clients() == {"type": "spy"}
    assert not hasattr(make_policy(NOISY, base="zero", scale=0.1), "features_of_clients")


def test_who_it_is():
    def identity(**kwargs):
        found = make_policy(NOISY, base="test_noisy_policy:Spy", **kwargs).identity()
        return json.dumps(found)

    plain = identity(scale=0.5)
    assert plain == identity(scale=0.5) and '"weights_sha256": "1"' in plain
    assert plain != identity(scale=0.6)
    assert plain != identity(scale=0.5, base_kwargs={"secret_sauce": 2})


def test_what_it_wishes_for_before_it_is_built():
    config = make_env_config("metaworld")
    expert = "lerobot_nb.policies.metaworld_expert:MetaworldExpert"
    assert policy_wishes(NOISY, config, base=expert, scale=0.1) == policy_wishes(expert, config)
    assert policy_wishes(expert, config) == {"obs_type": "state"}


def test_actions_that_are_not_numbers():
    noisy = make_policy(NOISY, base="zero", scale=0.5)
    with pytest.raises(ValueError, match=r"Discrete\(2\); use 'zero' without noise"):
        noisy.begin_episode(0, episode(gymnasium.spaces.Discrete(2)))


def test_without_noise_it_is_the_policy_itself(tmp_path):
    """And with noise it doesn't depend on the number of slots."""

    def records(name, policy, n, **kwargs):
        config = EvalConfig(3, batch_size=n, placement="driver")
        run = evaluate(
            synthetic_envs(), policy, config, output_dir=tmp_path / name, policy_kwargs=kwargs
        )
        return run.records()

    plain = records("plain", "random", 2)
    still = records("still", NOISY, 2, base="random", scale=0.0)
    one = records("one", NOISY, 1, base="random", scale=0.3)
    three = records("three", NOISY, 3, base="random", scale=0.3)
    for these, those in ((plain, still), (one, three)):
        assert [same_episode(a, b) for a, b in zip(these, those, strict=True)] == [[]] * 9
    assert [a.sum_reward for a in plain] != [b.sum_reward for b in one]
