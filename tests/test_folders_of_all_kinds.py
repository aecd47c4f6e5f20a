"""Folders that a run is given: hard links, the home folder, other runs, names of every kind."""

import os
import shutil
import unicodedata
from pathlib import Path

import pytest

from lerobot_nb import EvalConfig, EvalRun, evaluate, make_env_config, resume_run
from lerobot_nb.cli import main
from lerobot_nb.evaluation.video import VideoError, VideoWriter
from lerobot_nb.results.run_folder import RunFolder, RunFolderError

OLD = Path(__file__).parent / "data/runs_of_0_1_0"
EVAL = [
    *"eval --benchmark gym --task CartPole-v1 --policy random --render none --progress none".split(),
    *"--use_async_envs False --n_episodes 2 --output_dir".split(),
]


@pytest.mark.parametrize(
    "name", ["run.json", "episodes.jsonl", "log.jsonl", "eval_info.json", ".written_videos"]
)
@pytest.mark.parametrize("how", ["resume", "rerun"])
def test_a_file_that_has_another_name_elsewhere_is_not_written(name, how, tmp_path, capsys):
    folder, elsewhere = tmp_path / "run", tmp_path / "precious"
    shutil.copytree(OLD / "gym_killed", folder)
    path = folder / name
    elsewhere.write_bytes(path.read_bytes() if path.exists() else b"precious, without an end")
    path.unlink(missing_ok=True)
    os.link(elsewhere, path)
    before = {one: one.read_bytes() for one in [elsewhere, *folder.iterdir()] if one.is_file()}
    if how == "resume":
        words = ["eval", "--resume", str(folder), "--progress", "none"]
    else:
        episode = "/".join(map(str, next(RunFolder(folder).records()).key))
        words = ["rerun", str(folder), "--episode", episode]
    assert main(words) == 2
    message = capsys.readouterr().err
    assert "hard link" in message and str(path) in message
    assert {one: one.read_bytes() for one in before} == before


def test_the_advice_for_a_hard_link_works(tmp_path):
    folder, snapshot = tmp_path / "a run", tmp_path / "snapshot"
    shutil.copytree(OLD / "gym_killed", folder)
    shutil.copytree(folder, snapshot, copy_function=os.link)  # as `cp -al` does
    kept = {path.name: path.read_bytes() for path in snapshot.iterdir()}
    for _ in range(10):
        try:
            assert resume_run(folder).status == "finished"
            break
        except RunFolderError as error:
            assert os.system(str(error).partition("in its place: ")[2]) == 0
    assert EvalRun.load(folder).status == "finished"
    assert {path.name: path.read_bytes() for path in snapshot.iterdir()} == kept


def test_the_encoder_writes_to_no_hard_link(tmp_path):
    import numpy as np

    (tmp_path / "precious").write_bytes(b"precious")
    writer = VideoWriter(tmp_path / "a.mp4", fps=10)
    os.link(tmp_path / "precious", tmp_path / f".a.{os.getpid()}.part.mp4")
    with pytest.raises(VideoError, match="in the way"):
        writer.write(np.zeros((32, 32, 3), np.uint8))
    assert (tmp_path / "precious").read_bytes() == b"precious"


@pytest.mark.parametrize("how", ["command line", "Python"])
def test_a_tilde_is_the_home_folder(how, monkeypatch, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    if how == "Python":
        config = make_env_config("gym", task="CartPole-v1")
        run = evaluate(config, "random", EvalConfig(2, use_async_envs=False), output_dir="~/run")
        assert run.folder == tmp_path / "home/run"
    else:
        assert main([*EVAL, "~/run"]) == 0
    assert not list((tmp_path / "here").iterdir())
    assert EvalRun.load("~/run").folder == tmp_path / "home/run"
    assert main(["report", "~/run"]) == 0


@pytest.mark.parametrize(
    "name",
    ["mine", "mine/", "./mine", "mine/.", "mine/videos", "mine/videos/", "mine/videos/..", "link/"],
)
def test_one_folder_under_many_names(name, monkeypatch, tmp_path, capsys):
    (tmp_path / "mine/videos").mkdir(parents=True)
    (tmp_path / "mine/videos/wedding.mp4").write_bytes(b"wedding")
    (tmp_path / "link").symlink_to("mine")
    monkeypatch.chdir(tmp_path)
    assert main([*EVAL, name]) == 2 and "is not empty" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "mine").rglob("*")] == ["videos", "wedding.mp4"]


