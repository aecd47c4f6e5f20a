"""Videos: what is read back is what was written, and nothing is left behind when it goes wrong."""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lerobot_nb.evaluation.video import RenderRule, VideoError, VideoWriter
from lerobot_nb.results.run_folder import RunFolder, parse_video_name, video_name

av = pytest.importorskip("av")


def picture(i, height=64, width=96):
    frame = np.full((height, width, 3), 30, np.uint8)
    left = (3 * i) % (width - 16)
    frame[height // 4 : height // 2, left : left + 16] = (200, 80, 40)
    return frame


def read(path):
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        return SimpleNamespace(
            frames=frames,
            fps=stream.average_rate,
            pix_fmt=stream.codec_context.pix_fmt,
            codec=stream.codec_context.name,
            duration_s=float(stream.duration * stream.time_base),
        )


@pytest.mark.parametrize(
    "size", [(64, 96), (63, 96), (64, 95), (63, 95), (2, 2), (1, 1), (480, 480)]
)
@pytest.mark.parametrize("fps", [10, 80, 20.0, 29.97])
def test_sizes_and_rates(tmp_path, size, fps):
    height, width = size
    frames = [
        np.random.default_rng(i).integers(0, 255, (height, width, 3), dtype=np.uint8)
        if height < 5
        else picture(i, height, width)
        for i in range(12)
    ]
    with VideoWriter(tmp_path / "film.mp4", fps) as writer:
        for frame in frames:
            writer.write(frame)
    film = read(tmp_path / "film.mp4")
    assert len(film.frames) == 12 == writer.n_frames
    assert film.frames[0].shape == (height + height % 2, width + width % 2, 3)
    assert (
        float(film.fps) == pytest.approx(fps, rel=1e-4)
        and film.pix_fmt == "yuv420p"
        and film.codec == "h264"
    )
    assert film.duration_s == pytest.approx(12 / fps, rel=1e-3)
    if height > 5:
        assert all(
            np.abs(a[:height, :width].astype(int) - b).mean() < 4
            for a, b in zip(film.frames, frames)
        )
    assert os.listdir(tmp_path) == ["film.mp4"]


def test_the_last_frame_is_there(tmp_path):
    with VideoWriter(tmp_path / "film.mp4", 25) as writer:
        for _ in range(30):
            writer.write(np.zeros((64, 64, 3), np.uint8))
        writer.write(np.full((64, 64, 3), 255, np.uint8))
    frames = read(tmp_path / "film.mp4").frames
    assert len(frames) == 31 and frames[-1].mean() > 240 and frames[-2].mean() < 10


def test_views_and_frozen_arrays_are_taken(tmp_path):
    frame = picture(0)[::-1, ::-1]
    frame.flags.writeable = False
    with VideoWriter(tmp_path / "film.mp4", 25) as writer:
        writer.write(frame)
    assert np.abs(read(tmp_path / "film.mp4").frames[0].astype(int) - frame).mean() < 4


def test_one_frame_and_none(tmp_path):
    with VideoWriter(tmp_path / "one.mp4", 25) as writer:
        writer.write(picture(0))
    assert len(read(tmp_path / "one.mp4").frames) == 1
    writer = VideoWriter(tmp_path / "none.mp4", 25)
    assert writer.close() is None and os.listdir(tmp_path) == ["one.mp4"]


def test_an_exception_while_filming_deletes_the_film(tmp_path):
    with pytest.raises(KeyError):
        with VideoWriter(tmp_path / "film.mp4", 25) as writer:
            writer.write(picture(0))
            raise KeyError("the simulator")
    assert os.listdir(tmp_path) == []
    with pytest.raises(VideoError, match="closed"):
        writer.write(picture(1))


def test_an_older_film_stays_until_the_new_one_is_complete(tmp_path):
    for shade, n_frames in ((10, 3), (200, 5)):
        with VideoWriter(tmp_path / "film.mp4", 25) as writer:
            for _ in range(n_frames):
                writer.write(np.full((64, 64, 3), shade, np.uint8))
            if shade == 200:
                assert len(read(tmp_path / "film.mp4").frames) == 3
    assert len(read(tmp_path / "film.mp4").frames) == 5


@pytest.mark.parametrize(
    "frame",
    [
        np.zeros((4, 4, 3)),
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        None,
    ],
)
def test_what_is_no_frame(tmp_path, frame):
    with pytest.raises(VideoError, match="height, width, 3"):
        VideoWriter(tmp_path / "film.mp4", 25).write(frame)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(VideoError, match="ermission"):
        VideoWriter(tmp_path / "film.mp4", 25).write(picture(0))


def film_on_a_small_disk(path, answer):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
    noise = np.random.default_rng(0)
    try:
        with VideoWriter(path, 25) as writer:
            for _ in range(40):
                writer.write(noise.integers(0, 255, (128, 128, 3), dtype=np.uint8))
        answer.put("written")
    except VideoError as error:
        answer.put(str(error))


def test_a_full_disk_is_a_video_error_and_leaves_nothing(tmp_path):
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=film_on_a_small_disk, args=(tmp_path / "film.mp4", answer))
    process.start()
    message = answer.get(timeout=60)
    process.join()
    assert process.exitcode == 0 and "film.mp4 could not be written" in message
    assert os.listdir(tmp_path) == []


