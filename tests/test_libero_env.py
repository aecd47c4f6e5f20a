"""LiberoEnv against LIBERO's own environment, and what must not depend on how it is used.

The quick part takes a minute or two: LIBERO is slow to begin with.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("libero", reason="hf-libero is not installed")
pytest.importorskip("robosuite", reason="robosuite is not installed")
from lerobot_nb.envs.libero import CAMERAS, LiberoEnv
from lerobot_nb.envs.libero_paths import LiberoPaths
from lerobot_nb.envs.libero_scene import PRIVILEGED_SHAPES
from lerobot_nb.envs.libero_tasks import SUITES, libero_task, list_tasks

SIZE = 128


def wander(n: int, seed: int = 0) -> np.ndarray:
    """Random actions, mostly downwards."""
    actions = np.random.default_rng(seed).uniform(-1, 1, (n, 7))
    actions[:, 2] = -np.abs(actions[:, 2])
    return actions


def equal(one, other) -> bool:
    """Nested observations, equal to the last bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return np.array_equal(one, other)


@pytest.fixture(scope="module")
def env():
    env = LiberoEnv(
        "libero_object",
        0,
        observation_height=SIZE,
        observation_width=SIZE,
        privileged=True,
        episode_length=60,
    )
    yield env
    env.close()


def plain_loop(suite: str, task_id: int, actions, init_state_id: int | None, seed: int, **kwargs):
    """LIBERO's own environment with images at every step: what lerobot and others run.

    Returns its observations and simulator states after settling and after each action, and whether
    it was solved after each action.
    """
    import lerobot_nb.envs.libero_simulator  # noqa: F401 (sets the library up)

    LiberoPaths.find().apply()
    from libero.libero.envs import OffScreenRenderEnv

    task = libero_task(suite, task_id)
    plain = OffScreenRenderEnv(
        bddl_file_name=str(task.bddl_file), camera_heights=SIZE, camera_widths=SIZE, **kwargs
    )
    plain.seed(seed)
    plain.reset()
    if init_state_id is not None:
        plain.set_init_state(task.init_states()[init_state_id])
    for _ in range(10):
        observation = plain.step([0, 0, 0, 0, 0, 0, -1])[0]
    observations, states, successes = [observation], [plain.sim.get_state().flatten()], []
    for action in actions:
        observation, _, success, _ = plain.step(action)
        observations.append(observation)
        states.append(plain.sim.get_state().flatten())
        successes.append(bool(success))
    plain.close()
    return observations, states, successes


def as_plain(observation: dict) -> dict:
    state = observation["robot_state"]
    return {
        "agentview_image": observation["pixels"]["image"],
        "robot0_eye_in_hand_image": observation["pixels"]["image2"],
        "robot0_eef_pos": state["eef"]["pos"],
        "robot0_eef_quat": state["eef"]["quat"],
        "robot0_gripper_qpos": state["gripper"]["qpos"],
        "robot0_gripper_qvel": state["gripper"]["qvel"],
        "robot0_joint_pos": state["joints"]["pos"],
        "robot0_joint_vel": state["joints"]["vel"],
    }


