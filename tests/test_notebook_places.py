"""Where an executed notebook lies, and what it says once."""

import json
import subprocess
import sys

import pytest

from lerobot_nb.evaluation.parameters import page_folder

CELL = """
from lerobot_nb.evaluation.parameters import page_folder
print("the page lies in", page_folder(globals()).resolve())
"""


def notebook(*sources: str) -> str:
    cells = [
        {
            "cell_type": "code",
            "id": f"c{number}",
            "metadata": {},
            "source": source,
            "outputs": [],
            "execution_count": None,
        }
        for number, source in enumerate(sources)
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})


@pytest.mark.parametrize(
    "words", [["-m", "papermill"], ["-m", "papermill", "--inject-output-path"]]
)
def test_a_notebook_finds_out_where_papermill_writes_it(words, tmp_path):
    (tmp_path / "in.ipynb").write_text(notebook(CELL))
    (tmp_path / "pages").mkdir()
    done = subprocess.run(
        [sys.executable, *words, "in.ipynb", "pages/out.ipynb", "-k", "python3", "-p", "a", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "pages/out.ipynb").read_text())
    told = "".join(
        "".join(output.get("text", ""))
        for cell in written["cells"]
        for output in cell.get("outputs", [])
    )
    assert told.strip() == f"the page lies in {(tmp_path / 'pages').resolve()}"


def test_elsewhere_it_is_the_current_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.chdir(tmp_path)
    assert page_folder({}).resolve() == tmp_path.resolve()
    assert page_folder({"PAPERMILL_OUTPUT_PATH": "no-such-folder/x.ipynb"}).resolve() == tmp_path


ONCE = """
import importlib.metadata
import sys

version = importlib.metadata.version
importlib.metadata.version = lambda name: "3.2.9" if name == "mujoco" else version(name)
way = {
    "benchmark": "metaworld", "task": "reach-v3", "policy": "random", "n_episodes": 1,
    "episode_length": 3, "obs_type": "state", "render": "none", "use_async_envs": False,
    "batch_size": 1, "output_dir": "run",
}
if sys.argv[1] == "command line":
    from lerobot_nb.cli import main

    assert main(["eval", *(word for name in way for word in (f"--{name}", str(way[name])))]) == 0
else:  # the cells of nbs/eval.ipynb that say something
    from lerobot_nb import EvalParameters
    from lerobot_nb.evaluation.progress import make_progress
    from lerobot_nb.results.report import Report

    parameters = EvalParameters(**way)
    print(parameters.overview())
    report = Report(parameters.evaluate(make_progress()).folder)
    for shown in (report.table(), report.errors()):
        print(shown._repr_html_() if shown is not None else "")
"""


@pytest.mark.parametrize("where", ["command line", "notebook"])
def test_warnings_are_shown_once(where, tmp_path):
    """Another MuJoCo than the tried one: the check, the run and the report all know of it."""
    done = subprocess.run(
        [sys.executable, "-c", ONCE, where], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    warning = "mujoco 3.2.9 is installed"
    assert (done.stdout + done.stderr).count(warning) == 1, done.stdout + done.stderr
    kept = json.loads((tmp_path / "run/run.json").read_text())["warnings"]
    assert [warning in text for text in kept] == [True]
