"""Demonstrations, behaviour cloning, and what comes out of them."""

import dataclasses
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lerobot_nb import EvalConfig, EvalRun, evaluate, make_env_config, make_policy, same_episode
from lerobot_nb.envs.recording import recorded
from lerobot_nb.policies.base import PolicyLoadError
from lerobot_nb.policies.cloned import ClonedNetwork, ClonedPolicyConfig, save_checkpoint
from lerobot_nb.results.dataset import DemonstrationError, Demonstrations
from lerobot_nb.training.behaviour_cloning import (
    TrainConfig,
    Training,
    TrainingData,
    TrainingError,
    chunk_loss,
)
from lerobot_nb.training.demonstrations import record_demonstrations

TWO = EvalConfig(batch_size=2)
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def env_config():
    return make_env_config("metaworld", task="reach-v3", obs_type="state")


@pytest.fixture(scope="module")
def demonstrations(env_config, tmp_path_factory):
    return record_demonstrations(
        env_config, tmp_path_factory.mktemp("data") / "reach", n_episodes=3, seed=5, config=TWO
    )


# --- demonstrations -----------------------------------------------------------------------------------------------------


def test_frames_are_those_of_a_plain_loop(env_config, demonstrations):
    """Recorded through workers and files, against the environment stepped by hand with the recorded
    actions.
    """
    env = env_config.env_factory(env_config.tasks()[0])()
    try:
        for episode, seed in enumerate((5, 6, 7)):
            first, end = (
                demonstrations.episode_starts[episode],
                demonstrations.episode_starts[episode + 1],
            )
            observation, _ = env.reset(seed=seed)
            for frame in range(first, end):
                assert np.array_equal(
                    demonstrations.columns["observation.state"][frame],
                    observation["agent_pos"].astype(np.float32),
                )
                assert np.array_equal(
                    demonstrations.columns["observation.environment_state"][frame],
                    observation["environment_state"].astype(np.float32),
                )
                observation, reward, terminated, truncated, info = env.step(
                    demonstrations.columns["action"][frame]
                )
                assert demonstrations.columns["next.reward"][frame] == np.float32(reward)
                assert demonstrations.columns["next.success"][frame] == info["is_success"]
                assert (
                    demonstrations.columns["next.done"][frame]
                    == (terminated or truncated)
                    == (frame == end - 1)
                )
    finally:
        env.close()


def test_windows_against_a_loop(demonstrations):
    actions, starts = demonstrations.columns["action"], demonstrations.episode_starts
    chunks, padded = demonstrations.windows(5)
    for episode in range(demonstrations.n_episodes):
        for frame in range(starts[episode], starts[episode + 1]):
            for ahead in range(5):
                assert padded[frame, ahead] == (frame + ahead >= starts[episode + 1])
                assert np.array_equal(
                    chunks[frame, ahead], actions[min(frame + ahead, starts[episode + 1] - 1)]
                )


def test_columns_are_those_of_lerobot(demonstrations):
    assert set(demonstrations.columns) == {
        "observation.state",
        "observation.environment_state",
        "action",
        "next.reward",
        "next.success",
        "next.done",
        "timestamp",
        "frame_index",
        "episode_index",
        "index",
        "task_index",
    }
    assert demonstrations.info["codebase_version"] == "v3.0" and demonstrations.info["fps"] == 80
    stats = json.loads((demonstrations.folder / "meta/stats.json").read_text())
    assert np.allclose(
        stats["action"]["mean"], demonstrations.columns["action"].mean(0, dtype=np.float64)
    )


def test_pictures_survive(tmp_path):
    """What is decoded is what the policy would see, but for the compression."""
    env_config = make_env_config(
        "metaworld",
        task="reach-v3",
        obs_type="pixels_agent_pos",
        observation_height=64,
        observation_width=64,
        episode_length=4,
    )
    found = record_demonstrations(
        env_config,
        tmp_path / "data",
        policy="zero",
        n_episodes=2,
        only_successes=False,
        config=EvalConfig(batch_size=1),
    )
    images = found.images("observation.image")
    assert images.shape == (8, 3, 64, 64) and images.dtype is torch.uint8
    env = env_config.env_factory(env_config.tasks()[0])()
    seen = env.reset(seed=1)[0]["pixels"].astype(float)
    env.close()
    assert np.abs(images[4].permute(1, 2, 0).numpy().astype(float) - seen).mean() < 6
    stats = json.loads((found.folder / "meta/stats.json").read_text())["observation.image"]
    assert np.allclose(np.ravel(stats["mean"]), images.float().mean((0, 2, 3)) / 255, atol=0.02)


