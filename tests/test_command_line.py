"""What every command of `lerobot-nb` has in common: one vocabulary, help for mistyped words, quiet ends."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lerobot_nb.cli import SUBCOMMANDS, main
from lerobot_nb.results.records import EpisodeRecord, append_record


def run(*words, cwd, **options):
    return subprocess.run(
        [sys.executable, "-m", "lerobot_nb.cli", *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def leaves(words, capsys) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `main`."""
    try:
        code = main([str(word) for word in words])
    except SystemExit as stop:
        code = stop.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("command", SUBCOMMANDS)
def test_usage_shows_the_command_as_typed(command, capsys):
    code, out, _ = leaves([command, "--help"], capsys)
    assert code == 0 and out.startswith(f"usage: lerobot-nb {command}"), out[:80]


@pytest.mark.parametrize(
    "words, expected",
    [
        (["evl"], "'eval'"),
        (["taks"], "'tasks'"),
        (["eval", "--n_episode", "3"], "'--n_episodes'"),
        (["eval", "--benchmrk=libero"], "'--benchmark'"),
        (["rerun", "run", "--epsode", "a/0/0"], "'--episode'"),
        (["report", "run", "--markdwn"], "'--markdown'"),
        (["tasks", "--benchmar", "libero"], "'--benchmark'"),
        (["metrics", "run", "--polcy", "x"], "'--policy'"),
        (["describe", "--benchmarks", "metaworld"], "'--benchmark'"),
        (["doctor", "--norender"], "'--no_render'"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_right_one(words, expected, capsys):
    code, _, err = leaves(words, capsys)
    assert code == 2 and f"Did you mean {expected}" in err, err


@pytest.mark.parametrize("option", ["--benchmark", "--env"])
@pytest.mark.parametrize(
    "command",
    [
        ["tasks", "--task", "mt10"],
        ["describe", "--task", "mt10"],
        ["eval", "--task", "no-such-task"],
    ],
)
def test_one_word_for_the_benchmark_and_lerobots_as_well(command, option, capsys):
    code, out, err = leaves([*command, option, "metaworld"], capsys)
    if command[0] == "eval":
        assert code == 2 and "no-such-task" in err
    else:
        assert code == 0 and "push" in out.lower()


def test_output_that_nobody_reads_ends_quietly(tmp_path):
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "lerobot_nb.cli",
            "tasks",
            "--benchmark",
            "libero",
            "--task",
            "spatial,object,goal,10,90",
            "--json",
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()  # as `head` does, once it has seen enough
    stderr = process.stderr.read().decode()
    assert process.wait(60) == 141 and stderr == ""


@pytest.mark.parametrize(
    "words",
    [
        ["eval", "--task", "reach-v3", "--policy", "slow_policy:Policy"],
        ["rerun", "run", "--episode", "gym/0/0", "--trust"],
    ],
)
def test_ctrl_c_before_anything_runs(tmp_path, words):
    (tmp_path / "slow_policy.py").write_text(
        "import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(60)\n"
    )
    if words[0] == "rerun":
        shutil.copytree(Path(__file__).parent / "data/runs_of_0_1_0/gym_finished", tmp_path / "run")
        manifest = (tmp_path / "run" / "run.json").read_text()
        (tmp_path / "run" / "run.json").write_text(
            manifest.replace('"policy": "random"', '"policy": "slow_policy:Policy"')
        )
    process = subprocess.Popen(
        [sys.executable, "-m", "lerobot_nb.cli", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "importing").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in stderr and "interrupted" in stderr, (
        stderr
    )


@pytest.fixture
def mixed(tmp_path):
    """A run folder with a success, a failure, an episode without a report, and an error."""
    folder = tmp_path / "a run"
    folder.mkdir()
    for index, (success, reason, error) in enumerate(
        [
            (True, "success", None),
            (False, "time_limit", None),
            (None, "time_limit", None),
            (None, "error", "RuntimeError: gone"),
        ]
    ):
        append_record(
            folder / "episodes.jsonl",
            EpisodeRecord(
                "mt10",
                3,
                "push-v3",
                "",
                index,
                1000 + index,
                success=success,
                end_reason=reason,
                error=error,
                n_steps=5,
            ),
        )
    return folder


def test_failures_are_listed_with_the_command_that_runs_each_again(mixed, capsys):
    code, out, _ = leaves(["failures", mixed], capsys)
    assert code == 0 and "mt10/3/0" not in out
    for index in (1, 2, 3):  # one without a report is a failure where the others reported
        assert f"lerobot-nb rerun '{mixed}' --episode mt10/3/{index}" in out
    assert "2 failed, 1 ended in an error" in out
    code, out, _ = leaves(["failures", mixed, "--errors", "--json"], capsys)
    (row,) = json.loads(out)
    assert (row["episode"], row["counts_as"]) == (
        "mt10/3/3",
        "error",
    ) and "RuntimeError: gone" in row["outcome"]


def test_failures_of_no_run(tmp_path, capsys):
    code, out, err = leaves(["failures", tmp_path], capsys)
    assert code == 2 and not out and str(tmp_path) in err
