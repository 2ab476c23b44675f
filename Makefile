# Needs only make and Python 3.11 or newer with venv. Another interpreter: make PYTHON=/path/to/python3.11 setup
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Most tests wait for servers rather than for the CPU; tests/file_order.py has both kinds run side by side. Those of
# faults time out where more than four share two cores.
JOBS   ?= 4
PYTEST = $(BIN)/pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

# Tests start hundreds of interpreters: without bytecode each compiles all modules again, a third of what it does.
unexport PYTHONDONTWRITEBYTECODE

# Stamps inside the environment show what is installed: `runnable` what the relay needs, `ready` also the tools of developers.
# Both come from hash-locked files.
RUNNABLE := $(VENV)/.runnable
READY    := $(VENV)/.ready
# The CI of tests/e2e, in an environment of its own.
E2E      := .venv-e2e
BUILDBOT := $(E2E)/.ready

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo dev quick test test-faults test-full e2e again speed bench faults lint format clean screenshots reference site wheel sbom licences audit

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Create .venv with everything for running, testing and developing

demo: $(RUNNABLE) ## Send sample events through a relay of your own and watch the answers come back
	$(BIN)/relay demo

dev: $(RUNNABLE) ## Run a whole relay on this machine, without Kafka and Redis
	$(BIN)/relay dev

quick: lint ## Check and test what needs no server, in about a minute
	$(PYTEST) --numprocesses 2 -m 'not slow and not thorough' tests/unit tests/contract/test_log_memory.py tests/contract/test_history_memory.py

test: JOBS := 7
test: $(READY) ## Run the tests, JOBS files at a time (7)
	$(PYTEST) tests/unit tests/contract tests/integration tests/emulators tests/browser

test-faults: $(READY) ## Run what proves the guarantees: crashes, outages, interleavings
	$(PYTEST) tests/faults tests/scale

e2e: $(READY) $(BUILDBOT) ## Run whole round trips with a Buildbot, which is installed first
	$(BIN)/pytest -m '' -rP tests/e2e

test-full: $(READY) $(BUILDBOT) ## Run all tests, with the slow forms and those of the tools (harness, benchmark, chart, image)
	$(PYTEST) -m ''

again: $(READY) ## Run the tests that failed last once more, one after the other
	$(BIN)/pytest --last-failed --last-failed-no-failures none

speed: $(READY) ## Check what a message may cost in our own Python, in calls of functions
	$(BIN)/pytest tests/speed

screenshots: $(READY) $(BUILDBOT) ## Make the pictures of the pages in docs/images anew
	$(BIN)/python -m tests.browser.screenshots
	$(BIN)/python -m tests.e2e.screenshots

reference: $(RUNNABLE) ## Write docs/reference/ and the list of runbooks anew, which are made of the code
	$(BIN)/python -m release.reference docs

site: $(READY) ## Build the documentation in site/, to be read without a network
	$(BIN)/zensical build --strict --clean

wheel: $(RUNNABLE) ## Build the wheel and the sdist into dist/, the same bytes wherever that is done
	rm -rf dist
	$(BIN)/python -m hatchling build

sbom: $(READY) wheel ## Write the bill of materials of the wheel beside it in dist/ (CycloneDX)
	$(BIN)/python -m release.sbom dist/*.whl

licences: $(READY) ## Write docs/licences.md anew, which is made of the lock
	$(BIN)/python -m release.licences

audit: $(READY) ## Ask whether a locked version has a known hole; fails, too, where nobody can be asked
	$(BIN)/pip-audit --strict --disable-pip --require-hashes --requirement requirements/dev.txt --requirement requirements/build.txt

bench: $(RUNNABLE) ## Measure the relay on Kafka and Redis of its own; more with .venv/bin/relay bench --help
	$(BIN)/relay bench

faults: $(READY) ## Do to a relay on real servers what may befall one, and check each promise; takes hours
	$(BIN)/python -m tests.faults.harness $(FAULTS)

lint: $(READY) ## Check style, format, types and words
	@$(BIN)/ruff format --check || { echo "make format formats them" >&2; exit 1; }
	$(BIN)/ruff check
	$(BIN)/python -m tests.words
	$(BIN)/mypy --num-workers 2

format: $(READY) ## Format the code, and correct what needs no decision
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

clean: ## Remove .venv and what tools have left behind
	rm -rf $(VENV) $(E2E) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUNNABLE): pyproject.toml requirements/runtime.txt requirements/build.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@echo "Installing into $(VENV), which takes about a minute the first time"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --require-hashes -r requirements/runtime.txt
	$(PIP) install --require-hashes -r requirements/build.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q relay workers
	@touch $@

# Most modules of these packages are never imported; to compile all of them took a quarter of the CPU of this.
$(READY): $(RUNNABLE) requirements/dev.txt
	$(PIP) install --no-compile --require-hashes -r requirements/dev.txt
	@touch $@

$(BUILDBOT): requirements/e2e.txt
	@echo "Installing Buildbot into $(E2E)"
	$(PYTHON) -m venv $(E2E)
	$(E2E)/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements/e2e.txt
	@touch $@
