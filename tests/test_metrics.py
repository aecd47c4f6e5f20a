"""The metrics parser: whatever lies in the artifacts folder, strict JSON and the right exit code come out."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lerobot_nb
from lerobot_nb.results import metrics as metrics_module
from lerobot_nb.results.metrics import main
from lerobot_nb.results.run_folder import RunFolder, RunFolderError

KEYS = [
    "version",
    "env",
    "task",
    "policy",
    "started",
    "finished",
    "pc_success",
    "n_episodes",
    "avg_sum_reward",
    "eval_s",
    "pc_success_ci",
    "pc_success_at_end",
    "pc_pass_hat_k",
    "n_success",
    "n_judged",
    "n_evaluated",
    "n_errors",
    "settled",
    "pc_success_cs",
    "task_descriptions",
]
GOOD = {
    "avg_sum_reward": 12.5,
    "avg_max_reward": 1.0,
    "pc_success": 90.0,
    "n_episodes": 10,
    "eval_s": 30.5,
    "eval_ep_s": 3.05,
    "video_paths": [],
}


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON")


def run(folder, *more):
    """(exit code, metrics.json parsed strictly)"""
    code = main(
        [
            "--artifacts-dir",
            str(folder),
            "--env",
            "metaworld",
            "--task",
            "mt10",
            "--policy",
            "expert",
            *more,
        ]
    )
    return code, json.loads(
        (Path(folder) / "metrics.json").read_text(), parse_constant=refuse_constant
    )


def test_both_shapes(tmp_path, capsys):
    for shape in (
        {"overall": GOOD},
        {
            "per_episode": [{}] * 10,
            "aggregated": {name: GOOD[name] for name in GOOD if name != "n_episodes"},
        },
    ):
        (tmp_path / "eval_info.json").write_text(json.dumps(shape))
        code, result = run(tmp_path)
        assert code == 0 and list(result) == KEYS
        assert (result["env"], result["task"], result["policy"]) == ("metaworld", "mt10", "expert")
        assert (
            result["pc_success"],
            result["n_episodes"],
            result["avg_sum_reward"],
            result["eval_s"],
        ) == (90.0, 10, 12.5, 30.5)
        assert [round(end, 2) for end in result["pc_success_ci"]] == [59.58, 98.21]
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["pc_success", "n_episodes", "avg_sum_reward", "eval_s"])
@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "null",
        '"90"',
        "true",
        "[1]",
        "{}",
        "absent",
        "1" + "0" * 400,
    ],
)
def test_a_value_that_is_no_finite_number(tmp_path, capsys, name, text):
    values = {key: json.dumps(value) for key, value in GOOD.items()}
    values[name] = text
    if text == "absent":
        del values[name]
    (tmp_path / "eval_info.json").write_text(
        '{"overall": {' + ", ".join(f'"{key}": {value}' for key, value in values.items()) + "}}"
    )
    code, result = run(tmp_path)
    assert code == 0 and result[name] is None
    assert all(
        result[other] == GOOD[other]
        for other in ("pc_success", "n_episodes", "avg_sum_reward", "eval_s")
        if other != name
    )
    error = capsys.readouterr().err
    assert error.startswith("warning: ") and f"overall.{name}" in error and error.count("\n") == 1


BROKEN = {
    "missing": None,
    "empty": b"",
    "half": b'{"overall": {"pc',
    "list": b"[]",
    "text": b'"a"',
    "no section": b'{"info": {}}',
    "section is no object": b'{"overall": 3}',
    "not utf-8": b"\xff\xfe{}",
    "deep": b"[" * 100_000,
    "long integer": b'{"overall": {"pc_success": ' + b"9" * 5000 + b"}}",
    "zeros": b"\0" * 100,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_missing_or_broken_file(tmp_path, capsys, name):
    if BROKEN[name] is not None:
        (tmp_path / "eval_info.json").write_bytes(BROKEN[name])
    code, result = run(tmp_path)
    assert code == 2 and list(result) == KEYS and "eval_info.json" in capsys.readouterr().err
    assert all(result[key] is None for key in KEYS[4:-1]) and result["task_descriptions"] == {}
    code, result = run(tmp_path, "--allow-missing")
    assert code == 0 and result["pc_success"] is None


def test_missing_folder_and_other_places(tmp_path, capsys):
    code, _ = run(tmp_path / "not" / "there")
    assert code == 2 and "no folder" in capsys.readouterr().err
    assert (
        main(
            [
                "--artifacts-dir",
                str(tmp_path),
                "--env",
                "e",
                "--task",
                "t",
                "--policy",
                "p",
                "--output",
                str(tmp_path / "a" / "m.json"),
                "--allow-missing",
            ]
        )
        == 0
    )
    assert (tmp_path / "a" / "m.json").is_file()
    (tmp_path / "file").write_text("")
    assert (
        main(
            [
                "--artifacts-dir",
                str(tmp_path),
                "--env",
                "e",
                "--task",
                "t",
                "--policy",
                "p",
                "--output",
                str(tmp_path / "file" / "m.json"),
            ]
        )
        == 1
    )
    assert main(["--artifacts-dir", str(tmp_path)]) == 2


def test_which_file_is_taken(tmp_path, capsys):
    def put(path, percent, changed):
        path = tmp_path / path / "eval_info.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"overall": {**GOOD, "pc_success": percent}}))
        os.utime(path, (changed, changed))

    put("eval/day/b", 20.0, 200)
    assert run(tmp_path)[1]["pc_success"] == 20.0
    put("eval/day/a", 10.0, 300)
    assert run(tmp_path)[1]["pc_success"] == 10.0 and "several" in capsys.readouterr().err
    os.symlink("nowhere", tmp_path / "eval" / "eval_info.json")
    assert run(tmp_path)[1]["pc_success"] == 10.0
    put(".", 30.0, 100)
    assert run(tmp_path)[1]["pc_success"] == 30.0


def test_descriptions(tmp_path, capsys):
    (tmp_path / "eval_info.json").write_text(
        json.dumps(
            {
                "overall": GOOD,
                "per_task": [
                    {
                        "task_group": "mt10",
                        "task_id": 0,
                        "task_description": "reach the goal",
                        "metrics": {},
                    },
                    {"task_group": "mt10", "task_id": 1},
                    3,
                ],
            }
        )
    )
    assert run(tmp_path)[1]["task_descriptions"] == {"mt10_0": "reach the goal"}
    (tmp_path / "task_descriptions.json").write_text(
        json.dumps({"mt10_0": "greift zum Würfel", "mt10_1": 4})
    )
    assert (
        run(tmp_path)[1]["task_descriptions"] == {"mt10_0": "greift zum Würfel"}
        and "mt10_1" in capsys.readouterr().err
    )
    (tmp_path / "task_descriptions.json").write_text("{")
    code, result = run(tmp_path)
    assert (
        code == 0
        and result["task_descriptions"] == {}
        and "task_descriptions.json" in capsys.readouterr().err
    )


def test_counts_of_errors(tmp_path, capsys):
    (tmp_path / "eval_info.json").write_text(
        json.dumps(
            {
                "overall": {
                    **GOOD,
                    "pc_success": 50.0,
                    "n_success": 1,
                    "n_evaluated": 2,
                    "n_errors": 8,
                }
            }
        )
    )
    _, result = run(tmp_path)
    assert (result["n_errors"], result["n_evaluated"], result["n_episodes"]) == (
        8,
        2,
        10,
    ) and result["pc_success_ci"][1] > 90
    (tmp_path / "eval_info.json").write_text(json.dumps({"overall": {**GOOD, "n_errors": -1.5}}))
    assert run(tmp_path)[1]["n_errors"] is None and "n_errors" in capsys.readouterr().err


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
section = st.dictionaries(
    st.sampled_from([*GOOD, "n_success", "n_judged", "n_evaluated", "n_errors"]),
    st.integers() | st.floats() | json_values,
)
eval_infos = json_values | st.fixed_dictionaries(
    {},
    optional={
        "overall": section | json_values,
        "aggregated": section | json_values,
        "per_episode": json_values,
        "per_task": json_values
        | st.lists(
            st.dictionaries(
                st.sampled_from(["task_group", "task_id", "task_description"]), json_values
            )
        ),
    },
)


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(eval_infos, st.none() | json_values, st.booleans())
def test_any_json_in_strict_json_out(tmp_path, capsys, eval_info, descriptions, allow_missing):
    # with NaN and Infinity, as lerobot writes them
    (tmp_path / "eval_info.json").write_text(json.dumps(eval_info))
    (tmp_path / "task_descriptions.json").unlink(missing_ok=True)
    if descriptions is not None:
        (tmp_path / "task_descriptions.json").write_text(json.dumps(descriptions))
    code, result = run(tmp_path, *["--allow-missing"] * allow_missing)
    usable = isinstance(eval_info, dict) and any(
        isinstance(eval_info.get(name), dict) for name in ("overall", "aggregated")
    )
    assert code == (0 if usable or allow_missing else 2)
    assert list(result) == KEYS
    for name in ("pc_success", "n_episodes", "avg_sum_reward", "eval_s"):
        value = result[name]
        assert value is None or (
            isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        )
    assert (
        result["pc_success_ci"] is None
        or 0 <= result["pc_success_ci"][0] <= result["pc_success_ci"][1] <= 100
    )
    assert all(isinstance(text, str) for text in result["task_descriptions"].values())
    capsys.readouterr()


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=200))
def test_any_bytes_in_strict_json_out(tmp_path, capsys, content):
    (tmp_path / "eval_info.json").write_bytes(content)
    code, result = run(tmp_path)
    assert code in (0, 2) and list(result) == KEYS
    capsys.readouterr()


@pytest.mark.parametrize("how", ["module", "path"])
def test_a_bare_python_is_enough(tmp_path, how):
    """An isolated interpreter without site-packages, from a copy of the two folders: nothing but
    the standard library can be imported.
    """
    package = Path(lerobot_nb.__file__).parent
    shutil.copytree(package, tmp_path / "lerobot_nb", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "eval_info.json").write_text(json.dumps({"overall": GOOD}))
    start = (
        ["-m", "lerobot_nb.results.metrics"]
        if how == "module"
        else [str(tmp_path / "lerobot_nb" / "results" / "metrics.py")]
    )
    arguments = [
        "--artifacts-dir",
        str(tmp_path),
        "--env",
        "metaworld",
        "--task",
        "mt10",
        "--policy",
        "expert",
    ]
    done = subprocess.run(
        [sys.executable, "-S", "-s", "-W", "error", *start, *arguments],
        cwd=tmp_path if how == "module" else "/",
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "metrics.json").read_text())["pc_success"] == 90.0
    assert metrics_module.__file__.startswith(str(package))


def test_exit_code_and_stderr_of_the_process(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "lerobot_nb.results.metrics",
            "--artifacts-dir",
            str(tmp_path),
            "--env",
            "e",
            "--task",
            "t",
            "--policy",
            "p",
        ],
        capture_output=True,
        text=True,
    )
    assert (
        done.returncode == 2
        and "no eval_info.json" in done.stderr
        and "Traceback" not in done.stderr
    )


# run.json

RUN = {
    "benchmark": "metaworld",
    "env_config": {"task": "mt10"},
    "plan": {"n_episodes": 1, "seed": 1000, "tasks": [["mt10", 0, "reach-v3", None, None]]},
    "policy": {"name": "mine"},
    "policy_request": {"policy": "my_module:Mine", "kwargs": {}},
    "status": "finished",
    "started": "2026-12-01T10:30:00+01:00",
    "ended": "2026-12-01T10:42:10+01:00",
    "command": "lerobot-nb eval",
    "eval_config": {},
    "packages": {},
    "machine": {},
    "warnings": [],
    "sessions": [],
    **dict.fromkeys(["reason", "protocol", "runner", "times", "gl", "git_commit"]),
}


def a_run(folder, manifest=RUN):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "eval_info.json").write_text(json.dumps({"overall": GOOD}))
    (folder / "run.json").write_text(
        manifest if isinstance(manifest, str) else json.dumps(manifest)
    )
    return folder


def test_a_run_folder_is_enough(tmp_path, capsys):
    folder = a_run(tmp_path / "run")
    assert main([str(folder)]) == 0
    result = json.loads((folder / "metrics.json").read_text())
    assert (result["version"], result["env"], result["task"], result["policy"]) == (
        3,
        "metaworld",
        "mt10",
        "my_module:Mine",
    )
    assert metrics_module.read_metrics(folder / "metrics.json") == result
    # a folder above it
    assert (
        main([str(tmp_path), "--allow-missing"]) == 0
        and json.loads((tmp_path / "metrics.json").read_text())["task"] == "mt10"
    )
    (folder / "run.json").write_text(json.dumps(RUN | {"env_config": None, "policy_request": None}))
    assert main([str(folder)]) == 0
    result = json.loads((folder / "metrics.json").read_text())
    assert (result["task"], result["policy"]) == ("mt10", "mine")


@pytest.mark.parametrize(
    "option, value",
    [("--benchmark", "libero"), ("--env", "libero"), ("--task", "mt50"), ("--policy", "expert")],
)
def test_what_is_given_must_be_what_was_run(tmp_path, capsys, option, value):
    folder = a_run(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main([str(folder), option, value])
    error = capsys.readouterr().err
    assert (
        stop.value.code == 2
        and value in error
        and "run.json" in error
        and not (folder / "metrics.json").exists()
    )


def test_old_options_that_agree_are_taken(tmp_path):
    a_run(tmp_path)
    assert (
        main(
            [
                "--artifacts-dir",
                str(tmp_path),
                "--env",
                "metaworld",
                "--task",
                "mt10",
                "--policy",
                "mine",
            ]
        )
        == 0
    )
    assert json.loads((tmp_path / "metrics.json").read_text())["policy"] == "mine"


def test_a_folder_without_a_run_needs_the_names(tmp_path, capsys):
    (tmp_path / "eval_info.json").write_text(json.dumps({"overall": GOOD}))
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path), "--task", "mt10"])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and "--benchmark, --policy" in error
    assert (
        main([str(tmp_path), "--allow-missing"]) == 0
        and json.loads((tmp_path / "metrics.json").read_text())["env"] is None
    )


@pytest.mark.parametrize("arguments", [[], ["a", "--artifacts-dir", "b"]])
def test_one_folder_is_given(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2 and "RUN_FOLDER" in capsys.readouterr().err


@pytest.mark.parametrize(
    "manifest, words",
    [
        ("", "is not JSON"),
        ("[]", "not an object"),
        ("{", "is not JSON"),
        ("null", "not an object"),
        (json.dumps(RUN | {"benchmark": 3}), "benchmark must be text"),
        (json.dumps(RUN | {"env_config": []}), "env_config must be"),
        (json.dumps(RUN | {"plan": {"tasks": [3]}}), "plan.n_episodes is missing"),
        (json.dumps({name: RUN[name] for name in RUN if name != "policy"}), "policy is missing"),
        (json.dumps(RUN).replace("null", "NaN", 1), "NaN"),
        ("[" * 100_000, "nested"),
    ],
)
@pytest.mark.parametrize("given", [[], ["--benchmark", "b", "--task", "t", "--policy", "p"]])
def test_a_damaged_manifest_is_one_error(tmp_path, capsys, manifest, words, given):
    """As in every other command: exit code 2, file and field named, also where the names are given."""
    a_run(tmp_path, manifest)
    with pytest.raises(RunFolderError) as said:
        RunFolder(tmp_path).manifest()
    assert words in str(said.value) and "run.json" in str(said.value)
    assert main([str(tmp_path), *given]) == 2
    message = capsys.readouterr().err
    assert words in message and "run.json" in message and "Traceback" not in message
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written["pc_success"] == GOOD["pc_success"]
    assert written["env"] == ("b" if given else None)
    assert main([str(tmp_path), *given, "--allow-missing"]) == 0
    assert "warning" in capsys.readouterr().err


def test_a_folder_in_place_of_the_manifest_is_the_same_error(tmp_path, capsys):
    a_run(tmp_path)
    (tmp_path / "run.json").unlink()
    (tmp_path / "run.json").mkdir()
    assert main([str(tmp_path), "--benchmark", "b", "--task", "t", "--policy", "p"]) == 2
    assert "is not a file, but a folder" in capsys.readouterr().err


def test_older_metrics_are_refused_by_name(tmp_path):
    for content, words in (({"pc_success": 100.0}, "older version"), ({"version": 9}, "version 9")):
        (tmp_path / "metrics.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=words):
            metrics_module.read_metrics(tmp_path / "metrics.json")


def test_counts_that_are_not_those_of_the_rate_are_left_out(tmp_path, capsys):
    (tmp_path / "eval_info.json").write_text(
        json.dumps(
            {
                "overall": {
                    **GOOD,
                    "pc_success": 100.0,
                    "n_success": 3,
                    "n_evaluated": 10,
                    "n_errors": 0,
                }
            }
        )
    )
    _, result = run(tmp_path)
    assert (
        result["n_success"] is None
        and result["pc_success_ci"] is None
        and "3 of 10" in capsys.readouterr().err
    )


def test_a_file_of_the_first_version_is_counted_again(tmp_path, capsys):
    """Its rate left out failures that reported nothing: 3 of 10 was 100 %."""
    old = {
        "per_task": [
            {
                "task_group": "a",
                "task_id": 0,
                "n_errors": 1,
                "metrics": {"successes": [True] * 3 + [None] * 7},
            }
        ],
        "per_group": {"a": {}},
        "overall": {
            **GOOD,
            "pc_success": 100.0,
            "n_success": 3,
            "n_evaluated": 10,
            "n_errors": 1,
            "n_interrupted": 0,
        },
    }
    (tmp_path / "eval_info.json").write_text(json.dumps(old))
    _, result = run(tmp_path)
    assert (
        result["pc_success"],
        result["n_success"],
        result["n_judged"],
        result["n_errors"],
        result["n_episodes"],
    ) == (30.0, 3, 10, 1, 11)
    (tmp_path / "eval_info.json").write_text(json.dumps({"version": 3, "overall": GOOD}))
    assert run(tmp_path)[0] == 2 and "version 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    "started, ended, expected, warns",
    [
        ("2026-12-01T10:30:00+01:00", "2026-12-01T00:00:01-08:00", "09:30:00 08:00:01", False),
        ("2026-12-01T10:30:00+00:00", None, "10:30:00 None", False),
        ("yesterday", None, "None None", True),
        ("0001-01-01T00:00:00+14:00", None, "None None", True),
    ],
)
def test_dates_are_those_of_the_run_in_utc(tmp_path, capsys, started, ended, expected, warns):
    folder = a_run(tmp_path, RUN | {"started": started, "ended": ended})
    assert main([str(folder)]) == 0
    result = metrics_module.read_metrics(folder / "metrics.json")
    times = [result["started"], result["finished"]]
    shown = [None if time is None else time.removeprefix("2026-12-01T")[:8] for time in times]
    assert " ".join(map(str, shown)) == expected
    assert all(time is None or time.endswith("+00:00") for time in times)
    assert ("not a date" in capsys.readouterr().err) == warns


def test_version_2_is_read(tmp_path):
    """It has neither dates nor pass^k; readers find the same keys as in a new file."""
    folder = a_run(tmp_path)
    assert main([str(folder)]) == 0
    new = json.loads((folder / "metrics.json").read_text())
    added = ("started", "finished", "pc_success_at_end", "pc_pass_hat_k")
    old = {name: value for name, value in new.items() if name not in added} | {"version": 2}
    (folder / "metrics.json").write_text(json.dumps(old))
    expected = new | {"started": None, "finished": None}
    assert metrics_module.read_metrics(folder / "metrics.json") == expected
