"""Package metadata comes from settings.ini, which nbdev reads too; nothing is said twice."""

from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent
parser = ConfigParser(delimiters=["="])
parser.read(HERE / "settings.ini", encoding="utf-8")
settings = parser["DEFAULT"]

TRACKERS = ("tensorboard", "wandb", "trackio")
EXTRAS = ("metaworld", "libero", "lerobot", "notebook", "rerun", *TRACKERS, "dev")
extras = {name: settings[f"{name}_requirements"].split() for name in EXTRAS}
extras["all"] = sorted(
    {
        requirement
        for name, requirements in extras.items()
        if name != "dev"
        for requirement in requirements
    }
)

setup(
    version=settings["version"],
    description=settings["description"],
    keywords=settings["keywords"].split(),
    author=settings["author"],
    author_email=settings["author_email"],
    url=settings["git_url"],
    project_urls={
        "Documentation": settings["doc_host"] + settings["doc_baseurl"],
        "Source": settings["git_url"],
    },
    license="Apache-2.0",
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering",
    ],
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    packages=find_packages(include=["lerobot_nb*"]),
    package_data={"lerobot_nb": ["py.typed"]},
    python_requires=">=" + settings["min_python"],
    install_requires=settings["requirements"].split(),
    extras_require=extras,
    entry_points={
        "console_scripts": settings["console_scripts"].split(),
        # papermill loads it when it starts; see nbs/evaluation/papermill_engine.ipynb
        "papermill.engine": [
            f"{settings['lib_path']}={settings['lib_path']}.evaluation.papermill_engine:NotebookEngine"
        ],
        "nbdev": [f"{settings['lib_path']}={settings['lib_path']}._modidx:d"],
    },
    zip_safe=False,
)
