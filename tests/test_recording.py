"""Recording: the same episodes as without it, in a data set that survives crashes, through every entry."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lerobot_nb import (
    EnvFactory,
    EvalConfig,
    LazyVectorEnv,
    evaluate,
    make_env_config,
    resume_run,
    same_episode,
)
from lerobot_nb.cli import main
from lerobot_nb.envs.recording import recorded
from lerobot_nb.evaluation.recording import rescue_recording
from lerobot_nb.results.dataset import DemonstrationError, Demonstrations
from lerobot_nb.results.run_folder import RunFolderError
from lerobot_nb.training.demonstrations import record_demonstrations


@pytest.fixture(scope="module")
def env_config():
    return make_env_config("metaworld", task="reach-v3", obs_type="state")


@pytest.fixture(scope="module")
def recorded_run(env_config, tmp_path_factory):
    config = EvalConfig(n_episodes=3, batch_size=2, seed=5, record="all")
    return evaluate(
        env_config, "expert", config, output_dir=tmp_path_factory.mktemp("runs") / "run"
    )


def test_a_recorded_run_is_the_same_run(env_config, recorded_run, tmp_path):
    plain = evaluate(
        env_config,
        "expert",
        EvalConfig(n_episodes=3, batch_size=1, seed=5),
        output_dir=tmp_path / "plain",
    )
    for one, other in zip(plain.records(), recorded_run.records(), strict=True):
        assert same_episode(one, other) == []
    data = Demonstrations.load(recorded_run.folder / "dataset")
    assert np.diff(data.episode_starts).tolist() == [one.n_steps for one in plain.records()]
    for number, record in enumerate(plain.records()):
        rows = slice(data.episode_starts[number], data.episode_starts[number + 1])
        assert np.isclose(data.columns["next.reward"][rows].sum(), record.sum_reward, rtol=1e-5)
        assert data.columns["next.success"][rows].any() == record.success
    assert not (recorded_run.folder / "recording").exists()
    assert not (plain.folder / "dataset").exists()


def test_the_same_data_set_through_every_entry(env_config, recorded_run, tmp_path, capsys):
    """evaluate, record_demonstrations, `lerobot-nb eval --record` and `lerobot-nb record`."""
    wanted = Demonstrations.load(recorded_run.folder / "dataset")
    options = ["--task", "reach-v3", "--n_episodes", "3", "--seed", "5", "--batch_size", "2"]
    assert (
        main(
            ["eval", *options, "--record", "all", "--render", "none"]
            + ["--output_dir", str(tmp_path / "run")]
        )
        == 0
    )
    assert main(["record", *options, "--output_dir", str(tmp_path / "cli")]) == 0
    assert "3 episodes" in capsys.readouterr().out
    record_demonstrations(
        env_config, tmp_path / "python", n_episodes=3, seed=5, config=EvalConfig(batch_size=1)
    )
    for folder in ("run/dataset", "cli", "python"):
        found = Demonstrations.load(tmp_path / folder)
        assert set(found.columns) == set(wanted.columns)
        for name, values in wanted.columns.items():
            assert np.array_equal(found.columns[name], values), (folder, name)


def test_a_resumed_run_has_the_whole_data_set(env_config, recorded_run, tmp_path):
    """Interrupted after the first episode; finished by resume."""

    class Stop:
        def start(self, *arguments):
            pass

        def update(self, record, n_steps):
            raise KeyboardInterrupt

        def log(self, line):
            pass

        def close(self):
            pass

    config = EvalConfig(n_episodes=3, batch_size=1, n_spare=0, seed=5, record="all")
    with pytest.raises(KeyboardInterrupt):
        evaluate(env_config, "expert", config, output_dir=tmp_path / "run", progress=Stop())
    assert not (tmp_path / "run/dataset").exists() and (tmp_path / "run/recording").is_dir()
    rescued = rescue_recording(tmp_path / "run", tmp_path / "rescued", env_config)
    assert rescued.n_episodes == 1
    for record in ("none", "successes"):
        with pytest.raises(RunFolderError, match=f"record='all' .* record='{record}'"):
            resume_run(tmp_path / "run", record=record)
    resume_run(tmp_path / "run")
    wanted = Demonstrations.load(recorded_run.folder / "dataset")
    found = Demonstrations.load(tmp_path / "run/dataset")
    assert all(
        np.array_equal(found.columns[name], values) for name, values in wanted.columns.items()
    )
    resume_run(tmp_path / "run")  # nothing is left to do, and nothing is lost
    assert Demonstrations.load(tmp_path / "run/dataset").n_episodes == 3


def test_a_killed_process_leaves_its_finished_episodes(env_config, tmp_path):
    code = (
        "from lerobot_nb import EvalConfig, make_env_config\n"
        "from lerobot_nb.training.demonstrations import record_demonstrations\n"
        "env = make_env_config('metaworld', task='reach-v3', obs_type='state')\n"
        f"record_demonstrations(env, {str(tmp_path / 'data')!r}, n_episodes=4000, "
        "only_successes=False, config=EvalConfig(batch_size=1))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    lines = tmp_path / "data/recording/episodes.jsonl"
    try:
        deadline = time.monotonic() + 120
        while not lines.is_file() or lines.read_bytes().count(b"\n") < 3:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with pytest.raises(DemonstrationError, match="interrupted recording"):
        Demonstrations.load(tmp_path / "data")
    rescued = rescue_recording(tmp_path / "data", tmp_path / "rescued", env_config)
    whole = record_demonstrations(
        env_config,
        tmp_path / "few",
        n_episodes=2,
        only_successes=False,
        config=EvalConfig(batch_size=1),
    )
    n = len(whole)
    assert rescued.n_episodes >= 3
    assert np.array_equal(rescued.columns["action"][:n], whole.columns["action"])


def test_an_episode_that_is_given_up_overwrites_nothing(env_config, tmp_path):
    """An attempt that failed in the middle, in a worker that goes on with other episodes."""
    task = dataclasses.replace(env_config.tasks()[0], max_episode_steps=4)
    env = recorded(env_config.env_factory(task), tmp_path, task)()
    try:
        for n_steps in (4, 2):  # finished by another worker; given up here
            env.reset(seed=3)
            for _ in range(n_steps):
                env.step(np.zeros(4, np.float32))
        env.reset(seed=4)
    finally:
        env.close()
    (path,) = tmp_path.iterdir()
    with np.load(path) as stored:
        assert len(stored["action"]) == 4


def test_what_cannot_be_recorded_is_refused_first(tmp_path):
    one = make_env_config("metaworld", task="reach-v3", obs_type="state")
    other = make_env_config("gym", task="CartPole-v1")
    envs = {"reach": {0: None}, "pole": {0: None}}
    for name, config in (("reach", one), ("pole", other)):
        envs[name][0] = next(iter(next(iter(config.create_envs(1).values())).values()))
    with pytest.raises(ValueError, match="one data set"):
        evaluate(envs, "random", EvalConfig(n_episodes=1, record="all"), output_dir=tmp_path / "r")
    own = {"mine": {0: LazyVectorEnv(EnvFactory("gymnasium:make", {"id": "CartPole-v1"}), 1)}}
    with pytest.raises(ValueError, match="one data set"):
        evaluate(own, "random", EvalConfig(n_episodes=1, record="all"), output_dir=tmp_path / "r")
    assert not (tmp_path / "r").exists()
    with pytest.raises(ValueError, match="record"):
        EvalConfig(record="some")


def test_no_success_is_a_warning_in_a_run_and_an_error_alone(env_config, tmp_path):
    short = dataclasses.replace(env_config, episode_length=3)
    config = EvalConfig(n_episodes=1, batch_size=1, record="successes")
    run = evaluate(short, "zero", config, output_dir=tmp_path / "run")
    assert run.status == "finished" and not (tmp_path / "run/dataset").exists()
    log = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert any("none succeeded" in json.dumps(line) for line in log)
    with pytest.raises(DemonstrationError, match="none succeeded"):
        record_demonstrations(short, tmp_path / "data", "zero", n_episodes=1)


def test_a_missing_recording_is_named(env_config, recorded_run, tmp_path):
    config = EvalConfig(n_episodes=2, batch_size=1, record="all")
    run = evaluate(env_config, "zero", config, output_dir=tmp_path / "run")
    shutil.rmtree(run.folder / "dataset")
    with pytest.raises(DemonstrationError, match="can't be read"):
        resume_run(run.folder)


@pytest.mark.parametrize(
    "words, expected",
    [
        ([], "--output_dir"),
        (["--output_dir", "x", "--n_episodes", "0"], "n_episodes"),
        (["--output_dir", "x", "--task", "reech-v3"], "reach-v3"),
        (["--output_dir", "x", "--policy", "exprt"], "exprt"),
        (["--output_dir", "x", "--action_noise", "nan"], "action_noise"),
        (["--output_dir", "x", "--policy_kwargs", "[1]"], "policy_kwargs"),
        (["--output_dir", "x", "--finish", "nowhere"], "nowhere"),
    ],
)
def test_usage_errors_of_record(words, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(["record", *words])
    except SystemExit as stop:
        code = stop.code
    assert code == 2 and expected in capsys.readouterr().err
    assert list(Path(tmp_path).iterdir()) == []


def test_finish_from_the_command_line(env_config, tmp_path, capsys):
    """`record --finish` makes a data set of what an interrupted recording left."""
    import lerobot_nb.training.demonstrations as module

    class Crash(BaseException):
        pass

    kept = module.write_dataset
    module.write_dataset = lambda *arguments: (_ for _ in ()).throw(Crash())
    try:
        with pytest.raises(Crash):
            record_demonstrations(
                env_config, tmp_path / "data", n_episodes=2, config=EvalConfig(batch_size=1)
            )
    finally:
        module.write_dataset = kept
    words = ["record", "--finish", str(tmp_path / "data"), "--output_dir", str(tmp_path / "set")]
    assert main(words) == 0
    assert "2 episodes" in capsys.readouterr().out
    assert Demonstrations.load(tmp_path / "set").n_episodes == 2


def test_help_is_quick():
    code = (
        "import sys\nfrom lerobot_nb.cli import main\n"
        "try: main(['record', '--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pandas', 'gymnasium', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "--action_noise" in done.stdout, done.stderr
