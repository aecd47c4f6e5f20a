"""Configurations of environments: names, lists, the registry, and what they say without a simulator."""

import dataclasses
import json
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lerobot_nb.envs.arguments import select_task_ids, split_ids, split_names
from lerobot_nb.envs.base import FeatureType, PolicyFeature, TaskInfo
from lerobot_nb.envs.config import (
    EnvConfig,
    env_config_class,
    env_to_policy_features,
    make_env_config,
)
from lerobot_nb.envs.factory import make_env, make_env_pre_post_processors


@given(st.lists(st.integers(0, 200), min_size=1, unique=True))
def test_lists_of_ids_read_the_same_as_text_and_as_numbers(ids):
    assert split_ids(ids) == split_ids(",".join(map(str, ids))) == split_ids(tuple(ids)) == ids


@given(st.integers(0, 50), st.integers(0, 50))
def test_a_range_holds_both_ends(first, last):
    if first <= last:
        assert split_ids(f"{first}-{last}") == list(range(first, last + 1))
    else:
        with pytest.raises(ValueError, match="task_ids"):
            split_ids(f"{first}-{last}")


@pytest.mark.parametrize(
    "wrong", ["a", "1,", "-1", "1--2", "1.5", [1.5], [-1], [True], [0, 0], "0,0-1", []]
)
def test_wrong_ids_are_refused(wrong):
    with pytest.raises(ValueError, match="task_ids"):
        split_ids(wrong)


@pytest.mark.parametrize("wrong", ["", ",", "a,,b", "a,a", [], ["a", ""], 3, [3], None])
def test_wrong_names_are_refused(wrong):
    with pytest.raises(ValueError, match="task"):
        split_names(wrong)


def test_ids_outside_a_suite_name_the_suite_and_its_size():
    with pytest.raises(ValueError, match=r"\[6, 9\].*'hard'.*6 tasks.*0 to 5"):
        select_task_ids([5, 6, 9], 6, "hard")


def test_the_built_in_benchmarks_are_found_by_name():
    assert {"gym", "libero", "metaworld"} <= set(EnvConfig.known())
    config = make_env_config("metaworld")
    assert type(config) is env_config_class("metaworld") and config.type == "metaworld"


