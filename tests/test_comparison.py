"""Comparisons of runs: against statsmodels, SciPy and robostats, by simulation, and on real runs of Meta-World."""

import json
import re
import shutil

import numpy as np
import pytest
from growth import assert_linear
from hypothesis import given, settings
from hypothesis import strategies as st

from lerobot_nb.results.commands import compare_command, plan_command
from lerobot_nb.results.comparison import (
    PairCounts,
    ProtocolMismatchError,
    RunOutcomes,
    cluster_difference_interval,
    cochrans_q,
    compare_many,
    compare_outcomes,
    compare_runs,
    difference_p_value,
    gate,
    holm,
    left_out,
    mcnemar_exact,
    newcombe_interval,
    probability_of_improvement,
    verdict,
)
from lerobot_nb.results.records import EpisodeRecord, append_record, write_json_atomic

cells = st.integers(0, 60)


@settings(max_examples=200, deadline=None)
@given(cells, cells, cells, cells)
def test_paired_numbers_equal_statsmodels(both, only_a, only_b, neither):
    from statsmodels.stats.contingency_tables import mcnemar

    assert (
        abs(
            mcnemar_exact(only_a, only_b)
            - (
                mcnemar([[both, only_a], [only_b, neither]], exact=True).pvalue
                if only_a + only_b
                else 1
            )
        )
        < 1e-9
    )
    counts = PairCounts(both, only_a, only_b, neither)
    interval = newcombe_interval(counts)
    if counts.n_pairs:
        assert (
            interval[0] <= counts.difference <= interval[1]
            and -1 <= interval[0]
            and interval[1] <= 1
        )
        mirrored = newcombe_interval(PairCounts(both, only_b, only_a, neither))
        assert np.allclose(interval, (-mirrored[1], -mirrored[0]), atol=1e-12)
    else:
        assert interval is None


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 80), st.integers(1, 80), st.data())
def test_unpaired_numbers_equal_statsmodels(n_a, n_b, data):
    from statsmodels.stats.proportion import confint_proportions_2indep

    k_a, k_b = data.draw(st.integers(0, n_a)), data.draw(st.integers(0, n_b))
    ours = newcombe_interval(PairCounts(a_success=k_a, a_alone=n_a, b_success=k_b, b_alone=n_b))
    assert np.allclose(
        ours, confint_proportions_2indep(k_b, n_b, k_a, n_a, method="newcomb"), atol=1e-9
    )


def test_newcombes_paired_example():
    """The example of Newcombe's paper of 1998, table II (36, 12, 2, 0 of 50): his method 10 gives
    0.0569 to 0.3404.
    """
    assert np.allclose(newcombe_interval(PairCounts(36, 2, 12, 0)), (0.0569, 0.3404), atol=5e-4)


def test_numbers_equal_robostats():
    robostats = pytest.importorskip("robostats")
    rng = np.random.default_rng(3)
    for _ in range(30):
        verdicts = rng.random((3, 40)) < rng.random((3, 1))
        sets = [
            robostats.RecordSet(
                [
                    robostats.EpisodeRecord(
                        policy_id=str(which), task_id="t", success=bool(success), scenario_id=str(i)
                    )
                    for i, success in enumerate(row)
                ]
            )
            for which, row in enumerate(verdicts)
        ]
        a, b = verdicts[0], verdicts[1]
        counts = PairCounts(
            int((a & b).sum()), int((a & ~b).sum()), int((~a & b).sum()), int((~a & ~b).sum())
        )
        theirs = robostats.mcnemar(robostats.pair(sets[0], sets[1]))
        assert (
            abs(theirs.p_value - difference_p_value(counts)[0]) < 1e-9
            and abs(theirs.delta + counts.difference) < 1e-12
        )
        tango = robostats.paired_difference(robostats.pair(sets[0], sets[1]))
        ours = newcombe_interval(counts)
        # another method, nearly the same interval
        assert np.allclose((-tango.upper, -tango.lower), ours, atol=0.05)
        q = robostats.cochran_q(robostats.align(*sets))
        assert np.allclose((q.q_statistic, q.p_value), cochrans_q(verdicts.T), atol=1e-9)