def test_a_crash_leaves_finished_episodes_and_the_recording_goes_on(
    env_config, demonstrations, tmp_path
):
    class Crash(BaseException):
        pass

    import lerobot_nb.training.demonstrations as module

    folder, kept = tmp_path / "data", module.write_dataset
    # the episodes have run, the data set is not written
    module.write_dataset = lambda *arguments: (_ for _ in ()).throw(Crash())
    try:
        with pytest.raises(Crash):
            record_demonstrations(env_config, folder, n_episodes=3, seed=5, config=TWO)
    finally:
        module.write_dataset = kept
    with pytest.raises(DemonstrationError, match="interrupted recording"):
        Demonstrations.load(folder)
    with pytest.raises(DemonstrationError, match="of other episodes"):
        record_demonstrations(env_config, folder, n_episodes=4, seed=5, config=TWO)
    lines = (folder / "recording/episodes.jsonl").read_text().splitlines(keepends=True)
    # as if it had stopped after two
    (folder / "recording/episodes.jsonl").write_text("".join(lines[:2]))
    before = {
        path.name: path.stat().st_mtime_ns for path in (folder / "recording/episodes").iterdir()
    }
    again = record_demonstrations(env_config, folder, n_episodes=3, seed=5, config=TWO)
    assert len(before) == 3 and all(
        np.array_equal(again.columns[name], values)
        for name, values in demonstrations.columns.items()
    )


@pytest.mark.parametrize(
    "break_it, words",
    [
        (lambda folder: shutil.rmtree(folder / "meta"), "meta/info.json is missing"),
        (lambda folder: (folder / "meta/info.json").write_text("{"), "can't be read"),
        (
            lambda folder: (folder / "meta/info.json").write_text('{"codebase_version": "v2.1"}'),
            "version v2.1",
        ),
        (
            lambda folder: (folder / "data/chunk-000/file-000.parquet").write_bytes(b"PAR1"),
            "can't be read",
        ),
        (lambda folder: shutil.rmtree(folder / "data"), "can't be read"),
    ],
)
def test_damaged_data_sets(demonstrations, tmp_path, break_it, words):
    folder = tmp_path / "copy"
    shutil.copytree(demonstrations.folder, folder)
    break_it(folder)
    with pytest.raises(DemonstrationError, match=words):
        Demonstrations.load(folder)


