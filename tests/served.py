"""Policies for tests of servers; importable, since one is served from another process."""

import numpy as np
import torch

from lerobot_nb.policies.base import Policy


class Seeing(Policy):
    """Acts on pictures and states as tensors, and on the random numbers of its episode; remembers
    how many looks there were in it.
    """

    name, batch_format = "seeing", "torch"

    def __init__(self, k=3):
        self.n_action_steps, self.slots, self.batches = k, {}, []

    def begin_episode(self, slot, episode):
        assert slot not in self.slots, "an episode began in a slot whose last one had not ended"
        self.slots[slot] = [0, episode.torch_generator(), len(episode.task.description)]

    def end_episode(self, slot):
        del self.slots[slot]

    def predict(self, slots, batch):
        self.batches.append(len(slots))
        rows = []
        for row, slot in enumerate(slots):
            known = self.slots[slot]
            known[0] += 1
            pull = (
                batch["observation.state"][row, :2]
                + batch["observation.image"][row].mean()
                + 0.01 * known[0]
                + 0.001 * (known[2] + len(batch["task"][row]))
            )
            rows.append(
                torch.tanh(pull + torch.randn((self.n_action_steps, 2), generator=known[1]))
            )
        return torch.stack(rows)


class Troubled(Policy):
    """What is wrong with it, it does at every look."""

    name, batch_format, needs_images = "troubled", "numpy", False

    def __init__(self, trouble):
        self.trouble = trouble

    def predict(self, slots, batch):
        import time

        if self.trouble == "raises":
            raise ZeroDivisionError("the policy divided by zero")
        if self.trouble == "hangs":
            time.sleep(3)
        if self.trouble == "shape":
            return np.zeros((len(slots), 1, 5), np.float32)
        return np.full((len(slots), 1, 2), np.nan if self.trouble == "nan" else 0.0, np.float32)
