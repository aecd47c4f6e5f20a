"""Everything that a run is turned into: page, figures, grids, tables, and rows for other tools."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from growth import assert_linear, n_calls

from lerobot_nb.cli import main
from lerobot_nb.evaluation.video import VideoWriter
from lerobot_nb.results import exporting, figures
from lerobot_nb.results.eval_info import build_eval_info
from lerobot_nb.results.html_report import html_report, save_figures, write_html_report
from lerobot_nb.results.metrics import extract_metrics
from lerobot_nb.results.pictures import first_and_last_frame, grid_video
from lerobot_nb.results.records import EpisodeRecord, append_record, dumps_strict
from lerobot_nb.results.report import Report
from lerobot_nb.results.run_folder import RunFolder, RunFolderError
from lerobot_nb.results.tables import latex_table, other_rates, table_rows, text_table

HOSTILE = "<img src=x onerror=alert(1)>$x$ & \\input{a} \x1b[31m"


def record(task, index, suite="mt10", **changes):
    success = (index * 7 + task) % 10 < 6
    fields = dict(
        success=success,
        success_step=30 + index if success else None,
        n_steps=30 + index if success else 100,
        sum_reward=float(index),
        max_reward=1.0,
        end_reason="success" if success else "time_limit",
        worker=index % 2,
        started_at=1e9 + index,
        wall_s=0.9,
    )
    return EpisodeRecord(
        suite, task, f"task-{task}", HOSTILE, index, 1000 + index, **{**fields, **changes}
    )


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for task in range(3):
        for index in range(10):
            changes = {}
            if index < 2:
                path = f"videos/mt10_{task}_{index:04d}.mp4"
                with VideoWriter(folder / path, fps=20) as writer:
                    for i in range(5 + 5 * index):
                        writer.write(np.full((48, 64, 3), 20 * task + i, np.uint8))
                changes = {"video_path": path}
            if (task, index) == (1, 9):
                changes = dict(end_reason="error", success=None, success_step=None, error=HOSTILE)
            append_record(folder / "episodes.jsonl", record(task, index, **changes))
    return folder


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.ids = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href"):
                self.links.append(value)
            if name == "id":
                self.ids.add(value)


def test_the_page_is_one_file_without_scripts_and_loads_nothing(run, tmp_path):
    path = write_html_report(run, tmp_path / "page" / "r.html")
    page = Page(path.read_text())
    assert "script" not in page.tags and page.tags.count("video") == 6
    outside = [
        link for link in page.links if not link.startswith(("data:", "#")) and "w3.org" not in link
    ]
    assert outside == []
    text = path.read_text()
    assert "default-src 'none'" in text and "\x1b" not in text and "<img src=x" not in text
    assert all(f"#{key}" in page.links for key in ("table", "success", "timeline", "run"))


def test_videos_can_be_linked_from_where_the_page_lies(run, tmp_path):
    path = write_html_report(run, tmp_path / "elsewhere" / "r.html", embed=False)
    page = Page(path.read_text())
    links = [link for link in page.links if link.endswith(".mp4")]
    assert len(links) == 6 and "video" not in page.tags
    assert all(os.path.exists(path.parent / link) for link in links)


@pytest.mark.parametrize("video", ["/etc/passwd", "../other.mp4", "videos/link.mp4"])
def test_a_foreign_folder_does_not_reach_outside(tmp_path, video):
    folder = tmp_path / "run"
    (folder / "videos").mkdir(parents=True)
    (tmp_path / "other.mp4").write_bytes(b"SECRET")
    (folder / "videos/link.mp4").symlink_to(tmp_path / "other.mp4")
    append_record(folder / "episodes.jsonl", record(0, 0, video_path=video))
    append_record(folder / "episodes.jsonl", record(0, 8, video_path=video))
    text = html_report(folder)
    assert "SECRET" not in text and "U0VDUkVU" not in text and "<video" not in text
    assert grid_video(folder, list(RunFolder(folder).records()), folder / "g.mp4") is None
    save_figures(folder, grids=True)
    assert not list((folder / "figures").glob("*grid*"))


@pytest.mark.parametrize("kind", ["link", "file"])
def test_figures_are_not_written_through_links(run, tmp_path, kind):
    outside = tmp_path / "outside"
    outside.mkdir()
    if kind == "link":
        (run / "figures").symlink_to(outside)
    else:
        (run / "figures").mkdir()
        (run / "figures/success.svg").symlink_to(outside / "new.svg")
    with pytest.raises(RunFolderError, match="move it away"):
        save_figures(run)
    assert list(outside.iterdir()) == []


def test_figures_as_files_are_transparent_and_repeatable(run):
    from PIL import Image

    written = save_figures(run)
    first = {path.name: path.read_bytes() for path in written if path.suffix == ".svg"}
    assert len(first) == 6  # success, rewards, lengths, timeline, rate, failures
    assert Image.open(run / "figures/success.png").convert("RGBA").getpixel((0, 0))[3] == 0
    save_figures(run)
    for name, content in first.items():
        assert (run / "figures" / name).read_bytes() == content, name


def test_a_grid_shows_every_episode_and_lasts_as_long_as_the_longest(run):
    save_figures(run, grids=True)
    import av

    path = run / "figures/mt10_0_grid.mp4"
    with av.open(str(path)) as container:
        n_frames = sum(1 for _ in container.decode(video=0))
    assert n_frames == 10 + 1  # the last frame shows how the longest ended
    assert first_and_last_frame(path)[0].shape == (120 + 8, 2 * (160 + 8), 3)


def test_bars_show_the_rates_and_intervals_of_the_table(run):
    info = build_eval_info(RunFolder(run).records())
    axis = figures.success_plot(info).axes[0]
    widths = [bar.get_width() for bar in axis.patches]
    assert np.allclose(widths[:3], [task["pc_success"] for task in info["per_task"]])
    ends = [line.get_xdata() for line in axis.lines if len(line.get_xdata()) == 2]
    for task in info["per_task"]:
        assert any(np.allclose(end, task["pc_success_ci"]) for end in ends)


def test_contrast_of_every_colour_on_white_and_on_dark():
    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return np.dot([0.2126, 0.7152, 0.0722], linear)

    for colour in (figures.BLUE, figures.VERMILION, figures.INK, *figures._OTHERS):
        for background in ("#ffffff", "#222222"):
            light, dark = sorted((luminance(colour), luminance(background)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) > 3, (colour, background)


def test_latex_compiles_to_the_same_cells(run):
    info = build_eval_info(RunFolder(run).records())
    lines = [line for line in latex_table(info).splitlines() if line.endswith(r"\\")]
    assert len(lines) == 1 + len(table_rows(info))
    assert all(line.count(" & ") == 6 for line in lines)


def test_frames_hold_what_the_records_say(run):
    frame = exporting.episodes_frame(run, run)
    records = list(RunFolder(run).records())
    assert len(frame) == 2 * len(records)
    one = frame.iloc[0]
    assert one["seed"] == records[0].seed and one["success"] == records[0].success
    assert frame["outcome"].value_counts().to_dict()["error"] == 2
    assert frame["n_steps"].sum() == 2 * sum(r.n_steps for r in records)


def test_robostats_reads_what_is_written(run, tmp_path):
    robostats = pytest.importorskip("robostats")
    written, left_out = exporting.write_robostats(run, tmp_path / "r.jsonl")
    assert (written, left_out) == (29, 1)
    found = robostats.load_jsonl(
        tmp_path / "r.jsonl",
        protocol=robostats.Protocol(),
        success_field="success",
        policy_id_field="policy_id",
        task_id_field="task_id",
        scenario_fields=["scenario_id"],
        seed_field="seed",
        episode_idx_field="episode_idx",
        success_detail_field="success_detail",
    )
    ours = [r for r in RunFolder(run).records() if r.evaluated]
    assert [r.success for r in found.records] == [r.success for r in ours]
    assert robostats.wilson(sum(r.success for r in ours), len(ours)) is not None


def test_the_model_card_is_read_back_by_the_hub(run):
    hub = pytest.importorskip("huggingface_hub")
    card = hub.ModelCard(exporting.model_card_snippet(run, "m"))
    (result,) = card.data.eval_results
    info = build_eval_info(RunFolder(run).records())
    assert result.metric_value == round(info["overall"]["pc_success"], 2)
    assert result.dataset_name == "mt10" and result.metric_args["n_errors"] == 1


def test_nothing_is_pushed_unasked(run, tmp_path, monkeypatch):
    import huggingface_hub

    calls = []
    monkeypatch.setattr(
        huggingface_hub, "metadata_update", lambda *args, **kw: calls.append(args) or "url"
    )
    assert main(["report", str(run), "--model_card", str(tmp_path / "card.md")]) == 0
    assert not calls
    assert main(["report", str(run), "--push", "user/m"]) == 0
    assert calls[0][0] == "user/m" and "model-index" in calls[0][1]


def test_rerun_recording(run, tmp_path):
    pytest.importorskip("rerun")
    assert exporting.write_rerun(run, tmp_path / "all.rrd") == 6
    assert (tmp_path / "all.rrd").read_bytes()[:4] == b"RRF2"
    with pytest.raises(ValueError, match="no episode 'a/0/0'"):
        exporting.write_rerun(run, tmp_path / "b.rrd", ["a/0/0"])


def test_the_command_writes_all_of_it(run, tmp_path, capsys):
    words = ["--html", "r.html", "--parquet", "e.parquet", "--robostats", "r.jsonl"]
    words = [word if word[:2] == "--" else str(tmp_path / word) for word in words]
    assert main(["report", str(run), "--format", "latex", "--figures", *words]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(r"\begin{tabular}") and "figures/success.svg" in err
    assert all((tmp_path / name).exists() for name in ("r.html", "e.parquet", "r.jsonl"))


@pytest.mark.parametrize(
    "words", [["--grids"], ["--link_videos"], ["--html", "/proc/no/r.html"], ["--format", "x"]]
)
def test_wrong_usage_is_a_sentence(run, words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["report", str(run), *words])
    assert stop.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{", "[" * 100_000, '{"suite": 3}', "\x00\n"])
def test_a_damaged_folder_is_one_error(tmp_path, content):
    (tmp_path / "episodes.jsonl").write_text(content + "\n")
    for function in (html_report, save_figures, exporting.episodes_frame):
        with pytest.raises(RunFolderError):
            function(tmp_path)


def test_heavy_libraries_are_imported_only_when_used():
    code = (
        "import sys, lerobot_nb.results.figures, lerobot_nb.results.html_report;"
        "import lerobot_nb.results.exporting, lerobot_nb.results.commands;"
        "print([m for m in ('matplotlib', 'pandas', 'pyarrow', 'rerun', 'torch', 'av',"
        " 'huggingface_hub', 'scipy') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.strip() == "[]", found.stdout + found.stderr


def test_ten_thousand_episodes_are_ten_times_the_work_of_one_thousand(tmp_path):
    for name, n_episodes in (("thousand", 20), ("ten", 200)):
        (tmp_path / name).mkdir()
        with open(tmp_path / name / "episodes.jsonl", "w") as file:
            for task in range(50):
                for index in range(n_episodes):
                    file.write(dumps_strict(record(task, index).to_json()) + "\n")

    def load_and_sum(name):
        records = list(RunFolder(tmp_path / name).records())
        return records, build_eval_info(records)

    assert_linear(lambda: load_and_sum("thousand"), lambda: load_and_sum("ten"), 10)
    records, info = load_and_sum("ten")
    assert len(records) == 10_000 == info["overall"]["n_episodes"]
    # the plot of tasks draws sums: its work does not depend on the episodes
    small = load_and_sum("thousand")[1]
    figures.success_plot(small)
    drawn = [
        n_calls(lambda: figures.figure_svg(figures.success_plot(one))) for one in (small, info)
    ]
    assert drawn[1] < 1.1 * drawn[0]


def test_svg_in_a_page_takes_its_colour():
    info = build_eval_info([record(0, index) for index in range(4)])
    text = figures.figure_svg(figures.success_plot(info), for_page=True)
    assert "currentColor" in text and not re.search(figures.INK, text, re.IGNORECASE)
    assert json.dumps(text)


def test_pass_hat_k_and_success_at_the_end(tmp_path):
    """Against counting by hand: all pairs of two tasks; successes that were lost again."""
    from itertools import combinations

    outcomes = {0: [True, True, False, True], 1: [False, True, False, False]}
    for task, row in outcomes.items():
        for index, success in enumerate(row):
            changes = dict(
                success=success,
                end_reason="success" if success else "time_limit",
                success_step=3 if success else None,
                n_success_steps=int(success),
                success_at_end=success and index != 0,
            )
            append_record(tmp_path / "episodes.jsonl", record(task, index, **changes))
    by_hand = [sum(a and b for a, b in combinations(row, 2)) / 6 for row in outcomes.values()]
    rates = dict(other_rates(Report(tmp_path).eval_info))
    assert rates["pass^2"] == f"{100 * sum(by_hand) / 2:.1f} %" and "pass^5" not in rates
    assert rates["success at any step"].startswith("4/8")
    assert rates["success at the end"].startswith("3/8")
    info = Report(tmp_path).eval_info
    for shown in (
        html_report(tmp_path),
        Report(tmp_path).text(),
        Report(tmp_path).text(markdown=True),
        Report(tmp_path).table()._repr_html_(),
        latex_table(info),
    ):
        shown = shown.replace("\\", "")
        assert f"pass^2 {rates['pass^2']}" in shown and "at the end of the episode: 3/8" in shown
    metrics, _ = extract_metrics(info)
    assert metrics["pc_success_at_end"] == 37.5
    assert abs(metrics["pc_pass_hat_k"]["2"] - 100 * sum(by_hand) / 2) < 1e-9


def test_rates_that_say_nothing_are_left_out():
    """One episode a task; all solved; success never lost; records of older versions."""
    once = build_eval_info([record(task, 0) for task in range(3)])
    solved = dict(success=True, end_reason="success", n_success_steps=1, success_at_end=True)
    always = build_eval_info([record(task, i, **solved) for task in range(2) for i in range(5)])
    for info in (once, always):
        assert "pass^" not in text_table(info) and "at the end" not in text_table(info)
    old = build_eval_info([record(0, i, **solved | dict(n_success_steps=None)) for i in range(5)])
    assert old["overall"]["n_success_at_end"] is None and dict(other_rates(old)) == {
        "pass^2": "100.0 %",
        "pass^5": "100.0 %",
    }
