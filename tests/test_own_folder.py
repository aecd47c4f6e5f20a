"""A run writes only into a folder that is new, empty or its own, and deletes only what it wrote: whatever lay there before is there after, byte for byte."""

import dataclasses
import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic import Noisy, synthetic_envs

from lerobot_nb import EvalConfig, EvalRun, evaluate
from lerobot_nb.results.run_folder import RunFolder, RunFolderError, drop_unused, new_run_path

CONFIG = EvalConfig(2, use_async_envs=False)


def run(folder, **more):
    envs = synthetic_envs(n_tasks=1, longest=6, render_mode="rgb_array")
    return evaluate(
        envs,
        Noisy(),
        dataclasses.replace(CONFIG, **more.pop("config", {})),
        output_dir=folder,
        **more,
    )


def snapshot(folder):
    """Every file, folder and link with its bytes."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        found[str(path.relative_to(folder))] = (
            ("link", os.readlink(path))
            if path.is_symlink()
            else ("folder", b"")
            if path.is_dir()
            else ("file", path.read_bytes())
        )
    return found


NAMES = [
    "videos/wedding.mp4",
    "videos/synthetic_0_0000.mp4",
    "videos/synthetic_0_0001.mp4",
    "videos/.synthetic_0_0000.1.part.mp4",
    "run.json",
    "eval_info.json",
    "episodes.jsonl",
    "log.jsonl",
    ".lock",
    ".written_videos",
    "notes.txt",
    "reruns/synthetic_0_0000.mp4",
    "metrics.json",
]
CONTENTS = [
    b"",
    b"dear",
    b"{}",
    b'{"status": "finished"}',
    b"videos/wedding.mp4\n",
    b'{"per_task": [], "per_group": {}, "overall": {}}',
]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(CONTENTS), min_size=1),
    st.sampled_from(["plain", "inside", "linked videos"]),
    st.booleans(),
)
def test_what_lay_in_a_folder_stays(files, how, resume):
    with tempfile.TemporaryDirectory() as scratch:
        folder, other = Path(scratch, "mine"), Path(scratch, "movies")
        folder.mkdir()
        other.mkdir()
        (other / "wedding.mp4").write_bytes(b"dear")
        if how == "linked videos":
            (folder / "videos").symlink_to(other)
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        before, here = snapshot(scratch), os.getcwd()
        os.chdir(folder)
        try:
            # what a run leaves that was stopped before its first line
            if files == {".lock": b""} and how != "linked videos" and not resume:
                return
            with pytest.raises(RunFolderError):
                run("." if how == "inside" else folder, resume=resume, config={"render": "all"})
        finally:
            os.chdir(here)
        assert snapshot(scratch) == before


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.dictionaries(
        st.sampled_from(
            [
                name
                for name in NAMES
                if name.startswith("videos/w") or name in ("notes.txt", "metrics.json")
            ]
            + [
                "videos/synthetic_0_0001.mp4",
                "videos/.synthetic_0_0001.1.part.mp4",
                "videos/other_0_0000.mp4",
                "videos/deep/a.mp4",
                "reruns/synthetic_0_0000.mp4",
                "more/run.json",
            ]
        ),
        st.sampled_from(CONTENTS),
    ),
    st.booleans(),
)
def test_what_others_put_into_a_runs_folder_stays(files, finished):
    """A run is resumed whose folder also holds somebody else's files, one of them under the name of
    a video that is still to come.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "mine")
        run(folder, config={"render": "first:1"})
        if not finished:
            lines = (folder / "episodes.jsonl").read_text().splitlines(keepends=True)
            (folder / "episodes.jsonl").write_text(lines[0])
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        (folder / "videos" / "link.mp4").symlink_to(folder / "run.json")
        before = {
            name: content
            for name, content in snapshot(folder).items()
            if name in files or name.endswith("link.mp4")
        }
        again = run(folder, resume=True, config={"render": "first:1"})
        assert again.status == "finished" and len(again.records()) == 2
        after = snapshot(folder)
        assert {name: after.get(name) for name in before} == before


