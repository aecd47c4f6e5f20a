"""An environment and policies for tests of the engine: quick, deterministic, and able to fail in every way that a simulator can.

They live in a module of their own, since worker processes import them by path: "synthetic:Synthetic".
"""

import ctypes
import hashlib
import os
import signal
import time
from pathlib import Path

import gymnasium
import numpy as np

from lerobot_nb.envs.base import EnvFactory, TaskInfo
from lerobot_nb.envs.vector import LazyVectorEnv
from lerobot_nb.policies.base import Policy


class Synthetic(gymnasium.Env):
    """Episodes of 5 to `longest` steps whose course depends on the seed and on every action.

    fault: what goes wrong at step `fault_step` (0: in reset; -1: in the constructor) of the
    episodes whose seed is `fault_seed`:
        "kill", "segfault", "raise", "hang", "exit", "nan_reward", "bad_shape", "memory".
    once: path of a file that is made at the first fault; there is no fault where it exists. None:
    the fault comes every time.
    """

    lazy = True
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(
        self,
        task="a",
        render_mode=None,
        pixels=False,
        longest=60,
        step_s=0.0,
        reset_s=0.0,
        fault=None,
        fault_seed=None,
        fault_step=1,
        once=None,
        frame_size=(32, 48),
        construction_log=None,
        sloppy=False,
    ):
        self.task, self.render_mode, self.pixels, self.longest, self.step_s, self.reset_s = (
            task,
            render_mode,
            pixels,
            longest,
            step_s,
            reset_s,
        )
        self.fault, self.fault_seed, self.fault_step, self.once, self.frame_size = (
            fault,
            fault_seed,
            fault_step,
            once,
            tuple(frame_size),
        )
        spaces = {"agent_pos": gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)}
        if pixels:
            spaces["pixels"] = gymnasium.spaces.Box(0, 255, (*self.frame_size, 3), np.uint8)
        self.observation_space = gymnasium.spaces.Dict(spaces)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.n_rendered, self.sloppy = 0, sloppy
        if sloppy:
            self.observation_space = gymnasium.spaces.Dict(
                {"agent_pos": gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)}
            )
        if construction_log is not None:
            with open(construction_log, "a") as file:
                file.write(f"{os.getpid()}\n")
        if fault_step < 0:
            self._fail()

    def _fail(self):
        if self.fault is None:
            return None
        if self.once is not None:
            if Path(self.once).exists():
                return None
            Path(self.once).touch()
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "segfault":
            ctypes.string_at(0)
        if self.fault == "raise":
            raise FloatingPointError("the physics went to infinity")
        if self.fault == "hang":
            time.sleep(3600)
        if self.fault == "exit":
            os._exit(7)
        return self.fault

    def _observation(self, observe=True):
        if not observe:
            return None
        observation = {"agent_pos": self.position.copy()}
        if self.sloppy:
            observation["more"] = np.ones(2)
        if self.pixels:
            self.n_rendered += 1
            observation["pixels"] = self.render()
        return observation

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed_of_episode = seed
        if self.reset_s:
            time.sleep(self.reset_s)
        if seed == self.fault_seed and self.fault_step == 0:
            self._fail()
        u = self.np_random.random()
        self.length = int(5 * (self.longest / 5) ** (u * u))
        self.position, self.n_steps = self.np_random.random(3), 0
        return self._observation(), {"is_success": False}

    def step(self, action, observe=True):
        if self.step_s:
            time.sleep(self.step_s)
        self.n_steps += 1
        self.position[:2] += np.asarray(action, dtype=np.float64) * 0.01
        self.position[2] = np.sin(self.position[0] * 7 + self.position[1] + self.n_steps)
        ended = self.n_steps >= self.length
        success = bool(ended and self.position[2] > 0)
        observation, reward = self._observation(observe), float(self.position[2])
        if self.seed_of_episode == self.fault_seed and self.n_steps == self.fault_step:
            fault = self._fail()
            if fault == "nan_reward":
                reward = float("nan")
            if fault == "bad_shape":
                observation = {"agent_pos": np.zeros(5)}
        return observation, reward, success, ended and not success, {"is_success": success}

    def render(self):
        height, width = self.frame_size
        shade = (
            np.arange(height * width).reshape(height, width) + int(1000 * self.position.sum())
        ) % 256
        return np.repeat(shade[..., None], 3, axis=2).astype(np.uint8)


