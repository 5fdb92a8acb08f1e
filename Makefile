# A new clone needs only `make run` and `make test`; both are fast if nothing has changed.

PYTHON ?= python3
IS_NEW := import sys; sys.exit(sys.version_info < (3, 11))
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
TESTS ?= tests
TEST_JOBS ?= 2
PYTEST_ARGS ?=
FUZZ_SECONDS ?= 600
FUZZ_SECONDS_IN_TEST ?= 15
# Only a run of all tests ends with the fuzzer.
WITH_FUZZER ?= $(filter tests,$(TESTS))
STATES ?= 100000
SEED ?=
REPLAY ?=
FUZZ_ARGS ?= --keep --seed $(shell date +%s)
MINUTES ?= 300
CAMPAIGN_ARGS ?=
PYTHONS ?=

# Overrides the environment: otherwise each of the hundreds of servers that tests start would compile
# the broker's Python again, a third of the cost of a start.
export PYTHONDONTWRITEBYTECODE :=

SOURCES := $(shell find broker -name '*.pyx' -o -name '*.pxd' -o -name '*.h')
# Compiled modules with a stub.
STUBBED := $(shell find broker -name '*.pyx' | while read -r f; do \
	test -f "$${f%x}i" && echo "$${f%.pyx}" | tr / .; done)
ASAN_TREE := build/asan/tree
COVERAGE := build/asan/coverage.so
ASAN_TESTS := $(wildcard tests/unit tests/behaviour tests/property tests/golden tests/raw tests/fuzz)
FAST := not slow and not browser

# The original servers and their tools, pinned by tests/originals/*/go.mod. Tests compare with
# the nats-server whose behaviour is matched, benchmarks with the newest; they may be the same.
ORIGINALS := .originals
GO ?= $(shell go version 2>/dev/null | grep -qE 'go1\.(2[6-9]|[3-9][0-9])' && echo go || \
	echo $(CURDIR)/$(BIN)/go)

.DEFAULT_GOAL := help
.PHONY: help dev run test bare browser images originals spark lint types build debug proto asan-tree asan fuzz fuzz-targets \
	campaign powercut sdist wheel deb bench clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The virtual environment: created once, and again when the dependencies change, or if it is of an older
# Python or without pip, as Debian leaves it until python3-venv is installed.
$(VENV)/.installed: pyproject.toml
	@$(PY) -c 'import pip; $(IS_NEW)' 2>/dev/null || $(PYTHON) -c '$(IS_NEW)' || \
	    { echo 'Python 3.11 or newer is needed: make $(MAKECMDGOALS) PYTHON=python3.12' >&2; exit 1; }
	$(PY) -c 'import pip; $(IS_NEW)' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(PY) -m pip install --quiet --upgrade 'pip>=25.1'
	$(PY) -m pip install --quiet --group build --group tour
	@echo 'Compiling. The first time this takes a minute or more.'
	TWINWIRE_BUILD=release $(PY) -m broker._build
	PYTHONWARNINGS=ignore $(PY) -m pip install --quiet --no-build-isolation --config-settings \
	    editable_mode=compat --editable .
	touch $@

# The same with the tools that test and check.
$(VENV)/.tools: $(VENV)/.installed
	@echo 'Installing the tools that test and check into $(VENV).'
	$(PY) -m pip install --quiet --group dev
	touch $@

dev: $(VENV)/.tools  ## install what tests, checks and some benchmarks use

# The compiled modules: rebuilt if a source is newer; Cython finds the modules that changed.
$(VENV)/.built: $(VENV)/.installed broker/_build.py $(SOURCES)
	TWINWIRE_BUILD=release $(PY) -m broker._build
	touch $@

run: $(VENV)/.built  ## start the broker: ./data, loopback, ports 4222 8222 4150 4151 4171 8171
	$(BIN)/twinwire serve

# Test files are distributed among processes in order: the long ones come first. The fuzzer's own
# build is compiled meanwhile, because most tests wait.
test: $(VENV)/.built $(VENV)/.tools  ## run the tests, except slow and browser ones; Spark's need `make spark`
	mkdir -p build
	$(if $(WITH_FUZZER),nice -n 19 $(MAKE) --no-print-directory asan-tree \
	    >build/asan.log 2>&1 & )$(PY) -m pytest -q -m '$(FAST)' \
	    -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS) $(TESTS); \
	    code=$$?; wait; exit $$code
	$(if $(WITH_FUZZER),$(MAKE) --no-print-directory fuzz-targets \
	    FUZZ_SECONDS=$(FUZZ_SECONDS_IN_TEST) FUZZ_ARGS=)

spark: $(VENV)/.installed  ## install PySpark (half a gigabyte) for the pipeline; install Java 17 yourself
	$(PY) -m pip install --quiet --group spark

browser: $(VENV)/.built $(VENV)/.tools  ## run the tests of pages with a real browser (install Chromium yourself)
	$(PY) -m pip install --quiet --group browser
	$(PY) -m pytest -q -m browser $(PYTEST_ARGS) tests/browser

images: $(VENV)/.built $(VENV)/.tools  ## take the images of the documentation (install Chromium yourself)
	$(PY) -m pip install --quiet --group browser
	$(PY) tools/console_images.py

