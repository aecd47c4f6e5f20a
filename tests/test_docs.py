"""The documentation: what its pages are made of (quick), and the rendered site in a browser (`make test-docs`: needs Quarto and Chromium)."""

import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
import yaml
from browser import browser_tab, find_browser, served
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
SECRET = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16})\b"
)


@pytest.fixture(scope="module")
def staged(tmp_path_factory) -> Path:
    """A copy of the project in which nbdev has prepared the pages."""
    folder = tmp_path_factory.mktemp("staged")
    for name in (
        "settings.ini",
        "pyproject.toml",
        "setup.py",
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "_quarto.yml",
    ):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, folder)
    for name in ("nbs", "lerobot_nb"):
        shutil.copytree(
            ROOT / name,
            folder / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("outputs", ".ipynb_checkpoints", "__pycache__"),
        )
    # jsonschema, which papermill loads, builds grammars of internet addresses for seconds when it finds this package
    code = "import sys; sys.modules['rfc3987_syntax'] = None; from nbdev.serve import proc_nbs; proc_nbs(n_workers=0); from _docs import add_pages_from_the_top; add_pages_from_the_top()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"nbs{os.pathsep}{folder}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return folder / "_proc"


def texts_of(path: Path) -> list[str]:
    """Markdown of a page: its prose, and the outputs that are Markdown."""
    if path.suffix == ".md":
        return [path.read_text(encoding="utf-8")]
    found = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            found.append("".join(cell["source"]))
        found += [
            "".join(output["data"]["text/markdown"])
            for output in cell.get("outputs", [])
            if "text/markdown" in output.get("data", {})
        ]
    return found


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.M | re.S))


def anchors_of(path: Path) -> set[str]:
    """The identifiers that Pandoc gives to headings: lower case, no punctuation but `_-.`, hyphens
    for spaces, numbers for repeats.
    """
    found: set[str] = set()
    for text in texts_of(path):
        for heading in re.findall(
            r"^#{1,6} +(.+?)\s*$", re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.M | re.S), re.M
        ):
            if explicit := re.search(r"\{#([\w.-]+)", heading):
                found.add(explicit[1])
                continue
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
            name = (
                re.sub(
                    r"^[^a-z]+", "", re.sub(r"\s+", "-", re.sub(r"[^\w\s.-]", "", plain.lower()))
                )
                or "section"
            )
            number, unique = 0, name
            while unique in found:
                number += 1
                unique = f"{name}-{number}"
            found.add(unique)
    return found


def pages_of(staged: Path) -> list[Path]:
    return sorted(path for pattern in ("*.ipynb", "*.md") for path in staged.rglob(pattern))


def test_links_and_anchors_resolve(staged):
    broken, anchors = [], {}
    for page in pages_of(staged):
        for text in texts_of(page):
            for target in re.findall(
                r"\]\(([^)\s]+)\)", re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.M | re.S)
            ):
                if re.match(r"(https?|mailto|data|attachment):", target):
                    continue
                name, anchor = urldefrag(unquote(target))
                path = (
                    page
                    if not name
                    else staged / name[1:]
                    if name.startswith("/")
                    else page.parent / name
                )
                path = Path(os.path.normpath(path))
                if not path.exists():
                    broken.append(f"{page.relative_to(staged)}: {target}")
                elif anchor and path.suffix in (".ipynb", ".md"):
                    if path not in anchors:
                        anchors[path] = anchors_of(path)
                    if anchor not in anchors[path]:
                        broken.append(f"{page.relative_to(staged)}: {target} has no such heading")
    assert not broken, "\n".join(broken)


def test_entries_are_complete(staged):
    """Every public function and class: a signature, a link to its lines; classes show their
    methods.
    """
    config = "\n".join(texts_of(staged / "envs/config.ipynb"))
    assert "### EnvConfig\n" in config and "#### EnvConfig.create_envs" in config
    everything = [
        text
        for page in pages_of(staged)
        for text in texts_of(page)
        if "{.python .signature}" in text
    ]
    assert len(everything) > 150
    for text in everything:
        assert "LNone" not in text
        assert re.search(r"/blob/main/lerobot_nb/[\w/]+\.py#L\d+-L\d+\)", text), text[:200]


