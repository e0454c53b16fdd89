# Two commands on a bare machine with Python 3.11+, pip, a C compiler, make and git:
#
#   make demo    the healthy engine, then the broken one, on the recording of the first case study
#   make zoo     every fault of the fault zoo (ARGS=--quick: a tenth of it)
#   make bench   what all of it takes, against the machine's limits and rivals (ARGS=--quick: a short look)
#   make test    the tests that take seconds each
#
# Both set up .venv on first use and again only when pyproject.toml or constraints.txt change.
# To choose the interpreter: make test PYTHON=python3.13

VENV := .venv
STAMP := $(VENV)/.stamp
BIN := $(VENV)/bin
CASE := case_studies/whisper_buffer_wiring
OUT := out
PYTEST_FLAGS :=
WORKERS := auto

# A file stays in one process, for what its tests share; one thread each, as the processes share the cores. WORKERS=0: all in one.
TESTS = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 4 --dist loadfile

.PHONY: help setup demo zoo bench test test-all lint format clean

help:
	@sed -n 's/^#   //p' Makefile
	@echo 'others: make setup, test-all (with slow tests), lint, format, clean'

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt .ci/venv
	@sh .ci/venv $(VENV) $(PYTHON)
	@touch $@

# The broken plan must be caught: exit code 1, neither 0 (missed) nor 2 and more (not compared).
demo: $(STAMP)
	$(BIN)/firstbad diff --model whisper --audio $(CASE)/clip.wav -o $(OUT)/healthy
	@echo
	$(BIN)/firstbad diff --model whisper --audio $(CASE)/clip.wav --candidate c:$(CASE)/plan.broken.json \
	  -o $(OUT)/broken || test $$? -eq 1
	@echo
	@echo "the story of this bug: $(CASE)/README.md"

# Half an hour a model; goes on where it was stopped. ARGS=--quick: a fixed tenth on the small one, a few minutes.
zoo: $(STAMP)
	$(BIN)/python case_studies/fault_zoo/run.py --workers 2 $(ARGS)

bench: $(STAMP)
	$(BIN)/python tests/bench/bench.py $(ARGS)

test: $(STAMP)
	$(TESTS) -m "not slow" $(PYTEST_FLAGS)

test-all: $(STAMP)
	$(TESTS) $(PYTEST_FLAGS)

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) $(OUT) firstbad-out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find firstbad reference probes reports tests -name __pycache__ -type d -prune -exec rm -rf {} +
