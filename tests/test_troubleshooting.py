"""The guide on errors quotes messages that exist."""

import ast
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FROM_ELSEWHERE = {"Missing argument 'OUTPUT_PATH'", "papermill: command not found", "Killed"}


def texts_of_the_code() -> list[str]:
    """Texts in the package and in the scripts that install it; what is filled in is an ellipsis."""
    found = []
    for path in sorted((ROOT / "lerobot_nb").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "…"
                        for part in node.values
                    )
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    found += [
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "docker/install").glob("*.sh"))
    ]
    return found


def quoted_messages() -> list[str]:
    """The code in the first column of the tables."""
    notebook = json.loads((ROOT / "nbs/guides/troubleshooting.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"]]
    rows = re.findall(r"^\|([^|\n]+)\|[^|\n]+\|[^|\n]+\|$", "\n".join(cells), re.M)
    return [quote for first in rows for quote in re.findall(r"`([^`]+)`", first)]


def test_every_quoted_message_exists():
    texts, quotes = texts_of_the_code(), quoted_messages()
    assert len(quotes) > 30

    def exists(quote: str) -> bool:
        pattern = re.compile(".*?".join(re.escape(part.strip()) for part in quote.split("…")), re.S)
        return any(pattern.search(text) for text in texts)

    assert [quote for quote in quotes if quote not in FROM_ELSEWHERE and not exists(quote)] == []
    assert not exists("this message … is not in the code")
