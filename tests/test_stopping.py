"""A running evaluation stops when its question is settled, and in the same place however it is run."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from synthetic import synthetic_envs

from lerobot_nb import make_env, make_env_config
from lerobot_nb.cli import main
from lerobot_nb.envs.base import TaskInfo
from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import EvalRun, evaluate
from lerobot_nb.evaluation.plan import Plan
from lerobot_nb.evaluation.rollout import eval_policy_all
from lerobot_nb.evaluation.schedule import RoundSchedule
from lerobot_nb.policies.base import PolicySpec
from lerobot_nb.results.comparison import (
    ProtocolMismatchError,
    RunOutcomes,
    compare_runs,
    comparison_text,
)
from lerobot_nb.results.metrics import collect_metrics
from lerobot_nb.results.records import same_episode
from lerobot_nb.results.report import Report
from lerobot_nb.results.run_folder import RunFolder, RunFolderError
from lerobot_nb.results.sequential import compare_sequentially, confidence_sequence
from lerobot_nb.results.stopping import looks
from lerobot_nb.training.demonstrations import record_demonstrations


def noisy(**kwargs):
    return PolicySpec("synthetic:Noisy", kwargs).build()


def run(folder, stop_when="width:45", n_episodes=40, policy=None, resume=False, **config):
    config = {"use_async_envs": False, "batch_size": 1} | config
    return evaluate(
        synthetic_envs(),
        policy if policy is not None else noisy(),
        EvalConfig(n_episodes, stop_when=stop_when, **config),
        output_dir=folder,
        resume=resume,
    )


def assert_same(a, b):
    for x, y in zip(a.records(), b.records(), strict=True):
        assert same_episode(x, y) == []
    assert (a.status, a.reason, a.manifest["stopping"]) == (
        b.status,
        b.reason,
        b.manifest["stopping"],
    )
    for part in ("per_group", "stopping"):
        assert a.eval_info[part] == b.eval_info[part]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The whole plan, without a rule."""
    return run(tmp_path_factory.mktemp("whole") / "run", stop_when=None)


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    """The plainest run with a rule: one slot, in this process."""
    return run(tmp_path_factory.mktemp("settled") / "run")


def test_it_stops_where_the_whole_run_says(whole, settled):
    """Two ways to the same answer: the first episodes of a whole run, and a run that stops."""
    records = whole.records()
    stop = next(
        end
        for end in looks(3, 40)
        if (lambda ends: 100 * (ends[1] - ends[0]) <= 45)(
            confidence_sequence(
                sum(bool(one.success) for one in records if one.episode_index < end), 3 * end
            )
        )
    )
    assert settled.status == "settled" and settled.exit_code == 0 and stop < 40
    assert len(settled.records()) == 3 * stop == settled.eval_info["overall"]["n_episodes"]
    first = [one for one in records if one.episode_index < stop]
    assert all(same_episode(x, y) == [] for x, y in zip(settled.records(), first, strict=True))


@pytest.mark.parametrize(
    "how",
    [
        dict(batch_size=4),
        dict(batch_size=4, use_async_envs=True, placement="worker"),
        dict(batch_size=4, use_async_envs=True, placement="driver", n_spare=2),
        dict(batch_size=7, use_async_envs=True, placement="driver", max_batch=3),
        dict(batch_size=1, use_async_envs=True),
    ],
)
def test_where_it_stops_does_not_depend_on_how_it_is_run(settled, tmp_path, how):
    assert_same(run(tmp_path / "run", **how), settled)


@pytest.mark.parametrize("keep", [0, 1, 7, 20])
def test_an_interrupted_run_stops_in_the_same_place(settled, tmp_path, keep):
    """Resumed after some episodes, among them some of rounds that will not be needed."""
    run(tmp_path / "run", stop_when=None, n_episodes=40, batch_size=4)
    folder = RunFolder(tmp_path / "run")
    lines = folder.episodes_path.read_text().splitlines(keepends=True)
    order = sorted(lines, key=lambda line: json.loads(line)["episode_index"])
    n_kept = len(settled.records())
    # not whole: what is missing is spread, and a later round is there
    chosen = (order[:n_kept:2] + order[n_kept : n_kept + 3])[:keep]
    folder.episodes_path.write_text("".join(chosen))
    manifest = json.loads(folder.manifest_path.read_text())
    manifest |= {
        "status": "interrupted",
        "stopping": {"rule": "width:45", "reference": None, "state": None},
    }
    folder.manifest_path.write_text(json.dumps(manifest))
    assert_same(run(tmp_path / "run", resume=True, batch_size=3), settled)
    # the videos and lines of later rounds are gone from the file too
    assert (
        max(one.episode_index for one in folder.every_record())
        < settled.eval_info["stopping"]["n_rounds"]
    )


