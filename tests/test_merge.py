"""Parts of one evaluation become one run: disjoint parts give what one run gives; contradictions are errors that name the episode."""

import json
from pathlib import Path

import pytest

from lerobot_nb.results.commands import merge_command
from lerobot_nb.results.comparison import ProtocolMismatchError, compare_runs
from lerobot_nb.results.merging import merge_runs
from lerobot_nb.results.records import EpisodeRecord, append_record, write_json_atomic
from lerobot_nb.results.run_folder import RunFolder, RunFolderError


def part(
    path,
    tasks,
    outcome=lambda task, index: index % 2 == 0,
    indices=range(4),
    policy="p",
    limit=500,
    video=None,
    status="finished",
):
    path.mkdir()
    for task in tasks:
        for index in indices:
            success = outcome(task, index)
            end = "error" if success is None else "success" if success else "time_limit"
            append_record(
                path / "episodes.jsonl",
                EpisodeRecord(
                    "suite",
                    task,
                    f"task-{task}",
                    f"do {task}",
                    index,
                    1000 + index,
                    success=success,
                    end_reason=end,
                    n_steps=7,
                    sum_reward=1.0,
                    max_reward=1.0,
                    error="it broke" if success is None else None,
                    video_path=video,
                ),
            )
    old = json.loads(
        (Path(__file__).parent / "data/runs_of_0_1_0/gym_finished/run.json").read_text()
    )
    write_json_atomic(
        path / "run.json",
        {
            **old,
            "status": status,
            "benchmark": "b",
            "policy": {"name": policy},
            "protocol": {"episode_length": limit},
            "packages": {},
            "eval_config": {},
            "plan": {
                "n_episodes": 4,
                "seed": 1000,
                "tasks": [["suite", task, f"task-{task}", limit, None] for task in tasks],
            },
        },
    )
    return path


def sums(folder):
    info = json.loads((folder / "eval_info.json").read_text())
    return {
        (task["task_group"], task["task_id"]): (
            task["n_success"],
            task["n_judged"],
            task["n_errors"],
        )
        for task in info["per_task"]
    }, info["overall"]["pc_success"]


def test_disjoint_parts_equal_one_run(tmp_path, capsys):
    whole = part(tmp_path / "whole", [0, 1, 2])
    a, b = (
        part(tmp_path / "a", [0, 1], indices=range(4)),
        part(tmp_path / "b", [1, 2], outcome=lambda task, index: index % 2 == 0),
    )
    assert merge_command([str(a), str(b), "--output", str(tmp_path / "c")]) == 0
    assert "6/12" in capsys.readouterr().out
    assert sums(tmp_path / "c") == ({("suite", task): (2, 4, 0) for task in range(3)}, 50.0)
    assert [one.to_json() for one in RunFolder(tmp_path / "c").records()] == [
        one.to_json() for one in RunFolder(whole).records()
    ]
    comparison = compare_runs([whole, tmp_path / "c"]).pairs[0]
    assert (
        comparison.counts.n_pairs == 12 and not comparison.counts.only_a + comparison.counts.only_b
    )
    manifest = RunFolder(tmp_path / "c").manifest()
    assert (
        [one["folder"] for one in manifest["merged_from"]] == [str(a), str(b)]
        and manifest["status"] == "finished"
        and len(manifest["sessions"]) == 2
    )


def test_an_episode_with_two_outcomes_is_named_and_nothing_is_written(tmp_path, capsys):
    a, b = (
        part(tmp_path / "a", [0, 1]),
        part(
            tmp_path / "b",
            [1, 2],
            outcome=lambda task, index: (
                (task, index) != (1, 3) and index % 2 == 0 or (task, index) == (1, 3)
            ),
        ),
    )
    with pytest.raises(SystemExit) as caught:
        merge_command([str(a), str(b), "--output", str(tmp_path / "c")])
    assert caught.value.code == 2 and not (tmp_path / "c").exists()
    assert "episode suite/1/3" in capsys.readouterr().err


def test_an_evaluated_episode_replaces_an_error(tmp_path):
    a, b = (
        part(tmp_path / "a", [0], outcome=lambda task, index: None if index == 1 else True),
        part(tmp_path / "b", [0], outcome=lambda task, index: True, indices=[1]),
    )
    for order, name in (((a, b), "c"), ((b, a), "d")):
        assert sums(merge_runs(order, tmp_path / name))[0] == {("suite", 0): (4, 4, 0)}


def test_other_policies_protocols_and_folders_in_use_are_refused(tmp_path):
    a = part(tmp_path / "a", [0])
    with pytest.raises(ValueError, match="different policies"):
        merge_runs([a, part(tmp_path / "b", [1], policy="q")], tmp_path / "c")
    with pytest.raises(ProtocolMismatchError, match="episode_length: 500 and 300"):
        merge_runs([a, part(tmp_path / "d", [1], limit=300)], tmp_path / "c")
    e = part(tmp_path / "e", [1])
    with pytest.raises(RunFolderError, match="there already"):
        merge_runs([a, e], a)
    with pytest.raises(RunFolderError):
        merge_runs([a, tmp_path / "nothing"], tmp_path / "c")
    with pytest.raises(ValueError, match="two or more"):
        merge_runs([a], tmp_path / "c")
    assert not (tmp_path / "c").exists()
    assert (
        RunFolder(
            merge_runs([a, part(tmp_path / "f", [2], status="stopped")], tmp_path / "c")
        ).manifest()["status"]
        == "interrupted"
    )


def test_videos_come_along_and_nothing_from_outside(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    a, b = (
        part(tmp_path / "a", [0], indices=[0], video="videos/x.mp4"),
        part(tmp_path / "b", [1], indices=[0], video="../secret.txt"),
    )
    (a / "videos").mkdir()
    (a / "videos" / "x.mp4").write_bytes(b"film")
    c = part(tmp_path / "c", [2], indices=[0], video=str(tmp_path / "secret.txt"))
    merged = merge_runs([a, b, c], tmp_path / "m")
    assert (merged / "videos" / "x.mp4").read_bytes() == b"film"
    assert [record.video_path for record in RunFolder(merged).records()] == [
        "videos/x.mp4",
        None,
        None,
    ]
    assert not any("secret" in path.name for path in merged.rglob("*"))
