# One environment (.venv), one cargo target directory (./target), one entry for people and for CI.
# Steps leave stamps in .venv/.stamps, so a warm run does nothing twice. Network steps are tried three times.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMPS := $(VENV)/.stamps
RETRY := scripts/retry.sh
NEED := scripts/need.sh
PIP := $(RETRY) $(PY) -m pip install --quiet --disable-pip-version-check --no-input

export CARGO_TARGET_DIR := $(CURDIR)/target
export CARGO_NET_RETRY := 5
export PIP_DISABLE_PIP_VERSION_CHECK := 1

FUZZ_SECONDS ?= 60
PYTEST_ARGS ?=
# One seed for everything that is random in a run. It comes from the commit: every commit tries other examples, and a run
# of one commit can be repeated. SEED=N repeats another run or looks further.
SEED ?= $(shell printf %d "0x$$(git rev-parse --verify --quiet HEAD | cut -c1-7)" 2>/dev/null || echo 0)

# Two at a time; alone what holds a server to the clock or to its share of a core.
TEST_FOLDERS := $(patsubst %/,%,$(wildcard tests/*/))
ALONE := $(filter tests/conformance tests/server,$(TEST_FOLDERS))
# Spark's tests share one session and so one worker: they begin first, the others go on beside them.
SIDE_BY_SIDE := tests/spark $(filter-out tests/spark $(ALONE),$(TEST_FOLDERS))
PYTEST := $(BIN)/pytest --durations=25 --durations-min=5 --headrace-seed $(SEED) --hypothesis-seed $(SEED)

RUST_FILES := $(shell find rust -type f \( -name '*.rs' -o -name Cargo.toml \) -not -path '*/target/*' 2>/dev/null)
CORE_FILES := $(filter rust/core/% rust/python/%,$(RUST_FILES)) Cargo.toml $(wildcard Cargo.lock)
PYTHON_FILES := $(shell find src -type f \( -name '*.py' -o -name '*.pyi' -o -name '*.md' -o -name '*.json' \) 2>/dev/null)

# --- for people ------------------------------------------------------------------------------------

.PHONY: help setup demo test test-all check wheel peers docs soak proof bench-smoke clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: $(STAMPS)/ext ## .venv with the pinned tools and the built extension
	@echo "headrace: $(BIN)/headrace is ready"

demo: need-build ## a server, a client, kill -9 in the middle, and what is left afterwards
	@$(MAKE) -j2 setup $$($(NEED) --has-java && echo $(STAMPS)/spark || true)
	@$(PY) scripts/demo.py

test: need-all ## what continuous integration runs: checks, Rust tests, a little fuzzing, all Python tests but the extended ones
	@echo "headrace: seed $(SEED) (repeat with make test SEED=$(SEED))"
	@$(MAKE) -j3 setup $(STAMPS)/spark peers
	@$(MAKE) -j2 --output-sync lint
	@$(MAKE) test-rust
	@$(MAKE) fuzz-smoke FUZZ_SECONDS=20
	$(PYTEST) -n 2 --dist loadgroup -m "not extended" $(SIDE_BY_SIDE) $(PYTEST_ARGS)
	$(PYTEST) -m "not extended" $(ALONE) $(PYTEST_ARGS)

test-all: test fuzz-smoke bench-smoke ## the same, and the wheel, the soak, more fuzzing, every benchmark once, the proof with fewer messages
	$(PYTEST) -m extended tests $(PYTEST_ARGS)
	$(PY) scripts/spark_proof.py --messages 20000

check: need-build need-rust-tools setup ## linters, types; and as tests: import rules, stubs, sizes, documents
	@$(MAKE) -j3 --output-sync lint check-tree check-documents

wheel: dist/.stamp ## an abi3 wheel in dist/
	@ls dist/*.whl

peers: need-python need-go ## the real servers that tests compare with, pinned, cached outside the tree
	@"$$($(NEED) --python)" scripts/peers.py

docs: setup ## write the generated pages of docs/reference again
	$(PY) scripts/reference.py

soak: setup ## ten minutes of 200 clients, disconnects, kill -9 and restarts; then everything is counted
	$(PY) scripts/soak.py

proof: setup $(STAMPS)/spark peers ## a million messages through Spark while everything is killed in turn; then everything is counted
	$(PY) scripts/spark_proof.py

bench-smoke: setup $(STAMPS)/spark ## every benchmark once, small, to see that it still runs
	$(PY) -m bench --smoke
	$(PY) -m bench.compare --smoke
	$(PY) -m bench.spark --smoke

clean: ## remove .venv and everything built (the peers' cache stays)
	rm -rf $(VENV) target dist build .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	find src -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- parts -----------------------------------------------------------------------------------------

.PHONY: need-python need-build need-rust-tools need-go need-all lint lint-python lint-types lint-rust check-tree check-documents test-rust fuzz-smoke

need-python:
	@$(NEED) python
need-go:
	@$(NEED) go
need-build:
	@$(NEED) python cargo
need-rust-tools:
	@$(NEED) rust-tools
need-all:
	@$(NEED) python cargo rust-tools go java node

lint: lint-types lint-rust lint-python

lint-python:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-types:
	$(BIN)/pyright

lint-rust:
	cargo fmt --all --check
	@# Not --release: maturin sets other variables for PyO3, and each change between the two would compile it again.
	PYO3_PYTHON=$(CURDIR)/$(PY) cargo clippy --workspace --all-targets --quiet -- -D warnings

check-tree:
	$(BIN)/pytest -q tests/tidy

check-documents:
	$(BIN)/pytest -q tests/docs

test-rust:
	PROPTEST_RNG_SEED=$(SEED) cargo test --release --quiet -p headrace-core

fuzz-smoke:
	@if [ -f rust/fuzz/Cargo.toml ]; then \
	    HEADRACE_FUZZ_SEED=$(SEED) HEADRACE_FUZZ_SECONDS=$(FUZZ_SECONDS) cargo run --release --quiet -p headrace-fuzz; \
	else echo "headrace: no fuzz crate in rust/fuzz"; fi

# --- stamps ----------------------------------------------------------------------------------------

$(STAMPS)/venv: | need-python
	@[ -x $(PY) ] || "$$($(NEED) --python)" -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/dev: scripts/requirements/dev.txt $(STAMPS)/venv
	@echo "headrace: installing the pinned tools into $(VENV)"
	@$(PIP) -r $<
	@touch $@

$(STAMPS)/spark: scripts/requirements/spark.txt scripts/requirements/lake.txt $(STAMPS)/dev
	@echo "headrace: installing PySpark (half a gigabyte, some minutes the first time)"
	@$(PIP) -r $< -r scripts/requirements/lake.txt
	@touch $@

$(STAMPS)/ext: $(CORE_FILES) pyproject.toml $(STAMPS)/dev | need-build
	@echo "headrace: building the core"
	@$(RETRY) cargo fetch --quiet
	@PIP_QUIET=1 VIRTUAL_ENV=$(CURDIR)/$(VENV) PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/maturin develop --release --quiet
	@touch $@

dist/.stamp: $(CORE_FILES) $(PYTHON_FILES) pyproject.toml README.md $(STAMPS)/dev | need-build
	@echo "headrace: building the wheel"
	@$(RETRY) cargo fetch --quiet
	@$(PY) scripts/build_wheel.py
	@touch $@
