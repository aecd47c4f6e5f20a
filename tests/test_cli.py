"""The command line as a user meets it: real processes, real episodes, exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lerobot_nb.cli import SUBCOMMANDS, main
from lerobot_nb.results.records import read_records, same_episode

pytest.importorskip("metaworld")


def lerobot_nb(*words, cwd, timeout=240, **environment):
    return subprocess.run(
        [sys.executable, "-m", "lerobot_nb.cli", *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
    )


EVAL = (
    "eval",
    "--benchmark",
    "metaworld",
    "--task",
    "reach-v3,push-v3",
    "--policy",
    "expert",
    "--n_episodes",
    2,
    "--seed",
    1000,
    "--batch_size",
    2,
    "--render",
    "none",
    "--output_dir",
    "run",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(working folder, process) of one evaluation that went well."""
    folder = tmp_path_factory.mktemp("cli")
    return folder, lerobot_nb(*EVAL, cwd=folder)


def test_eval_prints_table_and_folder_and_exits_with_0(finished):
    folder, done = finished
    assert done.returncode == 0, done.stderr
    assert (
        "reach-v3" in done.stdout
        and "4/4" in done.stdout
        and done.stdout.strip().endswith("run folder: run")
    )
    assert "4/4 episodes (100 %)" in done.stderr and "Traceback" not in done.stderr
    eval_info = json.loads((folder / "run" / "eval_info.json").read_text())
    assert eval_info["overall"]["n_episodes"] == 4 and len(eval_info["per_task"]) == 2
    records = list(read_records(folder / "run" / "episodes.jsonl"))
    assert sorted(record.seed for record in records) == [1000, 1000, 1001, 1001]


def test_the_folder_is_not_used_twice(finished):
    folder, _ = finished
    done = lerobot_nb(*EVAL, cwd=folder)
    assert done.returncode == 2 and "--resume" in done.stderr and "Traceback" not in done.stderr


def test_report_metrics_describe(finished):
    folder, _ = finished
    report = lerobot_nb("report", "run", "--markdown", cwd=folder)
    assert report.returncode == 0 and report.stdout.startswith("| task")
    metrics = lerobot_nb(
        "metrics",
        "--artifacts-dir",
        "run",
        "--env",
        "metaworld",
        "--task",
        "reach-v3,push-v3",
        "--policy",
        "expert",
        cwd=folder,
    )
    assert metrics.returncode == 0, metrics.stderr
    assert json.loads((folder / "run" / "metrics.json").read_text())["pc_success"] == 100.0
    describe = lerobot_nb(
        "describe", "--env", "metaworld", "--task", "mt10", "--output", "d.json", cwd=folder
    )
    assert describe.returncode == 0 and len(json.loads((folder / "d.json").read_text())) == 10


def test_rerun_gives_the_recorded_episode(finished):
    folder, _ = finished
    done = lerobot_nb("rerun", "run", "--episode", "push-v3/0/1", "--no_video", cwd=folder)
    assert done.returncode == 0 and "equal to its record" in done.stdout, done.stderr
    wrong = lerobot_nb("rerun", "run", "--episode", "push-v3/0/7", cwd=folder)
    assert wrong.returncode == 2 and "push-v3/0/0" in wrong.stderr


