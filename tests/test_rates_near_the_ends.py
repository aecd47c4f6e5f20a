"""The interval for tasks like these where nearly every episode succeeds, and what a table says where it is rough."""

import numpy as np

from lerobot_nb.results.statistics import hierarchical_interval, overall_rate


def test_rates_near_one_hundred_percent_are_covered():
    """With a prior that is flat in the mean, 91 % of these intervals held the truth."""
    rng = np.random.default_rng(0)
    rates = rng.beta(0.99 * 9, 0.01 * 9, (3000, 10))  # ICC 0.1
    low, high = hierarchical_interval(rng.binomial(20, rates), 20)
    assert 0.925 <= np.mean((low <= 0.99) & (0.99 <= high)) <= 0.97


def test_the_note_says_where_the_interval_is_rough():
    assert "fewer than 10 tasks" in overall_rate([4] * 9, [5] * 9).note()
    assert "close to 0 or 100 %" in overall_rate([5] * 10, [5] * 10).note()
    assert "rough" not in overall_rate([4] * 10, [5] * 10).note()
