# Needs Python 3.11 or newer, git and make; everything else goes into .venv.
#   make demo     a model trained and shown in a few minutes
#   make check    what a change must pass: lint, docs and test
# PYTHON=python3.12 chooses the interpreter; TORCH_INDEX=url takes torch from another package index (a CPU build, say).

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
TESTS ?=
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint docs check prove bench road in-context format clean

demo: $(VENV)/.installed
	$(BIN)/regard demo

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto --maxprocesses 8 $(TESTS)

prove: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m slow $(TESTS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(VENV)/.installed-dev
	$(BIN)/mkdocs build --strict

check: lint docs test

bench: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks

road: $(VENV)/.installed
	$(BIN)/python -m road

in-context: $(VENV)/.installed
	$(BIN)/python -m road.in_context

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist site *.egg-info regard/kernels/*.so

# torch comes first and by its pinned version, so that no later step can choose another build of it.
$(VENV)/.torch: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX)) --constraint constraints.txt torch
	touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml $(wildcard regard/kernels/*.[ch])
	$(INSTALL) --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(INSTALL) --constraint constraints.txt --editable '.[test]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-test
	$(INSTALL) --constraint constraints.txt --editable '.[dev]'
	touch $@
