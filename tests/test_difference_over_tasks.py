"""The interval of a difference for tasks like these: against SciPy, and its coverage with few tasks."""

import numpy as np
import pytest
from scipy import stats

from lerobot_nb.results.comparison import PairCounts, cluster_difference_interval, newcombe_interval


def pairs(x, y):
    return PairCounts(
        int((x & y).sum()), int((x & ~y).sum()), int((~x & y).sum()), int((~x & ~y).sum())
    )


def test_with_equal_tasks_it_is_scipys_t_interval():
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 6, 20)) < rng.random((2, 6, 1))
    differences = b.mean(1) - a.mean(1)
    low, high = stats.t.interval(0.95, 5, differences.mean(), stats.sem(differences))
    tasks = [pairs(x, y) for x, y in zip(a, b)]
    these = newcombe_interval(sum(tasks, PairCounts()))
    expected = max(-1, min(low, these[0])), min(1, max(high, these[1]))
    assert np.allclose(cluster_difference_interval(tasks), expected, atol=1e-12)


def test_a_task_with_no_pair_in_common_is_left_out_and_one_task_says_nothing():
    task = PairCounts(both=3, only_b=2, neither=5)
    assert cluster_difference_interval([task]) is None
    assert cluster_difference_interval([task, PairCounts(a_alone=3)]) is None


@pytest.mark.parametrize("n_tasks", [3, 5, 10])
def test_few_tasks_are_covered(n_tasks):
    """A bootstrap over tasks holds the truth in 79 to 95 % here."""
    rng = np.random.default_rng(n_tasks)
    base = rng.uniform(0.4, 0.6, (1500, n_tasks))
    other = base + rng.uniform(-0.4, 0.4, base.shape)  # mean difference 0
    hits = 0
    for rate_a, rate_b in zip(base, other):
        a, b = (rng.random((n_tasks, 20)) < rate[:, None] for rate in (rate_a, rate_b))
        low, high = cluster_difference_interval([pairs(x, y) for x, y in zip(a, b)])
        hits += low <= 0 <= high
    assert 0.935 <= hits / 1500 <= 0.985
