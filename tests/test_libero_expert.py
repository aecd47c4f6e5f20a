"""The scripted expert of LIBERO: it solves tasks, and what it does in an episode depends on nothing but that episode."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("libero", reason="hf-libero is not installed")
pytest.importorskip("robosuite", reason="robosuite is not installed")
from lerobot_nb.envs.base import EpisodeSpec, TaskInfo
from lerobot_nb.envs.libero import LiberoEnvConfig
from lerobot_nb.policies.base import Episode, stack_observations
from lerobot_nb.policies.factory import make_policy
from lerobot_nb.policies.libero_expert import UNSOLVED, LiberoExpert


def config_of(suite: str, task_ids=None, **kwargs) -> LiberoEnvConfig:
    return LiberoEnvConfig(
        task=suite, task_ids=task_ids, obs_type="state", render_mode=None, privileged=True, **kwargs
    )


def begin(env, task: TaskInfo, init_state_id: int):
    seed = 1000 + init_state_id
    obs, info = env.reset(seed=seed, options={"init_state_id": init_state_id})
    spec = EpisodeSpec(task.suite, task.task_id, init_state_id, seed, init_state_id)
    return obs, Episode(spec, task, env.action_space, task.max_episode_steps, info["scene"])


def play(
    suite: str,
    task_id: int,
    init_state_id: int = 0,
    slot: int = 0,
    policy: LiberoExpert | None = None,
):
    """One episode: was it solved, its actions, the episode, and the observation before each action."""
    config = config_of(suite, [task_id])
    task = config.tasks()[0]
    env = config.env_factory(task)()
    policy = policy or LiberoExpert()
    try:
        obs, episode = begin(env, task, init_state_id)
        policy.begin_episode(slot, episode)
        actions, seen, over = [], [], False
        while not over:
            seen.append(obs)
            actions.append(policy.predict([slot], stack_observations([obs]))[0, 0])
            obs, _, terminated, truncated, info = env.step(actions[-1])
            over = terminated or truncated
        policy.end_episode(slot)
        return info["is_success"], np.array(actions), episode, seen
    finally:
        env.close()


@pytest.fixture(scope="module")
def drawer():
    """Close a drawer: fifty steps."""
    return play("libero_90", 28)


@pytest.fixture(scope="module")
def stove():
    """Switch on a stove."""
    return play("libero_goal", 7)


def test_solves_short_tasks(drawer, stove):
    for success, actions, episode, _ in (drawer, stove):
        assert success and 20 < len(actions) < 150, (
            f"{episode.task.description}: {len(actions)} steps"
        )
        assert (
            actions.dtype == np.float32 and actions.shape[1:] == (7,) and np.abs(actions).max() <= 1
        )
        # the gripper is used
        assert len(np.unique(actions[:, 6])) > 1 or "close" in episode.task.description


def test_the_same_twice(drawer):
    success, actions, *_ = play("libero_90", 28)
    assert success and np.array_equal(actions, drawer[1])


def test_batch_and_slot_do_not_matter(drawer, stove):
    """Both recorded episodes once more in one policy: in two slots side by side, the second a few
    steps late, with what they saw replayed.
    """
    policy = LiberoExpert()
    slots, late = {3: drawer, 5: stove}, {3: 0, 5: 7}
    for slot, (_, _, episode, _) in slots.items():
        # as it would come to a worker
        policy.begin_episode(slot, pickle.loads(pickle.dumps(episode)))
    for step in range(max(len(slots[slot][1]) + late[slot] for slot in slots)):
        waiting = [slot for slot in (5, 3) if 0 <= step - late[slot] < len(slots[slot][1])]
        if not waiting:
            continue
        batch = stack_observations([slots[slot][3][step - late[slot]] for slot in waiting])
        actions = policy.predict(waiting, batch)
        assert actions.shape == (len(waiting), 1, 7)
        for row, slot in enumerate(waiting):
            assert np.array_equal(actions[row, 0], slots[slot][1][step - late[slot]]), (
                f"slot {slot}, step {step}"
            )


def test_a_slot_forgets(drawer, stove):
    policy = LiberoExpert()
    for _, actions, episode, seen in (stove, drawer):
        policy.begin_episode(0, episode)
        first = policy.predict([0], stack_observations([seen[0]]))[0, 0]
        assert np.array_equal(first, actions[0])
        policy.end_episode(0)


def test_needs_the_truth():
    task = config_of("libero_goal", [7]).tasks()[0]
    with pytest.raises(ValueError, match="privileged=True"):
        LiberoExpert().begin_episode(0, Episode(EpisodeSpec(task.suite, 7, 0, 0, 0), task))
    with pytest.raises(KeyError, match="privileged=True"):
        LiberoExpert().predict([0], {})


def test_needs_relative_actions(drawer):
    episode = drawer[2]
    scene = episode.scene | {"control": episode.scene["control"] | {"mode": "absolute"}}
    with pytest.raises(ValueError, match="control_mode='absolute'"):
        LiberoExpert().begin_episode(0, replace(episode, scene=scene))


def test_refuses_what_it_can_not_do():
    with pytest.raises(ValueError, match="metaworld"):
        LiberoExpert().check_tasks([TaskInfo("metaworld", 0, "push-v3", "")])
    everything = [
        task
        for suite in ("spatial", "object", "goal", "10", "90")
        for task in config_of(f"libero_{suite}").tasks()
    ]
    known = {(task.suite, task.task_id) for task in everything}
    assert len(known) == 130 and set(UNSOLVED) <= known
    assert not any(suite in ("libero_spatial", "libero_object") for suite, _ in UNSOLVED)
    if UNSOLVED:
        with pytest.raises(ValueError, match="no solution") as refusal:
            LiberoExpert().check_tasks(everything)
        for task in everything:
            assert (f"{task.suite} {task.task_id}:" in str(refusal.value)) == (
                (task.suite, task.task_id) in UNSOLVED
            )
        LiberoExpert().check_tasks(
            [task for task in everything if (task.suite, task.task_id) not in UNSOLVED]
        )
        LiberoExpert(attempt_unsolved=True).check_tasks(everything)


def test_found_by_name():
    policy = make_policy("expert", config_of("libero_goal"), attempt_unsolved=True)
    assert (
        isinstance(policy, LiberoExpert)
        and policy.attempt_unsolved
        and set(policy.placements) == {"driver", "worker"}
    )
    assert (
        policy.needs_privileged and not policy.needs_images and policy.spec.build().attempt_unsolved
    )


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("suite", ["libero_spatial", "libero_object"])
def test_95_percent(suite, tmp_path):
    """Initial states 0 to 9 of all ten tasks."""
    from lerobot_nb.evaluation.config import EvalConfig
    from lerobot_nb.evaluation.evaluate import evaluate

    run = evaluate(
        LiberoEnvConfig(task=suite, obs_type="state"),
        "expert",
        EvalConfig(n_episodes=10, batch_size=2),
        output_dir=tmp_path / suite,
    )
    records = run.records()
    assert len(records) == 100 and not any(record.error for record in records)
    assert {record.init_state_id for record in records} == set(range(10))
    failures = [(record.task_id, record.init_state_id) for record in records if not record.success]
    assert len(failures) <= 5, failures
