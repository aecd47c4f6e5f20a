"""Modules beside the notebook: those of users that misbehave, and those that are called like Python's own."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from lerobot_nb.envs.base import EnvFactory, import_user_module, library_path, resolve
from lerobot_nb.envs.errors import shown

ROOT = Path(__file__).resolve().parent.parent
ENDS = {
    "leaves": "import sys\nsys.exit(3)\n",
    "parses": "import argparse\nargparse.ArgumentParser().parse_args(['--no-such-option'])\n",
    "interrupts": "raise SystemExit\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in ENDS.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


@pytest.mark.parametrize("name", ENDS)
def test_a_module_that_ends_the_program_is_named(name, folder, capsys):
    for call in (
        lambda: resolve(f"{name}:Policy"),
        lambda: import_user_module(name, "package_name"),
        EnvFactory("gymnasium:make", {"id": "CartPole-v1"}, imports=(name,)),
    ):
        with pytest.raises(ImportError, match=rf"{name}'? .*sys.exit|{name}.*sys.exit") as caught:
            call()
        assert f"{name}.py, line" in str(caught.value)


def test_the_line_is_the_users_also_where_a_library_has_replaced_sys_exit(folder, monkeypatch):
    """As trackers do, to learn how a program ended."""
    hook = str(Path(sysconfig.get_paths()["purelib"], "some_library", "hooks.py"))
    names = {}
    exec(compile("def leave(code=None):\n    raise SystemExit(code)", hook, "exec"), names)
    monkeypatch.setattr(sys, "exit", names["leave"])
    for name in ("leaves", "parses"):
        with pytest.raises(ImportError, match=f"{name}.py, line"):
            resolve(f"{name}:Policy")


@pytest.mark.parametrize(
    "words",
    [
        ["--policy", "parses:Policy"],
        [
            "--benchmark",
            "gym",
            "--task",
            "CartPole-v1",
            "--policy",
            "random",
            "--env_kwargs",
            '{"package_name": "parses"}',
        ],
        ["--benchmark", "parses:Config"],
    ],
)
def test_the_command_line_says_so_with_2(words, folder):
    done = subprocess.run(
        [sys.executable, "-m", "lerobot_nb.cli", "eval", *words, "--output_dir", "run"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (
        done.returncode == 2
        and "parses.py" in done.stderr.splitlines()[-1]
        and "sys.exit(2)" in done.stderr
        and "Traceback" not in done.stderr
    )
    assert not (folder / "run").exists()


SHADOWS = (
    "random",
    "json",
    "pickle",
    "select",
    "tempfile",
    "subprocess",
    "logging",
    "selectors",
    "copy",
)


@pytest.fixture
def shadows(tmp_path):
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('this is not {name}')\n")
    (tmp_path / "mine.py").write_text("VALUE = 7\n")
    return tmp_path


def test_the_current_folder_comes_last(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), "/one", "/two"])
    assert library_path() == ["/one", "/two", str(tmp_path)]
    monkeypatch.setattr(sys, "path", ["/one", "/two"])
    assert library_path() == ["/one", "/two"]


def test_a_clone_that_is_not_installed_keeps_its_order(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", ["", "/one"])
    assert library_path() == [str(ROOT), "/one"]


NOTEBOOK = """
import sys
sys.path.insert(0, "")                                       # as Jupyter does, once it is up
from lerobot_nb import EvalConfig, evaluate
run = evaluate("metaworld", "expert", EvalConfig(n_episodes=1, batch_size=1, n_spare=0), output_dir="run") if {run} else None
from lerobot_nb.envs.base import new_python
import subprocess
done = subprocess.run(new_python("import json, mine; print(json.dumps(mine.VALUE))"), capture_output=True, text=True)
print(done.stdout + done.stderr)
"""


def test_new_processes_find_users_modules_and_pythons_own(shadows):
    code = NOTEBOOK.format(run=False).replace("from lerobot_nb import EvalConfig, evaluate\n", "")
    start = "import random, json, pickle, select, tempfile, subprocess, logging, selectors, copy\n"
    done = subprocess.run(
        [sys.executable, "-I", "-c", start + code],
        cwd=shadows,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == "7", done.stderr


@pytest.mark.skipif(
    sys.version_info < (3, 11),
    reason="Python 3.10 can't start a fork server that leaves the current folder out",
)
def test_workers_start_beside_a_random_py(shadows):
    code = """
import sys, random, json, pickle, select, tempfile, subprocess, logging, selectors, copy
import multiprocessing.forkserver, multiprocessing.popen_forkserver, multiprocessing.spawn
sys.path.insert(0, "")
from lerobot_nb.envs.base import EnvFactory
from lerobot_nb.envs.workers import Worker
worker = Worker(start_timeout_s=60)
print(sorted(worker.ask("build", EnvFactory("gymnasium:make", {"id": "CartPole-v1"}), timeout_s=60)))
worker.close()
assert sys.path[0] == ""
"""
    (shadows / "run_it.txt").write_text(code)
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"exec(open({str(shadows / 'run_it.txt')!r}).read())"],
        cwd=shadows,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0 and "action_space" in done.stdout, done.stderr[-2000:]


def test_a_network_is_shown_in_a_line():
    torch = pytest.importorskip("torch")
    network = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(40)])
    assert len(shown(network)) == 120 and "\n" not in shown(network)
    from lerobot_nb import evaluate, make_policy

    for call in (
        lambda: make_policy(network),
        lambda: evaluate("metaworld", network),
        lambda: evaluate("metaworld", "expert", network),
    ):
        with pytest.raises(TypeError) as caught:
            call()
        assert len(str(caught.value)) < 500 and "\n" not in str(caught.value)
    assert shown(np.zeros(2)) == "array([0., 0.])"


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--render", "none", "--n_episodes_to_render", "3"], "first:3"),
        (["--task", ""], "task is empty"),
        (["--task", "  "], "task is empty"),
        (["--policy", ""], "policy is empty"),
    ],
)
def test_contradictions_and_empty_words_are_refused(words, expected, tmp_path, monkeypatch, capsys):
    from lerobot_nb.cli import main

    monkeypatch.chdir(tmp_path)
    try:
        code = main(["eval", *words])
    except SystemExit as stop:
        code = stop.code
    assert code == 2 and expected in capsys.readouterr().err and not list(tmp_path.iterdir())
    from lerobot_nb import EvalParameters

    values = dict(zip([word.removeprefix("--") for word in words[::2]], words[1::2]))
    with pytest.raises(ValueError):
        EvalParameters(
            **{
                name: json.loads(value) if value.isdigit() else value
                for name, value in values.items()
            }
        ).check()
