# make demo   set everything up and plan a batch of requests under a budget
# make test   set everything up and run the tests
# make check  ruff, mypy --strict, layers, documentation
# make bench  the ratios of benchmarks/market.py
# make docs   regenerate what README and docs show: figure, outputs, help texts
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check bench docs clean

demo: $(READY)
	$(BIN)/python examples/make_requests.py build/requests.jsonl build/forecasts.jsonl
	$(BIN)/shadowprice plan build/requests.jsonl --budget 60k --forecast build/forecasts.jsonl \
		--policy expected --out build/planned.jsonl --errors build/abandoned.jsonl || [ $$? -eq 3 ]

test: $(READY)
	$(BIN)/python -m pytest -n auto

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py tests/test_docs.py

bench: $(READY)
	$(BIN)/python benchmarks/market.py

docs: $(READY)
	$(BIN)/python scripts/docs.py

clean:
	rm -rf build $(VENV)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@
