"""Rewards and actions of single steps, from a run that was recorded: in the report and in a Rerun recording."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lerobot_nb import EvalConfig, evaluate
from lerobot_nb.envs.config import make_env_config
from lerobot_nb.results import exporting
from lerobot_nb.results.dataset import recorded_steps
from lerobot_nb.results.html_report import html_report, run_figures
from lerobot_nb.results.report import Report
from lerobot_nb.results.run_folder import RunFolderError


def pendulum(folder, record):
    """Two episodes of six steps, with a reward that differs from step to step."""
    config = EvalConfig(2, batch_size=1, use_async_envs=False, record=record, seed=5)
    env = make_env_config("gym", task="Pendulum-v1", episode_length=6)
    evaluate(env, "random", config, output_dir=folder)
    return Report(folder)


@pytest.fixture(scope="module")
def recorded_run(tmp_path_factory):
    return pendulum(tmp_path_factory.mktemp("recorded") / "run", "all")


@pytest.fixture
def recorded(recorded_run, tmp_path):
    return Report(shutil.copytree(recorded_run.folder, tmp_path / "run"))


def test_curves_show_the_rewards_of_the_records(recorded):
    """The data set's steps against the sums that the records hold."""
    steps = recorded_steps(recorded.files, recorded.records())
    for record in recorded.records():
        rewards = steps[record.key].rewards
        assert len(rewards) == record.n_steps == 6
        assert np.isclose(rewards.sum(dtype=float), record.sum_reward, rtol=1e-5)
        assert np.isclose(rewards.max(), record.max_reward, rtol=1e-5)
        assert steps[record.key].actions.shape == (6, 1)
    figures = {name: (title, figure) for name, title, figure in run_figures(recorded)}
    title, figure = figures["curves"]
    assert title == "Rewards of steps"
    lines = figure.axes[0].lines
    drawn = sorted(sum(line.get_ydata()) for line in lines[:2])
    assert np.allclose(drawn, sorted(record.sum_reward for record in recorded.records()), rtol=1e-5)
    page = html_report(recorded.folder)
    assert 'id="curves"' in page and "were not recorded" not in page


def test_a_run_without_a_recording_says_so(tmp_path):
    report = pendulum(tmp_path / "run", "none")
    assert recorded_steps(report.files, report.records()) == {}
    page = html_report(report.folder)
    assert 'id="curves"' not in page and "were not recorded" in page


def test_an_episode_that_the_recording_lacks_is_counted(recorded):
    changed = [record for record in recorded.records()]
    changed[0].n_steps = 5  # run again since, with another end
    assert len(recorded_steps(recorded.files, changed)) == 1
    lines = (recorded.folder / "episodes.jsonl").read_text().splitlines()
    (recorded.folder / "episodes.jsonl").write_text(
        lines[0].replace('"n_steps": 6', '"n_steps": 5') + "\n" + lines[1] + "\n"
    )
    titles = {name: title for name, title, _ in run_figures(Report(recorded.folder))}
    assert titles["curves"] == "Rewards of steps (1 of 2 episodes)"


@pytest.mark.parametrize("how", ["bytes", "link", "folder"])
def test_a_damaged_recording_is_one_error(how, recorded, tmp_path):
    path = recorded.folder / "dataset/data/chunk-000/file-000.parquet"
    elsewhere = tmp_path / "elsewhere.parquet"
    path.rename(elsewhere)
    if how == "bytes":
        path.write_bytes(b"PAR1 and nothing")
    elif how == "link":
        path.symlink_to(elsewhere)
    else:
        path.mkdir()
    with pytest.raises(RunFolderError, match="dataset"):
        html_report(recorded.folder)


def read_back(path):
    """Entities of a Rerun recording, by the package's own program, which checks it as well."""
    program = Path(sys.executable).with_name("rerun")
    for words in (["verify"], ["print", "-vv"]):
        done = subprocess.run(
            [program, "rrd", *words, str(path)], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_rerun_recording_holds_every_step(recorded, tmp_path):
    pytest.importorskip("rerun")
    names = ["/".join(map(str, record.key)) for record in recorded.records()]
    assert exporting.write_rerun(recorded.folder, tmp_path / "run.rrd", names) == 2
    text = read_back(tmp_path / "run.rrd")
    for kind in ("reward", "action", "success", "record", "sum_of_rewards"):
        assert re.search(rf"/episode.+/{kind}\b", text.replace("\\ ", "_")), kind
    assert "missing" not in text
    rows = re.findall(r"with (\d+) rows .*/episode\S* \d/(reward|action) ", text)
    assert sorted(rows) == [("6", "action")] * 2 + [("6", "reward")] * 2


def test_the_rerun_recording_says_what_is_missing(tmp_path):
    pytest.importorskip("rerun")
    report = pendulum(tmp_path / "run", "none")
    name = "/".join(map(str, report.records()[0].key))
    exporting.write_rerun(report.folder, tmp_path / "run.rrd", [name])
    assert "/reward/missing" in read_back(tmp_path / "run.rrd")
