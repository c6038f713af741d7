# `make sweep` and `make test` are all a new machine needs: Python 3.11 or newer, and these two.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# In the order of their names: sorted by how many tests they have, the longest files of all come last.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder
# The tests start a thousand interpreters: modules are compiled once, and not by each of them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup services sweep test docs check bench soak clean

setup: $(READY)

# The constraints hold tested versions. Its torch is a CPU build where only that is offered; on a
# machine with an NVIDIA GPU the same line brings the CUDA build.
$(READY): pyproject.toml setup.py constraints.txt
	@uname -s | grep -q Linux || { echo "sweeper runs on Linux only (this is $$(uname -s))."; exit 2; }
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sweeper needs Python 3.11 or newer; name one with make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

# What some tests need beside the package; without it they are skipped.
services: $(READY)
	tests/services/install.sh $(BIN)/python

sweep: $(READY)
	$(BIN)/sweeper run search_spaces/a10.yaml

test: $(READY)
	$(BIN)/python -m pytest $(PARALLEL) -m "not (slow or browser or slurm or soak)"

# The site, into site/.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

check: $(READY) test docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest $(PARALLEL) -m "(slow or browser or slurm) and not soak"

bench: $(READY)
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/trainer.py
	$(BIN)/python benchmarks/telemetry.py
	$(BIN)/python benchmarks/verdicts.py
	$(BIN)/python benchmarks/search.py bars resume
	$(BIN)/python benchmarks/confirm.py recorded peers
	$(BIN)/python benchmarks/production.py
	$(BIN)/python benchmarks/real.py

soak: $(READY)
	$(BIN)/python benchmarks/chaos.py
	$(BIN)/python -m pytest -m soak

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache site
