"""The contract of environments: the benchmarks keep it, and each way to break it is found."""

from dataclasses import dataclass

import gymnasium
import numpy as np
import pytest

from lerobot_nb.envs.base import TaskInfo
from lerobot_nb.envs.check_benchmark import ContractError, check_benchmark
from lerobot_nb.envs.config import EnvConfig, make_env_config


class Walk(gymnasium.Env):
    """A walk on a line that keeps every promise; `broken` names the one that it does not keep."""

    observation_space = gymnasium.spaces.Dict(
        {"agent_pos": gymnasium.spaces.Box(-50, 50, (1,), np.float64)}
    )
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    task, task_description, render_mode = "walk", "walk", "rgb_array"
    n_episodes = 0

    def __init__(self, broken=""):
        self.broken, self.max_episode_steps, self.lazy = (
            broken,
            21 if broken == "time limit" else 20,
            broken != "eager",
        )
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 30 if broken == "fps" else 10}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.left = np.array([self.np_random.random()]), 20
        Walk.n_episodes += 1
        if self.broken == "memory":
            self.place += Walk.n_episodes
        return self.look(), {"is_success": 0 if self.broken == "no bool" else False}

    def look(self):
        value = self.place + (100 if self.broken == "outside" else 0)
        return {"agent_pos": value.copy()}

    def step(self, action, observe=True):
        if self.left <= 0 and self.broken != "no end":
            raise RuntimeError("reset first")
        self.left -= 1
        self.place = self.place + action
        if self.broken == "looks matter" and observe:
            self.place += 1e-9
        over = self.left == 0
        seen = self.look() if observe or self.broken == "always looks" else None
        return (
            seen,
            float(self.place[0]),
            over and self.broken == "two ends",
            over,
            {"is_success": self.broken == "goes on after success"},
        )

    def render(self):
        if self.broken == "drawing matters":
            self.place += 1e-9
        return np.zeros((4, 4) if self.broken == "flat picture" else (4, 4, 3), np.uint8)

    def close(self):
        if self.broken == "closing matters":
            self.place, Walk.reset = None, _shifted


_reset = Walk.reset


def _shifted(self, *, seed=None, options=None):
    observation, info = _reset(self, seed=seed)
    self.place += 1
    return self.look(), info


@dataclass(frozen=True)
class WalkConfig(EnvConfig):
    fps: int = 10
    broken: str = ""

    def tasks(self):
        tasks = [TaskInfo("walk", 0, "walk", "walk", max_episode_steps=20)]
        return tasks + [TaskInfo("walk", 1, "walk", "walk", max_episode_steps=20)] * (
            self.broken == "twins"
        )

    def env_factory(self, task):
        return lambda: Walk(self.broken)


@pytest.fixture(autouse=True)
def as_written():
    yield
    Walk.reset = _reset


def test_an_environment_that_keeps_it_passes():
    assert [task.name for task in check_benchmark(WalkConfig())] == ["walk"]


@pytest.mark.parametrize(
    "broken, words",
    [
        ("time limit", "max_episode_steps is 21 in the environment and 20"),
        ("fps", "render_fps"),
        ("memory", "changes the observation at step 0|changes the rewards"),
        ("no bool", "is_success"),
        ("outside", "not in the observation space"),
        ("no end", "a finished episode could be stepped"),
        ("looks matter", "looking at every 10th step only changes the rewards, first at step 1"),
        ("always looks", "must return None as observation"),
        ("two ends", "both as terminated and as truncated"),
        ("drawing matters", "drawing at every step changes the rewards, first at step 2"),
        ("eager", "lazy must be True"),
        ("goes on after success", "step 1 reports success and does not end"),
        ("flat picture", "render\\(\\) must return"),
        ("closing matters", "after close"),
        ("twins", "can't tell them apart"),
    ],
)
def test_each_broken_promise_is_found(broken, words):
    with pytest.raises(ContractError, match=words):
        check_benchmark(WalkConfig(broken=broken))


def test_metaworld_keeps_it():
    config = make_env_config(
        "metaworld", task="mt10", obs_type="state", render_mode=None, privileged=True
    )
    assert len(check_benchmark(config, n_steps=12)) == 10


def test_metaworld_keeps_it_with_pictures():
    config = make_env_config(
        "metaworld",
        task="drawer-open-v3",
        obs_type="pixels_agent_pos",
        observation_height=64,
        observation_width=64,
    )
    assert len(check_benchmark(config, n_steps=6, look_every=3)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("obs_type", ["state", "pixels_agent_pos"])
def test_libero_keeps_it(obs_type):
    config = make_env_config(
        "libero",
        task="libero_goal",
        task_ids=[0, 7],
        obs_type=obs_type,
        observation_height=64,
        observation_width=64,
    )
    assert len(check_benchmark(config, n_steps=12, look_every=4)) == 2
