# `make perf` and `make test` set up .venv by themselves; see scripts/setup.sh.
#
#   make perf ARGS="-k forward"     ARGS goes to pytest
#   make perf PYTHON=python3        an interpreter that has torch already: nothing is installed

.DEFAULT_GOAL := help
.PHONY: help perf demo test tests oldest browser docs doctor setup
ARGS ?=
TESTS ?= tests lab/tests
# As they were typed: make would run a $(shell ...) in them, and a shell a `...`. scripts/with_args.py
# splits them into words.
override ARGS := $(value ARGS)
override TESTS := $(value TESTS)
export ARGS TESTS
# Files of tests in parallel, in the order of tests/conftest.py: three, since they wait as much as they
# compute. Each may run several launches, of half a GB: more ask for memory that small machines lack.
PARALLEL = -n 3 --dist loadfile --no-loadscope-reorder

# Only from the command line: a PYTHON that happens to be in the environment means something else.
ifeq ($(origin PYTHON),command line)
python := $(PYTHON)
ready = @$(PYTHON) scripts/requirements.py check $(1)
else
python := .venv/bin/python
ready = @scripts/setup.sh $(1)
endif

help: ## what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo 'ARGS="..." is passed to pytest; TESTS=... narrows `make test`, PARALLEL= runs it in one process; PYTHON=python3 uses that interpreter as it is'

perf: ## measure and judge: the GPU suite, or the smoke cases where there is no GPU
	$(call ready,perf)
	$(python) scripts/with_args.py --unless-named perf_tests

demo: ## plant a hidden host sync into a copy, and see the gate fail at its line
	$(call ready,perf)
	$(python) scripts/demo.py

# Each of their processes would compile the engine again where bytecode is not to be written.
test: export PYTHONDONTWRITEBYTECODE =
test: ## the project's own tests, on a CPU: ruff, mypy, pytest
	$(call ready,test)
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	@# mypy beside the tests, which wait half of the time; what it says comes after them.
	@types="$$(mktemp)"; trap 'kill $$checks 2>/dev/null; rm -f "$$types"' EXIT; trap 'exit 130' INT; \
	$(python) -m mypy > "$$types" 2>&1 & checks=$$!; \
	$(python) scripts/with_args.py $(PARALLEL) --tests; tested=$$?; \
	wait $$checks; checked=$$?; echo mypy:; cat "$$types"; \
	exit $$((tested ? tested : checked))

oldest: export PYTHONDONTWRITEBYTECODE =
oldest: ## the tests with the oldest packages that pyproject.toml allows, in .venv-oldest
	@scripts/setup.sh oldest
	@# The workflows are run by newer tools, which have nothing to do with these packages.
	.venv-oldest/bin/python scripts/with_args.py $(PARALLEL) --ignore=tests/workflows --tests

# Else make would find the folder, and nothing to do.
tests: test

browser: export STEPGUARD_BROWSER_REQUIRED = 1
browser: ## the HTML report in a Chromium that is on PATH
	@$(python) scripts/requirements.py check browser
	$(python) scripts/with_args.py lab/tests/browser

docs: ## docs/ as a site, in site/; a link that leads nowhere is an error
	@$(python) scripts/requirements.py check docs
	@# Not --quiet: a warning that is not shown is not counted by --strict either.
	$(python) -m mkdocs build --strict

doctor: ## is this machine fit, and is there a baseline?
	$(call ready,perf)
	$(python) -m stepguard doctor

setup: ## only make .venv
	$(call ready,test)
