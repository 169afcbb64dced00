# The one list of commands: people, the pre-commit hook and CI call the same targets. `make` or `make help` prints them.

# .venv is made from it; 3.10 or newer.
PYTHON ?= python3
# 12 or 13: CUDA kernels by nvcc of that version. none: no CUDA kernels. Empty: as nvcc is found.
CUDA ?=
# Empty: two archs, which keep the builds of `make setup` short, and in wheels those of a release.
FASTOPS_CUDA_ARCHS ?=
# Passed on to the selftest, pytest or info.
ARGS ?=

# The first pip that reads [dependency-groups] is 25.1.
PIP_VERSION := 26.3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

SETTINGS := -C 'cmake.define.FASTOPS_CUDA=$(CUDA)' \
  -C 'cmake.define.FASTOPS_CUDA_ARCHS=$(or $(FASTOPS_CUDA_ARCHS),80;90)'
# Folders too, so that a file that comes or goes is seen.
SOURCES := $(shell find CMakeLists.txt cmake cpp cuda)
CXX_FILES := $(filter %.cpp %.h %.cu %.cuh,$(SOURCES) $(shell find tools))

.PHONY: help setup selftest test info wheel new-op format lint clean
.DEFAULT_GOAL := help

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile
	@echo 'Settings, as in `make test CUDA=none`: PYTHON, CUDA, FASTOPS_CUDA_ARCHS, ARGS.'

setup: build/.installed ## .venv with the pinned tools and an editable build of the tree

selftest: setup ## Prove the operators on this machine; ARGS="--quick --op relu", ARGS=--help
	$(BIN)/python -m fastops.selftest $(ARGS)

test: setup ## The tests, over all cores; ARGS="-k layer_norm -x"
	$(BIN)/python -m pytest -n auto $(ARGS)

info: setup ## What was built, what this machine has, what was chosen and why
	$(BIN)/python -m fastops.info $(ARGS)

wheel: .venv/.dependencies ## A wheel of this tree in dist/; CUDA=13 for fastops-cu13, CUDA=12, CUDA=none
	FASTOPS_CUDA='$(CUDA)' FASTOPS_CUDA_ARCHS='$(FASTOPS_CUDA_ARCHS)' \
	  $(PIP) wheel --no-build-isolation --no-deps --wheel-dir dist -C build-dir=build/wheel .

new-op: .venv/.dependencies ## The files of a new operator, from a template that passes; NAME=my_op
	$(BIN)/python tools/new_op '$(NAME)'

format: .venv/.dependencies ## Format and fix what can be fixed by itself
	$(BIN)/ruff check --fix --exit-zero
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CXX_FILES)

lint: .venv/.dependencies ## Check format, style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)

clean: ## Remove what was built; .venv stays
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("fastops needs Python 3.10 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv

# torch and the build tools first: the build runs without isolation, so that it sees this torch and brings no other.
.venv/.dependencies: pyproject.toml | $(BIN)/python
	$(PIP) install --quiet pip==$(PIP_VERSION)
	$(PIP) install --quiet --group dev
	@touch $@

build/.installed: .venv/.dependencies build/.settings $(SOURCES)
	$(PIP) install --quiet --no-build-isolation $(SETTINGS) --editable .
	@$(BIN)/python -c 'import fastops; print(fastops.capabilities())'
	@touch $@

# Rewritten when the settings differ from those of the last build.
build/.settings: .FORCE
	@mkdir -p build; printf '%s\n' "$(SETTINGS)" | cmp -s - $@ || printf '%s\n' "$(SETTINGS)" > $@
.PHONY: .FORCE
.FORCE:
