"""The engine: an episode depends on its spec and on the policy alone, and whatever goes wrong is said, survived and counted."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from synthetic import WholeBatch, synthetic_envs

from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import EvalRun, evaluate
from lerobot_nb.evaluation.progress import Progress
from lerobot_nb.evaluation.rerun import rerun_episode
from lerobot_nb.evaluation.runner import Runner
from lerobot_nb.policies.base import PolicySpec
from lerobot_nb.results.records import append_record, same_episode
from lerobot_nb.results.run_folder import RunFolder, RunFolderError

TESTS = Path(__file__).parent


def noisy(**kwargs):
    return PolicySpec("synthetic:Noisy", kwargs).build()


def assert_equal_runs(ours, expected, but_for=()):
    for a, b in zip(ours.records(), expected.records(), strict=True):
        assert [name for name in same_episode(a, b) if name not in but_for] == []


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The plainest way to run the plan: one slot, in this process."""
    runs = {}

    def run(key, policy, **env):
        if key not in runs:
            config = EvalConfig(
                6, batch_size=1, use_async_envs=False, placement="driver", max_batch=1
            )
            runs[key] = evaluate(
                synthetic_envs(**env),
                policy,
                config,
                output_dir=tmp_path_factory.mktemp("expected") / "run",
            )
        return runs[key]

    return run


@pytest.mark.parametrize("placement", ["driver", "worker"])
@pytest.mark.parametrize("use_async_envs", [True, False])
@pytest.mark.parametrize(
    "batch_size, max_batch, n_spare", [(1, 1, 0), (2, 1, 1), (2, 4, 0), (7, 4, 1)]
)
@pytest.mark.parametrize("k, noise", [(1, 1.0), (4, 0.0)])
def test_records_do_not_depend_on_how_they_are_made(
    expected, tmp_path, placement, use_async_envs, batch_size, max_batch, n_spare, k, noise
):
    if placement == "worker" and (max_batch, n_spare) != (4, 1) and batch_size != 1:
        pytest.skip("max_batch and n_spare say nothing where the policy is in the worker")
    config = EvalConfig(
        6,
        batch_size=batch_size,
        max_batch=max_batch,
        n_spare=n_spare,
        use_async_envs=use_async_envs,
        placement=placement,
    )
    run = evaluate(synthetic_envs(), noisy(k=k, noise=noise), config, output_dir=tmp_path / "run")
    assert_equal_runs(run, expected((k, noise), noisy(k=k, noise=noise)))
    assert (
        run.eval_info["overall"]["n_evaluated"] == 18
        and 0 < run.eval_info["overall"]["n_success"] < 18
    )


def test_a_plain_loop_gives_the_same_numbers(expected):
    """Two ways to the same answer: no line of the engine in this one."""
    from synthetic import Synthetic

    from lerobot_nb.envs.base import EpisodeSpec
    from lerobot_nb.policies.base import Episode

    for record in expected((1, 1.0), noisy(k=1, noise=1.0)).records():
        env = Synthetic()
        observation, _ = env.reset(seed=record.seed)
        rng = Episode(
            EpisodeSpec("synthetic", record.task_id, record.episode_index, record.seed), None
        ).numpy_generator()
        rewards, ended = [], False
        while not ended:
            action = (0.1 * observation["agent_pos"][:2] + rng.uniform(-1, 1, (1, 2))[0]).astype(
                np.float32
            )
            observation, reward, terminated, truncated, info = env.step(action)
            rewards.append(reward)
            ended = terminated or truncated
        assert (record.n_steps, record.success) == (len(rewards), info["is_success"])
        assert record.sum_reward == pytest.approx(
            sum(rewards), abs=1e-12
        ) and record.max_reward == max(rewards)


def test_pixels_and_videos_do_not_change_results(expected, tmp_path):
    plain = expected("pixels", noisy(k=3), pixels=True)
    filmed = evaluate(
        synthetic_envs(pixels=True, render_mode="rgb_array"),
        noisy(k=3),
        EvalConfig(6, batch_size=3, render="failures"),
        output_dir=tmp_path / "run",
    )
    assert_equal_runs(filmed, plain, but_for=("video_path",))
    for record in filmed.records():
        assert (record.video_path is not None) == (not record.success)
        assert record.video_path is None or (filmed.folder / record.video_path).stat().st_size > 0
    assert len(list((filmed.folder / "videos").iterdir())) == sum(
        not record.success for record in filmed.records()
    )


