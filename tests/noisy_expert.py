"""Meta-World's expert with noise on its actions: a policy that is worse than the expert by construction. Workers import it by name."""

import numpy as np

from lerobot_nb.policies.base import Episode
from lerobot_nb.policies.metaworld_expert import MetaworldExpert


class NoisyExpert(MetaworldExpert):
    name = "noisy-expert"

    def __init__(self, noise: float = 3.0):
        super().__init__()
        self.noise = noise
        self._random = {}

    def begin_episode(self, slot: int, episode: Episode) -> None:
        super().begin_episode(slot, episode)
        self._random[slot] = np.random.default_rng(episode.spec.seed)

    def predict(self, slots, batch):
        actions = super().predict(slots, batch)
        for row, slot in enumerate(slots):
            actions[row] += self._random[slot].normal(0, self.noise, actions[row].shape)
        return np.clip(actions, -1, 1)
