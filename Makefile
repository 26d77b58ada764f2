# Every target fills .venv first, if it is missing or older than what it is made from.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check install -qq --constraint constraints.txt
READY := $(VENV)/.ready
TORCH := torch==2.13.0

# Two processes are the fastest on two cores, and tests of the node cache start their own.
PYTEST := $(RUN) -m pytest --numprocesses 2

.PHONY: demo test test-all soak lint format bench venv clean
.DEFAULT_GOAL := test

demo: $(READY)                 ## Write, stream, train, interrupt, resume: the whole library in a minute
	$(VENV)/bin/streaming demo --out demo --overwrite

test: $(READY)                 ## All tests but the slow ones
	$(PYTEST) -m "not slow"

test-all: $(READY)             ## All tests
	$(PYTEST)

soak: $(READY)                 ## Ten minutes of kills, full disks and damage on one cache
	$(RUN) -W ignore regression/soak/run.py

lint: $(READY)                 ## Form, types
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

format: $(READY)               ## Let ruff put right what it can
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

bench: $(READY)                ## Speed beside other libraries: of .peers, or `make bench PEERS=NAME=VENV`
	$(RUN) benchmarks/samples/bench.py \
		$(or $(foreach peer,$(PEER) $(PEERS),--peer $(peer)),--install .peers)

venv: $(READY)

clean:                         ## Remove what the other targets made; .venv and .peers stay
	rm -rf demo bench build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and alone: a build of it that pip knows of (say, one for this machine's GPU or
# for the CPU only) must be in place before anything else could bring another one in.
$(READY): pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one: make PYTHON=python3.11")'
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@echo "Filling $(VENV) (once; torch is large) ..."
	@$(PIP) --upgrade pip
	@$(PIP) $(TORCH)
	@$(PIP) --group test --group lint --editable ".[torch,image-fast,video-av,bfloat16,parquet,delta,lance,cli]"
	@touch $@