def test_lock_step(expected, tmp_path):
    runs = [
        evaluate(
            synthetic_envs(),
            WholeBatch(),
            EvalConfig(6, batch_size=size, n_spare=spare),
            output_dir=tmp_path / f"{size}{spare}",
        )
        for size, spare in ((1, 0), (4, 1), (5, 0))
    ]
    assert all(run.manifest["runner"]["lock_step"] for run in runs)
    for run in runs[1:]:
        assert_equal_runs(run, runs[0])


@pytest.mark.parametrize("fault", ["kill", "segfault", "raise", "exit", "hang", "bad_shape"])
@pytest.mark.parametrize("fault_step", [0, 2])
def test_a_lost_worker_costs_nothing_but_time(expected, tmp_path, fault, fault_step):
    if fault == "bad_shape" and fault_step == 0:
        pytest.skip("only steps give the wrong shape")
    # long enough for a busy machine
    patience = dict(step_timeout_s=6, reset_timeout_s=8) if fault == "hang" else {}
    config = EvalConfig(6, batch_size=3, **patience)
    envs = synthetic_envs(
        fault=fault, fault_seed=1002, fault_step=fault_step, once=str(tmp_path / "once")
    )
    run = evaluate(envs, noisy(), config, output_dir=tmp_path / "run")
    assert_equal_runs(run, expected((1, 1.0), noisy(k=1, noise=1.0)))
    assert run.manifest["times"]["n_replaced_workers"] >= 1
    assert sum(record.attempt == 2 for record in run.records()) >= 1
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert any(
        line.get("event") == "retry" and line["episode"] and line["attempt"] == 1 for line in lines
    )


@pytest.mark.parametrize("placement", ["driver", "worker"])
@pytest.mark.parametrize(
    "fault, words",
    [
        ("kill", "SIGKILL"),
        ("segfault", "SIGSEGV"),
        ("raise", "the physics went to infinity"),
        ("hang", "no answer"),
    ],
)
def test_a_fault_that_stays_is_an_error_and_no_failure(expected, tmp_path, fault, words, placement):
    patience = dict(step_timeout_s=4, reset_timeout_s=6) if fault == "hang" else {}
    config = EvalConfig(
        6, batch_size=3, max_retries=1, max_error_rate=0.5, placement=placement, **patience
    )
    run = evaluate(
        synthetic_envs(fault=fault, fault_seed=1003, fault_step=3),
        noisy(),
        config,
        output_dir=tmp_path / "run",
    )
    broken = [record for record in run.records() if record.end_reason == "error"]
    assert [record.key for record in broken] == [("synthetic", task_id, 3) for task_id in range(3)]
    assert all(
        words in record.error and record.attempt == 2 and record.success is None
        for record in broken
    )
    overall = run.eval_info["overall"]
    assert (overall["n_episodes"], overall["n_evaluated"], overall["n_errors"]) == (18, 15, 3)
    whole = [record for record in run.records() if record.end_reason != "error"]
    assert overall["pc_success"] == pytest.approx(
        100 * sum(record.success for record in whole) / 15
    )
    if fault == "raise":
        assert "FloatingPointError" in broken[0].error and "Traceback" in broken[0].error


def test_a_worker_that_never_comes_up(tmp_path):
    run = evaluate(
        synthetic_envs(n_tasks=1, fault="hang", fault_step=-1),
        noisy(),
        EvalConfig(2, reset_timeout_s=1, step_timeout_s=1, max_retries=0),
        output_dir=tmp_path / "run",
    )
    assert run.status == "stopped" and run.exit_code == 3 and "max_error_rate" in run.reason
    assert EvalRun.load(run.folder).eval_info["overall"]["n_errors"] >= 1