def test_holm_equals_statsmodels():
    from statsmodels.stats.multitest import multipletests

    rng = np.random.default_rng(0)
    for n in (1, 2, 7, 50):
        p_values = rng.random(n) ** 2
        assert np.allclose(
            holm(list(p_values)), multipletests(p_values, method="holm")[1], atol=1e-12
        )


def run(name, verdicts, *, seed=1000, n_episodes=None, rewards=None, packages=None, **protocol):
    """{(task, episode): success, None for an error} as a run."""
    n_episodes = n_episodes or 1 + max(episode for _, episode in verdicts)
    tasks = [
        ["suite", task, f"task-{task}", 500, None]
        for task in sorted({task for task, _ in verdicts})
    ]
    manifest = {
        "benchmark": "metaworld",
        "protocol": {"episode_length": 500, **protocol},
        "packages": packages or {"mujoco": "3.3.0", "bddl": "1"},
        "plan": {"n_episodes": n_episodes, "tasks": tasks},
    }
    return RunOutcomes.from_records(records(verdicts, seed), name, manifest)


def records(verdicts, seed=1000):
    return [
        EpisodeRecord(
            "suite",
            task,
            f"task-{task}",
            "",
            episode,
            seed + episode,
            success=success,
            end_reason="error" if success is None else "success" if success else "time_limit",
            error="it broke" if success is None else None,
            n_steps=9,
            sum_reward=float(bool(success)),
            max_reward=1.0,
        )
        for (task, episode), success in verdicts.items()
    ]


def verdicts_of(array):
    return {(task, episode): bool(success) for (task, episode), success in np.ndenumerate(array)}


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.integers(0, 3), st.integers(0, 5)),
        st.sampled_from([True, False, None]),
        min_size=1,
    ),
    st.dictionaries(
        st.tuples(st.integers(0, 3), st.integers(0, 5)),
        st.sampled_from([True, False, None]),
        min_size=1,
    ),
)
def test_every_episode_is_counted_once_and_named(a, b):
    judged_a, judged_b = (
        {key for key, success in one.items() if success is not None} for one in (a, b)
    )
    first, second = run("A", a), run("B", b)
    if not {task for task, _ in judged_a} & {task for task, _ in judged_b}:
        with pytest.raises(ValueError, match="no task in common"):
            compare_outcomes(first, second)
        return
    comparison = compare_outcomes(first, second)
    total = sum((task.counts for task in comparison.tasks), PairCounts())
    assert (total.a[1], total.b[1], total.n_pairs) == (
        len(judged_a),
        len(judged_b),
        len(judged_a & judged_b),
    )
    assert {spec[1:3] for spec in comparison.only_in_a} == judged_a - judged_b and {
        spec[1:3] for spec in comparison.only_in_b
    } == judged_b - judged_a
    text = "\n".join(left_out(comparison, max_names=100))
    for one, name in ((a, "A"), (b, "B")):
        for (task, episode), success in one.items():
            assert success is not None or f"suite/{task}/{episode}" in text
    swapped = compare_outcomes(second, first)
    assert np.isclose(swapped.counts.difference, -comparison.counts.difference) and np.isclose(
        swapped.p_value, comparison.p_value
    )


def test_episodes_with_other_seeds_are_not_pairs():
    array = np.ones((2, 5), bool)
    comparison = compare_outcomes(
        run("A", verdicts_of(array)), run("B", verdicts_of(array), seed=2000)
    )
    assert (
        comparison.counts.n_pairs == 0
        and comparison.counts.a == (10, 10)
        and comparison.test == "Fisher's exact test"
    )


