"""The list of failed episodes is the same in Python, in the browser, on the command line and on the page; so is a record's name."""

import json

import pytest

from lerobot_nb import EpisodeBrowser, EpisodeRecord, EpisodeSpec, Report
from lerobot_nb.cli import main
from lerobot_nb.envs.base import EnvFactory, TaskInfo
from lerobot_nb.evaluation.episode import EpisodeJob
from lerobot_nb.results.eval_info import build_eval_info
from lerobot_nb.results.html_report import write_html_report
from lerobot_nb.results.outcomes import EndReason, Outcome
from lerobot_nb.results.records import append_record, judged_records


@pytest.fixture
def folder(tmp_path):
    """Of two tasks: one that reports success, and one that has none."""
    manifest = json.loads(json.dumps(MANIFEST))
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    for record in RECORDS:
        append_record(tmp_path / "episodes.jsonl", record)
    return tmp_path


def record(task_id, index, success, reason, **more):
    return EpisodeRecord(
        "mt",
        task_id,
        f"task {task_id}",
        "",
        index,
        index,
        success=success,
        end_reason=reason,
        **more,
    )


RECORDS = [
    record(0, 0, True, "success", n_steps=3),
    record(0, 1, False, "time_limit", n_steps=9),
    record(0, 2, None, "time_limit", n_steps=9),  # a failure: its task reports success
    record(0, 3, None, "error", error="RuntimeError: gone"),
    record(1, 0, None, "time_limit", n_steps=9),  # not judged
]
MANIFEST = {
    "written_by": "lerobot_nb",
    "version": 2,
    "status": "finished",
    "reason": None,
    "started": "2026-12-01T10:00:00+01:00",
    "ended": "2026-12-01T10:01:00+01:00",
    "command": "lerobot-nb eval",
    "benchmark": "mt",
    "env_config": None,
    "protocol": None,
    "plan": {
        "n_episodes": 4,
        "seed": 0,
        "tasks": [["mt", 0, "task 0", 9, None], ["mt", 1, "task 1", 9, None]],
    },
    "eval_config": {},
    "policy": {"name": "mine"},
    "policy_request": None,
    "runner": None,
    "times": None,
    "gl": None,
    "packages": {},
    "machine": {},
    "git_commit": None,
    "warnings": [],
    "sessions": [],
}


def test_four_lists_of_failed_episodes_are_one(folder, capsys):
    failed = Report(folder).failed_episodes()
    names = [one.record.episode for one in failed]
    assert names == ["mt/0/1", "mt/0/2", "mt/0/3"]
    assert [one.counts_as for one in failed] == [Outcome.FAILURE, Outcome.FAILURE, Outcome.ERROR]
    # as judged
    judged = judged_records(Report(folder).records())
    assert names == [
        one.episode for one in judged if one.success is False or one.end_reason == "error"
    ]
    # as filtered
    browser = EpisodeBrowser(folder, static=True)
    shown = browser.filter(outcome="failure") + browser.filter(outcome="error")
    assert [one.episode for one in shown] == names
    # as printed
    assert main(["failures", str(folder), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["episode"] for row in rows] == names
    assert [row["command"] for row in rows] == [one.command for one in failed]
    # as on the page, and as counted
    page = write_html_report(folder, folder / "report.html").read_text()
    assert f"<summary>{len(names)} episodes</summary>" in page
    overall = build_eval_info(RECORDS)["overall"]
    assert overall["n_judged"] - overall["n_success"] + overall["n_errors"] == len(names)


def test_only_errors(folder):
    (error,) = Report(folder).failed_episodes(errors_only=True)
    assert error.record.episode == "mt/0/3" and error.command.endswith("--episode mt/0/3")


def test_the_record_of_a_lost_episode_says_which_it_is():
    """Built in one place with those of finished ones, so that no field is forgotten in one of them."""
    spec = EpisodeSpec("mt", 1, 2, seed=1002, init_state_id=7)
    task = TaskInfo("mt", 1, "push-v3", "push the puck")
    job = EpisodeJob(spec, task, EnvFactory("gymnasium:make", {"id": "CartPole-v1"}), attempt=3)
    lost = job.error_record("RuntimeError: gone")
    assert lost.episode == str(spec) == "mt/1/2" and lost.attempt == 3
    assert (lost.task, lost.task_description, lost.seed, lost.init_state_id) == (
        "push-v3",
        "push the puck",
        1002,
        7,
    )
    assert lost.end_reason is EndReason.ERROR and lost.error == "RuntimeError: gone"
    assert lost.success is None and lost.n_steps == 0 and lost.sum_reward is None
