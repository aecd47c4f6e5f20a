"""Environments that keep the rules more or less: what they answer is right, or is refused with its name."""

import copy

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from odd_envs import Odd

from lerobot_nb.envs.base import EnvFactory, TaskInfo
from lerobot_nb.envs.processors import add_envs_task, preprocess_observation
from lerobot_nb.envs.transport import ObservationLayout
from lerobot_nb.envs.vector import LazyVectorEnv
from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import evaluate

torch = pytest.importorskip("torch")


def vector(odd="", n_envs=2, **kwargs):
    task = kwargs.pop("task", TaskInfo("odd", 0, "odd", "walk on", max_episode_steps=20))
    how = {
        name: kwargs.pop(name) for name in ("use_async_envs", "autoreset_mode") if name in kwargs
    }
    return LazyVectorEnv(
        EnvFactory("odd_envs:Odd", {"odd": odd, **kwargs}), n_envs, task=task, **how
    )


# the information of a vector environment


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("use_async_envs", [False, True])
def test_final_info_is_that_of_the_step_that_ended_the_episode(mode, use_async_envs):
    """Also where the environment keeps one dictionary and changes it in the reset."""
    env = vector("kept_info", length=3, goal=3, use_async_envs=use_async_envs, autoreset_mode=mode)
    try:
        env.reset(seed=[1, 2])
        for _ in range(3):
            _, _, terminated, _, infos = env.step(np.zeros((2, 2), np.float32))
    finally:
        env.close()
    assert (
        terminated.all()
        and infos["final_info"]["step"].tolist() == [3, 3]
        and infos["final_info"]["is_success"].tolist() == [True, True]
    )
    if mode == AutoresetMode.SAME_STEP:
        assert infos["step"].tolist() == [0, 0] and infos["is_success"].tolist() == [False, False]


class Watched(Odd):
    """Counts the changes that others make to its dictionary."""

    def _kept(self, info):
        self.given = super()._kept(info)
        self.before = copy.deepcopy(self.given)
        return self.given


def test_nothing_of_the_environments_own_dictionary_is_touched():
    made = []

    def make():
        made.append(Watched("kept_info", length=2))
        return made[-1]

    env = LazyVectorEnv(make, 2, use_async_envs=False)
    _, infos = env.reset(seed=[1, 2])
    assert [scene["seed"] for scene in infos["scene"]] == [1, 2]
    assert all(one.given == one.before and "scene" in one.given for one in made)
    infos["scene"][0]["seed"] = 99
    env.latest_infos[1]["step"] = 99
    assert [one.given["scene"]["seed"] for one in made] == [1, 2] and all(
        one.given["step"] == 0 for one in made
    )
    for _ in range(2):
        env.step(np.zeros((2, 2), np.float32))
        assert all(one.given == one.before for one in made)
    env.close()


def test_information_that_cannot_be_copied_is_named():
    class Locked(Odd):
        def _kept(self, info):
            import threading

            return info | {"lock": threading.Lock()}

    with pytest.raises(TypeError, match=r"info\['lock'\] can't be copied"):
        LazyVectorEnv(Locked, 1, use_async_envs=False).reset(seed=1)


# what is seen


@pytest.mark.parametrize(
    "placement, use_async_envs",
    [("driver", True), ("driver", False), ("worker", True), ("worker", False)],
)
@pytest.mark.parametrize(
    "odd, words",
    [
        ("none", "step() returned None as the observation"),
        ("missing", "no 'agent_pos'"),
        ("float_image", "image holds"),
        ("bright_image", "image holds np.int64(300)"),
        ("texts", "'farewell', 'greeting'"),
    ],
)
def test_what_cannot_be_right_is_an_error_that_names_it(
    odd, words, placement, use_async_envs, tmp_path
):
    config = EvalConfig(1, max_retries=0, placement=placement, use_async_envs=use_async_envs)
    run = evaluate(
        {"odd": {0: vector(odd, n_envs=1, length=6)}}, "random", config, output_dir=tmp_path / "run"
    )
    (record,) = run.records()
    assert record.end_reason == "error" and words in record.error, record.error


@pytest.mark.parametrize(
    "odd, words",
    [
        ("none", "returned None"),
        ("missing", "no 'agent_pos'"),
        ("float_image", "image holds"),
        ("bright_image", "image holds"),
    ],
)
@pytest.mark.parametrize("use_async_envs", [True, False])
def test_a_vector_environment_says_the_same(odd, words, use_async_envs):
    env = vector(odd, length=6, use_async_envs=use_async_envs)
    try:
        with pytest.raises(ValueError, match=words):
            env.reset(seed=[1, 2])
            for _ in range(4):
                env.step(np.zeros((2, 2), np.float32))
    finally:
        env.close()


