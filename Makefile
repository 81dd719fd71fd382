# Two commands a fresh machine needs (python3 >= 3.11 and make): `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint types layers unit browser test-mutants test-engines test-local test-trl test-verl soak bench docs record clean renew-constraints

# Everything made here has the versions of constraints/, which were tested together; `make renew-constraints` chooses the newest.
PIP := -m pip --disable-pip-version-check install --quiet
WITH_dev := ".[dev]"
WITH_trl := ".[trl,peft]" "pytest>=8"
WITH_verl := ".[verl]" "pytest>=8"

.venv/base: pyproject.toml constraints/dev.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP) -c constraints/dev.txt -e .
	touch $@

.venv/dev: pyproject.toml constraints/dev.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP) -c constraints/dev.txt -e $(WITH_dev)
	touch .venv/base $@

demo: .venv/base
	$(BIN)/tokencredit train

test: lint types layers check-house unit browser

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/basedpyright

layers: .venv/dev
	$(BIN)/lint-imports --no-cache

# How the source is arranged: counts beside their targets. `check-house` fails where a count is above its target.
.PHONY: house check-house
house: .venv/dev
	$(BIN)/python scripts/house.py

check-house: .venv/dev
	$(BIN)/python scripts/house.py --check

# One thread per worker: tiny models crawl when two OpenMP threads spin for the same core.
# Oracles and the lab run with every annotated axis checked; the rest without, because bad input must meet our own words.
MATHEMATICS := masked kernels shape advantage credit objective batching diagnose
comma := ,
empty :=
space := $(empty) $(empty)
WITH_SHAPES := tests/oracle tests/lab
REST := $(addprefix --ignore ,$(WITH_SHAPES) tests/browser tests/runs)
SHAPES := $(subst $(space),$(comma),$(addprefix tokencredit.,$(MATHEMATICS))),beartype.beartype
# The sandbox for code that a model wrote: Debian's bubblewrap.
BWRAP ?= $(shell command -v bwrap)
AND_WITHOUT_BWRAP := $(if $(strip $(BWRAP)),,and not bubblewrap)
# One worker more than cores: many tests wait for processes of their own.
WORKERS := $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
unit: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto $(WITH_SHAPES) --jaxtyping-packages=$(SHAPES) -m "not mutants"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(REST) -m "not mutants $(AND_WITHOUT_BWRAP)"
	@$(if $(strip $(BWRAP)),:,echo "sandbox tests were NOT run: no bwrap was found (install Debian's package bubblewrap)")

# Wrong versions of the code, each of which a law, an oracle or a twin must reject.
test-mutants: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto $(WITH_SHAPES) --jaxtyping-packages=$(SHAPES) -m mutants
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto $(REST) -m "mutants $(AND_WITHOUT_BWRAP)"

# The report in a real browser: Debian's chromium, or CHROMIUM=path/to/one.
CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
browser: .venv/dev
ifeq ($(strip $(CHROMIUM)),)
	@echo "browser tests were NOT run: no Chromium was found (install Debian's package chromium, or set CHROMIUM)"
else
	OMP_NUM_THREADS=1 CHROMIUM=$(CHROMIUM) $(BIN)/python -m pytest -n auto tests/browser
endif

# TRL and verl live in environments of their own: they cannot share one, and neither is ever a base dependency.
.venv-%/ready: pyproject.toml constraints/%.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python $(PIP) -c constraints/$*.txt -e $(WITH_$*)
	touch $@

# Our mathematics against the engines' own code, and our adapters inside the engines, on a CPU and without a download.
ALONE := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 TRANSFORMERS_OFFLINE=1 HF_DATASETS_OFFLINE=1
test-engines: test-local test-trl test-verl

# Whole runs of our own trainer: stopped, killed, damaged, resumed, measured; the walk-through of docs/your-model.md.
test-local: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) tests/runs $(if $(AND_WITHOUT_BWRAP),-m "not bubblewrap")

test-trl: .venv-trl/ready
	$(ALONE) .venv-trl/bin/python -m pytest -p no:cacheprovider tests/crosscheck/test_trl.py
	$(ALONE) .venv-trl/bin/python -m pytest -p no:cacheprovider tests/in_trl

test-verl: .venv-verl/ready
	$(ALONE) .venv-verl/bin/python -m pytest -p no:cacheprovider tests/crosscheck/test_verl.py
	$(ALONE) .venv-verl/bin/python -m pytest -p no:cacheprovider tests/in_verl

# The long part of docs/reliability.md: hundreds of kills, thousands of damaged files and fuzzed inputs. About half an hour on two cores.
SOAK := runs/soak
soak: .venv/dev
	mkdir -p $(SOAK)
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m soak.damage --out $(SOAK)/damage.json
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m soak.kills --count 240 --jobs 2 --out $(SOAK)/kills.json
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m fault.fuzz_soak --count 4000 --out $(SOAK)/fuzz.json
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m fault.attack_table

# The tables of README and docs that list methods and recipes.
docs: .venv/dev
	$(BIN)/python scripts/make_docs.py

# The snapshots that tests compare with: every method's properties, and three training steps of every recipe (RECIPES="NAME ...": of these).
record: .venv/dev docs
	$(BIN)/python tests/surface/methods.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/golden/trajectory.py $(RECIPES)

bench: .venv/base .venv-trl/ready
	$(BIN)/tokencredit bench speed --trl-python .venv-trl/bin/python

# torch brings the triton that its own build needs, and a build's mark (+cpu) is not the same everywhere.
renew-constraints: $(addprefix renew-,dev trl verl)
renew-%:
	$(PYTHON) -m venv --clear .venv-renewed-$*
	.venv-renewed-$*/bin/python $(PIP) -e $(WITH_$*)
	.venv-renewed-$*/bin/python -m pip list --format freeze --exclude-editable | grep -vE '^(pip|setuptools|triton)==' | sed 's/+.*//' > constraints/$*.txt
	rm -r .venv-renewed-$*

clean:
	rm -rf .venv .venv-trl .venv-verl
