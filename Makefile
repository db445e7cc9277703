# csi-fleet: `make help` lists the targets. Needs Python >= 3.11 with venv, and make; everything
# else (uv, packages, control plane, Redis) is installed by the targets themselves.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

UV_VERSION := 0.13.8
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
PY := $(BIN)/python
STAMP := $(VENV)/.synced
LOCK := requirements.lock
# The lock serves every platform and Python from 3.11 on; hashes, and no index address in it.
LOCK_FLAGS := --quiet --universal --generate-hashes --no-emit-index-url --no-header \
  --all-extras --group build --group test --group lint --group docs --python-version 3.11
PACKAGES := csi_client workers watcher
TYPED := $(PACKAGES) tests/support examples
IMAGE ?= csi-fleet:dev
BASE ?= python:3.11-slim-bookworm
SUITES ?= unit integration e2e node monitoring chaos parity

.PHONY: audit shadow sbom image help venv bytecode demo test test-all unit integration e2e monitoring fuzz compose-test node node-test conformance parity chaos mutants bench way check lint types \
  imports spelling lock-check stubs-check proto lock format release fetch clean docs

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): $(LOCK) pyproject.toml
	@echo "preparing $(VENV)"
	@python=$${PYTHON:-}; \
	for candidate in python3 python3.14 python3.13 python3.12 python3.11; do \
	  [ -n "$$python" ] && break; \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	    2>/dev/null; then python=$$candidate; fi; \
	done; \
	[ -n "$$python" ] || { echo "no Python >= 3.11 with venv found (Debian: apt install python3-venv)"; exit 1; }; \
	[ -x $(PY) ] || "$$python" -m venv $(VENV); \
	[ -x $(UV) ] && [ "$$($(UV) --version | cut -d' ' -f2)" = $(UV_VERSION) ] \
	  || $(PY) -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(UV) pip sync --quiet --compile-bytecode --require-hashes $(LOCK)
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

venv: $(STAMP) ## prepare .venv from the lock file

# Tests start hundreds of processes, and each would compile all of it where Python may not keep
# what it compiles (PYTHONDONTWRITEBYTECODE): 1.1 of 1.7 s of CPU.
bytecode: $(STAMP)
	@$(PY) -m compileall -q $(PACKAGES) examples tests/support tests/parity/runner

demo: $(STAMP) ## two drivers, claims becoming Bound, Flower; KUBECONFIG=... for an own cluster, DEMO_EXIT=1 to run once, NODE=1 for pods
	@$(if $(NODE),exec $(PY) -m tests.support.node --demo $(if $(DEMO_EXIT),--exit);) \
	$(PY) -m examples.demo $(if $(filter command line,$(origin KUBECONFIG)),--kubeconfig '$(KUBECONFIG)') \
	  $(if $(DEMO_EXIT),--exit)

test: bytecode ## unit and integration tests and a part of e2e and parity: no root, no Go
	@$(PY) -m tests.support.suites --quick

test-all: bytecode ## all suites: unit, integration, e2e, node, monitoring, short chaos, parity (SUITES="unit e2e" for some)
	@$(PY) -m tests.support.suites $(SUITES)

unit integration e2e monitoring: bytecode ## one suite
	@$(PY) -m tests.support.suites $@

node: $(STAMP) ## a real cluster of one node with csi-fleet in its pods, until Ctrl-C (needs root, Debian)
	@$(PY) -m tests.support.node

node-test: bytecode ## pods mount volumes on that node; the suite `node` of make test-all
	@$(PY) -m tests.support.suites node

conformance: $(STAMP) ## Kubernetes' own storage tests on that node (HOSTPATH=program ONLY=regex SKIP=regex WRITE=1)
	@$(PY) -m tests.support.node.conformance $(if $(HOSTPATH),--driver hostpath --program '$(HOSTPATH)') \
	  $(if $(ONLY),--only '$(ONLY)') $(if $(SKIP),--skip '$(SKIP)') $(if $(WRITE),--write)

fuzz: $(STAMP) ## every reader of Redis meets hostile records, 10,000 cases (CASES=n)
	@FUZZ_CASES=$(or $(CASES),10000) $(PY) -m pytest -q -n 2 --timeout 7200 tests/integration/queue/test_hostile_records.py

compose-test: bytecode ## compose.yaml for real on a Docker engine of its own (needs root, Debian); part of e2e
	@$(PY) -m pytest -q tests/e2e/test_compose.py

