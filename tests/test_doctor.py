"""`lerobot-nb doctor`: what it finds on this machine, and on one where something is missing or wrong."""

import importlib.metadata
import importlib.util
import json
import subprocess
import sys

import pytest

from lerobot_nb.doctor import Finding, examine, main


def findings(capsys, *arguments: str) -> tuple[int, dict[str, Finding]]:
    status = main([*arguments, "--json"])
    return status, {item["name"]: Finding(**item) for item in json.loads(capsys.readouterr().out)}


def test_this_machine_is_fit_for_metaworld():
    """The whole of it, as a user calls it; this environment has what a frame needs."""
    done = subprocess.run(
        [sys.executable, "-m", "lerobot_nb.doctor", "--benchmark", "metaworld"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "metaworld frame" in done.stdout
        and done.stdout.rstrip().endswith("no problem found")
        and not done.stderr
    )


def test_missing_benchmark(capsys, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "metaworld" else find_spec(name, *rest),
    )
    status, found = findings(capsys, "--no_render", "--benchmark", "metaworld")
    assert (
        status == 1
        and not found["metaworld"].ok
        and "lerobot-nb[metaworld]" in found["metaworld"].mend + found["metaworld"].text
    )
    by_the_way = {finding.name: finding for finding in examine(render=False)}
    assert by_the_way["metaworld"].ok and "not installed" in by_the_way["metaworld"].text, (
        "nobody asked for it"
    )


@pytest.mark.parametrize("benchmark", ["metaworld", "libero"])
def test_another_mujoco(capsys, monkeypatch, benchmark):
    pytest.importorskip(
        benchmark, reason=f"{benchmark} is not installed"
    ) if benchmark == "metaworld" else None
    version = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "3.5.0" if name == "mujoco" else version(name)
    )
    status, found = findings(capsys, "--no_render", "--benchmark", benchmark)
    assert (
        status == 1
        and "mujoco 3.5.0 is installed" in found[benchmark].text
        and "mujoco==3.3.0" in found[benchmark].text
    )


def test_missing_and_outdated_packages(capsys, monkeypatch):
    monkeypatch.setattr(
        importlib.metadata,
        "requires",
        lambda name: ["no-such-package>=1", "numpy<1", "pytest; extra == 'dev'"],
    )
    lines = [finding for finding in examine(render=False) if finding.name == "packages"]
    assert [finding.mend for finding in lines] == [
        "pip install 'no-such-package>=1'",
        "pip install 'numpy<1'",
    ]
    assert not any(finding.ok for finding in lines)


def test_folder_that_can_not_be_written_to(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(
        "lerobot_nb.doctor.folder_problem",
        lambda place, least_free: (
            "outputs can't be written to" if str(place) == "outputs" else None
        ),
    )
    status, found = findings(capsys, "--no_render", "--benchmark", "metaworld")
    assert (
        status == 1
        and not found["outputs"].ok
        and "output_dir" in found["outputs"].mend
        and found["temporary files"].ok
    )


def test_unknown_benchmark(capsys):
    assert main(["--benchmark", "metawrld"]) == 2
    told = capsys.readouterr().err
    assert "metawrld" in told and "metaworld, libero" in told


def test_every_problem_of_opengl_names_the_packages(capsys, monkeypatch):
    from lerobot_nb.envs.rendering import environment_variables

    with environment_variables(
        __EGL_VENDOR_LIBRARY_FILENAMES="/nowhere.json",
        MUJOCO_GL="egl",
        MUJOCO_EGL_DEVICE_ID=None,
        LEROBOT_NB_GL=None,
    ):
        status, found = findings(capsys, "--benchmark", "metaworld")
    assert (
        status == 1
        and "EGL has no driver" in found["OpenGL"].text
        and "apt-get install -y libegl1" in found["OpenGL"].mend
    )
    assert "metaworld frame" not in found, "without OpenGL there is nothing to try"
