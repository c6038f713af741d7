# On a new machine, Python 3.11 or newer and `make sweep` or `make test` are enough.
PYTHON ?= python3
# Another version of torch than the pinned one has an environment of its own: make test TORCH=2.9.1
TORCH  ?=
VENV   ?= .venv$(TORCH:%=-%)
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# In order of name: sorted by number of tests, the slowest files would come last.
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder
# The tests start a thousand interpreters, which share compiled modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup help services debian sweep test docs lint check bench soak dist release-check clean

setup: $(READY)  ## makes .venv, with sweeper and what its tests need

help:  ## lists the targets
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

# The constraints pin tested versions. torch is a CPU build if only that is offered; on a machine
# with an NVIDIA GPU the same line installs the CUDA build.
$(READY): pyproject.toml setup.py constraints.txt
	@uname -s | grep -q Linux || { echo "sweeper runs on Linux only (this is $$(uname -s))."; exit 2; }
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sweeper needs Python 3.11 or newer; name one with make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	sed '$(TORCH:%=s/^torch==.*/torch==%/)' constraints.txt > $(VENV)/constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(VENV)/constraints.txt --editable '.[dev]'
	touch $(READY)

services: $(READY) debian  ## installs what some tests need: SLURM, PostgreSQL, Dask, Ray
	tests/services/install.sh $(BIN)/python

debian:  ## installs the Debian packages among them
	tests/services/debian.sh

sweep: $(READY)  ## runs a first sweep, search_spaces/a10.yaml: 5 minutes
	$(BIN)/sweeper run search_spaces/a10.yaml

test: $(READY)  ## runs the tests: 5 minutes on two cores
	$(BIN)/python -m pytest $(PARALLEL) -m "not (slow or browser or slurm or soak)"

docs: $(READY)  ## builds the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: $(READY) docs  ## checks the documentation, style, types and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint $(filter services,$(MAKECMDGOALS))  ## lint, and all tests but the soak tests: 20 minutes
	$(BIN)/python -m pytest $(PARALLEL) -m "not soak"

bench: $(READY)  ## measures overhead, trainer, telemetry, verdicts and search
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/trainer.py
	$(BIN)/python benchmarks/telemetry.py
	$(BIN)/python benchmarks/watch.py
	$(BIN)/python benchmarks/verdicts.py
	$(BIN)/python benchmarks/search.py bars resume
	$(BIN)/python benchmarks/confirm.py recorded peers
	$(BIN)/python benchmarks/production.py
	$(BIN)/python benchmarks/real.py

soak: $(READY)  ## runs the soak tests: hours of kills and faults
	$(BIN)/python benchmarks/chaos.py
	$(BIN)/python -m pytest -m soak

dist: $(READY)  ## builds the two distributions into dist/
	rm -rf dist build
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build twine
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --outdir dist distributions/sweeper-torch
	$(BIN)/twine check --strict dist/*

# The workflow `release` uploads what this has checked, when a tag such as v0.3.0 is pushed.
release-check: dist  ## checks all of a release but its upload: an install of the core in an empty environment
	$(PYTHON) -m venv --clear build/release
	build/release/bin/python -m pip install --quiet --disable-pip-version-check dist/sweeper_torch_core-*.whl
	cd build && release/bin/sweeper --version

clean:  ## removes .venv, caches and site/
	rm -rf $(VENV) .venv-* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache site
