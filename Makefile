# Main targets: `make run` and `make test`. Both install what they need first, with uv if it is on
# the PATH. With `make run` active, `make model` in another terminal serves a small real model.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
# `make run` installs the first set of packages, all other targets both.
RUN_STAMP := $(VENV)/.installed-run
DEV_STAMP := $(VENV)/.installed-dev
# Peers with conflicting requirements: each set has a lock file and a virtualenv.
PEERS  := field saq arq
# The oldest (JetPack 6) and the newest supported Python; names or paths of interpreters.
PYTHONS ?= python3.10 python3.13
# Bytecode is kept: without it, pytest rewrites the assertions of every module in each run.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup run model model-install test test-all coverage test-system test-topologies test-browser test-aarch64 test-pythons newer-servers client-generators screenshots recording lint docs docs-site sync-client bench bench-peers chaos mutants clean lock wheelhouse

# The packages of all features, and the tools of tests, benchmarks and checks.
setup: $(DEV_STAMP)

# Gateway, workers and a private Redis. `make run` fails at once where no server can be found.
run: SETUP_OPTIONS := --need-redis
run: $(RUN_STAMP)
	@$(PY) -m sluice up $(ARGS)

$(RUN_STAMP): requirements-run.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Sluice needs Python 3.10 or newer; set PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -m tools.setup $(VENV) run $(SETUP_OPTIONS)
	@touch $@

$(DEV_STAMP): requirements.lock $(RUN_STAMP)
	@$(PYTHON) -m tools.setup $(VENV) dev
	@touch $@

# Serves a small real model until Ctrl-C; `make run` detects it. Offline after the first time.
model: model-install
	@$(PY) -m sluice model serve $(ARGS)

# numpy is for embeddings.
model-install: $(RUN_STAMP)
	@$(PY) -c 'import numpy' 2>/dev/null || $(PYTHON) -m tools.setup $(VENV) dev --only numpy \
	  $(if $(WHEELHOUSE),--wheelhouse $(WHEELHOUSE))
	@$(PY) -m sluice model install $(if $(WHEELHOUSE),--wheelhouse $(WHEELHOUSE))

# The fast tier: fakeredis, the embedded Redis and a smoke test of each process; under four minutes.
# For example ARGS="--durations=20"
test: setup
	@$(PY) -m tests.interop.install
	@$(PY) -m pytest -n 3 --dist loadgroup $(ARGS)

# The fast and the slow tier on every server. TIER=slow leaves out what `make test` runs.
TIER ?= all
test-all: setup newer-servers
	@$(PY) -m tests.interop.install
	@$(PY) -m pytest --tier $(TIER) -n 4 --dist loadgroup $(ARGS)

# Line and branch coverage per package, of the fast tier or of ARGS="--tier all". Code that runs only
# in child processes is not measured.
coverage: setup
	@$(PY) -m pytest -q -n 3 --dist loadgroup --cov-branch --cov-report=json:.coverage.json \
	  $(addprefix --cov=,common gateway worker sluice ops deploy) $(ARGS); status=$$?; \
	  $(PY) -m tools.coverage_table .coverage.json; exit $$status

# Boots a real systemd and installs Sluice in it. Needs root, systemd-nspawn and debootstrap.
test-system: setup
	@$(PY) -m tests.system
	@$(PY) -m pytest -m system tests/system $(ARGS)

# Conformance tests, and real processes under load, on a Sentinel set and a six-node Cluster.
test-topologies: setup
	@TEST_TOPOLOGIES=1 $(PY) -m pytest -m topology -n 2 --dist loadfile \
	  tests/common tests/worker/execution/test_*.py tests/worker/monitoring \
	  tests/worker/queue tests/worker/handlers/test_echo.py tests/worker/test_*.py tests/process/topologies tests/topologies $(ARGS)

# Set-up, `make run`, the model and smoke tests in an emulated aarch64 Debian. Needs root.
test-aarch64: setup
	@$(PY) -m tests.aarch64

# Sets up a virtualenv for each of PYTHONS and runs the unit tests there.
test-pythons:
	@$(PYTHON) -m tests.pythons $(PYTHONS)

# Dashboard tests in the installed Chromium, for example with ARGS="-k playground".
test-browser: setup
	@$(PY) -m tests.interop.install
	@$(PY) -m pytest -m browser -n 2 --dist loadfile tests/browser $(ARGS)

# Redis 8.6 and Valkey 9.1 for the tests, from Debian's archive; kept in the user's cache directory.
newer-servers: setup
	@$(PY) -m tests.support.newer_servers

# Generators of API clients, for the tests in tests/interop/clients; in a separate virtualenv.
client-generators: .clients-venv/.installed

.clients-venv/.installed: tests/interop/clients/requirements.lock
	@test -x .clients-venv/bin/python || $(PYTHON) -m venv .clients-venv
	@.clients-venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

# Screenshots for the docs, light and dark.
screenshots: setup
	@$(PY) -m tests.browser.screenshots docs/screenshots

