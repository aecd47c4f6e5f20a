"""What a newcomer types, from the README to a stopped notebook."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lerobot_nb import (
    EvalConfig,
    EvalParameters,
    LerobotNbError,
    evaluate,
    make_env_config,
    make_policy,
)
from lerobot_nb.cli import main
from lerobot_nb.doctor import kernel_problem
from lerobot_nb.evaluation.parameters import page_folder
from lerobot_nb.results.pictures import video_grid
from lerobot_nb.results.records import EpisodeRecord

ROOT = Path(__file__).resolve().parent.parent


def make(*words, cwd=ROOT):
    return subprocess.run(
        ["make", "--dry-run", *words, "SKIP_INSTALL=1"], cwd=cwd, capture_output=True, text=True
    )


def test_a_second_make_eval_leaves_the_first_notebook_alone(tmp_path):
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    assert "outputs/eval/metaworld.ipynb -p" in make("eval", cwd=tmp_path).stdout
    (tmp_path / "outputs/eval").mkdir(parents=True)
    for name in ("metaworld", "metaworld_2"):
        (tmp_path / f"outputs/eval/{name}.ipynb").touch()
    assert "outputs/eval/metaworld_3.ipynb -p" in make("eval", cwd=tmp_path).stdout
    assert "outputs/eval/libero.ipynb -p" in make("eval", "BENCHMARK=libero", cwd=tmp_path).stdout
    assert "mine.ipynb -p" in make("eval", "OUTPUT=mine.ipynb", cwd=tmp_path).stdout


def test_make_eval_installs_what_make_lab_needs():
    done = subprocess.run(
        ["make", "--dry-run", "eval", "VENV=no-such-venv", "CHECK_GL=0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert "packages.sh no-such-venv/bin/python notebook" in done.stdout


def test_the_readme_says_where_the_commands_live():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    activated = text.index(".venv/bin/activate")
    for command in ("papermill nbs/eval.ipynb", "lerobot-nb eval", "lerobot-nb doctor"):
        assert activated < text.index(command)
    assert not re.search(r"\]\(nbs/(envs|policies|evaluation|results)/", text), (
        "guides, and no modules"
    )


def started(folder: Path, command: str) -> Path:
    folder.mkdir()
    (folder / "run.json").write_text(
        json.dumps(
            {"command": command, "plan": {}, "eval_config": {}, "sessions": [], "version": 1}
        )
    )
    return folder


def test_resume_takes_the_parameters_from_the_run_folder(tmp_path, monkeypatch):
    asked = EvalParameters(
        benchmark="metaworld",
        task="reach-v3,push-v3",
        policy="random",
        n_episodes=7,
        seed=3,
        policy_kwargs={"a": 1},
        batch_size=4,
        output_dir=str(tmp_path / "a run"),
    )
    monkeypatch.setattr(
        "lerobot_nb.results.run_folder.RunFolder.manifest",
        lambda self: json.loads(self.manifest_path.read_text()),
    )
    folder = started(tmp_path / "a run", asked.command())
    again = EvalParameters.from_namespace({"resume": True, "output_dir": str(folder)})
    assert again == EvalParameters(**{**vars(asked), "resume": True})
    assert (
        EvalParameters.from_namespace(
            {"resume": True, "output_dir": str(folder), "batch_size": 2}
        ).batch_size
        == 2
    )


def test_resume_of_what_was_started_from_python_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "lerobot_nb.results.run_folder.RunFolder.manifest",
        lambda self: json.loads(self.manifest_path.read_text()),
    )
    with pytest.raises(LerobotNbError, match="started from Python"):
        EvalParameters.from_namespace(
            {"resume": True, "output_dir": str(started(tmp_path / "run", "python my_script.py"))}
        )


def test_videos_over_the_limit_are_linked_from_where_the_page_lies(tmp_path, monkeypatch):
    (tmp_path / "runs/run/videos").mkdir(parents=True)
    (tmp_path / "runs/run/videos/a_0_0000.mp4").write_bytes(bytes(100))
    record = EpisodeRecord(
        "a", 0, "a", "", 0, 1, success=True, end_reason="success", video_path="videos/a_0_0000.mp4"
    )
    (tmp_path / "pages").mkdir()
    monkeypatch.chdir(tmp_path)
    page = video_grid(
        "runs/run",
        [record],
        max_bytes=10,
        page_folder=page_folder({"PAPERMILL_OUTPUT_PATH": "pages/out.ipynb"}),
    )
    link = re.search(r'href="([^"]+)"', page)[1]
    assert (tmp_path / "pages" / link).is_file()
    assert page_folder({}) == Path() or os.environ.get("JPY_SESSION_NAME")


KERNELS = {
    "dead": (["/no/such/python", "-m", "ipykernel_launcher"], "does not run"),
    "foreign": ([sys.executable, "-I", "-m", "x"], None),
    "bare": (None, "can't be used"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_whose_python_is_of_no_use(name, tmp_path, monkeypatch):
    argv, expected = KERNELS[name]
    if argv is None:  # a Python without this package
        argv = [str(tmp_path / "python-bare")]
        Path(argv[0]).write_text(
            "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'lerobot_nb'\" >&2\nexit 1\n"
        )
        Path(argv[0]).chmod(0o755)
    (tmp_path / "kernels" / name).mkdir(parents=True)
    (tmp_path / "kernels" / name / "kernel.json").write_text(
        json.dumps({"argv": argv, "display_name": name, "language": "python"})
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    problem = kernel_problem(name)
    assert problem is None if expected is None else expected in problem
    assert "is not installed" in kernel_problem("no-such-kernel")


@pytest.mark.parametrize(
    "written, meant",
    [
        ("Expert", "did you mean 'expert'?"),
        ("follow", "'follow:MyPolicy'"),
        ("follow.py", "'follow:MyPolicy'"),
        ("follow.Follow", "'follow:Follow'"),
        ("follow.py:Follow", "'follow:Follow'"),
        ("follow:Folow", "Did you mean 'Follow'?"),
    ],
)
def test_a_policy_that_is_nearly_named_is_recognised(written, meant, tmp_path, monkeypatch):
    (tmp_path / "follow.py").write_text("class Follow:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=re.escape(meant)):
        make_policy(written, make_env_config("metaworld", task="reach-v3"))


def test_failures_of_an_own_policy_say_what_rerun_asks_for(tmp_path, monkeypatch, capsys):
    (tmp_path / "stumbling.py").write_text(
        "from lerobot_nb.policies.simple import RandomPolicy\n\n"
        "class Stumbling(RandomPolicy):\n"
        "    def predict(self, slots, batch):\n"
        "        raise RuntimeError('stumbled')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    env = make_env_config("gym", task="CartPole-v1")
    config = EvalConfig(1, batch_size=1, use_async_envs=False, render="none")
    own = evaluate(env, "stumbling:Stumbling", config, output_dir="own").folder
    assert main(["failures", str(own)]) == 0
    told = capsys.readouterr().out
    assert "stumbled" in told and "add --policy stumbling:Stumbling (or --trust)" in told
    command = next(line for line in told.splitlines() if line.startswith("    lerobot-nb rerun"))
    words = shlex.split(command)[1:]
    assert main([*words, "--no_video"]) == 2  # as listed it is refused
    assert "--trust" in capsys.readouterr().err
    assert main([*words, "--no_video", "--policy", "stumbling:Stumbling"]) == 0
    known = evaluate(env, "random", config, output_dir="known").folder
    assert main(["failures", str(known)]) == 0 and "--policy" not in capsys.readouterr().out


def test_a_mistyped_gym_id_is_named_before_the_policy_it_has_not(tmp_path, capsys):
    command = "eval --benchmark gym --task CartPol-v1 --n_episodes 1"
    assert main([*command.split(), "--output_dir", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "'CartPol-v1' is not known" in said and "CartPole" in said, said
    with pytest.raises(ValueError, match="no scripted expert"):
        make_policy("expert", make_env_config("gym", task="CartPole-v1"))
