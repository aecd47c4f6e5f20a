"""What users set for OpenGL: honoured, never passed over, and the advice is to change what is set."""

import os
import pickle
import subprocess
import sys

import pytest

from lerobot_nb import make_env_config
from lerobot_nb.doctor import examine
from lerobot_nb.envs import rendering
from lerobot_nb.envs.rendering import GlChoice, RenderingError, environment_variables

UNSET = dict.fromkeys(
    ("MUJOCO_GL", "MUJOCO_EGL_DEVICE_ID", "PYOPENGL_PLATFORM", "LEROBOT_NB_GL"), None
)


@pytest.fixture
def with_osmesa(monkeypatch):
    """A machine on which OSMesa draws: EGL is asked in earnest, OSMesa is a stand-in."""
    ask = rendering.probe_gl

    def probe(backend, **kwargs):
        return GlChoice("osmesa", "llvmpipe", None, "") if backend == "osmesa" else ask(backend)

    monkeypatch.setattr(rendering, "probe_gl", probe)
    monkeypatch.setattr(rendering, "_apply", lambda choice: None)


def test_a_wrong_device_is_not_passed_over_where_osmesa_draws(with_osmesa):
    with environment_variables(**UNSET | {"MUJOCO_EGL_DEVICE_ID": "99"}):
        with pytest.raises(RenderingError, match="99") as refused:
            rendering.choose_gl_backend()
    assert refused.value.mend == "unset MUJOCO_EGL_DEVICE_ID"
    assert "apt-get" not in str(refused.value)


def test_a_device_without_egl_is_not_passed_over_either(with_osmesa):
    variables = {"MUJOCO_EGL_DEVICE_ID": "0", "__EGL_VENDOR_LIBRARY_FILENAMES": "/nowhere.json"}
    with environment_variables(**UNSET | variables):
        with pytest.raises(RenderingError, match="MUJOCO_EGL_DEVICE_ID=0 is set"):
            rendering.choose_gl_backend()


def test_without_a_wish_osmesa_stands_in(with_osmesa):
    with environment_variables(**UNSET | {"__EGL_VENDOR_LIBRARY_FILENAMES": "/nowhere.json"}):
        choice = rendering.choose_gl_backend()
    assert choice.backend == "osmesa" and "EGL has no driver" in choice.reason


@pytest.mark.parametrize(
    "variables",
    [
        {"PYOPENGL_PLATFORM": "glx"},
        {"PYOPENGL_PLATFORM": "EGL"},  # PyOpenGL tells upper from lower case
        {"PYOPENGL_PLATFORM": "osmesa"},
        {"PYOPENGL_PLATFORM": "osmesa", "MUJOCO_GL": "egl"},
        {"PYOPENGL_PLATFORM": "egl", "MUJOCO_GL": "osmesa"},
    ],
)
def test_the_platform_of_pyopengl_is_to_be_unset(variables, monkeypatch):
    probe = rendering.probe_gl

    def no_osmesa(backend):
        if backend == "osmesa" and variables["PYOPENGL_PLATFORM"] == "osmesa":
            raise RenderingError("the library libOSMesa.so is missing", "apt-get install -y x")
        return probe(backend)

    monkeypatch.setattr(rendering, "probe_gl", no_osmesa)
    with environment_variables(**UNSET | variables):
        with pytest.raises(RenderingError, match="PYOPENGL_PLATFORM") as refused:
            rendering.choose_gl_backend()
        told = {finding.name: finding for finding in examine(benchmark="metaworld")}["OpenGL"]
    assert "unset PYOPENGL_PLATFORM" in str(refused.value)
    assert "apt-get" not in str(refused.value) + told.text + told.mend
    assert not told.ok and told.mend == "unset PYOPENGL_PLATFORM"


def test_the_platform_that_fits_is_no_hindrance():
    with environment_variables(**UNSET | {"PYOPENGL_PLATFORM": "egl"}):
        assert rendering.probe_gl("egl").backend == "egl"


def test_the_cure_crosses_to_another_process():
    error = RenderingError("nothing draws", mend="unset X", by_setting=True)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.mend, again.by_setting) == ("nothing draws", "unset X", True)
    assert again.errno is None


EVALUATE = """
import os
import sys

from lerobot_nb import EvalConfig, evaluate, make_env_config

if __name__ == "__main__":
    benchmark, task, folder, where = sys.argv[1:]
    env = make_env_config(benchmark, task=task, task_ids=[0], obs_type="state", episode_length=6)
    config = EvalConfig(1, batch_size=1, render="none", use_async_envs=where == "workers")
    run = evaluate(env, "random", config, output_dir=folder)
    print([(record.error, record.n_steps) for record in run.records()])
    print("MUJOCO_GL is", os.environ.get("MUJOCO_GL"))
"""


def evaluated(tmp_path, benchmark, task, where, **variables):
    (tmp_path / "run_it.py").write_text(EVALUATE)
    environment = {name: value for name, value in os.environ.items() if name not in UNSET}
    done = subprocess.run(
        [
            sys.executable,
            str(tmp_path / "run_it.py"),
            benchmark,
            task,
            str(tmp_path / "run"),
            where,
        ],
        env=environment | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("where", ["workers", "here"])
@pytest.mark.parametrize(
    "benchmark, task", [("metaworld", "reach-v3"), ("libero", "libero_object")]
)
def test_states_alone_need_no_opengl(benchmark, task, where, tmp_path):
    pytest.importorskip(benchmark)
    told = evaluated(tmp_path, benchmark, task, where, MUJOCO_GL="disable")
    assert "[(None, 6)]" in told and "MUJOCO_GL is disable" in told


def test_without_egl_the_variable_of_the_user_stays(tmp_path):
    """LIBERO sets robosuite up without OpenGL; for everything else nothing changes."""
    pytest.importorskip("libero")
    told = evaluated(
        tmp_path, "libero", "libero_object", "here", __EGL_VENDOR_LIBRARY_FILENAMES="/nowhere.json"
    )
    assert "[(None, 6)]" in told
    from ctypes.util import find_library

    assert f"MUJOCO_GL is {'osmesa' if find_library('OSMesa') else None}" in told


@pytest.mark.parametrize("benchmark", ["metaworld", "libero"])
@pytest.mark.parametrize("variables", [{"MUJOCO_GL": "disable"}, {"PYOPENGL_PLATFORM": "glx"}])
def test_the_check_asks_for_opengl_where_the_policy_sees(benchmark, variables):
    pytest.importorskip(benchmark)
    with environment_variables(**UNSET | variables):
        make_env_config(benchmark, obs_type="state").check()
        with pytest.raises(RenderingError):
            make_env_config(benchmark).check()
