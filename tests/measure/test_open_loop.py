"""The open loop: what it does against a real local server, and its instants to the millisecond on a virtual clock."""

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

from specprof.errors import EngineDied
from specprof.measure import loop
from specprof.measure.load import ClientWatch, Order, connected
from specprof.measure.open_loop import CANCELLED, LEAD_S, OpenRun, num_connections, open_loop
from specprof.measure.wire import RawStream, decode
from specprof.records import Arrivals, Cell, Phase, Request, Role, phase_due
from tests.factory import make_cell, make_prompt
from tests.measure.doubles import FakeEngine
from tests.measure.sse import Vllm, serving
from tests.measure.turns import A_FEW, Turns
from tests.measure.virtual import MOMENT_S, URL, Server, VirtualLoop, virtual

PROMPTS = {name: make_prompt(name) for name in make_cell(num_prompts=8).prompt_ids}


def arriving(due_s: Sequence[float], *, window: tuple[float, float] = (0.0, 1.0), **changes: Any) -> Arrivals:
    """Arrivals at these seconds, measured in the window."""
    begins, ends = window
    plain = Arrivals("constant", len(due_s) / ends, 1.0, begins, ends - begins, 30.0, tuple(due_s))
    return replace(plain, **changes)


def every(gap_s: float, count: int) -> tuple[float, ...]:
    return tuple(gap_s * (i + 1) for i in range(count))


def orders(arrivals: Arrivals) -> list[Order]:
    """Four tokens each, numbered so that a server can tell them apart."""
    bodies = (json.dumps({"max_tokens": 4, "number": i}).encode() for i in range(len(arrivals.due_s)))
    phases = (phase_due(arrivals, due) for due in arrivals.due_s)
    return [Order(f"p{i}", phase, body) for i, (phase, body) in enumerate(zip(phases, bodies, strict=True))]


def drive(
    vllm: Vllm,
    arrivals: Arrivals,
    *,
    on_done: Callable[[], None] = lambda: None,
    turns: Turns | None = None,
) -> OpenRun:
    """What comes of it over a real socket. `turns` are those of the client's loop."""

    async def run() -> OpenRun:
        async with connected(vllm.base_url, num_connections(arrivals)) as session, (turns or Turns()).noted():
            return await open_loop(session, "/v1/completions", orders(arrivals), arrivals, on_done)

    return asyncio.run(run())


@dataclass(frozen=True)
class Reckoned:
    """A run on a virtual clock, and when the schedule began and all had ended by that clock."""

    run: OpenRun
    began_ns: float
    ended_ns: int

    def since_start_s(self, at_ns: float) -> float:
        """An instant, seconds from the schedule's start."""
        return (at_ns - self.began_ns) / 1e9

    @property
    def requests(self) -> list[Request]:
        return decoded(self.run)


async def nothing(_loop: VirtualLoop) -> None:
    """Beside the load."""


def reckon(
    server: Server,
    arrivals: Arrivals,
    *,
    meanwhile: Callable[[VirtualLoop], Awaitable[None]] = nothing,
    time_scale: float = 1.0,
) -> Reckoned:
    """What comes of it on a virtual clock."""
    with virtual(server) as clock:

        async def work() -> tuple[OpenRun, int]:
            async with connected(URL, num_connections(arrivals)) as session:
                other = asyncio.ensure_future(meanwhile(clock))
                found = await open_loop(session, "/v1/completions", orders(arrivals), arrivals, time_scale=time_scale)
                ended_ns = clock.clock_ns()
                await other
                return found, ended_ns

        run, ended_ns = clock.run_until_complete(work())
    return Reckoned(run, run.streams[0].scheduled_ns - arrivals.due_s[0] * 1e9 / time_scale, ended_ns)


def decoded(run: OpenRun) -> list[Request]:
    return [decode(raw) for raw in run.streams]


def late_s(raw: RawStream) -> float:
    return (raw.sent_ns - raw.scheduled_ns) / 1e9


def moments(*seconds: float) -> Any:
    """As it would be if nothing took any time."""
    return pytest.approx(list(seconds), abs=MOMENT_S)


# -- due instants -----------------------------------------------------------------------------------------------------


