"""Run folders damaged at random, through every command that reads one: exit code 2 and a sentence, or a result; no traceback, and nothing written outside."""

import contextlib
import io
import json
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_own_folder import snapshot

from lerobot_nb import EpisodeBrowser, Report
from lerobot_nb.cli import main
from lerobot_nb.results.comparison import RunOutcomes
from lerobot_nb.results.dashboard import benchmark_health, health_html, history_plot, read_results
from lerobot_nb.results.eval_info import build_eval_info, write_eval_info
from lerobot_nb.results.run_folder import RunFolderError

OLD = Path(__file__).parent / "data" / "runs_of_0_1_0"
FILES = ("run.json", "episodes.jsonl", "eval_info.json", "log.jsonl")


def deep(n_levels=100_000):
    """A text of JSON that is nested deeper than a parser can go."""
    return b"[" * n_levels + b"]" * n_levels


ODD_TEXTS = st.sampled_from(
    [
        "",
        "\ud800",
        "\x1b[31mred\x1b[0m",
        "a\0b",
        "../../secret",
        "/etc/hostname",
        "x" * 300,
        "<script>alert(1)</script>",
        "a|b",
        "$x$",
        "os:system",
        "NaN",
        "\u202eevil",
    ]
)
ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([10**9, 10**30, -(10**30), 1.5, -0.5, 1e308, 5e-324]),
    ODD_TEXTS,
    st.sampled_from([[], {}, [[]], [1], [None], {"a": 1}, {"\ud800": "\x1b"}, {"type": 5}]),
)


def paths_of(value, so_far=()):
    """Every place in a JSON value."""
    yield so_far
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield from paths_of(item, (*so_far, key))


def with_value(value, path, new):
    """The value with another one at the place; `...` removes it."""
    if not path:
        return None if new is ... else new
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    if new is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return value


@st.composite
def damages(draw):
    """Name and function of one damage."""
    name = draw(st.sampled_from(FILES))
    how = draw(
        st.sampled_from(
            ["value", "value", "value", "value", "cut", "bytes", "kind", "deep", "missing"]
        )
    )
    if how == "value":
        where, new = draw(st.floats(0, 0.999)), draw(ODD_VALUES | st.just(...))
        line = draw(st.integers(0, 4))

        def change(path):
            # `surrogatepass` as an editor of somebody else might write it; `\ud800` is JSON's own way
            lines = path.read_text().splitlines() if name.endswith("l") else [path.read_text()]
            try:
                number = line % len(lines)
                data = json.loads(lines[number])
            except ValueError:  # the torn last line of a run that was killed
                return
            places = list(paths_of(data))
            lines[number] = json.dumps(with_value(data, places[int(where * len(places))], new))
            path.write_text("\n".join(lines) + "\n")

        return f"{name}: {new!r} at {where:.3f}, line {line}", name, change
    if how == "cut":
        share = draw(st.floats(0, 1))
        return (
            f"{name}: cut at {share:.3f}",
            name,
            lambda path: path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)]),
        )
    if how == "bytes":
        share, extra = (
            draw(st.floats(0, 1)),
            draw(st.binary(min_size=1, max_size=4) | st.sampled_from([b"\n", b"\0", b'"', b"}"])),
        )

        def insert(path):
            data, place = path.read_bytes(), int(share * path.stat().st_size)
            path.write_bytes(data[:place] + extra + data[place:])

        return f"{name}: {extra!r} at {share:.3f}", name, insert
    if how == "deep":
        before = draw(st.booleans())

        def nest(path):
            data = path.read_bytes()
            path.write_bytes(deep() + b"\n" + data if before else data + deep() + b"\n")

        return f"{name}: deep", name, nest
    if how == "missing":
        return f"{name}: missing", name, lambda path: path.unlink()
    kind = draw(st.sampled_from(["folder", "link out", "link to nothing", "loop", "empty"]))

    def other(path):
        content = path.read_bytes()
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "empty":
            path.write_bytes(b"")
        else:
            outside = path.parent.parent / "outside"
            if kind == "link out":
                outside.write_bytes(content)
            path.symlink_to(path.name if kind == "loop" else outside)

    return f"{name}: {kind}", name, other


