# plait: everything a person or a machine needs to do here.
# PYTHON is the interpreter that .venv is made from (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0

.PHONY: install demo test chaos check format bench gpu clean

install: $(VENV)/.installed

# torch is named by itself and first: a later resolver must find it installed and leave it alone.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

demo: install
	$(BIN)/plait demo

# All tests, the slow and the end-to-end ones included.
test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile

# A hundred kills of a served training: CHAOS_KILLS=300 for more, PLAIT_CHAOS_SEED for other ones,
# PLAIT_CHAOS_ENGINE=torch with the embedded engine, where that can be deterministic.
CHAOS_KILLS ?= 100
chaos: install
	OMP_NUM_THREADS=1 PLAIT_CHAOS_KILLS=$(CHAOS_KILLS) $(BIN)/python -m pytest -q -s tests/e2e/test_chaos.py

# What to run before each commit: about a minute.
check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m 'not slow and not e2e' tests/unit tests/properties tests/contract

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Every figure by name: make bench NAME=A1
bench: install
	$(BIN)/python -m benchmarks $(NAME)

# What needs a CUDA device, in one command of at most eight minutes: equality, then figures.
gpu: install
	timeout 480 sh -c '$(BIN)/python -m pytest -q tests/gpu && $(BIN)/python -m benchmarks G1 G2'

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
