"""The load client: the one hot path. While tokens arrive it stores a time and the bytes, and does nothing else."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, repeat
from math import ceil
from typing import Any, TypeVar

from specprof.engine.access import OPEN, Access
from specprof.interrupts import interrupts_held
from specprof.measure.http1 import BadAnswer, Silent
from specprof.measure.others import Others
from specprof.measure.session import Session
from specprof.measure.wire import RawStream
from specprof.records import TIMED_OUT, ClientLoad, Phase

SILENCE_S = 300  # a stream that says nothing for this long has failed
IDLE_S = 300  # closed loops keep their connections busy; one that the server let go in a pause is seen and not used
LAG_PERIOD_S = 0.010
TIMER_S = 0.001  # how coarse the event loop's timers are
SWITCH_INTERVAL_S = 0.0005
FILL_ROUNDS = 16  # how often a content of a mix is sent again at most: an engine that refuses all of it must not spin

T = TypeVar("T")

_clock = time.perf_counter_ns


@dataclass(frozen=True, slots=True)
class Order:
    """One request to send: encoded before the clock starts."""

    prompt_id: str
    phase: Phase
    body: bytes


@asynccontextmanager
async def connected(
    base_url: str, num_streams: int, *, idle_s: float = IDLE_S, access: Access = OPEN
) -> AsyncIterator[Session]:
    """A session with `num_streams` connections already open and used, so that no measured request pays for a connect.

    A connection that was idle for `idle_s` is not used again.
    """
    session = Session(base_url, access, idle_s=idle_s, silence_s=SILENCE_S)
    try:
        await session.warm_up(num_streams)
        yield session
    finally:
        await session.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a client's work to its end, on uvloop: a turn of it costs a fraction of what asyncio's own loop takes.

    An interrupt ends it between two turns. Raised in the middle of a callback it would pass for a fault of that
    connection, and the loop go on without it; and a loop that is left half closed, its threads on their way back to it,
    ends in tracebacks of theirs.
    """
    import uvloop

    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    loop = runner.get_loop()
    task = loop.create_task(work)

    def interrupt() -> None:
        if not task.done():
            loop.call_soon_threadsafe(task.cancel)

    with interrupts_held(interrupt):
        try:
            return loop.run_until_complete(task)
        finally:
            runner.close()


@contextmanager
def undisturbed() -> Iterator[None]:
    """While the block lasts, no garbage collector walks over what is older, and no other thread holds us up for long.

    Threads are what reads counters and draws the progress display. What they were given at a time, 5 ms, is longer
    than a step of an engine.
    """
    interval_s = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)
        gc.unfreeze()


async def closed_loop(
    session: Session,
    path: str,
    orders: Sequence[Order],
    concurrency: int,
    on_done: Callable[[], None] = lambda: None,
) -> list[RawStream]:
    """`concurrency` streams, each sending the next order as soon as its last one ended. Results in order of sending.

    A request is *scheduled* the instant its stream became free for it, so any lateness of the client shows.
    """
    waiting = iter(orders)
    return await _drive(session, path, [waiting] * min(concurrency, len(orders)), lambda _: on_done())


async def mixed_loop(
    session: Session,
    path: str,
    lanes: Sequence[Sequence[Order]],
    concurrency: int,
    on_done: Callable[[], None] = lambda: None,
    *,
    others: Others | None = None,
) -> list[RawStream]:
    """A closed loop whose streams are shared evenly: stream i sends the orders of lane i mod len(lanes), and no others.

    A lane that has run out sends its orders again, as `Phase.FILL`, until every lane's own are done: as long as
    anything is measured, the batch holds the same number of requests of each lane. `on_done` counts measured ones.
    `others`, if this client is one of several: theirs must be done as well.
    """
    num_open = sum(map(len, lanes))

    def waiting(lane: Sequence[Order]) -> Iterator[Order]:
        yield from lane
        for order in chain.from_iterable(repeat(lane, FILL_ROUNDS)):
            if not num_open and (others is None or others.have_ended()):
                return
            yield replace(order, phase=Phase.FILL)

    def ended(raw: RawStream) -> None:
        nonlocal num_open
        if raw.phase is Phase.MEASURED:
            num_open -= 1
            on_done()

    sources = [waiting(lane) for lane in lanes]
    return await _drive(session, path, [sources[i % len(sources)] for i in range(concurrency)], ended)


async def _drive(
    session: Session,
    path: str,
    sources: Sequence[Iterator[Order]],
    ended: Callable[[RawStream], None],
) -> list[RawStream]:
    """One stream per source; streams that share a source take turns at it. Results in order of sending."""
    finished: list[RawStream] = []

    async def stream(number: int, waiting: Iterator[Order]) -> None:
        free_ns = _clock()
        for order in waiting:
            raw = RawStream(order.prompt_id, order.phase, number, scheduled_ns=free_ns)
            finished.append(raw)
            await send(session, path, order.body, raw)
            free_ns = raw.done_ns  # when the last of it came, which may have been before it was read
            ended(raw)

    async with asyncio.TaskGroup() as streams:
        for number, waiting in enumerate(sources):
            streams.create_task(stream(number, waiting))
    return finished


async def until(at_ns: int) -> None:
    """Return when this process's clock reads `at_ns`. Of the last millisecond every turn of the loop is watched."""
    while (early_ns := at_ns - _clock()) > 0:  # noqa: ASYNC110 - what is waited for is an instant
        await asyncio.sleep(max(early_ns / 1e9 - TIMER_S, 0))


async def send(session: Session, path: str, body: bytes, raw: RawStream) -> None:
    """One request from now to its end. What goes wrong on the way ends in `raw.error`; cancelling goes through."""
    try:
        await session.post(path, body, raw)
        return
    except Silent:
        raw.error = f"{TIMED_OUT}: no data for {SILENCE_S} s"
    except BadAnswer as problem:
        raw.error = f"malformed answer: {problem}"
    except OSError as problem:
        raw.error = f"connection failed: {type(problem).__name__}: {problem}"
    raw.done_ns = _clock()
    raw.sent_ns = raw.sent_ns or raw.done_ns


class ClientWatch:
    """Measures the client while it measures: its CPU share, and how late its event loop wakes."""

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._began = 0.0
        self._cpu = 0.0

    async def run(self) -> None:
        """Runs until cancelled."""
        self._began, self._cpu = time.perf_counter(), time.process_time()
        while True:
            due = time.perf_counter() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            self._lags.append(time.perf_counter() - due)

    def load(
        self,
        streams: Sequence[RawStream],
        dispatch_lags_s: Sequence[float] = (),
        kernel_timed: float | None = None,
    ) -> ClientLoad:
        """The client's load since `run` began. `dispatch_lags_s`: of an open loop, how late requests were sent."""
        connects_s = [raw.connect_ns / 1e9 for raw in streams if raw.connect_ns]
        wall = max(time.perf_counter() - self._began, 1e-9)
        return ClientLoad(
            cpu_share=(time.process_time() - self._cpu) / wall,
            loop_lag_p99_s=p99(self._lags or [0.0]),
            dispatch_lag_p99_s=p99(dispatch_lags_s) if dispatch_lags_s else None,
            dispatch_lag_max_s=max(dispatch_lags_s, default=None),
            num_connects=len(connects_s),
            connect_max_s=max(connects_s, default=None),
            kernel_timed=kernel_timed,
        )


def p99(values: Sequence[float]) -> float:
    """The smallest of the values that 99% of them do not exceed."""
    return sorted(values)[ceil(0.99 * len(values)) - 1]
