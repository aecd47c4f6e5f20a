"""Registered Gymnasium environments in the form that the evaluation works with."""

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from lerobot_nb.envs.config import make_env_config
from lerobot_nb.envs.gym_ids import GymIdEnv, named_observation_space
from lerobot_nb.envs.success import BenchmarkError
from lerobot_nb.envs.workers import Worker

MODULE = '''
import gymnasium, numpy as np
from gymnasium import spaces

class Reach(gymnasium.Env):
    """A point on a line; success when it is beyond 1, reported as a float, as gymnasium-robotics does."""
    metadata = {"render_modes": [], "render_fps": 12}
    observation_space = spaces.Dict({"agent_pos": spaces.Box(-10, 10, (1,)), "goal": spaces.Box(-10, 10, (1,))})
    action_space = spaces.Box(-1, 1, (1,))

    def __init__(self, render_mode=None, report="is_success", start=0.0):
        self.report, self.start = report, start

    def observation(self):
        return {"agent_pos": np.array([self.x], np.float32), "goal": np.array([1], np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.start + 0.1 * self.np_random.random()
        return self.observation(), {}

    def step(self, action):
        self.x += float(action[0])
        return self.observation(), self.x, False, False, {self.report: np.float32(self.x > 1)}

gymnasium.register("reach_package/Reach-v0", Reach, max_episode_steps=6)
gymnasium.register("reach_package/Endless-v0", Reach)
'''


@pytest.fixture
def reach_package(tmp_path, monkeypatch):
    (tmp_path / "reach_package.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "reach_package"
    sys.modules.pop("reach_package", None)
    for gym_id in [name for name in gymnasium.registry if name.startswith("reach_package/")]:
        del gymnasium.registry[gym_id]


@pytest.mark.parametrize(
    "gym_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1", "Reacher-v5"]
)
@pytest.mark.filterwarnings("ignore")  # check_env advises; here only its errors count
def test_gymnasium_checks_the_wrapped_environment(gym_id):
    env = GymIdEnv(gym_id, episode_length=30)
    check_env(env, skip_render_check=True)
    env.close()


@pytest.mark.parametrize("gym_id", ["CartPole-v1", "Pendulum-v1"])
def test_episodes_are_those_of_the_environment_itself(gym_id):
    ours, theirs = GymIdEnv(gym_id, render_mode=None), gymnasium.make(gym_id)
    for seed in (3, 1000, 3):
        observation, _ = ours.reset(seed=seed)
        expected, _ = theirs.reset(seed=seed)
        theirs.action_space.seed(seed)
        ended = False
        while not ended:
            assert np.array_equal(observation["agent_pos"], expected)
            action = theirs.action_space.sample()
            observation, *rest, _ = ours.step(action)
            expected, reward, terminated, truncated, _ = theirs.step(action)
            assert rest == [reward, terminated, truncated]
            ended = terminated or truncated
    ours.close(), theirs.close()


def test_spaces_that_have_no_fixed_shape_are_refused():
    with pytest.raises(ValueError, match="no fixed shape"):
        named_observation_space(spaces.Sequence(spaces.Discrete(3)))


def test_success_is_taken_from_info_and_a_worker_imports_the_package(
    reach_package, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for report in ("is_success", "success"):
        config = make_env_config(
            "gym",
            gym_id="reach_package/Reach-v0",
            package_name=reach_package,
            gym_kwargs={"report": report},
        )
        env = config.env_factory(config.tasks()[0])()
        env.reset(seed=0)
        seen = [env.step(np.array([0.5]))[4]["is_success"] for _ in range(3)]
        assert seen == [False, False, True] or seen == [False, True, True]
        assert env.has_success and all(isinstance(value, bool) for value in seen)
        env.close()
    assert config.check() == [] and config.tasks()[0].suite == "gym"

    worker = Worker()
    try:
        spaces_of = worker.ask("build", config.env_factory(config.tasks()[0]), timeout_s=60)
        assert spaces_of["metadata"]["render_fps"] == 12
        worker.ask("reset", 0, timeout_s=60)
        rewards = [worker.ask("step", np.array([0.25]), timeout_s=60) for _ in range(6)]
        assert [answer[1:3] for answer in rewards] == [(False, False)] * 5 + [(False, True)]
    finally:
        worker.close()


def test_an_environment_without_a_time_limit_needs_one(reach_package):
    config = make_env_config("gym", gym_id="reach_package/Endless-v0", package_name=reach_package)
    with pytest.raises(ValueError, match="no time limit.*episode_length"):
        config.check()
    with pytest.raises(ValueError, match="no time limit.*episode_length"):
        config.env_factory(config.tasks()[0])()
    limited = make_env_config(
        "gym", gym_id="reach_package/Endless-v0", package_name=reach_package, episode_length=4
    )
    assert (
        limited.check() == [] and limited.env_factory(limited.tasks()[0])().max_episode_steps == 4
    )


def test_an_environment_that_reports_no_success_has_none():
    env = GymIdEnv("CartPole-v1", episode_length=3)
    env.reset(seed=0)
    assert all("is_success" not in env.step(0)[4] for _ in range(3)) and not env.has_success
    env.close()


def test_used_again_after_close_and_misuse():
    env = GymIdEnv("Reacher-v5", render_mode=None, episode_length=2)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(np.zeros(2))
    first, _ = env.reset(seed=4)
    env.close(), env.close()
    again, _ = env.reset(seed=4)
    assert np.array_equal(first["agent_pos"], again["agent_pos"])
    env.step(np.zeros(2)), env.step(np.zeros(2), observe=False)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(np.zeros(2))
    with pytest.raises(RuntimeError, match="can't be drawn"):
        env.render()
    with pytest.raises(ValueError, match="init_state_id"):
        env.reset(options={"init_state_id": 3})
    env.close()


def test_pictures():
    env = GymIdEnv("Reacher-v5", gym_kwargs={"width": 64, "height": 48})
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (48, 64, 3) and picture.dtype == np.uint8 and picture.std() > 0
    env.close()


def test_several_ids_are_tasks_of_one_suite():
    config = make_env_config(
        "gym",
        gym_id="CartPole-v1, Acrobot-v1",
        task_ids="1",
        task_description={"Acrobot-v1": "swing up"},
    )
    (task,) = config.tasks()
    assert (task.suite, task.task_id, task.name, task.description) == (
        "gym",
        1,
        "Acrobot-v1",
        "swing up",
    )


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "gym_id"),
        ({"gym_id": "A-v0", "task": "B-v0"}, "two names of one setting"),
        ({"gym_id": "A-v0", "obs_type": "state"}, "obs_type"),
        ({"gym_id": "A-v0", "observation_height": 64}, "gym_kwargs"),
        ({"gym_id": "A-v0", "task_description": {"B-v0": "x"}}, "B-v0"),
        ({"gym_id": "A-v0", "privileged": True}, "privileged"),
    ],
)
def test_wrong_configurations(kwargs, message):
    with pytest.raises(ValueError, match=message):
        make_env_config("gym", **kwargs)


def test_a_success_that_is_no_truth_value_is_refused(tmp_path, monkeypatch):
    (tmp_path / "says_yes.py").write_text(
        MODULE.replace("np.float32(self.x > 1)", "'yes'").replace("reach_package", "says_yes")
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = make_env_config(
        "gym", gym_id="says_yes/Reach-v0", package_name="says_yes", render_mode=None
    )
    env = config.env_factory(config.tasks()[0])()
    env.reset(seed=0)
    with pytest.raises(BenchmarkError, match="'is_success'.*'yes'"):
        env.step(np.zeros(1, np.float32))
