"""One Meta-World environment that two harnesses share, and that writes down what it was told and what it answered."""

from lerobot_nb.envs.metaworld import MetaworldEnv

SIZE, LENGTH = 48, 15  # pixels; steps of an episode


class RecordedReach(MetaworldEnv):
    """`log`: one list of (action, reward) an episode, by its seed."""

    def __init__(self):
        super().__init__(
            "reach-v3", observation_height=SIZE, observation_width=SIZE, episode_length=LENGTH
        )
        self.log = {}

    def reset(self, *, seed=None, options=None):  # lerobot's options are not for the environment
        self.steps = self.log[seed] = []
        return super().reset(seed=seed)

    def step(self, action, observe=True):
        result = super().step(action, observe)
        self.steps.append((tuple(float(number) for number in action), result[1]))
        return result

    def take_log(self):
        log, self.log = self.log, {}
        return log


_ONE = []


def the_environment():
    """Always the same object."""
    if not _ONE:
        _ONE.append(RecordedReach())
    return _ONE[0]
