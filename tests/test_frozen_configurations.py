"""Configurations are frozen: what follows from a field is computed when it is asked for, and a replaced field counts like one that was given at once."""

import dataclasses

import pytest

from lerobot_nb.envs.config import make_env_config
from lerobot_nb.evaluation.config import EvalConfig


@pytest.mark.parametrize(
    "config, field, value",
    [
        (EvalConfig(), "batch_size", 8),
        (EvalConfig(), "render", "all"),
        (EvalConfig(), "placement", "driver"),
        (make_env_config("metaworld"), "obs_type", "state"),
        (make_env_config("metaworld"), "features", {}),
    ],
)
def test_nothing_can_be_assigned(config, field, value):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, field, value)


def test_what_follows_from_a_field_follows_a_replaced_one():
    config = dataclasses.replace(EvalConfig(3, batch_size=16), n_episodes=50)
    assert (
        config == EvalConfig(50, batch_size=16)
        and config.batch_size == 16
        and config.slots(50) == 16
    )
    assert str(dataclasses.replace(config, render="all").render_rule) == "all"
    assert EvalConfig(**config.to_dict()) == config
    state = dataclasses.replace(make_env_config("metaworld"), obs_type="state")
    assert (
        state == make_env_config("metaworld", obs_type="state")
        and "pixels" not in state.features
        and "pixels" not in state.features_map
    )
