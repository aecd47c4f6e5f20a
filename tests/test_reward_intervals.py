"""The interval of mean rewards, where tables and figures show it."""

import numpy as np

from lerobot_nb.results.eval_info import build_eval_info
from lerobot_nb.results.figures import reward_plot
from lerobot_nb.results.records import EpisodeRecord
from lerobot_nb.results.statistics import bootstrap_mean_interval
from lerobot_nb.results.tables import html_table, reward_note, text_table


def eval_info(rewards, success=None):
    return build_eval_info(
        [
            EpisodeRecord(
                "gym",
                task,
                f"t{task}",
                "",
                index,
                index,
                success=success,
                end_reason="time_limit",
                n_steps=1,
                sum_reward=float(reward),
            )
            for task, of_task in enumerate(rewards)
            for index, reward in enumerate(of_task)
        ],
        reports_success=success is not None,
    )


def test_where_nothing_is_judged_the_table_says_how_sure_the_mean_reward_is():
    rewards = np.random.default_rng(0).exponential([[3.0], [30.0]], (2, 20))
    info = eval_info(rewards)
    low, high = bootstrap_mean_interval(rewards, n_resamples=2000)
    said = f"{low:.1f} to {high:.1f} for new episodes of these tasks (bootstrap)."
    for table in (text_table(info), text_table(info, markdown=True), html_table(info)):
        assert f"Mean reward {rewards.mean():.1f}: 95 % interval {said}" in table
    assert reward_note(eval_info(rewards, success=False)) is None
    assert "rough" in reward_note(eval_info(rewards[:, :9]))


def test_no_interval_where_nothing_is_known_of_the_spread():
    for rewards in ([[5.0, 5.0, 5.0]], [[5.0]], [[1.0, 2.0], [3.0]], [[]]):
        assert reward_note(eval_info(rewards)) is None
        assert "Mean reward" not in text_table(eval_info(rewards))


def test_the_plot_shows_it_from_ten_episodes_on():
    rewards = np.random.default_rng(0).exponential(3.0, 20)

    def horizontal_lines(values):
        lines = reward_plot(eval_info([values])).axes[0].lines
        return [
            line.get_xdata()
            for line in lines
            if len(set(line.get_ydata())) == 1 < len(line.get_xdata())
        ]

    (ends,) = horizontal_lines(rewards)
    assert np.allclose(ends, bootstrap_mean_interval([rewards], n_resamples=2000))
    assert ends[0] < rewards.mean() < ends[1]
    assert not horizontal_lines(rewards[:9])