def test_asking_for_the_names_imports_no_benchmark():
    code = (
        "import sys; from lerobot_nb.envs.config import EnvConfig; EnvConfig.known();"
        "print([m for m in sys.modules if m in ('torch', 'mujoco', 'metaworld', 'gymnasium', 'lerobot_nb.envs.metaworld')])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_an_unknown_benchmark_or_argument_lists_what_there_is():
    with pytest.raises(
        ValueError, match="'metaword'.*Did you mean 'metaworld'.*gym, libero,.* metaworld"
    ):
        make_env_config("metaword")
    with pytest.raises(ValueError, match="'camera'.*camera_name"):
        make_env_config("metaworld", camera="corner2")


@pytest.mark.parametrize(
    "wrong",
    [
        {"obs_type": "image"},
        {"render_mode": "human"},
        {"episode_length": 0},
        {"episode_length": 1.5},
        {"observation_height": 0},
        {"fps": 10},
        {"task_ids": "x"},
        {"camera_name": "front"},
        {"task_descriptions": {"push-v2": "push"}},
    ],
)
def test_wrong_values_are_refused_when_the_configuration_is_made(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make_env_config("metaworld", **wrong)


@dataclasses.dataclass(frozen=True)
class TwoRooms(EnvConfig):
    task: str = "kitchen"
    fps: int = 25

    def tasks(self):
        numbers = select_task_ids(self.task_ids, 2, "rooms")
        return [
            TaskInfo("rooms", number, f"room {number}", f"tidy room {number}", max_episode_steps=10)
            for number in numbers
        ]

    def default_features(self):
        return {
            "action": PolicyFeature(FeatureType.ACTION, (3,)),
            "pixels/top": PolicyFeature(FeatureType.VISUAL, (self.observation_height, 64, 3)),
        }


def test_registering_a_benchmark():
    EnvConfig.register("two_rooms")(TwoRooms)
    EnvConfig.register("two_rooms")(TwoRooms)  # a module may be imported again
    assert make_env_config("two_rooms", task_ids="1").tasks()[0].name == "room 1"
    with pytest.raises(ValueError, match="'two_rooms' is taken by .*TwoRooms"):
        EnvConfig.register("two_rooms")(
            dataclasses.make_dataclass("Other", [], bases=(EnvConfig,), frozen=True)
        )
    with pytest.raises(ValueError, match="'metaworld' is taken"):
        EnvConfig.register("metaworld")(
            dataclasses.make_dataclass("Other", [], bases=(EnvConfig,), frozen=True)
        )
    with pytest.raises(NotImplementedError, match="env_target"):
        TwoRooms().env_factory(TwoRooms().tasks()[0])


def test_a_class_that_is_not_registered_says_so():
    with pytest.raises(TypeError, match="not registered.*@EnvConfig.register"):
        dataclasses.make_dataclass("Nameless", [], bases=(EnvConfig,), frozen=True)().to_dict()


def test_features_follow_the_fields_they_derive_from():
    EnvConfig.register("two_rooms")(TwoRooms)
    config = make_env_config("two_rooms", observation_height=48)
    assert env_to_policy_features(config)["observation.images.top"].shape == (3, 48, 64)
    assert dataclasses.replace(config, observation_height=32).features["pixels/top"].shape == (
        32,
        64,
        3,
    )
    own = {"action": PolicyFeature(FeatureType.ACTION, (9,))}
    assert (
        dataclasses.replace(
            make_env_config("two_rooms", features=own), observation_height=32
        ).features
        == own
    )


@pytest.mark.parametrize(
    "kwargs",
    [
        {"type": "metaworld"},
        {
            "type": "metaworld",
            "task": "mt10,hard",
            "task_ids": [0, 2],
            "obs_type": "state",
            "privileged": True,
            "episode_length": 7,
        },
        {
            "type": "metaworld",
            "task_descriptions": {"push-v3": "push it"},
            "camera_name": "topview",
        },
        {
            "type": "gym",
            "gym_id": "CartPole-v1",
            "episode_length": 20,
            "gym_kwargs": {"sutton_barto_reward": True},
        },
    ],
)
def test_configurations_survive_json_and_pickle(kwargs):
    config = make_env_config(**kwargs)
    restored = EnvConfig.from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False)))
    assert restored == config == pickle.loads(pickle.dumps(config))
    assert restored.tasks() == config.tasks()
    assert [restored.env_factory(task) for task in restored.tasks()] == [
        config.env_factory(task) for task in config.tasks()
    ]
    json.dumps(config.protocol, allow_nan=False)


def test_what_json_cannot_hold_is_named():
    with pytest.raises(TypeError, match="gym.*plain data"):
        make_env_config("gym", gym_id="CartPole-v1", gym_kwargs={"thing": object()}).to_dict()


def test_make_env_is_the_mapping_that_lerobot_has_and_starts_nothing():
    envs = make_env("metaworld", n_envs=2, task="medium,push-v3", task_ids=[0], obs_type="state")
    assert {suite: list(tasks) for suite, tasks in envs.items()} == {"medium": [0], "push-v3": [0]}
    assert not any(env.started for tasks in envs.values() for env in tasks.values())
    assert envs["push-v3"][0].num_envs == 2 and envs["push-v3"][0].single_action_space.shape == (4,)
    for wrong in (0, -1, True, 1.0):
        with pytest.raises(ValueError, match="n_envs"):
            make_env("metaworld", n_envs=wrong)
    with pytest.raises(TypeError, match="can't be applied"):
        make_env(make_env_config("metaworld"), task="reach-v3")
    with pytest.raises(TypeError, match="gym, libero,.* metaworld"):
        make_env(3)


def test_processors_of_metaworld_change_nothing():
    before, after = make_env_pre_post_processors(make_env_config("metaworld"), policy_cfg=None)
    batch = {"observation.state": 1}
    assert before(batch) is batch and after(batch) is batch
