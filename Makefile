# `make demo` runs the main job, `make test` the tests. Both set the machine up first and can be repeated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Python compiles a file when it is first imported: a third of them are, and pip would take a minute for all.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile
export OMP_NUM_THREADS ?= 2
# Hundreds of processes are started by the tests: each would compile the whole package and all tests anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow mutants lint types style bench reference docs reproduce sbom lock clean

demo: $(READY)
	$(BIN)/fedsw demo --rounds 300

# Every worker has a core: two threads each would wait for one another, and busily.
test test-slow: export OMP_NUM_THREADS := 1
test test-slow: export OMP_WAIT_POLICY := passive

test: $(READY)
	$(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder -m "not slow"

test-slow: $(READY)
	$(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder -m slow

# Where the quick and the slow tests have just passed, MUTANTS=--unsure does not run those again that noticed a mutant.
mutants: $(READY)
	$(BIN)/python -m tests.mutants $(MUTANTS)

# The types take longest, on one core.
lint: $(READY)
	$(MAKE) --no-print-directory --jobs 2 types style

types: $(READY)
	$(BIN)/mypy

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/python .ci/words.py
	$(BIN)/python .ci/size.py

# Speed and memory: docs/measured/performance.md and docs/measured/scale.md. PFL_PYTHON: an interpreter with Apple's pfl.
bench: $(READY)
	$(BIN)/python -m benchmarks.performance $(if $(PFL_PYTHON),--pfl-python $(PFL_PYTHON))

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache

# The pages that are built and not committed: settings, commands, messages, settings of the papers' figures.
reference: $(READY)
	$(BIN)/python .ci/reference.py

# The site, into build/site: notebooks and gallery are run, and every warning is a fault.
docs: $(READY)
	$(BIN)/sphinx-build --builder html --doctree-dir build/doctrees --quiet --fail-on-warning --keep-going docs build/site

# Everything that is installed, as CycloneDX: for who looks after known vulnerabilities.
sbom: $(READY)
	mkdir -p build
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file build/sbom.json $(VENV)

# A paper's figure or table, all of a paper, or all of them: make reproduce FIGURE=rll/fig13. QUICK=1: all small, on
# stand-ins for data, to see that it runs; what comes out lies below runs/papers-quick and means nothing. STALE=1: nothing
# is run; every stored run is planned again, and it fails where today's rules and bounds plan one otherwise.
reproduce: $(READY)
	$(BIN)/python -m simulations.papers $(if $(filter all,$(FIGURE)),--all,$(FIGURE)) $(if $(QUICK),--quick) $(if $(STALE),--stale)

# After a change of constraints.txt or of what pyproject.toml asks for. WHEELS: builds of torch that are not on the index.
lock: $(READY)
	$(BIN)/python .ci/lock.py $(WHEELS)

# pip compares every file with locks/; fedsw itself is then installed without looking for anything. First the CPU build of torch,
# where pip finds it in a folder (PIP_FIND_LINKS), whatever the index has. The line about nvidia: torch as PyPI has it for Linux needs
# CUDA's libraries, a CPU build does not.
$(READY): pyproject.toml locks/dev.txt locks/cuda.txt locks/local.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --no-deps --no-index --require-hashes --requirement locks/local.txt 2>/dev/null || true
	$(PIP) --no-deps --require-hashes --requirement locks/dev.txt
	$(BIN)/python -c 'from importlib.metadata import requires; exit("nvidia" in str(requires("torch")))' || \
		$(PIP) --no-deps --require-hashes --requirement locks/cuda.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	touch $(READY)
