# Everything a person or CI runs. `make` alone lists the targets.
VENV ?= .venv
LITELLM_VENV ?= .venv-litellm
LLAMACPP_VENV ?= .venv-llamacpp
LOWEST_VENV ?= .venv-lowest
AUDIT_VENV ?= .venv-audit
INSTANTS ?= 200
MINUTES ?= 30
WORLDS ?= $(if $(PAGE),50,30)
BIN := $(VENV)/bin

.PHONY: help install demo test test-fast check bench faults soak fuzz test-lowest audit coverage-study test-litellm test-llamacpp coverage mutants package clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

install: ## make .venv with specprof, the CPU engine and the development tools; nothing if that is done
	@.ci/install $(VENV)

demo: install ## profile a real vLLM engine on this CPU and report (resumes; a second time it only reports)
	$(BIN)/specprof run configs/demo.yaml --results runs

test: install ## every test: on all cores those that need no engine, then one by one those that start a real one
	$(BIN)/pytest -m "not engine" -n auto
	$(BIN)/pytest -m engine

test-fast: install ## every test that needs no engine
	$(BIN)/pytest -m "not engine and not study" -n auto

check: install ## lint, types, and the tests that need no engine
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -m "not engine and not study" -n auto

bench: install ## the load client beside others, analysis, time to a decision in thirty worlds; a quarter of an hour, nothing else running
	$(BIN)/python -m benchmarks.clients --rounds 3 $(if $(PAGE),--write $(PAGE))
	$(BIN)/python -m benchmarks.analysis $(if $(PAGE),--write $(PAGE))
	$(BIN)/python -m benchmarks.simulator $(if $(PAGE),--write $(PAGE))
	$(BIN)/python -m benchmarks.decisions --worlds $(WORLDS) $(if $(PAGE),--write $(PAGE))

faults: install ## what breaks while it measures, with 200 random kills (INSTANTS=20: fewer); a quarter of an hour
	SPECPROF_INSTANTS=$(INSTANTS) $(BIN)/pytest tests/faults

soak: install ## 64 streams for 30 minutes (MINUTES=5: for five): does memory, lateness or anything else grow?
	$(BIN)/python benchmarks/soak.py --minutes $(MINUTES)

fuzz: install ## every reader of foreign files and bytes shaken for minutes; what `make test` does briefly
	SPECPROF_FUZZ=long $(BIN)/pytest tests/fuzz --timeout 0 -n auto

test-lowest: ## the tests that need no engine with the lowest versions allowed, in an environment of its own
	@.ci/lowest $(LOWEST_VENV)

audit: install ## known vulnerabilities of what is installed (pip-audit; needs its advisory database)
	@.ci/audit $(VENV) $(AUDIT_VENV)

coverage-study: install ## do the 95% intervals hold 95%? 500 simulated studies for each spread of lengths, a quarter of an hour; writes docs/coverage.md
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.coverage --write docs/coverage.md

test-litellm: install ## the proxy file of `specprof policy` in a real LiteLLM, which gets an environment of its own
	@test -x $(LITELLM_VENV)/bin/litellm || { \
		$(BIN)/python -m venv $(LITELLM_VENV) && $(LITELLM_VENV)/bin/pip install --quiet "litellm[proxy]==1.108.7"; }
	SPECPROF_LITELLM=$(abspath $(LITELLM_VENV))/bin/litellm $(BIN)/pytest tests/test_litellm.py

test-llamacpp: install ## attach to llama-cpp-python, a second engine that is built here in an environment of its own (minutes)
	@$(LLAMACPP_VENV)/bin/python -c "import llama_cpp" 2>/dev/null || { \
		$(BIN)/python -m venv $(LLAMACPP_VENV) && CMAKE_ARGS=-DGGML_NATIVE=OFF \
		$(LLAMACPP_VENV)/bin/pip install --quiet "llama-cpp-python[server]==0.3.36"; } # native crashes where a VM names AMX and withholds it
	SPECPROF_LLAMACPP=$(abspath $(LLAMACPP_VENV))/bin/python $(BIN)/pytest tests/test_llamacpp.py

coverage: install ## lines of `analyse` and `decide` that their own tests run; fails below 95%
	OMP_NUM_THREADS=1 $(BIN)/coverage run --source=specprof/analyse,specprof/decide -m pytest -m "not engine and not study" \
		tests/analyse tests/decide
	$(BIN)/coverage report --skip-covered --show-missing --fail-under=95

mutants: install ## change the formulas one by one: does a test notice? Fails below 85%; about ten minutes
	nice .ci/mutants $(BIN)/python

package: install ## build wheel and sdist into dist/, install the wheel into a fresh environment, measure a study there
	.ci/package $(BIN)/python

clean: ## remove the environment and caches; results and converted models stay
	rm -rf $(VENV) $(VENV)-mutants $(LITELLM_VENV) $(LLAMACPP_VENV) $(LOWEST_VENV) $(AUDIT_VENV) dist .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
