"""Arguments that limit how much is shown say what they count."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "lerobot_nb"


def test_limits_say_what_they_count():
    """`most=6` does not say of what; `max_videos=6` does."""
    found = [
        f"{path.name}: {node.name}({argument.arg})"
        for room in ("results", "evaluation")
        for path in (PACKAGE / room).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        for argument in [*node.args.args, *node.args.kwonlyargs]
        if argument.arg.split("_")[0] in ("most", "limit", "maximum")
    ]
    assert not found
