"""The observed pose of LIBERO's hand is the one that absolute actions speak of."""

import numpy as np
import pytest

pytest.importorskip("libero")


@pytest.mark.parametrize("n_settle_steps", [10, 0])
def test_the_observed_pose_leaves_the_hand_still(n_settle_steps):
    from scipy.spatial.transform import Rotation

    from lerobot_nb.envs.libero import LiberoEnv

    env = LiberoEnv(
        "libero_spatial",
        0,
        obs_type="state",
        render_mode=None,
        privileged=True,
        control_mode="absolute",
        n_settle_steps=n_settle_steps,
    )
    try:
        observation, _ = env.reset(seed=1, options={"init_state_id": 0})
        eef = observation["robot_state"]["eef"]
        action = np.r_[eef["pos"], Rotation.from_matrix(eef["mat"]).as_rotvec(), -1]
        for _ in range(15):
            observation, *_ = env.step(action)
        after = observation["robot_state"]["eef"]
        assert np.abs(after["pos"] - eef["pos"]).max() < 0.005
        turned = Rotation.from_matrix(after["mat"] @ eef["mat"].T).magnitude()
        assert turned < 0.02, f"the hand turned by {np.degrees(turned):.1f} degrees"
        # two frames, as documented
        assert not np.allclose(
            Rotation.from_quat(after["quat"]).as_matrix(), after["mat"], atol=0.5
        )
        assert env._simulator.robot_state()["eef"]["mat"].dtype == np.float64
    finally:
        env.close()
