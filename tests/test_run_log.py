"""A run's log file: only its own lines, and the package's logger is as it was."""

import json
import logging
import threading

from synthetic import synthetic_envs

from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import evaluate
from lerobot_nb.evaluation.interrupts import log_file
from lerobot_nb.policies.base import PolicySpec


class Pausing:
    """A display that waits for the other run, so that the two surely run at the same time."""

    start = log = close = lambda self, *args: None

    def __init__(self, name, barrier):
        self.name, self.barrier, self.n_updates = name, barrier, 0

    def update(self, record, n_steps_total):
        self.n_updates += 1
        if self.n_updates in (1, 3):
            self.barrier.wait(60)
        logging.getLogger("lerobot_nb.evaluation").info("this is %s", self.name)


def lines_of(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_two_runs_in_two_threads_keep_their_lines_apart(tmp_path):
    logger = logging.getLogger("lerobot_nb")
    before = logger.level, logger.propagate, list(logger.handlers)
    barrier, failures = threading.Barrier(2), []

    def run(name, fault_seed):
        envs = synthetic_envs(n_tasks=1, fault="raise", fault_seed=fault_seed, fault_step=1)
        config = EvalConfig(
            4, batch_size=1, n_spare=0, use_async_envs=False, max_retries=0, max_error_rate=1.0
        )
        try:
            evaluate(
                envs,
                PolicySpec("synthetic:Noisy", {}).build(),
                config,
                output_dir=tmp_path / name,
                progress=Pausing(name, barrier),
            )
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    threads = [
        threading.Thread(target=run, args=one) for one in (("first", 1001), ("second", 1003))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    for name, broken in (("first", "synthetic/0/1"), ("second", "synthetic/0/3")):
        lines = lines_of(tmp_path / name)
        assert sum(line["message"].startswith("this is") for line in lines) == 4
        assert {line["message"] for line in lines if line["message"].startswith("this is")} == {
            f"this is {name}"
        }
        assert {line["episode"] for line in lines if "episode" in line} == {broken}
        assert sum(line.get("event") == "start" for line in lines) == 1
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


def test_what_is_shown_elsewhere_does_not_change(tmp_path, caplog):
    """Root handlers get what they got without a run: at the logger's own level, each record once."""
    logger = logging.getLogger("lerobot_nb.somewhere")
    with caplog.at_level(logging.WARNING):
        with log_file(tmp_path / "outer.jsonl"), log_file(tmp_path / "inner.jsonl"):
            logger.info("for the file only")
            logger.warning("for everybody")
    assert [record.message for record in caplog.records] == ["for everybody"]
    assert [
        json.loads(line)["message"] for line in (tmp_path / "inner.jsonl").read_text().splitlines()
    ] == ["for the file only", "for everybody"]
    assert (tmp_path / "outer.jsonl").read_text() == ""


def test_a_level_that_the_user_sets_meanwhile_stays(tmp_path):
    logger = logging.getLogger("lerobot_nb")
    before = logger.level
    try:
        with log_file(tmp_path / "log.jsonl"):
            logger.setLevel(logging.ERROR)
        assert logger.level == logging.ERROR
    finally:
        logger.setLevel(before)


def test_a_helper_thread_of_the_only_run_is_heard(tmp_path):
    with log_file(tmp_path / "log.jsonl"):
        thread = threading.Thread(
            target=logging.getLogger("lerobot_nb.policies").info,
            args=("from a thread of a policy",),
        )
        thread.start()
        thread.join()
    assert "from a thread of a policy" in (tmp_path / "log.jsonl").read_text()
