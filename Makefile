# The one list of commands: people, the pre-commit hook and CI call the same targets. `make` or `make help` prints them.

# .venv is made from it; 3.10 or newer.
PYTHON ?= python3
# 12 or 13: CUDA kernels by nvcc of that version. none: no CUDA kernels. Empty: as nvcc is found.
CUDA ?= $(FASTOPS_CUDA)
# Empty: two archs, which keep the builds of `make setup` short, and in wheels those of a release.
FASTOPS_CUDA_ARCHS ?=
# The torch in .venv, such as 2.10.0, or newest; empty: the one that pyproject.toml pins.
TORCH ?=
# compute-sanitizer's, and what it watches. Without the allocator's pools a tensor's end is the end of its memory, but
# then torch captures no CUDA graph, as the selftest does.
TOOL ?= memcheck
PROGRAM ?= tools/sanitize.py
# The kernels that are watched, ours and those of the kit's formulas, by parts of their mangled names: torch's take most of the
# time. initcheck has to see what those write.
KERNELS := $(if $(filter initcheck,$(TOOL)),,--kernel-name kernel_substring=fastops --kernel-name kernel_substring=kit_kernel)
# Passed on to the selftest, the benchmark, pytest or info.
ARGS ?=

# The first pip that reads [dependency-groups] is 25.1.
PIP_VERSION := 26.3
BIN := .venv/bin
COMMIT := $(shell git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null)
# pyproject.toml has the image of CUDA 13; that of CUDA 12 differs in its name, and the CPU wheel needs no CUDA.
CIBW_IMAGE := CIBW_MANYLINUX_$(if $(filter aarch64 arm64,$(shell uname -m)),AARCH64,X86_64)_IMAGE
IMAGE_none := manylinux_2_28
IMAGE_12 := quay.io/manylinux_cuda/manylinux_2_28_$(shell uname -m)_cuda12_9
PIP := $(BIN)/python -m pip --disable-pip-version-check
OTHER_TORCH := $(if $(TORCH),$(if $(filter newest,$(TORCH)),torch,torch==$(TORCH)))

SETTINGS := -C 'cmake.define.FASTOPS_CUDA=$(CUDA)' \
  -C 'cmake.define.FASTOPS_CUDA_ARCHS=$(or $(FASTOPS_CUDA_ARCHS),80;90)'
# Folders too, so that a file that comes or goes is seen.
SOURCES := $(shell find CMakeLists.txt cmake cpp cuda)
CXX_FILES := $(filter %.cpp %.h %.cu %.cuh,$(SOURCES) $(shell find tools))

.PHONY: help setup selftest sanitize mutants bench performance test test-all info wheel sdist wheels gates test-wheel \
  test-integrations sdist-check release-check release-files published conda-render conda conda-rehearsal new-op format \
  lint workflows clean
.DEFAULT_GOAL := help

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' Makefile
	@echo 'Settings, as in `make test CUDA=none`: PYTHON, CUDA, FASTOPS_CUDA_ARCHS, TORCH, ARGS.'

setup: build/.installed ## .venv with the pinned tools and an editable build of the tree

selftest: setup ## Compare the operators with float64 on this machine; ARGS="--quick --op relu", ARGS=--help
	$(BIN)/python -m fastops.selftest $(ARGS)

sanitize: setup ## compute-sanitizer on this machine's GPU; TOOL=racecheck, synccheck or initcheck, ARGS="relu softmax"
	@command -v compute-sanitizer >/dev/null || { echo 'compute-sanitizer of the CUDA toolkit must be on PATH' >&2; exit 2; }
	$(if $(filter memcheck.tools/sanitize.py,$(TOOL).$(PROGRAM)),PYTORCH_NO_CUDA_MEMORY_CACHING=1) \
	  compute-sanitizer --tool $(TOOL) $(KERNELS) --error-exitcode 1 $(BIN)/python $(PROGRAM) $(ARGS)

bench: setup ## Time the operators beside PyTorch's; ARGS="--quick --op relu --json result.json", ARGS=--help
	$(BIN)/python -m fastops.bench $(ARGS)

performance: setup ## The docs' pages and pictures of speed from benchmarks/results/*.csv
	$(BIN)/python tools/performance

test: setup ## The tests, over all cores, with a sample of their cases; ARGS="-k layer_norm -x"
	$(BIN)/python -m pytest -n auto $(ARGS)

test-all: setup ## The same with all cases
	$(BIN)/python -m pytest -n auto --all $(ARGS)

mutants: setup ## Plant faults one at a time and see the selftest find them; ARGS="--device cuda --time 500", ARGS=--help
	$(BIN)/python tools/mutants $(ARGS)

info: setup ## What was built, what this machine has, what was chosen and why
	$(BIN)/python -m fastops.info $(ARGS)

wheel: .venv/.dependencies ## A wheel of this tree in dist/; CUDA=13 for fastops-cu13, CUDA=12, CUDA=none
	FASTOPS_CUDA='$(CUDA)' FASTOPS_CUDA_ARCHS='$(FASTOPS_CUDA_ARCHS)' \
	  $(PIP) wheel --no-build-isolation --no-deps --wheel-dir dist -C build-dir=build/wheel .

sdist: .venv/.release ## The source archive in dist/
	rm -f dist/fastops-*.tar.gz
	$(BIN)/python -m build --no-isolation --sdist --outdir dist

