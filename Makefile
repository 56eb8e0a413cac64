# What people run and what CI calls. Every target works on a fresh machine: it makes `.venv` first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.autoshard-installed
# The version tested on this machine. Installed first and alone, so that nothing pulls another build of torch in.
TORCH ?= torch==2.13.0
JOBS ?= 2

DEMO_MODEL ?= mixtral-8x7b
DEMO_CLUSTER ?= H100x64
DEMO_CONTEXT ?= 16384
DEMO_TPOT_MS ?= 20

.PHONY: help install demo test lint types check bench bench-fidelity paper paper-full search search-seconds gpu-check wheel format clean

help:
	@echo "targets: demo test lint types check bench bench-fidelity paper paper-full search search-seconds gpu-check wheel format clean"

$(STAMP): pyproject.toml setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .[dev]
	touch $@

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/autoshard plan $(DEMO_MODEL) --cluster $(DEMO_CLUSTER) --phase decode --context $(DEMO_CONTEXT) \
	  --tpot-ms $(DEMO_TPOT_MS) -o plan.json
	$(BIN)/autoshard validate plan.json --nproc 4

test: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -q

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy
	$(BIN)/mypy models

check: lint types test

bench: $(STAMP)
	set -e; for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file; done

# The paper's study on a declared subset of points (20), and `paper-full` on 160, which takes a night. Both are
# resumable, and run again what other prices or code have made stale.
paper: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .[paper]
	$(BIN)/python -m benchmarks.paper.run --jobs $(JOBS)
	$(BIN)/python -m benchmarks.paper.page

# Every search on every model by name; adds to what docs/results/search.jsonl has.
search: $(STAMP)
	mkdir -p build
	test -f build/catalogue.jsonl || cp docs/results/search.jsonl build/catalogue.jsonl
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .[paper]
	$(BIN)/python -m benchmarks.paper.run --set catalogue --jobs $(JOBS) --out build/catalogue.jsonl
	$(BIN)/python -m benchmarks.paper.search_page build/catalogue.jsonl

paper-full: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .[paper]
	$(BIN)/python -m benchmarks.paper.run --jobs $(JOBS) --set full --out build/paper-full.jsonl
	$(BIN)/python -m benchmarks.paper.page build/paper-full.jsonl --out docs/results/paper-full.md

# CPU seconds of exact and rl on every model by name, at 64 and at 24,576 GPUs.
search-seconds: $(STAMP)
	$(BIN)/python -m benchmarks.search_seconds --page docs/results/search-seconds.md

# On a machine with CUDA, minutes: its own constants, as a cluster file for --cluster; and every fused op of one rank of
# a plan at its full-size local shapes, measured beside predicted (nccl ranks too where there are 4 GPUs).
gpu-check: $(STAMP)
	$(BIN)/autoshard calibrate measure --device cuda -o measured.yaml
	$(BIN)/autoshard plan $(DEMO_MODEL) --cluster H100x8 --fix tp=8,ep=8 --search exact -o gpu-plan.json
	$(BIN)/autoshard validate gpu-plan.json --device cuda

# Errors of the cost model on rows that it was not fitted to; FULL=DIR reads full tables.
bench-fidelity: $(STAMP)
	$(BIN)/python benchmarks/fidelity.py $(if $(FULL),--full $(FULL))

wheel: $(STAMP)
	rm -rf build
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	rm -rf build

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis plan.json gpu-plan.json
