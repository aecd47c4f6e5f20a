"""The package is what the notebooks export, README.md is what nbs/index.ipynb says, and the notebooks are clean."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "lerobot_nb"
NOTEBOOKS = sorted(
    path
    for path in (ROOT / "nbs").rglob("*.ipynb")
    if not any(part.startswith((".", "_")) for part in path.relative_to(ROOT).parts)
    and "outputs" not in path.parts
)


def modules(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*.py")
        if "__pycache__" not in path.parts
    }


@pytest.fixture
def copy(tmp_path) -> Path:
    """The parts of the project that nbdev reads, without an exported module."""
    for name in ("settings.ini", "pyproject.toml", "setup.py", "README.md", "_quarto.yml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(
        ROOT / "nbs",
        tmp_path / "nbs",
        symlinks=True,
        ignore=shutil.ignore_patterns("outputs", ".ipynb_checkpoints"),
    )
    (tmp_path / "lerobot_nb").mkdir()
    shutil.copy(PACKAGE / "__init__.py", tmp_path / "lerobot_nb")
    return tmp_path


def run(folder: Path, code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_package_is_what_the_notebooks_export(copy):
    run(copy, "import nbdev; nbdev.nbdev_export.__wrapped__()")
    committed, exported = modules(PACKAGE), modules(copy / "lerobot_nb")
    assert sorted(committed) == sorted(exported), (
        "modules without a notebook, or notebooks not exported: make export"
    )
    differing = [name for name in committed if committed[name] != exported[name]]
    assert not differing, "make export"


def test_notebooks_are_clean(copy):
    run(copy, "from nbdev.clean import nbdev_clean; nbdev_clean.__wrapped__()")
    changed = [
        str(path.relative_to(ROOT))
        for path in NOTEBOOKS
        if (copy / path.relative_to(ROOT)).read_bytes() != path.read_bytes()
    ]
    assert not changed, "make export"


def test_readme_is_what_the_index_says(tmp_path):
    subprocess.run(
        [
            sys.executable,
            "-m",
            "nbconvert",
            "--config",
            "nbs/_readme.py",
            "--output-dir",
            str(tmp_path),
            "nbs/index.ipynb",
        ],
        cwd=ROOT,
        check=True,
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md"], (
        "pictures in nbs/index.ipynb would need a folder beside README.md: leave them out"
    )
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == (ROOT / "README.md").read_text(
        encoding="utf-8"
    ), "make readme"
