"""Environments that nobody closes: when Python ends, nothing is printed."""

import subprocess
import sys

import pytest

LEFT = """
import sys

from lerobot_nb import make_env, make_env_config

if __name__ == "__main__":
    benchmark, task, how = sys.argv[1:]
    config = make_env_config(benchmark, task=task)
    if benchmark != "gym":
        config = make_env_config(benchmark, task=task, observation_height=32, observation_width=32)
    if how == "vector":
        [[env]] = [list(tasks.values()) for tasks in make_env(config, n_envs=1, use_async_envs=False).values()]
        env.reset(seed=0)
        env.call("render")
    else:
        env = config.env_factory(config.tasks()[0])()
        env.reset(seed=0)
        assert env.render().std() > 0
    if how == "in a circle":
        env.itself = env
    if how == "closed and again":
        env.close()
        env.reset(seed=0)
        env.render()
    print("left open")
"""


@pytest.mark.parametrize("how", ["alone", "in a circle", "closed and again", "vector"])
@pytest.mark.parametrize("benchmark, task", [("gym", "HalfCheetah-v5"), ("metaworld", "reach-v3")])
def test_nothing_is_printed_when_python_ends(benchmark, task, how, tmp_path):
    (tmp_path / "left.py").write_text(LEFT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "left.py"), benchmark, task, how],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.strip().endswith("left open"), done.stderr
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr, done.stderr