def commands(top):
    """Every command that reads a run folder, with the exit codes that are an answer."""
    run, good, merged = str(top / "run"), str(top / "good"), str(top / "merged")
    return {
        "report": (["report", run], {0, 2}),
        "report markdown": (["report", run, "--markdown"], {0, 2}),
        "report latex": (["report", run, "--format", "latex"], {0, 2}),
        "report page": (["report", run, "--html", str(top / "page.html")], {0, 2}),
        "report rows": (["report", run, "--parquet", str(top / "rows.parquet")], {0, 2}),
        "failures": (["failures", run], {0, 2}),
        "failures json": (["failures", run, "--json"], {0, 2}),
        "compare": (["compare", good, run], {0, 2}),
        "compare gate": (["compare", run, good, "--fail-if-worse-by", "5"], {0, 1, 2}),
        "metrics": (["metrics", run, "--output", str(top / "metrics.json")], {0, 1, 2}),
        "merge": (["merge", good, run, "--output", merged], {0, 2}),
        "watch": (["watch", run, "--once"], {0, 1, 2, 3}),
        "rerun": (["rerun", run, "--episode", "gym/0/0", "--no_video"], {0, 1, 2}),
        "resume": (["eval", "--resume", run, "--progress", "none"], {0, 2, 3}),
    }


