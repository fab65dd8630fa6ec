# The one place of commands. Each target sets up what it needs and is fast when repeated.
.DEFAULT_GOAL := help
BIN := .venv/bin
FOREBAY_DATA_DIR ?= ./data
ARGS ?=

.PHONY: help install up test simulate test-clients conformance fuzz kill batch attack soak overload interference check lint bench golden docs lock clean

help: ## show these targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: ## everything to work on Forebay, into .venv
	@tools/install requirements-dev.lock

up: ## run Forebay here with a real model (make up ARGS="-p 9000")
	@tools/install requirements.lock
	@FOREBAY_DATA_DIR=$(FOREBAY_DATA_DIR) exec $(BIN)/forebay up $(ARGS)

test: install ## all tests: unit, contract, golden, simulation, end to end
ifeq ($(ARGS),)
	@$(BIN)/python -m pytest -q -n auto --dist loadscope -m "not alone"
	@$(BIN)/python -m pytest -q -m alone
else
	@$(BIN)/python -m pytest -q $(ARGS)
endif

simulate: install ## 300 seeds of every simulated topology (ARGS="--seeds 1000")
	@$(BIN)/python -m pytest -q -n auto tests/simulation --seeds 300 $(ARGS)

test-clients: install ## other people's clients against the real model (some: ARGS="-k light")
	@$(BIN)/python -m pytest -q tests/clients $(ARGS)

conformance: install fuzz ## suites that others wrote, against us; each ends with one JSON line
	@$(BIN)/python -m tools.conformance.openai_python
	@$(BIN)/python -m tools.conformance.openresponses

fuzz: install ## made-up requests against our OpenAPI document (300 s; ARGS="--seconds 60")
	@$(BIN)/python -m tools.conformance.schemathesis $(ARGS)

kill: install ## kill -9 of a real server, 200 times under load and 200 times in a batch (ARGS="--kills 20")
	@$(BIN)/python -m pytest -q -s tests/kill --kills 200 --batch-kills 200 $(ARGS)

batch: install ## a batch of 200 MB and 50,000 lines, and a million lines that are only streamed
	@$(BIN)/python -m pytest -q -s tests/e2e/test_batch_size.py tests/simulation/test_batch_streaming.py --batch-megabytes 200 --batch-lines 1000000 $(ARGS)

attack: install ## one key's limits against 500 connections for a minute
	@$(BIN)/python -m pytest -q -s tests/e2e/test_attack.py --attack 60 $(ARGS)

soak: install ## half an hour of mixed load: what grows, what is left (ARGS="--seconds 180")
	@$(BIN)/python bench/soak.py $(ARGS)

overload: install ## ten times more calls than the engine can serve (ARGS="--seconds 20")
	@$(BIN)/python bench/overload.py $(ARGS)

check: lint ## lint, and the tests of the house's rules and of the docs
	@$(BIN)/python -m pytest -q tests/test_tidy.py tests/test_docs.py tests/test_imports.py

lint: install ## lint, types, import rules, dead code, unused dependencies
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/vulture
	@$(BIN)/deptry src

bench: install ## measure (not a test): each program ends with one JSON line
	@for program in bench/relay.py bench/gateway_cost.py bench/dialogue.py; do echo "== $$program"; $(BIN)/python $$program $(ARGS) || exit 1; done

interference: install ## what a batch job does to interactive calls (ARGS=--write)
	@$(BIN)/python bench/batch_interference.py $(ARGS)

golden: install ## rewrite the golden files; review the diff like an API change
	@FOREBAY_GOLDEN=1 $(BIN)/python -m pytest -q tests/unit/gateway tests/golden

docs: install ## rewrite the generated pages of docs/reference
	@$(BIN)/python -m tools.docs

lock: install ## resolve the lock files anew
	@$(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --group build pyproject.toml -o requirements.lock
	@$(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --group build --group dev pyproject.toml -o requirements-dev.lock
	@for each in tests/clients/*.in tools/conformance/*.in; do $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header $$each -o $${each%.in}.lock || exit 1; done
	@for each in tests/clients/node tools/conformance/bun; do npm install --silent --package-lock-only --prefix $$each || exit 1; done

clean: ## remove what these targets made, but not ./data
	@rm -rf .venv dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