def test_sidebar_entries_exist(staged):
    def entries(contents):
        return [
            name
            for item in contents
            for name in (entries(item["contents"]) if isinstance(item, dict) else [item])
        ]

    settings = yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))["website"]
    named = (
        entries(settings["sidebar"]["contents"])
        + [item["href"] for item in settings["navbar"]["left"]]
        + [settings["favicon"], settings["image"]]
    )
    assert [name for name in named if not (staged / name).exists()] == []


def test_outputs_hold_no_traceback_folder_or_secret(staged):
    unwanted = re.compile(r"Traceback \(most recent|(?<![\w/.])/(?:home|root|Users)/[\w.]")
    found = []
    for page in staged.rglob("*.ipynb"):
        for cell in json.loads(page.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", []):
                text = "".join(output.get("text", [])) + "".join(
                    "".join(value)
                    for kind, value in output.get("data", {}).items()
                    if kind.startswith("text/")
                )
                hit = unwanted.search(text) or SECRET.search(text)
                if hit:
                    found.append(
                        f"{page.relative_to(staged)}: {text[max(0, hit.start() - 40) : hit.end() + 40]!r}"
                    )
    assert not found


def test_figures_are_pictures(staged):
    """A figure that a notebook could not draw leaves its name, "<Figure size …>", and no picture."""
    missing = []
    for page in staged.rglob("*.ipynb"):
        for cell in json.loads(page.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", []):
                data = output.get("data", {})
                name = "".join(data.get("text/plain", ""))
                if name.startswith("<Figure") and not any(
                    kind.startswith("image/") for kind in data
                ):
                    missing.append(f"{page.relative_to(staged)}: {name}")
    assert missing == []


def test_every_picture_has_a_description(staged):
    """A figure says what it shows (`#| fig-alt: "…"` in its cell); a picture in Markdown or HTML has a text of its own."""
    bare = []
    for page in staged.rglob("*.ipynb"):
        for cell in json.loads(page.read_text(encoding="utf-8"))["cells"]:
            source, name = "".join(cell["source"]), str(page.relative_to(staged))
            for output in cell.get("outputs", []):
                data = output.get("data", {})
                if any(kind.startswith("image/") for kind in data) and "#| fig-alt:" not in source:
                    bare.append(f"{name}: the figure of {source[-80:]!r}")
                html = "".join(data.get("text/markdown", "")) + "".join(data.get("text/html", ""))
                bare += [
                    f"{name}: {tag[:80]}"
                    for tag in re.findall(r"<img\b[^>]*>", html)
                    if not re.search(r"\balt=\"[^\"]", tag)
                ]
            if cell["cell_type"] == "markdown":
                bare += [
                    f"{name}: {link}"
                    for link in re.findall(r"!\[\]\([^)]*\)(?!\{fig-alt=)", source)
                ]
    assert bare == []


def test_figures_can_be_read_on_both_grounds(staged):
    """What is drawn stands on no ground of its own."""
    wrong = []
    for page in staged.rglob("*.ipynb"):
        for cell in json.loads(page.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", []):
                data, name = output.get("data", {}), str(page.relative_to(staged))
                if "<Figure" in "".join(data.get("text/plain", "")):
                    picture = Image.open(io.BytesIO(base64.b64decode("".join(data["image/png"]))))
                    corner = picture.convert("RGBA").getpixel((0, 0))
                    if corner[3] == 255:
                        wrong.append(f"{name}: a figure on a ground of its own, {corner}")
    assert wrong == []
    home = Image.open(staged / "pictures/run.png").convert("RGBA")
    assert home.getpixel((0, 0))[3] == 0


# --- the rendered site --------------------------------------------------------------------------------------------------

LOOKED_AT = (
    "index",
    "guides/evaluation",
    "guides/libero",
    "envs/config",
    "evaluation/evaluate",
    "eval",
)


class Links(HTMLParser):
    """Links and identifiers of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids.add(found.get("id"))
        self.links += [
            found[name]
            for name in ("href", "src", "poster")
            if found.get(name)
            and tag in ("a", "img", "video", "source", "script", "link", "iframe")
        ]


@pytest.fixture(scope="module")
def site(staged) -> Path:
    if shutil.which("quarto") is None:
        pytest.skip("quarto is not on the PATH: https://quarto.org/docs/get-started")
    done = subprocess.run(
        ["quarto", "render", "--no-cache", "--no-execute"],
        cwd=staged,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    warnings = [
        line
        for line in (done.stdout + done.stderr).splitlines()
        if re.search(r"\bWARN|warning\b", line, re.I)
    ]
    assert not warnings, "\n".join(warnings[:20])
    return staged / "_docs"


@pytest.mark.slow
@pytest.mark.docs
@pytest.mark.timeout(900)
def test_rendered_links(site):
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    broken, from_elsewhere = [], set()
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:|//", link):
                continue
            name, anchor = urldefrag(unquote(link))
            target = Path(os.path.normpath(path.parent / name)) if name else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                broken.append(f"{path.relative_to(site)}: {link}")
            elif anchor and target in pages and anchor not in pages[target].ids:
                broken.append(f"{path.relative_to(site)}: {link} has no such anchor")
        text = path.read_text(encoding="utf-8")
        from_elsewhere |= set(
            re.findall(
                r"<(?:script|img|iframe|video|source)[^>]* src=\"(https?://[^\"]+)|<link[^>]* rel=\"stylesheet\"[^>]* href=\"(https?://[^\"]+)",
                text,
            )
        )
        assert "LNone" not in text
    assert not broken, "\n".join(broken[:40])
    assert not from_elsewhere, "a page asks another host for a part of itself"


@pytest.mark.slow
@pytest.mark.docs
@pytest.mark.timeout(900)
def test_pages_in_a_browser(site, tmp_path):
    if find_browser() is None:
        pytest.skip("no Chromium or Chrome on the PATH")
    with served(site) as address, browser_tab() as tab:
        for width in (1280, 400):
            tab.size(width)
            for name in LOOKED_AT:
                tab.open(f"{address}/{name}.html")
                assert tab.value("document.documentElement.scrollWidth") <= width, (
                    f"{name} at {width} pixels scrolls sideways"
                )
                tab.picture(tmp_path / f"{name.replace('/', '-')}-{width}.png")
        tab.size(1280)
        tab.open(f"{address}/envs/config.html")
        cut = tab.value(
            "[...document.querySelectorAll('.signature pre, pre.signature')].filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.innerText.slice(0, 60))"
        )
        assert cut == [], "a signature is cut"
        assert (
            tab.value(
                "[...document.querySelectorAll('h4')].filter(one => one.offsetParent && one.innerText.startsWith('EnvConfig.')).length"
            )
            >= 5
        ), "methods stand under their class"
        background = tab.value("getComputedStyle(document.body).backgroundColor")
        tab.value("window.quartoToggleColorScheme()")
        dark = "(async () => { for (let i = 0; i < 100 && getComputedStyle(document.body).backgroundColor == '%s'; i++) await new Promise(r => setTimeout(r, 100)); return getComputedStyle(document.body).backgroundColor })()"
        assert tab.value(dark % background) != background, "a dark look is there"
        tab.picture(tmp_path / "dark.png")
        tab.value("window.quartoToggleColorScheme()")
        tab.open(f"{address}/eval.html")
        assert (
            tab.value(
                "(async () => { const v = document.querySelector('video'); if (!v) return -1; v.muted = true; await v.play(); await new Promise(r => setTimeout(r, 1500)); return v.currentTime })()"
            )
            > 0
        ), "a video plays"
