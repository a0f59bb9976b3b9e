"""The load client against a real local server: concurrency, order, instants, and streams that fail."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest

from specprof.measure import load
from specprof.measure.load import ClientWatch, Order, closed_loop, connected
from specprof.measure.wire import RawStream, decode
from specprof.records import Phase
from tests.measure.sse import Vllm, serving


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
    with serving(Vllm(step_s=0.01)) as vllm:
        raw = drive(vllm, orders(8), concurrency)
    assert vllm.most_running == concurrency
    assert {stream.stream for stream in raw} == set(range(concurrency))


def test_fewer_orders_than_streams():
    with serving(Vllm()) as vllm:
        assert len(drive(vllm, orders(2), 8)) == 2
        assert drive(vllm, [], 8) == []


def test_instants_are_in_the_order_they_happened():
    with serving(Vllm(step_s=0.005)) as vllm:
        requests = [decode(stream) for stream in drive(vllm, orders(6), 2)]
    for r in requests:
        assert r.scheduled_ns <= r.sent_ns < r.chunk_ns[0] < r.chunk_ns[-1] <= r.done_ns
        assert list(r.chunk_ns) == sorted(r.chunk_ns)


def test_a_stream_sends_its_next_request_when_its_last_is_done():
    with serving(Vllm()) as vllm:
        raw = drive(vllm, orders(4), 1)
    for earlier, later in pairwise(raw):
        assert earlier.done_ns <= later.scheduled_ns


def test_chunks_are_timed_as_they_arrive_and_not_at_the_end():
    with serving(Vllm(stall_s=0.15)) as vllm:
        (stream,) = drive(vllm, orders(1), 1)
    request = decode(stream)
    assert (request.chunk_ns[1] - request.chunk_ns[0]) / 1e9 >= 0.14


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
    with serving(Vllm()) as vllm:
        pass
    (stream,) = drive(vllm, orders(1), 1)
    assert decode(stream).error.startswith("connection failed: ConnectionRefusedError")


def test_a_stream_that_falls_silent_is_given_up(monkeypatch):
    monkeypatch.setattr(load, "SILENCE_S", 0.1)
    with serving(Vllm(stall_s=0.6)) as vllm:
        (stream,) = drive(vllm, orders(1), 1)
    assert decode(stream).error == "timed out: no data for 0.1 s"


def test_the_client_watches_itself():
    async def busy():
        watch = ClientWatch()
        running = asyncio.create_task(watch.run())
        for _ in range(5):
            await asyncio.sleep(0.01)
            sum(range(600_000))  # blocks the event loop
        found = watch.load([RawStream("p", Phase.MEASURED, i, 0, connect_ns=ns) for i, ns in enumerate((0, 7, 5))])
        running.cancel()
        return found

    found = asyncio.run(busy())
    assert found.loop_lag_p99_s > 0.002
    assert 0.05 < found.cpu_share < 1.5
    assert (found.num_connects, found.connect_max_s) == (2, 7e-9)
