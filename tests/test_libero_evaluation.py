"""LIBERO through the engine: what the policy sees, to the last bit, and what comes of it do not depend on how the episodes are run."""

import os

import pytest

from lerobot_nb.envs.config import make_env_config
from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import evaluate
from lerobot_nb.evaluation.rerun import rerun_episode
from lerobot_nb.policies.base import PolicySpec
from lerobot_nb.results.records import same_episode

pytest.importorskip("libero", reason="LIBERO is not installed (make setup)")


def looked(config, way, folder, noise=0.0, k=5):
    """A run with the digests of everything that the policy saw, by episode."""
    policy = PolicySpec(
        "synthetic:Looking", {"folder": str(folder / "seen"), "k": k, "noise": noise}
    ).build()
    run = evaluate(config, policy, EvalConfig(2, **way), output_dir=folder / "run")
    assert run.status == "finished", run.reason
    return run, {
        name: (folder / "seen" / name).read_text() for name in sorted(os.listdir(folder / "seen"))
    }


def assert_same(first, second):
    assert first[1] == second[1] and len(first[1]) == len(first[0].records())
    for a, b in zip(first[0].records(), second[0].records(), strict=True):
        assert same_episode(a, b) == []


def test_states(tmp_path):
    config = make_env_config(
        "libero", task="libero_object", task_ids=[0], obs_type="state", episode_length=15
    )
    ways = [
        dict(batch_size=1, use_async_envs=False, placement="driver"),
        dict(batch_size=2, placement="driver"),
    ]
    first, second = (looked(config, way, tmp_path / str(number)) for number, way in enumerate(ways))
    assert_same(first, second)
    assert [record.init_state_id for record in first[0].records()] == [0, 1]


@pytest.mark.slow  # a simulator is built for each way
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_pixels_in_every_way(tmp_path, noise):
    config = make_env_config(
        "libero",
        task="libero_object",
        task_ids=[0, 1],
        obs_type="pixels_agent_pos",
        episode_length=20,
        observation_height=128,
        observation_width=128,
    )
    ways = [
        dict(batch_size=1, use_async_envs=False, placement="driver"),
        dict(batch_size=1, n_spare=0, placement="driver"),
        dict(batch_size=2, n_spare=1, max_batch=1, placement="driver"),
        dict(batch_size=4, max_batch=4, placement="driver"),
        dict(batch_size=2, placement="worker"),
    ]
    runs = [looked(config, way, tmp_path / str(number), noise) for number, way in enumerate(ways)]
    for run in runs[1:]:
        assert_same(runs[0], run)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_expert_alone_and_in_company(tmp_path):
    config = make_env_config("libero", task="libero_object", task_ids=[0], obs_type="state")
    ways = [
        dict(batch_size=1, placement="driver"),
        dict(batch_size=2, placement="driver"),
        dict(batch_size=1, use_async_envs=False, placement="driver"),
        dict(batch_size=2, placement="worker"),
    ]
    runs = [
        evaluate(config, "expert", EvalConfig(3, **way), output_dir=tmp_path / str(number))
        for number, way in enumerate(ways)
    ]
    for run in runs[1:]:
        assert [
            same_episode(a, b) for a, b in zip(runs[0].records(), run.records(), strict=True)
        ] == [[]] * 3
    assert all(record.success for record in runs[0].records())
    for index in range(3):
        _, differences = rerun_episode(runs[0].folder, f"libero_object/0/{index}", video=False)
        assert differences == []
