# `make` alone lists the targets. Everything installs itself into .venv, pinned by hash.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
OUT    ?= out
# The last diffusers with Flax in it, on our JAX.
TUTORIAL := torch==2.13.0 jax==0.10.2 flax==0.12.8 diffusers==0.39.0 transformers==4.57.6 pillow
# Half of the tests with servers wait for leases and processes, so three at once keep two cores busy; four took as long.
# Tests without servers compute, beside them but in processes of their own, because one with JAX in it must not fork. Files
# run in the order of the command line. The longest come early, so that the other processes do not wait for them.
PYTEST = $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder
LONGEST = tests/integration/test_worker_process.py
WITH_SERVERS = -n 3 tests/chaos tests/fuzz $(LONGEST) tests/integration/gateway $(filter-out $(LONGEST),$(wildcard tests/integration/test_*.py))
# Two sets of tests at once print their lines one after the other, where make can do so (macOS has 3.81).
WHOLE_OUTPUT = $(if $(filter output-sync,$(.FEATURES)),--output-sync=line)
# What `make long` runs. `.ci/run` gives it another value, which leaves the longest tests out, and selects some TPU_TESTS.
LONG = long
WITHOUT_SERVERS = -n 2 tests/unit/engine/test_known_checkpoints.py tests/unit
RACE = $(BIN)/python -m benchmarks.race --tutorial .venv-tutorial/bin/python --pytorch .venv-parity/bin/python

# Python keeps what it compiles of packages, also where the environment forbids it. Without, each process compiles them
# again: a worker's start takes 2.4 s of CPU in place of 0.8, and the tests start hundreds.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help alerts archive demo page page-test test check lint format types contracts unit servers long long-servers long-computing bench bulk-chaos chaos chaos-stock fuzz gpu parity partition parity-full parity-fuzz parity-pictures race judge sheets tpu train wheel structure docs requirements upgrade clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

demo: $(VENV)/.demo ## run the main job: 16 prompts through Redis, a worker and storage, into ./out
	$(BIN)/imagefleet demo --out $(OUT)

test: $(VENV)/.dev ## lint, types, contracts and the short tests: about 11 minutes on two cores
	$(MAKE) --no-print-directory lint contracts
	$(MAKE) --no-print-directory -j 3 $(WHOLE_OUTPUT) types servers unit

check: $(VENV)/.dev ## the part without servers: lint, types, contracts, unit tests
	$(MAKE) --no-print-directory lint types contracts unit

lint: $(VENV)/.dev ## ruff, and the compose files against their schema
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml deploy/compose-gpu.yml

format: $(VENV)/.dev ## let ruff rewrite the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev ## mypy, strict
	$(BIN)/mypy

contracts: $(VENV)/.dev ## which module may import which
	$(BIN)/lint-imports --no-cache

unit: $(VENV)/.dev ## the short tests that start no server
	$(PYTEST) --durations=10 $(WITHOUT_SERVERS)

servers: $(VENV)/.dev ## the short tests that start servers
	$(PYTEST) --durations=10 $(WITH_SERVERS)

long: $(VENV)/.dev ## the other tests, listed in tests/long_tests; downloads the TPU compiler, 684 MB
	@$(MAKE) --no-print-directory .libtpu/.installed || echo "the tests of the TPU compiler will be skipped"
	$(MAKE) --no-print-directory -j 2 $(WHOLE_OUTPUT) long-servers long-computing

long-servers:
	$(PYTEST) --durations=10 -m "$(LONG)" $(WITH_SERVERS)

long-computing:
	$(PYTEST) --durations=10 -m "$(LONG)" $(WITHOUT_SERVERS)
	$(PYTEST) --durations=10 -m "$(LONG)" -n 2 --dist load tests/tpu $(TPU_TESTS)

