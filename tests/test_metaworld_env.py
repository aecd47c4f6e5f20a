"""Meta-World: the tasks, and episodes that are those of the plain simulator to the last bit."""

import subprocess
import sys

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from lerobot_nb.envs.base import EpisodeSpec
from lerobot_nb.envs.config import make_env_config
from lerobot_nb.envs.metaworld import CAMERAS, TASK_DESCRIPTIONS, TASK_GROUPS, MetaworldEnv
from lerobot_nb.policies.base import Episode
from lerobot_nb.policies.factory import make_policy
from lerobot_nb.policies.metaworld_expert import MetaworldExpert


def plain_simulator(task):
    """A Meta-World environment as its documentation makes it, seeded per episode."""
    import metaworld

    benchmark = metaworld.MT1(task, seed=42)
    simulator = benchmark.train_classes[task]()
    simulator.set_task(benchmark.train_tasks[0])
    simulator.seeded_rand_vec, simulator._freeze_rand_vec = True, False
    return simulator


def plain_episode(simulator, task, seed, n_steps=500):
    """(states, rewards, success) of the scripted policy in a plain loop."""
    from metaworld.policies import ENV_POLICY_MAP

    script = ENV_POLICY_MAP[task]()
    simulator.seed(seed)
    state, _ = simulator.reset(seed=seed)
    states, rewards, success = [state], [], False
    while not success and len(rewards) < n_steps:
        state, reward, _, _, info = simulator.step(script.get_action(state))
        states.append(state), rewards.append(reward)
        success = bool(info["success"])
    return np.array(states), rewards, success


def our_episode(env, seed, policy=None):
    """The same through the environment and the policy of this project."""
    policy = policy or MetaworldExpert()
    observation, info = env.reset(seed=seed)
    assert info["is_success"] is False
    task = make_env_config("metaworld", task=env.task).tasks()[0]
    policy.begin_episode(
        5, Episode(EpisodeSpec(task.suite, 0, 0, seed), task, env.action_space, scene=info["scene"])
    )
    states, rewards, ended = [observation["privileged"]], [], False
    while not ended:
        (action,) = policy.predict([5], {"privileged": observation["privileged"][None]})[0]
        observation, reward, terminated, truncated, info = env.step(action)
        states.append(observation["privileged"]), rewards.append(reward)
        assert (
            type(info["is_success"]) is bool
            and terminated == info["is_success"]
            and not (terminated and truncated)
        )
        ended = terminated or truncated
    return np.array(states), rewards, info["is_success"]


def same(one, other):
    return np.array_equal(one[0], other[0]) and one[1] == other[1] and one[2] == other[2]


# tasks


def test_the_tables_are_those_of_metaworld():
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS, MT10_V3, MT50_V3
    from metaworld.policies import ENV_POLICY_MAP

    assert set(TASK_DESCRIPTIONS) == set(ALL_V3_ENVIRONMENTS) == set(ENV_POLICY_MAP)
    assert TASK_GROUPS["mt10"] == tuple(MT10_V3) and TASK_GROUPS["mt50"] == tuple(MT50_V3)
    assert [len(TASK_GROUPS[group]) for group in ("easy", "medium", "hard", "very_hard")] == [
        28,
        11,
        6,
        5,
    ]


def test_every_task_has_a_text_of_its_own():
    texts = [text.strip().lower() for text in TASK_DESCRIPTIONS.values()]
    assert len(set(texts)) == 50 and all(len(text.split()) >= 3 for text in texts)


@pytest.mark.parametrize(
    ("task", "task_ids", "expected"),
    [
        ("push-v3", None, [("push-v3", 0, "push-v3")]),
        ("metaworld-push-v3", None, [("push-v3", 0, "push-v3")]),
        ("hard", "1,0", [("hard", 1, "hand-insert-v3"), ("hard", 0, "assembly-v3")]),
        ("MT10,reach-v3", [0], [("mt10", 0, "reach-v3"), ("reach-v3", 0, "reach-v3")]),
        (["push-v3", "reach-v3"], None, [("push-v3", 0, "push-v3"), ("reach-v3", 0, "reach-v3")]),
    ],
)
def test_names_of_tasks(task, task_ids, expected):
    tasks = make_env_config("metaworld", task=task, task_ids=task_ids).tasks()
    assert [(one.suite, one.task_id, one.name) for one in tasks] == expected
    assert all(
        one.description == TASK_DESCRIPTIONS[one.name]
        and one.max_episode_steps == 500
        and one.n_init_states is None
        for one in tasks
    )


