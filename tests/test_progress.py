"""Progress as a user meets it: in a terminal, in a file, in a notebook that papermill runs."""

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from lerobot_nb.evaluation.progress import (
    LogProgress,
    Progress,
    TerminalProgress,
    duration,
    make_progress,
)
from lerobot_nb.results.outcomes import EpisodeTally
from lerobot_nb.results.rates import SuccessRate
from lerobot_nb.results.records import EpisodeRecord


def ended(success=True, n_steps=100, end_reason=None, task_id=0):
    return EpisodeRecord(
        "mt10",
        task_id,
        "reach-v3",
        "reach",
        0,
        1000,
        success=success,
        n_steps=n_steps,
        end_reason=end_reason or ("success" if success else "time_limit"),
    )


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_errors_are_beside_the_rate_not_in_it():
    progress = Progress()
    progress.start(6, "x")
    for record in (
        ended(),
        ended(False),
        ended(None, end_reason="error"),
        ended(None, end_reason="error"),
    ):
        progress.update(record)
    assert progress.counts.rate == SuccessRate(1, 2, 2) and progress.n_done == 4
    assert "success 1/2 (50 %) · 2 errors" in progress.line()


def test_failures_that_report_nothing_are_in_the_rate_as_soon_as_one_success_is_known():
    progress = Progress()
    progress.start(10)
    for _ in range(7):
        progress.update(ended(None))
        assert "success" not in progress.line()
    for _ in range(3):
        progress.update(ended())
    assert "success 3/10 (30 %)" in progress.line()
    progress.update(ended(None, task_id=1))
    assert "success 3/10 (30 %) · 1 not judged" in progress.line()


def test_an_environment_without_a_notion_of_success_shows_no_rate():
    progress = Progress()
    progress.start(2)
    progress.update(ended(None, end_reason="terminated"))
    assert "success" not in progress.line() and progress.line().startswith("1/2 episodes (50 %)")


def test_speed_and_time_left_follow_a_run_that_becomes_slower():
    clock = Clock()
    progress = Progress(clock)
    progress.start(1000)
    assert (
        progress.steps_per_s is None and progress.left_s is None and "not known" in progress.line()
    )
    for _ in range(100):
        clock.now += 1.0
        progress.update(ended())
    assert progress.steps_per_s == pytest.approx(100) and progress.left_s == pytest.approx(900)
    for _ in range(20):
        clock.now += 10.0
        progress.update(ended())
    assert progress.steps_per_s == pytest.approx(10, rel=0.2) and progress.left_s == pytest.approx(
        8800, rel=0.2
    )


def test_a_resumed_run_is_timed_by_what_it_did_itself():
    clock = Clock()
    progress = Progress(clock)
    progress.start(
        100, "x", n_done=90, tally=EpisodeTally(episodes=[ended(i < 80) for i in range(90)])
    )
    clock.now = 5.0
    progress.update(ended())
    assert progress.line().startswith(
        "x: 91/100 episodes (91 %) · success 81/91"
    ) and progress.left_s == pytest.approx(45)


def test_steps_of_the_engine_are_taken_when_given():
    clock = Clock()
    progress = Progress(clock)
    progress.start(10)
    clock.now = 2.0
    progress.update(ended(n_steps=1), n_steps_total=500)
    assert progress.steps_per_s == 250


def test_many_short_episodes_need_no_memory():
    clock = Clock()
    progress = Progress(clock)
    progress.start(50_000)
    for _ in range(50_000):
        clock.now += 1e-4
        progress.update(ended(n_steps=1))
    assert len(progress._recent) <= 4096 and progress.steps_per_s == pytest.approx(10_000, rel=0.01)


def test_empty_plan():
    for progress in (Progress(), LogProgress(io.StringIO()), TerminalProgress(io.StringIO())):
        progress.start(0, "nothing")
        progress.close()
        progress.close()
        assert "0/0 episodes" in progress.line()


def test_durations():
    assert [duration(seconds) for seconds in (0, 35.4, 725, 10_810)] == [
        "0:00",
        "0:35",
        "12:05",
        "3:00:10",
    ]


def test_log_file_has_plain_lines_at_an_interval():
    clock, stream = Clock(), io.StringIO()
    progress = LogProgress(stream, interval_s=10, clock=clock)
    progress.start(100, "run")
    for _ in range(95):
        clock.now += 1.0
        progress.update(ended())
    progress.log("stopped by the user")
    progress.close()
    lines = stream.getvalue().splitlines()
    assert (
        len(lines) == 1 + 9 + 1 + 1 and lines[-2] == "stopped by the user" and "95/100" in lines[-1]
    )
    assert "\r" not in stream.getvalue() and "\x1b" not in stream.getvalue()


SCRIPT = """
import time
from lerobot_nb.evaluation.progress import make_progress
from lerobot_nb.results.records import EpisodeRecord
progress = make_progress()
progress.start(40, "mt10, expert")
for i in range(40):
    time.sleep(0.01)
    progress.update(EpisodeRecord("mt10", 0, "reach-v3", "reach", i, i, success=i % 2 == 0, n_steps=10, end_reason="time_limit"))
    if i == 20:
        progress.log("worker 1 died")
progress.close()
print(type(progress).__name__)
"""


def test_in_a_real_terminal():
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    output = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        output += chunk
    assert process.wait() == 0
    text = output.decode()
    assert "TerminalProgress" in text and "worker 1 died\r\n" in text
    last = re.split(r"[\r\n]+", text.strip())[-2]
    assert (
        "40/40" in last
        and "success 20/40 (50 %)" in last
        and "steps/s" in last
        and "in all" in last
    )
    assert text.count("\n") <= 5  # one line that is redrawn, not many


def test_in_a_pipe():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "LogProgress" and "\r" not in done.stderr
    assert (
        done.stderr.splitlines()[0].startswith("mt10, expert: 0/40")
        and "40/40 episodes (100 %) · success 20/40 (50 %)" in done.stderr.splitlines()[-1]
    )


def test_in_a_notebook_that_papermill_runs(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    papermill = pytest.importorskip("papermill")
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(SCRIPT)],
        metadata={
            "kernelspec": {"name": "python3", "display_name": "python3", "language": "python"}
        },
    )
    nbformat.write(notebook, tmp_path / "in.ipynb")
    papermill.execute_notebook(
        str(tmp_path / "in.ipynb"),
        str(tmp_path / "out.ipynb"),
        progress_bar=False,
        kernel_name="python3",
    )
    outputs = json.loads((tmp_path / "out.ipynb").read_text())["cells"][0]["outputs"]
    shown = [output for output in outputs if output["output_type"] == "display_data"]
    assert len(shown) == 1  # replaced, not repeated
    plain = "".join(shown[0]["data"]["text/plain"])
    assert plain.startswith(
        "mt10, expert: 40/40 episodes (100 %) · success 20/40 (50 %)"
    ) and plain.endswith("worker 1 died")
    assert "<progress" in "".join(shown[0]["data"]["text/html"])
    assert "NotebookProgress" in json.dumps(outputs)


def test_wrong_kind():
    with pytest.raises(ValueError, match="allowed are auto, terminal, notebook, log, none"):
        make_progress("loud")
