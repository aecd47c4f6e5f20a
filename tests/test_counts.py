"""One count through every output: whatever the episodes reported, each rate is that of the numbers beside it, and the interval is that of these numbers."""

import contextlib
import html
import io
import json
import math
import re
from fractions import Fraction
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lerobot_nb.cli import main as lerobot_nb
from lerobot_nb.evaluation.evaluate import EvalRun
from lerobot_nb.evaluation.progress import Progress
from lerobot_nb.evaluation.sessions import FinishedEpisodes
from lerobot_nb.results.eval_info import build_eval_info, write_eval_info
from lerobot_nb.results.metrics import collect_metrics
from lerobot_nb.results.records import EpisodeRecord, append_record, judged_records
from lerobot_nb.results.report import Report
from lerobot_nb.results.statistics import overall_rate
from lerobot_nb.results.tables import html_table, table_rows, text_table

ENDS = [
    ("success", True),
    ("time_limit", True),
    ("time_limit", False),
    ("time_limit", None),
    ("terminated", False),
    ("terminated", None),
    ("error", None),
    ("error", True),
]
episodes = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.sampled_from(ENDS)), max_size=40
)


def records_of(ends):
    return [
        EpisodeRecord(
            suite,
            task_id,
            f"task {task_id}",
            "do it",
            index,
            index,
            end_reason=end_reason,
            success=success,
            n_steps=3,
            sum_reward=1.0,
            max_reward=1.0,
            error="it broke" if end_reason == "error" else None,
        )
        for index, (suite, task_id, (end_reason, success)) in enumerate(ends)
    ]


def expected(records, reports_success):
    """(successes, judged, evaluated, errors) of some episodes, counted one by one in the words of
    the rule.
    """
    n_success = n_judged = n_evaluated = n_errors = 0
    for record in records:
        if record.end_reason == "error":
            n_errors += 1
            continue
        n_evaluated += 1
        same_task = [
            other
            for other in records
            if (other.suite, other.task_id) == (record.suite, record.task_id)
            and other.end_reason != "error"
        ]
        if reports_success or any(other.success is not None for other in same_task):
            n_judged += 1
            n_success += record.success is True
    return n_success, n_judged, n_evaluated, n_errors


def interval(n_success, n_judged):
    """Wilson's interval as the two roots of (k/n - p)² = z² p (1 - p) / n, in percent."""
    z, share = 1.959963984540054, n_success / n_judged
    a, b, c = 1 + z * z / n_judged, -(2 * share + z * z / n_judged), share * share
    root = math.sqrt(max(0.0, b * b - 4 * a * c))
    return [50 * (-b - root) / a, 50 * (-b + root) / a]


def check_summary(summary, counts):
    n_success, n_judged, n_evaluated, n_errors = counts
    assert (summary["n_judged"], summary["n_evaluated"], summary["n_errors"]) == (
        n_judged,
        n_evaluated,
        n_errors,
    )
    assert summary["n_success"] == (None if n_evaluated and not n_judged else n_success)
    if not n_judged:
        assert summary["pc_success"] is None and summary["pc_success_ci"] is None
        return
    assert Fraction(summary["pc_success"]).limit_denominator(10**6) == Fraction(
        100 * n_success, n_judged
    )
    assert all(
        math.isclose(ours, other, abs_tol=1e-6)
        for ours, other in zip(summary["pc_success_ci"], interval(n_success, n_judged))
    )


def shown_interval(group, reports_success):
    """What a table's row shows: of one task that of its counts; of several judged tasks the one
    that takes tasks as clusters, of the same counts.
    """
    n_success, n_judged, *_ = expected(group, reports_success)
    if not n_judged:
        return None
    by_task = [
        expected(
            [record for record in group if (record.suite, record.task_id) == task], reports_success
        )
        for task in sorted({(record.suite, record.task_id) for record in group})
    ]
    counts = [(k, n) for k, n, *_ in by_task if n]
    found = (
        overall_rate([k for k, _ in counts], [n for _, n in counts]).like_these
        if len(counts) > 1
        else None
    )
    return interval(n_success, n_judged) if found is None else [100 * end for end in found]


def check_cells(cells, row):
    """The cells "success", "rate", "95 % interval" and "errors" of a table's row."""
    (n_success, n_judged, n_evaluated, n_errors), expected_ends = row
    success, rate, ends, errors = cells
    assert errors == str(n_errors)
    if not n_judged:
        assert (success, rate, ends) == (f"–/{n_evaluated}", "–", "–")
        return
    low, high = expected_ends
    assert (
        success == f"{n_success}/{n_judged}"
        and abs(float(rate.removesuffix(" %")) - 100 * n_success / n_judged) <= 0.5
    )
    shown_low, shown_high = map(float, ends.removesuffix(" %").split(" – "))
    assert abs(shown_low - low) <= 0.5 + 1e-6 and abs(shown_high - high) <= 0.5 + 1e-6


def cells_of(row):
    return row[1], row[2], row[3], row[-1]


def expected_rows(records, reports_success):
    tasks = sorted({(record.suite, record.task_id) for record in records})
    suites = sorted({suite for suite, _ in tasks})
    groups = [
        [record for record in records if (record.suite, record.task_id) == task] for task in tasks
    ]
    if 1 < len(suites) < len(tasks):
        groups += [[record for record in records if record.suite == suite] for suite in suites]
    return [
        (expected(group, reports_success), shown_interval(group, reports_success))
        for group in [*groups, records]
    ]