@pytest.mark.parametrize("placement", ["driver", "worker"])
@pytest.mark.parametrize(
    "fault, words",
    [
        ("raise", "the policy divided by zero"),
        ("nan", "non-finite action"),
        ("shape", "actions of shape (1, 1, 3)"),
        ("raise_begin", "no such instruction"),
    ],
)
def test_a_policy_that_fails(tmp_path, fault, words, placement):
    config = EvalConfig(6, batch_size=3, max_batch=1, max_error_rate=1.0, placement=placement)
    run = evaluate(
        synthetic_envs(), noisy(fault=fault, fault_seed=1004), config, output_dir=tmp_path / "run"
    )
    broken = [record for record in run.records() if record.end_reason == "error"]
    assert [record.episode_index for record in broken] == [4, 4, 4]
    # a second try would end the same way
    assert all(words in record.error and record.attempt == 1 for record in broken)
    assert run.status == "finished" and run.eval_info["overall"]["n_evaluated"] == 15


def test_a_non_finite_reward_is_written_as_null(tmp_path):
    run = evaluate(
        synthetic_envs(n_tasks=1, fault="nan_reward", fault_seed=1001, fault_step=2),
        noisy(),
        EvalConfig(3),
        output_dir=tmp_path / "run",
    )
    assert run.records()[1].sum_reward is None and run.records()[1].max_reward is None
    json.loads(
        (run.folder / "eval_info.json").read_text(),
        parse_constant=lambda name: pytest.fail(f"{name} is no strict JSON"),
    )


def test_a_video_that_fails_is_said_and_the_episode_counts(expected, tmp_path):
    """A file takes the place of the folder of the videos, just when the run begins: no frame can be
    written.
    """
    folder = tmp_path / "run"

    class InTheWay(Progress):
        def start(self, *args, **kwargs):
            (folder / "videos").write_text("in the way")

    run = evaluate(
        synthetic_envs(render_mode="rgb_array"),
        noisy(),
        EvalConfig(6, batch_size=2, render="first:1"),
        output_dir=folder,
        progress=InTheWay(),
    )
    assert_equal_runs(run, expected((1, 1.0), noisy(k=1, noise=1.0)), but_for=("error",))
    assert all(
        ("video" in (record.error or "")) == (record.episode_index == 0) for record in run.records()
    )


def test_a_full_disk_stops_the_run_and_leaves_it_resumable(expected, tmp_path, monkeypatch):
    written = []

    def append(self, record):
        if len(written) == 5:
            raise OSError(28, "No space left on device")
        written.append(record)
        append_record(self.episodes_path, record)

    monkeypatch.setattr(RunFolder, "append", append)
    with pytest.raises(OSError, match="No space left"):
        evaluate(
            synthetic_envs(), noisy(), EvalConfig(6, batch_size=2), output_dir=tmp_path / "run"
        )
    monkeypatch.undo()
    stopped = EvalRun.load(tmp_path / "run")
    assert (
        stopped.status == "interrupted"
        and "No space left" in stopped.reason
        and len(stopped.records()) == 5
    )
    run = evaluate(
        synthetic_envs(),
        noisy(),
        EvalConfig(6, batch_size=3),
        output_dir=tmp_path / "run",
        resume=True,
    )
    assert_equal_runs(run, expected((1, 1.0), noisy(k=1, noise=1.0)))


@pytest.mark.parametrize("seed", range(5))
def test_interrupted_anywhere_and_resumed(expected, tmp_path, seed):
    class Interrupt:
        """Ctrl-C after some episodes."""

        def __init__(self, after):
            self.after = after

        start = log = close = lambda self, *args: None

        def update(self, record, n_steps_total):
            self.after -= 1
            if not self.after:
                raise KeyboardInterrupt

    rng, folder = np.random.default_rng(seed), tmp_path / "run"
    config = EvalConfig(
        6, batch_size=int(rng.integers(1, 8)), placement=str(rng.choice(["driver", "worker"]))
    )
    with pytest.raises(KeyboardInterrupt):
        evaluate(
            synthetic_envs(),
            noisy(),
            config,
            output_dir=folder,
            progress=Interrupt(int(rng.integers(1, 17))),
        )
    assert EvalRun.load(folder).status == "interrupted"
    with open(folder / "episodes.jsonl", "rb+") as file:  # and the last line torn somewhere
        file.truncate(file.seek(0, os.SEEK_END) - int(rng.integers(0, 50)))
    run = evaluate(
        synthetic_envs(),
        noisy(),
        dataclasses.replace(config, batch_size=2),
        output_dir=folder,
        resume=True,
    )
    assert run.status == "finished"
    assert_equal_runs(run, expected((1, 1.0), noisy(k=1, noise=1.0)))


