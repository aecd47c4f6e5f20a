"""What is the policy's fault is said so, once: actions that don't fit, policies that never answer, objects asked by two runs."""

import dataclasses
import subprocess
import sys
import time

import gymnasium
import numpy as np
import pytest

from lerobot_nb.envs.base import EnvFactory, TaskInfo
from lerobot_nb.envs.workers import WorkerPool
from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import evaluate
from lerobot_nb.evaluation.plan import Plan
from lerobot_nb.evaluation.runner import Runner
from lerobot_nb.policies.base import AdaptedPolicy, Policy, PolicySpec, PolicyUnavailable
from lerobot_nb.policies.factory import make_policy, register_policy
from lerobot_nb.policies.simple import RandomPolicy
from lerobot_nb.results.run_folder import RunFolderError

torch = pytest.importorskip("torch")

SPACES = {
    "Box": gymnasium.spaces.Box(-1, 1, (2,)),
    "Discrete": gymnasium.spaces.Discrete(3),
    "MultiDiscrete": gymnasium.spaces.MultiDiscrete([3, 2]),
}


class Picky(gymnasium.Env):
    """Refuses actions outside its action space, and says which it got. `kind`: a key of SPACES."""

    observation_space = gymnasium.spaces.Dict({"agent_pos": gymnasium.spaces.Box(-10, 10, (2,))})

    def __init__(self, kind="Box"):
        self.action_space = SPACES[kind]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n_steps = 0
        return {"agent_pos": np.zeros(2, np.float32)}, {"is_success": False}

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} invalid"
        self.n_steps += 1
        reward = float(np.sum(action))
        return (
            {"agent_pos": np.zeros(2, np.float32)},
            reward,
            False,
            self.n_steps == 3,
            {"is_success": False},
        )


class Says(Policy):
    """Gives the same action always, of the type and value that it is made with."""

    placements = ("driver", "worker")

    def __init__(self, action=0.0, dtype="float32", sleep_s=0.0):
        self.action, self.dtype, self.sleep_s = action, dtype, sleep_s

    def predict(self, slots, batch):
        deadline = time.monotonic() + self.sleep_s
        while time.monotonic() < deadline:
            time.sleep(0.05)
        return np.array([[self.action]] * len(slots), self.dtype)


def run(kind, policy, n_episodes=1, placement="driver", use_async_envs=True, **config):
    """Runner, and the records of one task."""
    task = TaskInfo("picky", 0, "picky", "be exact", max_episode_steps=5)
    config = EvalConfig(
        n_episodes=n_episodes, batch_size=2, use_async_envs=use_async_envs, **config
    )
    runner = Runner(
        Plan((task,), n_episodes, config.seed),
        lambda task: EnvFactory("test_policy_faults:Picky", {"kind": kind}),
        policy,
        config,
        placement=placement,
    )
    return runner, runner.run()


def says(**kwargs):
    return PolicySpec("test_policy_faults:Says", kwargs).build()


# --- actions ------------------------------------------------------------------------------------------------------------


class Buttons(torch.nn.Module):
    def predict_action_chunk(self, batch):
        return torch.tensor([[[2, 1]]] * len(batch["observation.state"]))


@pytest.mark.parametrize("use_async_envs", [True, False])
def test_integers_of_a_torch_policy_stay_integers(use_async_envs):
    policy = AdaptedPolicy(Buttons())
    policy.batch_format = "torch"
    _, records = run("MultiDiscrete", policy, use_async_envs=use_async_envs)
    (record,) = records
    assert record.error is None and record.sum_reward == 9.0


@pytest.mark.parametrize("placement", ["driver", "worker"])
@pytest.mark.parametrize(
    "kind, action, words",
    [
        ("Discrete", 0.7, "0.7.*not a whole number.*Discrete"),
        ("Discrete", 3.0, "3.*outside the action space.*Discrete"),
        ("Discrete", -1, "-1.*outside the action space"),
        ("MultiDiscrete", [2.0, 0.5], "0.5.*not a whole number"),
        ("MultiDiscrete", [2.0, 2.0], "2.*outside the action space"),
        ("Box", [0.0, 1.5], r"outside the action space Box.*1\.5.*AssertionError.*clip_actions"),
    ],
)
def test_a_wrong_action_is_the_policys_error_and_is_not_tried_again(kind, action, words, placement):
    _, records = run(kind, says(action=action), placement=placement, max_error_rate=1.0)
    (record,) = records
    assert record.attempt == 1 and record.end_reason == "error"
    import re

    assert re.search(words, record.error, re.S), record.error


