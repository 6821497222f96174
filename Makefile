# The two commands of the README are `make demo` and `make test`. Both set everything up on the first call.
PYTHON ?= $(shell command -v python3.11 || command -v python3.13 || command -v python3.12 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --disable-pip-version-check --quiet -c constraints.txt
# Three at a time on two cores: many tests wait for processes. A file's tests stay together, for the sake of what they share, the longest first.
PARALLEL ?= -n 3 --dist loadfile --no-loadscope-reorder
PYTHON_GPU ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,python3)
# What tests write lies in memory, where there is enough: a disk's fsync takes milliseconds, and they ask for tens of thousands.
IN_MEMORY := $(shell df -k --output=avail /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 > 4000000 { print "PYTEST_DEBUG_TEMPROOT=/dev/shm" }')
# Hundreds of processes import what is tested: it is compiled once, though the environment says that nothing compiled is kept.
test test-all test-changed mutants soak operations tests-recorded: export PYTHONDONTWRITEBYTECODE :=
export DO_NOT_TRACK := 1
export MLFLOW_DISABLE_TELEMETRY := true

.PHONY: demo test test-all test-changed mutants soak operations tests-recorded recorded gpu check check-infra docs format install dev clean release lock audit \
	images secrets up down backup restore

install: $(VENV)/.installed

dev: $(VENV)/.installed-dev

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "installing Cloze into $(VENV) (the first time takes a few minutes) …"
	@test -x $(BIN)/pip || $(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
		{ echo "Cloze needs Python 3.11 to 3.13, and '$(PYTHON)' is none; name one with \`make $(or $(MAKECMDGOALS),demo) PYTHON=…\`" >&2; exit 2; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(PIP) torch==2.13.0
	@$(PIP) -e ".[data,train,flows]"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing the development tools …"
	@$(PIP) -e ".[dev]"
	@touch $@

demo: $(VENV)/.installed
	@$(BIN)/cloze run demo

# With SHARD=K/N the part K of N, for runners side by side.
test: $(VENV)/.installed-dev
	@$(IN_MEMORY) $(BIN)/python -m pytest tests -m "not soak" $(if $(SHARD),--shard $(SHARD)) $(PARALLEL)

# What `make test` leaves out (tests/README.md): all of it, or the slice SLICE of ten.
test-all: $(VENV)/.installed-dev
	@$(IN_MEMORY) $(BIN)/python -m pytest tests $(if $(SLICE),--slice $(SLICE)/10,-m soak) $(PARALLEL)

# Hundreds of kills at random moments; the table is runs/soak.md.
soak: $(VENV)/.installed-dev
	@$(BIN)/python -m tests.faults.soak

# What of that is the operator's (servers killed, schedules, nights), or with SLICE a third of it.
operations: $(VENV)/.installed-dev
	@$(IN_MEMORY) $(BIN)/python -m pytest -m soak $$(ls tests/operations/test_*.py $(if $(SLICE),| awk 'NR % 3 == $(SLICE) % 3'))

# The seconds of each test, which order them, and the table of what stands where.
tests-recorded: $(VENV)/.installed-dev
	@$(IN_MEMORY) $(BIN)/python -m pytest tests -m "not soak" $(PARALLEL) --record-durations
	@$(BIN)/python -m pytest tests --collect-only -q --write-table >/dev/null

# What tests compare with files of text: options, stages, formats, figures of plans, tables and pages; and the reference. After a change on purpose.
RECORDED := contracts stage_defaults flows.commands.interface flows.shown model.families.formats model.recorded model.train.courses model.train.plan.figures
recorded: $(VENV)/.installed-dev
	@for name in $(RECORDED); do $(BIN)/python -m tests.$$name || exit 1; done
	@$(BIN)/python docs/reference_pages.py
	@git diff --stat -- tests docs

# On a machine with a GPU, in whatever Python holds its torch: what must be equal there, then how fast it is.
gpu:
	@$(PYTHON_GPU) -c "import setup; setup.link_packages()"
	@PYTHONPATH=src $(PYTHON_GPU) -m benchmarks.gpu --minutes 9

# The tests that reach what changed since `main` by imports, nearest first; CHANGED names other files.
CHANGED ?=
test-changed: $(VENV)/.installed-dev
	@$(IN_MEMORY) PYTHONPATH=$(CURDIR)/src:$(CURDIR) $(BIN)/python -m tests.tools.reach $(PARALLEL) $(if $(CHANGED),--changed $(CHANGED))

# N lines of the product with a bug each: does a test see it? PATHS narrows the choice, AGAIN=1 repeats what survived.
N ?= 20
SEED ?= 57
PATHS ?= core pipeline model flows labs
JOBS ?= 1
mutants: $(VENV)/.installed-dev
	@PYTHONPATH=$(CURDIR)/src:$(CURDIR) $(BIN)/python -m tests.tools.mutants --number $(N) --seed $(SEED) --jobs $(JOBS) $(if $(AGAIN),--again) $(PATHS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@rm -rf build/imports && mkdir -p build/imports/cloze && cp -al src/cloze/*.py core pipeline model flows labs build/imports/cloze/
	cd build/imports && PYTHONPATH=. ../../$(BIN)/lint-imports --config ../../pyproject.toml
	@$(MAKE) --no-print-directory docs

# infra/ against schemas, policies and linters, with tools in an environment of their own.
INFRA_TOOLS := build/check-tools
check-infra: $(INFRA_TOOLS)/.installed
	@$(INFRA_TOOLS)/bin/python infra/check.py

build/%-tools/.installed: infra/%-requirements.txt
	@test -x build/$*-tools/bin/python || $(PYTHON) -m venv build/$*-tools
	@build/$*-tools/bin/pip install --disable-pip-version-check --quiet -r $<
	@touch $@

# The documentation site, in build/site; a broken link is an error.
docs: $(VENV)/.installed-dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# dist/ with both distributions, built twice with equal bytes, installed and used with each of PYTHONS; bill of materials, notes.
PYTHONS ?= $(PYTHON)
RELEASE_TOOLS := build/release-tools
release: $(RELEASE_TOOLS)/.installed
	@$(RELEASE_TOOLS)/bin/python infra/release.py $(PYTHONS)

# uv.lock, for `uv sync` with CUDA and without; it asks PyPI and download.pytorch.org.
lock: $(RELEASE_TOOLS)/.installed
	@$(RELEASE_TOOLS)/bin/uv lock

# Known vulnerabilities of the pinned versions; it asks PyPI. A package that PyPI does not know is an error: it was not compared.
audit: $(RELEASE_TOOLS)/.installed
	@$(RELEASE_TOOLS)/bin/pip-audit --strict -r constraints.txt --no-deps --disable-pip

# A team's stack in containers (docs/operations.md). BACKUP is a directory, absolute or below
# infra/; without it BACKUP_DIR of infra/.env counts, else infra/backup.
COMPOSE ?= docker compose
STACK := $(COMPOSE) --project-directory infra -f infra/compose.yaml
BACKUP_TO := $(if $(BACKUP),BACKUP_DIR=$(BACKUP))

images:
	docker build -f infra/images/Containerfile -t cloze:0.1.0 .

secrets:
	@$(PYTHON) infra/make_secrets.py infra/secrets

# Nobody writes to MLflow's database while `migrate` changes it.
up: secrets
	$(STACK) stop mlflow
	$(STACK) up --detach --wait

down:
	$(STACK) down

backup:
	$(BACKUP_TO) $(STACK) run --rm tools python /opt/cloze/admin.py backup /backup

restore:
	$(STACK) down
	$(BACKUP_TO) $(STACK) run --rm tools python /opt/cloze/admin.py restore /backup
	$(MAKE) up

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find core pipeline model flows labs tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
