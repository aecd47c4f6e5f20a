"""Health of benchmarks from metrics.json: what is worse, late, missing or damaged; the make targets of the workflow's job."""

import datetime
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scipy.stats import fisher_exact

from lerobot_nb.results.dashboard import (
    benchmark_health,
    health_html,
    health_markdown,
    history_plot,
    read_results,
)

ROOT = Path(__file__).resolve().parent.parent
DAY = datetime.timedelta(days=1)


def write(folder, n_success, n_judged=20, replaced=None, **other):
    folder.mkdir(parents=True)
    metrics = (
        {
            "version": 2,
            "env": "metaworld",
            "task": "mt10",
            "policy": "expert",
            "pc_success": 100 * n_success / n_judged if n_judged else None,
            "n_episodes": n_judged,
            "avg_sum_reward": None,
            "eval_s": 60.0,
            "pc_success_ci": None,
            "n_success": n_success,
            "n_judged": n_judged,
            "n_evaluated": n_judged,
            "n_errors": 0,
            "task_descriptions": {},
        }
        | other
        | (replaced or {})
    )
    (folder / "metrics.json").write_text(json.dumps(metrics))


def history(folder, *counts, **other):
    for number, n_success in enumerate(counts):
        write(folder / f"2026-11-{number + 1:02d}_{number}", n_success, **other)
    return read_results(folder)[0]


def test_a_loss_beyond_chance_is_worse_and_its_p_value_is_fishers(tmp_path):
    (one,) = benchmark_health(history(tmp_path, 20, 18, 19, 17, 5))
    assert one.worse and not one.better and not one.healthy
    # the middle one of 17, 18, 19, 20 is compared with
    assert one.reference.rate.n_success == 19
    assert one.p_value == pytest.approx(fisher_exact([[19, 1], [5, 15]]).pvalue, abs=1e-12)
    assert "WORSE" in health_markdown([one]) and "WORSE" in health_html([one])


def test_chance_is_not_called_worse(tmp_path):
    (one,) = benchmark_health(history(tmp_path, 18, 19, 17, 15))
    assert not one.worse and not one.better and one.healthy


def test_with_many_benchmarks_a_single_small_p_value_is_no_alarm(tmp_path):
    """Fisher's p of 14 after 19 of 20 is 0.09; of 13 it is 0.04: an alarm alone, not among ten."""
    (alone,) = benchmark_health(history(tmp_path / "alone", 19, 13))
    assert alone.worse
    for number in range(10):
        for day, n_success in enumerate((19, 13 if number == 0 else 19)):
            write(tmp_path / "ten" / f"2026-11-{day + 1:02d}_{number}", n_success, env=f"b{number}")
    assert not any(one.worse for one in benchmark_health(read_results(tmp_path / "ten")[0]))


def test_missing_runs_are_named(tmp_path):
    write(tmp_path / "2026-11-01_a", 10)
    write(tmp_path / "2026-11-22_b", 10)
    write(tmp_path / "2026-11-29_c", 0, n_judged=0)
    results, _ = read_results(tmp_path)
    now = results[-1].when + 7 * DAY
    found = benchmark_health(results, ["metaworld", "libero"], every_days=7, now=now)
    assert found[0].missing == [
        "the run of 2026-11-29 left no result",
        "2 runs missing after 2026-11-01",
    ]
    assert found[1].missing == ["no result at all"]
    assert not any(one.healthy for one in found)


def test_a_slower_evaluation_is_shown(tmp_path):
    for day, seconds in ((1, 50.0), (2, 60.0), (3, 70.0), (4, 180.0)):
        write(tmp_path / f"2026-11-{day:02d}", 10, eval_s=seconds)
    (one,) = benchmark_health(read_results(tmp_path)[0])
    assert one.slower == pytest.approx(3.0) and "3.0 × the usual" in health_markdown([one])


@pytest.mark.parametrize(
    "damage",
    [
        {"n_success": 30},
        {"n_success": "9"},
        {"version": 99},
        {"eval_s": True},
        {"task_descriptions": None},
    ],
)
def test_damaged_files_are_left_out_by_name(tmp_path, damage):
    write(tmp_path / "2026-11-01_good", 10)
    write(tmp_path / "2026-11-02_bad", 10, replaced=damage)
    (tmp_path / "2026-11-03_bad").mkdir()
    (tmp_path / "2026-11-03_bad" / "metrics.json").write_text("[" * 100_000)
    results, problems = read_results(tmp_path)
    assert len(results) == 1 and len(problems) == 2
    assert all("_bad" in problem and "left out" in problem for problem in problems)
    assert "left out" in health_html(benchmark_health(results), problems)


@pytest.mark.parametrize("field", ["started", "finished"])
def test_the_date_that_is_wrong_is_named(field, tmp_path):
    damage = {"version": 3, "started": None, "finished": None, "pc_success_at_end": None}
    damage |= {"pc_pass_hat_k": None, "settled": None, "pc_success_cs": None}
    damage |= {field: "yesterday"}
    write(tmp_path / "2026-11-02_bad", 10, replaced=damage)
    results, problems = read_results(tmp_path)
    assert not results and f"{field} is not a date: 'yesterday'" in problems[0], problems


