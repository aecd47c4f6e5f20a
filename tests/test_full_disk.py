"""A disk that is full at any point: a sentence, an exit code, nothing lost, and advice that works."""

import errno
import itertools
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from lerobot_nb import EvalRun
from lerobot_nb.cli import main
from lerobot_nb.results import records, run_folder
from lerobot_nb.results.run_folder import RunFolder, RunFolderError

OLD = Path(__file__).parent / "data/runs_of_0_1_0"
N_EPISODES = 6
EVAL = [
    *"eval --benchmark gym --task CartPole-v1 --policy random --render none --progress none".split(),
    *f"--use_async_envs False --n_episodes {N_EPISODES} --output_dir".split(),
]


def full(path):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def fails_from(function, name, calls):
    """The function, which fails for the file of that name in these calls."""
    counter = itertools.count()

    def write(path, *arguments):
        if Path(path).name == name and next(counter) in calls:
            full(path)
        return function(path, *arguments)

    return write


def advised(stderr):
    """The words of the command in a message."""
    found = re.search(r"go on with: (lerobot-nb .*)", stderr)
    return shlex.split(found[1])[1:] if found else None


def check_what_is_left(folder, code, stderr, capsys):
    """Nothing lost, and the advice leads to the end of the run."""
    assert "Traceback" not in stderr
    assert stderr.count("could not be written") == 1, stderr
    if not (folder / "run.json").exists():
        assert code == 2 and "--resume" not in stderr and "another output_dir" in stderr
        return
    assert code == 1 and "Make room" in stderr
    episodes = folder / "episodes.jsonl"
    before = episodes.read_bytes() if episodes.exists() else b""
    assert main([*advised(stderr), "--progress", "none"]) == 0, capsys.readouterr().err
    assert episodes.read_bytes().startswith(before)
    assert EvalRun.load(folder).status == "finished"
    assert len(EvalRun.load(folder).records()) == N_EPISODES


@pytest.mark.parametrize(
    "name, calls",
    [
        ("run.json", [0]),
        ("run.json", [1]),
        ("episodes.jsonl", [0]),
        ("episodes.jsonl", [3]),
        ("eval_info.json", [0]),
    ],
)
def test_a_full_disk_at(name, calls, monkeypatch, tmp_path, capsys):
    folder = tmp_path / "a run"
    with monkeypatch.context() as patch:
        for writer in ("write_json_atomic", "append_record"):
            failing = fails_from(getattr(records, writer), name, calls)
            patch.setattr(run_folder, writer, failing)
        code = main([*EVAL, str(folder)])
    check_what_is_left(folder, code, capsys.readouterr().err, capsys)
    if (name, calls) == ("run.json", [0]):
        assert not folder.exists()


@pytest.fixture
def small_disk(tmp_path):
    """Makes a file system of 3 MB with the given number of free kB."""
    disk = tmp_path / "small disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root, and a machine that allows it")

    def fill(free_kb):
        (disk / "filler").write_bytes(bytes(1024 * (3072 - free_kb)))
        return disk

    yield fill
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("free_kb", [0, 4, 8, 12])
def test_a_disk_that_is_really_full(free_kb, small_disk, capsys):
    disk = small_disk(free_kb)
    code = main([*EVAL, str(disk / "run")])
    stderr = capsys.readouterr().err
    assert code in (1, 2)
    (disk / "filler").unlink()
    check_what_is_left(disk / "run", code, stderr, capsys)


def test_a_video_that_finds_no_room_costs_only_the_video(small_disk, capsys):
    disk = small_disk(28)
    words = [
        *"eval --task reach-v3 --obs_type state --n_episodes 1 --episode_length 60".split(),
        *"--render all --progress none --use_async_envs False --output_dir".split(),
    ]
    assert main([*words, str(disk / "run")]) == 0
    out, err = capsys.readouterr()
    assert "no video of 1 episode" in out and "No space left" in out and "Traceback" not in err
    assert list((disk / "run").glob("videos/*")) == []
    assert EvalRun.load(disk / "run").records()[0].success


def test_the_log_is_not_what_a_run_is_for(monkeypatch, tmp_path, capsys):
    really_open = os.open

    def no_log(path, *arguments):
        return full(path) if str(path).endswith("log.jsonl") else really_open(path, *arguments)

    monkeypatch.setattr(os, "open", no_log)
    assert main([*EVAL, str(tmp_path / "run")]) == 0
    assert capsys.readouterr().err.count("log.jsonl can't be written: No space left") == 1
    assert len(EvalRun.load(tmp_path / "run").records()) == N_EPISODES


def test_rerun_says_how_to_do_without_a_video(monkeypatch, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(OLD / "gym_finished", folder)
    monkeypatch.setattr(RunFolder, "_note", lambda self, name: full(self.path / ".written_videos"))
    words = ["rerun", str(folder), "--episode", "gym/0/0"]
    assert main(words) == 2
    message = capsys.readouterr().err
    assert "--no_video" in message and "--resume" not in message
    assert main([*words, "--no_video"]) == 0


@pytest.mark.parametrize("option", ["--html", "--parquet", "--model_card", "--robostats"])
def test_reports_name_the_file_and_leave_the_old_one(option, small_disk, capsys):
    disk = small_disk(0)
    target = disk / "result"
    target.touch()  # has no content and so needs no room
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(OLD / "metaworld_finished"), option, str(target)])
    message = capsys.readouterr().err
    assert str(target) in message and "No space left" in message and "Traceback" not in message
    assert sorted(os.listdir(disk)) == ["filler", "result"] and target.read_bytes() == b""


def test_a_merge_leaves_nothing_behind(monkeypatch, tmp_path):
    from lerobot_nb.results import merging

    monkeypatch.setattr(merging, "append_record", lambda path, record: full(path))
    with pytest.raises(RunFolderError, match="make room, or give another folder"):
        merging.merge_runs([OLD / "gym_finished"] * 2, tmp_path / "merged")
    assert os.listdir(tmp_path) == []
    monkeypatch.undo()
    merged = merging.merge_runs([OLD / "gym_finished"] * 2, tmp_path / "merged")
    assert os.listdir(tmp_path) == ["merged"] and len(EvalRun.load(merged).records()) == 3
