"""A run that records a data set deletes only what it wrote, and writes through no link."""

import json

import pytest
from test_own_folder import snapshot

from lerobot_nb import EvalConfig, evaluate
from lerobot_nb.envs.config import make_env_config
from lerobot_nb.envs.recording import recording_name
from lerobot_nb.evaluation.rerun import rerun_episode
from lerobot_nb.results.run_folder import RunFolderError

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
CONFIG = EvalConfig(2, batch_size=1, use_async_envs=False, record="all", seed=5)


def run(folder, **more):
    env = make_env_config("gym", task="CartPole-v1", episode_length=4)
    return evaluate(env, "random", CONFIG, output_dir=folder, **more)


@pytest.fixture
def interrupted(tmp_path):
    """A recording run that was killed before its second episode was recorded."""

    class Stop(Exception):
        pass

    class Stopping:
        def start(self, *args): ...
        def log(self, message): ...
        def update(self, *args):
            raise Stop

        def close(self): ...

    with pytest.raises(Stop):
        run(tmp_path / "run", progress=Stopping())
    assert not (tmp_path / "run" / "dataset").exists()
    return tmp_path / "run"


def put(folder, name):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"dear")


@pytest.mark.parametrize(
    "names",
    [
        ["dataset/wedding.mp4"],
        ["dataset/meta/info.json", "dataset/notes.txt"],
        ["recording/wedding.mp4", "recording/deep/a.npz"],
        ["dataset/a", "recording/b"],
    ],
)
def test_what_others_put_beside_a_recording_stays(names, interrupted):
    for name in names:
        put(interrupted, name)
    again = run(interrupted, resume=True)
    assert again.status == "finished" and len(again.records()) == 2
    assert all((interrupted / name).read_bytes() == b"dear" for name in names)
    taken = any(name.startswith("dataset/") for name in names)
    made = interrupted / ("dataset_2" if taken else "dataset")
    assert json.loads((made / "meta/info.json").read_text())["total_episodes"] == 2
    assert not list((interrupted / "recording").glob("*.npz"))


def test_an_own_data_set_is_replaced_where_nothing_else_is_in_it(interrupted):
    run(interrupted, resume=True)
    assert not (interrupted / "recording").exists() and not (interrupted / "dataset_2").exists()
    before = snapshot(interrupted / "dataset")
    run(interrupted, resume=True)
    assert snapshot(interrupted / "dataset") == before


def test_an_unfinished_data_set_of_somebody_else_is_in_the_way(interrupted):
    put(interrupted, ".dataset.unfinished/wedding.mp4")
    with pytest.raises(RunFolderError, match="unfinished was not made by this run"):
        run(interrupted, resume=True)
    assert (interrupted / ".dataset.unfinished/wedding.mp4").read_bytes() == b"dear"


@pytest.mark.parametrize("name", ["recording", "dataset"])
def test_a_linked_folder_is_refused(name, interrupted, tmp_path):
    if (interrupted / name).exists():
        (interrupted / name).rename(tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    (interrupted / name).symlink_to(tmp_path / "elsewhere")
    before = snapshot(tmp_path)
    with pytest.raises(RunFolderError, match="is a link"):
        run(interrupted, resume=True)
    assert snapshot(tmp_path) == before


def test_a_recording_is_not_written_through_a_link(interrupted, tmp_path):
    (tmp_path / "dear").write_bytes(b"dear")
    name = recording_name("gym", 0, 6)
    (interrupted / "recording" / f".{name}.unfinished").symlink_to(tmp_path / "dear")
    run(interrupted, resume=True)
    assert (tmp_path / "dear").read_bytes() == b"dear"


def test_an_episode_of_a_recorded_run_runs_again(tmp_path):
    env = make_env_config("gym", task="CartPole-v1")
    config = EvalConfig(2, batch_size=1, use_async_envs=False, record="all")
    folder = evaluate(env, "random", config, output_dir=tmp_path / "run").folder
    _, differences = rerun_episode(folder, "gym/0/1", video=False)
    assert differences == []