def test_names_of_every_kind(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    names = [unicodedata.normalize(form, "é") for form in ("NFC", "NFD")]
    names += ["a\nb", "a\x1b[31mb", "r\udcff", "-x", "a b", "'", "run.json"]
    for name in names:
        assert main([*EVAL[:-1], f"--output_dir={name}"]) == 0
        assert main([*EVAL[:-1], f"--output_dir={name}"]) == 2
        assert "\x1b" not in capsys.readouterr().err
    assert sorted(os.listdir()) == sorted(names)
    assert all(len(EvalRun.load(name).records()) == 2 for name in names)


@pytest.mark.parametrize("place", ["videos", "videos/inner", "reruns"])
def test_a_run_inside_of_another_one_spoils_neither(place, tmp_path):
    assert main([*EVAL, str(tmp_path / "outer")]) == 0
    assert main([*EVAL, str(tmp_path / "outer" / place)]) == 0
    inner = {
        path: path.read_bytes()
        for path in (tmp_path / "outer" / place).rglob("*")
        if path.is_file()
    }
    assert resume_run(tmp_path / "outer").status == "finished"
    assert {path: path.read_bytes() for path in inner} == inner


@pytest.mark.parametrize("where", ["True", "False"])
def test_wrong_arguments_of_an_environment_are_refused_before_the_first_episode(
    where, tmp_path, capsys
):
    words = [*EVAL, str(tmp_path / "run"), "--env_kwargs", '{"gym_kwargs": {"nonsense": 3}}']
    assert main([*words, "--use_async_envs", where]) == 2
    message = capsys.readouterr().err
    assert "nonsense" in message and "Its arguments are" in message and "tried again" not in message
    assert not (tmp_path / "run").exists()


def test_a_benchmark_without_an_expert_is_named_in_words(capsys):
    assert main(["eval", "--benchmark", "gym", "--task", "CartPole-v1"]) == 2
    message = capsys.readouterr().err
    assert "has no scripted expert" in message and "<property" not in message


@pytest.mark.parametrize("folder", ["/proc/run", "/dev/null", "/dev/null/run", "x" * 300])
def test_places_that_cannot_be_written(folder, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*EVAL, folder]) == 2
    assert "choose another output_dir" in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--task_ids", "--init_state_ids"])
@pytest.mark.parametrize("ids", ["0-20000000", "0-99999999999999999999", "9" * 5000])
def test_ranges_that_nobody_can_count_are_refused_at_once(option, ids, capsys):
    words = ["eval", "--benchmark", "libero", "--task", "libero_object", option, ids]
    assert main(words) == 2 and "largest number possible" in capsys.readouterr().err


@pytest.mark.parametrize("function", ["listdir", "open", "mkdir"])
def test_a_folder_that_the_system_refuses_is_a_sentence(function, monkeypatch, tmp_path, capsys):
    """As root permissions don't count, so the system's answer is made up."""
    really, folder = getattr(os, function), str(tmp_path / "closed")

    def refused(path, *arguments, **options):
        if str(path).startswith(folder):
            raise PermissionError(13, "Permission denied", str(path))
        return really(path, *arguments, **options)

    monkeypatch.setattr(os, function, refused)
    assert main([*EVAL, f"{folder}/run"]) == 2
    message = capsys.readouterr().err
    assert "can't be written (Permission denied)" in message and "another output_dir" in message
    monkeypatch.undo()
    assert not Path(folder, "run", "run.json").exists()
