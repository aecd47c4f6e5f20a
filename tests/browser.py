"""A headless Chromium for tests: open a page, evaluate JavaScript in it, take a picture. Speaks the browser's DevTools protocol."""

import base64
import contextlib
import functools
import http.server
import itertools
import json
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
]


def find_browser() -> str | None:
    return next(
        (
            path
            for name in ("chromium", "chromium-browser", "google-chrome", "chrome")
            if (path := shutil.which(name))
        ),
        None,
    )


class Tab:
    """One page of the browser."""

    def __init__(self, address: str):
        import websocket

        self.socket, self.numbers = (
            websocket.create_connection(address, timeout=60, suppress_origin=True),
            itertools.count(1),
        )
        self.call("Page.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def size(self, width: int, height: int = 900) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def open(self, address: str, wait_s: float = 30.0) -> None:
        self.call("Page.navigate", url=address)
        end = time.monotonic() + wait_s
        while self.value("location.href + ' ' + document.readyState") != f"{address} complete":
            assert time.monotonic() < end, f"{address} did not load within {wait_s:g} s"
            time.sleep(0.05)

    def value(self, script: str) -> Any:
        """What a JavaScript expression gives; promises are awaited."""
        result = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def picture(self, path: Path) -> None:
        path.write_bytes(
            base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        )


@contextlib.contextmanager
def browser_tab() -> Iterator[Tab]:
    """A tab of a new browser, which ends with the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [find_browser() or "chromium", *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            port_file, end = Path(profile, "DevToolsActivePort"), time.monotonic() + 60
            while not (port_file.exists() and port_file.read_text().count("\n")):
                assert process.poll() is None and time.monotonic() < end, (
                    "the browser did not start"
                )
                time.sleep(0.05)
            port = port_file.read_text().split()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
                page = next(one for one in json.load(answer) if one["type"] == "page")
            tab = Tab(page["webSocketDebuggerUrl"])
            yield tab
            tab.socket.close()
        finally:
            process.kill()
            process.wait(timeout=30)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a local web server over a folder."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            """Nothing: pytest shows enough."""

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
