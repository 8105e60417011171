# Every target sets up what it needs in .venv by itself; the second time that is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
# One thread for each test process: two of them share two cores best that way.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help demo test fuzz torture check format bench docs notebooks build wheel-test clean

help:
	@echo "make demo        recognise digits with shipped weights; writes demo/"
	@echo "make test        run all tests (ARGS='-k scanpath' selects some)"
	@echo "make fuzz        show it broken files and visits, 30 s of each kind (OCRA_FUZZ_SECONDS=600: longer)"
	@echo "make torture     stop runs at 50 random moments; each has to end as if it had not been (ARGS='--seed 7')"
	@echo "make check       ruff and mypy"
	@echo "make format      let ruff lay out the code"
	@echo "make bench       measure speed and memory on this machine"
	@echo "make docs        build the documentation site in build/site"
	@echo "make notebooks   run the tutorials of docs/tutorials and keep what they show"
	@echo "make build       write the wheel and the source archive to dist/"
	@echo "make wheel-test  install that wheel into an empty environment elsewhere and use it"
	@echo "make clean       remove the environment and everything that was built"

demo: $(VENV)/.core
	@$(BIN)/ocra demo

test: $(VENV)/.all
	$(TEST_ENV) $(BIN)/python -m pytest --numprocesses 2 --dist loadfile $(ARGS)

fuzz: $(VENV)/.all
	OCRA_FUZZ_SECONDS=$${OCRA_FUZZ_SECONDS:-30} $(TEST_ENV) $(BIN)/python -m pytest --numprocesses 2 tests/test_fuzz.py $(ARGS)

torture: $(VENV)/.all
	$(TEST_ENV) $(BIN)/python tests/training/torture.py $(ARGS)

check: $(VENV)/.all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.all
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.core
	$(BIN)/ocra bench --scaling $(ARGS)

docs: $(VENV)/.all
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "The site is in build/site; open build/site/index.html."

notebooks: $(VENV)/.all
	$(BIN)/jupytext --quiet --set-kernel python3 --to ipynb --execute docs/tutorials/*.py

build: $(VENV)/.all
	rm -rf build dist
	$(BIN)/python -m build --outdir dist .

wheel-test: build
	.ci/wheel-test dist/*.whl $(BIN)/python

clean:
	rm -rf $(VENV) demo build dist src/*.egg-info

$(VENV)/.core: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing ocra into $(VENV) (once) ..."
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.all: $(VENV)/.core
	@echo "Installing what the tests need (once) ..."
	@$(INSTALL) --editable ".[app,track,hub,ray,datasets,scanpaths,docs,onnx,dev]"
	@touch $@
