"""compare.ipynb as papermill runs it on two given run folders."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
from test_comparison import folder, verdicts_of

ROOT = Path(__file__).resolve().parent.parent


def test_two_folders_through_papermill(tmp_path):
    good = np.ones((3, 20), bool)
    bad = good.copy()
    bad[:, 12:] = False
    a, b = folder(tmp_path / "a", verdicts_of(good)), folder(tmp_path / "b", verdicts_of(bad))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "papermill",
            str(ROOT / "nbs" / "compare.ipynb"),
            str(tmp_path / "out.ipynb"),
            "-y",
            f"{{runs: ['{a}', '{b}']}}",
            "--no-progress-bar",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=280,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    notebook = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pages = " ".join("".join(output.get("data", {}).get("text/html", "")) for output in outputs)
    assert "less often than a" in pages and "36/60" in pages
    assert any("image/png" in output.get("data", {}) for output in outputs)