@pytest.mark.parametrize(
    ("task", "task_ids", "message"),
    [
        ("push-v2", None, "'push-v2' is not known.*'push-v3'.*easy, medium"),
        ("mt11", None, "mt10"),
        ("push-v3", [1], "1 task: 0 to 0"),
        ("push-v3,metaworld-push-v3", None, "more than once"),
        ("", None, "empty name"),
        ("push-v3;reach-v3", None, "not known"),
    ],
)
def test_wrong_names_are_answered_with_the_right_ones(task, task_ids, message):
    with pytest.raises(ValueError, match=message):
        make_env_config("metaworld", task=task, task_ids=task_ids).tasks()


def test_texts_of_a_checkpoint_reach_the_environment():
    config = make_env_config(
        "metaworld", task="hard", task_descriptions={"push-v3": "Push the puck to a goal"}
    )
    for task in config.tasks():
        expected = (
            "Push the puck to a goal" if task.name == "push-v3" else TASK_DESCRIPTIONS[task.name]
        )
        assert task.description == config.env_factory(task)().task_description == expected


# episodes

SAMPLE = (
    "assembly-v3",
    "coffee-pull-v3",
    "door-lock-v3",
    "hammer-v3",
    "plate-slide-back-side-v3",
    "push-back-v3",
    "stick-pull-v3",
    "window-open-v3",
)


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, marks=[] if task in SAMPLE else pytest.mark.slow)
        for task in sorted(TASK_DESCRIPTIONS)
    ],
)
def test_every_task_gives_the_episode_of_a_plain_loop(task):
    env = MetaworldEnv(task, obs_type="state", privileged=True, episode_length=150)
    env.reset(seed=7)  # something ran in this simulator before
    for action in np.random.default_rng(7).uniform(-1, 1, (40, 4)):
        env.step(action, observe=False)
    simulator = plain_simulator(task)
    assert same(our_episode(env, 1000), plain_episode(simulator, task, 1000, n_steps=150))
    env.close(), simulator.close()


@pytest.mark.parametrize("task", ["push-v3", "pick-place-v3"])
def test_whole_episodes_one_after_another(task):
    env, simulator, policy = (
        MetaworldEnv(task, obs_type="state", privileged=True),
        plain_simulator(task),
        MetaworldExpert(),
    )
    for seed in (1000, 0, 1000, 2**31 - 1):
        plain = plain_episode(simulator, task, seed)
        assert same(our_episode(env, seed, policy), plain)
    fresh = MetaworldEnv(task, obs_type="state", privileged=True)
    assert same(our_episode(fresh, seed), plain)
    env.close(), fresh.close(), simulator.close()


def test_without_a_seed_the_episode_follows_from_the_last_one():
    first, second = (
        MetaworldEnv("reach-v3", obs_type="state"),
        MetaworldEnv("reach-v3", obs_type="state"),
    )
    for env in (first, second):
        env.reset(seed=8)
    states = [env.reset()[0]["environment_state"] for env in (first, second, first, second)]
    assert (
        np.array_equal(states[0], states[1])
        and np.array_equal(states[2], states[3])
        and not np.array_equal(states[0], states[2])
    )
    first.close(), second.close()


def test_the_time_limit_is_honoured_also_beyond_metaworlds_own():
    env = MetaworldEnv("push-v3", obs_type="state", episode_length=503)
    env.reset(seed=0)
    flags = [env.step(np.zeros(4), observe=False)[2:4] for _ in range(503)]
    assert flags[-1] == (False, True) and not any(truncated for _, truncated in flags[:-1])
    with pytest.raises(RuntimeError, match="no running episode.*call reset"):
        env.step(np.zeros(4))
    env.reset(seed=0)
    env.step(np.zeros(4))
    env.close()


