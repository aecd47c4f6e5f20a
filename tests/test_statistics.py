"""Intervals and planning against statsmodels, SciPy and robostats, and against simulation."""

import numpy as np
import pytest

from lerobot_nb.results.rates import wilson_interval
from lerobot_nb.results.statistics import (
    bootstrap_mean_interval,
    clopper_pearson_intervals,
    cluster_bootstrap_interval,
    effective_episodes,
    episodes_for_width,
    expected_width,
    hierarchical_interval,
    intraclass_correlation,
    minimal_detectable_difference,
    overall_rate,
    pass_hat_k,
    these_tasks_interval,
    wilson_intervals,
)


def random_counts(n_tables: int = 300, most: int = 400):
    rng = np.random.default_rng(7)
    n = rng.integers(1, most, n_tables)
    return rng.binomial(n, rng.random(n_tables)), n, rng.uniform(0.5, 0.999, n_tables)


def test_intervals_of_one_rate_equal_statsmodels():
    from statsmodels.stats.proportion import proportion_confint

    for k, n, confidence in zip(*random_counts()):
        theirs = proportion_confint(k, n, alpha=1 - confidence, method="wilson")
        assert np.allclose(wilson_interval(int(k), int(n), confidence), theirs, atol=1e-9, rtol=0)
        from scipy.special import ndtri

        assert np.allclose(
            np.ravel(wilson_intervals(k / n, n, ndtri((1 + confidence) / 2))),
            theirs,
            atol=1e-9,
            rtol=0,
        )
        assert np.allclose(
            np.ravel(clopper_pearson_intervals(k, n, confidence)),
            proportion_confint(k, n, alpha=1 - confidence, method="beta"),
            atol=1e-9,
            rtol=0,
        )


def test_intervals_of_one_rate_equal_robostats():
    robostats = pytest.importorskip("robostats")
    for k, n, confidence in zip(*random_counts(100)):
        for ours, theirs in (
            (
                wilson_interval(int(k), int(n), confidence),
                robostats.wilson(int(k), int(n), confidence),
            ),
            (
                np.ravel(clopper_pearson_intervals(k, n, confidence)),
                robostats.clopper_pearson(int(k), int(n), confidence),
            ),
        ):
            assert np.allclose(ours, (theirs.lower, theirs.upper), atol=1e-9, rtol=0)


def simulated(
    mean: float,
    correlation: float,
    n_tasks: int,
    n_episodes: int,
    n_evaluations: int,
    seed: int = 0,
):
    rng = np.random.default_rng(seed)
    rates = np.full((n_evaluations, n_tasks), mean)
    if correlation:
        rates = rng.beta(
            mean * (1 / correlation - 1),
            (1 - mean) * (1 / correlation - 1),
            (n_evaluations, n_tasks),
        )
    return rng.binomial(n_episodes, rates), rates


def covered(ends, truth) -> float:
    return float(np.mean((ends[0] <= truth + 1e-12) & (truth <= ends[1] + 1e-12)))


@pytest.mark.parametrize(
    "mean, correlation, n_tasks, n_episodes",
    [(0.7, 0.1, 10, 10), (0.9, 0.3, 10, 50), (0.5, 0.3, 50, 10)],
)
def test_clustered_intervals_cover_what_pooled_ones_miss(mean, correlation, n_tasks, n_episodes):
    successes, _ = simulated(mean, correlation, n_tasks, n_episodes, 3000)
    assert (
        covered(
            wilson_intervals(successes.sum(1) / (n_tasks * n_episodes), n_tasks * n_episodes), mean
        )
        < 0.88
    )
    assert 0.93 <= covered(hierarchical_interval(successes, n_episodes), mean) <= 0.97


def test_the_interval_for_these_tasks_covers_their_own_rate():
    successes, rates = simulated(0.7, 0.3, 10, 50, 3000)
    low, high = these_tasks_interval(successes, 50)
    assert 0.93 <= covered((low, high), rates.mean(1)) <= 0.97
    pooled_low, pooled_high = wilson_intervals(successes.sum(1) / 500, 500)
    assert (high - low).mean() < 0.9 * (pooled_high - pooled_low).mean()


def test_many_evaluations_at_once_equal_each_alone():
    successes, _ = simulated(0.8, 0.2, 6, 12, 40)
    for function in (these_tasks_interval, hierarchical_interval, cluster_bootstrap_interval):
        together = np.stack(function(successes, 12), axis=-1)
        alone = np.array([np.ravel(function(row, 12)) for row in successes])
        assert np.allclose(together, alone, atol=5e-4)
    assert np.allclose(
        effective_episodes(successes, 12), [effective_episodes(row, 12) for row in successes]
    )


def test_bootstrap_is_the_same_again_and_widens_with_few_tasks():
    counts = [3, 9, 10, 6]
    assert np.array_equal(
        cluster_bootstrap_interval(counts, 10), cluster_bootstrap_interval(counts, 10)
    )
    low, high = cluster_bootstrap_interval(counts, 10)
    plain_low, plain_high = np.quantile(
        np.array(counts)[np.random.default_rng(0).integers(0, 4, (4000, 4))].mean(1) / 10,
        [0.025, 0.975],
    )
    assert low <= plain_low and high >= plain_high
    with pytest.raises(ValueError, match="only one"):
        cluster_bootstrap_interval([3], [10])
    with pytest.raises(ValueError, match="'tasks'"):
        cluster_bootstrap_interval(counts, 10, resample="runs")


