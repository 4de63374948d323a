# Every target sets up what it needs in .venv, once, from a bare Python >= 3.10.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/.stamps
# Says what pip says only if pip fails.
PIP     = quietly() { log=$$(mktemp); "$$@" > $$log 2>&1; code=$$?; [ $$code = 0 ] || cat $$log >&2; rm -f $$log; return $$code; }; \
          quietly $(BIN)/python -m pip install --quiet --disable-pip-version-check
# PyTorch without CUDA, a tenth of the size; where this index cannot be reached, pip's own indices have to do.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
REACHABLE = import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=10)
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)

# ONNX Runtime reports home unless told not to.
export ORT_DISABLE_TELEMETRY := 1
export ORT_TELEMETRY_DISABLED := 1

# The hundreds of processes that tests start read bytecode, even where Python is told not to write it.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test lint format types imports bench conformance cuda-models cuda-lint fuzz replay wheel clean distclean

help:
	@echo "make demo         compile two models, run them, compare with ONNX Runtime, write a report"
	@echo "make test         run the tests            make lint    style        make types   types and import contract"
	@echo "make conformance  run ONNX's backend suite, on the CPU and on the emulated GPU, and write docs/conformance.md"
	@echo "make bench        export five models from PyTorch and compare speed with ONNX Runtime"
	@echo "make cuda-models  compile every benchmark model and the light models for sm_80 and sm_90a"
	@echo "make cuda-lint    read the machine code of the same: spills, fences in loops, narrow accesses"
	@echo "make fuzz         compare every planner with numpy on 2000 random graphs, 500 on the emulated GPU; NNSmith's and open models with ONNX Runtime"
	@echo "make replay BASE=COMMIT   show what differs in plans, launches and kernels from those that a commit makes"
	@echo "make wheel        build the wheel          make clean   remove build outputs (distclean: .venv too)"

demo: $(STAMPS)/dev
	$(BIN)/python -m examples.demo

test: $(STAMPS)/dev
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

lint: $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMPS)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMPS)/dev build/types/tilestitch
	$(BIN)/mypy -p tilestitch
	$(BIN)/mypy --namespace-packages --explicit-package-bases benchmarks

imports: $(STAMPS)/dev build/types/tilestitch
	cd build/types && ../../$(BIN)/lint-imports --no-cache --no-logo --config ../../pyproject.toml

bench: $(STAMPS)/dev $(STAMPS)/bench
	$(BIN)/python -m benchmarks.models
	$(BIN)/python -m benchmarks.cpu

cuda-models: $(STAMPS)/dev $(STAMPS)/bench
	$(BIN)/python -m benchmarks.models
	$(BIN)/python -m benchmarks.cuda_models --processes $(JOBS)

cuda-lint: $(STAMPS)/dev $(STAMPS)/bench
	$(BIN)/python -m benchmarks.models
	$(BIN)/python -m benchmarks.cuda_lint --processes $(JOBS)

fuzz: $(STAMPS)/dev $(STAMPS)/fuzz
	$(BIN)/python -m pytest -q -n $(JOBS) --hypothesis-profile=nightly tests/compiler/test_fuzz.py \
	  tests/compiler/test_open_fuzz.py tests/compiler/test_fuzz_nnsmith.py tests/compiler/test_malformed_models.py tests/runtime/test_mutants.py

conformance: $(STAMPS)/dev
	$(BIN)/python -m tilestitch.compiler.conformance --jobs $(JOBS) --at-least 90 --write docs/conformance.md \
	  --engine tilestitch --engine emulator

BASE ?= HEAD
replay: $(STAMPS)/dev
	$(BIN)/python -m benchmarks.replay $(BASE)

wheel: $(STAMPS)/dev
	rm -rf build/lib build/bdist.*
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

# The tree as it is installed, for tools that do not follow an editable install.
FOLDERS := runtime compiler cost_model passes codegen
build/types/tilestitch: Makefile
	@mkdir -p $@
	@for name in $(FOLDERS) package/__init__.py package/py.typed; do \
	  ln -sfn ../../../$$name $@/$$(basename $$name); done
	@touch $@

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	  { echo "tilestitch needs Python 3.10 or newer as '$(PYTHON)'; install it or say make PYTHON=/path/to/python3"; exit 4; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "Python's venv module is incomplete; install it (Debian and Ubuntu: apt-get install python3-venv)"; exit 4; }
	@echo "setting up $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@touch $@

$(STAMPS)/dev: pyproject.toml setup.py | $(STAMPS)/venv
	@echo "installing tilestitch and its development tools into $(VENV)"
	@$(PIP) -e '.[compiler,cuda-compiler,dev,train]'
	@touch $@

$(STAMPS)/bench: pyproject.toml | $(STAMPS)/dev
	@echo "installing the benchmarks' packages into $(VENV)"
	@index=; $(BIN)/python -c '$(REACHABLE)' $(TORCH_INDEX)/torch/ 2>/dev/null && index='--extra-index-url $(TORCH_INDEX)'; \
	$(PIP) $$index -e '.[bench]'
	@touch $@

$(STAMPS)/fuzz: pyproject.toml | $(STAMPS)/dev
	@echo "installing the generator of models into $(VENV)"
	@index=; $(BIN)/python -c '$(REACHABLE)' $(TORCH_INDEX)/torch/ 2>/dev/null && index='--extra-index-url $(TORCH_INDEX)'; \
	$(PIP) $$index -e '.[fuzz]'
	@touch $@

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info

distclean: clean
	rm -rf $(VENV) benchmarks/models
