"""Writes the requirement files beside this one: every version that the environments and images get, for Python 3.10 to 3.13.

    python docker/requirements/lock.py             newest versions that fit together (`make lock`)
    python docker/requirements/lock.py --check     fails where the files no longer satisfy settings.ini; changes nothing

Direct requirements are in settings.ini and libero-runtime.in. `uv pip compile --universal` resolves them together, once, so
that the files can be installed side by side; each file is then the part of that answer which its requirements need.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from configparser import ConfigParser
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# the tried one; its CPU build is chosen by the installer, so what its CUDA build needs is left out
# here
TORCH = "torch==2.13.0"
LEFT_OUT = re.compile(r"^(nvidia-|cuda-|triton\b)")
HEADER = "# Made by `make lock` from settings.ini and libero-runtime.in, for Python 3.10 to 3.13. Installed and tested as a whole on 3.11.\n"


def direct_requirements() -> dict[str, list[str]]:
    """File name -> what it must satisfy."""
    parser = ConfigParser(delimiters=["="])
    parser.read(ROOT / "settings.ini", encoding="utf-8")
    settings = parser["DEFAULT"]
    runtime = [
        line
        for line in (HERE / "libero-runtime.in").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    base = settings["requirements"].split() + [TORCH]
    return {
        "base.txt": base,
        "metaworld.txt": base + settings["metaworld_requirements"].split(),
        "libero.txt": base + runtime,
        "notebook.txt": base + settings["notebook_requirements"].split(),
        "rerun.txt": base + settings["rerun_requirements"].split(),
        "tracking.txt": base
        + [
            requirement
            for name in ("tensorboard", "wandb", "trackio")
            for requirement in settings[f"{name}_requirements"].split()
        ],
        "dev.txt": base + settings["dev_requirements"].split(),
    }


def resolve(requirements: list[str], constraints: str = "") -> str:
    with tempfile.TemporaryDirectory() as folder:
        wanted, fixed = Path(folder, "wanted.in"), Path(folder, "fixed.txt")
        wanted.write_text("\n".join(requirements), encoding="utf-8")
        fixed.write_text(constraints, encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "compile",
            "--quiet",
            "--universal",
            "--python-version",
            "3.10",
            "--no-header",
            "--no-annotate",
            "--constraint",
            str(fixed),
            str(wanted),
        ]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def without_cuda(resolved: str) -> str:
    return "".join(
        f"{line}\n" for line in resolved.splitlines() if line and not LEFT_OUT.match(line)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="only check that the files satisfy settings.ini"
    )
    check = parser.parse_args().check
    wanted = direct_requirements()
    if check:
        from packaging.requirements import Requirement

        stale = []
        for name, requirements in wanted.items():
            pinned: dict[str, list[str]] = {}
            for line in (HERE / name).read_text(encoding="utf-8").splitlines():
                if line and not line.startswith("#"):
                    pin = Requirement(line)
                    pinned.setdefault(canonical(pin.name), []).append(
                        next(iter(pin.specifier)).version
                    )
            for requirement in map(Requirement, requirements):
                versions = pinned.get(canonical(requirement.name), [])
                if not versions or not all(
                    requirement.specifier.contains(version, prereleases=True)
                    for version in versions
                ):
                    stale.append(f"{name}: {requirement} is not met by {versions or 'any line'}")
        print(
            "\n".join([*stale, "run `make lock`"])
            if stale
            else "the requirement files satisfy settings.ini"
        )
        return 1 if stale else 0
    everything = resolve(
        [requirement for requirements in wanted.values() for requirement in requirements]
    )
    for name, requirements in wanted.items():
        (HERE / name).write_text(
            HEADER + without_cuda(resolve(requirements, everything)), encoding="utf-8"
        )
        print(
            f"{name}: {sum(1 for line in (HERE / name).read_text(encoding='utf-8').splitlines() if '==' in line)} pins"
        )
    return 0


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