def test_misuse_is_answered():
    env = MetaworldEnv("push-v3", obs_type="state", render_mode=None)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(np.zeros(4))
    env.reset(seed=0, options={"init_state_id": None})
    for wrong in (np.zeros(3), np.zeros((1, 4)), [0, 0, 0, np.nan], [0, np.inf, 0, 0]):
        with pytest.raises(ValueError, match="4 finite numbers"):
            env.step(wrong)
    with pytest.raises(RuntimeError, match="render_mode=None"):
        env.render()
    with pytest.raises(ValueError, match="no stored initial states"):
        env.reset(seed=0, options={"init_state_id": 2})
    with pytest.raises(ValueError, match="'speed'"):
        env.reset(seed=0, options={"speed": 2})
    env.close(), env.close()
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(np.zeros(4))
    wrong = {
        "task": ("push-v2", "push-v3"),
        "obs_type": ("image", "pixels"),
        "camera_name": ("front", "corner2"),
        "render_mode": ("human", "rgb_array"),
    }
    for name, (value, message) in wrong.items():
        with pytest.raises(ValueError, match=message):
            MetaworldEnv(**{"task": "push-v3"} | {name: value})


@pytest.mark.filterwarnings("ignore")  # advice; only errors count here
@pytest.mark.parametrize(
    ("obs_type", "privileged"),
    [("state", False), ("state", True), ("pixels", False), ("pixels_agent_pos", True)],
)
def test_gymnasium_checks_the_environment(obs_type, privileged):
    env = MetaworldEnv(
        "door-open-v3",
        obs_type=obs_type,
        privileged=privileged,
        observation_height=48,
        observation_width=64,
    )
    check_env(env)
    env.close()


@pytest.mark.parametrize(
    ("obs_type", "keys"),
    [
        ("state", {"agent_pos", "environment_state"}),
        ("pixels", {"pixels"}),
        ("pixels_agent_pos", {"pixels", "agent_pos"}),
    ],
)
def test_what_is_observed(obs_type, keys):
    env = MetaworldEnv(
        "push-v3", obs_type=obs_type, privileged=True, observation_height=40, observation_width=56
    )
    config = make_env_config(
        "metaworld", obs_type=obs_type, observation_height=40, observation_width=56
    )
    observation, _ = env.reset(seed=1)
    assert set(observation) == keys | {"privileged"} and observation in env.observation_space
    assert set(config.features) == keys | {"action"}
    assert all(observation[name].shape == config.features[name].shape for name in keys)
    if obs_type == "state":
        assert np.array_equal(observation["environment_state"], observation["privileged"])
        assert np.array_equal(observation["agent_pos"], observation["privileged"][:4])
    assert (env._renderer is None) == (obs_type == "state")
    assert env.render().shape == (40, 56, 3)
    env.close()


# what must not be there


def run_python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.strip()


def test_it_is_lazy_and_state_mode_is_light():
    out, err = run_python("""
import sys
from lerobot_nb.envs.metaworld import MetaworldEnv
env = MetaworldEnv("push-v3", obs_type="state", privileged=True)
env.observation_space, env.action_space, env.task_description, env.metadata
print([name for name in ("mujoco", "metaworld", "torch", "scipy") if name in sys.modules])
env.reset(seed=0)
for _ in range(20):
    env.step([0, 0, 0, 0])
print([name for name in ("torch", "matplotlib", "pandas") if name in sys.modules])
assert getattr(sys.modules.get("mujoco.egl"), "EGL_DISPLAY", None) is None, "a renderer was started"
pss = [int(line.split()[1]) / 1024 for line in open("/proc/self/smaps_rollup") if line.startswith("Pss:")]
print(pss[0] < 150)
""")
    assert out.splitlines() == ["[]", "[]", "True"] and err == ""


def test_an_environment_that_is_not_closed_makes_no_noise_at_exit():
    code = "from lerobot_nb.envs.metaworld import MetaworldEnv; env = MetaworldEnv('push-v3', observation_height=32, observation_width=32); env.reset(seed=0)"
    assert run_python(code) == ("", "")


