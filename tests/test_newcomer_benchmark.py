"""What a newcomer sees who brings a checkpoint, a policy or a benchmark of their own."""

import os

import numpy as np
import pytest
import torch

from lerobot_nb import EvalConfig, Policy, evaluate, make_env_config, make_policy
from lerobot_nb.policies.asking import PolicyError, check_actions, predict
from lerobot_nb.policies.checkpoints import PolicyLoadError


class Looks(Policy):
    """Asks for one key of the batch."""

    needs_images = False

    def __init__(self, key="observation.environment_state", batch_format="torch"):
        self.key, self.batch_format = key, batch_format

    def predict(self, slots, batch):
        return torch.zeros(len(batch[self.key]), 1, 4)


@pytest.mark.parametrize(
    ("key", "batch_format", "cure"),
    [
        ("observation.environment_state", "torch", "--obs_type state"),
        ("agent_pos", "torch", 'batch_format = "numpy"'),
        ("observation.state", "numpy", 'batch_format = "torch"'),
        ("environment_state", "numpy", "--obs_type state"),
        ("privileged", "numpy", "needs_privileged = True"),
    ],
)
def test_a_policy_that_looks_for_what_is_not_there_is_told_what_is(
    tmp_path, key, batch_format, cure
):
    env = make_env_config("metaworld", task="reach-v3", obs_type="pixels_agent_pos")
    policy = Looks(key, batch_format)
    run = evaluate(
        env,
        policy,
        EvalConfig(n_episodes=1, batch_size=1, render="none", max_error_rate=1.0),
        output_dir=tmp_path / "run",
    )
    said = run.records()[0].error
    assert repr(key) in said and cure in said.splitlines()[0]
    assert ("agent_pos" if batch_format == "numpy" else "observation.state") in said.splitlines()[0]
    assert "Traceback" in said  # and where it looked


def test_a_key_of_the_policys_own_stays_a_key_error():
    with pytest.raises(KeyError, match="mine"):
        predict(Looks("mine"), [0], {"observation.state": np.zeros((1, 4))})


def test_a_policy_that_returns_nothing_is_told_so():
    from gymnasium.spaces import Box

    with pytest.raises(PolicyError, match="None; does predict end with a return"):
        check_actions(None, 1, Box(-1, 1, (4,)))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("ws:/127.0.0.1:8000", "ws://127.0.0.1:8000"),
        ("127.0.0.1:8000", "ws://127.0.0.1:8000"),
        ("localhost:8000", "ws://localhost:8000"),
        ("http://gpu-1:8000/", "ws://gpu-1:8000"),
    ],
)
def test_an_address_without_ws_is_known_as_one(typed, meant):
    with pytest.raises(ValueError, match=f"is written '{meant}'"):
        make_policy(typed)


def test_a_file_of_weights_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("net.pt", "best/model.safetensors"):
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        open(name, "wb").close()
        with pytest.raises(ValueError, match="is a file; give the folder") as caught:
            make_policy(name)
        assert "'my_module:load_policy'" in str(caught.value) and "hub:" + name not in str(
            caught.value
        )


def test_the_folder_of_a_training_names_the_checkpoint_in_it(tmp_path):
    (tmp_path / "checkpoints/best").mkdir(parents=True)
    (tmp_path / "config.json").write_text('{"steps": 3}')
    (tmp_path / "checkpoints/best/config.json").write_text('{"policy_class": "a:B"}')
    with pytest.raises(PolicyLoadError, match="checkpoint is in .*checkpoints/best"):
        make_policy(str(tmp_path))
    (tmp_path / "config.json").unlink()
    with pytest.raises(PolicyLoadError, match="checkpoint is in .*checkpoints/best"):
        make_policy(str(tmp_path / "checkpoints"))


def test_a_served_policy_that_looks_for_what_is_not_there_says_so_to_its_client(tmp_path):
    from lerobot_nb import PolicyServer

    env = make_env_config("metaworld", task="reach-v3", obs_type="pixels_agent_pos")
    with PolicyServer(Looks(), port=0) as server:
        run = evaluate(
            env,
            server.address,
            EvalConfig(n_episodes=1, batch_size=1, render="none", max_error_rate=1.0),
            output_dir=tmp_path / "run",
        )
    assert "--obs_type state" in run.records()[0].error.splitlines()[0]