def test_other_protocols_are_refused_by_name():
    array = verdicts_of(np.ones((2, 5), bool))
    a = run("A", array)
    for fields, name in (
        (dict(success_at="ever"), None),  # older runs did not record it, and counted so
        (dict(success_at="end"), "protocol.success_at"),
        (dict(episode_length=300), "protocol.episode_length"),
        (dict(packages={"mujoco": "3.9"}), "version of mujoco"),
        # bddl has no part in Meta-World
        (dict(packages={"mujoco": "3.3.0", "bddl": "2"}), None),
    ):
        b = run("B", array, **fields)
        if name is None:
            assert not compare_outcomes(a, b).differing_protocol
            continue
        with pytest.raises(ProtocolMismatchError, match=name) as caught:
            compare_outcomes(a, b)
        assert list(caught.value.differences) == [name]
        assert name in verdict(compare_outcomes(a, b, allow_differences=[name]))


# --- by simulation -----------------------------------------------------------------------------------------------------


def test_false_alarms_are_rare():
    """Equal policies, 2,000 comparisons each: paired, partly paired, unpaired, and tasks whose
    difference is zero on average only.
    """
    rng = np.random.default_rng(0)
    n_tasks, n_episodes, n = 10, 10, 2000
    hard = rng.beta(2, 2, (n, n_tasks))
    a, b = (
        rng.binomial(1, hard[..., None], (n, n_tasks, n_episodes)).astype(bool) for _ in range(2)
    )
    both, only_a, only_b, neither = (
        (x & y).sum((1, 2)) for x, y in ((a, b), (a, ~b), (~a, b), (~a, ~b))
    )
    paired = [
        difference_p_value(PairCounts(*map(int, row)))[0] < 0.05
        for row in zip(both, only_a, only_b, neither)
    ]
    few = slice(0, 3)  # three episodes of each task are pairs, seven are A's or B's alone
    partly = []
    for x, y in zip(a[:, :, :], b):
        p, q = x[:, few], y[:, few]
        counts = PairCounts(
            int((p & q).sum()),
            int((p & ~q).sum()),
            int((~p & q).sum()),
            int((~p & ~q).sum()),
            int(x[:, 3:].sum()),
            70,
            int(y[:, 3:].sum()),
            70,
        )
        partly.append(difference_p_value(counts)[0] < 0.05)
    assert np.mean(paired) <= 0.055 and 0.02 < np.mean(partly) <= 0.065


def test_the_true_difference_lies_in_the_intervals():
    rng = np.random.default_rng(1)
    these, like, n = 0, 0, 1500
    for _ in range(n):
        base = rng.beta(3, 2, 10)
        rate_a, rate_b = base, np.clip(base + rng.normal(0, 0.15, 10), 0, 1)
        # one initial state makes both succeed or both fail: correlated outcomes
        shared = rng.random((10, 20))
        a, b = (
            shared < rate_a[:, None],
            np.where(rng.random((10, 20)) < 0.5, shared, rng.random((10, 20))) < rate_b[:, None],
        )
        tasks = [
            PairCounts(
                int((x & y).sum()), int((x & ~y).sum()), int((~x & y).sum()), int((~x & ~y).sum())
            )
            for x, y in zip(a, b)
        ]
        low, high = newcombe_interval(sum(tasks, PairCounts()))
        these += low <= (rate_b - rate_a).mean() <= high
        low, high = cluster_difference_interval(tasks)
        like += low <= _MEAN_DIFFERENCE <= high
    assert 0.93 <= these / n <= 0.98 and 0.93 <= like / n <= 0.98


_drawn = np.random.default_rng(2)
_base = _drawn.beta(3, 2, 400_000)
_MEAN_DIFFERENCE = float((np.clip(_base + _drawn.normal(0, 0.15, 400_000), 0, 1) - _base).mean())


