"""The load client against a real local server: concurrency, order, instants, and streams that fail."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import pairwise

import pytest

from specprof.measure import load
from specprof.measure.load import ClientWatch, Order, closed_loop, connected, send
from specprof.measure.wire import RawStream, decode
from specprof.records import Phase
from tests.measure.sse import Vllm, serving
from tests.running import refusing


def orders(count, max_tokens=4):
    body = json.dumps({"max_tokens": max_tokens}).encode()
    return [Order(f"p{i}", Phase.MEASURED, body) for i in range(count)]


def drive(vllm, wanted, concurrency, on_done=lambda: None):
    async def run():
        async with connected(vllm.base_url, concurrency) as session:
            return await closed_loop(session, "/v1/completions", wanted, concurrency, on_done)

    return asyncio.run(run())


def test_every_order_is_sent_once_in_order_and_comes_back_whole():
    done = []
    with serving(Vllm()) as vllm:
        raw = drive(vllm, orders(10), 3, lambda: done.append(1))
    requests = [decode(stream) for stream in raw]
    assert [r.prompt_id for r in requests] == [f"p{i}" for i in range(10)]
    assert [r.error for r in requests] == [None] * 10
    assert {r.token_ids for r in requests} == {(0, 1, 2, 3)}
    assert len(done) == 10


@pytest.mark.parametrize("concurrency", [1, 4])
def test_n_streams_are_n_at_a_time_and_no_more(concurrency):
    with serving(Vllm(gather=concurrency)) as vllm:
        raw = drive(vllm, orders(8), concurrency)
    assert vllm.most_running == concurrency
    assert {decode(stream).error for stream in raw} == {None}
    assert {stream.stream for stream in raw} == set(range(concurrency))


def test_fewer_orders_than_streams():
    with serving(Vllm()) as vllm:
        assert len(drive(vllm, orders(2), 8)) == 2
        assert drive(vllm, [], 8) == []


def test_instants_are_in_the_order_they_happened():
    with serving(Vllm(step_s=0.005)) as vllm:
        requests = [decode(stream) for stream in drive(vllm, orders(6), 2)]
    for r in requests:
        assert r.scheduled_ns <= r.sent_ns < r.chunk_ns[0] <= r.chunk_ns[-1] <= r.done_ns
        assert list(r.chunk_ns) == sorted(r.chunk_ns)


def test_a_stream_sends_its_next_request_when_its_last_is_done():
    with serving(Vllm()) as vllm:
        raw = drive(vllm, orders(4), 1)
    for earlier, later in pairwise(raw):
        assert earlier.done_ns == later.scheduled_ns <= later.sent_ns, "however late the client saw that it was done"


def test_chunks_are_timed_as_they_arrive_and_not_at_the_end():
    """The server writes on when the client has kept what came before: each chunk's time lies between two writes."""
    raw = RawStream("p0", Phase.MEASURED, 0, 0)

    async def run(vllm):
        async with connected(vllm.base_url, 1) as session:
            await send(session, "/v1/completions", orders(1)[0].body, raw)

    with serving(Vllm(goes_on=lambda chunks: len(raw.reads) >= chunks)) as vllm:
        asyncio.run(run(vllm))
    arrived_ns = decode(raw).chunk_ns
    assert len(arrived_ns) == len(vllm.wrote_ns) == 4
    for (wrote_ns, writes_on_ns), at_ns in zip(pairwise([*vllm.wrote_ns, raw.done_ns + 1]), arrived_ns, strict=True):
        assert wrote_ns < at_ns < writes_on_ns


def test_no_measured_request_pays_for_a_connect():
    with serving(Vllm(step_s=0.01)) as vllm:
        drive(vllm, orders(12), 4)
    assert len(vllm.connections) == 4


def test_a_refusal_ends_in_the_request_s_error():
    with serving(Vllm(status=503)) as vllm:
        requests = [decode(stream) for stream in drive(vllm, orders(2), 1)]
    assert [r.error for r in requests] == ["HTTP 503: out of memory"] * 2


def test_a_connection_that_breaks_ends_in_the_request_s_error_and_the_others_go_on():
    with serving(Vllm(hang_up_after=2)) as vllm:
        requests = [decode(stream) for stream in drive(vllm, orders(3), 1)]
    assert len(requests) == 3
    assert all(r.error.startswith("connection failed: ") for r in requests)
    assert all(r.done_ns >= r.sent_ns for r in requests)


def test_a_server_that_is_not_there():
    with refusing() as address:
        (stream,) = drive(Vllm(base_url=address), orders(1), 1)
    assert decode(stream).error.startswith("connection failed: ConnectionRefusedError")


def test_a_stream_that_falls_silent_is_given_up(monkeypatch):
    monkeypatch.setattr(load, "SILENCE_S", 0.1)
    with serving(Vllm(stall_s=600)) as vllm:
        (stream,) = drive(vllm, orders(1), 1)
    assert decode(stream).error == "timed out: no data for 0.1 s"


def test_the_client_watches_itself():
    """Blocked five times by 50 ms of work. Its CPU share lies between what is reckoned inside it and around it."""

    async def busy():
        watch = ClientWatch()
        outer = time.process_time(), time.perf_counter()
        running = asyncio.create_task(watch.run())
        await asyncio.sleep(0)
        inner = time.process_time(), time.perf_counter()
        for _ in range(5):
            await asyncio.sleep(0.01)
            until = time.thread_time() + 0.05
            while time.thread_time() < until:  # the event loop is meant to be blocked
                pass
        spent, passed = time.process_time() - inner[0], time.perf_counter() - inner[1]
        found = watch.load([RawStream("p", Phase.MEASURED, i, 0, connect_ns=ns) for i, ns in enumerate((0, 7, 5))])
        all_spent, all_passed = time.process_time() - outer[0], time.perf_counter() - outer[1]
        running.cancel()
        return found, spent / all_passed, all_spent / passed

    found, at_least, at_most = asyncio.run(busy())
    assert at_least <= found.cpu_share <= at_most
    assert found.loop_lag_p99_s >= 0.05 - load.LAG_PERIOD_S - 1e-3, "it was to wake in the midst of the work"
    assert (found.num_connects, found.connect_max_s) == (2, 7e-9)