def test_somebody_elses_folder_is_left_alone(env_config, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(DemonstrationError, match="not empty"):
        record_demonstrations(env_config, tmp_path, n_episodes=1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_recorder_changes_nothing(env_config, tmp_path):
    task = env_config.tasks()[0]
    plain, wrapped = (
        env_config.env_factory(task)(),
        recorded(env_config.env_factory(task), tmp_path, task)(),
    )
    try:
        for env in (plain, wrapped):
            env.reset(seed=3)
        for _ in range(4):
            action = np.full(4, 0.5, np.float32)
            one, other = plain.step(action), wrapped.step(action)
            assert (
                np.array_equal(one[0]["environment_state"], other[0]["environment_state"])
                and one[1:4] == other[1:4]
            )
    finally:
        plain.close()
        wrapped.close()


# --- cloning ------------------------------------------------------------------------------------------------------------


def test_loss_against_a_loop(demonstrations):
    config = TrainConfig(chunk_size=3, n_action_steps=1, hidden=(8,))
    data = TrainingData(demonstrations, config)
    network = ClonedNetwork(ClonedPolicyConfig(demonstrations.observation_shapes, 4, 3, 1, (8,)))
    network.set_statistics(network.flatten(data.inputs), data.actions)
    end = int(demonstrations.episode_starts[1])
    rows = torch.tensor([0, end - 2, end - 1])  # the last ones have one and two actions that count
    with torch.no_grad():
        loss = chunk_loss(network, *data.batch(rows))
        errors = []
        for row in rows.tolist():
            predicted = network(
                {name: values[row : row + 1] for name, values in data.inputs.items()}
            )[0]
            for ahead in range(3):
                if row + ahead < end:
                    errors.append(
                        (
                            predicted[ahead]
                            - (data.actions[row + ahead] - network.action_mean) / network.action_std
                        )
                        .abs()
                        .mean()
                    )
    assert len(errors) == 6 and torch.isclose(loss, torch.stack(errors).mean())


def test_a_checkpoint_goes_through_every_entry(env_config, demonstrations, tmp_path):
    """Trained a little: the same records from the folder, from Python, and for any number of slots."""
    training = Training(
        tmp_path / "training",
        demonstrations,
        env_config,
        TrainConfig(steps=40, batch_size=32, eval_freq=20, n_episodes=2, hidden=(32,)),
        eval_config=TWO,
    ).run(lambda line: None)
    assert [result.step for result in training.results] == [20, 40]
    env = dataclasses.replace(env_config, episode_length=60)
    runs = {}
    for name, config in (
        ("one", EvalConfig(n_episodes=4, batch_size=1, max_batch=1)),
        ("three", EvalConfig(n_episodes=4, batch_size=3, max_batch=1, placement="driver")),
    ):
        runs[name] = evaluate(env, str(training.checkpoint), config, output_dir=tmp_path / name)
    for one, other in zip(runs["one"].records(), runs["three"].records()):
        assert same_episode(one, other) == []
    identity = EvalRun.load(tmp_path / "one").manifest["policy"]
    assert len(identity["weights_sha256"]) == 64 and identity["checkpoint"] == str(
        training.checkpoint
    )


def test_wrong_settings_and_wrong_checkpoints(env_config, demonstrations, tmp_path):
    for wrong in (
        {"steps": 0},
        {"steps": True},
        {"batch_size": 1.5},
        {"learning_rate": float("nan")},
        {"n_action_steps": 9},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TrainConfig(**wrong)
    config = TrainConfig(steps=1, eval_freq=0, hidden=(8,))
    training = Training(tmp_path / "training", demonstrations, env_config, config).run(
        lambda line: None
    )
    with pytest.raises(TrainingError, match="train.seed: 0 then, 1 now"):
        Training(
            tmp_path / "training", demonstrations, env_config, dataclasses.replace(config, seed=1)
        )
    with pytest.raises(PolicyLoadError, match="observation.environment_state"):
        Training(
            tmp_path / "pixels",
            demonstrations,
            make_env_config("metaworld", task="reach-v3", obs_type="pixels_agent_pos"),
            config,
        )
    folder = training.checkpoint
    with pytest.raises((PolicyLoadError, ValueError), match="n_action_steps=99"):
        make_policy(str(folder), n_action_steps=99)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:100])
    with pytest.raises((PolicyLoadError, ValueError), match="can't be read"):
        make_policy(str(folder))
    network = training.network
    network.head[0].bias.data[0] = float("inf")
    save_checkpoint(network, folder)
    with pytest.raises((PolicyLoadError, ValueError), match="head.0.bias"):
        make_policy(str(folder))


def test_a_rule_that_stops_evaluations_is_refused_before_anything_is_written(
    env_config, demonstrations, tmp_path
):
    rule = EvalConfig(stop_when="width:20")
    with pytest.raises(ValueError, match="stop_when='width:20' is for evaluate"):
        Training(tmp_path / "training", demonstrations, env_config, eval_config=rule)
    assert not (tmp_path / "training").exists()


def test_a_training_that_diverges_says_so(env_config, demonstrations, tmp_path):
    training = Training(
        tmp_path / "training",
        demonstrations,
        env_config,
        TrainConfig(steps=5, eval_freq=0, hidden=(8,)),
    )
    training.network.head[0].weight.data.fill_(float("nan"))
    with pytest.raises(TrainingError, match="diverged"):
        training.run(lambda line: None)


CONFIG = TrainConfig(
    steps=30, batch_size=32, eval_freq=10, log_freq=7, save_freq=6, n_episodes=1, hidden=(16,)
)


@pytest.fixture(scope="module")
def whole(env_config, demonstrations, tmp_path_factory):
    """A training that nobody interrupted."""
    short = dataclasses.replace(env_config, episode_length=20)
    folder = tmp_path_factory.mktemp("training") / "whole"
    return Training(folder, demonstrations, short, CONFIG, eval_config=TWO).run(lambda line: None)


def numbers(training):
    """The log, without the time that things took."""
    return [
        {name: value for name, value in line.items() if name not in ("elapsed_s", "eval_s")}
        for line in training.log()
    ]


def equal_weights(one, other):
    return all(
        torch.equal(a, b)
        for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


def test_workers_stay_warm_between_evaluations(whole, demonstrations, tmp_path, monkeypatch):
    """One process for three evaluations, and it is gone afterwards."""
    from lerobot_nb.envs import workers as module

    started = []
    kept = module.Worker.__init__

    def counted(self, *arguments, **more):
        started.append(self)
        kept(self, *arguments, **more)

    monkeypatch.setattr(module.Worker, "__init__", counted)
    one = EvalConfig(batch_size=1, n_spare=0)
    again = Training(tmp_path / "t", demonstrations, whole.env_config, CONFIG, eval_config=one).run(
        lambda line: None
    )
    assert len(again.results) == 3 and numbers(again) == numbers(whole)
    assert len(started) == 1 and not started[0].alive


@pytest.mark.parametrize("stop_at", [3, 6, 10, 17, 25])
def test_interrupted_equals_uninterrupted(whole, demonstrations, tmp_path, stop_at):
    """Anywhere: before the first state, at a state, behind one, behind an evaluation."""

    class Stop(BaseException):
        pass

    class Stopping(Training):
        def _gradient_step(self, network):
            if self.step == stop_at:
                raise Stop
            return super()._gradient_step(network)

    arguments = (tmp_path / "t", demonstrations, whole.env_config, CONFIG)
    with pytest.raises(Stop):
        Stopping(*arguments, eval_config=TWO).run(lambda line: None)
    again = Training(*arguments, eval_config=TWO)
    assert again.step == max(one for one in (0, 6, 10, 12, 18, 20, 24) if one <= stop_at)
    again.run(lambda line: None)
    assert equal_weights(again.network, whole.network) and numbers(again) == numbers(whole)
    for name in ("best", "last"):
        one, other = (
            (training.folder / "checkpoints" / name / "model.safetensors").read_bytes()
            for training in (whole, again)
        )
        assert one == other, name


def test_the_best_checkpoint_is_that_of_the_best_evaluation(whole, demonstrations, tmp_path):
    """Trained again up to that step, the weights are the same."""
    best = whole.best
    assert best is not None and best.n_success == max(one.n_success for one in whole.results)
    shorter = Training(tmp_path / "t", demonstrations, whole.env_config, CONFIG, eval_config=TWO)
    while shorter.step < best.step:
        shorter._gradient_step(shorter.network)
        shorter.step += 1
    policy = make_policy(str(whole.folder / "checkpoints/best"))
    assert equal_weights(policy.network, shorter.network)


@pytest.mark.parametrize(
    "break_it, words",
    [
        (lambda folder: (folder / "state.pt").write_bytes(b"PK"), "state.pt can't be read"),
        (lambda folder: (folder / "log.jsonl").write_text("{}\n"), "log.jsonl can't be read"),
        (lambda folder: (folder / "log.jsonl").write_bytes(b"\xff\n"), "log.jsonl can't be read"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json can't be read"),
        (lambda folder: (folder / "config.json").write_text("[]"), "another training"),
        (lambda folder: (folder / "config.json").unlink(), "holds no training"),
    ],
)
def test_damaged_training_folders(whole, demonstrations, tmp_path, break_it, words):
    folder = tmp_path / "t"
    shutil.copytree(whole.folder, folder)
    break_it(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(TrainingError, match=words):
        Training(folder, demonstrations, whole.env_config, CONFIG)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_other_data_is_refused_by_name(whole, demonstrations):
    columns = dict(demonstrations.columns)
    columns["action"] = columns["action"] + np.float32(1e-3)  # as many frames, other actions
    with pytest.raises(TrainingError, match="data.sha256"):
        Training(
            whole.folder,
            dataclasses.replace(demonstrations, columns=columns),
            whole.env_config,
            CONFIG,
        )


def test_a_checkpoint_is_there_whole_or_not_at_all(whole, tmp_path):
    """The disk is full in the middle of writing: the old checkpoint stays."""
    folder = save_checkpoint(whole.network, tmp_path / "checkpoint")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)  # of a file: stands for the disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limit[1]))
    try:
        with pytest.raises(OSError):
            save_checkpoint(whole.network, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert {name: (folder / name).read_bytes() for name in before} == before
    make_policy(str(folder))


def test_train_notebook_smoke(tmp_path):
    """The script that runs in the images; the checkpoint then goes through eval.ipynb."""
    (tmp_path / "nbs").symlink_to(ROOT / "nbs")
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    }
    done = subprocess.run(
        [str(ROOT / "docker/smoke_train.sh"), "metaworld"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    folder = tmp_path / "outputs/metaworld_training"
    text = "".join(
        "".join(output.get("text", ""))
        for cell in json.loads(folder.with_suffix(".ipynb").read_text())["cells"]
        for output in cell.get("outputs", [])
    )
    assert "best: step 1" in text
    done = subprocess.run(
        ["papermill", "nbs/eval.ipynb", "outputs/eval.ipynb", "-p", "task", "reach-v3"]
        + ["-p", "policy", "outputs/metaworld_training/checkpoints/best"]
        + ["-p", "n_episodes", "2", "-p", "seed", "101000", "-p", "render", "none"]
        + ["-p", "output_dir", "outputs/eval"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # the same checkpoint on the same seeds: the notebook's own evaluation has the same records
    one, other = (
        EvalRun.load(tmp_path / "outputs" / name).records()
        for name in ("metaworld_training_unseen", "eval")
    )
    assert len(one) == len(other) == 2
    assert all(same_episode(a, b) == [] for a, b in zip(one, other))


def test_a_wrong_parameter_of_the_train_notebook(tmp_path):
    import papermill

    with pytest.raises(papermill.PapermillExecutionError, match="stepz"):
        papermill.execute_notebook(
            str(ROOT / "nbs/train.ipynb"),
            str(tmp_path / "wrong.ipynb"),
            parameters={"stepz": 1},
            cwd=str(tmp_path),
            progress_bar=False,
        )
