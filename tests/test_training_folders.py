"""Recordings and trainings write only to a folder of their own, one at a time, whole, and through no link."""

import dataclasses
import json
import os
import resource
import shutil

import pytest
from test_own_folder import snapshot

from lerobot_nb import EvalConfig, make_env_config
from lerobot_nb.envs.files import FolderLock, write_whole
from lerobot_nb.policies.checkpoints import Checkpoint
from lerobot_nb.policies.cloned import load_network, save_checkpoint
from lerobot_nb.results.dataset import DemonstrationError, Demonstrations, write_dataset
from lerobot_nb.training import demonstrations as module
from lerobot_nb.training.behaviour_cloning import TrainConfig, Training, TrainingError
from lerobot_nb.training.demonstrations import record_demonstrations

CONFIG = TrainConfig(steps=4, batch_size=4, eval_freq=0, save_freq=2, log_freq=2, hidden=(4,))
ONE = EvalConfig(batch_size=1, use_async_envs=False)


@pytest.fixture(scope="module")
def env_config():
    return make_env_config("metaworld", task="reach-v3", obs_type="state", episode_length=5)


def record(env_config, folder, n_episodes=2):
    return record_demonstrations(
        env_config, folder, "zero", n_episodes, only_successes=False, config=ONE
    )


@pytest.fixture(scope="module")
def demonstrations(env_config, tmp_path_factory):
    return record(env_config, tmp_path_factory.mktemp("data") / "reach")


def quietly(line):
    pass


# --- one at a time ------------------------------------------------------------------------------------------------------


def test_a_second_recording_into_a_folder_is_refused(env_config, demonstrations, tmp_path):
    """The second one comes while the first is running, with the same request."""
    kept, said = module.write_dataset, []

    def meanwhile(*arguments):
        with pytest.raises(DemonstrationError, match="another recording is writing to") as caught:
            record(env_config, tmp_path / "data")
        said.append(str(caught.value))
        return kept(*arguments)

    module.write_dataset = meanwhile
    try:
        found = record(env_config, tmp_path / "data")
    finally:
        module.write_dataset = kept
    assert len(said) == 1 and str(tmp_path / "data") in said[0]
    assert snapshot(found.folder).keys() == snapshot(demonstrations.folder).keys()
    for name, values in demonstrations.columns.items():
        assert (found.columns[name] == values).all()


def test_a_second_training_in_a_folder_is_refused(env_config, demonstrations, tmp_path):
    said = []

    class Meanwhile(Training):
        def _gradient_step(self, network):
            if self.step == 3:  # a state and a line of the log are there
                before = (self.folder / "log.jsonl").read_bytes()
                with pytest.raises(TrainingError, match="another training is writing to"):
                    Training(self.folder, demonstrations, env_config, CONFIG)
                assert (self.folder / "log.jsonl").read_bytes() == before
                said.append(self.step)
            return super()._gradient_step(network)

    training = Meanwhile(tmp_path / "t", demonstrations, env_config, CONFIG).run(quietly)
    assert said == [3] and [line["step"] for line in training.log()] == [2, 4]


def test_an_object_that_another_one_has_overtaken_is_refused(env_config, demonstrations, tmp_path):
    one, other = (Training(tmp_path / "t", demonstrations, env_config, CONFIG) for _ in range(2))
    one.run(quietly)
    before = snapshot(tmp_path)
    with pytest.raises(TrainingError, match="gone on"):
        other.run(quietly)
    assert snapshot(tmp_path) == before
    one.run(quietly)  # finished: nothing is left to do


def test_the_lock_of_a_process_that_is_gone_is_in_nobodys_way(env_config, demonstrations, tmp_path):
    training = Training(tmp_path / "t", demonstrations, env_config, CONFIG)
    pid = os.fork()
    if not pid:
        FolderLock(training.folder).__enter__()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    training.run(quietly)


# --- whole, and through no link -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["config.json", "log.jsonl", "state.pt", ".lock", "checkpoints"])
def test_a_training_writes_through_no_link(env_config, demonstrations, tmp_path, name):
    """The folder of a finished training, of which a part is a link to somebody's file."""
    Training(tmp_path / "t", demonstrations, env_config, CONFIG).run(quietly)
    part, moved = tmp_path / "t" / name, tmp_path / "moved"
    part.rename(moved)
    part.symlink_to(moved)
    before = snapshot(tmp_path)
    with pytest.raises(TrainingError, match="is a link"):
        Training(tmp_path / "t", demonstrations, env_config, CONFIG)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "name", ["recording", "recording/request.json", "recording/episodes", "recording/.lock"]
)
def test_a_recording_writes_through_no_link(env_config, tmp_path, name):
    folder = tmp_path / "data"
    interrupt(env_config, folder)
    (folder / name).rename(tmp_path / "moved")
    (folder / name).symlink_to(tmp_path / "moved")
    before = snapshot(tmp_path)
    with pytest.raises(DemonstrationError, match="is a link"):
        record(env_config, folder)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ["data", "meta", "videos"])
