"""Makes the pictures of the first page, from real episodes: `python nbs/_pictures.py` writes nbs/pictures/. Needs both benchmarks (`make setup`); takes a few minutes without a GPU."""

import tempfile
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lerobot_nb import EvalConfig, evaluate, make_env_config
from lerobot_nb.results.records import EpisodeRecord

FOLDER = Path(__file__).parent / "pictures"
SIDE = 240  # pixels of one film
RUNS = {
    "metaworld": {"task": "push-v3,drawer-open-v3,disassemble-v3", "obs_type": "state"},
    "libero": {"task": "libero_object", "task_ids": [0]},
}
N_EPISODES = {"metaworld": 20, "libero": 3}


def frames_of(path: Path) -> list[NDArray[np.uint8]]:
    """Every picture of a film, (SIDE, SIDE, 3) uint8."""
    with av.open(str(path)) as film:
        return [
            np.asarray(frame.to_image().resize((SIDE, SIDE), Image.Resampling.LANCZOS))
            for frame in film.decode(video=0)
        ]


def side_by_side(films: list[list[NDArray[np.uint8]]]) -> list[NDArray[np.uint8]]:
    """The films in a row; one that is over keeps its last picture."""
    length = max(map(len, films)) + 12
    return [
        np.hstack([film[min(number, len(film) - 1)] for film in films]) for number in range(length)
    ]


def write_film(path: Path, frames: list[NDArray[np.uint8]], fps: int) -> None:
    """H.264 in the pixel format that browsers play."""
    with av.open(str(path), "w", options={"movflags": "faststart"}) as film:
        stream = film.add_stream("libx264", rate=fps, options={"crf": "27", "preset": "veryslow"})
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            film.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        film.mux(stream.encode())


def draw_run(
    path: Path, pictures: list[NDArray[np.uint8]], records: list[list[EpisodeRecord]]
) -> None:
    """One column a task: how a filmed episode ended, and the success rate with its interval; in
    colours that can be read on white and on black.
    """
    from matplotlib.figure import Figure

    from lerobot_nb import SuccessRate
    from lerobot_nb.results.figures import BLUE, INK, VERMILION

    figure = Figure(figsize=(9.6, 3.9), dpi=120, facecolor="none")
    for column, (picture, of_task) in enumerate(zip(pictures, records, strict=True)):
        rate = SuccessRate(sum(one.success is True for one in of_task), len(of_task))
        image = figure.add_axes((0.01 + 0.2475 * column, 0.27, 0.2375, 0.6))
        image.imshow(picture)
        image.axis("off")
        image.set_title(
            of_task[0].task if len(of_task[0].task) < 24 else "libero_object/0",
            fontsize=11,
            color=INK,
        )
        low, high = rate.percent_interval()
        bar = figure.add_axes((0.03 + 0.2475 * column, 0.13, 0.1975, 0.1))
        bar.barh([0], [100], color="#80808040", height=1)
        bar.barh([0], [rate.n_success / rate.n_judged * 100], color=BLUE, height=1)
        bar.plot([low, high], [0, 0], color=VERMILION, linewidth=3, solid_capstyle="butt")
        bar.set(xlim=(0, 100), ylim=(-1, 1), yticks=[], xticks=[0, 50, 100])
        bar.tick_params(labelsize=8, colors=INK)
        bar.set_facecolor("none")
        for side in bar.spines.values():
            side.set_visible(False)
        figure.text(
            0.12875 + 0.2475 * column,
            0.015,
            f"{rate.n_success} of {rate.n_judged}; 95 %: {low:.0f} to {high:.0f} %",
            ha="center",
            fontsize=9,
            color=INK,
        )
    figure.savefig(path, bbox_inches="tight", pad_inches=0.05)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    films, last, records = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        for name, settings in RUNS.items():
            run = evaluate(
                make_env_config(name, **settings),
                "expert",
                EvalConfig(n_episodes=N_EPISODES[name], seed=1000, render="first:1"),
                output_dir=f"{scratch}/{name}",
            )
            for record in run.records():
                if record.video_path:
                    films.append(frames_of(run.folder / record.video_path)[::2])
                    last.append(films[-1][-1])
                    records.append(
                        [
                            one
                            for one in run.records()
                            if (one.suite, one.task_id) == (record.suite, record.task_id)
                        ]
                    )
    frames = side_by_side(films)
    write_film(FOLDER / "film.mp4", frames, fps=20)
    Image.fromarray(frames[len(frames) // 4]).save(FOLDER / "film.jpg", quality=85)
    draw_run(FOLDER / "run.png", last, records)
    Image.open(FOLDER / "run.png").save(FOLDER / "run.png", optimize=True)


if __name__ == "__main__":
    main()
