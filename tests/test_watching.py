"""A running evaluation, followed from another process: only the run folder is read."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lerobot_nb.cli import main
from lerobot_nb.evaluation.progress import Progress
from lerobot_nb.evaluation.watching import RecordTail, RunWatch, lock_is_held, watch_run
from lerobot_nb.results.outcomes import EpisodeTally, RunStatus
from lerobot_nb.results.records import EpisodeRecord, append_record, latest_records, read_records
from lerobot_nb.results.run_folder import RunFolder, RunFolderError

OLD = Path(__file__).parent / "data" / "runs_of_0_1_0"


def record(index, **other):
    return EpisodeRecord("suite", 0, "task", "", index, seed=1, n_steps=5, **other)


def started_run(folder, n_episodes):
    """`lerobot-nb eval` in a process of its own, once it has recorded an episode."""
    command = [sys.executable, "-m", "lerobot_nb.cli", "eval", "--benchmark", "metaworld"]
    command += ["--task", "reach-v3", "--n_episodes", str(n_episodes), "--output_dir", str(folder)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    end = time.monotonic() + 120
    while not (folder / "episodes.jsonl").exists():
        assert process.poll() is None and time.monotonic() < end, "the run did not begin"
        time.sleep(0.05)
    return process


def test_a_run_is_followed_until_it_ends(tmp_path, capsys):
    process = started_run(tmp_path / "run", 60)
    try:
        state = RunWatch(tmp_path / "run").look()
        assert state.status is RunStatus.RUNNING and state.held is True and not state.ended
        before = sorted(os.listdir(tmp_path / "run"))
        code = main(["watch", str(tmp_path / "run"), "--interval", "0.1", "--progress", "log"])
    finally:
        process.wait(timeout=120)
    assert code == 0
    output = capsys.readouterr()
    assert "finished: 60 of 60 episodes" in output.out and "60/60" in output.err
    assert set(os.listdir(tmp_path / "run")) - set(before) <= {"eval_info.json"}


def test_a_killed_run_ends_the_watching(tmp_path, capsys):
    process = started_run(tmp_path / "run", 5000)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    end = time.monotonic() + 20  # workers let go of the lock a moment later
    while lock_is_held(tmp_path / "run" / ".lock"):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert RunWatch(tmp_path / "run", patience_s=3600).look().status is RunStatus.RUNNING
    code = main(["watch", str(tmp_path / "run"), "--patience", "0", "--progress", "none"])
    out = capsys.readouterr().out
    assert code == 1 and "killed" in out and "lerobot-nb eval --resume" in out


@pytest.mark.parametrize(
    ("status", "code"), [("finished", 0), ("interrupted", 1), ("stopped", 3), ("running", 1)]
)
def test_exit_codes(tmp_path, status, code):
    shutil.copytree(OLD / "gym_finished", tmp_path / "run")
    manifest = json.loads((tmp_path / "run/run.json").read_text()) | {"status": status}
    (tmp_path / "run/run.json").write_text(json.dumps(manifest))
    words = ["watch", str(tmp_path / "run"), "--progress", "none", "--patience", "0"]
    assert main(words) == code


@pytest.mark.parametrize("name", sorted(path.name for path in OLD.iterdir()))
def test_counts_are_those_of_the_whole_file(name):
    """Two ways to the same numbers: line by line as they come, and all at once."""
    watch = RunWatch(OLD / name, patience_s=0)
    state = watch.look()
    records = latest_records(RunFolder(OLD / name).every_record())
    assert state.tally().counts == EpisodeTally(state.reports_success, records).counts
    assert sorted(state.records) == [one.key for one in records]


def test_only_whole_lines_are_read_however_the_file_is_cut(tmp_path):
    path = tmp_path / "whole.jsonl"
    for index in range(4):
        append_record(path, record(index, error="é\n☃"))
    whole, growing = path.read_bytes(), tmp_path / "episodes.jsonl"
    for cut in range(0, len(whole), 7):
        growing.unlink(missing_ok=True)
        tail, found = RecordTail(tmp_path, growing), []
        for part in (whole[:cut], whole[cut:]):
            with open(growing, "ab") as file:
                file.write(part)
            found += tail.read()[0]
        assert found == list(read_records(path))


def test_an_episode_that_runs_again_counts_once(tmp_path):
    class Kept(Progress):
        starts = 0

        def start(self, *arguments, **named):
            self.starts += 1
            super().start(*arguments, **named)

    shutil.copytree(OLD / "gym_finished", tmp_path / "run")
    manifest_path, episodes = tmp_path / "run/run.json", tmp_path / "run/episodes.jsonl"
    finished = manifest_path.read_text()
    manifest_path.write_text(json.dumps(json.loads(finished) | {"status": "running"}))
    last = list(read_records(episodes))[-1]
    os.utime(manifest_path)
    progress = Kept()

    def another_process(seconds):
        append_record(episodes, last)
        manifest_path.write_text(finished)

    state = watch_run(tmp_path / "run", progress, sleep=another_process)
    assert state.ended and progress.starts == 2
    assert progress.n_done == len(state.records) == len(set(state.records))
    assert progress.counts == state.tally().counts


def test_a_file_that_was_replaced_is_read_anew(tmp_path):
    path = tmp_path / "episodes.jsonl"
    for index in range(3):
        append_record(path, record(index))
    tail = RecordTail(tmp_path, path)
    assert len(tail.read()[0]) == 3
    path.unlink()
    assert tail.read() == ([], True)
    append_record(path, record(7))
    assert tail.read() == ([record(7)], True)


def damage_manifest(folder):
    (folder / "run.json").write_text("[" * 100_000)


def damage_line(folder):
    with open(folder / "episodes.jsonl", "a") as file:
        file.write('{"suite": 3}\n')


def damage_kind(folder):
    (folder / "episodes.jsonl").unlink()
    (folder / "episodes.jsonl").mkdir()


def damage_link(folder):
    (folder / "episodes.jsonl").rename(folder.parent / "elsewhere.jsonl")
    (folder / "episodes.jsonl").symlink_to(folder.parent / "elsewhere.jsonl")


def remove_run(folder):
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "damage", [damage_manifest, damage_line, damage_kind, damage_link, remove_run]
)
def test_a_damaged_or_absent_folder_is_a_sentence(tmp_path, capsys, damage):
    folder = tmp_path / "run"
    shutil.copytree(OLD / "gym_finished", folder)
    damage(folder)
    assert main(["watch", str(folder), "--progress", "none"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("lerobot-nb watch: error: ") and str(folder) in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "words", [["--interval", "0"], ["--interval", "nan"], ["--patience", "-1"]]
)
def test_seconds_that_make_no_sense(capsys, words):
    assert main(["watch", str(OLD / "gym_finished"), "--progress", "none", *words]) == 2
    assert "seconds" in capsys.readouterr().err


def test_a_name_that_is_no_path(capsys):
    assert main(["watch", "a\0b", "--progress", "none"]) == 2
    with pytest.raises(RunFolderError):
        RunWatch("a\0b").look()
