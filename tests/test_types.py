"""`Any` switches the type checker off, so there are few of them, and fewer over time."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import lerobot_nb

PACKAGE = Path(lerobot_nb.__file__).parent
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "_modidx.py"]

# Names `Any` in each room. Lower a number when its room has become better; a higher one needs a good reason.
MOST = {"envs": 236, "policies": 140, "results": 149, "evaluation": 2, "training": 21, "top": 0}
SLACK = 10


def is_any(node: ast.AST) -> bool:
    """`Any`, or `typing.Any`."""
    return (isinstance(node, ast.Name) and node.id == "Any") or (
        isinstance(node, ast.Attribute) and node.attr == "Any"
    )


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All of a tree, with those of annotations and types that are written as texts."""
    for node in ast.walk(tree):
        yield node
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "Any" in node.value:
            try:
                yield from ast.walk(ast.parse(node.value, mode="eval"))
            except SyntaxError:  # prose
                continue


def n_any(tree: ast.AST) -> int:
    return sum(map(is_any, nodes(tree)))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_the_test_finds_any():
    """Or the tests below can't fail."""
    assert n_any(ast.parse("a: dict[str, Any]\nb: 'list[Any]'\nc: typing.Any")) == 3
    assert (
        n_any(ast.parse('"""Any of them."""\nfrom typing import Any\nx: object = "Any time"')) == 0
    )


def rooms() -> Counter[str]:
    found: Counter[str] = Counter()
    for path in MODULES:
        parts = path.relative_to(PACKAGE).parts
        found[parts[0] if len(parts) > 1 else "top"] += n_any(parsed(path))
    return found


def test_any_becomes_rarer():
    found = rooms()
    more = {room: n for room, n in found.items() if n > MOST.get(room, 0)}
    assert not more, (
        f"more `Any` than before (allowed: {MOST}): use object, a TypedDict, a Protocol or a name of envs/types"
    )
    slack = {room: found[room] for room, n in MOST.items() if n > found[room] + SLACK}
    assert not slack, (
        f"fewer `Any` than MOST says: write the numbers of today into {Path(__file__).name}"
    )
