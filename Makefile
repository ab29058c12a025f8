# `make demo` runs the main job, `make quick` what one needs while editing, `make test` the whole
# check. Each sets up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A stamp for each extra that is installed: the demo's needs, all that tests need on top, and a release's.
DEMO := $(VENV)/.demo
READY := $(VENV)/.dev
RELEASE := $(VENV)/.release
# A released CPU build where one is offered; the newest torch would bring gigabytes of CUDA.
TORCH ?= torch==2.13.0

# The browser that tests of the studio drive: Debian's package, by its path.
CHROMIUM ?= /usr/bin/chromium
# What runs everything but the browser's tests, which want the machine for themselves.
UNIT := --ignore=tests/browser
# A file's tests share what they set up, so one process has them all, in the order of the files.
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder

# What is compiled for tests is kept between runs, whatever the environment says: pytest rewrites
# every assertion, which takes each of its processes ten seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test quick lint types unit test-browser docs linkcheck dist upstream format clean engines soak

demo: $(DEMO)
	$(BIN)/tacache demo

test: lint types unit
	@if test -x "$(CHROMIUM)"; then $(MAKE) test-browser; \
		else echo "The browser's tests are left out, as there is no Chromium: make test-browser"; fi

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# Lint, types, and all tests that are not marked slow: a minute on two cores.
quick: lint types
	$(BIN)/pytest -q $(PARALLEL) -m "not slow and not cuda" $(UNIT)

unit: $(READY)
	$(BIN)/pytest $(PARALLEL) --cov --cov-report= $(UNIT)
	@for part in src lab/src models/src; do \
		$(BIN)/coverage report --include="$$part/*" --fail-under=95 || exit 1; done

# The studio in real Chromium, which is installed where it is missing; screenshots are in build/.
test-browser: $(READY)
	@test -x "$(CHROMIUM)" || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && \
		apt-get update -qq && apt-get install -qq --yes chromium > /dev/null; } || \
		{ echo "Install Chromium first (Debian: apt-get install chromium)," \
		"or name it: make test-browser CHROMIUM=PATH"; exit 1; }
	CHROMIUM="$(CHROMIUM)" $(BIN)/pytest -q tests/browser

# The site, in build/docs; a warning, such as a link that leads nowhere, is an error.
docs: $(READY)
	$(BIN)/python -m sphinx -W --keep-going -b html -c docs . build/docs
	@echo "open build/docs/index.html"

# Do the links to other sites still lead somewhere?
linkcheck: $(READY)
	$(BIN)/python -m sphinx -b linkcheck -c docs . build/linkcheck

# Build the three wheels and sdists, check them, and try them in new environments, offline.
dist: $(RELEASE)
	$(BIN)/python -m tests.dist "$(TORCH)"

# Do the stand-ins of BAGEL and ComfyUI still have the surface of the real code?
upstream: $(READY)
	BAGEL_PATH="$(BAGEL_PATH)" COMFYUI_PATH="$(COMFYUI_PATH)" $(BIN)/python -m tests.upstream

# Does it work with the versions of diffusers that other engines pin? Each has an environment.
engines: $(READY)
	$(BIN)/python -m tests.engines

# Random clients on one server: memory and threads must not grow, every picture must be right.
MINUTES ?= 30
soak: $(READY)
	$(BIN)/python -m tests.soak $(MINUTES)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.%: pyproject.toml lab/pyproject.toml models/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Python 3.10 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[$*]" --editable lab --editable models
	touch $@

clean:
	rm -rf $(VENV) .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis build demo dist