# a little benchmark, and what newcomers get wrong in one
LINE = """
from dataclasses import dataclass
from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from lerobot_nb import EnvConfig, FeatureType, PolicyFeature, TaskInfo


class LineEnv(gymnasium.Env):
    lazy, metadata = True, {"render_modes": ["rgb_array"], "render_fps": 10}
    task, task_description, max_episode_steps = "near", "Move the dot to the line", 20
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, task, obs_type, render_mode, **kwargs):
        self.render_mode, self.steps_left = render_mode, 0
        self.observation_space = spaces.Dict({"agent_pos": spaces.Box(-5, 5, (2,), np.float64)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.steps_left = self.np_random.uniform(-0.2, 0.2), 20
        return self.observation(), {"is_success": False}

    def step(self, action, observe=True):
        if not self.steps_left:
            raise RuntimeError("no episode is running")
        self.x = float(np.clip(self.x + 0.1 * float(action[0]), -1, 1))
        success = self.x > 0.5
        self.steps_left = 0 if success else self.steps_left - 1
        truncated = not self.steps_left and not success
        return self.observation() if observe else None, self.x, success, truncated, {"is_success": success}

    def observation(self):
        return {"agent_pos": np.array([self.x, 0.5])}

    def render(self):
        return np.zeros((16, 16, 3), np.uint8)


class Four(LineEnv):
    def step(self, action, observe=True):
        observation, reward, terminated, truncated, info = super().step(action, observe)
        return observation, reward, terminated or truncated, info


class NoInfo(LineEnv):
    def step(self, action, observe=True):
        return super().step(action, observe)[:4] + (None,)


class OldReset(LineEnv):
    def reset(self, seed=None):
        return super().reset(seed=seed)


class OnlyObservation(LineEnv):
    def reset(self, seed=None, options=None):
        return super().reset(seed=seed)[0]


class AlwaysLooks(LineEnv):
    def step(self, action):
        return super().step(action)


class NanReward(LineEnv):
    def step(self, action, observe=True):
        observation, reward, *rest = super().step(action, observe)
        return observation, float("nan"), *rest


class Complex(LineEnv):
    def observation(self):
        return {"agent_pos": np.array([self.x, 0.5], dtype=np.complex128)}


class Shape(LineEnv):
    def observation(self):
        return {"agent_pos": np.zeros(3)}


class Outside(LineEnv):
    def observation(self):
        return {"agent_pos": np.array([self.x, 7.0])}


class Missing(LineEnv):
    def observation(self):
        return {"position": np.zeros(2)}


@EnvConfig.register("newcomers-line")
@dataclass(frozen=True)
class LineConfig(EnvConfig):
    task: str = "near"
    fps: int = 10
    env_class: str = "LineEnv"

    @property
    def env_target(self):
        return f"newcomers_line:{self.env_class}"

    def tasks(self):
        return [TaskInfo("near", 0, "near", "Move the dot to the line", max_episode_steps=20)]

    def default_features(self):
        return {
            "action": PolicyFeature(FeatureType.ACTION, (1,)),
            "agent_pos": PolicyFeature(FeatureType.STATE, (2,)),
        }

    def needs_opengl(self, videos):
        return False
"""
FORM_OF_STEP = "step() must return five things, observation, reward, terminated, truncated and info"
WRONG = {
    "Four": f"{FORM_OF_STEP}, not 4",
    "NoInfo": "step() returned None as the info; it must be a dictionary",
    "OldReset": "reset() must take a seed and options: def reset(self, *, seed=None, options=None)",
    "OnlyObservation": "reset() must return two things, observation and info, not a dict",
}


@pytest.fixture
def line(tmp_path, monkeypatch):
    (tmp_path / "newcomers_line.py").write_text(LINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    import importlib

    monkeypatch.delitem(__import__("sys").modules, "newcomers_line", raising=False)
    return importlib.import_module("newcomers_line")


def test_the_little_benchmark_keeps_the_promises(line):
    from lerobot_nb.envs.check_benchmark import check_benchmark

    assert len(check_benchmark(line.LineConfig())) == 1


@pytest.mark.parametrize(
    ("env_class", "said"),
    [
        *WRONG.items(),
        ("AlwaysLooks", "step must take observe"),
        ("NanReward", "the reward of step 1 is nan"),
        ("Complex", "'agent_pos' is complex128, the space float64"),
        ("Shape", "'agent_pos' has the shape (3,), the space (2,)"),
        ("Outside", "'agent_pos' holds 7, outside of the space's limits"),
        ("Missing", "it lacks ['agent_pos'] and has ['position']"),
    ],
)
def test_check_benchmark_names_what_is_wrong(line, env_class, said):
    from lerobot_nb.envs.check_benchmark import ContractError, check_benchmark

    with pytest.raises(ContractError) as caught:
        check_benchmark(line.LineConfig(env_class=env_class))
    assert said in str(caught.value) and "near/0 near" in str(caught.value)


@pytest.mark.parametrize("env_class", WRONG)
def test_a_run_names_what_is_wrong(line, tmp_path, env_class):
    run = evaluate(
        line.LineConfig(env_class=env_class),
        "zero",
        EvalConfig(
            n_episodes=1, use_async_envs=False, render="none", max_error_rate=1.0, max_retries=0
        ),
        output_dir=tmp_path / "run",
    )
    assert WRONG[env_class] in run.records()[0].error


@pytest.mark.parametrize("env_class", WRONG)
def test_a_vector_of_environments_names_what_is_wrong(line, env_class):
    from lerobot_nb import close_envs, make_env

    envs = make_env(line.LineConfig(env_class=env_class), n_envs=1, use_async_envs=False)
    env = envs["near"][0]
    try:
        with pytest.raises(Exception) as caught:  # a WorkerError where a process plays it
            env.reset(seed=[0])
            env.step(np.zeros((1, 1), np.float32))
        assert WRONG[env_class] in str(caught.value)
    finally:
        close_envs(envs)


def test_merge_puts_the_folder_on_a_line_of_its_own(tmp_path, capsys):
    from lerobot_nb.cli import main

    parts = []
    for number, task in enumerate(("reach-v3", "push-v3")):
        env = make_env_config("metaworld", task=task, obs_type="state", episode_length=3)
        config = EvalConfig(n_episodes=1, use_async_envs=False, render="none")
        parts.append(evaluate(env, "zero", config, output_dir=tmp_path / str(number)).folder)
    assert main(["merge", *map(str, parts), "--output", str(tmp_path / "all")]) == 0
    said = capsys.readouterr().out
    assert f"\n\nrun folder: {tmp_path / 'all'}\n" in said and "\\n" not in said
