"""The open loop against a real local server: instants, caps, time-outs, stalls, and when it ends."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from specprof.errors import EngineDied
from specprof.measure import loop
from specprof.measure.load import ClientWatch, Order, connected
from specprof.measure.open_loop import CANCELLED, OpenRun, num_connections, open_loop
from specprof.measure.wire import RawStream, decode
from specprof.records import Arrivals, Cell, Phase, Request, Role, phase_due
from tests.factory import make_cell, make_prompt
from tests.measure.doubles import FakeEngine
from tests.measure.sse import Vllm, serving

PROMPTS = {name: make_prompt(name) for name in make_cell(num_prompts=8).prompt_ids}


def arriving(due_s: Sequence[float], *, window: tuple[float, float] = (0.0, 1.0), **changes: Any) -> Arrivals:
    """Arrivals at these seconds, measured in the window."""
    begins, ends = window
    plain = Arrivals("constant", len(due_s) / ends, 1.0, begins, ends - begins, 30.0, tuple(due_s))
    return replace(plain, **changes)


def every(gap_s: float, count: int) -> tuple[float, ...]:
    return tuple(gap_s * (i + 1) for i in range(count))


def orders(arrivals: Arrivals, max_tokens: int = 4) -> list[Order]:
    body = json.dumps({"max_tokens": max_tokens}).encode()
    return [Order(f"p{i}", phase_due(arrivals, due), body) for i, due in enumerate(arrivals.due_s)]


async def nothing() -> None:
    """Beside the load."""


def drive(
    vllm: Vllm,
    arrivals: Arrivals,
    *,
    max_tokens: int = 4,
    on_done: Callable[[], None] = lambda: None,
    beside: Callable[[], Awaitable[None]] = nothing,
    time_scale: float = 1.0,
) -> OpenRun:
    async def run() -> OpenRun:
        async with connected(vllm.base_url, num_connections(arrivals)) as session:
            asked = orders(arrivals, max_tokens)
            other = asyncio.ensure_future(beside())
            found = await open_loop(session, "/v1/completions", asked, arrivals, on_done, time_scale=time_scale)
            await other
            return found

    return asyncio.run(run())


def decoded(run: OpenRun) -> list[Request]:
    return [decode(raw) for raw in run.streams]


def start_ns(run: OpenRun, arrivals: Arrivals) -> float:
    return run.streams[0].scheduled_ns - arrivals.due_s[0] * 1e9


def late_s(raw: RawStream) -> float:
    return (raw.sent_ns - raw.scheduled_ns) / 1e9


# -- due instants -----------------------------------------------------------------------------------------------------


def test_every_request_is_due_when_the_schedule_says_and_is_sent_then() -> None:
    arrivals = arriving((0.0, 0.05, 0.051, 0.051, 0.2, 0.4), window=(0.1, 0.5))
    done: list[int] = []
    with serving(Vllm()) as vllm:
        run = drive(vllm, arrivals, on_done=lambda: done.append(1))
    start = start_ns(run, arrivals)
    assert [raw.scheduled_ns - start for raw in run.streams] == pytest.approx([at * 1e9 for at in arrivals.due_s])
    assert [raw.prompt_id for raw in run.streams] == [f"p{i}" for i in range(6)]
    assert [raw.phase for raw in run.streams] == [Phase.WARMUP] * 4 + [Phase.MEASURED] * 2
    assert all(0 <= late_s(raw) < 0.05 for raw in run.streams)
    assert {(r.error, r.token_ids) for r in decoded(run)} == {(None, (0, 1, 2, 3))}
    assert len(done) == 6


def test_requests_do_not_wait_for_one_another() -> None:
    """Ten requests of half a second, 20 ms apart: all are out at once."""
    arrivals = arriving(every(0.02, 10), window=(0.0, 0.3))
    with serving(Vllm(stall_s=0.5)) as vllm:
        run = drive(vllm, arrivals)
        assert vllm.most_running == 10
    assert all(late_s(raw) < 0.05 for raw in run.streams)


def test_a_faster_clock_is_a_faster_schedule() -> None:
    """Four engine seconds pass in one of ours, so what is due at 2 s is due after half a second."""
    arrivals = arriving((0.4, 2.0), window=(0.0, 2.4))
    began = time.perf_counter()
    with serving(Vllm()) as vllm:
        run = drive(vllm, arrivals, time_scale=4.0)
    assert time.perf_counter() - began < 2.0
    first, second = run.streams
    assert second.scheduled_ns - first.scheduled_ns == pytest.approx(0.4e9, abs=2)


def test_the_window_is_watched_to_its_end_even_if_nothing_is_due() -> None:
    began = time.perf_counter()
    with serving(Vllm(stall_s=0.2)) as vllm:
        run = drive(vllm, arriving((0.05,), window=(0.1, 0.5)))
    assert time.perf_counter() - began > 0.5
    assert [(r.phase, r.error) for r in decoded(run)] == [(Phase.WARMUP, None)], "its tokens came inside the window"


# -- a cap ------------------------------------------------------------------------------------------------------------


def test_a_cap_holds_back_what_is_due_first_come_first_served() -> None:
    """Two at once, 0.1 s each, eight due at almost the same time: the last pair leaves about 0.3 s late."""
    arrivals = arriving(every(0.001, 8), max_concurrency=2)
    with serving(Vllm(stall_s=0.1)) as vllm:
        run = drive(vllm, arrivals)
        assert vllm.most_running == 2
    for earlier, later in pairwise(run.streams):
        assert earlier.sent_ns <= later.sent_ns
    assert [late_s(raw) for raw in run.streams[:2]] == pytest.approx([0, 0], abs=0.05)
    assert late_s(run.streams[7]) > 0.28
    assert len(run.dispatch_lags_s) == 2, "those that the cap held back say nothing of the client"
    assert max(run.dispatch_lags_s) < 0.05


def test_a_cap_that_is_never_reached_changes_nothing() -> None:
    arrivals = arriving(every(0.02, 10), max_concurrency=100)
    with serving(Vllm()) as vllm:
        run = drive(vllm, arrivals)
    assert len(run.dispatch_lags_s) == 10
    assert {r.error for r in decoded(run)} == {None}


# -- time-outs --------------------------------------------------------------------------------------------------------


def test_what_takes_too_long_is_given_up_and_keeps_what_had_arrived() -> None:
    with serving(Vllm(stall_s=20)) as vllm:
        run = drive(vllm, arriving((0.05,), window=(0.0, 0.2), timeout_s=0.4))
    (request,) = decoded(run)
    assert request.error == "timed out: had not ended 0.4 s after it was due"
    assert request.token_ids == (0,), "the first chunk had arrived"
    assert (request.done_ns - request.scheduled_ns) / 1e9 == pytest.approx(0.4, abs=0.05)


def test_what_never_left_the_client_is_given_up_too() -> None:
    arrivals = arriving((0.05, 0.05), window=(0.0, 0.2), timeout_s=0.4, max_concurrency=1)
    with serving(Vllm(stall_s=20)) as vllm:
        first, second = decoded(drive(vllm, arrivals))
        assert len(vllm.asked) == 1
    assert first.error == "timed out: had not ended 0.4 s after it was due"
    assert second.error == "timed out: was still waiting in the client 0.4 s after it was due"
    assert second.sent_ns == second.done_ns, "all of its life was client queue"
    assert second.done_ns - second.scheduled_ns == pytest.approx(0.4e9, abs=0.05e9)


def test_a_slot_is_free_again_after_a_time_out() -> None:
    """The first two fall silent for ever; the third comes when they have been given up."""

    class ForgetsTwo(Vllm):
        async def complete(self, request: web.Request) -> web.StreamResponse:
            self.stall_s = 20.0 if len(self.asked) < 2 else 0.0
            return await super().complete(request)

    arrivals = arriving((0.0, 0.0, 0.3), window=(0.0, 0.4), timeout_s=0.5, max_concurrency=2)
    with serving(ForgetsTwo()) as vllm:
        requests = decoded(drive(vllm, arrivals))
    assert [r.error is None for r in requests] == [False, False, True]
    assert requests[2].sent_ns >= requests[0].done_ns


# -- a server that stalls ---------------------------------------------------------------------------------------------

STALL_S = 1.0


@dataclass
class Stalls(Vllm):
    """Does nothing at all for a second, once: every stream and every connection waits."""

    at_request: int = 0

    async def complete(self, request: web.Request) -> web.StreamResponse:
        if len(self.asked) == self.at_request:
            time.sleep(STALL_S)  # noqa: ASYNC251 - the whole server is meant to stand still
        return await super().complete(request)


@pytest.mark.parametrize("cap", [None, 2])
def test_a_stall_is_seen_by_every_request_that_was_due_in_it(cap: int | None) -> None:
    """One request every 50 ms; the tenth brings the server to a halt for a second.

    What is due x seconds into the stall waits 1 - x seconds for its first token, counted from when it was due. A closed
    loop of two would have sent two requests in that second, and its p99 over a few hundred would not show them.
    """
    arrivals = arriving(every(0.05, 40), window=(0.0, 2.1), max_concurrency=cap)
    with serving(Stalls(at_request=10)) as vllm:
        run = drive(vllm, arrivals)
    requests = decoded(run)
    assert {r.error for r in requests} == {None}
    stalled_at = run.streams[10].sent_ns
    hit = [r for r in requests if 0 <= r.scheduled_ns - stalled_at < (STALL_S - 0.1) * 1e9]
    assert len(hit) == 17 or len(hit) == 18  # 0.9 s of one every 50 ms
    for request in hit:
        left_s = STALL_S - (request.scheduled_ns - stalled_at) / 1e9
        assert (request.chunk_ns[0] - request.scheduled_ns) / 1e9 >= left_s
    since_sent = sorted((r.chunk_ns[0] - r.sent_ns) / 1e9 for r in hit)
    if cap is None:
        assert max(map(late_s, run.streams)) < 0.1, "nothing waits for the server: every timer went on"
        assert since_sent[len(hit) // 2] > 0.3
    else:
        assert since_sent[len(hit) // 2] < 0.1, "from when they were sent, most saw nothing of it"


# -- its end ----------------------------------------------------------------------------------------------------------


def test_filling_stops_when_the_last_measured_request_has_ended() -> None:
    """Answers take 0.3 s and the window ends at 0.4 s, so the last measured one ends at 0.7 s; the schedule at 10 s."""
    arrivals = arriving(every(0.02, 500), window=(0.1, 0.4))
    began = time.perf_counter()
    with serving(Vllm(stall_s=0.3)) as vllm:
        run = drive(vllm, arrivals)
        num_asked = len(vllm.asked)
    assert time.perf_counter() - began < 3
    requests = decoded(run)
    last = max(r.done_ns for r in requests if r.phase is Phase.MEASURED)
    filling = [r for r in requests if r.phase is Phase.FILL]
    assert len(filling) > 5
    assert all(r.sent_ns <= last for r in filling)
    assert num_asked == len(requests), "whatever the server saw is in the record"
    cut = [r for r in filling if r.error is not None]
    assert {r.error for r in cut} == {CANCELLED}
    assert any(r.token_ids for r in cut), "what had arrived is kept"
    assert {r.error for r in requests if r.phase is not Phase.FILL} == {None}


def test_nothing_is_left_behind() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    arrivals = arriving(every(0.01, 100), window=(0.0, 0.1), timeout_s=0.5, max_concurrency=3)

    async def run(vllm: Vllm) -> int:
        async with connected(vllm.base_url, 3) as session:
            await open_loop(session, "/v1/completions", orders(arrivals), arrivals)
            return len(asyncio.all_tasks())

    with serving(Vllm(stall_s=5)) as vllm:
        assert asyncio.run(run(vllm)) == 1
        time.sleep(0.2)  # the server notices who has hung up
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_more_requests_than_files_may_be_open_are_no_failure() -> None:
    """A server that does not answer holds every request's socket; the usual limit of 1,024 files is soon reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    arrivals = arriving(every(0.004, 100), window=(0.0, 0.41))
    with serving(Vllm(stall_s=0.6)) as vllm:
        num_open = len(list(Path("/proc/self/fd").iterdir()))
        # the server is in this process, so a request has two files: enough for 64 connections beforehand, not for 100
        resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + 2 * 80, hard))
        try:
            run = drive(vllm, arrivals)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert {r.error for r in decoded(run)} == {None}


