"""The real engine under faults: it stands still, refuses, loses its port, dies between two cells.

What `tests/engine/test_vllm.py` and `tests/test_real_engine.py` show already (killed while it is watched, killed in the
middle of a cell, a run killed around it) is not repeated. All but one share the engine that those tests use.
"""

from __future__ import annotations

import http.server
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from specprof.engine import vllm
from specprof.engine.vllm import VllmServer
from specprof.errors import EngineDied, EngineStartError
from specprof.measure import loop
from specprof.records import Cell, CellRecord, Phase
from specprof.study.engines import VllmEngine
from tests.factory import make_cell, make_prompt

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

SMOLLM2 = "builtin:smollm2-135m"
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
STALL_S = 3.0
PROMPTS = {name: make_prompt(name, text=f"# {name}\ndef area(radius):\n    return") for name in make_cell().prompt_ids}


@pytest.fixture
def engine(real_engine: Callable[..., VllmServer]) -> VllmServer:
    return real_engine(SMOLLM2, NGRAM, max_num_seqs=4)


def core_of(engine: VllmServer) -> psutil.Process:
    """The process that computes."""
    below = psutil.Process().children(recursive=True)
    return next(process for process in below if "VLLM::EngineCore" in " ".join(process.cmdline()))


def measured(engine: VllmServer, cell: Cell, on_done: Callable[[], None] = lambda: None) -> CellRecord:
    return loop.measure(cell, PROMPTS, engine, 0, on_done)


def test_an_engine_that_stands_still_is_waited_for_and_the_gap_is_in_the_record(engine: VllmServer) -> None:
    """A page fault storm, a paused container: no error, and not a token is counted faster for it.

    It stands still from the end of the first request on: whatever is sent then has its first token afterwards.
    """
    core, stood_still_ns = core_of(engine), list[int]()

    def go_on() -> None:
        stood_still_ns.append(time.perf_counter_ns())
        core.resume()

    def stand_still() -> None:
        if not stood_still_ns:
            core.suspend()
            stood_still_ns.append(time.perf_counter_ns())
            threading.Timer(STALL_S, go_on).start()

    record = measured(engine, make_cell(max_tokens=48, concurrency=2), stand_still)
    requests = [request for request in record.requests if request.phase is Phase.MEASURED]
    assert [request.error for request in requests] == [None] * 4
    assert {len(request.token_ids) for request in requests} == {48}
    began_ns, ended_ns = stood_still_ns
    held_up = [request for request in requests if began_ns < request.sent_ns < ended_ns]
    assert held_up, "nothing was sent while it stood still"
    assert all(request.chunk_ns[0] > ended_ns for request in held_up)


def test_a_request_that_the_engine_refuses_is_recorded_in_its_own_words(engine: VllmServer) -> None:
    record = measured(engine, make_cell(max_tokens=4000))  # its context holds 1024
    errors = {request.error for request in record.requests}
    assert len(errors) == 1
    (told,) = errors
    assert told is not None and told.startswith("HTTP 400: ") and "1024" in told
    assert engine.death() is None


def test_an_engine_killed_between_two_cells_is_named_with_its_log(engine: VllmServer) -> None:
    measured(engine, make_cell(max_tokens=8))
    os.kill(core_of(engine).pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(EngineDied) as death:
        measured(engine, make_cell(max_tokens=8))
    assert time.monotonic() - began < 60
    assert death.value.log == engine.log and death.value.cause


@contextmanager
def another_program() -> Iterator[int]:
    """Somebody else's server, which is well; its port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), AlwaysWell)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class AlwaysWell(http.server.BaseHTTPRequestHandler):
    """Answers every GET with 200."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_port_that_another_program_took_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = VllmEngine(kind="vllm", model=SMOLLM2, args={"max_model_len": 512, "max_num_seqs": 2})
    with another_program() as port:
        monkeypatch.setattr(vllm, "_free_port", lambda: port)
        with (
            pytest.raises(EngineStartError, match=f"could not take port {port}") as problem,
            vllm.start(spec, speculative_config=None, folder=tmp_path, on_progress=lambda _: None),
        ):
            pass
    assert problem.value.cause == "another program listens there"