# pictures


def test_fps_is_the_control_rate():
    env = MetaworldEnv("push-v3", obs_type="state")
    env.reset(seed=0)
    simulator = env._simulator
    assert (
        env.metadata["render_fps"]
        == make_env_config("metaworld").fps
        == round(1 / (simulator.model.opt.timestep * simulator.frame_skip))
    )
    env.close()


def test_corner_cameras_are_turned_upright_and_no_others():
    env = MetaworldEnv("door-open-v3", obs_type="state")
    env.reset(seed=0)
    model, data = env._simulator.model, env._simulator.data
    assert {model.camera(number).name for number in range(model.ncam)} == set(CAMERAS)
    from lerobot_nb.envs.metaworld import _UPSIDE_DOWN

    for camera in CAMERAS:
        up = data.camera(camera).xmat.reshape(3, 3)[:, 1]
        assert (up[2] < -0.5) == (camera in _UPSIDE_DOWN), camera
    assert np.allclose(model.camera("corner2").pos, [0.75, 0.075, 0.7])
    env.close()


def test_pictures_are_those_of_the_plain_simulator():
    """The way lerobot draws them: the simulator's own render, its camera moved, both axes flipped."""
    import os

    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    from lerobot_nb.envs.rendering import choose_gl_backend

    choose_gl_backend()
    assert os.environ["MUJOCO_GL"]
    simulator = ALL_V3_ENVIRONMENTS["push-v3"](
        render_mode="rgb_array", camera_name="corner2", width=96, height=64
    )
    (
        simulator._partially_observable,
        simulator._set_task_called,
        simulator._freeze_rand_vec,
        simulator.seeded_rand_vec,
    ) = False, True, False, True
    del simulator.sawyer_observation_space
    simulator.model.cam_pos[2] = [0.75, 0.075, 0.7]
    simulator.seed(3)
    simulator.reset(seed=3)
    env = MetaworldEnv("push-v3", obs_type="pixels", observation_height=64, observation_width=96)
    env.reset(seed=3)
    for action in np.random.default_rng(0).uniform(-1, 1, (4, 4)).astype(np.float32):
        simulator.step(action)
        observation = env.step(action)[0]
        assert np.array_equal(observation["pixels"], np.flip(simulator.render(), (0, 1)))
    env.close(), simulator.close()


@pytest.mark.parametrize("task", ["push-v3", "reach-v3", "coffee-button-v3"])
def test_the_first_picture_shows_the_goal_where_it_is(task):
    env = MetaworldEnv(task, obs_type="pixels", observation_height=64, observation_width=64)
    fresh = MetaworldEnv(task, obs_type="pixels", observation_height=64, observation_width=64)
    env.reset(seed=1)
    for action in np.random.default_rng(1).uniform(-1, 1, (10, 4)):
        env.step(action, observe=False)
    assert np.array_equal(env.reset(seed=2)[0]["pixels"], fresh.reset(seed=2)[0]["pixels"])
    for name, position in env._simulator._target_site_config:
        assert np.array_equal(env._simulator.data.site(name).xpos, position[:3])
    env.close(), fresh.close()


def test_looking_and_drawing_change_nothing():
    actions = np.random.default_rng(0).uniform(-1, 1, (12, 4)).astype(np.float32)

    def episode(look_at, draw_at):
        env = MetaworldEnv(
            "push-v3",
            obs_type="pixels_agent_pos",
            privileged=True,
            observation_height=48,
            observation_width=48,
        )
        env.reset(seed=5)
        looks = {}
        for number, action in enumerate(actions):
            observation, *_ = env.step(action, observe=number in look_at)
            assert (observation is None) == (number not in look_at)
            if number in draw_at:
                picture = env.render()
                picture[:] = 0  # a drawn picture belongs to the caller
            if observation is not None:
                looks[number] = observation
        env.close()
        return looks

    always = episode(range(12), range(12))
    for look_at, draw_at in (((11,), ()), ((3, 7, 11), (2, 7, 11))):
        for number, observation in episode(look_at, draw_at).items():
            assert all(
                np.array_equal(observation[name], always[number][name]) for name in observation
            )


