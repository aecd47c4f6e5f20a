"""The first table of eval.ipynb shows texts, whatever they hold; the manifest says what was executed."""

import html
import re

import pytest

from lerobot_nb import EvalParameters


@pytest.mark.parametrize(
    "text", ["turn by an <angle>", "<script>alert(1)</script>", "a | b", "*a* _b_ `c` $d$"]
)
def test_texts_of_tasks_are_shown_as_they_are(text):
    pytest.importorskip("markdown_it")
    from markdown_it import MarkdownIt

    parameters = EvalParameters(task="reach-v3", task_descriptions={"reach-v3": text})
    page = MarkdownIt("commonmark").enable("table").render(parameters.overview())
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", rows[1], re.DOTALL)
    assert len(rows) == 2 and len(cells) == 4
    assert " ".join(html.unescape(cells[2]).split()) == " ".join(text.split())
    assert "<script" not in page


@pytest.mark.parametrize("n", [1, 2])
def test_the_manifest_says_how_many_actions_were_executed(n):
    """Whatever the network's configuration claims: 2."""
    pytest.importorskip("torch")
    from test_acting import Base

    from lerobot_nb.policies.lerobot_policy import LerobotObject

    policy = LerobotObject(Base(), n_action_steps=n)
    assert policy.identity()["n_action_steps"] == policy.n_action_steps == n
