# Two commands a fresh machine needs (python3 >= 3.11 and make): `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint types layers unit bench clean

.venv/base: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

.venv/dev: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch .venv/base $@

demo: .venv/base
	$(BIN)/tokencredit train

test: lint types layers unit

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/basedpyright

layers: .venv/dev
	$(BIN)/lint-imports --no-cache

# One thread per worker: tiny models crawl when two OpenMP threads spin for the same core.
# Oracles run with every annotated axis checked; the rest without, because bad input must meet our own words.
MATHEMATICS := masked kernels shape advantage credit objective batching
comma := ,
empty :=
space := $(empty) $(empty)
SHAPES := $(subst $(space),$(comma),$(addprefix tokencredit.,$(MATHEMATICS))),beartype.beartype
unit: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto tests/oracle --jaxtyping-packages=$(SHAPES)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --ignore tests/oracle

# TRL lives in an environment of its own: it cannot share one with verl, and is never a base dependency.
.venv-trl/ready: pyproject.toml
	$(PYTHON) -m venv .venv-trl
	.venv-trl/bin/python -m pip install --quiet --disable-pip-version-check "torch>=2.6,<2.14" "trl>=1.15,<2"
	.venv-trl/bin/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

bench: .venv/base .venv-trl/ready
	$(BIN)/tokencredit bench speed --trl-python .venv-trl/bin/python

clean:
	rm -rf .venv .venv-trl