# -- the client itself ------------------------------------------------------------------------------------------------


def test_an_idle_client_is_on_time() -> None:
    """The event loop's timers come a millisecond apart; the bound leaves room for a busy machine."""
    with serving(Vllm()) as vllm:
        run = drive(vllm, arriving(every(0.01, 100), window=(0.0, 1.1)))
    lags = sorted(run.dispatch_lags_s)
    assert len(lags) == 100
    assert lags[0] >= 0
    assert lags[50] < 0.005


def test_a_client_that_is_late_says_so() -> None:
    async def blocked() -> None:
        await asyncio.sleep(0.3)
        time.sleep(0.2)  # noqa: ASYNC251 - the event loop is meant to be blocked

    with serving(Vllm()) as vllm:
        run = drive(vllm, arriving(every(0.02, 40)), beside=blocked)
    assert 0.1 < max(run.dispatch_lags_s) < 0.25
    late = [lag for lag in run.dispatch_lags_s if lag > 0.02]
    assert 7 <= len(late) <= 10, "what was due in those 0.2 s, at one every 20 ms"


def test_lateness_is_part_of_the_client_s_load() -> None:
    load = ClientWatch().load((), [i / 1000 for i in range(200)])
    assert (load.dispatch_lag_p99_s, load.dispatch_lag_max_s) == (0.197, 0.199)
    closed = ClientWatch().load(())
    assert (closed.dispatch_lag_p99_s, closed.dispatch_lag_max_s) == (None, None)


