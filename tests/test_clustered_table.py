"""The interval of a table's last row counts tasks as clusters, in every form of the table."""

from lerobot_nb.results.eval_info import build_eval_info
from lerobot_nb.results.figures import success_plot
from lerobot_nb.results.records import EpisodeRecord
from lerobot_nb.results.statistics import overall_rate
from lerobot_nb.results.tables import clustered_sums, html_table, table_rows, text_table


def eval_info(solved, n=10, suite_of=lambda task: "suite"):
    return build_eval_info(
        [
            EpisodeRecord(
                suite_of(task),
                task,
                f"t{task}",
                "",
                index,
                index,
                success=index < k,
                end_reason="success" if index < k else "time_limit",
                n_steps=1,
            )
            for task, k in enumerate(solved)
            for index in range(n)
        ]
    )


def test_the_last_row_is_wider_than_pooled_episodes_where_tasks_differ():
    info = eval_info([10, 10, 2, 0, 9])
    pooled, (_, overall, _note) = info["overall"]["pc_success_ci"], clustered_sums(info)
    expected = overall_rate([10, 10, 2, 0, 9], [10] * 5)
    assert overall["pc_success_ci"] == [100 * end for end in expected.like_these]
    assert (
        overall["pc_success_ci"][0] < pooled[0] - 5 and overall["pc_success_ci"][1] > pooled[1] + 5
    )
    shown = f"{overall['pc_success_ci'][0]:.0f} – {overall['pc_success_ci'][1]:.0f} %"
    assert table_rows(info)[-1][3] == shown
    for table in (text_table(info), text_table(info, markdown=True), html_table(info)):
        assert shown in table and "tasks are clusters" in table
    lines = success_plot(info).axes[0].lines
    assert any(abs(line.get_xdata()[0] - overall["pc_success_ci"][0]) < 1e-9 for line in lines)
    assert info["overall"]["pc_success_ci"] == pooled  # the file keeps its own


def test_one_task_keeps_wilsons_and_says_nothing_of_others():
    info = eval_info([9])
    assert clustered_sums(info)[1]["pc_success_ci"] == info["overall"][
        "pc_success_ci"
    ] and "clusters" not in text_table(info)


def test_suites_too():
    info = eval_info([10, 0, 10, 10, 10, 10], suite_of=lambda task: "a" if task < 2 else "b")
    suites = clustered_sums(info)[0]
    assert suites["a"]["pc_success_ci"][0] < info["per_group"]["a"]["pc_success_ci"][0]
    assert [row[0] for row in table_rows(info)[-3:]] == ["all of a", "all of b", "all"]
