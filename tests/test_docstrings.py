"""Every public name is documented, and each of its arguments has a line."""

import ast
import dataclasses
import enum
import importlib
import inspect
import sys
from pathlib import Path

from docstring_parser import DocstringStyle
from docstring_parser import parse as parse_docstring

from lerobot_nb import EnvConfig, EvalConfig
from lerobot_nb.envs.libero import LiberoEnvConfig
from lerobot_nb.envs.metaworld import MetaworldEnvConfig

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "nbs"))
from _docs import meanings  # noqa: E402  what the pages show is what is asked for

ROOT = Path(__file__).resolve().parent.parent


def public_names() -> dict[str, object]:
    """`module.name` of all that `__all__` lists, with the methods that a reader sees."""
    found: dict[str, object] = {}
    for path in sorted((ROOT / "lerobot_nb").rglob("*.py")):
        names = [
            ast.literal_eval(node.value)
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            if isinstance(node.value, ast.List)
        ]
        if not names:
            continue
        module = importlib.import_module(
            ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        )
        for name in names[0]:
            value = getattr(module, name)
            if not callable(value) or getattr(value, "__module__", None) != module.__name__:
                continue
            found[f"{module.__name__}.{name}"] = value
            if isinstance(value, type):
                for own, member in vars(value).items():
                    if not own.startswith("_") and (
                        inspect.isroutine(member) or isinstance(member, (classmethod, staticmethod))
                    ):
                        found[f"{module.__name__}.{name}.{own}"] = getattr(value, own)
    return found


def faults_of(value: object) -> list[str]:
    """What is missing: the text, or a line for an argument."""
    text = inspect.getdoc(value)
    if not text or (isinstance(value, type) and not value.__doc__):
        return ["no docstring"]
    if isinstance(value, type) and (
        issubclass(value, (enum.Enum, BaseException, tuple))
        or getattr(value, "_is_protocol", False)
    ):
        return []
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []
    said = {name for name, meaning in meanings(value).items() if meaning}
    asked = [
        one.name
        for one in parameters
        if one.name not in ("self", "cls") and not one.name.startswith("_")
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    # one argument, named in the text, is explained by the text
    if len(asked) == 1:
        return []
    return [f"no line for {name}" for name in asked if name not in said and f"`{name}`" not in text]


def test_public_names_are_documented():
    names = public_names()
    assert len(names) > 300
    assert {name: faults for name, value in names.items() if (faults := faults_of(value))} == {}


def test_fields_of_a_configuration_stand_in_one_section_of_its_docstring():
    for config in (EvalConfig, EnvConfig, MetaworldEnvConfig, LiberoEnvConfig):
        said = parse_docstring(inspect.getdoc(config) or "", DocstringStyle.NUMPYDOC)
        described = [one.arg_name for one in said.params]
        fields = [one.name for one in dataclasses.fields(config)]
        assert len(described) == len(set(described)) and set(fields) <= set(described), config
        assert all(one.description for one in said.params)
        assert not any(f"{name}: " in (said.description or "") for name in fields)


def test_the_check_finds_what_is_missing():
    def half(a: int, b: int) -> int:
        """Half of it.

        Parameters
        ----------
        a
            The first.
        """
        return a + b

    def bare(a: int) -> int:
        return a

    assert faults_of(half) == ["no line for b"] and faults_of(bare) == ["no docstring"]
