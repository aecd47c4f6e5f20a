"""The choice of the OpenGL back end, with real drivers, in processes of its own."""

import json
import os
import subprocess
import sys

import pytest

CODE = """
import json, os
from dataclasses import asdict
from lerobot_nb.envs.rendering import RenderingError, choose_gl_backend, without_cuda_visible_devices
try:
    choice = asdict(choose_gl_backend())
except RenderingError as error:
    choice = {"error": str(error)}
else:
    {then}
print(json.dumps({**choice, "MUJOCO_GL": os.environ.get("MUJOCO_GL"), "MUJOCO_EGL_DEVICE_ID": os.environ.get("MUJOCO_EGL_DEVICE_ID")}))
"""
DRAW = """
    import mujoco
    model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
    with mujoco.Renderer(model, 8, 8) as renderer:
        assert renderer.render().shape == (8, 8, 3)
"""
# what the loader of EGL finds then is no driver
NO_EGL = {"__EGL_VENDOR_LIBRARY_FILENAMES": "/nowhere.json"}


def choose(then: str = "pass", **variables: str) -> dict:
    names = (
        "MUJOCO_GL",
        "MUJOCO_EGL_DEVICE_ID",
        "LEROBOT_NB_GL",
        "PYOPENGL_PLATFORM",
        "CUDA_VISIBLE_DEVICES",
    )
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", CODE.replace("{then}", then.strip())],
        env={**environment, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def osmesa_is_there() -> bool:
    import ctypes.util

    return ctypes.util.find_library("OSMesa") is not None


@pytest.mark.parametrize("visible", [None, "", "-1", "0", "1", "0,1", "GPU-8932f937"])
def test_cuda_visible_devices_never_breaks_drawing(visible):
    found = choose(DRAW, **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}))
    assert found.get("backend") == "egl", found
    assert found["MUJOCO_EGL_DEVICE_ID"] == str(found["device"])


@pytest.mark.parametrize("visible", ["", "-1", "1"])
def test_robosuite_can_be_imported(visible):
    pytest.importorskip("robosuite", reason="LIBERO is not installed")
    then = "\n    with without_cuda_visible_devices():\n        import robosuite.utils.binding_utils as binding\n    context = binding.GLContext(8, 8)\n    context.make_current()\n    context.free()"
    assert choose(then, CUDA_VISIBLE_DEVICES=visible)["backend"] == "egl"


def test_what_the_user_sets_is_kept_and_checked():
    assert choose(DRAW, MUJOCO_GL="egl")["reason"] == "MUJOCO_GL=egl is set"
    refused = choose(MUJOCO_GL="egl", **NO_EGL)
    assert (
        "egl" in refused["error"]
        and "apt-get install" in refused["error"]
        and refused["MUJOCO_GL"] == "egl"
    )
    assert "99" in choose(MUJOCO_EGL_DEVICE_ID="99", MUJOCO_GL="egl")["error"]


def test_without_egl_osmesa_or_a_message():
    found = choose(DRAW, **NO_EGL)
    if osmesa_is_there():
        assert found["backend"] == "osmesa" and "egl:" in found["reason"]
    else:
        assert (
            "egl:" in found["error"]
            and "osmesa:" in found["error"]
            and "apt-get install" in found["error"]
        )


def test_mujoco_imported_too_early_is_mended():
    before = "import mujoco; " + CODE
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("MUJOCO_GL", "LEROBOT_NB_GL", "MUJOCO_EGL_DEVICE_ID", "PYOPENGL_PLATFORM")
    }
    done = subprocess.run(
        [sys.executable, "-c", before.replace("{then}", DRAW.strip())],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_driver_that_hangs_is_an_error():
    from lerobot_nb.envs.rendering import RenderingError, probe_gl

    with pytest.raises(RenderingError, match="did not come within"):
        probe_gl("egl", timeout_s=0.01)
