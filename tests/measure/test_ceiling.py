"""What the client could take in at most: the server it is measured with, the measuring, and where a run keeps it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import psutil
import pytest

from specprof.api import running
from specprof.cli import measuring, reading
from specprof.measure import ceiling, environment, load, plain
from specprof.measure.ceiling import EASY_PACE_S, OFFERED_PER_S, STREAMS, client_floor, flood_server
from specprof.measure.load import Order, closed_loop, connected
from specprof.measure.wire import decode
from specprof.records import Phase
from specprof.store import Store
from specprof.study.reading import parse_study
from tests.running import ROOT, gone

PAUSE_S = 2.0
STUDY = """
study: ceiling
engine: {{kind: sim, preset: small, time_scale: 4}}
arms: {{"off": {{}}}}
workloads: [{{tag: code, suite: {root}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: 8}}}}
concurrency: [1]
prompts: 2
"""


def drive(base_url, num_requests, streams, **asked):
    async def run():
        orders = [Order(str(i), Phase.MEASURED, json.dumps(asked).encode()) for i in range(num_requests)]
        async with connected(base_url, streams) as session:
            return await closed_loop(session, "/v1/completions", orders, streams)

    return [decode(stream) for stream in asyncio.run(run())]


def test_the_server_streams_what_vllm_would_request_after_request():
    with flood_server() as base_url:
        requests = drive(base_url, 6, 3, max_tokens=20, pace_s=0.0)
    for request in requests:
        assert request.error is None
        assert len(request.token_ids) == sum(request.chunk_tokens) == len(request.chunk_ns) == 20
        assert request.finish_reason == "length"
        assert request.prompt_tokens == 1


def test_the_server_keeps_its_pace():
    """Event i is due i paces after the request arrived, so 100 events take 99 paces and no less."""
    with flood_server() as base_url:
        (request,) = drive(base_url, 1, 1, max_tokens=100, pace_s=0.002)
    assert (request.chunk_ns[-1] - request.sent_ns) / 1e9 >= 99 * 0.002


def test_the_server_ends_with_whoever_started_it():
    script = "from specprof.measure.ceiling import flood_server\nwith flood_server():\n  print(flush=True)\n  input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as parent:
        parent.stdout.readline()
        (server,) = psutil.Process(parent.pid).children()
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert gone([server])


def test_no_server_is_left_when_the_block_ends():
    others = set(psutil.Process().children())
    with flood_server():
        (server,) = set(psutil.Process().children()) - others
    assert gone([server])


@pytest.fixture
def _every_stage(monkeypatch):
    """Every pace has its turns, however long they take, so that a machine that is busy elsewhere ends nothing."""
    monkeypatch.setattr(ceiling, "LONGEST_STAGE_S", 120.0)


@pytest.mark.usefixtures("_every_stage")
def test_a_client_has_a_floor():
    began_s = time.perf_counter()
    told = environment.client()
    took_s = time.perf_counter() - began_s
    assert told.keys() == {"client_ceiling_chunks_per_s", "client_cpu_us_per_chunk", "client_itl_p99_error_ms"}
    assert 0 < told["client_ceiling_chunks_per_s"] <= max(OFFERED_PER_S)
    assert told["client_cpu_us_per_chunk"] > 0
    assert -EASY_PACE_S <= told["client_itl_p99_error_ms"] / 1e3 < took_s, "no interval is negative, or all of the time"


@pytest.mark.usefixtures("_every_stage")
def test_a_client_that_needs_2_ms_a_read_cannot_take_in_more_than_500_a_second(monkeypatch):
    """Each read asks the clock once. Far more is offered, and merged in the socket meanwhile."""

    def slow_clock():
        until = time.thread_time_ns() + 2_000_000  # of this thread, however much else the machine does
        while time.thread_time_ns() < until:
            pass
        return time.perf_counter_ns()

    quick = client_floor()
    monkeypatch.setattr(plain, "_clock", slow_clock)
    slow = client_floor()
    assert 10 < slow.chunks_per_s <= 500
    assert slow.chunks_per_s < quick.chunks_per_s
    assert slow.cpu_s_per_chunk >= 0.002
    assert slow.itl_p99_error_s >= 8 * 0.002 - EASY_PACE_S, "of 8 streams, each waits for a read of every other"


def test_a_ceiling_that_cannot_be_measured_is_absent_and_said_to_be(monkeypatch):
    monkeypatch.setattr(ceiling, "LONGEST_STAGE_S", 0.0)
    assert environment.client() == {
        "client_ceiling_chunks_per_s": None,
        "client_ceiling_problem": "0.08 s of load took longer than 0 s",
    }


def test_a_run_without_a_ceiling_says_so_where_it_is_read(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(ceiling, "LONGEST_STAGE_S", 0.0)
    with caplog.at_level("WARNING", logger="specprof"):
        running.run(parse_study(STUDY.format(root=ROOT), "study.yaml"), tmp_path)
    assert "Gate 11 cannot say how near the client came to its limit: 0.08 s of load took longer" in caplog.text


@pytest.mark.parametrize("longest_s", [PAUSE_S / 2, 120.0])
@pytest.mark.parametrize("paused", [EASY_PACE_S, STREAMS / OFFERED_PER_S[0]])
def test_a_machine_that_stands_still_for_a_while_has_a_floor_all_the_same(monkeypatch, paused, longest_s):
    """The first time a pace is kept everything rests for longer than all else takes; the same pace comes again.

    Whether the turn that was disturbed is ended or counts for as little as it took in.
    """
    monkeypatch.setattr(ceiling, "LONGEST_STAGE_S", longest_s)
    times, drive_once = count(), ceiling._drive

    async def driven(session, num_chunks, pace_s):
        if pace_s == paused and next(times) == 0:
            asyncio.get_running_loop().call_later(0.03, time.sleep, PAUSE_S)
        return await drive_once(session, num_chunks, pace_s)

    monkeypatch.setattr(ceiling, "_drive", driven)
    told = environment.client()
    assert "client_ceiling_problem" not in told
    assert told["client_ceiling_chunks_per_s"] > 640 / PAUSE_S, "as many as the stage offered that stood still"
    assert told["client_itl_p99_error_ms"] / 1e3 < PAUSE_S / 2


@pytest.mark.parametrize(
    ("interpreter", "why"),
    [("/nowhere/python", "No such file or directory"), ("false", "the server to measure it with did not start")],
)
def test_a_server_that_does_not_start_costs_the_ceiling_and_not_the_study(monkeypatch, interpreter, why):
    monkeypatch.setattr(ceiling.sys, "executable", interpreter)
    assert environment.client() == {"client_ceiling_chunks_per_s": None, "client_ceiling_problem": why}


def test_a_refusal_is_no_chunk(monkeypatch):
    """What is counted are chunks of a stream; a server that answers anything else measures nothing."""

    async def refused(*_):
        return [load.RawStream("0", Phase.MEASURED, 0, 0, sent_ns=0, done_ns=1, status=503, reads=[(1, b"no")])]

    monkeypatch.setattr(ceiling, "closed_loop", refused)
    assert environment.client()["client_ceiling_problem"] == "HTTP 503"


def test_a_run_measures_its_client_once_after_its_cells_and_a_plan_or_report_never_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "study.yaml"
    config.write_text(STUDY.format(root=ROOT))
    results = tmp_path / "ceiling"
    cells_before = []

    def measured():
        cells_before.append(len(list((results / "cells").glob("*/sealed.json"))))
        return {"client_ceiling_chunks_per_s": 40_000}

    monkeypatch.setattr(running, "client", measured)
    measuring.plan(config)
    assert cells_before == []
    measuring.run(config, tmp_path, report_after=False)
    num_cells = len(list((results / "cells").glob("*/sealed.json")))
    assert cells_before == [num_cells]
    store = Store.existing(results)
    assert store.environment()["client_ceiling_chunks_per_s"] == 40_000
    assert store.environment()["cores"] >= 1

    next((results / "cells").glob("*/sealed.json")).unlink()  # so that there is something to go on with
    measuring.run(config, tmp_path, report_after=False)
    reading.report(results, output="json")
    assert cells_before == [num_cells]
