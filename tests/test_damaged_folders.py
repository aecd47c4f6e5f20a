"""Damaged run folders, and folders from somebody else: one class of error that names the file, and nothing is written, run or followed."""

import json
import os
import shutil
from pathlib import Path

import pytest
from test_own_folder import snapshot

from lerobot_nb import EvalRun, Report, rerun_episode, resume_run
from lerobot_nb.results.run_folder import RunFolder, RunFolderError

OLD = Path(__file__).parent / "data" / "runs_of_0_1_0"
FILES = ("run.json", "episodes.jsonl", "eval_info.json", "log.jsonl")


def text(name, change):
    def damage(folder):
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return damage


def field(name, *where, value):
    """A value in one of the JSON files (of the first record, for episodes.jsonl) is replaced; `...`
    removes it.
    """

    def damage(folder):
        path = folder / name
        lines = path.read_text().splitlines() if name == "episodes.jsonl" else [path.read_text()]
        data = json.loads(lines[0])
        inner = data
        for key in where[:-1]:
            inner = inner[key]
        if value is ...:
            del inner[where[-1]]
        else:
            inner[where[-1]] = value
        path.write_text("\n".join([json.dumps(data), *lines[1:]]) + "\n")

    return damage


def other_kind(name, kind):
    def damage(folder):
        path = folder / name
        content = path.read_bytes()
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            outside = folder.parent / "outside.json"
            outside.write_bytes(content)
            path.symlink_to(outside)

    return damage


