"""The one cause in a log that several processes wrote into."""

from __future__ import annotations

from pathlib import Path

import pytest

from specprof.engine import log

WORKER_IMPORT_FAILS = """\
(EngineCore pid=22705) INFO 11-29 19:09:38 [core.py:133] Initializing a V1 LLM engine (v0.32.0)
Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "/x/torch/_dynamo/trace_rules.py", line 53, in <module>
    from .utils import (
ImportError: cannot import name 'NP_SUPPORTED_MODULES' from 'torch._dynamo.utils' (/x/utils.py)
(EngineCore pid=22705) INFO 11-29 19:09:41 [multiproc_executor.py:486] [shutdown] all workers exited gracefully
(EngineCore pid=22705) ERROR 11-29 19:09:41 [core.py:1510] EngineCore failed to start.
(EngineCore pid=22705) ERROR 11-29 19:09:41 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=22705) ERROR 11-29 19:09:41 [core.py:1510]   File "/x/core.py", line 1482, in run_engine_core
(EngineCore pid=22705) ERROR 11-29 19:09:41 [core.py:1510]     engine_core = EngineCoreProc(*args)
(EngineCore pid=22705) ERROR 11-29 19:09:41 [core.py:1510] Exception: WorkerProc initialization failed due to an \
exception in a background process. See stack trace for root cause.
Traceback (most recent call last):
  File "/x/utils.py", line 1431, in wait_for_engine_startup
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""

BAD_MODEL = """\
(APIServer pid=7) INFO 11-29 19:03:31 [api_utils.py:286] non-default args: {'model': '/nope'}
Traceback (most recent call last):
  File "/x/api_server.py", line 60, in <module>
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, Invalid repository ID or local directory specified: '/nope'.
Please verify the following requirements:
1. Provide a valid Hugging Face repository ID.
 [type=value_error, input_value=ArgsKwargs((), {'model': ...}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""

USAGE = """\
usage: api_server.py [-h] [--model MODEL]
api_server.py: error: unrecognized arguments: --no-such-flag
"""

MID_RUN = """\
(Worker pid=9) ERROR 11-29 20:00:00 [multiproc_executor.py:900] WorkerProc hit an exception.
(Worker pid=9) ERROR 11-29 20:00:00 [multiproc_executor.py:900] Traceback (most recent call last):
(EngineCore pid=8) INFO 11-29 20:00:00 [core.py:1] something from another process in between
(Worker pid=9) ERROR 11-29 20:00:00 [multiproc_executor.py:900]   File "/x/model.py", line 3, in forward
(Worker pid=9) ERROR 11-29 20:00:00 [multiproc_executor.py:900] torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB.
(EngineCore pid=8) ERROR 11-29 20:00:00 [core.py:99] Traceback (most recent call last):
(EngineCore pid=8) ERROR 11-29 20:00:00 [core.py:99]   File "/x/core.py", line 3, in step
(EngineCore pid=8) ERROR 11-29 20:00:00 [core.py:99] RuntimeError: Executor failed.
(APIServer pid=7) ERROR 11-29 20:00:00 [async_llm.py:9] Traceback (most recent call last):
(APIServer pid=7) ERROR 11-29 20:00:00 [async_llm.py:9]   File "/x/async_llm.py", line 3, in output_handler
(APIServer pid=7) ERROR 11-29 20:00:00 [async_llm.py:9] vllm.v1.engine.exceptions.EngineDeadError: EngineCore \
encountered an issue. See stack trace (above) for the root cause.
"""


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        (WORKER_IMPORT_FAILS, "ImportError: cannot import name 'NP_SUPPORTED_MODULES'"),
        (BAD_MODEL, "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig Value error, In"),
        (USAGE, "unrecognized arguments: --no-such-flag"),
        (MID_RUN, "torch.OutOfMemoryError: CUDA out of memory"),
    ],
    ids=["worker-import", "bad-model", "usage", "mid-run"],
)
def test_root_cause(text: str, begins: str, tmp_path: Path) -> None:
    file = tmp_path / "engine.log"
    file.write_text(text, encoding="utf-8")
    cause = log.root_cause(file)
    assert cause is not None
    assert cause.startswith(begins)
    assert "\n" not in cause


def test_a_messenger_is_better_than_nothing() -> None:
    text = "Traceback (most recent call last):\n  File 'x'\nRuntimeError: Engine core initialization failed. See root\n"
    assert log.cause_in(text) == "RuntimeError: Engine core initialization failed. See root"


def test_a_healthy_log_has_no_cause(tmp_path: Path) -> None:
    assert log.cause_in("(APIServer pid=1) INFO 11-29 19:03:31 [x.py:1] Starting vLLM server\n") is None
    assert log.root_cause(tmp_path / "missing.log") is None


def test_progress_shows_the_last_line_that_says_something(tmp_path: Path) -> None:
    file = tmp_path / "engine.log"
    file.write_text(
        "(Worker pid=2) INFO 11-29 19:04:10 [cpu_model_runner.py:68] Starting to load model /m...\n"
        "\n"
        "(Worker pid=2) WARNING 11-29 19:04:12 [utils.py:333] Attempted to load weight norm with dtype torch.float32\n"
        "  warnings.warn(\n"
    )
    assert log.progress(file) == "Starting to load model /m..."


def test_progress_of_an_empty_log_is_none(tmp_path: Path) -> None:
    assert log.progress(tmp_path / "missing.log") is None