def test_connects_that_a_request_had_to_wait_for_are_told_apart() -> None:
    warm, slow, slower = (RawStream(name, Phase.MEASURED, 0, 0) for name in ("warm", "slow", "slower"))
    slow.connect_ns, slower.connect_ns = 2_000_000, 5_000_000
    load = ClientWatch().load((warm, slow, slower))
    assert (load.num_connects, load.connect_max_s) == (2, 0.005)
    assert (ClientWatch().load((warm,)).num_connects, ClientWatch().load((warm,)).connect_max_s) == (0, None)


@pytest.mark.parametrize(
    ("rate", "cap", "expected"),
    [(0.1, None, 1), (5.0, None, 20), (1000.0, None, 64), (1000.0, 8, 8), (1.0, 500, 64)],
)
def test_as_many_connections_as_the_first_seconds_may_need(rate: float, cap: int | None, expected: int) -> None:
    assert num_connections(arriving((1.0,), rate_per_s=rate, max_concurrency=cap)) == expected


# -- a cell -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SETTLE_S", 0.5)
    monkeypatch.setattr(loop, "GAUGE_PERIOD_S", 0.02)
    monkeypatch.setattr(loop, "WATCH_PERIOD_S", 0.05)


def open_cell(arrivals: Arrivals, **changes: Any) -> Cell:
    names = list(PROMPTS)
    ids = tuple(names[i % len(names)] for i in range(len(arrivals.due_s)))
    return make_cell(role=Role.OPEN, arrivals=arrivals, prompt_ids=ids, concurrency=0, max_tokens=6, **changes)


