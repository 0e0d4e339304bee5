# `make demo` runs the main job, `make test` the tests. Both set the machine up first and can be repeated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export OMP_NUM_THREADS ?= 2

.PHONY: demo test test-slow mutants lint bench clean

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

# Speed and memory: docs/performance.md and the tables of docs/scale.md. PFL_PYTHON: an interpreter with Apple's pfl.
bench: $(READY)
	$(BIN)/python -m benchmarks.performance $(if $(PFL_PYTHON),--pfl-python $(PFL_PYTHON))

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)
