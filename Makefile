# A fresh machine needs Python 3.11 or newer and make; everything else is built here.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test lint slow gpu format results clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## what the family costs, as a table
	$(BIN)/halfpint profile bert-base distilbert albert-base tinybert-4 minilm-6-384 mobilebert

test: lint ## environment, ruff, mypy, pytest
	$(BIN)/pytest -n 2

lint: $(READY) ## ruff and mypy alone
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

slow: $(READY) ## the tests that take minutes
	$(BIN)/pytest -m "slow and not gpu" --timeout 1800

gpu: $(READY) ## the tests that need a CUDA device
	$(BIN)/pytest -m gpu

format: $(READY) ## ruff's fixes and layout
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

results: $(READY) ## results/README.md from results/*.json
	$(BIN)/python -m benchmarks.tables

clean: ## the environment, builds and caches
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first, at the exact version of constraints.txt: as a range among other packages it may be resolved
# to another build.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Halfpint needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install -q -c constraints.txt -e '.[train,dev]'
	@touch $@
