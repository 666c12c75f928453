PYTHON ?= python3
BIN := .venv/bin
MINUTES ?= 2
INPUTS ?= 1e6
PROGRAMS ?= 10000

.PHONY: install demo test test-integrations docs wheel test-wheel lint format bench fuzz soak clean help
help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

install: .venv/.installed ## everything into .venv; nothing when it is current

# torch first and pinned: an unpinned request would bring gigabytes of CUDA packages.
.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Salience needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch numpy
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	@touch $@

demo: install ## train with and without importance sampling on data that ships with the package
	$(BIN)/salience demo

test: install ## the whole suite but for frameworks, on two cores
	SALIENCE_INTEGRATIONS=0 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile $(PYTEST)

.venv/.integrations: .venv/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,integrations]'
	@touch $@

test-integrations: .venv/.integrations ## the suites of the frameworks, which it installs first
	SALIENCE_INTEGRATIONS=1 $(BIN)/python -m pytest tests/integrations $(PYTEST)

# Not --quiet, which also silences --strict. -B: nothing is written outside site/, no bytecode of the hooks either.
docs: install ## the documentation site, into site/; a broken link or a forgotten page is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -B -m mkdocs build --strict

wheel: install ## the package as dist/*.whl and dist/*.tar.gz
	rm -rf dist
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build

test-wheel: wheel ## install the wheel into a new environment, and use it outside the repository
	$(BIN)/python -m pytest tests/wheel/check_wheel.py $(PYTEST)

lint: install ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install ## let ruff rewrite
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install ## costs of steps and draws, many examples and ranks, the time to uniform's loss (hours; needs the data sets)
	$(BIN)/python benchmarks/costs.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/simulate_ranks.py --rows runs/scale/rows.jsonl
	$(BIN)/python benchmarks/payoff.py

fuzz: install ## damaged and made-up files and states, INPUTS of them (1e6), into runs/fuzz
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/fuzz.py --inputs $(INPUTS)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/programs.py --programs $(PROGRAMS)

soak: install ## MINUTES (2) of training with kills, full disks, bad losses, no memory; into runs/soak
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/soak.py --minutes $(MINUTES) --out runs/soak/$(MINUTES).json

clean: ## remove the environment and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build dist site
