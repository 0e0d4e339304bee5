# `make demo` runs the main job, `make test` the tests. Both set the machine up first and can be repeated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export OMP_NUM_THREADS ?= 2

.PHONY: demo test test-slow mutants lint benchmarks clean

demo: $(READY)
	$(BIN)/fedsw demo --rounds 300

test: $(READY)
	$(BIN)/pytest -n auto --dist loadfile -m "not slow"

test-slow: $(READY)
	$(BIN)/pytest -n auto --dist loadfile -m slow

mutants: $(READY)
	$(BIN)/python -m tests.mutants

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

benchmarks: $(READY)
	$(BIN)/python -m benchmarks.clipping
	$(BIN)/python -m benchmarks.engines

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)
