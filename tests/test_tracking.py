"""Numbers of a training in TensorBoard, Weights & Biases and trackio: their own packages, without an account."""

import json
import sqlite3
import struct
import sys

import pytest

from lerobot_nb.envs.config import make_env_config
from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.training.behaviour_cloning import TrainConfig, Training
from lerobot_nb.training.demonstrations import record_demonstrations
from lerobot_nb.training.tracking import make_tracker

CONFIG = TrainConfig(
    steps=4, batch_size=8, eval_freq=2, log_freq=1, save_freq=2, n_episodes=1, hidden=(8,)
)
ONE = EvalConfig(batch_size=1, n_spare=0)


@pytest.fixture(scope="module")
def env_config():
    return make_env_config("metaworld", task="reach-v3", obs_type="state", episode_length=5)


@pytest.fixture(scope="module")
def demonstrations(env_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "reach"
    return record_demonstrations(env_config, folder, n_episodes=1, only_successes=False, config=ONE)


@pytest.fixture(autouse=True)
def no_account(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC", "HF_TOKEN", "TRACKIO_SPACE_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def trained(name, folder, demonstrations, env_config):
    """A training whose numbers go to the tracker, and {name: {step: value}} as its log has them."""
    tracker = make_tracker(name, folder, settings=vars(CONFIG))
    training = Training(
        folder, demonstrations, env_config, CONFIG, eval_config=ONE, tracker=tracker
    ).run(lambda line: None)
    tracker.close()
    expected = {}
    for line in training.log():
        for key, value in line.items():
            if isinstance(value, (int, float)) and key != "step":
                expected.setdefault(f"{line['kind']}/{key}", {})[line["step"]] = value
    assert set(expected["loss/loss"]) == {1, 2, 3, 4}
    assert set(expected["evaluation/n_success"]) == {2, 4}
    return training, expected


def test_tensorboards_event_file(tmp_path, demonstrations, env_config):
    """Read back by TensorBoard itself. The files lie in the training's folder, which goes on with
    them.
    """
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "t"
    _, expected = trained("tensorboard", folder, demonstrations, env_config)
    events = EventAccumulator(str(folder)).Reload()
    assert set(events.Tags()["scalars"]) == set(expected)
    for name, numbers in expected.items():
        scalars = events.Scalars(name)
        assert [scalar.step for scalar in scalars] == sorted(numbers)
        assert [scalar.value for scalar in scalars] == pytest.approx(
            [numbers[step] for step in sorted(numbers)], rel=1e-6
        )
    again = Training(folder, demonstrations, env_config, CONFIG, eval_config=ONE)
    assert again.step == CONFIG.steps


def messages(data):
    """The messages in a run's file: blocks of 32 KiB as LevelDB writes its log, each record with a
    checksum (4 bytes), its length (2) and its kind (whole, first, middle, last); 7 bytes come first.
    """
    at, parts = 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        parts, at = parts + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def test_weights_and_biases_without_an_account(tmp_path, demonstrations, env_config):
    """Offline, and never a question for a key; the run's file holds the numbers."""
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    folder = tmp_path / "t"
    _, expected = trained("wandb", folder, demonstrations, env_config)
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    found, configuration = {}, {}
    for data in messages(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        row = {
            (item.key or "/".join(item.nested_key)): json.loads(item.value_json)
            for item in record.history.item
        }
        for name, value in row.items():
            if not name.startswith("_"):
                found.setdefault(name, {})[row["_step"]] = value
        for update in record.run.config.update:
            configuration[update.key] = json.loads(update.value_json)
    assert found == {name: pytest.approx(numbers) for name, numbers in expected.items()}
    assert configuration["learning_rate"] == CONFIG.learning_rate


def test_trackio_on_this_machine(tmp_path, demonstrations, env_config, monkeypatch):
    trackio_utils = pytest.importorskip("trackio.utils")
    own = tmp_path / "trackio"
    monkeypatch.setattr(trackio_utils, "TRACKIO_DIR", own)
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", own)
    own.mkdir()
    _, expected = trained("trackio", tmp_path / "t", demonstrations, env_config)
    with sqlite3.connect(own / "lerobot_nb.db") as database:
        rows = database.execute("select step, metrics from metrics").fetchall()
    found = {}
    for step, metrics in rows:
        for name, value in json.loads(metrics).items():
            found.setdefault(name, {})[step] = value
    assert found == {name: pytest.approx(numbers) for name, numbers in expected.items()}


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_package_that_is_missing_is_named_with_its_extra(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"pip install 'lerobot-nb\[{name}\]'"):
        make_tracker(name, tmp_path)


def test_other_names(tmp_path):
    for none in (None, "", "none"):
        assert make_tracker(none, tmp_path).log({"a": 1.0}, 1) is None
    with pytest.raises(ValueError, match="'mlflow' is not known; allowed are tensorboard, wandb"):
        make_tracker("mlflow", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_begun_before_the_first_numbers(tmp_path):
    """What can't begin, and the processes of accelerate that don't log, leave no run behind."""
    pytest.importorskip("tensorboard")
    make_tracker("tensorboard", tmp_path / "t").close()
    assert not (tmp_path / "t").exists()
    tracker = make_tracker("tensorboard", tmp_path / "t")
    tracker.log({"a": 1.0}, 1)
    tracker.close()
    assert len(list((tmp_path / "t").iterdir())) == 1


def test_who_is_logged_in_at_weights_and_biases(tmp_path, monkeypatch):
    from lerobot_nb.training.tracking import _logged_in

    assert not _logged_in()
    netrc = tmp_path / "netrc"
    netrc.write_text("machine api.wandb.ai login user password abc\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    assert _logged_in()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example")
    assert not _logged_in()
    monkeypatch.setenv("WANDB_API_KEY", "abc")
    assert _logged_in()