def check_against_plain_loop(env, suite, task_id, init_state_id, n_actions, look_every, **kwargs):
    """Random actions on the way to an object, so that things are touched and move, with a look now
    and then; the same actions in LIBERO's own environment.
    """
    options = {"init_state_id": init_state_id}
    observation, _ = env.reset(seed=7, options=options)
    reader, target = env._simulator.reader, reader_row(env, env.object_names[0])
    looks, actions, start, touched = (
        {0: observation},
        wander(n_actions),
        reader.read()["body_pos"][target],
        False,
    )
    for i in range(n_actions):
        truth = reader.read()
        actions[i, :3] = np.clip(
            actions[i, :3] / 4 + (truth["body_pos"][target] - truth["eef_pos"]) / 0.05, -1, 1
        )
        touched = touched or truth["finger_contact"][target] > 0
        look = (i + 1) % look_every == 0
        observation, _, terminated, truncated, info = env.step(actions[i], observe=look)
        assert (observation is None) == (not look)
        if look:
            looks[i + 1] = observation
    moved = np.linalg.norm(reader.read()["body_pos"][target] - start)
    assert touched and moved > 0.002, (
        f"the hand was to push {env.object_names[0]} about, touched {touched}, moved {moved:.4f} m"
    )

    observations, states, _ = plain_loop(suite, task_id, actions, init_state_id, seed=7, **kwargs)
    assert np.array_equal(env._simulator.problem.sim.get_state().flatten(), states[-1])
    for i, look in looks.items():
        plain = {name: observations[i][name] for name in as_plain(look)}
        assert equal(as_plain(look), plain), f"step {i}"
    observation, _ = env.reset(seed=7, options=options)  # again, in a simulator that has been used
    for i, action in enumerate(actions[: n_actions // 3], start=1):
        observation, *_ = env.step(action)
        assert equal(
            as_plain(observation), {name: observations[i][name] for name in as_plain(observation)}
        ), f"step {i}"
        assert np.array_equal(env._simulator.problem.sim.get_state().flatten(), states[i])


def reader_row(env, name: str) -> int:
    return int(env._simulator.problem.obj_body_id[name])


def test_looks_equal_those_of_the_plain_loop(env):
    check_against_plain_loop(env, "libero_object", 0, init_state_id=3, n_actions=30, look_every=10)


def test_spaces_hold_the_observations(env):
    observation, info = env.reset(seed=1, options={"init_state_id": 0})
    assert env.observation_space.contains(observation)
    assert info["is_success"] is False and info["scene"]["goal"] == [
        ["in", "alphabet_soup_1", "basket_1_contain_region"]
    ]
    assert {
        name: value.shape for name, value in observation["privileged"].items()
    } == PRIVILEGED_SHAPES
    scene, truth = info["scene"], observation["privileged"]
    assert np.allclose(truth["eef_pos"], observation["robot_state"]["eef"]["pos"], atol=0.02)
    soup = scene["clouds"]["alphabet_soup_1"]
    points = (
        np.einsum("nij,nj->ni", truth["body_mat"][soup["body"]], soup["points"])
        + truth["body_pos"][soup["body"]]
    )
    extent = np.ptp(points, axis=0)
    assert (0.02 < extent).all() and (extent < 0.15).all()  # a can: not metres, not millimetres


def test_an_episode_does_not_depend_on_what_came_before(env):
    """Without a stored state the seed places everything. The numpy generator of the process is left
    alone, and closing in between changes nothing.
    """
    np.random.seed(5)
    first, _ = env.reset(seed=11)
    env.step(np.ones(7), observe=False)
    env.reset(seed=12)
    again, _ = env.reset(seed=11)
    assert equal(first, again)
    assert np.random.random() == np.random.RandomState(5).random()
    env.close()
    assert equal(first, env.reset(seed=11)[0])
    assert not equal(first["pixels"], env.reset(seed=12)[0]["pixels"])


def test_doors_do_not_shift_the_random_numbers():
    """LIBERO's samplers of doors and drawers pile up from reset to reset, and would move the
    microwave.
    """
    env = LiberoEnv("libero_10", 9, obs_type="state", render_mode=None)
    env.reset(seed=3, options={"init_state_id": 0})
    first = env._simulator.pose("microwave_1")
    env.reset(seed=4, options={"init_state_id": 0})
    other = env._simulator.pose("microwave_1")
    env.reset(seed=3, options={"init_state_id": 0})
    assert np.array_equal(first, env._simulator.pose("microwave_1")) and not np.array_equal(
        first, other
    )
    env.close()


def test_drawing_a_video_changes_no_look(env):
    actions = wander(6)
    looks = []
    for films in (False, True):
        env.reset(seed=2, options={"init_state_id": 1})
        frames = []
        for i, action in enumerate(actions):
            observation = env.step(action, observe=i == 5)[0]
            if films:
                frames.append(env.render())
        looks.append(observation)
    assert equal(*looks)
    assert (
        frames[0].shape == (480, 480, 3)
        and frames[0].dtype == np.uint8
        and (frames[0] != frames[-1]).any()
    )


def test_two_environments_draw_their_own_pictures(env):
    """robosuite alone would draw one with the meshes of the other."""
    alone, _ = env.reset(seed=0, options={"init_state_id": 0})
    other = LiberoEnv(
        "libero_goal", 0, obs_type="pixels", observation_height=SIZE, observation_width=SIZE
    )
    others, _ = other.reset(seed=0, options={"init_state_id": 0})
    beside, _ = env.reset(seed=0, options={"init_state_id": 0})
    assert equal(alone, beside)
    others_again, _ = other.reset(seed=0, options={"init_state_id": 0})
    assert equal(others, others_again)
    other.close()
    after, _ = env.reset(seed=0, options={"init_state_id": 0})
    assert equal(alone, after)
    assert np.abs(alone["pixels"]["image"].astype(int) - others["pixels"]["image"]).mean() > 10


def test_success_and_time_limit(env):
    env.reset(seed=0, options={"init_state_id": 0})
    for i in range(60):
        observation, reward, terminated, truncated, info = env.step(np.zeros(7), observe=False)
        assert (terminated, truncated, info["is_success"]) == (False, i == 59, False)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(np.zeros(7))
    env.reset(seed=0, options={"init_state_id": 0})
    simulator = env._simulator
    basket = simulator.problem.sim.data.get_site_xpos("basket_1_contain_region").copy()
    joint = simulator.problem.get_object("alphabet_soup_1").joints[-1]
    # put the soup where it belongs
    simulator.problem.sim.data.set_joint_qpos(joint, [*basket, 1, 0, 0, 0])
    for _ in range(20):
        observation, reward, terminated, truncated, info = env.step(np.zeros(7), observe=False)
        if terminated:
            break
    assert terminated and not truncated and info["is_success"] and reward == 1.0
    with pytest.raises(RuntimeError, match="no running episode"):
        env.step(np.zeros(7))


@pytest.mark.parametrize("wrong", [np.zeros(6), np.full(7, np.nan)])
def test_wrong_actions(env, wrong):
    env.reset(seed=0, options={"init_state_id": 0})
    with pytest.raises(ValueError, match="7 finite numbers"):
        env.step(wrong)


def test_state_needs_no_renderer_and_fits_into_one_batch():
    spaces = {
        str(LiberoEnv(suite, 0, obs_type="state", privileged=True).observation_space)
        for suite in SUITES
    }
    assert len(spaces) == 1  # tasks can be stacked
    env = LiberoEnv("libero_goal", 5, obs_type="state", render_mode=None)
    observation, _ = env.reset(seed=0, options={"init_state_id": 0})
    assert env._simulator.problem._context is None
    assert env.observation_space.contains(observation)
    poses = observation["environment_state"].reshape(-1, 7)[: len(env.object_names)]
    assert np.allclose(np.linalg.norm(poses[:, 3:], axis=1), 1, atol=1e-6)
    with pytest.raises(RuntimeError, match="render_mode=None"):
        env.render()
    env.close()


def test_absolute_control_goes_to_the_pose():
    env = LiberoEnv("libero_goal", 5, obs_type="state", render_mode=None, control_mode="absolute")
    observation, _ = env.reset(seed=0, options={"init_state_id": 0})
    from robosuite.utils import transform_utils

    eef = observation["robot_state"]["eef"]
    target = eef["pos"] + [0.03, -0.04, 0.05]
    action = np.concatenate(
        [
            target,
            transform_utils.quat2axisangle(
                transform_utils.mat2quat(env._simulator.problem.robots[0].controller.ee_ori_mat)
            ),
            [-1],
        ]
    )
    assert env.action_space.contains(action.astype(np.float32))
    for _ in range(25):
        observation = env.step(action)[0]
    assert np.linalg.norm(observation["robot_state"]["eef"]["pos"] - target) < 0.01
    env.close()


# what is known before any simulator runs


def test_nothing_heavy_is_imported_to_plan():
    code = """
import sys
from lerobot_nb.envs.config import make_env_config
config = make_env_config("libero", task="spatial,object,goal,10,90")
tasks = config.tasks()
env = config.env_factory(tasks[0])()
assert len(tasks) == 130 and env.task_description == tasks[0].description
heavy = {"torch", "mujoco", "robosuite", "libero", "numba", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def run_check(code: str, **variables: str) -> subprocess.CompletedProcess:
    """A process that fails; the processor time that it took is the child's own, whatever else runs
    on this machine.
    """
    chosen = ("MUJOCO_GL", "MUJOCO_EGL_DEVICE_ID", "LEROBOT_NB_GL", "CUDA_VISIBLE_DEVICES")
    environment = {name: value for name, value in os.environ.items() if name not in chosen}
    code += "\nimport resource, sys; print('cpu', sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))"
    return subprocess.run(
        [sys.executable, "-c", code], env=environment | variables, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "arguments, variables, told",
    [
        ('task="libero_spatail"', {}, "Did you mean 'libero_spatial'"),
        ('task="spatial", task_ids=[10]', {}, "which has 10 tasks: 0 to 9"),
        ('task="spatial", camera_name="agentveiw"', {}, "Did you mean 'agentview'"),
        ('task="spatial", assets="/nowhere"', {}, "assets='/nowhere' does not exist"),
        (
            'task="spatial"',
            {"__EGL_VENDOR_LIBRARY_DIRS": "/nowhere", "MUJOCO_GL": "egl"},
            "apt-get install",
        ),
        (
            'task="spatial"',
            {"MUJOCO_EGL_DEVICE_ID": "99"},
            "'99' is not one of this machine's EGL devices",
        ),
    ],
)
def test_what_is_wrong_is_said_at_once(arguments, variables, told):
    code = f"""
from lerobot_nb.envs.config import make_env_config
try:
    config = make_env_config("libero", {arguments})
    config.tasks(), config.check()
except (ValueError, OSError, RuntimeError) as error:
    print(error)
else:
    raise SystemExit("nothing was found wrong")
"""
    done = run_check(code, **variables)
    assert done.returncode == 0, done.stderr
    assert told in done.stdout
    assert float(done.stdout.rsplit("cpu ", 1)[1]) < 2.0


@pytest.mark.parametrize(
    "visible, device", [("", None), ("-1", None), ("1", None), (None, None), ("1", "0")]
)
def test_cuda_variables_are_no_obstacle(visible, device):
    variables = {
        name: value
        for name, value in (("CUDA_VISIBLE_DEVICES", visible), ("MUJOCO_EGL_DEVICE_ID", device))
        if value is not None
    }
    code = """
import os
visible = os.environ.get("CUDA_VISIBLE_DEVICES")
from lerobot_nb.envs.config import make_env_config
make_env_config("libero").check()
assert os.environ["MUJOCO_EGL_DEVICE_ID"].isdigit() and os.environ.get("CUDA_VISIBLE_DEVICES") == visible
"""
    done = run_check(code, **variables)
    assert done.returncode == 0, done.stderr


# whole processes

EPISODE = """
import numpy as np
from lerobot_nb.envs.libero import LiberoEnv
env = LiberoEnv("libero_goal", 0, observation_height=64, observation_width=64)
observation, _ = env.reset(seed=0, options={"init_state_id": 0})
env.step(np.zeros(7), observe=False)
"""


def run_episode(more: str = "", **variables: str) -> subprocess.CompletedProcess:
    done = run_check(EPISODE + more, **variables)
    assert done.returncode == 0, done.stderr
    return done


def test_a_process_is_quiet_and_need_not_close():
    """No warnings about settings files, no task orders, no tracebacks of OpenGL when the process
    ends with an open environment.
    """
    done = run_episode(
        "print('digest', hash(observation['pixels']['image'].tobytes()))", PYTHONHASHSEED="0"
    )
    assert done.stderr == ""
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["digest", "cpu"]


def test_states_need_no_opengl():
    done = run_check(
        """
import numpy as np
from lerobot_nb.envs.libero import LiberoEnv
from lerobot_nb.envs.rendering import RenderingError
env = LiberoEnv("libero_goal", 0, obs_type="state", render_mode=None)
env.reset(seed=0, options={"init_state_id": 0})
env.step(np.zeros(7))
try:
    LiberoEnv("libero_goal", 0).reset(seed=0)
except RenderingError as error:
    assert "unset MUJOCO_GL" in str(error)
else:
    raise SystemExit("drawn without OpenGL")
""",
        MUJOCO_GL="disable",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "visible, device",
    [
        ("", None),
        ("-1", None),
        ("1", None),
        ("1", "0"),
        ("0,1", "0"),
        ("GPU-8932f937-d72c-4106", None),
    ],
)
def test_episodes_under_cuda_variables(visible, device):
    variables = {"CUDA_VISIBLE_DEVICES": visible} | (
        {} if device is None else {"MUJOCO_EGL_DEVICE_ID": device}
    )
    assert run_episode(**variables).stderr == ""


@pytest.mark.slow
def test_processes_agree():
    """The order of Python's sets differs from process to process; pictures and states must not."""
    more = """
import hashlib
arrays = [*observation["pixels"].values(), env._simulator.problem.sim.get_state().flatten()]
print(hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest())
"""
    digests = {
        run_episode(more, PYTHONHASHSEED=seed).stdout.splitlines()[0] for seed in ("0", "1", "2")
    }
    assert len(digests) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "suite, task_id, init_state_id, kwargs, look_every",
    [
        ("libero_spatial", 0, 4, {}, 10),
        ("libero_10", 3, None, {}, 7),  # an open drawer, placements drawn by the seed
        # 16 substeps a step: samples drift, some steps have none
        ("libero_goal", 7, 0, {"control_freq": 30}, 5),
    ],
)
def test_looks_equal_those_of_the_plain_loop_elsewhere(
    suite, task_id, init_state_id, kwargs, look_every
):
    env = LiberoEnv(
        suite,
        task_id,
        observation_height=SIZE,
        observation_width=SIZE,
        episode_length=100,
        **kwargs,
    )
    check_against_plain_loop(
        env, suite, task_id, init_state_id, n_actions=60, look_every=look_every, **kwargs
    )
    env.close()


@pytest.mark.slow
def test_tasks_are_those_of_the_library():
    """Names, numbers, descriptions, files and initial states against the library's own objects."""
    LiberoPaths.find().apply()
    from libero.libero import benchmark

    for suite in SUITES:
        theirs = benchmark.get_benchmark_dict()[suite]()
        ours = list_tasks(suite)
        assert [(task.name, task.description) for task in ours] == [
            (task.name, task.language) for task in theirs.tasks
        ]
        for task in ours:
            files = libero_task(suite, task.task_id)
            assert os.path.samefile(files.bddl_file, theirs.get_task_bddl_file_path(task.task_id))
            states = theirs.get_task_init_states(task.task_id)
            assert np.array_equal(files.init_states(), states) and len(states) == task.n_init_states


@pytest.mark.slow
@pytest.mark.parametrize(
    "suite, task_id", [(task.suite, task.task_id) for task in list_tasks(SUITES)]
)
def test_every_task_loads_resets_and_steps(suite, task_id):
    env = LiberoEnv(suite, task_id, observation_height=64, observation_width=64, privileged=True)
    try:
        observation, info = env.reset(seed=0, options={"init_state_id": 0})
        assert env.observation_space.contains(observation)
        assert info["is_success"] is False and not all(
            observation["privileged"]["goal"][: len(info["scene"]["goal"])]
        )
        assert set(env.object_names) == set(info["scene"]["root_body"])
        assert all(picture.std() > 10 for picture in observation["pixels"].values())
        for _ in range(2):
            observation, reward, terminated, truncated, info = env.step(np.zeros(7))
            assert not terminated and not truncated and info["is_success"] is False
    finally:
        env.close()


@pytest.mark.slow
@pytest.mark.parametrize("camera", CAMERAS)
def test_every_camera_draws(camera):
    env = LiberoEnv(
        "libero_object",
        0,
        obs_type="pixels",
        camera_name=camera,
        observation_height=64,
        observation_width=64,
    )
    observation, _ = env.reset(seed=0, options={"init_state_id": 0})
    [picture] = observation["pixels"].values()
    assert picture.std() > 5
    env.close()