def test_a_data_set_is_not_written_over_another_or_through_a_link(env_config, tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DemonstrationError, match=f"{name} exists already"):
        write_dataset(folder, env_config, [])
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """A limit on the size of files stands for the disk."""
    path = write_whole(tmp_path / "a", b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError):
            write_whole(path, b"n" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a"]


def test_a_checkpoint_is_not_written_through_a_link(env_config, demonstrations, tmp_path):
    training = Training(tmp_path / "t", demonstrations, env_config, CONFIG)
    (tmp_path / "dear").write_bytes(b"dear")
    (tmp_path / "c").mkdir()
    for name in ("model.safetensors", "config.json", ".model.safetensors.unfinished"):
        (tmp_path / "c" / name).symlink_to(tmp_path / "dear")
    load_network(Checkpoint.find(str(save_checkpoint(training.network, tmp_path / "c"))))
    assert (tmp_path / "dear").read_bytes() == b"dear"


# --- a recording that is killed, at every point -------------------------------------------------------------------------


class Crash(BaseException):
    pass


def interrupt(env_config, folder, at="write_dataset"):
    """Record until a function of the module is called."""
    kept = getattr(module, at)

    def crash(*arguments):
        raise Crash

    setattr(module, at, crash)
    try:
        with pytest.raises(Crash):
            record(env_config, folder)
    finally:
        setattr(module, at, kept)


def half_written(folder):
    path = folder / "recording/dataset/data/chunk-000/file-000.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PAR1")


def half_moved(folder):
    (folder / "recording/dataset/data").rename(folder / "data")


def moved(folder):
    for name in ("data", "meta"):
        (folder / "recording/dataset" / name).rename(folder / name)
    shutil.rmtree(folder / "recording/episodes")


@pytest.mark.parametrize(
    "at, then",
    [
        ("write_dataset", lambda folder: None),
        ("write_dataset", half_written),
        ("_publish", lambda folder: None),
        ("_publish", half_moved),
        ("_publish", moved),
    ],
    ids=["before", "half written", "written", "half moved", "moved"],
)
def test_a_recording_goes_on_wherever_it_was_killed(env_config, demonstrations, tmp_path, at, then):
    folder = tmp_path / "data"
    interrupt(env_config, folder, at)
    then(folder)
    found = record(env_config, folder)
    assert snapshot(folder).keys() == snapshot(demonstrations.folder).keys()
    for name, values in demonstrations.columns.items():
        assert (found.columns[name] == values).all()


def test_what_others_put_beside_a_recording_stays(env_config, tmp_path):
    folder = tmp_path / "data"
    interrupt(env_config, folder)
    (folder / "recording/thesis.txt").write_text("mine")
    (folder / "recording/episodes/film.mp4").write_text("mine")
    assert record(env_config, folder).n_episodes == 2
    assert (folder / "recording/thesis.txt").read_text() == "mine"
    assert (folder / "recording/episodes/film.mp4").read_text() == "mine"
    assert Demonstrations.load(folder).n_episodes == 2


@pytest.mark.parametrize("name", ["thesis.txt", "recording/thesis.txt", "config.json"])
def test_a_folder_of_somebody_else_is_refused_and_stays(env_config, demonstrations, tmp_path, name):
    folder = tmp_path / "mine"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text(json.dumps({"type": "act"}))
    before = snapshot(folder)
    with pytest.raises(DemonstrationError, match="not empty"):
        record(env_config, folder)
    with pytest.raises(TrainingError, match="not empty|another training"):
        Training(folder, demonstrations, env_config, CONFIG)
    assert snapshot(folder) == before


def test_a_file_in_place_of_the_folder(env_config, demonstrations, tmp_path):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file/inside"):
        with pytest.raises(DemonstrationError, match="can't be written"):
            record(env_config, folder)
        with pytest.raises(TrainingError, match="can't be written"):
            Training(folder, demonstrations, env_config, CONFIG)
    other = dataclasses.replace(CONFIG, seed=1)
    training = Training(tmp_path / "new", demonstrations, env_config, other)
    assert training.folder.is_dir()
