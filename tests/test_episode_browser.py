"""EpisodeBrowser without a browser: its filters, what it says, how it takes 10,000 episodes and other people's folders."""

import json
import shutil
from pathlib import Path

import pytest
from growth import assert_linear

from lerobot_nb import EpisodeBrowser, EpisodeRecord
from lerobot_nb.results.outcomes import EpisodeTally, Outcome
from lerobot_nb.results.run_folder import RunFolderError

OLD = Path(__file__).parent / "data" / "runs_of_0_1_0" / "gym_finished"


def run_of(folder, records):
    shutil.copytree(OLD, folder)
    lines = [json.dumps(record.to_json()) for record in records]
    (folder / "episodes.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def many(n_episodes):
    for i in range(n_episodes):
        failed = i % 3 == 0
        yield EpisodeRecord(
            f"suite {i % 2}",
            i % 10,
            f"task {i % 10}",
            "do it",
            i // 10,
            seed=i,
            success=not failed,
            end_reason="error" if i % 50 == 7 else "time_limit" if failed else "success",
            n_steps=100,
            sum_reward=0.1 * i,
        )


def use(folder):
    """Load, show, filter and plot."""
    browser = EpisodeBrowser(folder)
    assert browser.widget is not None
    browser._parts["outcome"].value = Outcome.FAILURE
    browser._parts["suite"].value = "suite 1"
    return browser


def test_ten_thousand_episodes_are_ten_times_the_work_of_one_thousand(tmp_path):
    """How many seconds that is, the notebook of the module measures."""
    thousand = run_of(tmp_path / "thousand", many(1000))
    folder = run_of(tmp_path / "run", many(10_000))
    assert_linear(lambda: use(thousand), lambda: use(folder), 10)
    browser = use(folder)
    expected = [record for record in many(10_000) if record.suite == "suite 1"]
    expected = [one for one in expected if one.evaluated and not one.success]
    assert sorted(one.key for one in expected) == sorted(
        browser.table.records[number].key for number in browser.numbers
    )
    # one mark of the plot for each of them
    assert browser._parts["details"].value.count("h0") == len(expected)


def test_a_filter_reads_no_file_again(tmp_path):
    folder = run_of(tmp_path / "run", many(100))
    browser = use(folder)
    n_failed = len(browser.numbers)
    shutil.rmtree(folder)
    browser._parts["outcome"].label = browser._parts["suite"].label = "all"
    assert len(browser.numbers) == 100
    browser._parts["outcome"].value = Outcome.FAILURE
    browser._parts["suite"].value = "suite 1"
    assert len(browser.numbers) == n_failed > 0


def test_counts_are_those_of_the_tally(tmp_path):
    records = list(many(500))
    browser = EpisodeBrowser(run_of(tmp_path / "run", records))
    counts = browser.table.counts(browser.numbers)
    assert counts.rate == EpisodeTally(True, records).counts.rate
    assert str(counts.rate) in browser.summary()


def test_the_list_turns_pages_and_shows_what_is_chosen(tmp_path):
    browser = EpisodeBrowser(run_of(tmp_path / "run", many(250)))
    parts = (browser.widget, browser._parts)[1]
    seen = []
    browser.choose(0)
    for _ in range(3):
        seen += [number for _, number in parts["list"].options]
        parts["on"].click()
    assert seen == browser.numbers
    assert parts["on"].disabled and not parts["back"].disabled
    parts["list"].value = seen[-1]
    assert browser.record is browser.table.records[seen[-1]]
    assert "/".join(map(str, browser.record.key)) in browser.command
    assert f"lerobot-nb rerun {tmp_path / 'run'}" in parts["details"].value


def test_what_is_chosen_is_shown_as_chosen(tmp_path):
    """A choice whose value is None leaves menus empty and no button pressed."""
    browser = EpisodeBrowser(run_of(tmp_path / "run", many(250)))
    parts = (browser.widget, browser._parts)[1]

    def chosen():
        return [parts[name].label for name in ("suite", "task", "outcome")]

    assert chosen() == ["all", "all tasks", "all"] and len(browser.numbers) == 250
    parts["outcome"].value, parts["suite"].value = Outcome.ERROR, "suite 1"
    assert chosen() == ["suite 1", "all tasks", "error"] and 0 < len(browser.numbers) < 250
    parts["outcome"].label = parts["suite"].label = "all"
    assert chosen() == ["all", "all tasks", "all"] and len(browser.numbers) == 250


def test_names_of_others_do_nothing(tmp_path):
    evil = "<img src=x onerror=alert(1)>\x1b[2J"
    record = EpisodeRecord(evil, 0, evil, evil, 0, seed=0, video_path="../../etc/passwd")
    browser = EpisodeBrowser(run_of(tmp_path / "run", [record]))
    parts = (browser.widget, browser._parts)[1]
    shown = [parts[name].value for name in ("details", "record", "summary", "no_video")]
    for text in (*shown, browser.picture()):
        assert "<img src=x" not in text and "\x1b" not in text
    assert "not a path inside" in parts["no_video"].value and parts["video"].value == b""
    assert "\x1b" not in parts["list"].options[0][0]


@pytest.mark.parametrize("damage", ["absent", "manifest", "line"])
def test_damaged_folders_are_one_error(tmp_path, damage):
    folder = tmp_path / "run"
    if damage != "absent":
        shutil.copytree(OLD, folder)
        with open(folder / {"manifest": "run.json", "line": "episodes.jsonl"}[damage], "a") as file:
            file.write("[]\n")
    with pytest.raises(RunFolderError, match=str(folder)):
        EpisodeBrowser(folder)


def test_no_widget_where_nobody_can_click(tmp_path):
    folder = run_of(tmp_path / "run", many(3))
    still, live = EpisodeBrowser(folder), EpisodeBrowser(folder, static=False)
    assert set(still._repr_mimebundle_()) == {"text/plain", "text/html"}
    assert "application/vnd.jupyter.widget-view+json" in live._repr_mimebundle_()