# Records a terminal session as an animated SVG, on port 8080 or PORT.
recording: setup
	@$(PY) -m tools.recording docs/screenshots/session.svg

lint: setup
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

# Generates docs/api.md from the OpenAPI document.
docs: setup
	@$(PY) -m sluice.gateway.http.openapi.reference > docs/api.md.new
	@mv docs/api.md.new docs/api.md

# Builds build/site, the documentation as a searchable site. Warnings, such as broken links, are errors.
docs-site: .docs-venv/.installed
	@NO_MKDOCS_2_WARNING=1 .docs-venv/bin/python -m tools.docs

.docs-venv/.installed: tools/docs/requirements.lock
	@test -x .docs-venv/bin/python || $(PYTHON) -m venv .docs-venv
	@.docs-venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

.PHONY: dist sbom
# Wheel, source distribution and SBOM in dist/, from the files that git tracks. Equal commits give
# identical files. Without network access.
dist: setup
	@$(PY) -m tools.distribution dist

# The packages of deploy/requirements.lock with versions, hashes and licences, in CycloneDX JSON.
sbom: setup
	@$(PY) -m tools.sbom dist

# The metadata of the editable package has the version.
$(RUN_STAMP): common/version.py

# Generates sluice/sync from sluice/aio.
sync-client: setup
	@$(PY) tools/generate_sync_client.py

bench: setup
	@$(PY) -m bench

# Compares Sluice with other job queues; about twelve minutes. ARGS="--quick", ARGS="--only sluice,saq"
bench-peers: setup $(PEERS:%=.peers-venv/%/.installed)
	@$(PY) -m tests.interop.install
	@$(PY) -m bench.peers $(ARGS)

# Each set of peers has its own virtualenv, separate from Sluice's.
.peers-venv/%/.installed: bench/peers/requirements/%.lock
	@echo "installing peers: $*"
	@test -x .peers-venv/$*/bin/python || $(PYTHON) -m venv .peers-venv/$*
	@.peers-venv/$*/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

# Fault injection, about three minutes. ARGS="--quick", ARGS="--seed 5", ARGS="--on cluster"
chaos: setup
	@$(PY) -m chaos $(ARGS)

# Mutation testing: small changes of the product code that tests must detect.
# ARGS="--sample 120 --seed 1", ARGS="--help"
mutants: setup .mutants-venv/.installed
	@.mutants-venv/bin/python -m tools.mutants $(ARGS)

.mutants-venv/.installed: tools/mutants/requirements.lock
	@test -x .mutants-venv/bin/python || $(PYTHON) -m venv .mutants-venv
	@.mutants-venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

# Wheels for a host without internet access. For another platform: PLATFORM=aarch64
# PYTHON_VERSION=3.10. With the model's wheels: MODEL=1
wheelhouse: setup
	@$(PY) -m deploy.installer.wheelhouse wheelhouse \
	  $(if $(PLATFORM),--machine $(PLATFORM)) \
	  $(if $(MODEL),--with-model) \
	  $(if $(PYTHON_VERSION),--python-version $(PYTHON_VERSION))

LOCK_OPTIONS := --universal --python-version 3.10 --generate-hashes --no-emit-index-url --no-header --quiet
lock:
	@$(PY) -m pip install --quiet uv
	@$(VENV)/bin/uv pip compile pyproject.toml --extra dev --group build $(LOCK_OPTIONS) \
	  --emit-build-options -o requirements.lock
	@$(VENV)/bin/uv pip compile pyproject.toml --extra server --extra embedded --group build \
	  $(LOCK_OPTIONS) --no-annotate --constraint requirements.lock -o requirements-run.lock
	@$(VENV)/bin/uv pip compile pyproject.toml --extra server --extra rag --extra bullmq --extra images --extra s3 \
	  $(LOCK_OPTIONS) --no-annotate --constraint requirements.lock -o deploy/requirements.lock
	@echo hatchling | $(VENV)/bin/uv pip compile - \
	  $(LOCK_OPTIONS) --no-annotate --constraint requirements.lock -o deploy/build.lock
	@for set in $(PEERS); do \
	  $(VENV)/bin/uv pip compile bench/peers/requirements/$$set.in --universal --python-version 3.10 \
	    --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet --upgrade \
	    -o bench/peers/requirements/$$set.lock || exit 1; done
	@$(VENV)/bin/uv pip compile tools/mutants/requirements.in --universal --python-version 3.10 \
	  --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet --upgrade \
	  -o tools/mutants/requirements.lock
	@$(VENV)/bin/uv pip compile tools/docs/requirements.in --universal --python-version 3.10 \
	  --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet --upgrade \
	  -o tools/docs/requirements.lock
	@$(VENV)/bin/uv pip compile tests/interop/clients/requirements.in --universal --python-version 3.10 \
	  --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet --upgrade \
	  -o tests/interop/clients/requirements.lock

clean:
	@rm -rf $(VENV) .peers-venv .pythons-venv .mutants-venv .docs-venv .clients-venv .sluice build dist .pytest_cache .mypy_cache .ruff_cache
