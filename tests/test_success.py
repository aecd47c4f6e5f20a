"""What counts as success: one reading of every value, equal in `evaluate`, `eval_policy` and `rollout`; and a rate that leaves no failure out."""

import gymnasium
import numpy as np
import pytest
import torch

from lerobot_nb.envs.base import EnvFactory, TaskInfo
from lerobot_nb.envs.success import BenchmarkError, EpisodeSuccess, SuccessAt, read_success
from lerobot_nb.envs.vector import LazyVectorEnv
from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import EvalRun, evaluate
from lerobot_nb.evaluation.rollout import eval_policy, rollout
from lerobot_nb.results.records import read_records
from lerobot_nb.results.run_folder import RunFolderError

VALUES = {
    "true": True,
    "false": False,
    "numpy": np.True_,
    "float": 1.0,
    "zero": np.float32(0),
    "array": np.array([True]),
    "no array": np.array([False]),
    "matrix": np.array([[1.0]]),
    "list": [True],
    "no list": [False],
    "tensor": torch.tensor(True),
    "no tensor": torch.tensor([False]),
    "none": None,
    "share": 0.3,
    "negative": -1,
    "two": 2,
    "nan": float("nan"),
    "text": "False",
    "several": np.array([True, False]),
    "empty": [],
    "dict": {},
}
MEANINGS = {
    "true": True,
    "false": False,
    "numpy": True,
    "float": True,
    "zero": False,
    "array": True,
    "no array": False,
    "matrix": True,
    "list": True,
    "no list": False,
    "tensor": True,
    "no tensor": False,
    "none": None,
}
UNCLEAR = [name for name in VALUES if name not in MEANINGS]


class Reporting(gymnasium.Env):
    """Five steps an episode. What the steps report: `at_steps` {step: name of a value}, `at_reset`
    in the info of reset. The seeds in `seeds` have reports, the others are silent.

    kept: one info dictionary for the whole life of the environment. key: where it is reported.
    """

    metadata, render_mode = {"render_modes": [], "render_fps": 10}, None
    observation_space = gymnasium.spaces.Dict(
        {"agent_pos": gymnasium.spaces.Box(-10, 10, (1,), np.float32)}
    )
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    lazy, task, task_description, max_episode_steps = True, "report", "report", 5

    def __init__(
        self,
        at_steps=None,
        at_reset=None,
        seeds=None,
        kept=False,
        key="is_success",
        render_mode=None,
        log=None,
    ):
        self.at_steps, self.at_reset, self.seeds, self.key, self.log = (
            {int(step): name for step, name in (at_steps or {}).items()},
            at_reset,
            seeds,
            key,
            log,
        )
        self.info = {} if kept else None

    def _info(self, name):
        info = self.info if self.info is not None else {}
        if name is not None and (self.seeds is None or self.seed in self.seeds):
            info[self.key] = VALUES[name]
        return info

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.n = seed, 0
        if self.log is not None:
            with open(self.log, "a") as file:
                file.write(f"{seed}\n")
        return {"agent_pos": np.zeros(1, np.float32)}, self._info(self.at_reset)

    def step(self, action, observe=True):
        self.n += 1
        return (
            {"agent_pos": np.zeros(1, np.float32)},
            1.0,
            False,
            self.n == 5,
            self._info(self.at_steps.get(self.n)),
        )


def envs(n_envs=1, n_tasks=1, **kwargs):
    return {
        "reporting": {
            task_id: LazyVectorEnv(
                EnvFactory("test_success:Reporting", kwargs),
                n_envs,
                task=TaskInfo("reporting", task_id, "report", "report", max_episode_steps=5),
            )
            for task_id in range(n_tasks)
        }
    }


def ran(tmp_path, n_episodes=1, policy="zero", config=(), **kwargs):
    """A run in this process, and its records as they are on disk."""
    config = EvalConfig(
        n_episodes, use_async_envs=False, seed=0, max_error_rate=1.0, **dict(config)
    )
    run = evaluate(envs(**kwargs), policy, config, output_dir=tmp_path / "run")
    return run, sorted(
        read_records(tmp_path / "run" / "episodes.jsonl"), key=lambda record: record.key
    )


# the values