def test_the_best_run_is_seldom_left_out():
    rng = np.random.default_rng(0)
    lost = 0
    for _ in range(200):
        arrays = [rng.random((2, 30)) < 0.7 for _ in range(3)]
        lost += (
            "0"
            not in compare_many(
                [run(str(i), verdicts_of(array)) for i, array in enumerate(arrays)]
            ).best
        )
    assert lost / 200 <= 0.05


def test_probability_of_improvement_equals_scipy():
    from scipy.stats import mannwhitneyu

    rng = np.random.default_rng(0)
    a, b = [rng.integers(0, 5, 30) for _ in range(3)], [rng.integers(1, 6, 20) for _ in range(3)]
    probability, low, high = probability_of_improvement(a, b)
    assert (
        np.isclose(probability, np.mean([mannwhitneyu(y, x).statistic / 600 for x, y in zip(a, b)]))
        and low < probability < high
    )
    assert probability_of_improvement([[]], [[]]) is None


# --- the gate and the command line ---------------------------------------------------------------------------------------


MANIFEST = {
    "status": "finished",
    "reason": None,
    "started": "2026-01-01T00:00:00",
    "ended": "2026-01-01T00:10:00",
    "command": "lerobot-nb eval",
    "benchmark": "metaworld",
    "env_config": None,
    "protocol": None,
    "eval_config": {},
    "policy": {},
    "policy_request": None,
    "runner": None,
    "times": None,
    "gl": None,
    "packages": {},
    "machine": {},
    "git_commit": None,
    "warnings": [],
    "sessions": [],
}


def folder(path, verdicts, **fields):
    path.mkdir()
    manifest = MANIFEST | {
        "protocol": {"episode_length": 500, **fields},
        "plan": {
            "n_episodes": 20,
            "seed": 1000,
            "tasks": [["suite", task, f"task-{task}", 500, None] for task in range(3)],
        },
    }
    write_json_atomic(path / "run.json", manifest)
    for record in records(verdicts):
        append_record(path / "episodes.jsonl", record)
    return str(path)


@pytest.fixture
def folders(tmp_path):
    good = np.ones((3, 20), bool)
    bad = good.copy()
    bad[:, 12:] = False
    lacking = verdicts_of(good)
    del lacking[2, 19]
    lacking[0, 0] = None
    return {
        "good": folder(tmp_path / "good", verdicts_of(good)),
        "bad": folder(tmp_path / "bad", verdicts_of(bad)),
        "lacking": folder(tmp_path / "lacking", lacking),
        "other": folder(tmp_path / "other", verdicts_of(good), episode_length=300),
        "none": str(tmp_path / "nowhere"),
    }


@pytest.mark.parametrize(
    "names, options, code, said",
    [
        ("good bad", "", 0, "less often"),
        ("good bad", "--fail-if-worse-by 5", 1, "FAILED"),
        ("bad good", "--fail-if-worse-by 5", 0, "passed"),
        ("good bad", "--fail-if-worse-by 50", 0, "passed"),
        ("good good2", "--fail-if-worse-by 0", 0, "passed"),
        ("good good2", "--fail-if-worse-by 8 --strict", 0, "ruled out"),
        ("good good2", "--fail-if-worse-by 1 --strict", 1, "not ruled out"),
        ("good lacking", "--fail-if-worse-by 5", 2, "no verdict on 2 episodes"),
        ("good lacking", "--fail-if-worse-by 5 --allow-missing", 0, "suite/0/0"),
        ("good other", "", 2, "episode_length"),
        ("good other", "--allow-difference protocol.episode_length", 0, "which was allowed"),
        ("good none", "", 2, "run.json"),
        ("good", "", 2, "two or more"),
        ("good bad lacking", "", 0, "Cochran"),
        ("good bad lacking", "--fail-if-worse-by 5 --allow-missing", 1, "FAILED"),
        ("good bad", "--fail-if-worse-by x", 2, "percentage points"),
        ("good bad", "--strict", 2, "need --fail-if-worse-by"),
        ("good bad", "--confidence 300", 2, "percentage points"),
    ],
)
def test_command(names, options, code, said, folders, tmp_path, capsys):
    if "good2" in names:
        folders["good2"] = shutil.copytree(folders["good"], tmp_path / "good2")
    try:
        returned = compare_command(
            [*(str(folders[name]) for name in names.split()), *options.split()]
        )
    except SystemExit as end:
        returned = end.code
    captured = capsys.readouterr()
    assert returned == code and said in captured.out + captured.err
    assert "Traceback" not in captured.err