@pytest.mark.usefixtures("_quick")
def test_a_cell_of_arrivals_is_measured_as_an_open_loop() -> None:
    cell = open_cell(arriving(every(0.02, 100), window=(0.2, 0.8)))
    done: list[int] = []
    with serving(Vllm(step_s=0.005)) as vllm:
        record = loop.measure(cell, PROMPTS, FakeEngine(vllm), 3, lambda: done.append(1))
        assert vllm.resets == 1
        assert {body["model"] for body in vllm.asked} == {"planted"}
        asked = len(vllm.asked)
    phases = [r.phase for r in record.requests]
    assert phases == [phase_due(cell.arrivals, at) for at in cell.arrivals.due_s][: len(phases)]  # type: ignore[arg-type, union-attr]
    assert [r.prompt_id for r in record.requests] == list(cell.prompt_ids[: len(phases)])
    assert (phases.count(Phase.WARMUP), phases.count(Phase.MEASURED)) == (9, 30)
    assert len(done) == 39
    assert asked == len(phases)
    assert record.before is not None
    assert record.after is not None
    assert record.before.generation_tokens == 0
    assert record.after.generation_tokens >= 39 * 6  # type: ignore[operator]
    assert max(gauge.num_requests_running or 0 for gauge in record.gauges) >= 1
    assert record.client is not None
    assert record.client.dispatch_lag_p99_s is not None
    assert 0 <= record.client.dispatch_lag_p99_s <= record.client.dispatch_lag_max_s  # type: ignore[operator]


