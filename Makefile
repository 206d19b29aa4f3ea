# Every command of the project. `make demo` goes from an empty checkout to a trained model.
#
#   VENV=/path (or RLCORE_VENV=/path)  an environment to use instead of .venv; it is made when missing
#   PYTHON=python3.12                  the interpreter that makes it
#   PIP_ARGS="..."                     more arguments to pip, such as the index that serves PyTorch's CPU builds
#   ARGS="..."                         overrides for the recipe of `demo` and `smoke`, or arguments to pytest

PYTHON ?= python3.11
VENV ?= $(or $(RLCORE_VENV),.venv)
PIP_ARGS ?=
ARGS ?=

PY := $(VENV)/bin/python
STAMP := $(VENV)/.rlcore-installed

export TOKENIZERS_PARALLELISM := false
# A run starts a dozen processes that import the same packages: without bytecode files each would compile them anew.
unexport PYTHONDONTWRITEBYTECODE
# The embedded models and world are on disk: these must never wait for a hub.
demo smoke test unit: export HF_HUB_OFFLINE := 1

.PHONY: help install data data-demo data-small demo smoke test unit lint lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' Makefile

install: $(STAMP) ## the environment with the complete CPU stack, and this checkout in it (once per lock file)

$(STAMP): requirements/cpu.lock pyproject.toml
	$(if $(wildcard $(PY)),$(PY),$(PYTHON)) tools/install.py $(VENV) $(PIP_ARGS)
	$(PY) -m pip install --quiet --no-deps --no-build-isolation -e .
	@$(PY) -c "import torch" || { echo "torch does not load: the index served a build for GPUs."; \
	  echo "Pass the index of PyTorch's CPU builds in PIP_ARGS, after: $(PY) -m pip uninstall torch"; exit 1; }
	@touch $@

data: data-demo data-small ## the embedded models and worlds; what is up to date is left alone

data-demo: install ## the language model and the full world, side by side
	@$(MAKE) --no-print-directory -j 2 data/models/smollm2 data/world

.PHONY: data/models/smollm2 data/world
data/models/smollm2:
	$(PY) -m tools.build_models --out data/models --only smollm2
data/world:
	$(PY) -m tools.build_world --out data/world

data-small: install ## the tiny model and the small world
	$(PY) -m tools.build_models --out data/models --only tiny
	$(PY) -m tools.build_world --out data/world-small --size small

demo: data-demo ## the whole curriculum on the embedded world
	$(PY) -m recipes.curriculum recipe=demo $(ARGS)

smoke: data-small ## the same stages on the tiny model, in minutes; nothing is learned
	$(PY) -m recipes.curriculum recipe=smoke $(ARGS)

test: data-small unit ## every test that runs without a GPU, the fast ones first
	$(PY) -m pytest -q -m "slow and not gpu" $(ARGS)

# Side by side, each on one thread: they are many small ones.
unit: install ## the fast tests
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -m "not slow and not gpu" -n logical --maxprocesses 4 $(ARGS)

lint: install ## style, format and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

lock: install ## resolve requirements/cpu.in into requirements/cpu.lock again (pinned versions stay unless they have to move)
	$(VENV)/bin/uv pip compile requirements/cpu.in --overrides requirements/overrides.txt --output-file requirements/cpu.lock \
	  --python-version 3.11 --python-platform x86_64-manylinux_2_28 --no-annotate --quiet --custom-compile-command "make lock"

clean: ## remove caches and build leftovers; .venv, data and runs stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache outputs multirun
	find rlcore envs rewards recipes tools tests -name __pycache__ -type d -prune -exec rm -rf {} +
