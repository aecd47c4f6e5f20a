"""The public surface: what a module's `__all__` and `import lerobot_nb` offer is meant for users."""

import ast
import importlib
import inspect
import logging
from argparse import ArgumentParser
from pathlib import Path

import pytest

import lerobot_nb

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "lerobot_nb"
LISTED = ROOT / "tests" / "data" / "public_names.txt"


def public_names() -> dict[str, list[str]]:
    """`__all__` of every module, read from its text."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name in ("__init__.py", "_modidx.py"):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                module = path.relative_to(PACKAGE).with_suffix("")
                found[".".join(module.parts)] = ast.literal_eval(node.value)
    return found


def listed_names() -> dict[str, list[str]]:
    lines = LISTED.read_text(encoding="utf-8").splitlines()
    pairs = [line.partition(":") for line in lines if line and not line.startswith("#")]
    return {module: names.split() for module, _, names in pairs}


def test_the_public_surface_is_the_one_that_is_listed():
    """A new public name is a decision; a helper belongs in a cell that begins with `#| exporti`."""
    found = {module: sorted(names) for module, names in public_names().items() if names}
    listed = {module: sorted(names) for module, names in listed_names().items()}
    assert len(found) > 40
    new = {
        module: extra
        for module, names in found.items()
        if (extra := sorted(set(names) - set(listed.get(module, []))))
    }
    gone = {
        module: missing
        for module, names in listed.items()
        if (missing := sorted(set(names) - set(found.get(module, []))))
    }
    assert not new, f"public, but not in {LISTED.name}: list them, or export with `#| exporti`"
    assert not gone, f"in {LISTED.name}, but not public any more"


def test_no_logger_and_no_parser_is_public():
    things = [
        (module, name, getattr(importlib.import_module(f"lerobot_nb.{module}"), name))
        for module, names in public_names().items()
        for name in names
    ]
    assert len(things) > 150
    assert not [
        (module, name)
        for module, name, thing in things
        if isinstance(thing, (logging.Logger, ArgumentParser)) or inspect.ismodule(thing)
    ]


def test_every_public_function_and_class_is_documented():
    bare = []
    for module, names in public_names().items():
        for name in names:
            thing = getattr(importlib.import_module(f"lerobot_nb.{module}"), name)
            if inspect.isfunction(thing) or inspect.isclass(thing):
                text = inspect.getdoc(thing) if inspect.isfunction(thing) else thing.__doc__
                if not text or text.startswith(f"{name}("):  # what a dataclass writes by itself
                    bare.append(f"{module}.{name}")
    assert not bare


def test_what_the_package_offers_is_public_in_its_module():
    public = public_names()
    hidden = {
        name: module
        for module, names in lerobot_nb._HOMES.items()
        for name in names
        if name not in public[module.removeprefix("lerobot_nb.")]
    }
    assert not hidden


def test_type_checkers_are_told_the_same_names():
    """What stands under `if TYPE_CHECKING` in `lerobot_nb/__init__.py` is the table."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    told = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert told == lerobot_nb._HOME_OF


def test_a_mistyped_name_is_answered_with_the_nearest():
    with pytest.raises(AttributeError, match="did you mean 'evaluate'"):
        lerobot_nb.evalute  # noqa: B018


def test_a_name_of_a_module_is_answered_with_the_import():
    with pytest.raises(
        AttributeError, match="from lerobot_nb.results.comparison import cochrans_q"
    ):
        lerobot_nb.cochrans_q  # noqa: B018
    listed = {name: module for module, names in listed_names().items() for name in names}
    unknown = [name for name in listed if name[0].islower() and name not in lerobot_nb.__all__]
    assert len(unknown) > 30
    for name in unknown:
        home = f"lerobot_nb.{listed[name]} import {name}"
        with pytest.raises(AttributeError, match=home):
            getattr(lerobot_nb, name)
