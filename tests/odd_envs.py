"""Environments that keep the rules of Gymnasium more or less, one oddity each. Workers import them by path."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Odd(gymnasium.Env):
    """A point that walks; success at the step `goal`. The episode ends at `length` steps, or never
    (0).

    odd: names of the oddities, with commas between them:
        "kept_info": one info dictionary for the whole life of the environment; "array_success":
        success of shape (1,); "array_reward": reward of shape (1,); "none": step returns None as
        observation; "missing": step leaves out an array; "mission": a text in the observation;
        "told": an instruction in the info; "texts": two texts; "float_image", "bright_image": an
        image space of bytes, and other values in it; "image": an image called `image`; "same_name":
        `agent_pos` and `state`.
    """

    metadata = {"render_modes": [], "render_fps": 10}

    def __init__(self, odd="", length=6, goal=4, render_mode=None, task="walk", start=0.0):
        self.odd, self.length, self.goal, self.render_mode, self.task, self.start = (
            set(odd.split(",")),
            length,
            goal,
            render_mode,
            task,
            start,
        )
        parts = {"agent_pos": spaces.Box(-np.inf, np.inf, (2,), np.float32)}
        if self.odd & {"mission", "texts"}:
            parts["mission"] = spaces.Text(200)
        if "texts" in self.odd:
            parts = {
                "agent_pos": parts["agent_pos"],
                "greeting": spaces.Text(200),
                "farewell": spaces.Text(200),
            }
        if self.odd & {"float_image", "bright_image", "image"}:
            parts["image"] = spaces.Box(0, 255, (8, 8, 3), np.uint8)
        if "same_name" in self.odd:
            parts["state"] = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = spaces.Dict(parts)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.info = {}

    def instruction(self):
        return f"go to ball {self.n_episodes % 3}, seed {self.seed_of_episode}"

    def observation(self):
        made = {
            "agent_pos": self.position.astype(np.float32),
            "state": self.position.astype(np.float32),
            "mission": self.instruction() if self.odd else "",
            "greeting": "hello",
            "farewell": "bye",
            "image": np.full((8, 8, 3), 0.5)
            if "float_image" in self.odd
            else np.full((8, 8, 3), 300)
            if "bright_image" in self.odd
            else np.full((8, 8, 3), 51, np.uint8),
        }
        return {name: made[name] for name in self.observation_space.spaces}

    n_episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed_of_episode, self.n_steps = seed, 0
        self.position = self.np_random.random(2) + self.start
        self.n_episodes = 0 if seed is None else seed
        info = {"is_success": False, "step": 0, "scene": {"seed": seed}}
        if "told" in self.odd:
            info["task_description"] = self.instruction()
        return self.observation(), self._kept(info)

    def _kept(self, info):
        if "kept_info" not in self.odd:
            return info
        self.info.clear()
        self.info.update(info)
        return self.info

    def step(self, action):
        self.n_steps += 1
        self.position = self.position + 0.1 * np.asarray(action, np.float64)
        success = self.n_steps == self.goal
        info = {
            "is_success": np.array([success]) if "array_success" in self.odd else success,
            "step": self.n_steps,
        }
        observation, reward = self.observation(), float(self.position.sum())
        if "missing" in self.odd:
            del observation["agent_pos"]
        if "none" in self.odd and self.n_steps == 3:
            observation = None
        reward = np.array([reward]) if "array_reward" in self.odd else reward
        return observation, reward, self.n_steps == self.length, False, self._kept(info)