def test_drawing_does_not_change_the_episode():
    simulator = plain_simulator("button-press-v3")
    env = MetaworldEnv(
        "button-press-v3",
        obs_type="pixels",
        privileged=True,
        observation_height=32,
        observation_width=32,
    )
    assert same(our_episode(env, 1000), plain_episode(simulator, "button-press-v3", 1000))
    env.close(), simulator.close()


def test_two_environments_in_one_process_do_not_mix_their_pictures():
    def pictures(envs):
        seen = [[env.reset(seed=3)[0]["pixels"]] for env in envs]
        for _ in range(3):
            for env, taken in zip(envs, seen):
                taken.append(env.step(np.ones(4))[0]["pixels"])
        return seen

    made = [
        lambda: MetaworldEnv(
            "push-v3", obs_type="pixels", observation_height=48, observation_width=48
        ),
        lambda: MetaworldEnv(
            "door-open-v3",
            obs_type="pixels",
            observation_height=64,
            observation_width=32,
            camera_name="corner",
        ),
    ]
    alone = []
    for make in made:
        env = make()
        alone += pictures([env])
        env.close()
    both = [make() for make in made]
    together = pictures(both)
    both[0].close()
    survivor = pictures(both[1:])
    both[1].close()
    for expected, found in zip([*alone, alone[1]], [*together, *survivor]):
        assert all(np.array_equal(a, b) for a, b in zip(expected, found))


@pytest.mark.parametrize(("height", "width"), [(480, 480), (720, 1280), (33, 65)])
def test_any_size_of_picture(height, width):
    env = MetaworldEnv(
        "push-v3", obs_type="pixels", observation_height=height, observation_width=width
    )
    observation, _ = env.reset(seed=0)
    assert observation["pixels"].shape == (height, width, 3) and observation["pixels"].std() > 10
    env.close()


# the scripted experts


def test_the_expert_is_found_by_name_and_refuses_other_tasks():
    config = make_env_config("metaworld", task="mt10")
    policy = make_policy("expert", config)
    assert (
        isinstance(policy, MetaworldExpert)
        and policy.needs_privileged
        and policy.placements == ("driver", "worker")
    )
    policy.check_tasks(config.tasks())
    other = make_env_config("gym", gym_id="CartPole-v1").tasks()
    with pytest.raises(ValueError, match="CartPole-v1"):
        policy.check_tasks(other)
    with pytest.raises(KeyError, match="privileged=True"):
        policy.predict([0], {})


def test_slots_of_different_tasks_do_not_disturb_each_other():
    policy, tasks = MetaworldExpert(), ("push-v3", "door-open-v3", "hammer-v3")
    envs = {
        slot: MetaworldEnv(task, obs_type="state", privileged=True, episode_length=60)
        for slot, task in enumerate(tasks)
    }
    alone = [our_episode(env, 1000, policy)[1] for env in envs.values()]
    states, rewards = {}, {slot: [] for slot in envs}
    for slot, env in envs.items():
        states[slot] = env.reset(seed=1000)[0]["privileged"]
        task = make_env_config("metaworld", task=env.task).tasks()[0]
        policy.begin_episode(
            slot, Episode(EpisodeSpec(task.suite, 0, 0, 1000), task, env.action_space)
        )
    while states:
        slots = sorted(states, reverse=True)
        for slot, (action,) in zip(
            slots, policy.predict(slots, {"privileged": np.stack([states[slot] for slot in slots])})
        ):
            observation, reward, terminated, truncated, _ = envs[slot].step(action)
            rewards[slot].append(reward)
            states[slot] = observation["privileged"]
            if terminated or truncated:
                policy.end_episode(slot)
                del states[slot]
    assert list(rewards.values()) == alone
    for env in envs.values():
        env.close()


def test_check_is_quick_and_quiet_here():
    assert make_env_config("metaworld", obs_type="state").check() == []
    assert make_env_config("metaworld").check() == []
