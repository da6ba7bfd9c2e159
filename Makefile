# The commands of this project; CI and CONTRIBUTING.md use the same ones.
#   make demo   everything, on real data              make test   the tests
#   make help   every target

SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
BUNDLE ?= bundles/g2p-cmudict-small

# The runtime follows the machine: CUDA's where an NVIDIA driver answers, else the CPU's; never both.
ACCELERATOR ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)

# Where pip finds a CPU build of torch, if not on its usual index: make demo TORCH_INDEX=URL
TORCH_INDEX ?=
# Python compiles the modules that are used when it imports them; compiling all takes a third of the installation.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test test-slow test-cluster test-processors reliability bench bench-peers docs lint types format protos check-protos constraints clean audit locks dist image docker-lint workflow-lint

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

setup: $(VENV)/.installed-$(ACCELERATOR) ## Make .venv and install everything into it

$(VENV)/.installed-$(ACCELERATOR): pyproject.toml setup.py client/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "setup: $(PYTHON) is older than Python 3.11: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.11" >&2; exit 2; }
	@echo "setup: installing into $(VENV) ($(ACCELERATOR)); a few minutes the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "setup: no virtual environment could be made; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 2; }
	@# The two onnxruntime wheels install the same module, and so do our distributions under their former names.
	@$(BIN)/python -m pip uninstall --quiet --yes --disable-pip-version-check onnxruntime onnxruntime-gpu attendant attendant-client 2>/dev/null
	@$(PIP_INSTALL) --editable '.[$(ACCELERATOR),dev]'
	@$(PIP_INSTALL) --no-deps --editable ./client
	@rm -f $(VENV)/.installed-* && touch $@

demo: setup ## Train a small real model, export it, serve it and call it (about 6 minutes)
	@$(BIN)/python recipes/g2p-cmudict-small/demo.py

serve: setup ## Serve the demo's bundle in the foreground (BUNDLE=... for another)
	@test -d $(BUNDLE) || { echo "serve: there is no $(BUNDLE); make demo builds bundles/g2p-cmudict-small" >&2; exit 2; }
	@exec $(BIN)/python -m server $(BUNDLE)

# Tests of one file stay together: they share what its fixtures made. A process takes up to 1 GB.
# In order of their names, which has the long files in the middle: xdist would put files of few tests last, the exports
# among them, and the other processes would wait for these.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test: setup ## Lint, types, and the tests without `slow`, `cuda` and `reliability`
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest $(PARALLEL) -m 'not slow and not cuda and not reliability'

test-slow: setup ## Tests that take long, or need the network, apt or a GPU
	@$(BIN)/python -m pytest $(PARALLEL) -m 'slow or cuda'

test-processors: setup ## Bundles on emulated processors: AVX2 without VNNI, no AVX, 64-bit ARM (Debian's qemu-user-static)
	@$(BIN)/python -m tests.processors.emulation

build/cluster/.installed: pyproject.toml setup.py client/pyproject.toml constraints.txt
	@test -x build/cluster/bin/python || $(PYTHON) -m venv build/cluster
	@build/cluster/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[cpu,cluster]' psutil pytest pytest-asyncio pytest-timeout
	@build/cluster/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable ./client
	@touch $@

test-cluster: build/cluster/.installed ## Ray: a cluster of three nodes on this machine, in an environment of its own
	@build/cluster/bin/python -m pytest tests/cluster

reliability: setup ## Attack a server over loopback at full size, into benchmarks/results/reliability.md
	@$(BIN)/python -m pytest -m reliability tests/faults

bench: setup ## Measure decoding and serving on this machine, which should do nothing else (about an hour)
	@$(BIN)/python -m benchmarks

bench-peers: setup ## Measure other systems on the same work (about an hour, and their installation)
	@$(BIN)/python -m benchmarks peers

docs: setup ## The pages as a site, in build/docs; fails if a link is broken
	@$(BIN)/sphinx-build -q -W --keep-going -c docs . build/docs
	@echo '<meta http-equiv="refresh" content="0; url=docs/index.html">' > build/docs/index.html
	@echo "docs: build/docs/index.html"

lint: setup docker-lint workflow-lint ## ruff; hadolint; the schema of GitHub's workflows
	@$(BIN)/ruff check . && $(BIN)/ruff format --diff .

docker-lint: build/lint/.installed
	@build/lint/bin/hadolint Dockerfile