def test_the_intraclass_correlation_finds_what_was_simulated():
    for correlation in (0.0, 0.1, 0.4):
        successes, _ = simulated(0.6, correlation, 400, 30, 5)
        assert abs(intraclass_correlation(successes, 30).mean() - correlation) < 0.02
    assert intraclass_correlation([5, 5], [5, 5]) == 0 and intraclass_correlation([5], [9]) == 0
    assert intraclass_correlation([0, 9], [9, 9]) == 1 and effective_episodes([0, 9], [9, 9]) == 2


def test_overall_rate_says_what_it_is_made_of():
    overall = overall_rate([9, 1, 0], [10, 10, 0])
    assert (overall.n_tasks, overall.n_success, overall.n_evaluated) == (2, 10, 20)
    assert (
        overall.like_these[0]
        < overall.pooled[0]
        < overall.these[0]
        < overall.rate
        < overall.these[1]
        < overall.pooled[1]
        < overall.like_these[1]
    )
    assert "clusters" in overall.note() and "worth" in str(overall)
    for successes, episodes in (([11], [10]), ([-1], [10]), ([float("nan")], [3])):
        with pytest.raises(ValueError, match="n_success must lie between"):
            overall_rate(successes, episodes)


@pytest.mark.parametrize("resample", ["episodes", "tasks"])
def test_intervals_of_skewed_rewards_hold_the_truth(resample):
    """The percentile bootstrap, which this one replaces, is at 88 and 91 % here."""
    rng = np.random.default_rng(0)
    ends = []
    for seed in range(2000):
        if resample == "episodes":  # one task decides: its rewards are a hundred times as large
            values, truth = rng.exponential([[1.0], [100.0]], (2, 12)), 50.5
        else:
            values, truth = rng.exponential(rng.exponential(1.0, (20, 1)), (20, 12)), 1.0
        ends.append(bootstrap_mean_interval(values, resample=resample, n_resamples=500, seed=seed))
    low, high = np.transpose(ends)
    assert 0.93 <= np.mean((low <= truth) & (truth <= high)) <= 0.97


def test_the_bootstrap_of_normal_rewards_is_students_interval():
    from scipy import stats

    values = np.random.default_rng(0).normal(7, 2, 400)
    theirs = stats.t.interval(0.9, 399, values.mean(), stats.sem(values))
    assert np.allclose(
        bootstrap_mean_interval([values], 0.9, n_resamples=20_000), theirs, atol=0.01
    )
    # an offset and a unit change nothing
    low, high = bootstrap_mean_interval([values, values**2])
    moved = bootstrap_mean_interval([1e9 + 1000 * values, 1e9 + 1000 * values**2])
    assert np.allclose(moved, (1e9 + 1000 * low, 1e9 + 1000 * high), rtol=1e-12)


def test_rewards_that_say_little():
    assert bootstrap_mean_interval([[1.0, 1.0], [1.0, 1.0]]) == (1.0, 1.0)
    # resamples without any spread; squares that can't be represented
    for few in (
        [[0.0, 0.0, 7.0]],
        [[3.0, 4.0], [1.0, 9.0]],
        [[1e300, 2e300, 4e300]],
        [[0, 5e-324]],
    ):
        low, high = bootstrap_mean_interval(few)
        assert np.isfinite([low, high]).all() and low <= np.mean(few) <= high and low < high
    for values, resample, said in (
        ([[1.0, float("nan")]], "episodes", "NaN"),
        ([[], []], "episodes", "at least one"),
        ([[1.0, 2.0], [3.0]], "episodes", "1 of 2 tasks have a single value"),
        ([[1.0, 2.0]], "tasks", "only one"),
        ([[1.0, 2.0]], "runs", "'runs'"),
    ):
        with pytest.raises(ValueError, match=said):
            bootstrap_mean_interval(values, resample=resample)


def test_pass_hat_k():
    assert np.isclose(pass_hat_k([3, 5], [5, 5], 1), 0.8)
    assert np.isclose(pass_hat_k([3, 5], [5, 5], 2), (3 / 10 + 1) / 2)
    assert pass_hat_k([1], [5], 2) == 0
    rng = np.random.default_rng(0)
    # without bias
    assert abs(pass_hat_k(rng.binomial(10, 0.8, (20000, 1)), 10, 4).mean() - 0.8**4) < 0.01
    with pytest.raises(ValueError, match="from 1 to .* 5"):
        pass_hat_k([3, 5], [5, 9], 6)


def test_planning_agrees_with_statsmodels_and_itself():
    from statsmodels.stats.proportion import power_proportions_2indep

    for n_tasks, n_episodes, rate in ((10, 50, 0.7), (2, 100, 0.5), (50, 10, 0.2)):
        difference = minimal_detectable_difference(n_tasks, n_episodes, rate)
        power = power_proportions_2indep(
            difference, rate, n_tasks * n_episodes, return_results=False
        )
        assert abs(power - 0.8) < 0.01
        assert (
            minimal_detectable_difference(n_tasks, n_episodes, rate, correlation=0.5) < difference
        )
        assert (
            minimal_detectable_difference(n_tasks, n_episodes, rate, task_spread=0.1) or 1
        ) > difference
    assert minimal_detectable_difference(1, 2, 0.9) is None
    n = episodes_for_width(0.2, 4, rate=0.6)
    assert expected_width(4, n, 0.6) <= 0.2 < expected_width(4, n - 1, 0.6)
    assert episodes_for_width(0.05, 3, icc=0.2) is None
    for wrong in (
        dict(width=0),
        dict(width=1.5),
        dict(width=0.1, n_tasks=0),
        dict(width=0.1, rate=2),
        dict(width=0.1, icc=-1),
    ):
        with pytest.raises(ValueError):
            episodes_for_width(**wrong)