@pytest.mark.parametrize("name", MEANINGS)
@pytest.mark.parametrize("key", ["is_success", "success"])
def test_each_value_has_one_meaning_everywhere(tmp_path, name, key):
    meaning, everywhere = MEANINGS[name], {"at_steps": {3: name}, "key": key}
    assert read_success({key: VALUES[name]}) is meaning
    run, (record,) = ran(tmp_path, **everywhere)
    assert record.success is meaning and record.end_reason == (
        "success" if meaning else "time_limit"
    )
    assert (record.success_step, record.n_success_steps, record.success_at_end) == (
        (3, 1, False)
        if meaning
        else (None, None if meaning is None else 0, None if meaning is None else False)
    )
    vector = envs(**everywhere)["reporting"][0]
    summary = eval_policy(vector, "zero", 1, config=EvalConfig(1, use_async_envs=False))
    assert summary["per_episode"][0]["success"] is meaning
    assert (
        summary["aggregated"]["pc_success"]
        == run.eval_info["overall"]["pc_success"]
        == (None if meaning is None else 100.0 * meaning)
    )
    assert rollout(vector, "zero")["success"].tolist() == [
        [False, False, bool(meaning), False, False]
    ]
    vector.close()


@pytest.mark.parametrize("name", UNCLEAR)
@pytest.mark.parametrize("placement", ["worker", "driver"])
def test_a_value_without_a_clear_meaning_is_named_and_not_tried_again(tmp_path, name, placement):
    with pytest.raises(BenchmarkError, match="info\\['is_success'\\] is "):
        read_success({"is_success": VALUES[name]})
    run, (record,) = ran(
        tmp_path,
        policy="zero",
        config={"placement": placement},
        at_steps={3: name},
        log=str(tmp_path / "resets"),
    )
    assert (record.end_reason, record.success, record.attempt) == ("error", None, 1)
    assert "info['is_success'] is " in record.error and type(VALUES[name]).__name__ in record.error
    assert (tmp_path / "resets").read_text().split() == ["0"]
    assert (
        run.eval_info["overall"]["pc_success"] is None and run.eval_info["overall"]["n_errors"] == 1
    )
    with pytest.raises(BenchmarkError, match="is_success"):
        rollout(envs(at_steps={3: name})["reporting"][0], "zero")


def test_a_worker_that_reports_nonsense_is_not_asked_three_times(tmp_path):
    run = evaluate(
        envs(at_steps={2: "text"}, log=str(tmp_path / "resets")),
        "zero",
        EvalConfig(1, seed=0, max_error_rate=1.0),
        output_dir=tmp_path / "run",
    )
    (record,) = run.records()
    assert (
        record.end_reason == "error"
        and "'False'" in record.error
        and (tmp_path / "resets").read_text().split() == ["0"]
    )


# the reset, and infos that live on


def test_success_in_the_info_of_reset_does_not_count(tmp_path):
    at_steps = {step: "false" for step in range(1, 6)}
    run, (record,) = ran(tmp_path, at_reset="true", at_steps=at_steps)
    assert (record.success, record.end_reason, record.n_success_steps) == (False, "time_limit", 0)
    vector = envs(at_reset="true", at_steps=at_steps)["reporting"][0]
    assert not rollout(vector, "zero")["success"].any()
    assert (
        eval_policy(vector, "zero", 1, config=EvalConfig(1, use_async_envs=False))["aggregated"][
            "pc_success"
        ]
        == 0.0
    )


def test_a_kept_info_gives_the_same_records_from_fresh_and_used_environments(tmp_path):
    """Seed 0 succeeds at its end; the dictionary keeps that, and its `reset` hands it out again.
    Steps say what is true.
    """
    at_steps = {step: "true" if step == 5 else "false" for step in range(1, 6)}
    used, together = ran(tmp_path / "one", n_episodes=4, kept=True, at_steps=at_steps)
    for index, record in enumerate(together):
        _, (fresh,) = ran(tmp_path / f"fresh{index}", kept=True, at_steps=at_steps)
        assert (
            (record.success, record.success_step, record.n_success_steps)
            == (fresh.success, fresh.success_step, fresh.n_success_steps)
            == (True, 5, 1)
        )