def test_ctrl_c_and_resume(settled, tmp_path):
    """A real process, killed in the middle; two processes give what one gives."""
    code = f"""
        import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
        from synthetic import synthetic_envs
        from lerobot_nb.evaluation.config import EvalConfig
        from lerobot_nb.evaluation.evaluate import evaluate
        from lerobot_nb.policies.base import PolicySpec
        if __name__ == "__main__":
            evaluate(synthetic_envs(step_s=0.02), PolicySpec("synthetic:Noisy", {{}}).build(),
                     EvalConfig(40, batch_size=3, stop_when="width:45"), output_dir={str(tmp_path / "run")!r})
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stderr=subprocess.DEVNULL
    )
    path = tmp_path / "run/episodes.jsonl"
    while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < 4):
        pass
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    assert EvalRun.load(tmp_path / "run").status == "interrupted"
    assert_same(run(tmp_path / "run", resume=True), settled)


def test_a_settled_run_is_complete(settled, tmp_path, capsys):
    """Resuming runs nothing; without the rule the rest of the plan runs."""
    first = run(tmp_path / "run", batch_size=2)
    again = run(tmp_path / "run", resume=True)
    assert_same(again, first)
    assert again.manifest["sessions"][-1]["times"]["n_steps"] == 0
    rest = run(tmp_path / "run", stop_when=None, resume=True)
    assert rest.status == "finished" and len(rest.records()) == 120
    assert rest.manifest.get("stopping") is None and "stopping" not in rest.eval_info


def test_another_rule_is_only_taken_where_nothing_is_lost(settled, whole, tmp_path):
    n_first = len(run(tmp_path / "run").records())
    with pytest.raises(RunFolderError, match="width:45.*width:60.*stop_when=None"):
        run(tmp_path / "run", stop_when="width:60", resume=True)
    stricter = run(tmp_path / "run", stop_when="width:38", resume=True)
    assert stricter.status == "settled" and 120 > len(stricter.records()) > n_first
    assert_same(stricter, run(tmp_path / "fresh", stop_when="width:38"))
    run(tmp_path / "plain", stop_when=None, n_episodes=40)
    with pytest.raises(RunFolderError, match="started without stop_when"):
        run(tmp_path / "plain", stop_when="width:45", resume=True)
    assert len(EvalRun.load(tmp_path / "plain").records()) == 120


def test_against_another_run(whole, tmp_path):
    """The same answer as `compare_sequentially` over the two whole runs."""
    worse = run(tmp_path / "worse", stop_when=None)
    path = RunFolder(worse.folder).episodes_path
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:  # as if it had failed in all but every sixth episode
        if line["episode_index"] % 6:
            line |= {"success": False, "end_reason": "time_limit"}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rule = f"against:{worse.folder}"
    ours = run(tmp_path / "ours", stop_when=rule, batch_size=4)
    a, b = RunOutcomes.load(worse.folder), RunOutcomes.load(whole.folder)
    rounds = [
        [(a.success[spec], b.success[spec]) for spec in sorted(a.success) if spec[2] == number]
        for number in range(40)
    ]
    state = ours.manifest["stopping"]["state"]
    stop = next(
        (end for end in looks(3, 40) if compare_sequentially(rounds[:end]).winner is not None), 40
    )
    assert state["n_rounds"] == stop and len(ours.records()) == 3 * stop
    assert state["settled"] == (compare_sequentially(rounds[:stop]).winner is not None)
    assert state["settled"], state["reason"]
    assert "this run succeeds" in ours.reason and str(worse.folder) in ours.reason
    # resumed without the other run: its outcomes are in run.json
    worse.folder.rename(tmp_path / "moved")
    assert_same(run(tmp_path / "ours", stop_when=rule, resume=True), ours)


def test_against_itself_never_stops(whole, tmp_path):
    ours = run(tmp_path / "run", stop_when=f"against:{whole.folder}")
    assert ours.status == "finished" and ours.reason is None and len(ours.records()) == 120
    state = ours.eval_info["stopping"]
    assert not state["settled"] and "can't be told apart" in state["reason"]


def test_what_can_not_stop_is_refused(whole, tmp_path):
    for rule, n_episodes, message in (
        ("width:10", 5, "can't stop a run of 5 episodes of 3 tasks.*n_episodes="),
        ("rate:80", 1, "can't stop a run of 1 episode of 3 tasks"),
        ("wide:10", 40, "'wide:10' is not a rule; write width:10"),
        ("width:0", 40, "between 0 and 100"),
        (f"against:{whole.folder}", 2, "too few of them"),
    ):
        with pytest.raises(ValueError, match=message):
            run(tmp_path / "run", stop_when=rule, n_episodes=n_episodes)
    with pytest.raises(RunFolderError, match="nowhere"):
        run(tmp_path / "run", stop_when=f"against:{tmp_path / 'nowhere'}")
    with pytest.raises(ValueError, match="no whole round"):
        run(tmp_path / "run", stop_when=f"against:{whole.folder}", seed=5)
    with pytest.raises(ProtocolMismatchError, match="success_at"):
        run(tmp_path / "run", stop_when=f"against:{whole.folder}", success_at="end")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("setting", [{"stop_when": "width:45"}, {"record": "all"}])
def test_what_only_evaluate_does_is_refused_elsewhere(setting, tmp_path):
    """Instead of being passed over without a word; before anything runs or is written."""
    config = EvalConfig(40, use_async_envs=False, **setting)
    env = make_env_config("gym", task="CartPole-v1")
    ((name, value),) = setting.items()
    said = f"{name}='{value}' is for evaluate"
    with pytest.raises(ValueError, match=said):
        eval_policy_all(make_env(env), "random", n_episodes=40, config=config)
    with pytest.raises(ValueError, match=said):
        record_demonstrations(env, tmp_path / "data", "random", n_episodes=2, config=config)
    assert not (tmp_path / "data").exists()


def test_an_error_leaves_its_round_out(settled, tmp_path):
    """Episode 1002 of every task ends in an error."""
    ours = evaluate(
        synthetic_envs(fault="raise", fault_seed=1002),
        noisy(),
        EvalConfig(
            40,
            stop_when="width:45",
            use_async_envs=False,
            batch_size=1,
            max_retries=0,
            max_error_rate=0.2,
        ),
        output_dir=tmp_path / "run",
    )
    state = ours.eval_info["stopping"]
    assert ours.status == "settled" and state["n_rounds_used"] == state["n_rounds"] - 1
    assert ours.eval_info["overall"]["n_errors"] == 3
    assert (
        state["n_judged"] == 3 * state["n_rounds_used"]
        and "1 of them without a verdict" in ours.reason
    )


def test_it_is_said_everywhere(settled, whole, tmp_path):
    state = settled.eval_info["stopping"]
    low, high = state["pc_success_cs"]
    assert high - low <= 45 and settled.reason == state["reason"]
    said = Report(settled.folder).text()
    assert "Settled (width:45)" in said and f"{low:.1f} – {high:.1f} %" in said
    assert "fixed beforehand" in said
    metrics, warnings, problem = collect_metrics(settled.folder)
    assert problem is None and metrics["settled"] == settled.reason
    assert metrics["pc_success_cs"] == [low, high]
    other = collect_metrics(whole.folder)[0]
    assert other["settled"] is None and other["pc_success_cs"] is None
    comparison = compare_runs([whole.folder, settled.folder]).pairs[0]
    assert not comparison.b.missing  # the rest of the plan was not needed
    assert "stopped when its question was settled" in comparison_text(comparison)


def test_watching_a_settled_run(settled, capsys):
    assert main(["watch", str(settled.folder), "--progress", "log"]) == 0
    shown = capsys.readouterr()
    n = len(settled.records())
    assert "settled: the interval" in shown.out and f"{n}/{n} episodes (100 %)" in shown.err


def test_the_progress_ends_at_what_stands(tmp_path, capsys):
    from lerobot_nb.evaluation.progress import LogProgress, TerminalProgress

    for kind in (LogProgress, TerminalProgress):
        progress = kind()
        ours = evaluate(
            synthetic_envs(),
            noisy(),
            EvalConfig(40, batch_size=4, stop_when="width:45", use_async_envs=False),
            output_dir=tmp_path / kind.__name__,
            progress=progress,
        )
        n = len(ours.records())
        assert progress.n_done == progress.n_total == n
        assert progress.counts.n_success == ours.eval_info["overall"]["n_success"]
        shown = capsys.readouterr().err
        assert "settled: the interval" in shown and f"{n}/{n}" in shown


def test_a_block_is_begun_before_the_next(tmp_path):
    plan = Plan((TaskInfo("s", 0, "a", ""), TaskInfo("s", 1, "b", "")), 12)
    schedule = RoundSchedule(plan, looks(2, 12))
    order = [schedule.take(0 if number % 2 else 1) for number in range(24)]
    rounds = [one.episode_index for one in order]
    assert sorted(one.key for one in order) == sorted(one.key for one in plan)
    assert rounds[:8] == [0, 0, 1, 1, 2, 2, 3, 3] and schedule.n_left == 0


def test_command_line(tmp_path, capsys):
    words = ["eval", "--benchmark", "metaworld", "--task", "reach-v3", "--progress", "none"]
    words += ["--render", "none", "--n_episodes", "30", "--batch_size", "2"]
    folder = str(tmp_path / "run")
    assert main([*words, "--stop_when", "width:5", "--output_dir", folder]) == 2
    assert "n_episodes=" in capsys.readouterr().err
    assert main([*words, "--stop_when", "rate:50", "--output_dir", folder]) == 0
    shown = capsys.readouterr()
    assert "Settled (rate:50)" in shown.out and "--stop_when none" in shown.err
    ours = EvalRun.load(folder)
    assert ours.status == "settled" and 5 <= len(ours.records()) < 15
    assert "--stop_when rate:50" in ours.manifest["command"]
    assert main(["eval", "--resume", folder, "--progress", "none"]) == 0
    assert len(EvalRun.load(folder).records()) == len(ours.records())
    assert main(["eval", "--resume", folder, "--progress", "none", "--stop_when", "none"]) == 0
    assert len(EvalRun.load(folder).records()) == 30
    assert EvalRun.load(folder).status == "finished"
