"""The rooms of the package: who may import whom, and what is nobody else's business."""

import ast
import importlib
from pathlib import Path

from lerobot_nb import LerobotNbError

PACKAGE = Path(__file__).resolve().parent.parent / "lerobot_nb"
ROOMS = ("envs", "policies", "results", "evaluation", "training", "scale", "top")
"""Each imports only from itself and from those before it; `top` are the modules beside the rooms (cli, doctor)."""

# Exceptions that exist today; this list can only become shorter.
PRIVATE: set[tuple[str, str]] = set()


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(path): path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "_modidx.py"
}


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else "top"


def target(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """The module that `from … import` names, in full."""
    if not node.level:
        return node.module or ""
    base = module.split(".")[: len(module.split(".")) - node.level + is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


def imports(module: str, path: Path) -> list[tuple[str, str | None]]:
    """(module of this package, name taken from it or None for all of it), also those inside of
    functions.
    """
    found: list[tuple[str, str | None]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            home = target(node, module, path.name == "__init__.py")
            for alias in node.names:
                inner = f"{home}.{alias.name}"
                found.append((inner, None) if inner in MODULES else (home, alias.name))
    return [
        (home, name)
        for home, name in found
        if home in MODULES and home not in (module, PACKAGE.name)
    ]


IMPORTS = {module: imports(module, path) for module, path in MODULES.items()}


def test_the_test_reads_imports():
    """Something is found at all, relative and inside of functions, or the tests below can't fail."""
    edges = {(module, home) for module, found in IMPORTS.items() for home, _ in found}
    assert ("lerobot_nb.results.metrics", "lerobot_nb.results.rates") in edges  # relative
    assert ("lerobot_nb.cli", "lerobot_nb.results.report") in edges  # in a function
    assert len(edges) > 80 and {room(module) for module in MODULES} >= {
        "envs",
        "policies",
        "results",
        "evaluation",
        "top",
    }


def test_no_room_imports_upward():
    upward = {
        (module, home)
        for module, found in IMPORTS.items()
        for home, _ in found
        if ROOMS.index(room(home)) > ROOMS.index(room(module))
    }
    assert not upward


def test_no_import_leads_back():
    """No module reaches itself through its imports, be they at the top or inside of functions."""
    graph = {module: {home for home, _ in found} for module, found in IMPORTS.items()}
    circles, state = [], {}

    def visit(module: str, trail: tuple[str, ...]) -> None:
        state[module] = "open"
        for home in sorted(graph[module]):
            if state.get(home) == "open":
                circles.append(" → ".join([*trail[trail.index(home) :], home]))
            elif home not in state:
                visit(home, (*trail, home))
        state[module] = "done"

    for module in graph:
        if module not in state:
            visit(module, (module,))
    assert not circles


def private_uses(module: str, path: Path) -> set[tuple[str, str]]:
    """(module, "other.module._name") for what this module takes of another one's private names."""
    uses = {
        (module, f"{home}.{name}")
        for home, name in IMPORTS[module]
        if name and name.startswith("_") and not name.startswith("__")
    }
    aliases: dict[str, str] = {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            home = target(node, module, path.name == "__init__.py")
            aliases |= {
                alias.asname or alias.name: f"{home}.{alias.name}"
                for alias in node.names
                if f"{home}.{alias.name}" in MODULES
            }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in aliases
            and node.attr.startswith("_")
        ):
            uses.add((module, f"{aliases[node.value.id]}.{node.attr}"))
    return uses


def test_private_names_stay_at_home():
    assert (
        not {use for module, path in MODULES.items() for use in private_uses(module, path)}
        - PRIVATE
    )


def errors() -> list[type[Exception]]:
    """Every class of exception that the package defines."""
    found = []
    for module, path in MODULES.items():
        names = [
            node.name
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.ClassDef)
        ]
        if any(name.endswith(("Error", "Fault", "Died", "Hung")) for name in names):
            found += [
                thing
                for name in names
                if isinstance(thing := getattr(importlib.import_module(module), name), type)
                and issubclass(thing, Exception)
            ]
    return found


def test_one_clause_catches_every_error_of_the_package():
    assert len(errors()) >= 11
    assert not [error for error in errors() if not issubclass(error, LerobotNbError)]
    assert not [
        error
        for error in errors()
        if len([base for base in error.__mro__ if base.__module__ == "builtins"]) < 4
        and error is not LerobotNbError
    ], "keeps a built-in base"