wheels: sdist ## The release's wheel in wheelhouse/, built and tested by cibuildwheel; CUDA=13, 12 or none
	FASTOPS_CUDA='$(or $(CUDA),none)' FASTOPS_GIT_COMMIT='$(COMMIT)' \
	  $(CIBW_IMAGE)="$${$(CIBW_IMAGE):-$(IMAGE_$(or $(CUDA),none))}" \
	  $(BIN)/cibuildwheel --platform linux --output-dir wheelhouse dist/fastops-*.tar.gz

gates: .venv/.release ## What WHEELS (default dist/*.whl) must be before anybody may install them; ARGS=--release
	$(BIN)/python tools/gates $(ARGS) $(or $(WHEELS),$(wildcard dist/*.whl))

test-wheel: ## Check WHEEL as its users have it, in an environment of its own; ARGS="--device cuda" for the selftest
	rm -rf build/test-wheel
	$(PYTHON) -m venv build/test-wheel/.venv
	cp -R tests pyproject.toml build/test-wheel
	cd build/test-wheel && $(PIP) install --quiet pip==$(PIP_VERSION)
	cd build/test-wheel && $(PIP) install $(abspath $(wildcard $(WHEEL))) --group test $(or $(OTHER_TORCH),--group torch)
	cd build/test-wheel && $(BIN)/python -m fastops.info
	cd build/test-wheel && $(BIN)/python -m fastops.selftest $(ARGS)
	cd build/test-wheel && $(BIN)/python -m pytest -n auto --all tests

test-integrations: ## The tree, or WHEEL, beside transformers 4 and 5, kernels, PEFT, TRL and others, each in its environment
	$(if $(WHEEL),,rm -f dist/fastops-*.whl)
	$(if $(WHEEL),,$(MAKE) wheel)
	$(MAKE) build/integrations-4 build/integrations-5

build/integrations-%: .FORCE
	rm -rf $@
	$(PYTHON) -m venv $@/.venv
	cp -R tests pyproject.toml $@
	cd $@ && $(PIP) install --quiet pip==$(PIP_VERSION)
	cd $@ && $(PIP) install --quiet $(abspath $(wildcard $(or $(WHEEL),dist/fastops-*.whl))) --group integrations-$*
	cd $@ && $(BIN)/python -m pytest $(ARGS) tests/integrations tests/patching

sdist-check: sdist ## Build the source archive elsewhere and check the operators
	$(BIN)/python tools/release/sdist.py dist/fastops-*.tar.gz

release-check: lint workflows setup conda-render sdist-check ## All of a release that needs no network and no GPU; TAG=v1.2.3
	$(BIN)/python tools/release/tag.py $${TAG:+"$$TAG"}
	$(BIN)/python -m pytest -q -n auto tools/tests
	rm -f dist/fastops-*.whl
	$(MAKE) wheel CUDA=none
	$(MAKE) gates WHEELS='dist/fastops-*.whl'

release-files: ## Sort what the release's builds left in FOLDER; all of it must be there, and nothing else
	$(PYTHON) tools/release/files.py '$(FOLDER)'

published: .venv/.dependencies ## The index serves the files of FOLDER, byte for byte
	$(BIN)/python tools/release/published.py '$(FOLDER)'

conda-render: .venv/.conda ## What conda packages recipe/ makes: their names and requirements
	$(BIN)/python tools/conda render
	$(BIN)/python -m pytest --quiet tools/tests/test_recipe.py

conda: .venv/.conda ## The conda package in build/conda, from conda-forge's packages; CUDA=13, 12 or none
	FASTOPS_GIT_COMMIT='$(COMMIT)' \
	  $(BIN)/python tools/conda build $(or $(CUDA),none) --set 'fastops_cuda_archs=$(FASTOPS_CUDA_ARCHS)'

conda-rehearsal: .venv/.conda ## The same offline from what this machine has, then installed and checked
	FASTOPS_CUDA_ARCHS='$(FASTOPS_CUDA_ARCHS)' FASTOPS_GIT_COMMIT='$(COMMIT)' \
	  $(BIN)/python recipe/rehearsal

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

workflows: .venv/.release ## Check the workflows: their schema, their permissions, what they trust
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema custom.github-workflows-require-timeout .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/zizmor --offline --no-progress --strict-collection --persona pedantic .

clean: ## Remove what was built; .venv stays
	rm -rf build dist wheelhouse .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("fastops needs Python 3.10 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv

# torch and the build tools first: the build runs without isolation, so that it sees this torch and brings no other.
.venv/.dependencies: pyproject.toml .venv/.torch
	$(PIP) install --quiet pip==$(PIP_VERSION)
	$(PIP) install --quiet --group dev
	$(if $(OTHER_TORCH),$(PIP) install --quiet --upgrade $(OTHER_TORCH))
	@touch $@

.venv/.release: .venv/.dependencies
	$(PIP) install --quiet --group release
	@touch $@

.venv/.conda: .venv/.dependencies
	$(PIP) install --quiet --group conda
	@touch $@

build/.installed: .venv/.dependencies build/.settings $(SOURCES)
	$(PIP) install --quiet --no-build-isolation $(SETTINGS) --editable .
	@$(BIN)/python -c 'import fastops; print(fastops.capabilities())'
	@touch $@

# Both are rewritten when they differ from what was asked for last.
.venv/.torch: .FORCE | $(BIN)/python
	@echo '$(TORCH)' | cmp -s - $@ || echo '$(TORCH)' > $@

build/.settings: .FORCE
	@mkdir -p build; printf '%s\n' "$(SETTINGS)" | cmp -s - $@ || printf '%s\n' "$(SETTINGS)" > $@
.PHONY: .FORCE
.FORCE:
