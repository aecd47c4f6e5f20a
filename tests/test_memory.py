"""What a worker costs in memory: its proportional share (PSS), with the pages of the fork server divided among those that use them."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="the kernel doesn't tell"
)

SCRIPT = textwrap.dedent("""
    import re, sys
    from pathlib import Path
    from lerobot_nb.envs.config import make_env_config
    from lerobot_nb.envs.workers import Worker, preload_modules

    config = make_env_config("metaworld", task="push-v3", **eval(sys.argv[1]))
    if config.obs_type != "state":
        from lerobot_nb.envs.rendering import choose_gl_backend
        choose_gl_backend()
    preload_modules((*config.preload, "lerobot_nb.evaluation.host"))
    workers = [Worker("lerobot_nb.evaluation.host:EpisodeHost") for _ in range(2)]
    for worker in workers:
        worker.ask("build", config.env_factory(config.tasks()[0]))
        worker.ask("reset", seed=1)
        for _ in range(20):
            worker.ask("step", [0.1, 0.1, 0.1, 0.0])
    for worker in workers:
        print("PSS", re.search(r"Pss:\\s+(\\d+) kB", Path(f"/proc/{worker.pid}/smaps_rollup").read_text())[1])
        worker.close()
""")


@pytest.mark.parametrize(
    "fields, most_mb",
    [
        (dict(obs_type="state", render_mode=None), 150),
        (dict(obs_type="pixels", observation_height=256, observation_width=256), 350),
    ],
)
def test_a_worker_stays_small(fields, most_mb):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, repr(fields)], capture_output=True, text=True, timeout=240
    )
    found = [int(number) / 1024 for number in re.findall(r"PSS (\d+)", done.stdout)]
    assert len(found) == 2, done.stderr
    print(f"{fields['obs_type']}: {max(found):.0f} MB")
    assert max(found) <= most_mb