def test_the_success_of_the_episode_before_is_never_one_of_this_episode(tmp_path):
    """A dictionary that is never cleared: after the first success every step of every episode would
    be one.
    """
    run, records = ran(tmp_path, n_episodes=3, kept=True, at_steps={4: "true"}, seeds=[0])
    assert records[0].success is True
    assert [record.end_reason for record in records[1:]] == [
        "error",
        "error",
    ] and "episode before" in records[1].error
    assert (run.eval_info["overall"]["n_success"], run.eval_info["overall"]["n_judged"]) == (1, 1)
    vector = envs(kept=True, at_steps={4: "true"})["reporting"][0]
    assert rollout(vector, "zero", seeds=[0])["success"].any()
    with pytest.raises(BenchmarkError, match="episode before"):
        rollout(vector, "zero", seeds=[1])
    vector.close()


# where success can be lost again


def test_success_at_the_end_and_at_any_step(tmp_path):
    at_steps = {1: "false", 2: "true", 3: "true", 4: "false", 5: "false"}
    ever, (first,) = ran(tmp_path / "ever", at_steps=at_steps)
    end, (second,) = ran(tmp_path / "end", at_steps=at_steps, config={"success_at": "end"})
    assert (
        first.success,
        first.success_step,
        first.n_success_steps,
        first.success_at_end,
        first.end_reason,
    ) == (True, 2, 2, False, "success")
    assert (
        second.success,
        second.success_step,
        second.n_success_steps,
        second.success_at_end,
        second.end_reason,
    ) == (False, 2, 2, False, "time_limit")
    assert (
        ever.manifest["protocol"]["success_at"] == "ever"
        and end.manifest["protocol"]["success_at"] == "end"
    )
    assert (
        end.eval_info["overall"]["pc_success"] == 0.0
        and ever.eval_info["overall"]["pc_success"] == 100.0
    )
    with pytest.raises(RunFolderError, match="protocol.success_at"):
        evaluate(
            envs(at_steps=at_steps),
            "zero",
            EvalConfig(1, use_async_envs=False, seed=0),
            output_dir=tmp_path / "end" / "run",
            resume=True,
        )
    summary = eval_policy(
        envs(at_steps=at_steps)["reporting"][0],
        "zero",
        1,
        config=EvalConfig(1, use_async_envs=False, success_at="end"),
    )
    assert summary["per_episode"][0]["success"] is False


def test_success_at_takes_two_words():
    with pytest.raises(ValueError, match="success_at.*'sometimes'"):
        EvalConfig(1, success_at="sometimes")
    assert EpisodeSuccess({}, SuccessAt("end")).success is None


# the count


def test_failures_that_report_nothing_are_in_every_number(tmp_path, caplog):
    run, records = ran(tmp_path, n_episodes=10, at_steps={5: "true"}, seeds=[1, 4, 8])
    assert [record.success for record in records] == [
        True if seed in (1, 4, 8) else None for seed in range(10)
    ]
    overall = run.eval_info["overall"]
    assert (
        overall["n_success"],
        overall["n_judged"],
        overall["n_unreported"],
        overall["pc_success"],
    ) == (3, 10, 7, 30.0)
    assert [record.success for record in run.records()] == [
        seed in (1, 4, 8) for seed in range(10)
    ] and "3 successes in 10 episodes" in repr(run)
    told = [
        warning
        for warning in EvalRun.load(run.folder).manifest["warnings"]
        if "reported neither success nor failure" in warning
    ]
    assert len(told) == 1 and "7 of 10" in told[0]
    assert (
        sum(
            "reported neither success nor failure" in record.getMessage()
            for record in caplog.records
        )
        == 1
    )
    summary = eval_policy(
        envs(at_steps={5: "true"}, seeds=[1, 4, 8])["reporting"][0],
        "zero",
        10,
        start_seed=0,
        config=EvalConfig(1, use_async_envs=False),
    )
    assert summary["aggregated"]["pc_success"] == 30.0 and [
        one["success"] for one in summary["per_episode"]
    ] == [seed in (1, 4, 8) for seed in range(10)]


def test_nothing_is_said_where_nothing_reports_success(tmp_path):
    run, _ = ran(tmp_path, n_episodes=3)
    overall = run.eval_info["overall"]
    assert (
        overall["pc_success"],
        overall["pc_success_ci"],
        overall["n_success"],
        overall["n_judged"],
        overall["n_evaluated"],
    ) == (None, None, None, 0, 3)
    assert "success" not in repr(run) and not run.manifest["warnings"]
