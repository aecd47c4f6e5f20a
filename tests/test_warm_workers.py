"""Workers that outlive a run: the same records, the same simulators, and no process that stays."""

import os
import time

import psutil
import pytest
from synthetic import synthetic_envs

from lerobot_nb import EvalConfig, WarmWorkers, eval_policy, eval_policy_all, evaluate
from lerobot_nb.policies.base import PolicySpec
from lerobot_nb.results.records import EpisodeRecord, same_episode


def noisy(**kwargs):
    return PolicySpec("synthetic:Noisy", kwargs).build()


def worker_processes():
    """Processes that this one has started for simulators, by the fork server."""
    return {
        process.pid
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE
        and process.children() == []
        and "resource_tracker" not in " ".join(process.cmdline())
        and "semaphore_tracker" not in " ".join(process.cmdline())
    }


@pytest.fixture(autouse=True)
def no_worker_is_left():
    """The fork server itself stays, without children."""
    evaluate_once = eval_policy_all(synthetic_envs(1, 1), "zero", n_episodes=1)  # it is up
    assert evaluate_once["overall"]["n_evaluated"] == 1
    before = worker_processes()
    yield
    assert worker_processes() == before


def evaluated(envs, policy, config, workers=None):
    info = eval_policy_all(
        envs, policy, n_episodes=5, config=config, return_episode_data=True, workers=workers
    )
    return [EpisodeRecord.from_json(one) for one in info["episodes"]]


@pytest.mark.parametrize("placement", ["driver", "worker"])
@pytest.mark.parametrize("use_async_envs", [True, False])
def test_records_are_the_same_and_simulators_stay(tmp_path, placement, use_async_envs):
    log = tmp_path / "constructions"
    config = EvalConfig(batch_size=2, n_spare=0, placement=placement, use_async_envs=use_async_envs)
    envs = synthetic_envs(2, 2, construction_log=str(log))
    expected = evaluated(envs, noisy(), config)
    log.unlink()
    with WarmWorkers() as workers:
        for number in range(3):
            warm = evaluated(envs, noisy(), config, workers)
            assert [same_episode(a, b) for a, b in zip(warm, expected, strict=True)] == [[]] * 10
            if number == 0:
                first = log.read_text().splitlines()
        assert workers.n_idle == 2
        again = log.read_text().splitlines()
        assert set(again) == set(first)  # the same processes
        if use_async_envs and placement == "driver":
            assert len(set(first)) == 2
    assert workers.n_idle == 0


def test_with_one_task_the_simulator_is_built_once(tmp_path):
    log = tmp_path / "constructions"
    envs = synthetic_envs(1, 2, construction_log=str(log))
    with WarmWorkers() as workers:
        for _ in range(3):
            evaluated(envs, noisy(), EvalConfig(batch_size=2, n_spare=0), workers)
    assert len(log.read_text().splitlines()) == 2


def test_all_entries_take_them(tmp_path):
    log = tmp_path / "constructions"
    envs = synthetic_envs(1, 1, construction_log=str(log))
    with WarmWorkers() as workers:
        eval_policy(envs["synthetic"][0], "zero", 2, workers=workers)
        evaluate(envs, "random", EvalConfig(2), output_dir=tmp_path / "run", workers=workers)
        eval_policy_all(envs, "zero", n_episodes=2, workers=workers)
        pids = set(log.read_text().splitlines())
        assert str(os.getpid()) not in pids and len(pids) <= 2


@pytest.mark.parametrize("placement", ["driver", "worker"])
def test_an_exception_leaves_no_process_and_the_workers_usable(tmp_path, placement):
    envs = synthetic_envs(1, 2, step_s=0.01)
    config = EvalConfig(batch_size=2, n_spare=1, placement=placement)

    class Broken(Exception):
        pass

    class Raises:
        def start(self, *args):
            pass

        def update(self, record, n_steps):
            raise Broken

        def log(self, text):
            pass

        def close(self):
            pass

    with pytest.raises(Broken):
        with WarmWorkers() as workers:
            expected = evaluated(envs, noisy(), config)
            with pytest.raises(Broken):
                evaluate(
                    envs,
                    noisy(),
                    EvalConfig(20, batch_size=2, placement=placement),
                    output_dir=tmp_path / "run",
                    progress=Raises(),
                    workers=workers,
                )
            after = evaluated(envs, noisy(), config, workers)
            assert [same_episode(a, b) for a, b in zip(after, expected, strict=True)] == [[]] * 5
            raise Broken
    with pytest.raises(RuntimeError, match="closed"):
        evaluated(envs, noisy(), config, workers)


def test_a_worker_that_died_between_runs_is_replaced():
    envs = synthetic_envs(1, 2)
    config = EvalConfig(batch_size=2, n_spare=0)
    with WarmWorkers() as workers:
        expected = evaluated(envs, noisy(), config, workers)
        for pid in worker_processes():
            if psutil.Process(pid).ppid() != os.getpid():
                psutil.Process(pid).kill()
        until = time.monotonic() + 30
        while workers.n_idle and time.monotonic() < until:
            time.sleep(0.05)
        after = evaluated(envs, noisy(), config, workers)
        assert [same_episode(a, b) for a, b in zip(after, expected, strict=True)] == [[]] * 5
        assert all(record.attempt == 1 for record in after)


def test_new_variables_mean_new_workers(monkeypatch):
    """A worker that was started with another OpenGL backend draws with that one."""
    host = "lerobot_nb.evaluation.host:EpisodeHost"
    envs = synthetic_envs(1, 1)
    with WarmWorkers() as workers:
        evaluated(envs, noisy(), EvalConfig(batch_size=1, n_spare=0), workers)
        monkeypatch.setenv("MUJOCO_GL", "osmesa")
        assert workers.take(host, True, None) is None and workers.n_idle == 0


def test_a_policy_in_a_worker_does_not_outlive_its_run(tmp_path):
    """Its weights may be others by then."""
    envs = synthetic_envs(1, 1)
    config = EvalConfig(batch_size=1, n_spare=0, placement="worker")
    with WarmWorkers() as workers:
        for _ in range(2):
            policy = PolicySpec("synthetic:Counting", {"log": str(tmp_path / "log")}).build()
            evaluated(envs, policy, config, workers)
            lines = (tmp_path / "log").read_text().split()
    assert lines.count("begin_run") == lines.count("end_run") == 2
