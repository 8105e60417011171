# `make demo` and `make test` set everything up by themselves; the second time they are quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
# One thread in each test process: two of them share two cores best that way.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help demo test check bench format clean

help:
	@echo "make demo    recognise digits with shipped weights; writes demo/"
	@echo "make test    run all tests"
	@echo "make check   ruff and mypy"
	@echo "make bench   measure speed and memory on this machine"
	@echo "make format  let ruff lay out the code"

demo: $(VENV)/.core
	@$(BIN)/ocra demo

test: $(VENV)/.all
	$(TEST_ENV) $(BIN)/python -m pytest --numprocesses 2 --dist loadfile $(ARGS)

check: $(VENV)/.all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.core
	$(BIN)/python benchmarks/speed.py $(ARGS)

format: $(VENV)/.all
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo build *.egg-info src/*.egg-info

$(VENV)/.core: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing ocra into $(VENV) (once) ..."
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.all: $(VENV)/.core
	@echo "Installing what the tests need (once) ..."
	@$(INSTALL) --editable ".[app,track,hub,ray,dev]"
	@touch $@
