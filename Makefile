# Everything a fresh machine needs is done here: `make demo` and `make test` are the README's two commands.
PYTHON ?= python3
BIN := .venv/bin
# Bytecode is kept, whatever the shell says: without it half of the time to collect goes into compiling the tests anew.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses=$(shell nproc) --dist=loadfile --no-loadscope-reorder

.PHONY: demo test test-floors test-slow test-all bench size docs atlas proof asv-trends lint types imports environment

environment: .venv/.installed

.venv/.installed: .venv/.demo
	$(BIN)/python -m pip install --quiet --editable ".[all]" --group dev
	touch $@

.venv/.demo: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[vision,report]"
	touch $@

demo: .venv/.demo
	$(BIN)/ampbench run --precision fp32,bf16_autocast,bf16_pure --rounds 3 --results demo || test $$? = 3
	$(BIN)/ampbench report --results demo

lint: environment
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: environment
	MYPY_NUM_WORKERS=$(shell nproc) $(BIN)/mypy

imports: environment
	$(BIN)/lint-imports

test: lint types imports
	$(PYTEST) -m "not slow"

# The oldest versions that pyproject.toml allows, each pinned, in an environment of their own. Downloads 3 GB.
FLOORS := .venv-floors
test-floors:
	$(PYTHON) -m venv --clear $(FLOORS)
	sed '/^\[dependency-groups/,$$d' pyproject.toml | grep -oE '[a-z0-9-]+>=[0-9.]+' | sed 's/>=/==/' | sort -u > $(FLOORS)/floors
	$(FLOORS)/bin/python -m pip install --quiet --constraint $(FLOORS)/floors --editable ".[torch,vision,report,parquet,pytest]" hypothesis
	OMP_NUM_THREADS=1 $(FLOORS)/bin/python -m pytest -q tests/test_settings.py tests/cli/test_values.py \
		tests/cli/test_list.py tests/cli/test_show.py tests/convert/test_parquet.py tests/judge/test_times.py tests/test_live.py

test-slow: environment
	$(PYTEST) -m slow

test-all: lint types imports
	$(PYTEST)

bench: environment
	$(BIN)/python -m benchmarks.self

size: environment
	$(BIN)/python -m benchmarks.size $(MORE)

# The site, made by an environment of its own without torch. site/index.html opens from disk; its search needs a server,
# as `python3 -m http.server --directory site` is one.
SITE := .venv-docs
docs:
	test -x $(SITE)/bin/python || $(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(SITE)/bin/python -m pip install --quiet --editable . --group docs
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/python -m mkdocs build --strict

atlas: environment
	$(BIN)/python -m benchmarks.atlas

proof: environment
	$(BIN)/python -m benchmarks.self.outcomes proof.jsonl

# The suite over torch releases, as a site of asv. One environment of 6 GB; about 6 minutes a release.
asv-trends: environment
	$(BIN)/python -m benchmarks.torch_releases