def test_an_interrupted_run_exits_with_130_and_is_resumed(tmp_path):
    words = [
        str(word)
        for word in (
            "eval",
            "--task",
            "reach-v3,push-v3,door-open-v3",
            "--policy",
            "random",
            "--episode_length",
            200,
            "--n_episodes",
            20,
            "--batch_size",
            2,
            "--render",
            "none",
        )
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "lerobot_nb.cli", *words, "--output_dir", "run"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # in the background Ctrl-C is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    records = tmp_path / "run" / "episodes.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (
        records.exists() and records.read_bytes().count(b"\n") >= 3
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert (
        "run folder: run" in stdout
        and "lerobot-nb eval --resume run" in stderr
        and "Traceback" not in stderr
    )
    n_before = len(list(read_records(records)))
    assert 3 <= n_before < 60

    resumed = lerobot_nb("eval", "--resume", "run", "--batch_size", 1, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    whole = lerobot_nb(*words, "--output_dir", "whole", cwd=tmp_path)
    assert whole.returncode == 0
    ours, theirs = (
        {record.key: record for record in read_records(tmp_path / name / "episodes.jsonl")}
        for name in ("run", "whole")
    )
    assert ours.keys() == theirs.keys() and len(ours) == 60
    assert all(same_episode(ours[key], theirs[key]) == [] for key in ours)


BROKEN_POLICY = """
import numpy as np
from lerobot_nb.policies.base import Policy

class Broken(Policy):
    batch_format = "numpy"
    needs_images = False
    placements = ("driver", "worker")
    def predict(self, slots, batch):
        raise RuntimeError("the weights are gone")
"""


def test_too_many_errors_exit_with_3_and_are_shown(tmp_path):
    (tmp_path / "broken_policy.py").write_text(BROKEN_POLICY)
    done = lerobot_nb(
        "eval",
        "--task",
        "reach-v3",
        "--policy",
        "broken_policy:Broken",
        "--n_episodes",
        4,
        "--batch_size",
        1,
        "--render",
        "none",
        "--output_dir",
        "run",
        cwd=tmp_path,
        PYTHONPATH=str(tmp_path),
    )
    assert done.returncode == 3, done.stderr
    assert (
        "the weights are gone" in done.stdout
        and "stopped" in done.stderr
        and "run folder: run" in done.stdout
    )
    overall = json.loads((tmp_path / "run" / "eval_info.json").read_text())["overall"]
    assert overall["n_errors"] >= 1 and overall["pc_success"] is None


WRONG = {
    "unknown command": ["evaluate"],
    "nothing": [],
    "unknown option": ["eval", "--episodes", "3"],
    "abbreviated option": ["eval", "--n_epi", "3"],
    "benchmark": ["eval", "--benchmark", "robocasa"],
    "task": ["eval", "--task", "push-v4"],
    "task ids": ["eval", "--task", "mt10", "--task_ids", "0-99"],
    "ids": ["eval", "--task", "mt10", "--task_ids", "a-b"],
    "policy": ["eval", "--policy", "nobody"],
    "policy module": ["eval", "--policy", "no_module:Policy"],
    "policy class": ["eval", "--policy", "json:Policy"],
    "policy argument": ["eval", "--policy", "random", "--policy_kwargs", '{"speed": 1}'],
    "json": ["eval", "--policy_kwargs", "{"],
    "json list": ["eval", "--policy_kwargs", "[1]"],
    "env field": ["eval", "--env_kwargs", '{"colour": 1}'],
    "episodes": ["eval", "--n_episodes", "0"],
    "number": ["eval", "--n_episodes", "1.5"],
    "seed": ["eval", "--seed", "-1"],
    "huge seed": ["eval", "--seed", "3000000000"],
    "batch": ["eval", "--batch_size", "-2"],
    "bool": ["eval", "--use_async_envs", "maybe"],
    "placement": ["eval", "--placement", "cloud"],
    "rate": ["eval", "--max_error_rate", "1.5"],
    "rate nan": ["eval", "--max_error_rate", "nan"],
    "render": ["eval", "--render", "some"],
    "render none": ["eval", "--n_episodes_to_render", "-2"],
    "device": ["eval", "--device", "gpu"],
    "obs": ["eval", "--obs_type", "images"],
    "length": ["eval", "--episode_length", "0"],
    "protocol": ["eval", "--protocol", "openvla"],
    "resume nowhere": ["eval", "--resume", "nowhere"],
    "resume with task": ["eval", "--resume", "nowhere", "--task", "mt10"],
    "retry": ["eval", "--retry_errors"],
    "report": ["report", "nowhere"],
    "rerun": ["rerun", "nowhere", "--episode", "a/0/0"],
    "tasks": ["tasks", "--benchmark", "robocasa"],
    "tasks task": ["tasks", "--benchmark", "metaworld", "--task", "mt11"],
    "metrics": ["metrics"],
    "describe": ["describe", "--env", "metaworl"],
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_usage_exits_with_2_and_leaves_nothing(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(WRONG[name])
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()[-1] if captured.err else captured.out) > 20
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("command", [[], *([name] for name in SUBCOMMANDS)])
def test_help_is_quick_and_imports_nothing_heavy(command, tmp_path):
    code = f"""
import sys
from lerobot_nb.cli import main
try:
    code = main({[*command, "--help"]!r})
except SystemExit as stop:
    code = stop.code
heavy = {{"torch", "numpy", "mujoco", "metaworld", "robosuite", "matplotlib", "pandas", "scipy", "gymnasium", "av", "IPython"}} & set(sys.modules)
assert not heavy, heavy
sys.exit(code)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "usage: lerobot" in done.stdout


def test_version_and_entry_point(tmp_path):
    from lerobot_nb import __version__

    assert lerobot_nb("--version", cwd=tmp_path).stdout.strip() == __version__
    script = Path(sys.executable).with_name("lerobot-nb")
    if script.exists():
        assert (
            subprocess.run([script, "--version"], capture_output=True, text=True).stdout.strip()
            == __version__
        )


def test_dashes_and_underscores_are_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "--n-episodes", "0"]) == 2 and "n_episodes" in capsys.readouterr().err
    assert main(["eval", "--task=mt-10"]) == 2 and "'mt-10'" in capsys.readouterr().err


POLICIES = '''
import sys
import numpy as np
from lerobot_nb import Policy

class Leaves(Policy):
    """Calls sys.exit in the middle of an episode."""
    placements, batch_format, needs_images = ("driver", "worker"), "numpy", False

    def __init__(self, code=0):
        self.code = code

    def predict(self, slots, batch):
        sys.exit(self.code)

class Odd(Policy):
    batch_format, needs_images = "nump", False

class Nowhere(Policy):
    placements, needs_images = ("gpu",), False

class NeedsWeights(Policy):
    needs_images = False

    def __init__(self, path):
        raise FileNotFoundError(path)
'''


@pytest.fixture
def modules(tmp_path):
    """A working folder with modules of a user."""
    (tmp_path / "mine.py").write_text(POLICIES)
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "raising.py").write_text("x = 1\n\nraise RuntimeError('no licence')\n")
    (tmp_path / "registers.py").write_text(
        "import gymnasium, numpy as np\n"
        "class Dot(gymnasium.Env):\n"
        "    metadata = {'render_modes': ['rgb_array'], 'render_fps': 10}\n"
        "    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,))\n"
        "    def __init__(self, render_mode=None): self.render_mode = render_mode\n"
        "    def reset(self, *, seed=None, options=None): super().reset(seed=seed); return np.zeros(1, np.float32), {}\n"
        "    def step(self, action): return np.zeros(1, np.float32), 1.0, False, False, {}\n"
        "    def render(self): return np.zeros((32, 32, 3), np.uint8)\n"
        "gymnasium.register('Mine/Dot-v0', Dot, max_episode_steps=5)\n"
    )
    return tmp_path


def installed(*words, cwd):
    """As the installed command is called: the current folder is not on the path by itself."""
    code = (
        f"import sys; sys.path[:] = [p for p in sys.path if p]; sys.path.insert(0, {str(Path(__file__).resolve().parent.parent)!r}); "
        "from lerobot_nb.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize("placement", ["driver", "worker"])
def test_a_policy_that_leaves_is_an_error_and_no_success_of_the_run(modules, placement):
    done = installed(
        "eval",
        "--task",
        "reach-v3",
        "--policy",
        "mine:Leaves",
        "--n_episodes",
        1,
        "--render",
        "none",
        "--output_dir",
        "run",
        "--max_retries",
        0,
        "--placement",
        placement,
        "--progress",
        "none",
        cwd=modules,
    )
    assert done.returncode == 3, (done.returncode, done.stdout, done.stderr)
    assert json.loads((modules / "run/eval_info.json").read_text())["overall"]["n_errors"] == 1
    assert "max_error_rate" in done.stderr and "go on with" in done.stderr


@pytest.mark.parametrize(
    "policy, words",
    [
        ("mine:Odd", ["batch_format='nump'", "numpy"]),
        ("mine:Nowhere", ["placements=('gpu',)", "driver"]),
        ("mine:NeedsWeights", ["mine:NeedsWeights", "path"]),
        ("broken:X", ["broken.py, line 2", "SyntaxError"]),
        ("raising:X", ["raising.py, line 3", "no licence"]),
    ],
)
def test_a_policy_that_can_not_be_made_is_said_in_a_line(modules, policy, words):
    done = installed(
        "eval",
        "--task",
        "reach-v3",
        "--policy",
        policy,
        "--render",
        "none",
        "--output_dir",
        "run",
        cwd=modules,
    )
    assert (
        done.returncode == 2 and "Traceback" not in done.stderr and not (modules / "run").exists()
    )
    assert all(word in done.stderr for word in words), done.stderr


def test_a_package_that_registers_ids_is_known_to_resume_and_rerun(modules):
    done = installed(
        "eval",
        "--benchmark",
        "gym",
        "--task",
        "Mine/Dot-v0",
        "--env_kwargs",
        '{"package_name": "registers"}',
        "--policy",
        "random",
        "--n_episodes",
        2,
        "--render",
        "all",
        "--output_dir",
        "run",
        "--progress",
        "none",
        cwd=modules,
    )
    assert done.returncode == 0, done.stderr
    lines = (modules / "run/episodes.jsonl").read_text().splitlines()
    (modules / "run/episodes.jsonl").write_text(lines[0] + "\n")
    command = json.loads((modules / "run/run.json").read_text())["command"]
    done = installed("eval", "--resume", "run", "--trust", "--progress", "none", cwd=modules)
    assert (
        done.returncode == 0 and len((modules / "run/episodes.jsonl").read_text().splitlines()) == 2
    ), done.stderr
    manifest = json.loads((modules / "run/run.json").read_text())
    assert manifest["command"] == command and "--resume" in manifest["sessions"][1]["command"]
    done = installed("rerun", "run", "--trust", "--episode", "gym/0/1", cwd=modules)
    assert done.returncode == 0 and "equal to its record" in done.stdout, done.stderr
    (video,) = [
        line.removeprefix("video: ")
        for line in done.stdout.splitlines()
        if line.startswith("video: ")
    ]
    assert (modules / video).is_file()


@pytest.mark.parametrize(
    "words", [("--policy", "zero"), ("--output_dir", "other"), ("--task", "mt10")]
)
def test_a_wrong_option_with_resume_is_a_matter_of_usage(finished, words):
    folder, _ = finished
    done = lerobot_nb("eval", "--resume", "run", *words, cwd=folder)
    assert (
        done.returncode == 2
        and "Traceback" not in done.stderr
        and words[0] in done.stderr
        and not done.stdout
    )


def test_folders_that_hold_no_run_are_named(finished, tmp_path):
    folder, _ = finished
    (tmp_path / "empty").mkdir()
    (tmp_path / "list").mkdir()
    (tmp_path / "list/run.json").write_text("[]")
    for words in (
        ("eval", "--resume", tmp_path / "nowhere"),
        ("eval", "--resume", tmp_path / "empty"),
        ("rerun", tmp_path / "empty", "--episode", "a/0/0"),
        ("eval", "--resume", tmp_path / "list"),
        ("report", tmp_path / "empty"),
    ):
        done = lerobot_nb(*words, cwd=tmp_path)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        assert "run.json" in done.stderr or "holds no run" in done.stderr


def test_broken_files_of_a_run_are_named(finished, tmp_path):
    import shutil

    folder, _ = finished
    for name, text, command in (
        ("eval_info.json", "{", "report"),
        ("eval_info.json", '{"a": 1}', "report"),
        ("run.json", "{", "report"),
        ("episodes.jsonl", "x\n", "resume"),
    ):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(folder / "run", tmp_path / "run")
        path = tmp_path / "run" / name
        path.write_text(text + path.read_text() if name == "episodes.jsonl" else text)
        done = (
            lerobot_nb("report", "run", cwd=tmp_path)
            if command == "report"
            else lerobot_nb("eval", "--resume", "run", cwd=tmp_path)
        )
        assert done.returncode == 2 and name in done.stderr and "Traceback" not in done.stderr, (
            name,
            done.stderr,
        )


def test_sums_of_an_earlier_session_do_not_survive_a_kill(tmp_path):
    words = (
        "eval",
        "--task",
        "reach-v3",
        "--policy",
        "random",
        "--n_episodes",
        6,
        "--episode_length",
        300,
        "--batch_size",
        1,
        "--render",
        "none",
        "--progress",
        "none",
    )
    assert lerobot_nb(*words, "--output_dir", "run", cwd=tmp_path).returncode == 0
    path = tmp_path / "run/episodes.jsonl"
    # as if it had been interrupted after one
    path.write_text(path.read_text().splitlines()[0] + "\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "lerobot_nb.cli", "eval", "--resume", "run", "--progress", "none"],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while path.read_bytes().count(b"\n") < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    n_records = path.read_bytes().count(b"\n")
    assert 3 <= n_records < 6 and not (tmp_path / "run/eval_info.json").exists()
    assert f"0/{n_records}" in lerobot_nb("report", "run", cwd=tmp_path).stdout
    assert lerobot_nb("eval", "--resume", "run", "--progress", "none", cwd=tmp_path).returncode == 0
    manifest, eval_info = (
        json.loads((tmp_path / "run" / name).read_text()) for name in ("run.json", "eval_info.json")
    )
    assert [session["status"] for session in manifest["sessions"]] == [
        "finished",
        "killed",
        "finished",
    ]
    assert eval_info["overall"]["eval_s"] is None and eval_info["overall"]["n_evaluated"] == 6
