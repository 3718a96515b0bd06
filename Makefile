# Every target makes .venv from the lock when it is missing; Python 3.11 and make are enough.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
# One at a time. Of 20,000 modules most are never imported, and the others are compiled when they
# are first: pip compiles all where processes that make does not start may not write.
INSTALL = $(if $(shell command -v flock),flock $(VENV)/pyvenv.cfg) $(PIP) install -c requirements.lock $(if $(PYTHONDONTWRITEBYTECODE),,--no-compile)
export OMP_NUM_THREADS := 1
export OMP_WAIT_POLICY := PASSIVE
unexport PYTHONDONTWRITEBYTECODE  # each of hundreds of processes would compile the package anew
BENCHMARKS ?= dp_sgd trajectory_dp local_update svt_filter model_rollouts sampling accounting fingerprint ray_round scaling node_changes offline_trainers value_iteration utility_value_iteration marginals one_shot_marginals votes tuning_step dp_fine_tuning_step

POSTGRES := $(wildcard /usr/lib/postgresql/*/bin/initdb)
CHROMIUM := $(shell command -v chromium)

.PHONY: help env dev postgres chromium s3 gs check test test-slow cluster chaos fuzz soak audit-deps smoke demo docs notebooks wheel bench lock clean
help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/pyvenv.cfg:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "Python 3.11 is needed: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.user: requirements.lock pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "installing into $(VENV): some 3 GB, a minute or two; later calls skip this"
	$(INSTALL) -e '.[envs]'
	@touch $@

$(VENV)/.dev: requirements.lock pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "installing into $(VENV): some 4 GB, a minute or two; later calls skip this"
	$(INSTALL) -e '.[envs,tables,text,test,dev,parity,polars,postgres]'
	@touch $(VENV)/.user $@

env: $(VENV)/.user  ## install what a user needs
dev: $(VENV)/.dev  ## install what a developer needs

postgres:  ## as root: a PostgreSQL server for the ledger's tests; without one they are skipped
ifeq ($(POSTGRES),)
	@{ test "$$(id -u)" = 0 && export DEBIAN_FRONTEND=noninteractive && apt-get update -qq \
	  && apt-get install -y -qq --no-install-recommends postgresql >/dev/null; } \
	  || echo "PostgreSQL was not installed: the tests that need it will be skipped" >&2
endif

chromium:  ## as root: a browser for the screenshots of `make docs`; without one they are left out
ifeq ($(CHROMIUM),)
	@{ test "$$(id -u)" = 0 && export DEBIAN_FRONTEND=noninteractive && apt-get update -qq \
	  && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; } \
	  || echo "Chromium was not installed: the site will have no screenshots" >&2
endif

.venv-%/.installed: requirements-%.lock
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/pip --disable-pip-version-check install -r $<
	@touch $@

s3: .venv-s3/.installed  ## a server of S3 (moto), apart from the project's environment, for the tests that need one
gs: .venv-gs/.installed  ## a server of Google Cloud Storage, likewise

check: $(VENV)/.dev  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

test: $(VENV)/.dev  ## the tests, on three processes: some wait for Ray (20 to 30 minutes on 2 cores)
	$(BIN)/python -m pytest -n 3 --dist loadfile

test-slow: $(VENV)/.dev  ## soak and statistical tests in full length
	$(BIN)/python -m pytest -m slow

cluster: $(VENV)/.dev  ## the tests that start several Ray nodes on this machine (minutes)
	$(BIN)/python -m pytest -m cluster

chaos: $(VENV)/.dev  ## kill runs at every file operation and random times, and let other faults happen (hours; goes on where it was)
	$(BIN)/python -m tests.chaos

fuzz: $(VENV)/.dev  ## feed every door with changed bytes, ten minutes each (two hours)
	$(BIN)/python -m tests.fuzz

soak: $(VENV)/.dev  ## 10,000 reservations, 10,000 private rounds, a million trajectories: what grows (hours; goes on where it was)
	$(BIN)/python -m tests.soak

audit-deps: $(VENV)/.dev  ## known vulnerabilities of what requirements.lock names, where their service can be reached
	$(BIN)/python -m tests.audit_deps

smoke: $(VENV)/.user  ## the quick demo, its certificate verified, tampered copies refused
	$(BIN)/python -m tests.smoke

demo: $(VENV)/.user  ## a sensitive maze dataset to a certified private one
	$(BIN)/privrl demo --out runs/demo

docs: $(VENV)/.dev  ## the documentation as a site, in site/, with screenshots of reports; dead links are errors
	$(BIN)/python -m tests.docs.screenshots
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(VENV)/.notebooks: $(VENV)/.user
	$(INSTALL) -e '.[envs,tables,notebooks]'
	@touch $@

notebooks: $(VENV)/.notebooks  ## the notebooks of docs/notebooks, run, with outputs in runs/notebooks (minutes)
	$(BIN)/python docs/notebooks/make.py

wheel: $(VENV)/.dev  ## wheel and sdist in dist/, the wheel installed and run in a clean environment
	rm -rf build dist
	$(BIN)/python -m build
	$(BIN)/python -m tests.wheel

bench: $(VENV)/.user  ## all benchmarks; BENCHMARKS="dp_sgd" for one
	@set -e; for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name; done

lock: $(VENV)/.dev  ## resolve pyproject.toml anew
	$(BIN)/pip-compile -q --strip-extras --all-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host -o requirements.lock pyproject.toml
	sed -i 's/^torch==\([0-9.]*\)+cpu/torch==\1/' requirements.lock

clean:  ## remove the environment and caches, never runs
	rm -rf $(VENV) .venv-s3 .venv-gs .venv-audit .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
