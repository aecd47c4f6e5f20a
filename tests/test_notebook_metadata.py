"""Parameters that JSON does not have: the notebook that papermill writes stays strict JSON."""

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent


def refuse_constant(name):
    raise ValueError(f"{name} is not JSON")


def papermill(*words, cwd):
    return subprocess.run(
        [sys.executable, "-P", "-m", "papermill", *map(str, words), "--no-progress-bar"],
        cwd=cwd,
        capture_output=True,
        text=True,
    )


def write_notebook(path, source):
    cells = [
        nbformat.v4.new_code_cell("x = 1", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell(source),
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)


@pytest.mark.parametrize("value, word", [("nan", "nan"), ("-Infinity", "-inf")])
def test_a_refused_number_leaves_a_notebook_that_can_be_opened(value, word, tmp_path):
    done = papermill(ROOT / "nbs/eval.ipynb", "out.ipynb", "-p", "max_wait_s", value, cwd=tmp_path)
    assert done.returncode != 0 and "max_wait_s" in done.stderr.strip().splitlines()[-1]
    text = (tmp_path / "out.ipynb").read_text()
    assert "NaN" not in text, "if setup.py has changed: pip install --no-deps -e ."
    metadata = json.loads(text, parse_constant=refuse_constant)["metadata"]
    assert metadata["papermill"]["parameters"] == {"max_wait_s": word}
    assert metadata["papermill"]["exception"] is True


def test_inner_numbers_and_the_value_that_the_cells_see(tmp_path):
    write_notebook(tmp_path / "in.ipynb", "import lerobot_nb\nprint(x)")
    done = papermill("in.ipynb", "out.ipynb", "-y", "x: [0.5, {a: .inf}]", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "out.ipynb").read_text(), parse_constant=refuse_constant)
    assert written["metadata"]["papermill"]["parameters"] == {"x": [0.5, {"a": "inf"}]}
    assert written["cells"][-1]["outputs"][0]["text"] == ["[0.5, {'a': inf}]\n"]


def test_notebooks_of_others_are_papermills_alone(tmp_path):
    write_notebook(tmp_path / "in.ipynb", "print(x)")
    done = papermill("in.ipynb", "out.ipynb", "-p", "x", "nan", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"x": NaN' in (tmp_path / "out.ipynb").read_text()


def test_make_eval_passes_no_parameter_that_the_notebook_does_not_know(tmp_path):
    makefile = (ROOT / "Makefile").read_text()
    (tmp_path / "Makefile").write_text(makefile)
    done = subprocess.run(
        ["make", "--dry-run", "eval", "SKIP_INSTALL=1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    words = next(
        line for line in done.stdout.splitlines() if line.startswith("papermill ")
    ).split()[3:]
    assert words == ["-p", "benchmark", "metaworld"]