@pytest.mark.parametrize("placement", ["driver", "worker"])
def test_a_reward_with_one_element_is_a_number(placement, tmp_path):
    runs = [
        evaluate(
            {"odd": {0: vector(odd, n_envs=1)}},
            "random",
            EvalConfig(2, placement=placement),
            output_dir=tmp_path / f"run {odd}",
        )
        for odd in ("", "array_reward")
    ]
    assert [record.sum_reward for record in runs[1].records()] == [
        record.sum_reward for record in runs[0].records()
    ]
    env = vector("array_reward")
    try:
        env.reset(seed=[1, 2])
        assert env.step(np.zeros((2, 2), np.float32))[1].shape == (2,)
    finally:
        env.close()


@pytest.mark.parametrize(
    "value, dtype, fits",
    [
        (np.array([0, 255]), np.uint8, True),
        (np.array([0, 256]), np.uint8, False),
        (np.array([-1, 3]), np.uint8, False),
        (np.array([0.0, 7.0]), np.uint8, True),
        (np.array([0.5, 7.0]), np.uint8, False),
        (np.array([np.nan, 7.0]), np.uint8, False),
        ([3, 4], np.uint8, True),
        (np.array([2, 3]), np.int8, True),
        (np.array([0.5, 1e300]), np.float64, True),
        (np.array([True, False]), np.uint8, True),
    ],
)
def test_values_fit_their_space_or_are_refused(value, dtype, fits):
    from gymnasium import spaces

    bounds = (0, 1) if np.dtype(dtype).kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    layout = ObservationLayout(spaces.Dict({"x": spaces.Box(*bounds, (2,), dtype)}))
    views = layout.views(bytearray(layout.n_bytes))
    if fits:
        views.write({"x": value})
        assert np.array_equal(layout.cast({"x": value})["x"], np.asarray(value)) and np.array_equal(
            views.tree["x"], np.asarray(value)
        )
    else:
        for put in (layout.cast, views.write):
            with pytest.raises(ValueError, match="x holds"):
                put({"x": value})


# names and texts on their way to a torch policy


@pytest.mark.parametrize(
    "observation",
    [
        {"agent_pos": np.zeros((1, 2)), "state": np.zeros((1, 2))},
        {"state": np.zeros((1, 2)), "agent_pos": np.zeros((1, 2))},
        {"pixels": np.zeros((1, 8, 8, 3), np.uint8), "image": np.zeros((1, 8, 8, 3), np.uint8)},
        {
            "pixels": {"top": np.zeros((1, 8, 8, 3), np.uint8)},
            "images.top": np.zeros((1, 8, 8, 3), np.uint8),
        },
    ],
)
def test_two_names_that_become_one_are_refused(observation):
    first, second = observation
    with pytest.raises(ValueError, match="both become 'observation.") as error:
        preprocess_observation(observation)
    assert repr(second) in str(error.value) and first in str(error.value)


@pytest.mark.parametrize("name", ["image", "front", "rgb"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_an_image_is_an_image_under_any_name(name, channels):
    images = np.random.default_rng(0).integers(0, 256, (2, 12, 10, channels), dtype=np.uint8)
    expected = preprocess_observation({"pixels": images})["observation.image"]
    assert torch.equal(preprocess_observation({name: images})[f"observation.{name}"], expected)
    assert torch.equal(
        preprocess_observation({name: torch.from_numpy(images)})[f"observation.{name}"], expected
    )


def test_numbers_that_are_bytes_stay_numbers():
    counts = np.full((2, 5), 200, np.uint8)
    assert (
        preprocess_observation({"counts": counts})["observation.counts"].tolist() == counts.tolist()
    )


class Torch:
    """A policy in lerobot's form that writes down what it is given."""

    seen: list = []

    def predict_action_chunk(self, batch):
        Torch.seen.append(
            {name: value if name == "task" else tuple(value.shape) for name, value in batch.items()}
        )
        return torch.zeros(len(batch["task"]), 1, 2)


@pytest.mark.parametrize("odd", ["mission", "told"])
@pytest.mark.parametrize("use_async_envs", [True, False])
def test_the_instruction_of_an_episode_is_told_and_recorded(odd, use_async_envs, tmp_path):
    Torch.seen = []
    run = evaluate(
        {"odd": {0: vector(odd)}},
        Torch(),
        EvalConfig(4, batch_size=2, use_async_envs=use_async_envs),
        output_dir=tmp_path / "run",
    )
    expected = [f"go to ball {seed % 3}, seed {seed}" for seed in range(1000, 1004)]
    assert [(record.error, record.task_description) for record in run.records()] == [
        (None, text) for text in expected
    ]
    assert {text for one in Torch.seen for text in one["task"]} == set(expected)
    assert all(one.keys() == {"task", "observation.state"} for one in Torch.seen)


def test_add_envs_task_tells_the_instruction_of_the_episode():
    env = vector("mission")
    try:
        observation, _ = env.reset(seed=[1, 2])
        batch = add_envs_task(env, preprocess_observation(observation))
        assert (
            batch["task"]
            == ["go to ball 1, seed 1", "go to ball 2, seed 2"]
            == preprocess_observation(observation)["task"]
        )
    finally:
        env.close()
    plain = vector()
    assert add_envs_task(plain, {})["task"] == ["walk on", "walk on"] and not plain.started