def test_the_folder_of_a_run_that_recorded_nothing_is_not_taken_over(tmp_path):
    class Stop(Exception):
        pass

    class Stopping:
        def start(self, *args):
            raise Stop

        def log(self, message): ...
        def update(self, *args): ...
        def close(self): ...

    with pytest.raises(Stop):
        run(tmp_path / "run", progress=Stopping())
    manifest = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(RunFolderError, match="holds a run already.*such as .*run_2"):
        evaluate(
            synthetic_envs(n_tasks=2),
            Noisy(),
            EvalConfig(1, use_async_envs=False),
            output_dir=tmp_path / "run",
        )
    assert (tmp_path / "run" / "run.json").read_bytes() == manifest
    assert run(tmp_path / "run", resume=True).status == "finished"


def test_links_are_not_written_through(tmp_path):
    run(tmp_path / "run")
    for name in (
        "run.json",
        "episodes.jsonl",
        "eval_info.json",
        "log.jsonl",
        ".written_videos",
        ".lock",
    ):
        target = tmp_path / "run" / name
        content = target.read_bytes() if target.exists() else b""
        target.unlink(missing_ok=True)
        (tmp_path / "outside").write_bytes(content)
        target.symlink_to(tmp_path / "outside")
        before = snapshot(tmp_path)
        with pytest.raises(RunFolderError, match="is a link"):
            run(tmp_path / "run", resume=True)
        assert snapshot(tmp_path) == before
        target.unlink()
        target.write_bytes(content)
    (tmp_path / "run" / ".written_videos").unlink()
    assert run(tmp_path / "run", resume=True).status == "finished"


def test_a_list_of_videos_from_somebody_else_deletes_nothing_outside(tmp_path):
    run(tmp_path / "run", config={"render": "all"})
    (tmp_path / "secret.mp4").write_bytes(b"dear")
    with open(tmp_path / "run" / ".written_videos", "a") as file:
        file.write("../secret.mp4\nvideos/../../secret.mp4\n/etc/hostname\nrun.json\n")
    run(tmp_path / "run", resume=True, config={"render": "all"})
    assert (tmp_path / "secret.mp4").read_bytes() == b"dear"


def test_nothing_is_left_where_a_run_does_not_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="nan"):
        evaluate(
            synthetic_envs(n_tasks=1),
            "synthetic:Noisy",
            CONFIG,
            policy_kwargs={"noise": float("nan")},
        )
    assert os.listdir(tmp_path) == []


def test_two_runs_of_the_same_second_get_a_folder_each(tmp_path):
    import datetime

    moment, claimed, barrier = datetime.datetime(2026, 1, 2, 3, 4, 5), [], threading.Barrier(8)

    def claim():
        barrier.wait()
        claimed.extend(new_run_path("metaworld", "expert", tmp_path, moment) for _ in range(5))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(claimed)) == 40 and all(path.is_dir() for path in claimed)
    for path in claimed:
        drop_unused(path)
    assert not any(path.exists() for path in claimed)


def test_a_default_folder_is_used_by_the_run_that_made_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = run(None), run(None)
    assert (
        first.folder != second.folder
        and EvalRun.load(first.folder).status == EvalRun.load(second.folder).status == "finished"
    )


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "file/run"])
def test_impossible_names_are_said(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    with pytest.raises(RunFolderError, match="choose another output_dir"):
        run(name)
    with pytest.raises(RunFolderError):
        run(name, resume=True)
    with pytest.raises(RunFolderError):
        RunFolder(name).manifest()
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody else"
)
def test_a_folder_that_may_not_be_read_is_said(tmp_path):
    os.chmod(tmp_path, 0o755)
    (tmp_path / "closed").mkdir(mode=0o700)
    before = snapshot(tmp_path)
    os.seteuid(65534)
    try:
        for path in (tmp_path / "closed", tmp_path / "closed" / "run", tmp_path / "new"):
            with pytest.raises(RunFolderError, match="Permission denied"):
                RunFolder(path).open(resume=False)
    finally:
        os.seteuid(0)
    assert snapshot(tmp_path) == before
