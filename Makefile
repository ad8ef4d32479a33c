# Everything a fresh machine needs is done here: `make demo` and `make test` are the README's two commands.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all bench rules lint types imports environment

environment: .venv/.installed

.venv/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[all]" --group dev
	touch $@

demo: environment
	$(BIN)/ampbench run || test $$? = 3
	$(BIN)/ampbench report

lint: environment
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: environment
	$(BIN)/mypy

imports: environment
	$(BIN)/lint-imports

test: lint types imports
	$(BIN)/pytest -m "not slow"

test-all: lint types imports
	$(BIN)/pytest

bench: environment
	$(BIN)/python -m benchmarks.self

rules: environment
	$(BIN)/python -m benchmarks.rules