class OneIsWrong(Policy):
    """A fraction in the first episode; whole numbers in the other, in the same batch."""

    def __init__(self):
        self.indices, self.largest = {}, 0

    def begin_episode(self, slot, episode):
        self.indices[slot] = episode.spec.episode_index

    def predict(self, slots, batch):
        self.largest = max(self.largest, len(slots))
        return np.array([[2.0 if self.indices[slot] else 0.7] for slot in slots])


def test_one_slots_fraction_is_not_the_others_error():
    policy = OneIsWrong()
    _, records = run(
        "Discrete", policy, n_episodes=2, max_batch=2, max_wait_s=30.0, max_error_rate=1.0
    )
    first, second = sorted(records, key=lambda record: record.episode_index)
    assert policy.largest == 2
    assert "0.7, which is not a whole number" in first.error
    assert second.error is None and second.sum_reward == 6.0


@pytest.mark.parametrize("action", [0.7, 3.0])
def test_rollout_refuses_the_same_actions(action):
    from lerobot_nb.envs.vector import LazyVectorEnv
    from lerobot_nb.evaluation.rollout import rollout
    from lerobot_nb.policies.asking import PolicyError

    task = TaskInfo("picky", 0, "picky", "be exact", max_episode_steps=5)
    factory = EnvFactory("test_policy_faults:Picky", {"kind": "Discrete"})
    env = LazyVectorEnv(factory, 1, task=task, use_async_envs=False)
    try:
        with pytest.raises(PolicyError, match="not a whole number|outside the action space"):
            rollout(env, says(action=action))
    finally:
        env.close()


class Unstable(Picky):
    """A simulator that fails in its first episode after the start of a process, whatever the action."""

    n_failures = 0

    def step(self, action):
        if type(self).n_failures == 0:
            type(self).n_failures += 1
            raise ValueError("the simulation is unstable")
        return super().step(action)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_simulator_that_fails_is_not_blamed_on_a_good_action(dtype):
    """Also where the policy gives float64 for a float32 space."""
    Unstable.n_failures = 0
    policy = says(action=[0.25, 0.5], dtype="float32")
    policy.dtype = dtype
    task = TaskInfo("picky", 0, "picky", "be exact", max_episode_steps=5)
    runner = Runner(
        Plan((task,), 1, 1000),
        lambda task: EnvFactory("test_policy_faults:Unstable", {"kind": "Box"}),
        policy,
        EvalConfig(n_episodes=1, batch_size=1, use_async_envs=False, max_retries=0),
    )
    (record,) = runner.run()
    assert "the simulation is unstable" in record.error and "the policy gave" not in record.error


@pytest.mark.parametrize("placement", ["driver", "worker"])
def test_whole_numbers_of_a_network_are_integers(placement):
    _, records = run("Discrete", says(action=2.0), placement=placement)
    (record,) = records
    assert record.error is None and record.sum_reward == 6.0


@pytest.mark.parametrize("placement", ["driver", "worker"])
def test_clipping_is_the_users_choice(placement):
    _, records = run("Box", says(action=[0.25, 7.0]), placement=placement, clip_actions=True)
    (record,) = records
    assert record.error is None and record.sum_reward == 3 * 1.25


def test_clipping_is_recorded_and_a_resumed_run_must_agree(tmp_path):
    from lerobot_nb.envs.config import make_env_config

    env = make_env_config("gym", gym_id="Pendulum-v1", episode_length=3)
    config = EvalConfig(n_episodes=1, clip_actions=True)
    done = evaluate(env, "random", config, output_dir=tmp_path / "run")
    assert done.manifest["protocol"]["clip_actions"] is True
    with pytest.raises(RunFolderError, match="clip_actions"):
        evaluate(
            env,
            "random",
            dataclasses.replace(config, clip_actions=False),
            output_dir=tmp_path / "run",
            resume=True,
        )


# --- answers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["driver", "worker"])
def test_a_policy_that_never_answers_ends_the_run(placement):
    policy = says(action=[0.0, 0.0], sleep_s=10_000.0)
    _, records = run("Box", policy, placement=placement, policy_timeout_s=1.0)
    began = time.monotonic()
    with pytest.raises(
        PolicyUnavailable, match=r"'Says' gave no answer within policy_timeout_s=1 s"
    ):
        list(records)
    assert time.monotonic() - began < 60


def test_a_policy_that_is_slow_within_the_limit_is_waited_for():
    _, records = run("Box", says(action=[0.0, 0.5], sleep_s=0.6), policy_timeout_s=30)
    assert [record.error for record in records] == [None]


