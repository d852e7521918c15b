# make test: set up, then all tests.   make check: the core in a minute.   make docs: the documentation as a site.
# make demo: set up, then the main job, ending with a page to open.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo

.PHONY: test check docs demo lint setup clean

# Two workers with a thread each: torch's threads wait for each other by spinning, and two pairs of them on two cores crawl.
# No waiting for the disk: a kill does not need it, only a power cut would.
test: lint
	OMP_NUM_THREADS=1 VIVI_FSYNC=0 $(BIN)/pytest -n 2

# The core alone, in under a minute: losses, the step, the sampler, checkpoints, recipes.
check: setup
	OMP_NUM_THREADS=1 VIVI_FSYNC=0 $(BIN)/pytest -n 2 tests/losses tests/train/test_step.py tests/train/test_checkpoint.py tests/data/test_plan.py tests/recipes

docs: setup
	$(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

demo: setup
	$(BIN)/vivi demo --out $(DEMO)

setup: $(VENV)/.ready

# Reinstalled only when the dependencies change.
$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is older than 3.11; run make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "error: $(PYTHON) cannot make a virtual environment; on Debian: apt install python3-venv"; exit 1; }
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[ray,export,dev]'
	@touch $@

clean:
	rm -rf $(VENV) $(DEMO) .mypy_cache .ruff_cache .pytest_cache