def test_what_has_changed_is_named(tmp_path):
    evaluate(synthetic_envs(), noisy(), EvalConfig(2), output_dir=tmp_path / "run")
    with pytest.raises(RunFolderError, match="holds a run already"):
        evaluate(synthetic_envs(), noisy(), EvalConfig(2), output_dir=tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"plan.seed: 1000 then, 7 now"):
        evaluate(
            synthetic_envs(),
            noisy(),
            EvalConfig(2, seed=7),
            output_dir=tmp_path / "run",
            resume=True,
        )
    with pytest.raises(RunFolderError, match=r"policy.kwargs.noise: null then, 0.5 now"):
        evaluate(
            synthetic_envs(),
            noisy(noise=0.5),
            EvalConfig(2),
            output_dir=tmp_path / "run",
            resume=True,
        )


def test_errors_are_retried_on_demand(tmp_path):
    envs = lambda: synthetic_envs(
        n_tasks=1, fault="raise", fault_seed=1001, fault_step=1, once=str(tmp_path / "once")
    )
    config = EvalConfig(3, max_retries=0, max_error_rate=0.5)
    run = evaluate(envs(), noisy(), config, output_dir=tmp_path / "run")
    assert run.eval_info["overall"]["n_errors"] == 1
    run = evaluate(envs(), noisy(), config, output_dir=tmp_path / "run", resume=True)
    assert run.eval_info["overall"]["n_errors"] == 1
    run = evaluate(
        envs(), noisy(), config, output_dir=tmp_path / "run", resume=True, retry_errors=True
    )
    assert (
        run.eval_info["overall"]["n_errors"] == 0 and run.eval_info["overall"]["n_evaluated"] == 3
    )


SCRIPT = textwrap.dedent("""
    import signal, sys
    signal.signal(signal.SIGINT, signal.default_int_handler)     # also where the tests run in the background, which ignores Ctrl-C
    sys.path.insert(0, {tests!r})
    from synthetic import synthetic_envs
    from lerobot_nb.evaluation.config import EvalConfig
    from lerobot_nb.evaluation.evaluate import evaluate
    evaluate(synthetic_envs(step_s={step_s}, reset_s=0.01), "synthetic:Noisy", EvalConfig({n}, batch_size=3, n_spare=1, placement={placement!r}),
             output_dir={folder!r}, resume={resume})
""")


