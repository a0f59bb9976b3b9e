# Everything a person or CI runs. `make` alone lists the targets.
VENV ?= .venv
LITELLM_VENV ?= .venv-litellm
LLAMACPP_VENV ?= .venv-llamacpp
BIN := $(VENV)/bin

.PHONY: help install demo test test-fast check coverage-study test-litellm test-llamacpp clean

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

test-litellm: install ## the proxy file of `specprof policy` in a real LiteLLM, which gets an environment of its own
	@test -x $(LITELLM_VENV)/bin/litellm || { \
		$(BIN)/python -m venv $(LITELLM_VENV) && $(LITELLM_VENV)/bin/pip install --quiet "litellm[proxy]==1.108.7"; }
	SPECPROF_LITELLM=$(abspath $(LITELLM_VENV))/bin/litellm $(BIN)/pytest tests/test_litellm.py

test-llamacpp: install ## attach to llama-cpp-python, a second engine that is built here in an environment of its own (minutes)
	@$(LLAMACPP_VENV)/bin/python -c "import llama_cpp" 2>/dev/null || { \
		$(BIN)/python -m venv $(LLAMACPP_VENV) && $(LLAMACPP_VENV)/bin/pip install --quiet "llama-cpp-python[server]==0.3.36"; }
	SPECPROF_LLAMACPP=$(abspath $(LLAMACPP_VENV))/bin/python $(BIN)/pytest tests/test_llamacpp.py

clean: ## remove the environment and caches; results and converted models stay
	rm -rf $(VENV) $(LITELLM_VENV) $(LLAMACPP_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
