"""The state that checkpoints for LIBERO expect, from a real observation's robot state."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from scipy.spatial.transform import Rotation

from lerobot_nb.envs.libero_processor import LiberoProcessor, axis_angle
from lerobot_nb.envs.processors import preprocess_observation


def robosuite_axis_angle(quaternion):
    """robosuite 1.4.0's definition (transform_utils.quat2axisangle), with which the data sets were
    made.
    """
    w = min(max(quaternion[3], -1.0), 1.0)
    length = np.sqrt(1.0 - w * w)
    return np.zeros(3) if np.isclose(length, 0.0) else quaternion[:3] * 2.0 * np.arccos(w) / length


def test_axis_angle_is_robosuites_and_a_rotation():
    quaternions = Rotation.random(2000, rng=np.random.default_rng(1)).as_quat()
    quaternions = np.concatenate([quaternions, -quaternions])
    ours = axis_angle(torch.from_numpy(quaternions)).numpy()
    assert np.allclose(
        ours, [robosuite_axis_angle(quaternion) for quaternion in quaternions], atol=1e-6
    )
    assert (
        Rotation.from_rotvec(ours) * Rotation.from_quat(quaternions).inv()
    ).magnitude().max() < 1e-7


@pytest.mark.parametrize(
    "quaternion, expected",
    [
        ([0, 0, 0, 1], [0, 0, 0]),  # identity
        ([0, 0, 0, -1], [0, 0, 0]),
        ([0, 1, 0, 0], [0, np.pi, 0]),  # half a turn
        ([0, 0, -1, 0], [0, 0, -np.pi]),
        (
            [0, 0, np.sin(0.1), -np.cos(0.1)],
            [0, 0, 2 * np.pi - 0.2],
        ),  # negative w: the long way round
        ([1e-9, 0, 0, 1], [2e-9, 0, 0]),
    ],
)
def test_edges(quaternion, expected):
    assert np.allclose(
        axis_angle(torch.tensor(quaternion, dtype=torch.float64)).numpy(), expected, atol=1e-12
    )


def test_batch_of_an_environment():
    rng = np.random.default_rng(0)
    quaternion = Rotation.random(3, rng=rng).as_quat()
    raw = {
        "pixels": {
            "image": rng.integers(0, 256, (3, 8, 6, 3), dtype=np.uint8),
            "image2": rng.integers(0, 256, (3, 8, 6, 3), dtype=np.uint8),
        },
        "robot_state": {
            "eef": {"pos": rng.normal(size=(3, 3)), "quat": quaternion, "mat": np.zeros((3, 3, 3))},
            "gripper": {"qpos": rng.normal(size=(3, 2)), "qvel": np.zeros((3, 2))},
            "joints": {"pos": np.zeros((3, 7)), "vel": np.zeros((3, 7))},
        },
        "privileged": {"goal": np.zeros((3, 8))},
    }
    batch = LiberoProcessor()(preprocess_observation(raw))
    assert sorted(batch) == [
        "observation.images.image",
        "observation.images.image2",
        "observation.state",
    ]
    assert (
        batch["observation.state"].shape == (3, 8)
        and batch["observation.state"].dtype is torch.float32
    )
    position, fingers = raw["robot_state"]["eef"]["pos"], raw["robot_state"]["gripper"]["qpos"]
    expected = np.concatenate(
        [position, axis_angle(torch.from_numpy(quaternion)).numpy(), fingers], axis=1
    )
    assert np.array_equal(batch["observation.state"].numpy(), expected.astype(np.float32))
    turned = raw["pixels"]["image2"][:, ::-1, ::-1].transpose(0, 3, 1, 2).astype(np.float32) / 255
    assert np.array_equal(batch["observation.images.image2"].numpy(), turned)
