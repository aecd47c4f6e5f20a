"""LiveEval without a browser: pause, go on, stop, resume; a run folder that is in order whatever was clicked."""

import time

import pytest

from lerobot_nb import EvalConfig, LiveEval, RunFolder, RunFolderError, same_episode
from lerobot_nb.evaluation.evaluate import evaluate

CONFIG = EvalConfig(n_episodes=40, batch_size=1)


def until(condition, what, wait_s=120):
    end = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def test_paused_stopped_and_resumed_it_gives_the_records_of_an_uninterrupted_run(tmp_path):
    folder = tmp_path / "run"
    live = LiveEval("metaworld", "expert", CONFIG, output_dir=folder)
    parts = (live.widget, live._parts)[1]
    assert parts["pause"].disabled and "not started" in parts["page"].value
    parts["start"].click()
    until(lambda: live.progress.n_done >= 2, "no episode ended")
    parts["pause"].click()
    assert live.state == "paused" and parts["pause"].description == "Go on"
    time.sleep(1.5)  # what was under way may end
    before = live.progress.n_done
    time.sleep(1.5)
    assert live.progress.n_done == before
    parts["pause"].click()
    until(lambda: live.progress.n_done > before, "it did not go on")
    parts["stop"].click()
    assert live.wait(60) is None and live.state == "stopped"
    assert "lerobot-nb eval --resume" in parts["below"].value and parts["stop"].disabled
    manifest = RunFolder(folder).manifest()
    assert manifest["status"] == "interrupted"
    assert before < len(list(RunFolder(folder).records())) < 40

    again = LiveEval("metaworld", "expert", CONFIG, output_dir=folder, resume=True).start()
    again.wait(240)
    assert again.state == "finished"
    whole = evaluate("metaworld", "expert", CONFIG, output_dir=tmp_path / "whole")
    pairs = list(zip(RunFolder(folder).records(), RunFolder(whole.folder).records()))
    assert len(pairs) == 40
    assert [same_episode(a, b) for a, b in pairs] == [[]] * 40


def test_a_stop_while_paused_ends_the_run(tmp_path):
    live = LiveEval("metaworld", "expert", CONFIG, output_dir=tmp_path / "run")
    live.start()
    until(lambda: live.progress.n_done >= 1, "no episode ended")
    live.pause()
    live.stop()
    assert live.wait(60) is None and live.state == "stopped"


def test_what_goes_wrong_is_raised_by_wait_and_shown(tmp_path):
    live = LiveEval("no_such_benchmark", "expert", CONFIG, output_dir=tmp_path / "run").start()
    with pytest.raises(ValueError, match="no_such_benchmark"):
        live.wait(60)
    assert live.state == "failed" and "no_such_benchmark" in live.picture()


def test_watching_a_folder_without_a_run_is_refused_at_once(tmp_path):
    with pytest.raises(RunFolderError, match="holds no run"):
        LiveEval.watch(tmp_path)


def test_arguments_that_make_no_sense(tmp_path):
    with pytest.raises(ValueError, match="leave progress out"):
        LiveEval("metaworld", progress=None)
    with pytest.raises(ValueError, match="needs output_dir"):
        LiveEval("metaworld", resume=True)
    with pytest.raises(RuntimeError, match="not started"):
        LiveEval("metaworld", output_dir=tmp_path).wait()
