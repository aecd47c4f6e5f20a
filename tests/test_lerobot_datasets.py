"""Data sets: ours in lerobot, lerobot's here. Needs an environment with lerobot: make test-lerobot."""

import os

import numpy as np
import pytest

pytest.importorskip("lerobot", reason="lerobot is not installed: make test-lerobot")
pytest.importorskip(
    "datasets", reason="lerobot's data sets need its extra `dataset`: make test-lerobot"
)
os.environ["HF_HUB_OFFLINE"] = "1"
pytestmark = pytest.mark.slow

from lerobot_nb import EvalConfig, make_env_config
from lerobot_nb.results.dataset import Demonstrations
from lerobot_nb.training.demonstrations import record_demonstrations


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> Demonstrations:
    env = make_env_config(
        "metaworld",
        task="reach-v3",
        obs_type="pixels_agent_pos",
        observation_height=64,
        observation_width=64,
        episode_length=12,
    )
    return record_demonstrations(
        env,
        tmp_path_factory.mktemp("data") / "reach",
        policy="random",
        n_episodes=3,
        only_successes=False,
        config=EvalConfig(batch_size=1),
    )


def test_lerobot_opens_ours(ours):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    chunk = [step / ours.info["fps"] for step in range(4)]
    theirs = LeRobotDataset(
        "local/reach", root=ours.folder, delta_timestamps={"action": chunk}, video_backend="pyav"
    )
    assert (
        len(theirs) == len(ours)
        and theirs.num_episodes == ours.n_episodes
        and theirs.fps == ours.info["fps"]
    )
    chunks, padded = ours.windows(4)
    images = ours.images("observation.image")
    for frame in (0, 5, 10, 11, 12, len(ours) - 1):
        one = theirs[frame]
        assert np.allclose(
            one["observation.state"].numpy(), ours.columns["observation.state"][frame]
        )
        assert np.array_equal(one["action"].numpy(), chunks[frame]) and np.array_equal(
            one["action_is_pad"].numpy(), padded[frame]
        )
        assert one["task"] == ours.tasks[0]
        assert np.abs(one["observation.image"].numpy() * 255 - images[frame].numpy()).mean() < 1
    # what came before, and a gap; at both ends of an episode
    steps = [-3, -1, 0, 2]
    theirs = LeRobotDataset(
        "local/reach",
        root=ours.folder,
        delta_timestamps={"observation.state": [step / ours.info["fps"] for step in steps]},
        video_backend="pyav",
    )
    values, padded = ours.windows(steps, "observation.state")
    for frame in range(len(ours)):
        one = theirs[frame]
        assert np.array_equal(one["observation.state"].numpy(), values[frame].astype(np.float32))
        assert np.array_equal(one["observation.state_is_pad"].numpy(), padded[frame])
    assert padded.any(0).tolist() == [True, True, False, True]
    assert np.allclose(
        theirs.meta.stats["action"]["mean"], ours.columns["action"].mean(0), atol=1e-6
    )


def test_lerobot_opens_the_data_set_of_a_run(ours, tmp_path):
    """`record` of an evaluation, through its checkpoint-like entry: the same frames."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from lerobot_nb import evaluate

    env = make_env_config(
        "metaworld",
        task="reach-v3",
        obs_type="pixels_agent_pos",
        observation_height=64,
        observation_width=64,
        episode_length=12,
    )
    run = evaluate(
        env,
        "random",
        EvalConfig(n_episodes=3, seed=0, batch_size=1, record="all"),
        output_dir=tmp_path / "run",
    )
    theirs = LeRobotDataset("local/run", root=run.folder / "dataset", video_backend="pyav")
    assert len(theirs) == len(ours)
    for frame in (0, 13, len(ours) - 1):
        assert np.array_equal(theirs[frame]["action"].numpy(), ours.columns["action"][frame])


def test_ours_opens_lerobots(tmp_path):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": None},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
        "observation.images.top": {
            "dtype": "video",
            "shape": (64, 64, 3),
            "names": ["height", "width", "channels"],
        },
    }
    theirs = LeRobotDataset.create(
        "local/made",
        fps=10,
        features=features,
        root=tmp_path / "made",
        use_videos=True,
        video_backend="pyav",
    )
    generator = np.random.default_rng(0)
    states, pictures = (
        generator.normal(size=(14, 3)).astype(np.float32),
        np.repeat(
            np.arange(14, dtype=np.uint8)[:, None, None, None] * 15, 64 * 64 * 3, axis=1
        ).reshape(14, 64, 64, 3),
    )
    for first, last in ((0, 8), (8, 14)):
        for frame in range(first, last):
            theirs.add_frame(
                {
                    "observation.state": states[frame],
                    "action": states[frame, :2] * 2,
                    "observation.images.top": pictures[frame],
                    "task": f"task {first}",
                }
            )
        theirs.save_episode()
    theirs.finalize()
    ours = Demonstrations.load(tmp_path / "made")
    assert (
        ours.n_episodes == 2
        and list(ours.episode_starts) == [0, 8, 14]
        and ours.tasks == ("task 0", "task 8")
    )
    assert np.array_equal(ours.columns["observation.state"], states)
    assert ours.observation_shapes == {
        "observation.state": (3,),
        "observation.images.top": (3, 64, 64),
    }
    images = ours.images("observation.images.top")
    assert np.abs(images.numpy().mean((1, 2, 3)) - np.arange(14) * 15).max() < 4
