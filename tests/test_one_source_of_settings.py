"""Each setting is said once: configurations refuse wrong values by name, and notebook and command line offer every field of EvalConfig."""

import dataclasses

import numpy as np
import pytest

from lerobot_nb.envs.config import EnvConfig, make_env_config
from lerobot_nb.envs.settings import settings_of
from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.parameters import EvalParameters, parameters
from lerobot_nb.evaluation.plan import Plan

CONFIGS = {
    "eval": EvalConfig(),
    "metaworld": make_env_config("metaworld"),
    "libero": make_env_config("libero"),
    "gym": make_env_config("gym", task="CartPole-v1"),
}
FIELDS = [
    (name, field.name) for name, config in CONFIGS.items() for field in dataclasses.fields(config)
]


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_every_field_is_checked_and_replaced(name, field):
    config = CONFIGS[name]
    assert dataclasses.replace(config, **{field: getattr(config, field)}) == config
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(config, **{field: object()})
    value = getattr(config, field)
    if isinstance(value, bool):
        wrong = ("no", 1, None)
    elif isinstance(value, (int, float)):
        wrong = (True, str(value), float("nan"), -5)
        converted = getattr(dataclasses.replace(config, **{field: np.asarray(value)[()]}), field)
        assert converted == value and type(converted) is type(value)
    else:
        wrong = (True,)
    for one in wrong:
        with pytest.raises(ValueError, match=field):
            dataclasses.replace(config, **{field: one})


@pytest.mark.parametrize(
    "wrong",
    [
        {"visualization_height": 0},
        {"fps": 600},
        {"init_states": "30-34"},
        {"init_state_ids": "48-50"},
        {"init_state_ids": "5-3"},
        {"task_ids": "0-20000000"},
        {"privileged": "no"},
    ],
)
def test_limits_of_libero(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make_env_config("libero", **wrong)


def test_second_names_of_a_field():
    gym = make_env_config("gym", gym_id="CartPole-v1")
    assert (
        dataclasses.replace(gym, task="Pendulum-v1")
        == dataclasses.replace(gym, gym_id="Pendulum-v1")
        == make_env_config("gym", task="Pendulum-v1")
    )
    assert make_env_config("libero", control_freq=10).fps == 10


@dataclasses.dataclass(frozen=True)
class Own(EnvConfig):
    fps: int = 10
    grip: float = 0.5


def test_a_users_own_configuration_is_checked_too():
    assert type(Own(grip=np.float32(1)).grip) is float
    for wrong in ({"fps": 0}, {"fps": True}, {"grip": "tight"}, {"task_ids": "5-3"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Own(**wrong)


def test_environments_given_directly():
    from lerobot_nb.envs.gym_ids import GymIdEnv
    from lerobot_nb.envs.metaworld import MetaworldEnv

    for env, wrong in (
        (MetaworldEnv, {"task": "push-v3", "episode_length": -5}),
        (MetaworldEnv, {"task": "push-v3", "privileged": "no"}),
        (GymIdEnv, {"gym_id": "CartPole-v1", "episode_length": 1.5}),
    ):
        with pytest.raises(ValueError, match=list(wrong)[1]):
            env(**wrong)


def test_init_states_and_texts_are_the_users():
    config = EvalParameters(
        "libero", task="spatial", task_ids=0, init_state_ids="30-32", n_episodes=4
    ).env_config()
    plan = Plan(tuple(config.tasks()), 4)
    assert [spec.init_state_id for spec in plan] == [30, 31, 32, 30] and plan.identity()[
        "init_state_ids"
    ] == [[30, 31, 32]]
    assert (
        "init_state_ids"
        not in Plan(tuple(make_env_config("libero", task="spatial").tasks()), 4).identity()
    )
    name = config.tasks()[0].name
    told = make_env_config(
        "libero", task="spatial", task_ids=0, task_descriptions={name: "pick it up"}
    )
    assert (
        told.tasks()[0].description == "pick it up"
        and told.env_factory(told.tasks()[0]).kwargs["task_description"] == "pick it up"
    )


def test_every_field_of_the_evaluation_is_a_parameter():
    offered = {parameter.name: parameter for parameter in parameters()}
    for name, _, default in settings_of(EvalConfig):
        assert name in offered, f"EvalParameters lacks {name}"
        if name not in ("n_episodes", "render"):
            assert offered[name].default == default
    assert EvalParameters(max_wait_s=1, step_timeout_s=5).eval_config().step_timeout_s == 5


def test_papermills_numbers_are_texts_where_texts_are_asked():
    assert EvalParameters("libero", task=10, output_dir=20261202).output_dir == "20261202"
    assert EvalParameters("libero", task=10).env_config().tasks()[0].suite == "libero_10"


def test_the_old_word_for_preset_is_understood():
    with pytest.warns(FutureWarning, match="preset"):
        assert (
            EvalParameters.from_namespace({"benchmark": "libero", "protocol": "openvla"})
            .env_config()
            .preset
            == "openvla"
        )
