"""`check_benchmark` finds environments whose success can't be trusted: an info that lives on, success before the first step, values that are neither yes nor no."""

from dataclasses import dataclass
from typing import ClassVar

import gymnasium
import numpy as np
import pytest

from lerobot_nb.envs.base import TaskInfo
from lerobot_nb.envs.check_benchmark import ContractError, check_benchmark
from lerobot_nb.envs.config import EnvConfig


class Slide(gymnasium.Env):
    """Four steps to the right, and it is done. `way`: how success is reported."""

    metadata, render_mode = {"render_modes": [], "render_fps": 10}, None
    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    lazy, task, task_description, max_episode_steps = True, "slide", "slide", 10

    def __init__(self, way):
        self.way, self.kept = way, {}

    def look(self):
        return np.full(1, self.n / 10, np.float32)

    def info(self, reached):
        if (
            self.way == "kept"
            or (self.way == "kept from reset on" and self.n <= 1)
            or (self.way == "kept by steps" and self.n)
        ):
            self.kept["is_success"] = reached
            return self.kept
        if self.way == "silent":
            return {}
        if self.way == "only when it happens":
            return {"is_success": True} if reached else {}
        if self.way == "first step late":
            return {"is_success": reached} if self.n != 1 else {}
        value = {
            "number": int(reached),
            "text": str(reached),
            "share": 0.5,
            "two": [reached, False],
            "nan": float("nan"),
        }.get(self.way, reached)
        return {"success" if self.way == "other key" else "is_success": value}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n, self.over = 0, False
        return self.look(), {
            "is_success": True
        } if self.way == "before the first step" else self.info(False)

    def step(self, action, observe=True):
        if self.over:
            raise RuntimeError("reset first")
        self.n += 1
        reached = self.n == (3 if self.way == "lost again" else 4)
        goes_on = self.way == "lost again"
        self.over = self.n == 4
        return (
            self.look() if observe else None,
            0.0,
            self.over and not goes_on,
            self.over and goes_on,
            self.info(reached),
        )

    def close(self):
        pass


@dataclass(frozen=True)
class SlideConfig(EnvConfig):
    fps: int = 10
    way: str = ""

    def tasks(self):
        return [TaskInfo("slide", 0, "slide", "slide", max_episode_steps=10)]

    def env_factory(self, task):
        return lambda: Slide(self.way)


@dataclass(frozen=True)
class AlwaysConfig(SlideConfig):
    reports_success: ClassVar[bool] = True


@pytest.mark.parametrize(
    "way", ["", "silent", "only when it happens", "other key", "first step late"]
)
def test_ways_that_are_allowed(way):
    check_benchmark(SlideConfig(way=way))


@pytest.mark.parametrize(
    "way, words",
    [
        (
            "kept",
            "the info after step 1 is the dictionary that was returned after reset, so that what it says lives on",
        ),
        ("kept from reset on", "lives on"),
        ("kept by steps", "the info after step 2 is the dictionary that was returned after step 1"),
        ("before the first step", "success after reset, before the first step"),
        ("number", "must be a bool after reset, not 0"),
        ("text", "'False'.*neither yes nor no"),
        ("share", "0.5.*neither yes nor no"),
        ("two", "neither yes nor no"),
        ("nan", "nan.*neither yes nor no"),
        ("lost again", "step 3 reports success and does not end"),
    ],
)
def test_each_broken_promise_is_found(way, words):
    with pytest.raises(ContractError, match=words):
        check_benchmark(SlideConfig(way=way))


@pytest.mark.parametrize("way", ["silent", "only when it happens", "other key", "first step late"])
def test_a_benchmark_that_promises_reports_makes_them_at_every_step(way):
    check_benchmark(AlwaysConfig(way=""))
    with pytest.raises(ContractError, match="must be a bool after .*, not None"):
        check_benchmark(AlwaysConfig(way=way))


def test_an_environment_that_goes_on_after_success_says_so():
    check_benchmark(SlideConfig(way="lost again"), ends_at_success=False)
