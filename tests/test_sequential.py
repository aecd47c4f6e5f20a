"""What holds at all times together, and STEP, where its package is installed."""

import math

import numpy as np
import pytest

from lerobot_nb.envs.base import EpisodeSpec
from lerobot_nb.results.comparison import RunOutcomes
from lerobot_nb.results.sequential import (
    compare_sequentially,
    confidence_sequence,
    interleaved,
    pair_evidence,
    rounds_of,
    step_test,
)


def test_the_sequence_covers_mixed_tasks_at_the_ends_of_rounds():
    """Ten tasks with quite different rates; looked at after each of 100 rounds."""
    rates = np.linspace(0.05, 0.95, 10)
    rng = np.random.default_rng(0)
    ends = {}
    missed = 0
    for _ in range(400):
        total = np.cumsum((rng.random((100, 10)) < rates).sum(1))
        for n, k in enumerate(map(int, total), start=1):
            low, high = ends.setdefault((k, 10 * n), confidence_sequence(k, 10 * n))
            if not low <= 0.5 <= high:
                missed += 1
                break
    assert missed / 400 <= 0.05


def test_the_sequence_solves_its_equation():
    from scipy.special import betaln

    for k, n in ((3, 10), (40, 50), (1, 400), (50, 50), (0, 3)):
        for end, edge in zip(confidence_sequence(k, n), (0.0, 1.0)):
            if end != edge:
                evidence = (
                    betaln(k + 0.5, n - k + 0.5)
                    - betaln(0.5, 0.5)
                    - k * math.log(end)
                    - (n - k) * math.log1p(-end)
                )
                assert math.isclose(evidence, math.log(20), abs_tol=1e-6)
        low, high = confidence_sequence(k, n)
        assert low <= k / n <= high
    for wrong in ((-1, 3), (4, 3)):
        with pytest.raises(ValueError, match="n_success"):
            confidence_sequence(*wrong)


def test_evidence_rises_to_twenty_by_chance_in_less_than_one_case_of_twenty():
    rng = np.random.default_rng(0)
    wins = np.cumsum(rng.random((2000, 300)) < 0.5, axis=1)
    table = [[pair_evidence(n - k, k) for k in range(n + 1)] for n in range(301)]
    ever = [any(table[n][k] >= 20 for n, k in enumerate(map(int, row), start=1)) for row in wins]
    assert 0 < np.mean(ever) <= 0.05
    assert pair_evidence(0, 2000) == math.exp(700)  # no overflow


def test_a_settled_comparison_stops_and_says_who():
    pairs = [(False, True), (True, True), (False, False)]
    result = compare_sequentially([pairs] * 50)
    assert (
        result.winner == "B"
        and 5 <= result.n_rounds <= 12
        and result.n_pairs == 3 * result.n_rounds
        and result.only_a == 0
    )
    assert compare_sequentially([[(b, a) for a, b in pairs]] * 50).winner == "A"
    assert (
        compare_sequentially([[(True, True)]] * 50).winner is None
        and compare_sequentially([]).n_rounds == 0
    )


def test_rounds_are_whole_and_in_order():
    specs = [EpisodeSpec("s", task, index, index) for task in (0, 1) for index in range(3)] + [
        EpisodeSpec("s", 2, 0, 0)
    ]
    assert [(one.task_id, one.episode_index) for one in interleaved(specs)] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (0, 1),
        (1, 1),
        (0, 2),
        (1, 2),
    ]
    a = RunOutcomes(
        "A", {("s", task, index, index, None): True for task in (0, 1) for index in range(3)}
    )
    b = RunOutcomes(
        "B", {("s", task, index, index, None): task == 0 for task in (0, 1) for index in range(2)}
    )
    assert list(rounds_of(a, b)) == [[(True, True), (True, False)]] * 2


def test_step():
    for wrong in (dict(a=[True], b=[]), dict(a=[True], b=[True], n_max=17)):
        with pytest.raises(ValueError, match="n_max|equally"):
            step_test(**wrong)
    pytest.importorskip("sequentialized_barnard_tests")
    rng = np.random.default_rng(0)
    better, worse = rng.random(200) < 0.8, rng.random(200) < 0.4
    assert (
        step_test(list(worse), list(better)) < 60 and step_test(list(better), list(worse)) is None
    )
    alarms = [
        step_test(list(rng.random(100) < 0.6), list(rng.random(100) < 0.6)) is not None
        for _ in range(60)
    ]
    assert np.mean(alarms) <= 0.12  # 5 % expected, of 60


def test_step_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "sequentialized_barnard_tests", None)
    with pytest.raises(ImportError, match="CC BY-NC.*pip install sequentialized-barnard-tests"):
        step_test([True], [True])