def test_every_request_is_due_when_the_schedule_says_and_is_sent_then() -> None:
    arrivals = arriving((0.0, 0.05, 0.051, 0.051, 0.2, 0.4), window=(0.1, 0.5))
    done: list[int] = []
    turns = Turns()
    with serving(Vllm()) as vllm:
        run = drive(vllm, arrivals, on_done=lambda: done.append(1), turns=turns)
    start = run.streams[0].scheduled_ns
    assert [raw.scheduled_ns - start for raw in run.streams] == pytest.approx([at * 1e9 for at in arrivals.due_s])
    assert [raw.prompt_id for raw in run.streams] == [f"p{i}" for i in range(6)]
    assert [raw.phase for raw in run.streams] == [Phase.WARMUP] * 4 + [Phase.MEASURED] * 2
    assert all(late_s(raw) >= 0 for raw in run.streams)
    assert all(turns.between(raw.scheduled_ns, raw.sent_ns) <= A_FEW for raw in run.streams)
    assert {(r.error, r.token_ids) for r in decoded(run)} == {(None, (0, 1, 2, 3))}
    assert len(done) == 6


def test_requests_do_not_wait_for_one_another() -> None:
    """Ten requests to a server that answers none before all ten are there."""
    arrivals = arriving(every(0.02, 10), window=(0.0, 0.3))
    turns = Turns()
    with serving(Vllm(gather=10)) as vllm:
        run = drive(vllm, arrivals, turns=turns)
        assert vllm.most_running == 10
    assert {r.error for r in decoded(run)} == {None}
    assert all(turns.between(raw.scheduled_ns, raw.sent_ns) <= A_FEW for raw in run.streams)


def test_a_faster_clock_is_a_faster_schedule() -> None:
    """Four engine seconds pass in one of ours: what is due at 2 s is due after half a second, and 2.4 s are 0.6."""
    found = reckon(Server(), arriving((0.4, 2.0), window=(0.0, 2.4)), time_scale=4.0)
    assert [found.since_start_s(raw.scheduled_ns) for raw in found.run.streams] == pytest.approx([0.1, 0.5])
    assert [found.since_start_s(raw.sent_ns) for raw in found.run.streams] == moments(0.1, 0.5)
    assert found.since_start_s(found.ended_ns) == pytest.approx(0.6, abs=MOMENT_S)


def test_the_window_is_watched_to_its_end_even_if_nothing_is_due() -> None:
    found = reckon(Server(stall_s=0.2), arriving((0.05,), window=(0.1, 0.5)))
    assert found.since_start_s(found.ended_ns) == pytest.approx(0.5, abs=MOMENT_S)
    assert [(r.phase, r.error) for r in found.requests] == [(Phase.WARMUP, None)], "its tokens came inside the window"


# -- a cap ------------------------------------------------------------------------------------------------------------