chaos: bytecode ## everything dies or moves at random, at length (CHAOS_CLAIMS=500 FRAME_CLAIMS=1000 CHAOS_SEED=n)
	@CHAOS_CLAIMS=$(or $(CHAOS_CLAIMS),500) CHAOS_DELETES=$(or $(CHAOS_DELETES),250) \
	  FRAME_CLAIMS=$(or $(FRAME_CLAIMS),1000) FRAME_FAULTS=$(or $(FRAME_FAULTS),40) \
	  $(PY) -m tests.support.suites chaos

parity: bytecode ## compare with the recorded cases of the Go sidecars (CASES=attacher|resizer|snapshots|data-sources, ONLY=regex, JOBS=n)
	@$(PY) -m tests.support.parity $(if $(ONLY),--only '$(ONLY)') $(if $(CASES),--folder '$(CASES)') $(if $(JOBS),--jobs $(JOBS))

shadow: bytecode ## a shadow beside Go sidecars over the recorded cases (PEER="paths", CASES, ONLY, FROM, OUT=folder, TABLE=1)
	@$(PY) -m tests.support.shadow_parity $(addprefix --peer ,$(PEER)) $(if $(ONLY),--only '$(ONLY)') $(if $(FROM),--from '$(FROM)') $(if $(CASES),--folder '$(CASES)') $(if $(JOBS),--jobs $(JOBS)) $(if $(OUT),--out '$(OUT)') $(if $(TABLE),--table)

mutants: bytecode ## breaks the code at random places; do the tests notice? an hour: COUNT=n SEED=n ONLY=regex JOBS=n AGAIN=report
	@$(PY) -m tests.support.mutants $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only '$(ONLY)') $(if $(JOBS),--jobs $(JOBS)) $(if $(AGAIN),--again '$(AGAIN)')

bench: bytecode ## measure into docs/performance.md: QUICK=1 ONLY=felt PEER=csi-provisioner BASE=checkout ROUNDS=n
	@$(PY) -m tests.bench

way: $(STAMP) ## how many calls, functions and files one claim goes through
	@$(PY) -m tests.bench.way

check: lint types imports spelling lock-check stubs-check docs audit ## everything but the tests
	@echo "check: all good"

audit: $(STAMP) ## known vulnerabilities of what the product needs; offline it says so
	@$(PY) -m tests.support.supply audit

sbom: $(STAMP) ## dist/sbom.cdx.json: what the product is made of (CycloneDX)
	@$(PY) -m tests.support.supply sbom

image: sbom ## the image IMAGE=csi-fleet:dev, its base held by digest, and its bill of materials
	@docker pull --quiet $(BASE) > /dev/null; \
	base=$$(docker image inspect --format '{{index .RepoDigests 0}}' $(BASE)); \
	docker build --build-arg BASE="$$base" --label org.opencontainers.image.base.name="$$base" --tag $(IMAGE) .

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP)
	@$(BIN)/mypy $(TYPED)

imports: $(STAMP)
	@$(BIN)/lint-imports --no-cache

spelling: $(STAMP)
	@$(BIN)/codespell $$(git ls-files)

docs: $(STAMP) ## the pages as a site with a search, in build/site; a broken link or anchor fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file .ci/mkdocs.yml

lock-check: $(STAMP)
	@fresh=$$(mktemp); trap 'rm -f "$$fresh"' EXIT; cp $(LOCK) "$$fresh"; \
	$(UV) pip compile $(LOCK_FLAGS) pyproject.toml --output-file "$$fresh"; \
	diff -u $(LOCK) "$$fresh" || { echo "$(LOCK) is stale: run make lock"; exit 1; }

stubs-check: $(STAMP)
	@$(PY) -m tests.support.generate_stubs --check

proto: $(STAMP) ## regenerate csi_client/_generated
	@$(PY) -m tests.support.generate_stubs

lock: $(STAMP) ## write requirements.lock anew (UPGRADE=1 for newest versions)
	@$(UV) pip compile $(LOCK_FLAGS) $(if $(UPGRADE),--upgrade) pyproject.toml --output-file $(LOCK)

format: $(STAMP) ## let ruff format and fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

release: $(STAMP) ## what people install, into OUT=dist: VERSION=0.1.0 SIGN_KEY=key.pem URL=where (BASE=image DIGEST=sha256:.. TAG=1)
	@$(PY) -m tests.support.release '$(VERSION)' $(if $(OUT),--out '$(OUT)') $(if $(SIGN_KEY),--sign-key '$(SIGN_KEY)') \
	  $(if $(URL),--url '$(URL)') $(if $(filter command line,$(origin BASE)),--base '$(BASE)') $(if $(DIGEST),--digest '$(DIGEST)') $(if $(TAG),--tag)

fetch: $(STAMP) ## prepare the control plane's binaries only
	@$(PY) -m tests.support.controlplane fetch

clean: ## remove .venv and caches in the checkout (~/.cache/csi-fleet stays)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