@pytest.mark.usefixtures("_quick")
def test_each_arrival_of_a_trace_has_a_length_of_its_own() -> None:
    cell = open_cell(arriving((0.05, 0.1, 0.15), window=(0.0, 0.3), output_tokens=(3, 5, 2)))
    with serving(Vllm()) as vllm:
        record = loop.measure(cell, PROMPTS, FakeEngine(vllm), 0)
    assert [len(r.token_ids) for r in record.requests] == [3, 5, 2]


@pytest.mark.usefixtures("_quick")
def test_a_prompt_that_comes_again_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[tuple[str, int]] = []
    real = loop.wire.encode

    def counted(cell: Cell, prompt: Any, model: str, *, max_tokens: int, **more: Any) -> bytes:
        encoded.append((prompt.id, max_tokens))
        return real(cell, prompt, model, max_tokens=max_tokens, **more)

    monkeypatch.setattr(loop.wire, "encode", counted)
    with serving(Vllm()) as vllm:
        loop.measure(open_cell(arriving(every(0.01, 40), window=(0.0, 0.4))), PROMPTS, FakeEngine(vllm), 0)
    assert sorted(encoded) == sorted((name, 6) for name in PROMPTS)


@pytest.mark.usefixtures("_quick")
def test_a_dying_engine_ends_the_cell() -> None:
    with serving(Vllm(stall_s=30)) as vllm:
        engine = FakeEngine(vllm)
        engine.dies_at = time.monotonic() + 0.5
        began = time.monotonic()
        with pytest.raises(EngineDied, match="Cause: planted"):
            loop.measure(open_cell(arriving(every(0.02, 500), window=(0.1, 5.0))), PROMPTS, engine, 0)
        assert time.monotonic() - began < 3


@pytest.mark.usefixtures("_quick")
def test_requests_that_fail_on_a_living_engine_are_a_measurement_of_that() -> None:
    with serving(Vllm(status=503)) as vllm:
        record = loop.measure(open_cell(arriving(every(0.05, 10), window=(0.0, 0.5))), PROMPTS, FakeEngine(vllm), 0)
    assert {r.error for r in record.requests if r.phase is Phase.MEASURED} == {"HTTP 503: out of memory"}
