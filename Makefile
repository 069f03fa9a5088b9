# Two commands for a newcomer: `make demo` and `make test`. Each sets up .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := pyproject.toml $(wildcard plugins/*/pyproject.toml)
# The plugins of the demonstration; the tests install every plugin.
SHOWN := plugins/cuda plugins/numba plugins/triton
PLUGINS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
# Those that offer another library's kernels are installed by who has the library.
PLUGINS := $(filter-out $(shell grep -l '^library = ' plugins/*/pyproject.toml | xargs -r dirname),$(PLUGINS))
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
ON_GPU := cuda cupy triton numba-cuda
WORKERS ?= 2
# Words, records, layers and the repository's shape: tests of how the files are written.
STYLE := $(BIN)/python -m pytest -p no:benchmark -n 0 -q --part=lint tests
GATES := overhead gate modules native
# The compiled call path is built where a C++ compiler and Python's headers are; elsewhere Python's path is tested.
HEADERS = $(wildcard $(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h)
COMPILES = $(and $(shell command -v $(CXX)),$(HEADERS))
# Not every machine meets all of these yet; docs/choosing.md and the ADRs list the exceptions.
AIMS := miss online shapes
# Images of containers set it; each worker and each process of a test would then compile the sources anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all again native native-where-possible native-sanitize native-sanitize-where-changed quick op generated fmt hooks mutations gpu-test sanitize conformance bench aims regression record wheels lint docs clean

help:
	@echo "make demo         set up, accelerate a small model on this machine, then search an architecture"
	@echo "make test         set up, then run the tests; four minutes on two cores"
	@echo "make test-all     the tests that make test leaves out: long samples on interpreters, broken kernels, installed wheels"
	@echo "make again        run the tests that failed once more, one at a time"
	@echo "make native       build the compiled call path; a minute and a half on two cores"
	@echo "make quick        before a commit: lint, format, layers, the tests of the core without the longest: torch.compile, commands, kit, learning; one minute"
	@echo "make op OP=name   the tests and the conformance kit of one operator and its backward operator"
	@echo "make generated    write the types of the operators, the tables of the pages and the refusals of the kernels anew"
	@echo "make fmt          format the code, and apply ruff's fixes"
	@echo "make hooks        install pre-commit hooks, which run the checks of make fmt at every commit"
	@echo "make gpu-test     all tests, on a machine with a CUDA device"
	@echo "make mutations    break every kernel in five ways, and check that the conformance kit detects each"
	@echo "make sanitize     run compute-sanitizer on every CUDA C++ kernel, on a machine with a CUDA device"
	@echo "make conformance  verify every kernel on its samples here, and write build/conformance.md"
	@echo "make bench        benchmarks of calls and of verification, with limits that fail"
	@echo "make aims         benchmarks of first calls, new shapes and learning, with their targets"
	@echo "make regression   compare the CPU kernels' times with the parent commit; fails if one is slower"
	@echo "make record       measure what this machine's GPU needs to be known, and write the file to send; resumable"
	@echo "make wheels       build the wheels of all packages into dist/, with compiled kernels; half an hour on two cores, needs nvcc"
	@echo "make lint         ruff, mypy, import layers; words, records, budgets and the repository's shape"
	@echo "make docs         build the documentation into site/"

demo: $(VENV)/.demo
	$(BIN)/nxcore demo
	rm -rf build/search
	$(BIN)/nxcore search --data digits --preset tiny --output build/search

test: $(VENV)/.test native-where-possible
	$(BIN)/python -m pytest -p no:benchmark -n $(WORKERS) --dist worksteal --part=first

test-all: $(VENV)/.test native-where-possible native-sanitize-where-changed
	$(BIN)/python -m pytest -p no:benchmark -n $(WORKERS) --dist worksteal --part=rest

again: $(VENV)/.test
	$(BIN)/python -m pytest -p no:benchmark -n 0 --last-failed --last-failed-no-failures=none

native: $(VENV)/.native

native-where-possible: $(VENV)/.demo
	@$(if $(COMPILES),$(MAKE) --no-print-directory native || echo "nxcore-native is left out: make native fails",echo "nxcore-native is left out: there is no C++ compiler, or no Python.h")

# The extension anew with sanitizers, in a folder of its own, and all tests of the compiled path once.
native-sanitize: $(VENV)/.test native-where-possible
	@$(if $(COMPILES),$(BIN)/python native/sanitize.py -n $(WORKERS) --dist worksteal,echo "nothing to sanitize: nxcore-native is left out")

native-sanitize-where-changed: $(VENV)/.test native-where-possible
	@if git diff --quiet HEAD^ -- native 2>/dev/null; then echo "nothing of native/ differs from HEAD^: make native-sanitize tests it all the same"; \
	else $(MAKE) --no-print-directory native-sanitize; fi

quick: $(VENV)/.test $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(STYLE)
	$(BIN)/python -m pytest -p no:benchmark -n $(WORKERS) -q --part=first tests/null $(addprefix --ignore=tests/null/,interop cli bench testing choose/learn observe offline call/test_leaks.py)

op: $(VENV)/.test
	@test -n "$(OP)" || { echo "name an operator: make op OP=entropy"; exit 2; }
	$(BIN)/python -m pytest -p no:benchmark -n $(WORKERS) -q --op=$(OP)

generated: $(VENV)/.test $(VENV)/.lint
	$(BIN)/nxcore ops --stub > nxcore/ops/__init__.pyi
	$(BIN)/ruff format --quiet nxcore/ops/__init__.pyi
	$(BIN)/python docs/tables.py
	$(BIN)/python -m pytest -p no:benchmark -n $(WORKERS) -q --nxcore-write-declines nxcore/testing

fmt: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

hooks: $(VENV)/.lint
	$(BIN)/pre-commit install

mutations: $(VENV)/.test
	NXCORE_TEST_MUTATIONS=all $(BIN)/python -m pytest -p no:benchmark -n $(WORKERS) tests/hostile/test_mutations.py

gpu-test: $(VENV)/.test
	$(BIN)/python -m pytest -p no:benchmark -n $(WORKERS) $(addprefix --nxcore-require=,$(ON_GPU))
	$(BIN)/python -m pytest benchmarks/test_overhead.py benchmarks/test_miss.py benchmarks/test_gate.py

sanitize: $(VENV)/.test
	for tool in memcheck racecheck initcheck; do \
	  compute-sanitizer --tool $$tool --error-exitcode 1 $(BIN)/python benchmarks/sanitize.py || exit 1; done

conformance: $(VENV)/.test
	$(BIN)/python -m pytest -p no:benchmark -n $(WORKERS) -q --nxcore-report=build/conformance.json nxcore/testing; \
	  status=$$?; $(BIN)/python benchmarks/conformance.py build/conformance.json build/conformance.md && exit $$status

bench: $(VENV)/.test native-where-possible
	$(BIN)/python -m pytest $(addprefix benchmarks/test_,$(addsuffix .py,$(GATES)))

aims: $(VENV)/.test
	$(BIN)/python -m pytest $(addprefix benchmarks/test_,$(addsuffix .py,$(AIMS)))

regression: $(VENV)/.test
	$(BIN)/python benchmarks/regression.py

record: $(VENV)/.test
	$(BIN)/python benchmarks/record.py

wheels: $(VENV)/.test $(VENV)/.wheels
	$(BIN)/python plugins/wheels.py --output dist

lint: $(VENV)/.test $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/types/calls.py
	$(BIN)/lint-imports
	$(STYLE)

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) build dist site native/build native/src/nxcore_native/*.so

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nxcore needs Python 3.11 or later, got " + sys.version.split()[0] + "; try: make PYTHON=python3.12 demo")'
	$(PYTHON) -m venv $(VENV)

# setup.py imports torch, so it is built in this environment.
$(VENV)/.native: $(VENV)/.demo $(wildcard native/csrc/* native/*.py native/pyproject.toml)
	$(PIP) 'setuptools>=77' ninja
	$(PIP) --no-build-isolation --editable native
	@touch $@

# One stamp an extra, so that nothing is installed twice and nothing before it is needed.
$(VENV)/.demo: $(BIN)/python $(PACKAGES) constraints.txt
	$(PIP) --editable '.[demo]' $(addprefix --editable ,$(SHOWN))
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP) --editable '.[test]' $(addprefix --editable ,$(PLUGINS))
	@touch $@

$(VENV)/.lint $(VENV)/.docs $(VENV)/.wheels: $(VENV)/.%: $(VENV)/.demo
	$(PIP) --editable '.[$*]'
	@touch $@