@settings(max_examples=40, deadline=None)
@given(episodes, st.booleans())
# was 100 %
@example([("a", 0, ("success", True))] * 3 + [("a", 0, ("time_limit", None))] * 7, False)
# mixed: was 1/10 beside 100 %
@example([("a", 0, ("success", True))] + [("b", 1, ("terminated", None))] * 9, False)
# an error says nothing about its task
@example([("a", 0, ("error", True)), ("a", 0, ("time_limit", None))], False)
def test_every_summary_and_every_table_holds_one_count(ends, reports_success):
    records = records_of(ends)
    eval_info = build_eval_info(reversed(records), reports_success=reports_success)
    for task in eval_info["per_task"]:
        of_task = [
            record
            for record in records
            if (record.suite, record.task_id) == (task["task_group"], task["task_id"])
        ]
        check_summary(task, expected(of_task, reports_success))
        assert (
            task["metrics"]["successes"].count(True) == (task["n_success"] or 0)
            and sum(one is not None for one in task["metrics"]["successes"]) == task["n_judged"]
        )
    for suite, summary in eval_info["per_group"].items():
        check_summary(
            summary,
            expected([record for record in records if record.suite == suite], reports_success),
        )
    check_summary(eval_info["overall"], expected(records, reports_success))

    rows = expected_rows(records, reports_success)
    for row, counts in zip(table_rows(eval_info), rows, strict=True):
        check_cells(cells_of(row), counts)
    n_success, n_judged, n_evaluated, _ = rows[-1][0]
    note = f"{n_evaluated - n_judged} of {n_evaluated} evaluated episodes are not judged"
    for page in (
        text_table(eval_info),
        text_table(eval_info, markdown=True),
        html_table(eval_info),
    ):
        assert (note in page) == (0 < n_judged < n_evaluated)
    lines = [
        line.strip("| ").split("|")
        for line in text_table(eval_info, markdown=True).split("\n\n")[0].splitlines()[2:]
    ]
    for cells, counts in zip(lines, rows, strict=True):
        check_cells(cells_of([cell.strip() for cell in cells]), counts)
    page_rows = re.findall(r"<tr>(.*?)</tr>", html_table(eval_info))[1:]
    for page_row, counts in zip(page_rows, rows, strict=True):
        cells = [
            html.unescape(re.sub("<.*?>", "", cell)).strip()
            for cell in re.findall(r"<td.*?>(.*?)</td>", page_row)
        ]
        check_cells((cells[1], cells[2], cells[3], cells[7]), counts)


@settings(max_examples=60, deadline=None)
@given(episodes.filter(bool), st.booleans(), st.data())
def test_progress_and_resume_show_the_same_count(ends, reports_success, data):
    records = records_of(ends)
    cut = data.draw(st.integers(0, len(records)))
    finished = FinishedEpisodes.among(
        records[:cut], retry_errors=False, reports_success=reports_success
    )
    progress = Progress()
    progress.start(len(records), "run", len(finished.keys), finished.tally)
    for number, record in enumerate(records[cut:], start=cut + 1):
        progress.update(record)
        n_success, n_judged, n_evaluated, n_errors = expected(records[:number], reports_success)
        shown = re.search(
            r"success (\d+)/(\d+) \((\d+) %\)(?: · (\d+) not judged)?", progress.line()
        )
        if n_judged:
            assert (int(shown[1]), int(shown[2]), int(shown[4] or 0)) == (
                n_success,
                n_judged,
                n_evaluated - n_judged,
            )
            assert abs(int(shown[3]) - 100 * n_success / n_judged) <= 0.5
        else:
            assert shown is None and "success" not in progress.line()
        assert (f"{n_errors} error" in progress.line()) == bool(n_errors)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(episodes.filter(bool), st.booleans())
def test_the_files_of_a_run_show_the_same_count(tmp_path_factory, ends, reports_success):
    """eval_info.json, metrics.json, `EvalRun`, the report with and without eval_info.json, and the
    command line.
    """
    folder = tmp_path_factory.mktemp("run")
    records = records_of(ends)
    for record in records:
        append_record(folder / "episodes.jsonl", record)
    manifest = json.loads(
        (Path(__file__).parent / "data/runs_of_0_1_0/gym_finished/run.json").read_text()
    )
    manifest["protocol"]["reports_success"] = reports_success
    # the report lists planned tasks; here they are those of the records
    manifest["plan"]["tasks"] = []
    (folder / "run.json").write_text(json.dumps(manifest))
    rows = expected_rows(records, reports_success)
    # a run that never got as far as its sums
    for row, counts in zip(table_rows(Report(folder).eval_info), rows, strict=True):
        check_cells(cells_of(row), counts)

    write_eval_info(folder, build_eval_info(records, eval_s=1.0, reports_success=reports_success))
    for row, counts in zip(table_rows(Report(folder).eval_info), rows, strict=True):
        check_cells(cells_of(row), counts)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert lerobot_nb(["report", str(folder), "--markdown"]) == 0
    last_row = [line for line in printed.getvalue().splitlines() if line.startswith("|")][-1]
    check_cells(cells_of([cell.strip() for cell in last_row.strip("| ").split("|")]), rows[-1])

    n_success, n_judged, n_evaluated, n_errors = rows[-1][0]
    metrics, warnings, problem = collect_metrics(folder)
    assert problem is None and not [
        warning for warning in warnings if "success" in warning or "counts" in warning
    ]
    check_summary(metrics, rows[-1][0])
    run = EvalRun.load(folder)
    assert (f"{n_success} successes in {n_judged} episodes" in repr(run)) == bool(n_judged) and (
        f"{n_errors} ended in an error" in repr(run)
    ) == bool(n_errors)
    judged = run.records()
    assert (
        sum(record.success is True for record in judged),
        sum(record.success is not None for record in judged),
    ) == (n_success, n_judged)
    assert judged == judged_records(sorted(records, key=lambda record: record.key), reports_success)
