"""Records: what a crash, a full disk or a hostile value can do to them."""

import json
import math
import multiprocessing
import os
import resource
import signal
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lerobot_nb.results.records import (
    EpisodeRecord,
    append_record,
    dumps_strict,
    latest_records,
    read_records,
    same_episode,
    strict_json,
    write_json_atomic,
)


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON")


def parse_strictly(text):
    return json.loads(text, parse_constant=refuse_constant)


def record(index=0, **fields):
    return EpisodeRecord(
        "mt10", 3, "push-v3", "push the puck to the goal", index, 1000 + index, **fields
    )


ends = st.just(("success", True)) | st.tuples(
    st.sampled_from(["time_limit", "terminated", "error"]), st.none() | st.booleans()
)
numbers = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))
records = st.builds(
    lambda end, **fields: EpisodeRecord(end_reason=end[0], success=end[1], **fields),
    end=ends,
    suite=st.text(max_size=10),
    task_id=st.integers(0, 200),
    task=st.text(max_size=10),
    task_description=st.text(max_size=50),
    episode_index=st.integers(0, 1000),
    seed=st.integers(0, 2**31),
    init_state_id=st.none() | st.integers(0, 49),
    success_step=st.none() | st.integers(1, 500),
    n_steps=st.integers(0, 500),
    sum_reward=numbers,
    max_reward=numbers,
    n_success_steps=st.none() | st.integers(0, 500),
    success_at_end=st.none() | st.booleans(),
    error=st.none() | st.text(max_size=50),
    wall_s=numbers,
    video_path=st.none() | st.text(max_size=10),
    attempt=st.integers(1, 5),
)


@given(records)
def test_any_record_survives_strict_json(original):
    text = dumps_strict(original)
    assert "\n" not in text and text.isascii()
    back = EpisodeRecord.from_json(parse_strictly(text))
    assert same_episode(original, back) == []
    for name in ("sum_reward", "max_reward", "wall_s"):
        value = getattr(original, name)
        assert getattr(back, name) == (
            value if value is not None and math.isfinite(value) else None
        )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values)
def test_anything_json_like_becomes_strict(value):
    assert parse_strictly(dumps_strict(value)) == strict_json(value)


@pytest.mark.parametrize("value", [object(), b"bytes", {1.5: "a"}, {"a": [1, {"b": print}]}, 1j])
def test_what_json_can_not_hold_is_named(value):
    with pytest.raises(TypeError, match="value"):
        dumps_strict(value)


def test_unknown_fields_are_ignored_and_missing_ones_named():
    assert EpisodeRecord.from_json({**record().to_json(), "from_the_future": 1}) == record()
    with pytest.raises(ValueError, match="lacks suite, seed"):
        EpisodeRecord.from_json(
            {
                name: value
                for name, value in record().to_json().items()
                if name not in ("suite", "seed")
            }
        )
    with pytest.raises(ValueError, match="JSON object"):
        EpisodeRecord.from_json("[1, 2]")
    with pytest.raises(ValueError, match="'finished'"):
        record(end_reason="finished")


@settings(max_examples=50, deadline=None)
@given(st.lists(records, min_size=1, max_size=4), st.data())
def test_a_file_cut_anywhere_is_read_and_goes_on(tmp_path_factory, written, data):
    path = tmp_path_factory.mktemp("cut") / "episodes.jsonl"
    for item in written:
        append_record(path, item)
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    before = list(read_records(path))
    assert len(before) <= len(written)
    assert all(same_episode(a, b) == [] for a, b in zip(before, written))
    append_record(path, record(7))
    after = list(read_records(path))
    assert [item.to_json() for item in after[:-1]] == [item.to_json() for item in before] and after[
        -1
    ] == record(7)
    assert path.read_bytes().endswith(b"\n")


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "episodes.jsonl"
    append_record(path, record(0))
    with open(path, "ab") as file:
        file.write(b'{"suite": \n')
    append_record(path, record(1))
    with pytest.raises(ValueError, match="line 2"):
        list(read_records(path))


def test_a_long_torn_line_is_cut_off(tmp_path):
    path = tmp_path / "episodes.jsonl"
    append_record(path, record(0))
    with open(path, "ab") as file:
        file.write(b'{"error": "' + b"x" * 300_000)
    append_record(path, record(1))
    assert list(read_records(path)) == [record(0), record(1)]


def append_forever(path):
    index = 0
    while True:
        append_record(path, record(index, error="x" * 2000))
        index += 1


@pytest.mark.parametrize("after_s", [0.05, 0.1, 0.15])
def test_a_killed_writer_leaves_whole_records(tmp_path, after_s):
    path = tmp_path / "episodes.jsonl"
    writer = multiprocessing.get_context("spawn").Process(target=append_forever, args=(path,))
    writer.start()
    while not path.exists():
        time.sleep(0.01)
    time.sleep(after_s)
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    indices = [item.episode_index for item in read_records(path)]
    assert indices == list(range(len(indices))) and indices


def append_with_a_small_disk(path, answer):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        for index in range(10):
            append_record(path, record(index))
    except OSError as error:
        answer.put(str(error))


def test_a_full_disk_is_said_and_leaves_whole_records(tmp_path):
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    path = tmp_path / "episodes.jsonl"
    writer = context.Process(target=append_with_a_small_disk, args=(path, answer))
    writer.start()
    message = answer.get(timeout=60)
    writer.join()
    assert "large" in message or "full" in message
    assert path.read_bytes().endswith(b"\n") and path.stat().st_size < 1000
    assert len(list(read_records(path))) >= 1


def test_atomic_write_leaves_the_old_file_and_no_rubbish(tmp_path):
    path = tmp_path / "run.json"
    write_json_atomic(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json_atomic(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1} and os.listdir(tmp_path) == ["run.json"]
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError):
        write_json_atomic(tmp_path / "taken", {})
    assert sorted(os.listdir(tmp_path)) == ["run.json", "taken"]


def test_the_last_record_of_an_episode_counts():
    first, again = (
        record(1, end_reason="error", error="killed"),
        record(1, success=True, end_reason="success", attempt=2),
    )
    assert latest_records([first, record(0), again]) == [record(0), again]


def test_comparison_leaves_times_out_and_names_the_rest():
    assert same_episode(record(wall_s=1.0), record(wall_s=2.0, attempt=3)) == []
    assert same_episode(
        record(sum_reward=1.0, n_steps=2), record(sum_reward=1.0 + 1e-12, n_steps=2)
    ) == ["sum_reward"]
    assert same_episode(record(sum_reward=math.nan), record(sum_reward=None)) == []
    with pytest.raises(ValueError, match="no field colour"):
        same_episode(record(), record(), ignore=["colour"])
