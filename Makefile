# Everything a person or CI runs. `make` alone lists the targets.
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help install demo test test-fast check coverage-study clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

install: ## make .venv with specprof, the CPU engine and the development tools; nothing if that is done
	@.ci/install $(VENV)

demo: install ## profile a real vLLM engine on this CPU and report (resumes; a second time it only reports)
	$(BIN)/specprof run configs/demo.yaml --results runs

test: install ## every test, real-engine tests included
	$(BIN)/pytest

test-fast: install ## every test that needs no engine
	$(BIN)/pytest -m "not engine and not study" -n auto

check: install ## lint, types, and the tests that need no engine
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -m "not engine and not study" -n auto

coverage-study: install ## do the 95% intervals hold 95%? 500 simulated studies, minutes; writes docs/coverage.md
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/coverage.py --write docs/coverage.md

clean: ## remove the environment and caches; results and converted models stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
