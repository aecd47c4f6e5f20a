"""What changes the episodes themselves is settled when a run starts: resume, merge and compare refuse another value, and name the field."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lerobot_nb.envs.config import make_env_config
from lerobot_nb.evaluation.benchmark import make_benchmark
from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import evaluate
from lerobot_nb.evaluation.plan import Plan
from lerobot_nb.evaluation.sessions import continued_manifest
from lerobot_nb.policies.factory import make_policy
from lerobot_nb.results.comparison import ProtocolMismatchError, compare_runs
from lerobot_nb.results.manifest import MOST_EPISODES
from lerobot_nb.results.merging import merge_runs
from lerobot_nb.results.records import write_json_atomic
from lerobot_nb.results.run_folder import RunFolder, RunFolderError

OLD = Path(__file__).parent / "data" / "runs_of_0_1_0"


def written(folder, config, eval_config, *, success=True):
    """A finished run of two episodes a task, without a simulator."""
    from lerobot_nb.results.outcomes import EndReason
    from lerobot_nb.results.records import EpisodeRecord, append_record

    benchmark = make_benchmark(config, make_policy("zero", config), False)
    plan = Plan(benchmark.tasks, eval_config.n_episodes, eval_config.seed)
    old = json.loads((OLD / "gym_finished" / "run.json").read_text())
    manifest = old | {
        "version": 2,
        "benchmark": benchmark.name,
        "env_config": config.to_dict(),
        "protocol": benchmark.protocol(eval_config),
        "plan": plan.identity(),
        "eval_config": eval_config.to_dict(),
        "policy": {"name": "zero"},
        "policy_request": {"policy": "zero", "kwargs": {}},
        "packages": {},
    }
    folder.mkdir(parents=True)
    write_json_atomic(folder / "run.json", manifest)
    for spec in plan:
        append_record(
            folder / "episodes.jsonl",
            EpisodeRecord(
                spec.suite,
                spec.task_id,
                "task",
                "told",
                spec.episode_index,
                spec.seed,
                spec.init_state_id,
                success,
                n_steps=5,
                sum_reward=1.0,
                end_reason=EndReason.SUCCESS if success else EndReason.TIME_LIMIT,
            ),
        )
    return folder, manifest


# benchmark, what is changed, what the refusals name; None: that is no difference to a comparison
CHANGES = [
    ("libero", {"init_state_ids": "0-4"}, {}, "init_state_ids"),
    ("libero", {"init_state_ids": [0, 2]}, {}, "init_state_ids"),
    ("libero", {}, {"success_at": "end"}, "success_at"),
    ("metaworld", {}, {"success_at": "end"}, "success_at"),
    ("gym", {}, {"success_at": "end"}, "success_at"),
    ("metaworld", {}, {"clip_actions": True}, "clip_actions"),
    ("libero", {}, {"clip_actions": True}, "clip_actions"),
    ("libero", {"episode_length": 7}, {}, "time limit|episode_length"),
    ("metaworld", {"episode_length": 7}, {}, "episode_length|time limit"),
    ("gym", {"gym_kwargs": {"sutton_barto_reward": True}}, {}, "sutton_barto_reward"),
    ("libero", {"init_states": False}, {}, "initial_states|init_states"),
    ("libero", {"control_mode": "absolute"}, {}, "control_mode"),
    ("libero", {"observation_height": 64, "observation_width": 64}, {}, "observation_height"),
    ("metaworld", {"observation_height": 64, "observation_width": 64}, {}, "observation_height"),
    ("metaworld", {"privileged": True}, {}, "privileged"),
]
BASE = {
    "libero": {"task": "libero_spatial", "task_ids": [0, 1]},
    "metaworld": {"task": "reach-v3,push-v3"},
    "gym": {"task": "CartPole-v1"},
}
SEEN = ("observation_height", "privileged")  # part of the policy: a comparison only mentions it


@pytest.mark.parametrize("benchmark, fields, how, words", CHANGES)
def test_another_value_is_refused_by_name(benchmark, fields, how, words, tmp_path):
    pytest.importorskip(
        {"libero": "libero", "metaworld": "metaworld", "gym": "gymnasium"}[benchmark]
    )
    config, changed = (
        make_env_config(benchmark, **BASE[benchmark], **more) for more in ({}, fields)
    )
    eval_config = EvalConfig(2)
    a, _ = written(tmp_path / "a", config, eval_config)
    b, other = written(tmp_path / "b", changed, dataclasses.replace(eval_config, **how))
    for one, manifest in ((a, other), (b, json.loads((a / "run.json").read_text()))):
        before = (one / "run.json").read_bytes()
        with pytest.raises(RunFolderError, match=f"started differently(.|\n)*({words})"):
            continued_manifest(RunFolder(one), dict(manifest))
        assert (one / "run.json").read_bytes() == before
    with pytest.raises(ProtocolMismatchError, match=words):
        merge_runs([a, b], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    for pair in ([a, b], [b, a]):
        if words in SEEN:
            (comparison,) = compare_runs(pair).pairs
            assert words in "\n".join(notes(comparison))
        else:
            with pytest.raises(ProtocolMismatchError, match=words):
                compare_runs(pair)


def notes(comparison):
    from lerobot_nb.results.comparison import comparison_text

    return [line for line in comparison_text(comparison).splitlines() if "note:" in line]


def test_the_same_settings_are_not_refused(tmp_path):
    pytest.importorskip("libero")
    parts = [
        written(
            tmp_path / str(task_id),
            make_env_config(
                "libero", task="libero_spatial", task_ids=task_id, init_state_ids="30-34"
            ),
            EvalConfig(2),
        )[0]
        for task_id in (0, 1)
    ]
    merged = merge_runs(parts, tmp_path / "merged")
    plan = RunFolder(merged).manifest()["plan"]
    assert plan["init_state_ids"] == [list(range(30, 35))] * 2 and len(plan["tasks"]) == 2
    whole, _ = written(
        tmp_path / "whole",
        make_env_config("libero", task="libero_spatial", task_ids=[0, 1], init_state_ids="30-34"),
        EvalConfig(2),
        success=False,
    )
    (comparison,) = compare_runs([merged, whole]).pairs
    assert comparison.counts.n_pairs == 4 and not comparison.differing_protocol


def test_a_run_from_chosen_initial_states_resumes(tmp_path):
    """In the simulator."""
    pytest.importorskip("libero")
    config = make_env_config(
        "libero",
        task="libero_object",
        task_ids=0,
        obs_type="state",
        episode_length=2,
        init_state_ids=[30, 31],
    )
    eval_config = EvalConfig(2, use_async_envs=False)
    run = evaluate(config, "zero", eval_config, output_dir=tmp_path / "run")
    assert [record.init_state_id for record in run.records()] == [30, 31]
    (run.folder / "episodes.jsonl").write_text(
        (run.folder / "episodes.jsonl").read_text().splitlines(keepends=True)[0]
    )
    for other in ([30, 32], [30, 31, 32], None):
        with pytest.raises(RunFolderError, match="init_state_ids"):
            evaluate(
                dataclasses.replace(config, init_state_ids=other),
                "zero",
                eval_config,
                output_dir=run.folder,
                resume=True,
            )
    again = evaluate(config, "zero", eval_config, output_dir=run.folder, resume=True)
    assert [record.init_state_id for record in again.records()] == [30, 31]


NO_PART_IN_RESULTS = {
    "batch_size", "use_async_envs", "placement", "record", "render", "policy_timeout_s", "n_episodes_to_render", "n_spare", "max_batch",
    "max_wait_s", "max_retries", "max_error_rate", "start_timeout_s", "reset_timeout_s", "step_timeout_s",
}  # fmt: skip


def test_every_setting_of_an_evaluation_is_settled_or_has_no_part_in_results():
    """A new field of EvalConfig belongs in the plan, in the protocol, or in the list above. Only
    `stop_when` has a check of its own when a run is resumed.
    """
    config = make_env_config("gym", task="CartPole-v1")
    benchmark = make_benchmark(config, make_policy("zero", config), False)
    settled = {
        *benchmark.protocol(EvalConfig(2, clip_actions=True)),
        *Plan(benchmark.tasks, 2, 1000).identity(),
    }
    names = {field.name for field in dataclasses.fields(EvalConfig)}
    assert names - settled - {"stop_when"} == NO_PART_IN_RESULTS


# plans that are too large to count


@settings(max_examples=30, deadline=None)
@given(st.integers(max_value=0) | st.integers(min_value=MOST_EPISODES + 1))
def test_an_impossible_number_of_episodes_is_said_at_once(n_episodes):
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "run")
        shutil.copytree(OLD / "gym_finished", folder)
        manifest = json.loads((folder / "run.json").read_text())
        manifest["plan"]["n_episodes"] = n_episodes
        (folder / "run.json").write_text(json.dumps(manifest))
        for ask in (
            lambda: compare_runs([OLD / "gym_finished", folder]),
            lambda: merge_runs([OLD / "gym_finished", folder], Path(scratch, "merged")),
        ):
            with pytest.raises(RunFolderError, match=r"run\.json.*plan\.n_episodes"):
                ask()


def test_a_plan_of_too_many_episodes_is_refused_before_anything_runs(tmp_path):
    from lerobot_nb.cli import main

    config = make_env_config("gym", task="CartPole-v1")
    with pytest.raises(ValueError, match=f"at most {MOST_EPISODES}"):
        evaluate(config, "random", EvalConfig(2 * MOST_EPISODES), output_dir=tmp_path / "run")
    words = f"eval --benchmark gym --task CartPole-v1 --n_episodes 2000000000 --policy random --output_dir {tmp_path / 'run'}"
    assert main(words.split()) == 2 and not (tmp_path / "run").exists()
