"""Types: mypy checks every module strictly."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
tomllib = pytest.importorskip("tomllib")  # Python 3.11


def settings() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]


def excused() -> set[str]:
    return {
        name
        for part in settings()["overrides"]
        if part.get("ignore_errors")
        for name in part["module"]
    }


def test_no_module_is_excused():
    assert not excused()


def test_strict_over_the_package_and_nothing_else_is_switched_off():
    assert settings()["strict"] is True and settings()["packages"] == ["lerobot_nb"]
    assert {key for part in settings()["overrides"] for key in part} <= {
        "module",
        "ignore_missing_imports",
        "follow_imports",
        "ignore_errors",
    }
    assert not [
        name
        for part in settings()["overrides"]
        if "ignore_errors" not in part
        for name in part["module"]
        if name.startswith("lerobot_nb")
    ]


def test_excuses_in_the_code_say_for_what():
    """`type: ignore` names the error that it silences."""
    bare = [
        f"{path.name}: {line.strip()}"
        for path in (ROOT / "lerobot_nb").rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"#\s*type:\s*ignore(?!\[)", line)
    ]
    assert not bare
