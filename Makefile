# `make demo` runs the main job, `make quick` what one needs while editing, `make test` the whole
# check. Each sets up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A stamp for each extra that is installed: the demo's needs, and all that tests need on top.
DEMO := $(VENV)/.demo
READY := $(VENV)/.dev
# A released CPU build where one is offered; the newest torch would bring gigabytes of CUDA.
TORCH ?= torch==2.13.0

.PHONY: demo test quick lint types unit upstream soak format clean

demo: $(DEMO)
	$(BIN)/tacache demo

test: lint types unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# Lint, types, and all tests but those of tests/slow.txt: under 90 s on two cores.
quick: lint types
	$(BIN)/pytest -q -n auto -m "not slow and not cuda"

unit: $(READY)
	$(BIN)/pytest -n auto --cov --cov-report=term --cov-fail-under=95

# Do the stand-ins of BAGEL and ComfyUI still have the surface of the real code?
upstream: $(READY)
	BAGEL_PATH="$(BAGEL_PATH)" COMFYUI_PATH="$(COMFYUI_PATH)" $(BIN)/python -m tests.upstream

# Random clients on one server: memory and threads must not grow, every picture must be right.
MINUTES ?= 30
soak: $(READY)
	$(BIN)/python -m tests.soak $(MINUTES)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.%: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Python 3.10 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	touch $@

clean:
	rm -rf $(VENV) .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis demo
