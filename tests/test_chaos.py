"""Two hundred Meta-World episodes while workers and whole runs are killed at random: the final records are those of an undisturbed run."""

import os
import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from lerobot_nb.envs.config import make_env_config
from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import EvalRun, evaluate
from lerobot_nb.results.records import same_episode

TASKS, N_EPISODES = "reach-v3,push-v3,drawer-open-v3,window-close-v3", 50

SCRIPT = textwrap.dedent("""
    import sys
    from lerobot_nb.envs.config import make_env_config
    from lerobot_nb.evaluation.config import EvalConfig
    from lerobot_nb.evaluation.evaluate import evaluate
    from pathlib import Path
    folder = Path(sys.argv[1])
    config = EvalConfig({n_episodes}, batch_size=3, n_spare=1, max_retries=20, placement=sys.argv[2])
    evaluate(make_env_config("metaworld", task={tasks!r}, obs_type="state"), "expert", config, output_dir=folder, resume=(folder / "run.json").exists())
""").format(n_episodes=N_EPISODES, tasks=TASKS)


def children_of(process):
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def workers_of(process):
    """Processes that a kill can meet while they simulate: grandchildren, forked by the fork server."""
    try:
        return [
            child
            for server in psutil.Process(process.pid).children()
            for child in server.children()
            if child.memory_info().rss > 0
        ]
    except psutil.NoSuchProcess:
        return []


@pytest.mark.slow  # 200 real episodes, twice, with 25 restarts
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("placement", ["driver", "worker"])
def test_kills_change_nothing(tmp_path, placement):
    expected = evaluate(
        make_env_config("metaworld", task=TASKS, obs_type="state"),
        "expert",
        EvalConfig(N_EPISODES, batch_size=2),
        output_dir=tmp_path / "expected",
    )
    folder, rng = tmp_path / "run", random.Random(1)
    shared, seen = set(os.listdir("/dev/shm")), []

    def start():
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(folder), placement],
            start_new_session=True,
            stderr=subprocess.PIPE,
            text=True,
        )

    def n_records():
        path = Path(folder, "episodes.jsonl")
        return path.read_bytes().count(b"\n") if path.exists() else 0

    kills = ["worker"] * 4 + ["run"]
    kills = kills * 5  # 20 workers, 5 whole runs
    process = start()
    for number, victim in enumerate(kills):
        target = (number + 1) * (4 * N_EPISODES - 10) // len(kills)  # spread over the plan
        while n_records() < target and process.poll() is None:
            time.sleep(0.02)
        if process.poll() is not None:
            assert process.returncode == 0, process.stderr.read()
            pytest.fail(
                f"the run ended before kill {number} of {len(kills)}: {n_records()} records, {EvalRun.load(folder).status}, {EvalRun.load(folder).reason}"
            )
        time.sleep(rng.random() * 0.2)
        seen += children_of(process)
        if victim == "worker":
            # it has only just begun
            while not (candidates := workers_of(process)) and process.poll() is None:
                time.sleep(0.02)
            assert candidates, f"the run ended before kill {number} of {len(kills)}"
            rng.choice(candidates).kill()
        else:
            process.kill()
            process.wait()
            _, alive = psutil.wait_procs(seen, timeout=10)
            assert not [
                one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE
            ], "orphans"
            assert set(os.listdir("/dev/shm")) <= shared
            process = start()
    assert process.wait(timeout=600) == 0, process.stderr.read()
    run = EvalRun.load(folder)
    assert run.status == "finished" and len(run.manifest["sessions"]) == 6
    for ours, undisturbed in zip(run.records(), expected.records(), strict=True):
        differing = same_episode(ours, undisturbed)
        assert differing == [], {
            name: (getattr(ours, name), getattr(undisturbed, name))
            for name in ("seed", "attempt", *differing)
        }
    assert run.eval_info["overall"]["n_errors"] == 0 and any(
        record.attempt > 1 for record in run.records()
    )
    assert set(os.listdir("/dev/shm")) <= shared
