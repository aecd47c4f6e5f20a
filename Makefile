# make eval                         a Meta-World evaluation: outputs/eval/metaworld.ipynb
# make eval BENCHMARK=libero        the same on LIBERO; installs what it needs
# make eval PARAMS="-p task mt10 -p n_episodes 3"      any parameter of nbs/eval.ipynb
# make test                         every quick test
# make help                         the other targets
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BENCHMARK ?= metaworld
PARAMS ?=
OUTPUT ?= outputs/eval/$(BENCHMARK).ipynb
VENV ?= .venv
WORKERS ?= 2
CHECK_GL ?= 1
ENGINE ?= $(shell command -v docker || command -v podman || command -v buildah)
export PYTHON TORCH

BIN := $(VENV)/bin
STAMPS := $(VENV)/installed
REQUIREMENTS := docker/requirements
BENCHMARKS_WITH_PACKAGES := metaworld libero
# PATH: notebooks, tests and kernels call the tools of this environment by name
RUN := PATH="$(CURDIR)/$(BIN):$$PATH"

.PHONY: help eval test test-slow test-containers setup lint docs readme speed lock export clean gl

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

setup: gl $(STAMPS)/project $(STAMPS)/metaworld $(STAMPS)/libero        ## .venv with both benchmarks
	@echo "ready: . $(BIN)/activate"

# --- work -----------------------------------------------------------------------------------------------------------

eval: gl $(STAMPS)/project $(patsubst %,$(STAMPS)/%,$(filter $(BENCHMARKS_WITH_PACKAGES),$(BENCHMARK)))     ## run nbs/eval.ipynb: BENCHMARK, PARAMS, OUTPUT
	@mkdir -p $(dir $(OUTPUT))
	$(RUN) papermill nbs/eval.ipynb $(OUTPUT) -p benchmark $(BENCHMARK) $(PARAMS)
	@echo "the executed notebook: $(OUTPUT)"

TEST_ENVIRONMENT := gl $(STAMPS)/project $(STAMPS)/metaworld $(STAMPS)/libero $(STAMPS)/dev

test: $(TEST_ENVIRONMENT)       ## every quick test: pytest, then the notebooks
	$(RUN) nbdev_test --n_workers $(WORKERS) --do_print
	$(RUN) python -m pytest -m "not slow"

test-slow: $(TEST_ENVIRONMENT)  ## the tests that take minutes
	$(RUN) python -m pytest -m "slow and not container" --timeout 3600

test-containers: $(TEST_ENVIRONMENT)    ## build both images and evaluate inside them
	$(RUN) python -m pytest -m container --timeout 3600 tests/test_containers.py

lint: $(STAMPS)/project $(STAMPS)/dev    ## ruff, actionlint, zizmor, hadolint
	$(RUN) python -m pytest -q tests/test_workflows.py
	$(RUN) ruff check setup.py docker tests

speed: $(TEST_ENVIRONMENT)      ## the throughput table
	@mkdir -p outputs
	$(RUN) papermill nbs/speed.ipynb outputs/speed.ipynb $(PARAMS)

# --- texts and packages ---------------------------------------------------------------------------------------------

export: $(STAMPS)/project $(STAMPS)/dev  ## notebooks -> lerobot_nb/, cleaned
	$(RUN) nbdev_export
	$(RUN) nbdev_clean

readme: $(STAMPS)/project $(STAMPS)/dev  ## nbs/index.ipynb -> README.md
	$(RUN) python -m nbconvert --config nbs/.readme.py nbs/index.ipynb

docs: $(STAMPS)/project $(STAMPS)/dev    ## the documentation in _docs/; needs Quarto (quarto.org)
	@command -v quarto >/dev/null || { echo "Quarto is missing: https://quarto.org/docs/get-started (its tests run without it: make test)" >&2; exit 1; }
	rm -rf _proc _docs
	$(RUN) PYTHONPATH=nbs python -c "from nbdev.serve import proc_nbs; proc_nbs(n_workers=0)"
	cd _proc && quarto render --no-cache --no-execute && mv _docs ..

lock:               ## newest versions that fit together -> docker/requirements/*.txt
	@docker/install/venv.sh outputs/lock-venv
	@outputs/lock-venv/bin/python -m pip install --quiet uv packaging
	outputs/lock-venv/bin/python $(REQUIREMENTS)/lock.py

clean:              ## remove .venv and everything built; outputs/ stays
	rm -rf $(VENV) build dist *.egg-info _docs _proc .pytest_cache .hypothesis .ruff_cache
