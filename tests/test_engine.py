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
from synthetic import Noisy, WholeBatch, synthetic_envs

from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import EvalRun, evaluate, rerun_episode
from lerobot_nb.evaluation.run_folder import RunFolder, RunFolderError
from lerobot_nb.policies.base import PolicySpec
from lerobot_nb.results.records import append_record, same_episode

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
            config = EvalConfig(6, batch_size=1, use_async_envs=False, placement="driver", max_batch=1)
            runs[key] = evaluate(synthetic_envs(**env), policy, config, output_dir=tmp_path_factory.mktemp("expected") / "run")
        return runs[key]
    return run


@pytest.mark.parametrize("placement", ["driver", "worker"])
@pytest.mark.parametrize("use_async_envs", [True, False])
@pytest.mark.parametrize("batch_size, max_batch, n_spare", [(1, 1, 0), (2, 1, 1), (2, 4, 0), (7, 4, 1)])
@pytest.mark.parametrize("k, noise", [(1, 1.0), (4, 0.0)])
def test_records_do_not_depend_on_how_they_are_made(expected, tmp_path, placement, use_async_envs, batch_size, max_batch, n_spare, k, noise):
    if placement == "worker" and (max_batch, n_spare) != (4, 1) and batch_size != 1:
        pytest.skip("max_batch and n_spare say nothing where the policy is in the worker")
    config = EvalConfig(6, batch_size=batch_size, max_batch=max_batch, n_spare=n_spare, use_async_envs=use_async_envs, placement=placement)
    run = evaluate(synthetic_envs(), noisy(k=k, noise=noise), config, output_dir=tmp_path / "run")
    assert_equal_runs(run, expected((k, noise), noisy(k=k, noise=noise)))
    assert run.eval_info["overall"]["n_evaluated"] == 18 and 0 < run.eval_info["overall"]["n_success"] < 18


def test_a_plain_loop_gives_the_same_numbers(expected):
    """Two ways to the same answer: no line of the engine in this one."""
    from synthetic import Synthetic

    from lerobot_nb.envs.base import EpisodeSpec
    from lerobot_nb.policies.base import Episode

    for record in expected((1, 1.0), noisy(k=1, noise=1.0)).records():
        env = Synthetic()
        observation, _ = env.reset(seed=record.seed)
        rng = Episode(EpisodeSpec("synthetic", record.task_id, record.episode_index, record.seed), None).numpy_generator()
        rewards, ended = [], False
        while not ended:
            action = (0.1 * observation["agent_pos"][:2] + rng.uniform(-1, 1, (1, 2))[0]).astype(np.float32)
            observation, reward, terminated, truncated, info = env.step(action)
            rewards.append(reward)
            ended = terminated or truncated
        assert (record.n_steps, record.success) == (len(rewards), info["is_success"])
        assert record.sum_reward == pytest.approx(sum(rewards), abs=1e-12) and record.max_reward == max(rewards)


def test_pixels_and_videos_do_not_change_results(expected, tmp_path):
    plain = expected("pixels", noisy(k=3), pixels=True)
    filmed = evaluate(synthetic_envs(pixels=True, render_mode="rgb_array"), noisy(k=3), EvalConfig(6, batch_size=3, render="failures"), output_dir=tmp_path / "run")
    assert_equal_runs(filmed, plain, but_for=("video_path",))
    for record in filmed.records():
        assert (record.video_path is not None) == (not record.success)
        assert record.video_path is None or (filmed.folder / record.video_path).stat().st_size > 0
    assert len(list((filmed.folder / "videos").iterdir())) == sum(not record.success for record in filmed.records())