def test_no_change_has_no_sign(tmp_path):
    write(tmp_path / "2026-11-01", 10)
    write(tmp_path / "2026-11-02", 10)
    page = health_markdown(benchmark_health(read_results(tmp_path)[0]))
    assert " 0 points " in page and not re.search(r"[+\-−]0 points", page), page


def test_names_of_others_do_nothing(tmp_path):
    write(tmp_path / "2026-11-01", 3, env="<script>alert(1)</script>", task="a|b")
    health = benchmark_health(read_results(tmp_path)[0])
    assert "<script" not in health_html(health) and "<script" not in health_markdown(health)


def make(*words, **environment):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    inherited = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL")}
    return subprocess.run(
        ["make", *words, "SKIP_INSTALL=1"],
        cwd=ROOT,
        env={**inherited, "PATH": path, **environment},
        capture_output=True,
        text=True,
    )


def test_make_dashboard_makes_a_page_and_the_summary_of_the_job(tmp_path):
    history(tmp_path / "history", 20, 19, 4)
    page, summary = tmp_path / "page" / "dashboard", tmp_path / "summary.md"
    parameters = f"-p expected metaworld,libero -p summary {summary}"
    words = [f"METRICS={tmp_path / 'history'}", f"DASHBOARD={page}", f"PARAMS={parameters}"]
    done = make("dashboard", *words)
    assert done.returncode == 0, done.stderr[-2000:]
    html = page.with_suffix(".html").read_text()
    assert "WORSE beyond chance" in html and "no result at all" in html
    assert summary.read_text().startswith("## Benchmarks") and "WORSE" in summary.read_text()
    done = make("dashboard", *words[:2], f"PARAMS={parameters} -p fail True")
    assert done.returncode != 0 and "not healthy" in done.stdout + done.stderr


def test_metrics_of_earlier_runs_are_collected(tmp_path):
    """`gh` is a stand-in: two runs, the artifacts of the second have expired."""
    stand_in = tmp_path / "bin" / "gh"
    stand_in.parent.mkdir()
    stand_in.write_text(
        """#!/bin/sh
case "$2" in
list) echo "17 2026-11-02T03:47:00Z"; echo "18 2026-11-09T03:47:00Z" ;;
download) [ "$3" = 17 ] || exit 1
    while [ "$1" != --dir ]; do shift; done
    mkdir -p "$2/metrics-metaworld" && cp "$SAMPLE" "$2/metrics-metaworld/metrics.json" ;;
esac
"""
    )
    stand_in.chmod(0o755)
    write(tmp_path / "sample", 10)
    folder = tmp_path / "history"
    done = make(
        "metrics-history",
        f"METRICS={folder}",
        PATH=f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}",
        SAMPLE=str(tmp_path / "sample" / "metrics.json"),
    )
    assert done.returncode == 0, done.stderr
    assert "run 18 of 2026-11-09T03:47:00Z has no metrics" in done.stderr
    results, problems = read_results(folder)
    assert problems == [] and [f"{one.when:%Y-%m-%d}" for one in results] == ["2026-11-02"]


def test_a_result_is_dated_by_itself(tmp_path):
    """The run's own date, not that of the folder or file into which a job copied metrics.json."""
    new = {
        "version": 3,
        "started": "2026-11-20T09:00:00+00:00",
        "finished": "2026-11-20T09:30:00+00:00",
        "pc_success_at_end": None,
        "pc_pass_hat_k": None,
        "settled": None,
        "pc_success_cs": None,
    }
    write(tmp_path / "2026-11-27_copied", 10, **new)
    write(tmp_path / "2026-11-28_old", 10)
    interrupted = new | {"finished": None}
    write(tmp_path / "2026-11-29_copied", 10, **interrupted)
    results, problems = read_results(tmp_path)
    assert problems == []
    assert [(f"{one.when:%m-%d %H:%M}", one.dated_by) for one in results] == [
        ("11-20 09:00", "metrics.json"),
        ("11-20 09:30", "metrics.json"),
        ("11-28 00:00", "folder"),
    ]
    write(tmp_path / "damaged", 10, **new | {"finished": "soon"})
    assert "finished is not a date: 'soon'" in read_results(tmp_path)[1][0]


def test_titles_of_plots_are_whole(tmp_path):
    long = "a_module_with_a_long_name.and_another:APolicyWithALongName"
    for day in (1, 2):
        write(tmp_path / f"2026-11-{day:02d}", 10, policy=long)
    figure = history_plot(benchmark_health(read_results(tmp_path)[0]))
    figure.draw_without_rendering()
    (axis,) = figure.axes
    box = axis._left_title.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height
    assert long in axis.get_title(loc="left").replace("\n", "")
