"""`rollout`, `eval_policy` and `evaluate` tell the same of the same episodes, whatever the vector environment is like."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from synthetic import Noisy

from lerobot_nb.envs.base import EnvFactory, TaskInfo
from lerobot_nb.envs.config import make_env_config
from lerobot_nb.envs.factory import make_env
from lerobot_nb.envs.vector import LazyVectorEnv
from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import evaluate
from lerobot_nb.evaluation.rollout import eval_policy, rollout
from lerobot_nb.policies.base import Policy

SEEDS = [1000, 1001, 1002]


class Listening(Policy):
    """Acts on what it sees and on what it is told."""

    batch_format = "numpy"

    def __init__(self):
        self.told, self.first = {}, {}

    def begin_episode(self, slot, episode):
        self.told[episode.spec.episode_index] = episode.task.description

    def predict(self, slots, batch):
        state = batch["agent_pos"][:, :2].astype(np.float64)
        return np.sin(3 * state + np.array([[len(text)] for text in batch["task"]]))[
            :, None
        ].astype(np.float32)


def of_rollout(result):
    """Success, steps and sum of rewards of each row."""
    return [
        (
            bool(success.any()),
            int((~done).sum()) + 1,
            pytest.approx(float(reward.double().sum()), rel=1e-5),
        )
        for success, done, reward in zip(result["success"], result["done"], result["reward"])
    ]


def of_episodes(episodes):
    return [(bool(one["success"]), one["n_steps"], one["sum_reward"]) for one in episodes]


ODDITIES = ["", "array_success", "kept_info", "array_reward", "mission", "told"]


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("use_async_envs", [True, False])
@pytest.mark.parametrize("odd", ODDITIES)
def test_on_synthetic_environments(odd, use_async_envs, mode, tmp_path):
    if use_async_envs and mode != AutoresetMode.SAME_STEP and odd not in ("", "kept_info"):
        pytest.skip("one of the modes is enough here")
    factory = EnvFactory("odd_envs:Odd", {"odd": odd, "length": 6, "goal": 4})
    # shorter than the environment's own episodes
    task = TaskInfo("odd", 0, "odd", "walk on", max_episode_steps=5)

    def vector():
        return LazyVectorEnv(
            factory, 3, use_async_envs=use_async_envs, task=task, autoreset_mode=mode
        )

    ours = vector()
    policies = [Listening() for _ in range(3)]
    found = rollout(ours, policies[0], seeds=SEEDS)
    ours.close()
    config = EvalConfig(batch_size=2, use_async_envs=use_async_envs, placement="driver")
    theirs = eval_policy(
        vector(), policies[1], n_episodes=3, return_episode_data=True, config=config
    )
    run = evaluate(
        {"odd": {0: vector()}},
        policies[2],
        EvalConfig(3, use_async_envs=use_async_envs, placement="driver"),
        output_dir=tmp_path / "run",
    )
    assert of_episodes(theirs["episodes"]) == of_rollout(found)
    assert (
        [(record.success, record.n_steps) for record in run.records()]
        == [(True, 5)] * 3
        == [row[:2] for row in of_rollout(found)]
    )
    assert [record.sum_reward for record in run.records()] == [
        one["sum_reward"] for one in theirs["episodes"]
    ]
    assert (
        policies[0].told
        == policies[1].told
        == policies[2].told
        == {one.episode_index: one.task_description for one in run.records()}
    )
    given = (
        [f"go to ball {seed % 3}, seed {seed}" for seed in SEEDS]
        if odd in ("mission", "told")
        else ["walk on"] * 3
    )
    assert list(policies[0].told.values()) == given


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_last_observation_is_that_of_the_episode(mode):
    """Not that of the next episode, which SAME_STEP would show."""
    env = LazyVectorEnv(
        EnvFactory("odd_envs:Odd", {"length": 3}), 2, use_async_envs=False, autoreset_mode=mode
    )
    found = rollout(env, Listening(), seeds=[5, 6], return_observations=True)
    states = found["observation"]["agent_pos"].numpy()
    expected = states[:, 0] + 0.1 * found["action"].numpy().sum(axis=1)
    assert np.allclose(states[:, -1], expected, atol=1e-5) and found["done"].shape == (2, 3)
    assert found["success"].sum() == 0
    # whatever the mode, the vector can be used again
    again = rollout(env, Listening(), seeds=[5, 6], return_observations=True)
    assert np.array_equal(again["observation"]["agent_pos"].numpy(), states)


def test_an_environment_without_an_end_stops_at_the_limit_of_the_task():
    env = LazyVectorEnv(
        EnvFactory("odd_envs:Odd", {"length": 0}),
        2,
        task=TaskInfo("odd", 0, "odd", "walk", max_episode_steps=7),
    )
    try:
        found = rollout(env, Listening(), seeds=[1, 2])
    finally:
        env.close()
    assert (
        found["done"].shape == (2, 7)
        and found["done"][:, -1].all()
        and not found["done"][:, :-1].any()
    )


def test_what_a_vector_without_a_task_is_told_comes_from_its_environments():
    env = LazyVectorEnv(
        [EnvFactory("odd_envs:Odd", {"task": text}) for text in ("open the door", "close the door")]
    )
    policy = Listening()
    try:
        rollout(env, policy, seeds=[1, 2])
    finally:
        env.close()
    assert policy.told == {0: "open the door", 1: "close the door"}


@pytest.mark.parametrize("policy", ["random", "expert"])
def test_on_metaworld(policy, tmp_path):
    config = make_env_config("metaworld", task="reach-v3", obs_type="state", privileged=True)
    env = make_env(config, n_envs=3)["reach-v3"][0]
    try:
        found = rollout(env, policy, seeds=SEEDS)
        episodes = eval_policy(env, policy, n_episodes=3, return_episode_data=True)["episodes"]
    finally:
        env.close()
    run = evaluate(config, policy, EvalConfig(3), output_dir=tmp_path / "run")
    assert of_episodes(episodes) == of_rollout(found)
    assert [record.sum_reward for record in run.records()] == [
        one["sum_reward"] for one in episodes
    ]


def test_a_policy_that_needs_the_ground_truth_is_refused_where_there_is_none():
    env = make_env("metaworld", task="reach-v3", obs_type="state")["reach-v3"][0]
    with pytest.raises(ValueError, match="privileged=True"):
        rollout(env, "expert", seeds=[1])


class Seeing(Policy):
    """Stands still, and keeps the first thing it sees in each episode."""

    batch_format = "numpy"

    def __init__(self):
        self.first, self.episodes = {}, {}

    def begin_episode(self, slot, episode):
        self.episodes[slot] = episode

    def predict(self, slots, batch):
        for row, slot in enumerate(slots):
            spec = self.episodes[slot].spec
            self.first.setdefault(
                (spec.episode_index, spec.init_state_id),
                batch["robot_state"]["eef"]["pos"][row].copy(),
            )
        return np.zeros((len(slots), 1, 7), np.float32)


@pytest.mark.timeout(300)
def test_libero_starts_from_its_stored_states():
    pytest.importorskip("libero")
    config = make_env_config(
        "libero",
        task="libero_object",
        task_ids=[0],
        obs_type="state",
        render_mode=None,
        episode_length=1,
    )
    one = make_env(config, n_envs=1, use_async_envs=False)["libero_object"][0]
    ours, theirs = Seeing(), Seeing()
    try:
        rollout(one, ours, seeds=[1000])
        eval_policy(
            one, theirs, n_episodes=1, config=EvalConfig(use_async_envs=False, placement="driver")
        )
    finally:
        one.close()
    assert list(ours.first) == list(theirs.first) == [(0, 0)]
    assert np.array_equal(ours.first[0, 0], theirs.first[0, 0])


def test_noisy_policies_in_chunks_too():
    env = LazyVectorEnv(
        EnvFactory("synthetic:Synthetic", {}), 3, task=TaskInfo("synthetic", 0, "a", "do a")
    )
    try:
        found = rollout(env, Noisy(k=4), seeds=SEEDS)
        episodes = eval_policy(env, Noisy(k=4), n_episodes=3, return_episode_data=True)["episodes"]
    finally:
        env.close()
    assert of_episodes(episodes) == of_rollout(found)
