"""`accelerate launch tests/accelerated.py DATA FOLDER`: a short training on several processes (see test_lerobot_training.py)."""

import sys

from lerobot_nb import EvalConfig, make_env_config
from lerobot_nb.results.dataset import Demonstrations
from lerobot_nb.training.behaviour_cloning import TrainConfig, Training

CONFIG = TrainConfig(steps=12, batch_size=32, eval_freq=6, n_episodes=2, hidden=(16,), log_freq=4)


def env_config():
    return make_env_config("metaworld", task="reach-v3", obs_type="state", episode_length=20)


if __name__ == "__main__":
    data, folder = sys.argv[1:]
    training = Training(
        folder,
        Demonstrations.load(data),
        env_config(),
        CONFIG,
        eval_config=EvalConfig(batch_size=1),
    ).run(print)
    if training.is_main:
        print(f"{training.accelerator.num_processes} processes")
