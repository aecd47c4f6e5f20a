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


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), (1, 2), {1: 2}])
def test_what_would_come_back_changed_is_refused_by_every_entry(
    value, tmp_path, monkeypatch, capsys
):
    """A run.json with null for infinity would resume another policy."""
    from lerobot_nb import EvalConfig, evaluate, make_env_config
    from lerobot_nb.cli import main

    monkeypatch.chdir(tmp_path)
    config = make_env_config("metaworld", task="reach-v3", obs_type="state")
    arguments = {"noise": value}
    with pytest.raises((ValueError, TypeError), match="noise"):
        evaluate(config, "noisy_expert:NoisyExpert", EvalConfig(1), policy_kwargs=arguments)
    given = {"task": "reach-v3", "policy": "noisy_expert:NoisyExpert"}
    with pytest.raises((ValueError, TypeError), match="noise"):
        EvalParameters("metaworld", **given, policy_kwargs=arguments).evaluate()
    if isinstance(value, float):
        words = [word for name, text in given.items() for word in (f"--{name}", text)]
        text = '{"noise": %s}' % {"inf": "1e999", "-inf": "-Infinity", "nan": "NaN"}[str(value)]
        assert main(["eval", *words, "--policy_kwargs", text]) == 2
        assert "noise" in capsys.readouterr().err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