bench: $(VENV)/.dev ## benchmarks; each prints a table and one line of JSON
	$(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.start
	$(BIN)/python -m benchmarks.loading
	$(BIN)/python -m benchmarks.seeds
	$(BIN)/python -m benchmarks.delivery
	$(BIN)/python -m benchmarks.callbacks
	$(BIN)/python -m benchmarks.bulk
	$(BIN)/python -m benchmarks.claims
	$(BIN)/python -m benchmarks.fleet --stock --real
	$(BIN)/python -m benchmarks.lanes --repeats 1
	$(BIN)/python -m benchmarks.recovery
	$(BIN)/python -m benchmarks.redis_memory
	$(BIN)/python -m benchmarks.heartbeats
	$(BIN)/python -m benchmarks.policies
	$(BIN)/python -m benchmarks.batching
	$(BIN)/python -m benchmarks.duty

bulk-chaos: $(VENV)/.dev ## 2,000 prompts become a dataset while workers, Redis and the command are killed
	$(BIN)/python -m tests.chaos_bulk $(CHAOS)

chaos: $(VENV)/.dev ## ten minutes of injected faults, then an audit; fails if a job is lost, duplicated or foreign
	$(BIN)/python -m tests.chaos $(CHAOS)

alerts: $(VENV)/.dev ## let each alert fire in a real Prometheus by a real cause, in 5 to 12 minutes; needs `prometheus`
	$(BIN)/python -m tests.alerts $(ALERTS)

partition: $(VENV)/.dev ## cut one of two hosts off the network, silently and with resets, then audit; needs root
	$(BIN)/python -m tests.chaos.partition $(PARTITION)

upgrade: $(VENV)/.dev ## upgrade a fleet from the last release under load, and back, then audit
	$(BIN)/python -m tests.chaos.upgrade $(UPGRADE)

chaos-stock: $(VENV)/.dev ## the same on Celery's own Redis transport, for comparison; fails if that loses nothing
	$(BIN)/python -m tests.chaos.stock $(CHAOS)

fuzz: $(VENV)/.dev ## random and hostile input against one worker, until it breaks; FUZZ="--seconds 1200 --seed 7"
	$(BIN)/python -m tests.fuzz $(FUZZ)

tpu: $(VENV)/.dev .libtpu/.installed ## compile for TPU hosts without one, and print what they need; TPU="--full --hosts v5e-8"
	PYTHONPATH=.libtpu $(BIN)/python -m tools.tpu $(TPU)

gpu: $(VENV)/.dev .cuda/.installed ## compile for NVIDIA GPUs without one, and print what they need; GPU="--gpus a100 --models sdxl"
	PYTHONPATH=.cuda $(BIN)/python -m tools.gpu $(GPU)

race: $(VENV)/.dev .venv-parity/.installed ## the engine against the tutorial's pipeline and PyTorch diffusers (installs both beside)
	test -x .venv-tutorial/bin/pip || $(PYTHON) -m venv .venv-tutorial
	.venv-tutorial/bin/pip install -q $(TUTORIAL)
	$(RACE) --channels 128,256,256
	$(RACE) --channels 32,64,64 --jobs 96

parity: $(VENV)/.dev .venv-parity/.installed ## ask PyTorch diffusers again (installs torch beside), then hold the engine to its answers
	.venv-parity/bin/python -m tools.make_parity_fixtures tests/fixtures/parity
	$(BIN)/python -m tools.parity.fuzz --pytorch .venv-parity/bin/python --store
	$(BIN)/python -m pytest tests/unit/engine

parity-fuzz: $(VENV)/.dev .venv-parity/.installed ## draw checkpoints, ask diffusers and then the engine; FUZZ="--count 2000 --seed 1"
	$(BIN)/python -m tools.parity.fuzz --pytorch .venv-parity/bin/python $(FUZZ)

parity-pictures: $(VENV)/.dev .venv-parity/.installed ## draw jobs for well-known structures, and compare their images; PICTURES="--jobs 32 --only SSD-1B"
	$(BIN)/python -m tools.parity.pictures --pytorch .venv-parity/bin/python $(PICTURES)

parity-full: $(VENV)/.dev .venv-parity/.installed ## SD 1.4's, SD 2.1's and SDXL's UNets at full size against PyTorch: 6 GB of disk, 17 of memory
	$(BIN)/python -m tools.parity.full --pytorch .venv-parity/bin/python

litellm: $(VENV)/.dev .venv-litellm/.installed ## generate images through litellm, as a library and as a proxy (installs it beside)
	$(PYTEST) -m long -n 1 tests/integration/gateway/test_litellm.py

page-test: $(VENV)/.dev $(VENV)/.browser ## use the page in a browser; needs chromium, and installs it with apt-get if root
	command -v chromium chromium-browser || { apt-get update && apt-get install -y --no-install-recommends chromium; }
	$(BIN)/python -m pytest -n 0 --durations=5 tests/browser

page: $(VENV)/.demo ## open the page of a fleet of this host, with images in it
	$(BIN)/imagefleet demo --serve --browse --out $(OUT)

judge: $(VENV)/.dev ## 400 held-out captions through a real worker, judged from their pixels
	$(BIN)/python -m tools.train_shapes.evaluate --fleet shapes --count 400

sheets: $(VENV)/.dev ## write the image sheets of the README
	rm -f $(OUT)/contact-sheet.png
	$(BIN)/imagefleet demo --no-serve --out $(OUT) && cp $(OUT)/contact-sheet.png docs/contact-sheet.png
	$(BIN)/python -m tools.train_shapes.guidance_sheet docs/guidance.png

train: .venv-parity/.installed ## train the bundled model anew, two hours on two cores (installs torch beside)
	.venv-parity/bin/pip install -q tqdm
	.venv-parity/bin/torchrun --standalone --nproc-per-node 2 -m tools.train_shapes.train

wheel: .venv-build/.installed ## build dist/imagefleet-….whl, to install on hosts and in programs
	rm -rf dist
	.venv-build/bin/python -m hatchling build --target wheel
	cd models/shapes_dit && ../../.venv-build/bin/python -m hatchling build --target wheel -d ../../dist

archive: wheel ## build dist/imagefleet-….tar.gz, which TPU VMs install, and print its SHA-256
	.venv-build/bin/python -m tools.tpu_archive

docs: $(VENV)/.dev ## write what is generated: docs/settings.md, docs/commands.md, the client's keywords, the alerts of Prometheus' operator
	$(BIN)/python -m tools.settings_page
	$(BIN)/python -m tools.commands_page
	$(BIN)/python -m tools.client_parameters
	$(BIN)/python -m tools.prometheus_rule

structure: $(VENV)/.dev ## count packages, arrows, sizes, names used twice and docstrings without a verb
	$(BIN)/python -m tools.structure

requirements: ## pin again: newest versions that pyproject.toml allows, by hash, without addresses
	$(PIN) --upgrade requirements/build.in -o requirements/build.txt
	$(PIN) --upgrade --extra dev pyproject.toml -o requirements/dev.txt
	$(PIN) -c requirements/dev.txt --extra browser pyproject.toml -o requirements/browser.txt
	$(PIN) -c requirements/dev.txt --extra demo pyproject.toml -o requirements/demo.txt
	$(PIN) -c requirements/dev.txt --extra worker --extra gcs --extra traces pyproject.toml -o requirements/worker.txt
	$(PIN) -c requirements/worker.txt --extra http pyproject.toml -o requirements/http.txt
	$(PIN) -c requirements/worker.txt --extra tpu --extra traces pyproject.toml -o requirements/tpu.txt
	$(PIN) -c requirements/worker.txt --extra cuda12 --extra traces pyproject.toml -o requirements/cuda12.txt
	echo libtpu | $(PIN) -c requirements/tpu.txt - -o requirements/libtpu.txt
	printf '%s\n' $(CUDA_COMPILER) | $(PIN) --no-deps -c requirements/cuda12.txt - -o requirements/cuda-compiler.txt

clean: ## remove what the targets made
	rm -rf $(VENV) .libtpu .cuda $(OUT) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache

PIN = $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

# uv takes a fifth of pip's time; pip knows the indexes and certificates of machines set up for it.
INSTALL = install() { VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install -q --system-certs "$$@" \
  || $(BIN)/python -m pip install -q --disable-pip-version-check "$$@"; }; install

# The compiler for TPUs: 684 MB, for Linux on x86-64. It is not in .venv, because JAX looks for a TPU where it is.
.libtpu/.installed: requirements/libtpu.txt | $(VENV)/.dev
	rm -rf .libtpu
	$(INSTALL) --target .libtpu --no-deps --require-hashes -r requirements/libtpu.txt
	touch $@

# The compiler for NVIDIA GPUs: 1.2 GB, for Linux on x86-64.
CUDA_COMPILER = jax-cuda12-pjrt jax-cuda12-plugin nvidia-cuda-nvcc-cu12 nvidia-cudnn-cu12
.cuda/.installed: requirements/cuda-compiler.txt | $(VENV)/.dev
	rm -rf .cuda
	$(INSTALL) --target .cuda --no-deps --require-hashes -r requirements/cuda-compiler.txt
	touch $@

# PyTorch and diffusers, from the extra `parity`.
.venv-parity/.installed: pyproject.toml
	test -x .venv-parity/bin/pip || $(PYTHON) -m venv .venv-parity
	.venv-parity/bin/pip install -q -e '.[parity]'
	touch $@

# What builds the wheel, and nothing of what develops it.
.venv-build/.installed: requirements/build.txt
	test -x .venv-build/bin/pip || $(PYTHON) -m venv .venv-build
	.venv-build/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/build.txt
	touch $@

# litellm and its proxy, for one test.
.venv-litellm/.installed:
	test -x .venv-litellm/bin/pip || $(PYTHON) -m venv .venv-litellm
	.venv-litellm/bin/pip install -q 'litellm[proxy]>=1.80'
	touch $@

# .demo and .dev: the packages of requirements/demo.txt or dev.txt, and this project and its second model, editable.
$(VENV)/.%: requirements/%.txt requirements/build.txt pyproject.toml models/shapes_dit/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "imagefleet needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/build.txt
	$(INSTALL) --require-hashes -r requirements/$*.txt
	$(INSTALL) --no-deps --no-build-isolation -e . -e models/shapes_dit
	touch $@