def start_script(folder, n=40, placement="driver", resume=False, step_s=0.002):
    code = SCRIPT.format(
        tests=str(TESTS), n=n, folder=str(folder), placement=placement, resume=resume, step_s=step_s
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_records(folder, count, process):
    path = Path(folder) / "episodes.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.02)
    pytest.fail(
        f"no {count} records: {process.communicate()[0] if process.poll() is not None else 'too slow'}"
    )


def family(process):
    return psutil.Process(process.pid).children(recursive=True)


def assert_gone(processes):
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def shared_files(processes):
    """Files in /dev/shm that the processes have mapped; those of others are not looked at."""
    lines = [
        line
        for process in processes
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines()
        if "/dev/shm/" in line and not line.endswith("(deleted)")
    ]
    return {Path(line[line.index("/dev/shm/") :]) for line in lines}


@pytest.mark.parametrize(
    "number, code", [(signal.SIGINT, None), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signals_leave_a_valid_folder_and_no_process(tmp_path, number, code):
    process = start_script(tmp_path / "run", step_s=0.03)
    wait_for_records(tmp_path / "run", 5, process)
    children = family(process)
    assert len(children) >= 4
    os.kill(process.pid, number)
    output, _ = process.communicate(timeout=30)
    assert code is None or process.returncode == code, output
    assert_gone(children)
    run = EvalRun.load(tmp_path / "run")
    assert run.status == "interrupted" and len(run.records()) >= 5
    assert run.eval_info["overall"]["n_episodes"] == len(run.records())


def test_a_killed_run_leaves_no_orphan_and_no_lock(tmp_path):
    # slow enough not to end by itself on a busy machine
    process = start_script(tmp_path / "run", placement="worker", step_s=0.03)
    wait_for_records(tmp_path / "run", 3, process)
    with pytest.raises(RunFolderError, match="another run is writing"):
        RunFolder(tmp_path / "run").open(resume=True)
    children = family(process)
    assert len(children) >= 4
    shared = shared_files(children)
    process.kill()
    process.wait()
    assert_gone(children)
    assert not [path for path in shared if path.exists()]
    run = evaluate(
        synthetic_envs(step_s=0.002, reset_s=0.01),
        "synthetic:Noisy",
        EvalConfig(40, batch_size=4),
        output_dir=tmp_path / "run",
        resume=True,
    )
    assert run.status == "finished" and len(run.records()) == 120


def test_an_episode_is_run_again_from_its_record(tmp_path):
    from lerobot_nb.envs.config import make_env_config

    run = evaluate(
        make_env_config("metaworld", task="reach-v3", obs_type="state"),
        "random",
        EvalConfig(2),
        output_dir=tmp_path / "run",
    )
    record, differences = rerun_episode(run.folder, "reach-v3/0/1", video=False)
    assert differences == [] and record.seed == 1001
    with pytest.raises(ValueError, match="reach-v3/0/0"):
        rerun_episode(run.folder, "reach-v3/0/9")


def test_simulators_are_kept(tmp_path):
    """Workers live across tasks, and keep a simulator while episodes of its task are left: as many
    constructions as tasks, and a few for those who help at the end.
    """
    envs = synthetic_envs(n_tasks=4, construction_log=str(tmp_path / "built"))
    run = evaluate(
        envs,
        noisy(),
        EvalConfig(20, batch_size=2, n_spare=1, placement="driver"),
        output_dir=tmp_path / "run",
    )
    pids = (tmp_path / "built").read_text().split()
    assert len(run.records()) == 80 and len(set(pids)) <= 3 and len(pids) <= 4 + 2 * 3


def test_a_policy_in_training_mode_is_put_back(tmp_path):
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.modes = torch.nn.Linear(3, 2), set()

        def predict_action_chunk(self, batch):
            self.modes.add(self.training)
            return torch.tanh(self.layer(batch["observation.state"]))[:, None]

    net = Net().train()
    before = torch.get_rng_state().clone(), np.random.get_state()[1].copy()
    evaluate(synthetic_envs(n_tasks=1), net, EvalConfig(2), output_dir=tmp_path / "run")
    assert net.training and net.modes == {False}
    assert torch.equal(before[0], torch.get_rng_state()) and np.array_equal(
        before[1], np.random.get_state()[1]
    )


def test_the_parent_does_not_grow(tmp_path):
    """2,000 episodes: what the parent keeps does not depend on how many there are."""
    import tracemalloc

    from lerobot_nb.evaluation.plan import Plan

    envs = synthetic_envs(n_tasks=2, longest=6)["synthetic"]
    runner = Runner(
        Plan(tuple(env.task for env in envs.values()), 1000),
        lambda task: envs[task.task_id].factories[0],
        noisy(),
        EvalConfig(1000, batch_size=4),
        placement="worker",
    )
    sizes = []
    tracemalloc.start()
    for count, _ in enumerate(runner.run(), start=1):
        if count % 500 == 0:
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert count == 2000 and sizes[-1] - sizes[0] < 200_000, sizes


# --- what a close reading found: each of these went wrong once


@pytest.mark.parametrize("placement", ["driver", "worker"])
@pytest.mark.parametrize("max_retries", [0, 2])
def test_an_idle_worker_that_dies_takes_no_record_with_it(
    expected, tmp_path, placement, max_retries
):
    """At the end of a plan workers have nothing left to do; what becomes of them does not matter to
    what they have done.
    """

    class KillIdle:
        start = log = close = lambda self, *args: None

        def update(self, record, n_steps_total):
            for seat in runners[0]._seats:
                if (
                    seat.phase == "idle"
                    and seat.worker is not None
                    and seat not in killed
                    and not runners[0].schedule.n_left
                ):
                    os.kill(seat.worker.pid, signal.SIGKILL)
                    killed.append(seat)

    runners, killed = [], []
    original = Runner.run

    def run(self):
        runners.append(self)
        return original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "run", run)
        config = EvalConfig(
            6, batch_size=4, n_spare=0, max_retries=max_retries, placement=placement
        )
        done = evaluate(
            synthetic_envs(step_s=0.001),
            noisy(),
            config,
            output_dir=tmp_path / "run",
            progress=KillIdle(),
        )
    assert killed
    assert_equal_runs(done, expected((1, 1.0), noisy(k=1, noise=1.0)))
    assert (tmp_path / "run" / "episodes.jsonl").read_text().count("\n") == 18


@pytest.mark.parametrize("fault", ["raise", "nan", "shape"])
def test_an_episode_does_not_pay_for_its_neighbours(expected, tmp_path, fault):
    config = EvalConfig(
        6, batch_size=6, max_batch=6, max_wait_s=0.05, max_error_rate=1.0, placement="driver"
    )
    run = evaluate(
        synthetic_envs(), noisy(fault=fault, fault_seed=1004), config, output_dir=tmp_path / "run"
    )
    for record, good in zip(
        run.records(), expected((1, 1.0), noisy(k=1, noise=1.0)).records(), strict=True
    ):
        if record.episode_index == 4:
            assert record.end_reason == "error"
        else:
            assert same_episode(record, good) == []


@pytest.mark.parametrize(
    "way",
    [
        dict(use_async_envs=False, placement="driver"),
        dict(placement="driver"),
        dict(placement="worker"),
    ],
)
def test_what_a_policy_keeps_does_not_change_under_its_hands(tmp_path, way):
    policy = PolicySpec("synthetic:Remembering", {}).build()
    run = evaluate(
        synthetic_envs(n_tasks=1),
        policy,
        EvalConfig(3, batch_size=1, **way),
        output_dir=tmp_path / "run",
    )
    assert run.status == "finished" and run.eval_info["overall"]["n_errors"] == 0, run.records()[
        0
    ].error


def test_the_policy_sees_what_the_space_promises_wherever_it_runs(tmp_path):
    """The environment returns float64 and a key too many; the space says float32."""
    ways = [
        dict(use_async_envs=False, placement="driver"),
        dict(placement="driver"),
        dict(placement="worker"),
    ]
    runs = [
        evaluate(
            synthetic_envs(n_tasks=1, sloppy=True),
            noisy(),
            EvalConfig(4, **way),
            output_dir=tmp_path / str(number),
        )
        for number, way in enumerate(ways)
    ]
    for run in runs[1:]:
        assert_equal_runs(run, runs[0])


def test_tasks_with_different_spaces_are_not_mixed_in_one_batch(tmp_path):
    from lerobot_nb.envs.config import make_env_config

    config = make_env_config("gym", gym_id="CartPole-v1,Acrobot-v1", episode_length=30)
    runs = [
        evaluate(
            config,
            "random",
            EvalConfig(2, batch_size=size, max_batch=size, max_wait_s=0.05, placement="driver"),
            output_dir=tmp_path / str(size),
        )
        for size in (1, 4)
    ]
    assert runs[1].eval_info["overall"]["n_errors"] == 0
    assert_equal_runs(runs[1], runs[0])


@pytest.mark.parametrize("placement", ["driver", "worker"])
def test_a_policy_that_raises_at_the_end_of_an_episode(expected, tmp_path, placement):
    run = evaluate(
        synthetic_envs(),
        noisy(fault="raise_end", fault_seed=1002),
        EvalConfig(6, batch_size=2, placement=placement),
        output_dir=tmp_path / "run",
    )
    assert_equal_runs(run, expected((1, 1.0), noisy(k=1, noise=1.0)))
    assert run.manifest["times"]["n_replaced_workers"] == 0


@pytest.mark.parametrize(
    "way",
    [
        dict(placement="driver"),
        dict(placement="worker"),
        dict(placement="worker", use_async_envs=False),
    ],
)
def test_long_chunks_and_slow_policies_are_not_taken_for_hangs(tmp_path, way):
    config = EvalConfig(2, batch_size=2, step_timeout_s=2, reset_timeout_s=2, max_retries=0, **way)
    slow_steps = evaluate(
        synthetic_envs(n_tasks=1, step_s=0.6, longest=8),
        noisy(k=8),
        config,
        output_dir=tmp_path / "steps",
    )
    slow_policy = evaluate(
        synthetic_envs(n_tasks=1, longest=8),
        noisy(k=8, look_s=5),
        config,
        output_dir=tmp_path / "looks",
    )
    assert (
        slow_steps.eval_info["overall"]["n_errors"]
        == slow_policy.eval_info["overall"]["n_errors"]
        == 0
    )


@pytest.mark.parametrize("placement", ["driver", "worker"])
def test_a_run_that_was_frozen_goes_on(tmp_path, placement):
    code = SCRIPT.format(
        tests=str(TESTS),
        n=10,
        folder=str(tmp_path / "run"),
        placement=placement,
        resume=False,
        step_s=0.002,
    ).replace("n_spare=1,", "n_spare=1, max_retries=0, step_timeout_s=5, reset_timeout_s=5,")
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_for_records(tmp_path / "run", 3, process)
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(8)
    os.killpg(process.pid, signal.SIGCONT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert [
        record.error
        for record in EvalRun.load(tmp_path / "run").records()
        if record.end_reason == "error"
    ] == []


@pytest.mark.parametrize("fault", ["raise", "raise_begin", None])
def test_lock_step_with_state_and_faults(expected, tmp_path, fault):
    policy = noisy(fault=fault, fault_seed=1002)
    policy.lock_step, policy.placements = True, ("driver",)
    run = evaluate(
        synthetic_envs(),
        policy,
        EvalConfig(6, batch_size=3, n_spare=2, max_error_rate=1.0),
        output_dir=tmp_path / "run",
    )
    for record, good in zip(
        run.records(), expected((1, 1.0), noisy(k=1, noise=1.0)).records(), strict=True
    ):
        if fault and record.episode_index == 2:
            assert record.end_reason == "error" and record.attempt <= 2
        else:
            assert same_episode(record, good) == []


@pytest.mark.parametrize("fault_step", [0, 3])
def test_a_worker_lost_in_lock_step(tmp_path, fault_step):
    plain = evaluate(
        synthetic_envs(), WholeBatch(), EvalConfig(6, batch_size=1), output_dir=tmp_path / "plain"
    )
    envs = synthetic_envs(
        fault="kill", fault_seed=1002, fault_step=fault_step, once=str(tmp_path / "once")
    )
    run = evaluate(
        envs, WholeBatch(), EvalConfig(6, batch_size=4, n_spare=1), output_dir=tmp_path / "run"
    )
    assert_equal_runs(run, plain)


def test_nohup_is_respected(tmp_path):
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + SCRIPT.format(
        tests=str(TESTS),
        n=6,
        folder=str(tmp_path / "run"),
        placement="driver",
        resume=False,
        step_s=0.002,
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_for_records(tmp_path / "run", 3, process)
    os.kill(process.pid, signal.SIGHUP)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and EvalRun.load(tmp_path / "run").status == "finished", output


def test_a_run_with_too_many_errors_keeps_all_of_them_and_stays_stopped(tmp_path):
    config = EvalConfig(6, batch_size=6, max_retries=0, max_error_rate=0.2)
    envs = lambda: synthetic_envs(n_tasks=1, fault="raise", fault_seed=1001, fault_step=1)
    run = evaluate(
        envs(), noisy(fault="raise", fault_seed=1002), config, output_dir=tmp_path / "run"
    )
    assert run.status == "stopped" and run.exit_code == 3
    errors = [record for record in run.records() if record.end_reason == "error"]
    assert len(errors) == 2 and run.reason.startswith("2 of 6")
    again = evaluate(
        envs(),
        noisy(fault="raise", fault_seed=1002),
        config,
        output_dir=tmp_path / "run",
        resume=True,
    )
    assert again.status == "stopped" and again.exit_code == 3


def test_no_film_of_an_interrupted_episode_is_left(tmp_path):
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            SCRIPT.format(
                tests=str(TESTS),
                n=40,
                folder=str(tmp_path / "run"),
                placement="worker",
                resume=False,
                step_s=0.002,
            )
            .replace("step_s=0.002", "step_s=0.002, render_mode='rgb_array'")
            .replace("n_spare=1,", "n_spare=1, render='failures',"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_for_records(tmp_path / "run", 6, process)
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=30)
    run = EvalRun.load(tmp_path / "run")
    recorded = {record.video_path for record in run.records()} - {None}
    assert {f"videos/{path.name}" for path in (run.folder / "videos").iterdir()} == recorded


def test_a_vector_environment_recovers_from_a_lost_worker():
    from lerobot_nb.envs.base import EnvFactory
    from lerobot_nb.envs.vector import LazyVectorEnv
    from lerobot_nb.envs.workers import WorkerDied

    env = LazyVectorEnv(EnvFactory("synthetic:Synthetic", {}), n_envs=2)
    try:
        before, _ = env.reset(seed=7)
        os.kill(env._workers[1].pid, signal.SIGKILL)
        time.sleep(0.2)
        with pytest.raises(WorkerDied):
            env.step(np.zeros((2, 2), np.float32))
        after, _ = env.reset(seed=7)
        assert np.array_equal(before["agent_pos"], after["agent_pos"])
    finally:
        env.close()
    broken = LazyVectorEnv(EnvFactory("synthetic:Synthetic", {"no_such_argument": 1}), n_envs=2)
    for _ in range(2):
        with pytest.raises(TypeError, match="no_such_argument"):
            broken.reset(seed=0)


def test_a_fork_server_that_hangs_is_noticed(tmp_path):
    Path(tmp_path, "hangs_at_import.py").write_text("import time\ntime.sleep(600)\n")
    code = textwrap.dedent(f"""
        import os, sys
        os.environ["PYTHONPATH"] = {str(tmp_path)!r}
        sys.path.insert(0, {str(tmp_path)!r})
        from lerobot_nb.envs.workers import Worker, WorkerHung, preload_modules
        preload_modules(["hangs_at_import"])
        try:
            Worker(start_timeout_s=2)
        except WorkerHung as error:
            print("noticed", error)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "noticed" in done.stdout, done.stderr


def test_an_import_that_failed_in_the_fork_server_is_tried_anew(tmp_path):
    """A package that probes something when it is imported, as glfw does, and keeps the answer in a
    submodule.
    """
    (tmp_path / "probing").mkdir()
    (tmp_path / "probing/found.py").write_text(
        "import os\nanswer = os.path.exists(os.environ['PROBED'])\nopen(os.environ['PROBED'], 'w').close()\n"
    )
    (tmp_path / "probing/__init__.py").write_text(
        "from . import found\nif not found.answer:\n    raise ImportError('the probe failed')\n"
    )
    (tmp_path / "probing_env.py").write_text(
        "import synthetic\n\ndef make(**kwargs):\n    import probing\n    return synthetic.Synthetic(**kwargs)\n"
    )
    (tmp_path / "script.py").write_text(
        textwrap.dedent("""
        from lerobot_nb.envs.base import EnvFactory
        from lerobot_nb.envs.workers import Worker, close_workers, preload_modules

        preload_modules(["probing"])
        worker = Worker()
        worker.wait_started()
        worker.ask("build", EnvFactory("probing_env:make", {}), timeout_s=60)
        close_workers([worker])
    """)
    )
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(TESTS), str(TESTS.parent)]),
        "PROBED": str(tmp_path / "probed"),
    }
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "probed").exists()