def ask(words):
    """Exit code, output and errors of a command."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as left:
            code = left.code
    shown = []
    for stream in (out, err):
        stream.flush()
        shown.append(stream.buffer.getvalue().decode())
    return code, *shown


def make(top, which):
    shutil.copytree(OLD / which.removesuffix("_judged"), top / "run")
    shutil.copytree(OLD / "gym_finished", top / "good")
    for folder in (top / "run", top / "good"):
        manifest = json.loads((folder / "run.json").read_text())
        manifest["eval_config"] |= {"use_async_envs": False}  # no process to wait for
        (folder / "run.json").write_text(json.dumps(manifest))
        if which.endswith("_judged"):  # a failure, an error, and one that says nothing
            path = folder / "episodes.jsonl"
            records = [json.loads(line) for line in path.read_text().splitlines()]
            records[0] |= {"success": False}
            records[1] |= {"end_reason": "error", "error": "Boom: \x1b[31m no\n  Traceback"}
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
            write_eval_info(folder, build_eval_info(records))


def test_an_undamaged_folder_is_answered(tmp_path):
    """What the tests below would not notice: that every command refuses everything."""
    make(tmp_path, "gym_finished_judged")
    found = {name: ask(words)[0] for name, (words, _) in commands(tmp_path).items()}
    # the success was invented, and one error in three is too many
    assert found == dict.fromkeys(commands(tmp_path), 0) | {"rerun": 1, "resume": 3}


@pytest.mark.parametrize("which", ["gym_finished", "gym_killed"])
def test_every_command_reads_runs_of_the_first_version(which, tmp_path):
    make(tmp_path, which)
    found = {name: ask(words)[0] for name, (words, _) in commands(tmp_path).items()}
    expected = dict.fromkeys(commands(tmp_path), 0)
    expected["compare gate"] = 2  # nothing was judged
    if which == "gym_killed":
        expected["metrics"] = 2  # there are no sums before it is resumed
        found.pop("watch"), expected.pop("watch")
    assert found == expected


def check(top, changed=()):
    """Ask every command about `top/run`."""
    outputs = {"merged", "metrics.json", "page.html", "rows.parquet"}
    for name, (words, allowed) in commands(top).items():
        before = snapshot(top)
        code, out, err = ask(words)
        said = f"{name}: {code}\n{out}\n{err}"
        assert code in allowed, said
        assert "Traceback" not in err and len(err) < 4000, said
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", out + err), said
        if code == 2:
            assert err.strip(), said
        after = snapshot(top)
        own = "run" if name in ("rerun", "resume") and code != 2 else None
        changes = {
            path
            for path in {*before, *after}
            if before.get(path) != after.get(path)
            and path.split("/")[0] not in outputs
            and path.split("/")[0] != own
            and not path.endswith(".lock")
        }
        assert not changes, (said, changes)
        if code == 2 and name == "merge":
            assert not (top / "merged").exists(), said
        for made in outputs:
            if (top / made).is_dir():
                shutil.rmtree(top / made)
            elif (top / made).exists():
                assert made != "page.html" or "<script" not in (top / made).read_text(), said
                (top / made).unlink()
    ask_python(top)


def ask_python(top):
    """The same question in notebooks: an answer, or the one class of error."""
    run = top / "run"
    before = snapshot(top)
    for ask_for in (
        lambda: EpisodeBrowser(run).picture(),
        lambda: EpisodeBrowser(run).widget,
        lambda: Report(run).table()._repr_html_(),
        lambda: RunOutcomes.load(run),
    ):
        with contextlib.suppress(RunFolderError):
            ask_for()
    # a dashboard over the folder in which damaged runs lie names what it leaves out
    results, problems = read_results(top)
    health_html(benchmark_health(results), problems).encode()
    assert snapshot(top) == before


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["gym_finished", "gym_finished_judged", "gym_killed"]),
    st.lists(damages(), min_size=1, max_size=2, unique_by=lambda damage: damage[1]),
)
def test_damaged_at_random(which, found):
    with tempfile.TemporaryDirectory() as scratch:
        make(Path(scratch), which)
        for _, name, change in found:
            path = Path(scratch, "run", name)
            if path.exists():
                change(path)
        check(Path(scratch))


@pytest.mark.parametrize("name", ["seed", "task_id", "n_steps", "success_step", "worker"])
def test_a_number_that_no_table_holds_is_named(name, tmp_path):
    make(tmp_path, "gym_finished_judged")
    path = tmp_path / "run" / "episodes.jsonl"
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | {name: 2**63}), *others]) + "\n")
    code, _, err = ask(["report", str(tmp_path / "run"), "--parquet", str(tmp_path / "rows")])
    assert code == 2 and "episodes.jsonl" in err and f"{name} {2**63}" in err
    assert not (tmp_path / "rows").exists()


def test_half_a_character_is_written_as_it_is_escaped(tmp_path):
    import pandas

    make(tmp_path, "gym_finished_judged")
    path = tmp_path / "run" / "episodes.jsonl"
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | {"task": "\ud800"}), *others]) + "\n")
    rows = str(tmp_path / "rows")
    assert ask(["report", str(tmp_path / "run"), "--parquet", rows])[0] == 0
    assert pandas.read_parquet(rows)["task"][0] == "\\ud800"


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.floats(0, 0.999), ODD_VALUES | st.just(...), st.booleans())
def test_a_dashboard_over_damaged_metrics(where, new, cut):
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch)
        make(top, "gym_finished_judged")
        for name in ("good", "bad"):
            (top / name).mkdir(exist_ok=True)
            words = ["metrics", str(top / "run"), "--output", str(top / name / "metrics.json")]
            assert ask(words)[0] == 0
        path = top / "bad" / "metrics.json"
        data = json.loads(path.read_text())
        places = list(paths_of(data))
        text = json.dumps(with_value(data, places[int(where * len(places))], new))
        path.write_text(text[: int(where * len(text))] if cut else text)
        before = snapshot(top)
        results, problems = read_results(top)
        assert 1 <= len(results) == 2 - len(problems)
        page = health_html(benchmark_health(results), problems)
        page.encode()
        assert "<script" not in page and "\x1b" not in page
        history_plot(benchmark_health(results)).draw_without_rendering()
        assert snapshot(top) == before


@pytest.mark.parametrize("name", ["eval_info.json", "run.json", "task_descriptions.json"])
@pytest.mark.parametrize("how", ["file", "folder"])
def test_metrics_publishes_nothing_from_outside(name, how, tmp_path):
    """metrics.json is an artifact of CI: a link in a run folder must not carry a text into it."""
    make(tmp_path, "gym_finished_judged")
    folder = tmp_path / "run"
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (folder / "task_descriptions.json").write_text("{}")
    content = (folder / name).read_text()
    content = json.dumps({"gym_0": "SECRET"}) if "descr" in name else content
    (outside / name).write_text(
        content.replace("CartPole-v1", "SECRET").replace('"random"', '"SECRET"')
    )
    (folder / name).unlink()
    if how == "folder":
        name = "artifacts/" + name
        (folder / "artifacts").symlink_to(outside)
    else:
        (folder / name).symlink_to(outside / name)
    code, out, err = ask(["metrics", str(folder), "--output", str(tmp_path / "metrics.json")])
    made = tmp_path / "metrics.json"
    assert "SECRET" not in out + err + (made.read_text() if made.exists() else "")
    if how == "file":
        assert "leads out of the run folder" in err and code == (0 if "descr" in name else 2)
