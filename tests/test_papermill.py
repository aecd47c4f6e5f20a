"""eval.ipynb as papermill runs it: a real, small evaluation, and what a wrong parameter gives."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lerobot_nb.evaluation.parameters import EvalParameters, parameters
from lerobot_nb.evaluation.rerun import rerun_episode
from lerobot_nb.results.records import read_records

pytest.importorskip("metaworld")
nbformat = pytest.importorskip("nbformat")
ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "nbs" / "eval.ipynb"


def papermill(output, *words, cwd=ROOT, timeout=280, notebook=NOTEBOOK):
    options = ["--no-progress-bar"]
    return subprocess.run(
        [sys.executable, "-m", "papermill", str(notebook), str(output), *map(str, words), *options],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def outputs_of(path):
    notebook = nbformat.read(path, as_version=4)
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            found.append(
                {kind: "".join(text) for kind, text in output.get("data", {}).items()}
                | ({"text": output["text"]} if "text" in output else {})
            )
    return notebook, found


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """(executed notebook, run folder) of two tasks with videos, in report mode, started from nbs/
    as a user may do.
    """
    folder = tmp_path_factory.mktemp("papermill")
    done = papermill(
        folder / "out.ipynb",
        "-p",
        "benchmark",
        "metaworld",
        "-p",
        "task",
        "reach-v3,drawer-close-v3",
        "-p",
        "n_episodes",
        2,
        "-p",
        "batch_size",
        2,
        "-p",
        "env_kwargs",
        '{"observation_height": 128, "observation_width": 160}',
        "-p",
        "output_dir",
        folder / "run",
        "--report-mode",
        cwd=ROOT / "nbs",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "out.ipynb", folder / "run"


def test_the_run_folder_holds_everything(executed):
    _, folder = executed
    eval_info = json.loads((folder / "eval_info.json").read_text())
    assert (
        len(eval_info["per_task"]) == 2
        and eval_info["overall"]["n_episodes"] == 4
        and eval_info["overall"]["pc_success"] == 100.0
    )
    records = list(read_records(folder / "episodes.jsonl"))
    assert len(records) == 4 and sum(record.video_path is not None for record in records) == 2
    assert sorted(path.name for path in (folder / "videos").iterdir()) == [
        "drawer-close-v3_0_0000.mp4",
        "reach-v3_0_0000.mp4",
    ]
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"


def test_the_notebook_reads_as_a_report(executed):
    path, _ = executed
    notebook, outputs = outputs_of(path)
    assert all(
        cell.metadata.get("jupyter", {}).get("source_hidden")
        for cell in notebook.cells
        if cell.cell_type == "code"
    )
    pages = [output.get("text/html", "") for output in outputs]
    assert any(
        "<table" in page and "reach-v3/0" in page and "2/2" in page and "<svg" in page
        for page in pages
    )
    assert sum("image/png" in output for output in outputs) == 2  # intervals and rewards
    assert sum(page.count("data:video/mp4;base64,") for page in pages) == 2
    # first and last pictures
    assert sum(page.count("data:image/jpeg;base64,") for page in pages) == 4
    assert any(
        "<progress" in page and "4/4 episodes (100 %) · success 4/4 (100 %)" in page
        for page in pages
    )
    assert any("Nothing: every episode" in output.get("text/markdown", "") for output in outputs)
    commands = [
        output["text/markdown"]
        for output in outputs
        if "lerobot-nb eval" in output.get("text/markdown", "")
    ]
    assert (
        len(commands) == 1
        and "--task reach-v3,drawer-close-v3" in commands[0]
        and "--n_episodes 2" in commands[0]
    )
    assert not any(
        "Traceback" in json.dumps(output) or "Warning" in json.dumps(output.get("text", ""))
        for output in outputs
    )


@pytest.mark.parametrize(
    "words, expected",
    [
        (["-p", "benchmark", "metaword"], "Known: gym, libero, metaworld"),
        # papermill itself only warns; other mistakes: test_cli
        (["-p", "n_episode", "3"], "Did you mean 'n_episodes'"),
    ],
)
def test_a_wrong_parameter_fails_in_the_first_cells(tmp_path, words, expected):
    done = papermill(tmp_path / "out.ipynb", *words, "-p", "output_dir", tmp_path / "run")
    assert done.returncode != 0 and expected in done.stderr
    assert not (tmp_path / "run").exists()
    executed = [
        cell
        for cell in nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
        if cell.cell_type == "code" and cell.get("execution_count")
    ]
    assert len(executed) <= 3  # parameters, injected parameters, the check


def test_parameters_cell_is_what_the_package_says():
    """Names, defaults and help of the notebook are those of EvalParameters, and papermill can list
    them.
    """
    cell = next(
        cell
        for cell in nbformat.read(NOTEBOOK, as_version=4).cells
        if "parameters" in cell.metadata.get("tags", [])
    )
    lines = [
        re.fullmatch(r"(\w+): (\w+) = (.+?)  # (.+)", line)
        for line in cell.source.removeprefix("# fmt: off\n").splitlines()
    ]
    assert all(lines), "each line is: name: type = default  # help"
    known = parameters()
    assert [line[1] for line in lines] == [parameter.name for parameter in known]
    namespace = {}
    exec(cell.source, namespace)
    for line, parameter in zip(lines, known):
        assert namespace[parameter.name] == parameter.default and type(
            namespace[parameter.name]
        ) is type(parameter.default)
        assert line[4] == parameter.help
        assert line[2] == {"ids": "str", "json": "str"}.get(parameter.kind, parameter.kind)
    assert EvalParameters.from_namespace(namespace) == EvalParameters()


def test_help_of_the_notebook():
    done = subprocess.run(
        [sys.executable, "-m", "papermill", "--help-notebook", str(NOTEBOOK)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0
    for parameter in parameters():
        assert parameter.name in done.stdout
    assert "episodes of every task" in done.stdout


def test_a_settled_run_is_no_failure_of_the_notebook(tmp_path):
    """It raises nothing at its end, the folder says why it stopped, and its episodes run again."""
    words = {
        "benchmark": "metaworld",
        "task": "reach-v3",
        "n_episodes": 30,
        "stop_when": "rate:50",
        "render": "none",
        "output_dir": tmp_path / "run",
    }
    done = papermill(tmp_path / "out.ipynb", *[x for pair in words.items() for x in ("-p", *pair)])
    assert done.returncode == 0, done.stderr[-2000:]
    manifest = json.loads((tmp_path / "run/run.json").read_text())
    assert manifest["status"] == "settled" and "above 50 %" in manifest["reason"]
    _, differences = rerun_episode(tmp_path / "run", "reach-v3/0/0", video=False)
    assert differences == []
