"""EpisodeBrowser and LiveEval in JupyterLab, in a real browser: shown, clicked, filtered, played, paused, stopped. Pictures go to outputs/widgets."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from browser import Tab, browser_tab, find_browser

from lerobot_nb import EvalConfig, RunFolder, evaluate
from lerobot_nb.envs.metaworld import MetaworldEnvConfig

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "outputs" / "widgets"
WAIT_S = 180

pytestmark = [
    pytest.mark.slow,
    pytest.mark.widgets,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_browser() is None, reason="needs Chromium"),
]


def notebook(path: Path, *cells: str) -> None:
    code = [
        {
            "cell_type": "code",
            "id": f"cell{number}",
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "source": source,
        }
        for number, source in enumerate(cells)
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    content = {"cells": code, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(content))


@contextlib.contextmanager
def jupyterlab(folder: Path):
    """The address of a JupyterLab whose files are those of the folder."""
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port=0"]
    command += [f"--ServerApp.root_dir={folder}", "--IdentityProvider.token=t", "--ip=127.0.0.1"]
    command += ["--LabApp.expose_app_in_browser=True", "--LabApp.news_url=None"]
    runtime = folder / ".runtime"
    environment = os.environ | {
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTER_CONFIG_DIR": str(folder / ".config"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / ".settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / ".workspaces"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    }
    log = open(folder / "jupyter.log", "w")
    server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
    try:
        end = time.monotonic() + WAIT_S
        while True:
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", (folder / "jupyter.log").read_text())
            if found:
                address = f"http://127.0.0.1:{found[1]}"
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"{address}/api?token=t", timeout=10).close()
                    break
            assert server.poll() is None and time.monotonic() < end, (
                folder / "jupyter.log"
            ).read_text()[-2000:]
            time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        try:
            server.wait(timeout=60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(timeout=30)
        log.close()


def wait_for(tab: Tab, script: str, what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not tab.value(script):
        if time.monotonic() > end:
            PICTURES.mkdir(parents=True, exist_ok=True)
            tab.picture(PICTURES / "timeout.png")
            raise AssertionError(
                f"{what} did not come: {tab.value('document.body.innerText')[-1500:]}"
            )
        time.sleep(0.2)


def click(tab: Tab, script: str) -> None:
    """The mouse is pressed on the element that a JavaScript expression gives."""
    wait_for(tab, f"!!({script})", script)
    tab.value(f"({script}).scrollIntoView({{block: 'center'}})")
    time.sleep(0.3)
    place = tab.value(
        f"(() => {{ const r = ({script}).getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2] }})()"
    )
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    for kind in ("mousePressed", "mouseReleased"):
        tab.call(
            "Input.dispatchMouseEvent",
            type=kind,
            x=place[0],
            y=place[1],
            button="left",
            clickCount=1,
        )


def button(text: str) -> str:
    return f"[...document.querySelectorAll('.jp-OutputArea button')].find(b => b.innerText.trim() === '{text}')"


def text_of(tab: Tab, selector: str) -> str:
    return tab.value(f"document.querySelector('{selector}')?.innerText || ''")


def picture(tab: Tab, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    tab.picture(PICTURES / f"{name}.png")


def open_and_run(tab: Tab, address: str, name: str) -> None:
    tab.size(1400, 1000)
    tab.call("Page.navigate", url=f"{address}/lab/tree/{name}?token=t&reset")
    wait_for(tab, "!!document.querySelector('.jp-NotebookPanel .jp-Notebook')", "the notebook")
    idle = "!!document.querySelector('.jp-Notebook-ExecutionIndicator[data-status=idle]')"
    wait_for(tab, idle, "an idle kernel")
    tab.value("window.jupyterapp.commands.execute('application:toggle-left-area') && true")
    # with the mouse, as a user does: the notebook becomes the current one
    click(tab, "document.querySelector('.jp-Notebook .jp-Cell .jp-InputArea-editor')")
    items = "[...document.querySelectorAll('.lm-MenuBar-item')]"
    click(tab, f"{items}.find(item => item.innerText.trim() === 'Run')")
    click(tab, "document.querySelector('.lm-Menu-item[data-command=\"runmenu:run-all\"]')")
    # JupyterLab may ask for the kernel
    accept = "document.querySelector('.jp-Dialog .jp-mod-accept')"
    output = "!!document.querySelector('.jp-OutputArea-output')"
    wait_for(tab, f"({accept}?.click(), {output})", "an output")


@pytest.fixture(scope="module")
def filmed_run(tmp_path_factory):
    return evaluate(
        MetaworldEnvConfig(
            task="reach-v3", episode_length=60, observation_height=128, observation_width=128
        ),
        "lerobot_nb.policies.noisy:NoisyPolicy",
        EvalConfig(n_episodes=4, render="first:2"),
        policy_kwargs={
            "base": "lerobot_nb.policies.metaworld_expert:MetaworldExpert",
            "scale": 1.0,
        },
        output_dir=tmp_path_factory.mktemp("filmed") / "run",
    ).folder


def test_the_episode_browser_is_clicked_filtered_and_played(tmp_path, filmed_run):
    notebook(
        tmp_path / "browser.ipynb",
        f"from lerobot_nb import EpisodeBrowser\nbrowser = EpisodeBrowser({str(filmed_run)!r})\nbrowser",
    )
    n_failed = sum(not record.success for record in RunFolder(filmed_run).records())
    with jupyterlab(tmp_path) as address, browser_tab() as tab:
        open_and_run(tab, address, "browser.ipynb")
        wait_for(tab, "!!document.querySelector('.lerobot-nb-browser')", "the widget")
        options = "document.querySelectorAll('.lerobot-nb-browser .widget-select option').length"
        wait_for(tab, f"{options} === 4", "the list")
        wait_for(tab, "!!document.querySelector('.lerobot-nb-browser video')", "the video")
        # what is not filtered says so
        selected = "[...document.querySelectorAll('.lerobot-nb-browser .widget-dropdown select')].map(s => s.selectedOptions[0]?.value)"
        assert tab.value(selected) == ["all", "all tasks"]
        active = "document.querySelector('.lerobot-nb-browser .mod-active')?.innerText.trim()"
        wait_for(tab, f"{active} === 'all'", "the chosen button")
        picture(tab, "browser")
        # filter
        outcome = "failure" if n_failed else "success"
        click(tab, button(outcome))
        wait_for(tab, f"{options} === {n_failed or 4}", f"only the {outcome}s")
        wait_for(tab, f"{active} === '{outcome}'", "the chosen button")
        click(tab, button("all"))
        wait_for(tab, f"{options} === 4 && {active} === 'all'", "all of them again")
        # click on another episode: its command is shown
        before = text_of(tab, ".lerobot-nb-command")
        select = "document.querySelector('.lerobot-nb-browser .widget-select select')"
        click(tab, select)
        for key in ("End", "Home", "ArrowDown"):
            tab.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key)
            tab.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)
        wait_for(
            tab,
            "document.querySelector('.lerobot-nb-command').innerText.endsWith('/1')",
            f"another command than {before!r}",
        )
        # play
        video = "document.querySelector('.lerobot-nb-browser video')"
        wait_for(tab, f"{video}.readyState >= 2", "pictures of the video")
        tab.value(f"{video}.muted = true")
        tab.value(f"{video}.play().then(() => true)")
        wait_for(tab, f"{video}.currentTime > 0.2 && {video}.videoWidth > 0", "a playing video")
        picture(tab, "browser_playing")
        dark = "window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'}).then(() => true)"
        tab.value(dark)
        wait_for(tab, "document.body.dataset.jpThemeLight === 'false'", "the dark theme")
        time.sleep(1)
        picture(tab, "browser_dark")


def test_a_live_evaluation_is_started_paused_and_stopped(tmp_path):
    folder = tmp_path / "run"
    notebook(
        tmp_path / "live.ipynb",
        "from lerobot_nb import EvalConfig, LiveEval\n"
        "from lerobot_nb.envs.metaworld import MetaworldEnvConfig\n"
        "env = MetaworldEnvConfig(task='reach-v3', observation_height=128, observation_width=128)\n"
        f"live = LiveEval(env, 'expert', EvalConfig(n_episodes=5000, batch_size=1, render='first:2'), output_dir={str(folder)!r})\nlive",
    )

    def n_lines():
        path = folder / "episodes.jsonl"
        return len(path.read_bytes().splitlines()) if path.exists() else 0

    with jupyterlab(tmp_path) as address, browser_tab() as tab:
        open_and_run(tab, address, "live.ipynb")
        wait_for(tab, "!!document.querySelector('.lerobot-nb-live')", "the widget")
        assert "not started" in text_of(tab, ".lerobot-nb-live")
        click(tab, button("Start"))
        wait_for(tab, "!!document.querySelector('.lerobot-nb-live img')", "the last picture")
        wait_for(tab, "!!document.querySelector('.lerobot-nb-interval')", "the interval")
        picture(tab, "live")
        click(tab, button("Pause"))
        wait_for(tab, f"!!({button('Go on')})", "the button that goes on")
        time.sleep(3)  # an episode that was under way may still end
        before = n_lines()
        time.sleep(5)
        assert n_lines() == before > 0
        picture(tab, "live_paused")
        click(tab, button("Go on"))
        end = time.monotonic() + WAIT_S
        while n_lines() <= before:
            assert time.monotonic() < end, "it did not go on"
            time.sleep(0.2)
        click(tab, button("Stop"))
        wait_for(
            tab, "document.querySelector('.lerobot-nb-live b').innerText === 'stopped'", "the end"
        )
        wait_for(tab, f"{button('Pause')}.disabled && {button('Stop')}.disabled", "idle buttons")
        assert " left" not in text_of(tab, ".lerobot-nb-live") and "--resume" in text_of(
            tab, ".lerobot-nb-live"
        )
        picture(tab, "live_stopped")
    manifest = RunFolder(folder).manifest()
    assert manifest["status"] == "interrupted"
    assert len(list(RunFolder(folder).records())) == n_lines() > before
    assert (folder / "eval_info.json").exists()