class Noisy(Policy):
    """Random actions from the episode's generator, and a pull that depends on what it sees. k:
    actions a look.
    """

    name, placements, batch_format = "noisy", ("driver", "worker"), "numpy"

    def __init__(self, k=1, noise=1.0, fault=None, fault_seed=None, look_s=0.0):
        self.k, self.noise, self.fault, self.fault_seed, self.look_s = (
            k,
            noise,
            fault,
            fault_seed,
            look_s,
        )
        self.generators, self.seeds = {}, {}

    def begin_episode(self, slot, episode):
        assert slot not in self.generators, (
            "an episode began in a slot whose last one had not ended"
        )
        if self.fault == "raise_begin" and episode.spec.seed == self.fault_seed:
            raise KeyError("no such instruction")
        self.generators[slot], self.seeds[slot] = episode.numpy_generator(), episode.spec.seed

    def end_episode(self, slot):
        del self.generators[slot]
        if self.fault == "raise_end" and self.seeds[slot] == self.fault_seed:
            raise ValueError("nothing ends well")

    def predict(self, slots, batch):
        rows = []
        time.sleep(self.look_s)
        for row, slot in enumerate(slots):
            pull = 0.1 * batch["agent_pos"][row, :2] + (
                batch["pixels"][row].mean() / 255 if "pixels" in batch else 0.0
            )
            rows.append(pull + self.noise * self.generators[slot].uniform(-1, 1, (self.k, 2)))
            if self.fault is not None and self.seeds[slot] == self.fault_seed:
                if self.fault == "raise":
                    raise ZeroDivisionError("the policy divided by zero")
                if self.fault == "nan":
                    rows[-1][-1, 1] = np.nan
                if self.fault == "shape":
                    return np.zeros((len(slots), 1, 3))
        return np.stack(rows).astype(np.float32)


class Remembering(Policy):
    """Keeps what it saw, and looks whether it stays what it was."""

    name, placements, batch_format = "remembering", ("driver", "worker"), "numpy"

    def begin_episode(self, slot, episode):
        self.seen = []

    def predict(self, slots, batch):
        self.seen.append((batch["agent_pos"], batch["agent_pos"].copy()))
        assert all(np.array_equal(kept, copied) for kept, copied in self.seen), (
            "an observation has changed"
        )
        return np.full((len(slots), 1, 2), 0.5, np.float32)


class Counting(Noisy):
    """Writes down when a run begins and ends."""

    name = "counting"

    def __init__(self, log):
        super().__init__()
        self.log = log

    def begin_run(self):
        with open(self.log, "a") as file:
            file.write("begin_run\n")

    def end_run(self):
        with open(self.log, "a") as file:
            file.write("end_run\n")


class WholeBatch:
    """A policy in lerobot's older form: one state for the whole batch, reset together."""

    def reset(self):
        self.t = 0

    def select_action(self, batch):
        import torch

        self.t += 1
        return torch.tanh(batch["observation.state"][:, :2] * self.t)


def synthetic_envs(n_tasks=3, n_envs=2, **kwargs):
    """{"synthetic": {task_id: LazyVectorEnv}}"""
    return {
        "synthetic": {
            number: LazyVectorEnv(
                EnvFactory("synthetic:Synthetic", {"task": f"task {number}", **kwargs}),
                n_envs,
                task=TaskInfo("synthetic", number, f"task {number}", f"do task {number}"),
            )
            for number in range(n_tasks)
        }
    }


class Looking(Policy):
    """Acts on every number that it sees, and leaves a digest of all of them behind: one file an
    episode.
    """

    name, placements, batch_format = "looking", ("driver", "worker"), "numpy"

    def __init__(self, folder, k=5, noise=0.0):
        self.folder, self.k, self.noise, self.slots = folder, k, noise, {}

    def begin_episode(self, slot, episode):
        self.slots[slot] = episode, hashlib.sha256(), episode.numpy_generator()

    def predict(self, slots, batch):
        rows = []
        for row, slot in enumerate(slots):
            episode, digest, rng = self.slots[slot]
            numbers = list(
                _leaves({key: value for key, value in batch.items() if key != "task"}, row)
            )
            for leaf in numbers:
                digest.update(leaf.tobytes())
            course = np.sin(
                np.arange(self.k * episode.action_space.shape[0])
                + sum(float(leaf.astype(np.float64).mean()) for leaf in numbers)
            )
            course = course.reshape(self.k, -1)
            rows.append(course + self.noise * rng.uniform(-1, 1, course.shape))
        return np.clip(np.stack(rows), -1, 1).astype(np.float32)

    def end_episode(self, slot):
        episode, digest, _ = self.slots.pop(slot)
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        Path(self.folder, "_".join(map(str, episode.spec.key))).write_text(digest.hexdigest())


def _leaves(tree, row):
    for key in sorted(tree):
        if isinstance(tree[key], dict):
            yield from _leaves(tree[key], row)
        else:
            yield np.ascontiguousarray(tree[key][row])