def test_lock_step(expected, tmp_path):
    runs = [
        evaluate(synthetic_envs(), WholeBatch(), EvalConfig(6, batch_size=size, n_spare=spare), output_dir=tmp_path / f"{size}{spare}")
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
    config = EvalConfig(6, batch_size=3, step_timeout_s=2, reset_timeout_s=3)
    envs = synthetic_envs(fault=fault, fault_seed=1002, fault_step=fault_step, once=str(tmp_path / "once"))
    run = evaluate(envs, noisy(), config, output_dir=tmp_path / "run")
    assert_equal_runs(run, expected((1, 1.0), noisy(k=1, noise=1.0)))
    assert run.manifest["times"]["n_replaced_workers"] >= 1
    assert sum(record.attempt == 2 for record in run.records()) == 1
    assert (tmp_path / "run" / "run.log").read_text().count("tried again") == 1


@pytest.mark.parametrize("placement", ["driver", "worker"])
@pytest.mark.parametrize("fault, words", [("kill", "SIGKILL"), ("segfault", "SIGSEGV"), ("raise", "the physics went to infinity"), ("hang", "no answer")])
def test_a_fault_that_stays_is_an_error_and_no_failure(expected, tmp_path, fault, words, placement):
    config = EvalConfig(6, batch_size=3, step_timeout_s=1, reset_timeout_s=1, max_retries=1, max_error_rate=0.5, placement=placement)
    run = evaluate(synthetic_envs(fault=fault, fault_seed=1003, fault_step=3), noisy(), config, output_dir=tmp_path / "run")
    broken = [record for record in run.records() if record.end_reason == "error"]
    assert [record.key for record in broken] == [("synthetic", task_id, 3) for task_id in range(3)]
    assert all(words in record.error and record.attempt == 2 and record.success is None for record in broken)
    overall = run.eval_info["overall"]
    assert (overall["n_episodes"], overall["n_evaluated"], overall["n_errors"]) == (18, 15, 3)
    whole = [record for record in run.records() if record.end_reason != "error"]
    assert overall["pc_success"] == pytest.approx(100 * sum(record.success for record in whole) / 15)
    if fault == "raise":
        assert "FloatingPointError" in broken[0].error and "Traceback" in broken[0].error


def test_a_worker_that_never_comes_up(tmp_path):
    run = evaluate(synthetic_envs(n_tasks=1, fault="hang", fault_step=-1), noisy(), EvalConfig(2, reset_timeout_s=1, step_timeout_s=1, max_retries=0), output_dir=tmp_path / "run")
    assert run.status == "stopped" and run.exit_code == 3 and "max_error_rate" in run.reason
    assert EvalRun.load(run.folder).eval_info["overall"]["n_errors"] >= 1


@pytest.mark.parametrize("placement", ["driver", "worker"])
@pytest.mark.parametrize("fault, words", [
    ("raise", "the policy divided by zero"), ("nan", "non-finite action"), ("shape", "actions of shape (1, 1, 3)"), ("raise_begin", "no such instruction"),
])
def test_a_policy_that_fails(tmp_path, fault, words, placement):
    config = EvalConfig(6, batch_size=3, max_batch=1, max_error_rate=1.0, placement=placement)
    run = evaluate(synthetic_envs(), noisy(fault=fault, fault_seed=1004), config, output_dir=tmp_path / "run")
    broken = [record for record in run.records() if record.end_reason == "error"]
    assert [record.episode_index for record in broken] == [4, 4, 4]
    assert all(words in record.error and record.attempt == 1 for record in broken)     # a second try would end the same way
    assert run.status == "finished" and run.eval_info["overall"]["n_evaluated"] == 15


def test_a_non_finite_reward_is_written_as_null(tmp_path):
    run = evaluate(synthetic_envs(n_tasks=1, fault="nan_reward", fault_seed=1001, fault_step=2), noisy(), EvalConfig(3), output_dir=tmp_path / "run")
    assert run.records()[1].sum_reward is None
    json.loads((run.folder / "eval_info.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no strict JSON"))


def test_a_video_that_fails_is_said_and_the_episode_counts(expected, tmp_path):
    """The folder of the videos is a file: no frame can be written."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "videos").write_text("in the way")
    run = evaluate(synthetic_envs(render_mode="rgb_array"), noisy(), EvalConfig(6, batch_size=2, render="first:1"), output_dir=folder)
    assert_equal_runs(run, expected((1, 1.0), noisy(k=1, noise=1.0)), but_for=("error",))
    assert all(("video" in (record.error or "")) == (record.episode_index == 0) for record in run.records())


def test_a_full_disk_stops_the_run_and_leaves_it_resumable(expected, tmp_path, monkeypatch):
    written = []

    def append(self, record):
        if len(written) == 5:
            raise OSError(28, "No space left on device")
        written.append(record)
        append_record(self.episodes_path, record)

    monkeypatch.setattr(RunFolder, "append", append)
    with pytest.raises(OSError, match="No space left"):
        evaluate(synthetic_envs(), noisy(), EvalConfig(6, batch_size=2), output_dir=tmp_path / "run")
    monkeypatch.undo()
    stopped = EvalRun.load(tmp_path / "run")
    assert stopped.status == "interrupted" and "No space left" in stopped.reason and len(stopped.records()) == 5
    run = evaluate(synthetic_envs(), noisy(), EvalConfig(6, batch_size=3), output_dir=tmp_path / "run", resume=True)
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
    config = EvalConfig(6, batch_size=int(rng.integers(1, 8)), placement=str(rng.choice(["driver", "worker"])))
    with pytest.raises(KeyboardInterrupt):
        evaluate(synthetic_envs(), noisy(), config, output_dir=folder, progress=Interrupt(int(rng.integers(1, 17))))
    assert EvalRun.load(folder).status == "interrupted"
    with open(folder / "episodes.jsonl", "rb+") as file:                   # and the last line torn somewhere
        file.truncate(file.seek(0, os.SEEK_END) - int(rng.integers(0, 50)))
    run = evaluate(synthetic_envs(), noisy(), dataclasses.replace(config, batch_size=2), output_dir=folder, resume=True)
    assert run.status == "finished"
    assert_equal_runs(run, expected((1, 1.0), noisy(k=1, noise=1.0)))


def test_what_has_changed_is_named(tmp_path):
    evaluate(synthetic_envs(), noisy(), EvalConfig(2), output_dir=tmp_path / "run")
    with pytest.raises(RunFolderError, match="holds a run already"):
        evaluate(synthetic_envs(), noisy(), EvalConfig(2), output_dir=tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"plan.seed: 1000 then, 7 now"):
        evaluate(synthetic_envs(), noisy(), EvalConfig(2, seed=7), output_dir=tmp_path / "run", resume=True)
    with pytest.raises(RunFolderError, match=r"policy.kwargs.noise: null then, 0.5 now"):
        evaluate(synthetic_envs(), noisy(noise=0.5), EvalConfig(2), output_dir=tmp_path / "run", resume=True)


def test_errors_are_retried_on_demand(tmp_path):
    envs = lambda: synthetic_envs(n_tasks=1, fault="raise", fault_seed=1001, fault_step=1, once=str(tmp_path / "once"))
    config = EvalConfig(3, max_retries=0, max_error_rate=0.5)
    run = evaluate(envs(), noisy(), config, output_dir=tmp_path / "run")
    assert run.eval_info["overall"]["n_errors"] == 1
    run = evaluate(envs(), noisy(), config, output_dir=tmp_path / "run", resume=True)
    assert run.eval_info["overall"]["n_errors"] == 1
    run = evaluate(envs(), noisy(), config, output_dir=tmp_path / "run", resume=True, retry_errors=True)
    assert run.eval_info["overall"]["n_errors"] == 0 and run.eval_info["overall"]["n_evaluated"] == 3


SCRIPT = textwrap.dedent("""
    import sys
    sys.path.insert(0, {tests!r})
    from synthetic import synthetic_envs
    from lerobot_nb.evaluation.config import EvalConfig
    from lerobot_nb.evaluation.evaluate import evaluate
    evaluate(synthetic_envs(step_s=0.002, reset_s=0.01), "synthetic:Noisy", EvalConfig({n}, batch_size=3, n_spare=1, placement={placement!r}),
             output_dir={folder!r}, resume={resume})
""")


def start_script(folder, n=40, placement="driver", resume=False):
    code = SCRIPT.format(tests=str(TESTS), n=n, folder=str(folder), placement=placement, resume=resume)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def wait_for_records(folder, count, process):
    path = Path(folder) / "episodes.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.02)
    pytest.fail(f"no {count} records: {process.communicate()[0] if process.poll() is not None else 'too slow'}")


def family(process):
    return psutil.Process(process.pid).children(recursive=True)


def assert_gone(processes):
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("number, code", [(signal.SIGINT, None), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_leave_a_valid_folder_and_no_process(tmp_path, number, code):
    process = start_script(tmp_path / "run")
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
    process = start_script(tmp_path / "run", placement="worker")
    wait_for_records(tmp_path / "run", 3, process)
    with pytest.raises(RunFolderError, match="another run is writing"):
        RunFolder(tmp_path / "run").open(resume=True)
    children, shared = family(process), set(os.listdir("/dev/shm"))
    process.kill()
    process.wait()
    assert_gone(children)
    assert set(os.listdir("/dev/shm")) <= shared
    run = evaluate(synthetic_envs(step_s=0.002, reset_s=0.01), "synthetic:Noisy", EvalConfig(40, batch_size=4), output_dir=tmp_path / "run", resume=True)
    assert run.status == "finished" and len(run.records()) == 120


def test_an_episode_is_run_again_from_its_record(tmp_path):
    from lerobot_nb.envs.config import make_env_config

    run = evaluate(make_env_config("metaworld", task="reach-v3", obs_type="state"), "random", EvalConfig(2), output_dir=tmp_path / "run")
    record, differences = rerun_episode(run.folder, "reach-v3/0/1", video=False)
    assert differences == [] and record.seed == 1001
    with pytest.raises(ValueError, match="reach-v3/0/0"):
        rerun_episode(run.folder, "reach-v3/0/9")


def test_simulators_are_kept(tmp_path):
    """Workers live across tasks, and keep a simulator while episodes of its task are left: as many constructions as tasks, and a few for those who help at the end."""
    envs = synthetic_envs(n_tasks=4, construction_log=str(tmp_path / "built"))
    run = evaluate(envs, noisy(), EvalConfig(20, batch_size=2, n_spare=1, placement="driver"), output_dir=tmp_path / "run")
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
    assert torch.equal(before[0], torch.get_rng_state()) and np.array_equal(before[1], np.random.get_state()[1])


def test_the_parent_does_not_grow(tmp_path):
    """2,000 episodes: what the parent keeps does not depend on how many there are."""
    import tracemalloc

    from lerobot_nb.evaluation.plan import Plan
    from lerobot_nb.evaluation.runner import Runner

    envs = synthetic_envs(n_tasks=2, longest=6)["synthetic"]
    runner = Runner(Plan(tuple(env.task for env in envs.values()), 1000), lambda task: envs[task.task_id].factories[0], noisy(), EvalConfig(1000, batch_size=4),
                    placement="worker")
    sizes = []
    tracemalloc.start()
    for count, _ in enumerate(runner.run(), start=1):
        if count % 500 == 0:
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert count == 2000 and sizes[-1] - sizes[0] < 200_000, sizes
