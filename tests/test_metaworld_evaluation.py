"""Meta-World through the engine, against a plain loop of `metaworld` and its scripted policies over the same seeds: identical, not similar."""

import functools
import operator
import warnings

import pytest

from lerobot_nb.envs.config import make_env_config
from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import evaluate
from lerobot_nb.results.records import same_episode

FEW = "reach-v3,door-open-v3,pick-place-v3"
WAYS = {
    "sync": dict(batch_size=1, use_async_envs=False, placement="driver"),
    "driver 1": dict(batch_size=1, n_spare=0, placement="driver"),
    "driver 2": dict(batch_size=2, n_spare=1, placement="driver"),
    "driver 5": dict(batch_size=5, max_batch=2, placement="driver"),
    "worker 1": dict(batch_size=1, placement="worker"),
    "worker 2": dict(batch_size=2, placement="worker"),
    "worker 5": dict(batch_size=5, placement="worker"),
    "sync worker": dict(batch_size=2, use_async_envs=False, placement="worker"),
}


def plain_loop(task, seeds, horizon=500):
    """Success, rewards and length of each episode, as a reader of Meta-World's documentation would
    get them.
    """
    import metaworld
    from metaworld.policies import ENV_POLICY_MAP

    benchmark = metaworld.MT1(task)
    env = benchmark.train_classes[task]()
    env.set_task(benchmark.train_tasks[0])
    env.seeded_rand_vec, env._freeze_rand_vec = True, False
    found = []
    for seed in seeds:
        env.seed(seed)
        observation, _ = env.reset(seed=seed)
        policy, rewards, success = ENV_POLICY_MAP[task](), [], False
        while not success and len(rewards) < horizon:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                observation, reward, _, _, info = env.step(policy.get_action(observation))
            rewards.append(float(reward))
            success = bool(info["success"])
        # one after another: from Python 3.12 on, sum() corrects for rounding
        total = functools.reduce(operator.add, rewards)
        found.append((success, len(rewards), total, max(rewards)))
    env.close()
    return found


def numbers(record):
    return record.success, record.n_steps, record.sum_reward, record.max_reward


@pytest.fixture(scope="module")
def plain():
    return {task: plain_loop(task, range(1000, 1002)) for task in FEW.split(",")}


@pytest.mark.parametrize("way", WAYS)
def test_identical_to_a_plain_loop(plain, tmp_path, way):
    run = evaluate(
        make_env_config("metaworld", task=FEW, obs_type="state"),
        "expert",
        EvalConfig(2, **WAYS[way]),
        output_dir=tmp_path / "run",
    )
    for record in run.records():
        assert numbers(record) == plain[record.task][record.episode_index]
        assert record.success_step == (record.n_steps if record.success else None)
    assert len(run.records()) == 6


def test_what_is_seen_does_not_change_what_happens(tmp_path):
    """The expert reads the true state beside the pictures, and films of the episodes change
    nothing.
    """
    config = make_env_config(
        "metaworld",
        task="reach-v3",
        obs_type="pixels_agent_pos",
        observation_height=48,
        observation_width=48,
        episode_length=15,
    )
    run = evaluate(
        config, "expert", EvalConfig(2, batch_size=2, render="first:1"), output_dir=tmp_path / "run"
    )
    assert [numbers(record) for record in run.records()] == plain_loop(
        "reach-v3", range(1000, 1002), horizon=15
    )
    assert [record.video_path is not None for record in run.records()] == [True, False]
    assert run.manifest["gl"]["backend"] in ("egl", "osmesa", "glfw")


def test_a_random_policy_is_the_same_anywhere(tmp_path):
    config = make_env_config(
        "metaworld", task="reach-v3,push-v3", obs_type="state", episode_length=20
    )
    runs = [
        evaluate(config, "random", EvalConfig(2, **way), output_dir=tmp_path / name)
        for name, way in WAYS.items()
    ]
    for run in runs[1:]:
        assert [
            same_episode(a, b) for a, b in zip(runs[0].records(), run.records(), strict=True)
        ] == [[]] * 4


@pytest.mark.slow  # 500 episodes, twice: some minutes
@pytest.mark.timeout(3000)
def test_all_fifty_tasks_ten_episodes_each(tmp_path):
    run = evaluate(
        make_env_config("metaworld", task="mt50", obs_type="state"),
        "expert",
        EvalConfig(10, batch_size=2),
        output_dir=tmp_path / "run",
    )
    assert run.status == "finished" and len(run.records()) == 500
    by_task = {}
    for record in run.records():
        by_task.setdefault(record.task, []).append(numbers(record))
    for task, found in by_task.items():
        assert found == plain_loop(task, range(1000, 1010)), task
        print(f"{task}: {sum(one[0] for one in found)}/10")