def test_no_difference_has_no_sign(folders, tmp_path, capsys):
    again = shutil.copytree(folders["good"], tmp_path / "again")
    assert compare_command([folders["good"], str(again)]) == 0
    said = capsys.readouterr().out
    assert "difference 0.0 points" in said and not re.search(r"[+-]0\.0\b", said), said


def test_command_prints_json(folders, capsys):
    assert compare_command([folders["good"], folders["bad"], "--json"]) == 0
    (pair,) = json.loads(capsys.readouterr().out)
    assert (
        pair["n_pairs"] == 60
        and pair["only_a"] == 24
        and pair["difference"] == -0.4
        and pair["p_value"] < 1e-6
    )


def test_escapes_in_names_are_shown_not_sent(tmp_path, capsys):
    good = verdicts_of(np.ones((3, 20), bool))
    a = folder(tmp_path / "a", good)
    b = folder(tmp_path / "b\x1b[31m", good)
    assert compare_command([a, b]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_plan_command(capsys):
    assert plan_command(["--tasks", "10", "--episodes", "50", "--rate", "80"]) == 0
    assert "± 3.5" in capsys.readouterr().out
    assert plan_command(["--width", "10", "--tasks", "1"]) == 0 and "381" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        plan_command(["--tasks", "0"])
    assert caught.value.code == 2


def test_the_work_of_a_comparison_grows_with_its_episodes(tmp_path):
    rng = np.random.default_rng(0)
    paths = {30: [], 300: []}  # episodes of each of ten tasks
    for n_episodes, folders in paths.items():
        for name in "ab":
            path = tmp_path / f"{name}{n_episodes}"
            path.mkdir()
            tasks = [["suite", task, "t", 500, None] for task in range(10)]
            plan = {"n_episodes": n_episodes, "seed": 0, "tasks": tasks}
            write_json_atomic(path / "run.json", MANIFEST | {"plan": plan})
            (path / "episodes.jsonl").write_text(
                "".join(
                    json.dumps(record.to_json()) + "\n"
                    for record in records(verdicts_of(rng.random((10, n_episodes)) < 0.7))
                )
            )
            folders.append(path)
    assert_linear(lambda: compare_runs(paths[30]), lambda: compare_runs(paths[300]), 10)
    assert compare_runs(paths[300]).pairs[0].counts.n_pairs == 3000


# --- real runs ----------------------------------------------------------------------------------------------------------


def test_noise_is_found_and_nothing_is_found_where_nothing_is(tmp_path):
    pytest.importorskip("metaworld")
    from lerobot_nb import EvalConfig, evaluate, make_env_config

    env = make_env_config("metaworld", task="push-v3,drawer-open-v3,reach-v3", obs_type="state")
    config = EvalConfig(n_episodes=12, render="none")
    for name, policy in (
        ("expert", "expert"),
        ("again", "expert"),
        ("noisy", "noisy_expert:NoisyExpert"),
    ):
        evaluate(env, policy, config, output_dir=tmp_path / name)
    same = compare_runs([tmp_path / "expert", tmp_path / "again"]).pairs[0]
    assert (
        not same.differs
        and same.counts.only_a == same.counts.only_b == 0
        and same.counts.n_pairs == 36
    )
    assert "can't be told apart" in verdict(same)
    different = compare_runs([tmp_path / "expert", tmp_path / "noisy"]).pairs[0]
    assert different.differs and different.counts.difference < -0.2 and different.interval[1] < 0
    assert not gate(different, 0.05)[0]