def film_forever(path):
    writer = VideoWriter(path, 25)
    i = 0
    while True:
        writer.write(picture(i))
        i += 1


def test_a_killed_process_leaves_nothing_under_the_final_name(tmp_path):
    files = RunFolder(tmp_path)
    path = files.new_video(files.videos, "mt10", 0, 0)
    process = multiprocessing.get_context("spawn").Process(target=film_forever, args=(path,))
    process.start()
    while not (files.videos.exists() and os.listdir(files.videos)):
        time.sleep(0.02)
    time.sleep(0.2)
    assert files.delete_unrecorded_videos() == []  # its writer lives
    process.kill()
    process.join()
    assert not path.exists()
    assert len(files.delete_unrecorded_videos()) == 1 and os.listdir(files.videos) == []


def test_memory_does_not_grow_with_the_film():
    """2,000 frames of 480 x 480 would be 1.4 GB."""
    code = """
import resource, sys, tempfile, numpy as np
from lerobot_nb.evaluation.video import VideoWriter
frame = np.random.default_rng(0).integers(0, 255, (480, 480, 3), dtype=np.uint8)
with VideoWriter(tempfile.mkdtemp() + "/film.mp4", 25) as writer:
    for i in range(50):
        writer.write(np.roll(frame, i, axis=1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i in range(250):
        writer.write(np.roll(frame, i, axis=1))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 40, "MB grown over 250 frames (170 MB raw)"


def spec(i):
    return SimpleNamespace(episode_index=i)


@pytest.mark.parametrize(
    "rule, limit, films, keeps_success",
    [
        ("none", None, 0, True),
        ("none", 0, 0, True),
        ("first:0", None, 0, True),
        ("first:3", None, 3, True),
        ("First: 3 ", None, 3, True),
        ("first:3", 2, 2, True),
        ("first:3", 9, 3, True),
        ("all", None, 10, True),
        ("all", 4, 4, True),
        ("failures", None, 10, False),
        ("failures", 4, 4, False),
        ("failures", 0, 0, False),
    ],
)
def test_rules(rule, limit, films, keeps_success):
    parsed = RenderRule.parse(rule, limit)
    assert [parsed.wanted(spec(i)) for i in range(10)] == [i < films for i in range(10)]
    assert parsed.makes_videos == (films > 0)
    assert parsed.only_failures == (not keeps_success)


@pytest.mark.parametrize(
    "rule, limit",
    [
        ("", None),
        ("first", None),
        ("first:-1", None),
        ("first:1.5", None),
        ("successes", None),
        (None, None),
        (3, None),
        (True, None),
        ("all", -1),
        ("all", 1.5),
        ("all", "3"),
        ("all", True),
        ("none", 2),
    ],
)
def test_wrong_rules_say_what_is_allowed(rule, limit):
    with pytest.raises(ValueError, match="render"):
        RenderRule.parse(rule, limit)


def test_names_are_safe_unique_and_can_be_read_back():
    suites = (
        "mt10",
        "a/b",
        "a-b",
        "a b",
        "pick red",
        "pick-red",
        "../..",
        "..",
        "",
        "ALE/Pong v5",
        "x\0y",
        "ü",
        "抓取",
        "移动",
        "a_1_0002",
        "=20",
        "%20",
        "a.2",
    )
    names = [video_name(suite, 1, 2) for suite in suites]
    assert len(set(names)) == len(suites)
    for suite, name in zip(suites, names):
        assert (
            Path(name).name == name
            and name.isascii()
            and name.endswith("_1_0002.mp4")
            and not name.startswith(".")
        )
        assert (
            parse_video_name(name)
            == parse_video_name(name.replace(".mp4", ".3.mp4"))
            == (suite, 1, 2)
        )


def test_the_encoder_writes_through_no_link(tmp_path):
    """Whoever guesses the number of the process can't have a file outside overwritten."""
    (tmp_path / "dear").write_bytes(b"dear")
    (tmp_path / "videos").mkdir()
    path = tmp_path / "videos" / "a_0_0000.mp4"
    link = path.with_name(f".{path.stem}.{os.getpid()}.part.mp4")
    link.symlink_to(tmp_path / "dear")
    with pytest.raises(VideoError, match="in the way"):
        with VideoWriter(path, fps=10) as video:
            video.write(np.zeros((16, 16, 3), np.uint8))
    assert (tmp_path / "dear").read_bytes() == b"dear" and link.is_symlink()
    link.unlink()
    link.write_bytes(b"of a process that was killed and had this number")
    with VideoWriter(path, fps=10) as video:
        video.write(np.zeros((16, 16, 3), np.uint8))
    assert path.stat().st_size > 100 and not link.exists()