class Compiled(Policy):
    """A wait that no exception can end, as in compiled code."""

    def predict(self, slots, batch):
        import signal

        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        while True:
            time.sleep(60)


def test_a_policy_that_cannot_be_interrupted_ends_the_process_and_keeps_the_run(tmp_path):
    code = """
import sys
sys.path.insert(0, sys.argv[2])
import test_policy_faults as here
from lerobot_nb import EvalConfig, evaluate, make_env_config
from lerobot_nb.policies.asking import PolicyWatchdog
PolicyWatchdog.grace_s = 1.0
env = make_env_config("gym", gym_id="Pendulum-v1", episode_length=3)
evaluate(env, here.Compiled(), EvalConfig(1, policy_timeout_s=0.5), output_dir=sys.argv[1])
"""
    from pathlib import Path

    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run"), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 3 and "can't be interrupted" in done.stderr
    assert (tmp_path / "run" / "run.json").exists()


class Parts(torch.nn.Module):
    """Frozen inside: a part that stays in evaluation mode while the rest trains."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = torch.nn.Dropout(0.5), torch.nn.Linear(2, 2)

    def predict_action_chunk(self, batch):
        assert not self.backbone.training and not self.head.training
        return torch.zeros(len(batch["observation.state"]), 1, 2)


def test_every_module_gets_its_own_mode_back():
    network = Parts().train()
    network.backbone.eval()
    _, records = run("Box", AdaptedPolicy(network))
    assert [record.error for record in records] == [None]
    assert network.training and network.head.training and not network.backbone.training


@pytest.mark.parametrize("wrapped", [False, True])
def test_one_policy_in_two_runs_at_a_time_is_refused(wrapped):
    network = Parts()
    shared = says(action=[0.0, 0.0])

    def policy():
        return AdaptedPolicy(network) if wrapped else shared

    _, first = run("Box", policy(), n_episodes=2)
    next(first)
    _, second = run("Box", policy())
    with pytest.raises(RuntimeError, match="asked by another run"):
        list(second)
    first.close()
    _, third = run("Box", policy())
    assert [record.error for record in third] == [None]


def test_a_chunk_that_is_shorter_than_promised_is_an_error():
    class Short(torch.nn.Module):
        n_action_steps = 4

        def predict_action_chunk(self, batch):
            return torch.zeros(len(batch["observation.state"]), 2, 2)

    _, records = run("Box", AdaptedPolicy(Short()), max_error_rate=1.0)
    (record,) = records
    assert "n_action_steps=4" in record.error and "chunks of 2" in record.error


# --- names, runs, workers -----------------------------------------------------------------------------------------------


class MyRandom(RandomPolicy):
    pass


class Renamed(RandomPolicy):
    name = "mine"


def test_a_subclass_has_its_own_name():
    assert (RandomPolicy.name, MyRandom.name, Renamed.name) == ("random", "MyRandom", "mine")


@pytest.mark.parametrize("name", ["expert", "random", "zero", "a:b", "folder/policy", ""])
def test_names_with_a_meaning_are_not_registered(name):
    with pytest.raises(ValueError, match="can't be registered"):
        register_policy(name, "test_policy_faults:Says")


def test_a_registered_name_is_made():
    register_policy("says_nothing", "test_policy_faults:Says")
    assert make_policy("says_nothing").name == "Says"


def test_a_second_run_says_what_is_wrong():
    runner, records = run("Box", says(action=[0.0, 0.0]))
    list(records)
    with pytest.raises(RuntimeError, match="has run already.*another Runner"):
        runner.run()


def test_lending_leaks_no_worker_when_a_later_start_fails(monkeypatch):
    from lerobot_nb.envs import workers

    class Owner:
        def lose_workers(self):
            pass

    started, start = [], workers.start_worker

    def second_fails(*args, **kwargs):
        if started:
            raise OSError("no process any more")
        started.append(start(*args, **kwargs))
        return started[0]

    monkeypatch.setattr(workers, "start_worker", second_fails)
    pool = WorkerPool(2)
    with pytest.raises(OSError, match="no process"):
        pool.lend(Owner(), 2)
    assert pool.n_alive == 1
    pool.close()
    assert pool.n_alive == 0 and not started[0].alive


def test_eval_policy_all_takes_the_same_settings():
    from lerobot_nb import eval_policy_all, make_env

    config = EvalConfig(n_episodes=1, policy_timeout_s=30.0, clip_actions=True)
    envs = make_env("gym", gym_id="Pendulum-v1", episode_length=3)
    info = eval_policy_all(envs, says(action=[9.0]), n_episodes=1, config=config)
    assert info["overall"]["n_errors"] == 0
