"""vLLM's API server as the CPU engine can run it: `python -m specprof.engine.serve --model …`, flags as vLLM's own.

vLLM's worker processes import this module again before they do anything else (multiprocessing's spawn re-imports the
main module), so what is hidden at the top is hidden in all of them.
"""

from __future__ import annotations

import runpy

from specprof.engine.hidden import hide_media_packages

hide_media_packages()

# The `vllm` command looks itself up under the distribution name `vllm`, which the CPU build does not have.
SERVER_MODULE = "vllm.entrypoints.openai.api_server"

if __name__ == "__main__":
    runpy.run_module(SERVER_MODULE, run_name="__main__")