def test_a_cap_holds_back_what_is_due_first_come_first_served() -> None:
    """Two at once, 0.108 s each, eight due at almost the same time: the last pair leaves three answers later."""
    arrivals = arriving(every(0.001, 8), max_concurrency=2)
    found = reckon(Server(stall_s=0.1), arrivals)
    sent_s = [found.since_start_s(raw.sent_ns) for raw in found.run.streams]
    assert sent_s == moments(*(arrivals.due_s[i % 2] + i // 2 * 0.108 for i in range(8)))
    assert sent_s == sorted(sent_s)
    assert len(found.run.dispatch_lags_s) == 2, "those that the cap held back say nothing of the client"
    assert max(found.run.dispatch_lags_s) < MOMENT_S


def test_a_cap_is_reached_and_never_exceeded() -> None:
    with serving(Vllm(gather=2)) as vllm:
        run = drive(vllm, arriving(every(0.001, 8), max_concurrency=2))
        assert vllm.most_running == 2
    assert {r.error for r in decoded(run)} == {None}
    for earlier, later in pairwise(run.streams):
        assert earlier.sent_ns <= later.sent_ns


def test_a_cap_that_is_never_reached_changes_nothing() -> None:
    arrivals = arriving(every(0.02, 10), max_concurrency=100)
    with serving(Vllm()) as vllm:
        run = drive(vllm, arrivals)
    assert len(run.dispatch_lags_s) == 10
    assert {r.error for r in decoded(run)} == {None}


# -- time-outs --------------------------------------------------------------------------------------------------------


def test_what_takes_too_long_is_given_up_and_keeps_what_had_arrived() -> None:
    found = reckon(Server(stall_s=20), arriving((0.05,), window=(0.0, 0.2), timeout_s=0.4))
    (request,) = found.requests
    assert request.error == "timed out: had not ended 0.4 s after it was due"
    assert request.token_ids == (0,), "the first chunk had arrived"
    assert [found.since_start_s(request.done_ns)] == moments(0.45)


def test_what_had_ended_when_its_time_was_up_has_ended() -> None:
    """The client stands still while an answer comes in time, and reads it in the turn in which its time is up."""

    class Whole:
        async def post(self, path: str, body: bytes, raw: RawStream) -> None:
            raw.sent_ns = time.monotonic_ns()
            await asyncio.sleep(0.05)
            time.sleep(0.3)  # noqa: ASYNC251 - the whole process stands still
            raw.status, raw.done_ns = 200, raw.sent_ns + 60_000_000
            await asyncio.sleep(0)  # the time-out is thrown in here

    arrivals = arriving((0.0,), window=(0.0, 0.05), timeout_s=0.2)
    run = asyncio.run(open_loop(Whole(), "/", orders(arrivals), arrivals))  # type: ignore[arg-type]
    (raw,) = run.streams
    assert (raw.error, raw.done_ns - raw.sent_ns) == (None, 60_000_000)


def test_what_never_left_the_client_is_given_up_too() -> None:
    server = Server(stall_s=20)
    found = reckon(server, arriving((0.05, 0.05), window=(0.0, 0.2), timeout_s=0.4, max_concurrency=1))
    first, second = found.requests
    assert len(server.asked) == 1
    assert first.error == "timed out: had not ended 0.4 s after it was due"
    assert second.error == "timed out: was still waiting in the client 0.4 s after it was due"
    assert second.sent_ns == second.done_ns, "all of its life was client queue"
    assert [found.since_start_s(second.done_ns)] == moments(0.45)


def test_a_slot_is_free_again_after_a_time_out() -> None:
    """The first two fall silent for ever; the third leaves when they have been given up."""
    arrivals = arriving((0.0, 0.0, 0.3), window=(0.0, 0.4), timeout_s=0.5, max_concurrency=2)
    found = reckon(Server(forgets=2), arrivals)
    assert [r.error is None for r in found.requests] == [False, False, True]
    assert [found.since_start_s(r.sent_ns) for r in found.requests] == moments(0.0, 0.0, 0.5)
    assert found.requests[2].sent_ns >= found.requests[0].done_ns


def test_a_time_out_ends_a_real_connection_and_not_the_others() -> None:
    """One of two is never ended by the server: it alone is given up, and what had arrived is kept."""
    with serving(Vllm(may_end=lambda body: body["number"] == 0)) as vllm:
        run = drive(vllm, arriving((0.0, 0.01), window=(0.0, 0.1), timeout_s=4.0))
    whole, timed_out = decoded(run)
    assert timed_out.error == "timed out: had not ended 4 s after it was due"
    assert timed_out.token_ids, "it was being written all the time"
    assert (whole.error, whole.token_ids) == (None, (0, 1, 2, 3))


# -- a server that stalls ---------------------------------------------------------------------------------------------

STALL_S = 1.0


@pytest.mark.parametrize("cap", [None, 2])
def test_a_stall_is_seen_by_every_request_that_was_due_in_it(cap: int | None) -> None:
    """One request every 50 ms; the eleventh brings the whole server to a halt for a second.

    What is due x seconds into the stall waits 1 - x seconds for its first token, counted from when it was due. A closed
    loop of two would have sent two requests in that second, and its p99 over a few hundred would not show them.
    """
    arrivals = arriving(every(0.05, 40), window=(0.0, 2.1), max_concurrency=cap)
    found = reckon(Server(stands_still=(10, STALL_S)), arrivals)
    requests = found.requests
    assert {r.error for r in requests} == {None}
    hit = requests[10:28]  # due 0, 50, … 850 ms into the stall
    left_s = [STALL_S - 0.05 * i for i in range(18)]
    since_due_s = [(r.chunk_ns[0] - r.scheduled_ns) / 1e9 for r in hit]
    assert all(waited_s >= left for waited_s, left in zip(since_due_s, left_s, strict=True))
    since_sent_s = sorted((r.chunk_ns[0] - r.sent_ns) / 1e9 for r in hit)
    if cap is None:
        assert since_due_s == moments(*left_s)
        assert max(map(late_s, found.run.streams)) < MOMENT_S, "nothing waits for the server: every timer went on"
        assert since_sent_s == moments(*reversed(left_s))
    else:
        assert since_sent_s[:16] == moments(*[0.002] * 16), "from when they were sent, all but two saw nothing of it"


# -- its end ----------------------------------------------------------------------------------------------------------


def test_filling_stops_when_the_last_measured_request_has_ended() -> None:
    """Answers take 0.308 s: the last measured one, due at 0.38 s, ends at 0.688 s. The schedule goes on to 10 s."""
    server = Server(stall_s=0.3)
    found = reckon(server, arriving(every(0.02, 500), window=(0.1, 0.4)))
    requests = found.requests
    last_ns = max(r.done_ns for r in requests if r.phase is Phase.MEASURED)
    assert [found.since_start_s(at_ns) for at_ns in (last_ns, found.ended_ns)] == moments(0.688, 0.688)
    filling = [r for r in requests if r.phase is Phase.FILL]
    assert [found.since_start_s(r.sent_ns) for r in filling] == moments(*(0.4 + 0.02 * i for i in range(15)))
    assert len(server.asked) == len(requests), "whatever the server saw is in the record"
    assert {r.error for r in filling} == {CANCELLED}, "none of them had its 0.308 s"
    assert {r.token_ids for r in filling} == {(0,)}, "what had arrived is kept"
    assert {r.error for r in requests if r.phase is not Phase.FILL} == {None}


def test_filling_over_a_real_socket_stops_with_what_is_measured() -> None:
    """The three measured texts end when others have come beside them; those are written on and on."""
    arrivals = arriving(every(0.02, 3_000), window=(0.0, 0.07))
    done_ns: list[int] = []
    with serving(Vllm(may_end=lambda body: body["number"] < 3 and len(vllm.asked) > 5)) as vllm:
        run = drive(vllm, arrivals, on_done=lambda: done_ns.append(time.perf_counter_ns()))
        assert len(vllm.asked) <= len(run.streams), "whatever the server saw is in the record"
    requests = decoded(run)
    assert [r.error for r in requests if r.phase is Phase.MEASURED] == [None] * 3
    filling = [r for r in requests if r.phase is Phase.FILL]
    assert 3 <= len(filling) < 2_900
    assert {r.error for r in filling} == {CANCELLED}
    assert all(r.scheduled_ns <= done_ns[-1] for r in filling), "no later than the loop knew"


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


@pytest.mark.usefixtures("_quick")
def test_more_requests_than_files_may_be_open_are_no_failure() -> None:
    """A server that does not answer holds every request's socket; the usual limit of 1,024 files is soon reached.

    The counters are read once more while the sockets rest, open still.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    cell = open_cell(arriving(every(0.004, 100), window=(0.0, 0.41)))
    with serving(Vllm(gather=100)) as vllm:
        num_open = len(list(Path("/proc/self/fd").iterdir()))
        # the server is in this process, so a request has two files: enough for 64 connections beforehand, not for 100
        resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + 2 * 80, hard))
        try:
            record = loop.measure(cell, PROMPTS, FakeEngine(vllm), 0)
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == num_open + 2 * 80
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert {request.error for request in record.requests} == {None}
    assert record.after is not None


# -- the client itself ------------------------------------------------------------------------------------------------


def test_an_idle_client_is_on_time() -> None:
    """Half of its requests leave within five turns of its loop, at one a millisecond, after they were due."""
    turns = Turns()
    with serving(Vllm()) as vllm:
        run = drive(vllm, arriving(every(0.01, 100), window=(0.0, 1.1)), turns=turns)
    assert len(run.dispatch_lags_s) == 100
    assert min(run.dispatch_lags_s) >= 0
    late = sorted(turns.between(raw.scheduled_ns, raw.sent_ns - raw.connect_ns) for raw in run.streams)
    assert late[50] <= 5


def test_a_client_that_is_late_says_so() -> None:
    """Blocked from 0.25 s to 0.45 s after the schedule's start, as what goes on beside it begins `LEAD_S` earlier."""

    async def blocks(clock: VirtualLoop) -> None:
        await asyncio.sleep(LEAD_S + 0.25)
        clock.pass_by(0.2)

    lags_s = reckon(Server(), arriving(every(0.02, 40)), meanwhile=blocks).run.dispatch_lags_s
    assert len(lags_s) == 40
    late_s = [0.19 - 0.02 * i for i in range(10)]  # what was due at 0.26, 0.28, … 0.44 s
    assert sorted(lags_s, reverse=True)[:10] == moments(*late_s)
    assert sorted(lags_s)[:30] == moments(*[0.0] * 30)


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
    with serving(Vllm(step_s=0.005, first_seen_running=1)) as vllm:
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
    """It dies with a request on it that would be silent for ten minutes."""
    with serving(Vllm(stall_s=600)) as vllm:
        engine = FakeEngine(vllm)
        engine.dies_when = lambda: vllm.running > 0
        began = time.monotonic()
        with pytest.raises(EngineDied, match="Cause: planted"):
            loop.measure(open_cell(arriving(every(0.02, 500), window=(0.1, 5.0))), PROMPTS, engine, 0)
        assert time.monotonic() - began < 60


@pytest.mark.usefixtures("_quick")
def test_requests_that_fail_on_a_living_engine_are_a_measurement_of_that() -> None:
    with serving(Vllm(status=503)) as vllm:
        record = loop.measure(open_cell(arriving(every(0.05, 10), window=(0.0, 0.5))), PROMPTS, FakeEngine(vllm), 0)
    assert {r.error for r in record.requests if r.phase is Phase.MEASURED} == {"HTTP 503: out of memory"}