originals: $(patsubst tests/originals/%/go.mod,$(ORIGINALS)/%.made, \
	    $(wildcard tests/originals/*/go.mod))  ## build the original servers for tests and benchmarks

$(ORIGINALS)/%.made: tests/originals/%/go.mod tests/originals/%/go.sum | $(VENV)/.installed
	$(if $(filter go,$(GO)),,test -x $(GO) || $(PY) -m pip install --quiet --group go)
	mkdir -p $(ORIGINALS)
	cd tests/originals/$* && GOFLAGS=-mod=readonly GOTOOLCHAIN=local \
	    GOBIN=$(CURDIR)/$(ORIGINALS)/$(if $(findstring newest,$*),newest,bin) \
	    $(GO) install -trimpath -buildvcs=false -ldflags '-s -w' tool
	touch $@

# As on a machine with only Python, a C compiler and make, without the tests to which that makes no
# difference: see tests/bare.py.
bare: $(VENV)/.built $(VENV)/.tools  ## run the tests that differ without Go, Node, Java and the original servers
	$(PY) tests/bare.py $(MAKE) --no-print-directory test TEST_JOBS=$(TEST_JOBS) \
	    PYTEST_ARGS='$(PYTEST_ARGS)' WITH_FUZZER=

lint: $(VENV)/.tools  ## run ruff, cython-lint, codespell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cython-lint broker tests/support/native
	$(BIN)/codespell

types: $(VENV)/.built $(VENV)/.tools  ## run mypy, and compare the stubs of compiled modules with the modules
	$(BIN)/mypy
	$(if $(STUBBED),$(PY) -m mypy.stubtest --mypy-config-file pyproject.toml --ignore-missing-stub $(STUBBED))

build: $(VENV)/.installed  ## compile in place
	TWINWIRE_BUILD=release $(PY) -m broker._build
	touch $(VENV)/.built

debug: $(VENV)/.installed  ## compile in place with asserts and without optimization
	TWINWIRE_BUILD=debug $(PY) -m broker._build
	rm -f $(VENV)/.built

# Checked in, so that an installation does not need the compiler; a test fails if it is out of date.
proto: $(VENV)/.tools  ## generate stan_pb2.py and .pyi from stan.proto
	$(PY) -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. \
	    broker/protocols/stan/stan.proto

# A second tree, so that the modules in place are not affected. Its objects are kept in build/.
asan-tree: $(VENV)/.tools $(COVERAGE)
	mkdir -p $(ASAN_TREE)
	rm -rf $(addprefix $(ASAN_TREE)/,broker tests tools conf benchmarks docs)
	tar -c --exclude='*.so' --exclude=__pycache__ \
	    $(wildcard broker tests tools conf benchmarks docs pyproject.toml README.md LICENSE Makefile) \
	    | tar -x -C $(ASAN_TREE)
	cd $(ASAN_TREE) && TWINWIRE_BUILD=asan $(CURDIR)/$(PY) -m broker._build \
	    && TWINWIRE_BUILD=asan $(CURDIR)/$(PY) tests/support/native/build.py

# The modules of that tree call it at each block.
$(COVERAGE): tests/fuzz/coverage.c
	mkdir -p $(@D)
	gcc -O2 -Wall -Wextra -shared -fPIC -ftls-model=initial-exec $< -o $@

# CPython keeps some memory until exit and aiohttp's modules are built without the sanitizer: leaks
# are not reported (the fuzzer checks for them itself), everything else ends the test run.
ASAN_ENV = TWINWIRE_BUILD=asan PYTHONMALLOC=malloc UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1:disable_coredump=1 \
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so) \
	    $(CURDIR)/$(COVERAGE)"

asan: asan-tree  ## run unit, property, golden, raw and fuzz tests with the address sanitizer
	cd $(ASAN_TREE) && $(ASAN_ENV) $(CURDIR)/$(PY) -m pytest -q -m '$(FAST)' -o timeout=300 \
	    $(PYTEST_ARGS) $(ASAN_TESTS)

fuzz: fuzz-targets  ## fuzz parsers and recovery for FUZZ_SECONDS (default 600), then new property tests
	HYPOTHESIS=fresh $(PY) -m pytest -q -n $(TEST_JOBS) $(PYTEST_ARGS) tests/property

# On the sanitizer's build; `make test` uses the same inputs each time.
fuzz-targets: asan-tree
	cd $(ASAN_TREE) && $(ASAN_ENV) $(CURDIR)/$(PY) tests/fuzz --seconds $(FUZZ_SECONDS) \
	    --out $(CURDIR)/build/fuzz $(FUZZ_ARGS)

campaign: $(VENV)/.built $(VENV)/.tools  ## run hours of faults: MINUTES=300 SEED=n PARTS=kill,bytes,... (docs/operate/reliability.md)
	$(PY) tests/campaign --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) \
	    $(if $(PARTS),--parts $(PARTS)) $(if $(ERA),--era $(ERA)) $(CAMPAIGN_ARGS)

powercut: $(VENV)/.built $(VENV)/.tools  ## check STATES (default 100000) of disks after power cuts, by SEED; or REPLAY one
	$(PY) tests/powercut $(if $(REPLAY),--replay $(REPLAY), \
	    --states $(STATES) $(if $(SEED),--seed $(SEED)))

sdist: $(VENV)/.installed  ## build dist/*.tar.gz, the source distribution
	$(PY) -m pip install --quiet --group package
	$(PY) tools/wheels.py --sdist-only

wheel: $(VENV)/.installed  ## build dist/*.tar.gz and a manylinux wheel for each Python found, PYTHONS='3.12 3.13'
	$(PY) -m pip install --quiet --group package
	$(PY) tools/wheels.py $(addprefix --python ,$(PYTHONS))

deb: $(VENV)/.installed  ## build dist/*.deb, for the Python of this Debian
	$(PY) -m pip install --quiet --group package
	$(PY) tools/deb.py

bench: $(VENV)/.built originals  ## compare with the original servers
	$(PY) benchmarks/compare.py

clean:  ## remove everything that make created, except the data folder
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis $(VENV) \
	    $(ORIGINALS)
	find broker -name '*.so' -delete
	find $(wildcard broker tests benchmarks) -name __pycache__ -prune -exec rm -rf {} +
