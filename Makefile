# All targets run in a virtual environment that they create.
# Paths are relative, so a checkout in a folder with a space in its name works.
PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
ARGS   ?=
COVERAGE ?=
BESIDE ?= 1
MINUTES ?= 30
REAL   ?= --faults 60
# Where it is set, each process of the tests compiles all that it imports, and pytest rewrites all
# assertions again: three quarters of the time of a collection.
unexport PYTHONDONTWRITEBYTECODE
# Versions of the environments; a Python without a lock file gets what pyproject.toml allows.
LOCKS  := $(wildcard requirements/*.txt)

# Least coverage in percent, lines and branches together, for `make coverage`: the measured values
# (96.98 and 97.33 on Python 3.11), rounded down. Child processes are not measured, such as those of
# e2e tests and the pickers that some unit tests start.
FLOOR_ext_proc   := 96
FLOOR_xds_server := 97

# Says at once, in one sentence, that pip would search in vain: before an environment is made.
CHECK  := $(PYTHON) -I tidegate/stack/machine.py demo

.PHONY: help demo test cpu cpu-record soak chaos test-all test-engines test-kubernetes test-rules coverage check lint format protos manifests docs bench compiled test-compiled dist lock clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.demo: pyproject.toml $(LOCKS)
	@$(CHECK) "make $(firstword $(MAKECMDGOALS))"
	$(PYTHON) -m venv $(VENV)
	$(PY) -m tools.environment demo
	@touch $(VENV)/.demo

$(VENV)/.dev: pyproject.toml $(LOCKS)
	@$(CHECK) "make $(firstword $(MAKECMDGOALS))"
	$(PYTHON) -m venv $(VENV)
	$(PY) -m tools.environment demo dev
	@touch $(VENV)/.demo $(VENV)/.dev

$(VENV)/.bench: pyproject.toml $(LOCKS)
	@$(CHECK) "make $(firstword $(MAKECMDGOALS))"
	$(PYTHON) -m venv $(VENV)
	$(PY) -m tools.environment demo bench
	@touch $(VENV)/.demo $(VENV)/.bench

$(VENV)/.docs: pyproject.toml $(LOCKS)
	$(PYTHON) -m venv $(VENV)
	$(PY) -m tools.environment docs
	@touch $(VENV)/.docs

demo: $(VENV)/.demo ## run the whole system on this machine (ARGS="--replicas 3 --exit")
	$(VENV)/bin/tidegate demo $(ARGS)

# COVERAGE=1 measures the branch coverage of unit and contract tests on the way, as CI does;
# BESIDE=0 runs the layers one after another, and shows pytest's output as it comes.
test: $(VENV)/.dev ## run all tests, with real Envoy and Triton (ARGS="tests/unit/ext_proc -k lease" runs a part)
	$(PY) -m tools.layers $(if $(strip $(COVERAGE)),--coverage) $(if $(filter 0,$(BESIDE)),--in-turn) $(ARGS)

cpu: $(VENV)/.dev ## fail if the last `make test` took 10 % more CPU time than results/cpu.json says
	$(PY) -m tools.layers --hold

cpu-record: $(VENV)/.dev ## take the CPU time of the last `make test` as the new record
	$(PY) -m tools.layers --renew

soak: $(VENV)/.dev ## long forms of tests, with seeds of their own (MINUTES=30 ARGS="--only storm,churn")
	$(PY) -m tools.suites soak --minutes $(MINUTES) $(ARGS)

chaos: $(VENV)/.dev ## run schedules of faults: real processes (REAL="--faults 500 --seed 7"), then simulated ones (MINUTES=30 ARGS="--seed 7")
	PYTHONPATH=tests:. $(PY) -m support.chaos.real $(REAL) || test $$? -eq 2
	PYTHONPATH=tests:. $(PY) -m support.chaos.control
	PYTHONPATH=tests:. $(PY) -m support.chaos --minutes $(MINUTES) $(ARGS)

test-all: $(VENV)/.dev ## every layer and every suite on request; says what could not run (ARGS="--only rules")
	$(PY) -m tools.suites all $(ARGS)

test-engines: $(VENV)/.dev ## run the tests with real vLLM engines on the CPU; installs 6 GB once (ARGS="-k ids")
	TIDEGATE_ENGINES=1 $(PY) -m pytest -p no:randomly -rP tests/engines $(ARGS)

test-kubernetes: $(VENV)/.dev ## run the tests with a real Kubernetes API server; builds it once, with Go (ARGS="-k token")
	TIDEGATE_KUBERNETES=1 $(PY) -m pytest -p no:randomly -rP tests/kubernetes $(ARGS)

test-rules: $(VENV)/.dev ## run rules, dashboards and incidents with a real Prometheus; gets it once (ARGS="-k disk")
	TIDEGATE_RULES=1 $(PY) -m pytest -p no:randomly -rP tests/monitoring $(ARGS)

coverage: $(VENV)/.dev ## check the branch coverage that `make test COVERAGE=1` measured against its floors
	$(PY) -m coverage combine -q --keep build/layers/*.coverage
	$(PY) -m coverage report --skip-covered --include='ext_proc/*' --fail-under=$(FLOOR_ext_proc)
	$(PY) -m coverage report --skip-covered --include='xds_server/*' --fail-under=$(FLOOR_xds_server)

check: $(VENV)/.dev ## check format, lint, types, imports, layout, test ids, locks, generated code, cost of a request
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m pytest -q tests/unit/test_architecture.py tests/unit/test_layout.py tests/unit/tools tests/contract/tools
	$(PY) -m tools.lock_check
	$(PY) tests/support/collection.py
	$(PY) -m tidegate_api.generate --check
	$(PY) bench/cost/guard.py

format: $(VENV)/.dev ## format and apply safe fixes
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

protos: $(VENV)/.dev ## regenerate the committed protobuf code
	$(PY) -m tidegate_api.generate

manifests: $(VENV)/.dev ## render deploy/kubernetes from the chart deploy/chart; builds Helm once, with Go
	PYTHONPATH=tests:. $(PY) -m kubernetes.chart

docs: $(VENV)/.docs ## build the documentation into build/docs; warnings are errors
	$(PY) docs/generate --check
	$(PY) -m sphinx -W --keep-going -n -b html docs build/docs
	$(PY) -m tools.testing.site build/docs

bench: $(VENV)/.bench ## measure Tidegate and other routers, short form (ARGS="fleet --full")
	$(VENV)/bin/tidegate bench $(ARGS)

compiled: $(VENV)/.demo ## install with a compiled picker into build/compiled; needs a C compiler
	rm -rf build/compiled
	TIDEGATE_COMPILE=1 $(PY) -m pip install -q --no-deps --target build/compiled .

test-compiled: $(VENV)/.dev compiled ## run the picker's tests against build/compiled
	PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/build/compiled:$(CURDIR) TIDEGATE_COMPILED=1 $(PY) -m pytest -q \
		tests/unit/ext_proc tests/unit/tools/test_compiling.py tests/contract tests/fuzz \
		--ignore=tests/contract/tools $(ARGS)

dist: ## sdist and wheels, pure and compiled, each tried (PYTHONS="python3.11 python3.12")
	$(PYTHON) -m tools.dist $(PYTHONS)

lock: ## write the lock files anew from pyproject.toml (ARGS=--upgrade takes newer versions)
	$(PYTHON) -m tools.locks $(ARGS)

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .bench .mypy_cache .ruff_cache .pytest_cache .coverage
