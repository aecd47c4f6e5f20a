"""Observations on their way to a policy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lerobot_nb.envs.base import TaskInfo
from lerobot_nb.envs.processors import (
    ProcessorPipeline,
    add_envs_task,
    check_env_attributes_and_types,
    close_envs,
    preprocess_observation,
)

torch = pytest.importorskip("torch")


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 4),
    st.integers(5, 20),
    st.integers(5, 20),
    st.sampled_from([1, 3, 4]),
    st.integers(0, 2**31),
)
def test_images_become_channel_first_between_0_and_1(n_envs, height, width, channels, seed):
    images = np.random.default_rng(seed).integers(
        0, 256, (n_envs, height, width, channels), dtype=np.uint8
    )
    batch = preprocess_observation({"pixels": images})["observation.image"]
    assert (
        batch.shape == (n_envs, channels, height, width)
        and batch.dtype == torch.float32
        and batch.is_contiguous()
    )
    assert np.array_equal(
        np.rint(batch.numpy().transpose(0, 2, 3, 1) * 255).astype(np.uint8), images
    )
    assert np.array_equal(
        batch.numpy(), images.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
    )


def test_names_are_those_of_lerobot():
    image, vector = np.zeros((2, 32, 32, 3), np.uint8), np.arange(8.0).reshape(2, 4)
    batch = preprocess_observation(
        {
            "pixels": {"image": image, "image2": image},
            "agent_pos": vector,
            "environment_state": vector,
            "robot_state": {"eef": {"pos": vector}},
            "privileged": vector,
            "force": vector,
            "task": ["a", "b"],
        }
    )
    assert set(batch) == {
        "observation.images.image",
        "observation.images.image2",
        "observation.state",
        "observation.environment_state",
        "observation.robot_state",
        "observation.force",
        "task",
    }
    assert all(
        batch[key].dtype == torch.float32
        for key in ("observation.state", "observation.environment_state", "observation.force")
    )
    assert batch["observation.robot_state"]["eef"]["pos"].dtype == torch.float64 and batch[
        "task"
    ] == ["a", "b"]


def test_one_observation_gets_a_batch_dimension():
    batch = preprocess_observation(
        {"pixels": np.zeros((32, 32, 3), np.uint8), "agent_pos": np.zeros(4)}
    )
    assert batch["observation.image"].shape == (1, 3, 32, 32) and batch[
        "observation.state"
    ].shape == (1, 4)


def test_tensors_flipped_and_read_only_arrays_are_taken():
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    expected = preprocess_observation({"pixels": images[:, ::-1].copy()})["observation.image"]
    locked = images[:, ::-1].copy()
    locked.flags.writeable = False
    for given_images in (images[:, ::-1], locked, torch.from_numpy(images[:, ::-1].copy())):
        assert torch.equal(
            preprocess_observation({"pixels": given_images})["observation.image"], expected
        )


def test_the_result_does_not_share_memory_with_the_images():
    images = np.zeros((1, 16, 16, 1), np.uint8)
    batch = preprocess_observation({"pixels": images})
    images[:] = 255
    assert batch["observation.image"].max() == 0


@pytest.mark.parametrize(
    ("observation", "error", "message"),
    [
        (np.zeros(4), TypeError, "must be a dict.*'gym' wraps"),
        (
            {"pixels": np.zeros((1, 32, 32, 3), np.float32)},
            ValueError,
            "uint8.*'pixels' is float32",
        ),
        (
            {"pixels": {"top": np.zeros((1, 3, 32, 32), np.uint8)}},
            ValueError,
            r"channels last.*'pixels/top'.*\(1, 3, 32, 32\)",
        ),
        ({"pixels": np.zeros((1, 2, 32, 32, 3), np.uint8)}, ValueError, "channels last"),
        ({"agent_pos": [0.0, 1.0]}, TypeError, "'agent_pos' must be an array of numbers"),
        ({"agent_pos": np.array(["a"])}, TypeError, "'agent_pos' must be an array of numbers"),
        ({"lidar": {"left": np.zeros(3)}}, TypeError, "'lidar' is a dict"),
    ],
)
def test_wrong_observations_are_named(observation, error, message):
    with pytest.raises(error, match=message):
        preprocess_observation(observation)


class _Vector:
    num_envs = 3

    def __init__(self, **attributes):
        self.attributes = attributes

    def get_attr(self, name):
        if name not in self.attributes:
            raise AttributeError(name)
        return (self.attributes[name],) * 3


def test_the_text_of_the_task():
    assert add_envs_task(_Vector(task_description="push it", task="push-v3"), {"a": 1}) == {
        "a": 1,
        "task": ["push it"] * 3,
    }
    assert add_envs_task(_Vector(task="push-v3"), {})["task"] == ["push-v3"] * 3
    assert add_envs_task(_Vector(), {})["task"] == [""] * 3
    with pytest.raises(TypeError, match="must be a text"):
        add_envs_task(_Vector(task_description=3), {})
    lazy = _Vector()
    lazy.task = TaskInfo("mt10", 1, "push-v3", "push it")
    assert add_envs_task(lazy, {})["task"] == ["push it"] * 3


def test_the_text_of_the_task_is_what_the_environments_say():
    from lerobot_nb.envs.factory import make_env

    env = make_env("metaworld", n_envs=2, use_async_envs=False, task="push-v3", obs_type="state")[
        "push-v3"
    ][0]
    try:
        assert (
            add_envs_task(env, {})["task"]
            == list(env.call("task_description"))
            == [env.task.description] * 2
        )
        check_env_attributes_and_types(env)
    finally:
        close_envs(env)


def test_missing_attributes_are_warned_about():
    with pytest.warns(UserWarning, match="no task_description and no task"):
        check_env_attributes_and_types(_Vector())
    with pytest.warns(UserWarning, match="no task_description;"):
        check_env_attributes_and_types(_Vector(task="push-v3"))


class _Closable:
    def __init__(self, failure=None):
        self.failure, self.closed = failure, False

    def close(self):
        self.closed = True
        if self.failure is not None:
            raise self.failure


def test_closing_goes_on_past_a_failure(caplog):
    envs = [_Closable(), _Closable(OSError("first")), _Closable(), _Closable(OSError("second"))]
    with pytest.raises(OSError, match="first"):
        close_envs({"a": {0: envs[0], 1: envs[1]}, "b": [envs[2], (envs[3],)]})
    assert all(env.closed for env in envs) and "second" in caplog.text
    with pytest.raises(TypeError, match="can't be closed"):
        close_envs("push-v3")


def test_pipelines():
    double = ProcessorPipeline(
        lambda batch: {"x": 2 * batch["x"]}, lambda batch: {"x": 2 * batch["x"]}
    )
    assert double({"x": 1}) == {"x": 4} and len(double) == 2
    with pytest.raises(TypeError, match="callable"):
        ProcessorPipeline(3)