DEEP = b"[" * 100_000
DAMAGES = {
    f"{name} {kind}": other_kind(name, kind)
    for name in FILES
    for kind in ("folder", "pipe", "link")
}
DAMAGES |= {
    f"{name} cut": text(name, lambda data: data[: len(data) // 2])
    for name in ("run.json", "eval_info.json")
}
DAMAGES |= {
    f"{name} deep": text(name, lambda data: DEEP + b"\n" + data)
    for name in ("run.json", "episodes.jsonl", "eval_info.json")
}
DAMAGES |= {
    f"{name} not text": text(name, lambda data: b"\xff\xfe\n" + data)
    for name in ("run.json", "episodes.jsonl", "eval_info.json")
}
DAMAGES |= {
    f"{name} a list": text(name, lambda data: b"[1, 2]\n" + (data if data[:1] == b"x" else b""))
    for name in ("run.json", "eval_info.json")
}
DAMAGES |= {
    f"{name} NaN": text(name, lambda data: data.replace(b"null", b"NaN", 1))
    for name in ("run.json", "eval_info.json", "episodes.jsonl")
}
DAMAGES |= {
    f"{name} huge number": text(
        name, lambda data: data.replace(b": 7", b": " + b"7" * 5000).replace(b"0.0", b"1e999", 1)
    )
    for name in ("run.json", "episodes.jsonl")
}
DAMAGES |= {
    f"run.json {'.'.join(map(str, where))}={value!r}": field("run.json", *where, value=value)
    for where, values in {
        ("status",): ["well", 1, ...],
        ("started",): [None, ...],
        ("plan",): [None, [], ...],
        ("plan", "seed"): ["7", 7.5, True, None],
        ("plan", "n_episodes"): ["3", ...],
        ("plan", "tasks"): [{}, [[]], [["gym", "0", "CartPole-v1", None, None]], ["gym"]],
        ("eval_config",): [None, [], {"n_episodes": "many"}, {"no_such": 1}],
        ("env_config",): [
            [],
            {"type": "gym", "gym_id": 5},
            {"type": "gym", "gym_id": "CartPole-v1", "features": 5},
            {},
        ],
        ("policy",): [None, "random"],
        ("policy_request",): [
            [],
            {"policy": 5, "kwargs": {}},
            {"policy": "random"},
            {"policy": "random", "kwargs": []},
        ],
        ("sessions",): [{}, [1], ...],
        ("sessions", 0, "times"): [5, {"wall_s": "long"}, {}],
        ("sessions", 0, "status"): ["gone", None],
        ("version",): [99, "2"],
        ("written_by",): ["npm", 5],
        ("packages",): [[], {"a": 1}],
        ("warnings",): ["none", [1]],
    }.items()
    for value in values
}
DAMAGES |= {
    f"record {name}={value!r}": field("episodes.jsonl", name, value=value)
    for name, values in {
        "episode_index": [-1, 99, "0", None, 10**30],
        "seed": [8, -7, "7", ...],
        "task_id": [5, None],
        "suite": ["other", 5, None],
        "init_state_id": [3],
        "success": ["yes", 1],
        "n_steps": [-1, "19"],
        "sum_reward": ["high", [1]],
        "end_reason": ["gone", None],
        "attempt": [0.5],
        "error": [5],
        "video_path": [5],
    }.items()
    for value in values
}
DAMAGES |= {
    f"eval_info.json {'.'.join(map(str, where))}={value!r}": field(
        "eval_info.json", *where, value=value
    )
    for where, values in {
        ("per_task",): [{}, [1], ...],
        ("per_group",): [[], {"gym": 1}],
        ("overall",): [None, []],
        ("overall", "n_episodes"): ["3"],
        ("per_task", 0, "task_id"): ["0", ...],
        ("per_task", 0, "metrics"): [None, {"sum_rewards": 5}],
        ("per_task", 0, "pc_success_ci"): [[1], "1-2"],
        ("overall", "seconds"): [5],
    }.items()
    for value in values
}


def answers(folder):
    """What each entry makes of the folder: None where it is fine, or the error's text."""
    found = {}
    for name, ask in {
        "load": lambda: EvalRun.load(folder).records(),
        "report": lambda: whole_report(folder),
        "resume": lambda: resume_run(folder),
        "rerun": lambda: rerun_episode(folder, "gym/0/0", video=False),
    }.items():
        try:
            ask()
            found[name] = None
        except RunFolderError as error:
            found[name] = str(error)
        except ValueError as error:  # its record is one of another episode now
            assert name == "rerun" and "is not among" in str(error)
    return found


def whole_report(folder):
    report = Report(folder)
    (
        report.text(),
        report.text(markdown=True),
        report.table()._repr_html_(),
        report.summary()._repr_html_(),
        report.errors(),
        report.videos()._repr_html_(),
        report.gallery()._repr_html_(),
    )


def test_there_are_enough_of_them():
    assert len(DAMAGES) >= 60


@pytest.fixture
def no_runner(monkeypatch):
    """No episode may run: a damaged folder is noticed before."""
    from lerobot_nb.evaluation.runner import Runner

    monkeypatch.setattr(Runner, "run", lambda self: pytest.fail("an episode was run"))


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_is_named_and_left_alone(name, tmp_path, no_runner):
    folder = tmp_path / "run"
    shutil.copytree(OLD / "gym_finished", folder)
    DAMAGES[name](folder)
    before = snapshot_without_pipes(tmp_path)
    found = answers(folder)
    assert found["resume"] is not None
    for error in filter(None, found.values()):
        file = (
            "run.json"
            if name.startswith("run.json")
            else "episodes.jsonl"
            if name.startswith(("record", "episodes"))
            else name.split()[0]
        )
        assert file in error and len(error) < 1500
    assert {
        path: content
        for path, content in snapshot_without_pipes(tmp_path).items()
        if not path.endswith(".lock")
    } == before


def snapshot_without_pipes(folder):
    pipes = [path for path in Path(folder).rglob("*") if path.is_fifo()]
    moved = [(path, path.with_name(path.name + ".pipe")) for path in pipes]
    for path, _ in moved:
        path.unlink()
    try:
        return snapshot(folder)
    finally:
        for path, _ in moved:
            os.mkfifo(path)


def test_a_torn_last_line_is_no_damage(tmp_path):
    shutil.copytree(OLD / "gym_killed", tmp_path / "run")
    assert (
        resume_run(tmp_path / "run").status == "finished"
        and len(EvalRun.load(tmp_path / "run").records()) == 5
    )


def test_runs_of_the_first_version_load_report_rerun_and_resume(tmp_path):
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    run = EvalRun.load(tmp_path / "metaworld_finished")
    assert run.eval_info["overall"]["n_success"] == 2 and run.manifest["version"] == 2
    page = Report(run.folder).videos()._repr_html_()
    assert page.count("data:video/mp4;base64,") == 1
    before = (run.folder / "videos" / "reach-v3_0_0000.mp4").read_bytes()
    assert answers(tmp_path / "gym_finished") == dict.fromkeys(
        ("load", "report", "resume", "rerun")
    )
    assert (run.folder / "videos" / "reach-v3_0_0000.mp4").read_bytes() == before
    report = Report(tmp_path / "gym_killed")  # killed: there are no sums
    assert "gym/0" in report.text() and report.eval_info["overall"]["n_episodes"] == 3
    manifest = json.loads((tmp_path / "gym_killed" / "run.json").read_text())
    manifest["plan"]["tasks"].append(["gym", 1, "Pendulum-v1", None, None])
    (tmp_path / "gym_killed" / "run.json").write_text(json.dumps(manifest))
    assert "gym/1" in Report(tmp_path / "gym_killed").text()  # planned, and without a record


@pytest.mark.parametrize(
    "path",
    [
        "/etc/hostname",
        "../secret.mp4",
        "videos/../../secret.mp4",
        "videos/link.mp4",
        "linked/secret.mp4",
        "a\0b",
        "",
        "videos",
        "x" * 5000,
    ],
)
def test_no_video_comes_from_outside(path, tmp_path):
    shutil.copytree(OLD / "gym_finished", tmp_path / "run")
    (tmp_path / "secret.mp4").write_bytes(b"a secret")
    (tmp_path / "run" / "videos").mkdir()
    (tmp_path / "run" / "videos" / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    (tmp_path / "run" / "linked").symlink_to(tmp_path)
    field("episodes.jsonl", "video_path", value=path)(tmp_path / "run")
    report = Report(tmp_path / "run")
    pages = report.videos()._repr_html_() + report.gallery()._repr_html_()
    assert "base64" not in pages and "href" not in pages
    with pytest.raises(RunFolderError, match="video"):
        RunFolder(tmp_path / "run").video(next(RunFolder(tmp_path / "run").records()))


def test_a_cut_video_does_not_end_the_report(tmp_path):
    shutil.copytree(OLD / "metaworld_finished", tmp_path / "run")
    video = tmp_path / "run" / "videos" / "reach-v3_0_0000.mp4"
    for n_bytes in (0, 20, 1500, 3000):
        video.write_bytes(
            (OLD / "metaworld_finished" / "videos" / video.name).read_bytes()[:n_bytes]
        )
        page = Report(tmp_path / "run").gallery()._repr_html_()
        assert "can&#x27;t be shown" in page or "data:image/jpeg" in page


HOSTILE = "<script>alert('$x$')</script> | \x1b[31mred\x1b[0m \ud800 **b** $\\frac{1"


def test_names_are_shown_and_do_nothing(tmp_path, capsys):
    """In tables, plots, captions and terminals."""
    from lerobot_nb.cli import main

    folder = tmp_path / "run"
    shutil.copytree(OLD / "metaworld_finished", folder)
    (folder / "eval_info.json").unlink()
    for name in ("task", "task_description", "error"):
        field("episodes.jsonl", name, value=HOSTILE)(folder)
    manifest = json.loads((folder / "run.json").read_text())
    manifest["plan"]["tasks"][0][2] = manifest["warnings"][:0] or HOSTILE
    (folder / "run.json").write_text(json.dumps(manifest))
    report = Report(folder)
    pages = "".join(
        thing._repr_html_()
        for thing in (
            report.table(),
            report.videos(),
            report.gallery(),
            report.summary(),
            report.errors(),
        )
    )
    assert "<script" not in pages and "\x1b" not in pages
    pages.encode()
    for shown in (
        report.text(),
        report.text(markdown=True),
        repr(report.table()),
        repr(report.errors()),
        repr(report.summary()),
    ):
        assert "\x1b" not in shown
        shown.encode()
    assert "<script" not in report.text(markdown=True) and "\\|" in report.text(markdown=True)
    for figure in (report.success_plot(), report.reward_plot()):
        figure.draw_without_rendering()
    assert main(["report", str(folder)]) == 0 and "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "what, change",
    [
        ("policy", ("policy_request", "policy", "os:system")),
        ("policy", ("policy_request", "policy", "lerobot_nb.cli:main")),
        ("policy", ("policy_request", "policy", "evil:Policy")),
        ("benchmark", ("env_config", "class", "evil:Config")),
        ("benchmark", ("env_config", "type", "evil:Config")),
        ("benchmark", ("env_config", "package_name", "evil")),
    ],
)
def test_what_a_file_names_is_not_run_unasked(what, change, tmp_path, monkeypatch, capsys):
    from lerobot_nb.cli import main

    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    shutil.copytree(OLD / "gym_finished", folder)
    field("run.json", *change[:2], value=change[2])(folder)
    for ask in (lambda: resume_run(folder), lambda: rerun_episode(folder, "gym/0/0", video=False)):
        with pytest.raises(RunFolderError, match=f"names the {what} '{change[2]}'.*--trust"):
            ask()
    for words in (
        ["eval", "--resume", str(folder)],
        ["rerun", str(folder), "--episode", "gym/0/0"],
    ):
        assert (
            main(words) == 2
            and f"--trust (Python: trust=True), or give the same name again: --{what} {change[2]}"
            in capsys.readouterr().err
        )
        assert (
            main([*words, f"--{what}", "another:Name"]) == 2
            and "not 'another:Name'" in capsys.readouterr().err
        )
    assert not (tmp_path / "ran").exists()
    if change[2].startswith("evil") and change[1] not in ("class", "type"):
        try:
            rerun_episode(folder, "gym/0/0", video=False, trust=True)
        except (ValueError, RunFolderError):
            pass  # there is nothing in that module but the trace that it leaves
        assert (tmp_path / "ran").exists()  # it can tell


def test_a_full_disk_is_a_sentence_and_loses_nothing(tmp_path):
    """No file may grow beyond 5 kB: in the middle of the run episodes.jsonl can't take another
    record.
    """
    import subprocess
    import sys

    code = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from lerobot_nb.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
sys.exit(main(sys.argv[1:]))
"""
    words = [
        "eval",
        "--benchmark",
        "gym",
        "--task",
        "CartPole-v1",
        "--policy",
        "random",
        "--n_episodes",
        "30",
        "--batch_size",
        "1",
        "--n_spare",
        "0",
        "--render",
        "none",
        "--use_async_envs",
        "False",
        "--progress",
        "none",
        "--output_dir",
        "run",
    ]
    process = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 1 and "Traceback" not in process.stderr, process.stderr
    assert "could not be written" in process.stderr and "--resume run" in process.stderr
    n_kept = len(list(RunFolder(tmp_path / "run").records()))
    assert 3 < n_kept < 30
    assert (
        resume_run(tmp_path / "run").status == "finished"
        and len(EvalRun.load(tmp_path / "run").records()) == 30
    )