workflow-lint: build/lint/.installed
	@build/lint/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

types: setup ## mypy, strict
	@$(BIN)/mypy

format: setup ## ruff, with its fixes made
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

protos: setup ## Regenerate the gRPC code from protos/
	@$(BIN)/python -m grpc_tools.protoc -Iattendant_client/v1=protos/attendant/v1 \
		-I$$($(BIN)/python -c 'import google.rpc, pathlib; print(pathlib.Path(next(iter(google.rpc.__path__))).parents[1])') \
		--python_out=client --grpc_python_out=client --pyi_out=client attendant_client/v1/seq2seq.proto
	@$(BIN)/python -m grpc_tools.protoc -Iattendant/server/inference/v2=protos/inference \
		--python_out=. --pyi_out=. attendant/server/inference/v2/open_inference.proto
	@$(BIN)/python protos/openapi.py

check-protos: setup ## Lint the API and compare it with the last release's
	@$(BIN)/python protos/check.py

# Lines of these stay where they are not installed: CUDA's wheels, and Ray.
ELSEWHERE := ^(cuda|nvidia)-|^(triton|ray)==

constraints: setup ## Write constraints.txt from what is installed
	@{ sed '/^[^#]/d' constraints.txt; { $(BIN)/python -m pip freeze --exclude-editable --disable-pip-version-check \
		| sed -E 's/^(torch==[0-9.]+)\+.*/\1/; s/^onnxruntime(-gpu)?==(.*)/onnxruntime==\2\nonnxruntime-gpu==\2/'; \
		grep -E '$(ELSEWHERE)' constraints.txt; } | sort --ignore-case --unique --field-separator== --key=1,1; } \
		> constraints.new && mv constraints.new constraints.txt

# Tools have environments of their own, by their locks.
build/%/.installed: deploy/locks/%.txt
	@test -x build/$*/bin/python || $(PYTHON) -m venv build/$*
	@build/$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $<
	@touch $@

# What is built has the time of the commit, so that it is the same whenever it is built.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

VERSION := $(shell sed -n 's/^VERSION = "\(.*\)"/\1/p' client/attendant_client/version.py)
DIST ?= dist
dist: build/build/.installed ## Build wheels and source archives of both distributions, the same every time, into dist/
	@build/build/bin/python deploy/dist.py $(DIST)

# The locks of what images and installations contain.
SHIPPED := server-cpu server-gpu signing otel training
audit: setup build/audit/.installed ## Names, hashes, licences and known vulnerabilities of what we install; SBOM
	@$(BIN)/python -m pytest -q tests/unit/test_locks.py
	@# Allowed licences are in pyproject.toml. NVIDIA's own lets its packages be handed on with a program.
	@build/audit/bin/pip-licenses --python $(BIN)/python --ignore-packages sigstore-models \
		$$(grep -oE '^(cuda|nvidia)-[a-z0-9-]+' deploy/locks/training.txt) > /dev/null && echo "audit: licences: all are allowed"
	@# Strict: a package that can't be looked up fails.
	@build/audit/bin/pip-audit --strict --require-hashes --disable-pip --progress-spinner off \
		$(SHIPPED:%=--requirement deploy/locks/%.txt)
	@mkdir -p build/sbom
	@for lock in $(SHIPPED); do build/audit/bin/cyclonedx-py requirements deploy/locks/$$lock.txt --output-reproducible \
		--no-validate --output-file build/sbom/$$lock.cdx.json || exit; done; echo "audit: SBOM: build/sbom"

locks: build/audit/.installed ## Write deploy/locks again: versions of constraints.txt, with their hashes
	@build/audit/bin/python deploy/lock.py

# With Docker, or where there is none, with buildah: make image BUILD="buildah build --isolation chroot --format docker"
BUILD ?= docker build
TARGET ?= server-cpu
COMMIT = $(shell $(PYTHON) -c 'import runpy; print(runpy.run_path("runtime/commit.py")["commit"]())')
IMAGE ?= attendant:$(VERSION)-$(TARGET)
image: ## Build an image: TARGET=server-cpu, server-gpu or trainer
	@$(BUILD) --build-arg SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) --build-arg VERSION=$(VERSION) --build-arg COMMIT=$(COMMIT) --target $(TARGET) --tag $(IMAGE) .

clean: ## Remove the environment and the caches (never runs, bundles or data)
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info client/*.egg-info
