"""The open loop: requests leave by the clock, whatever has become of those before them.

A request's `scheduled_ns` is the instant it was due and nothing else, so whatever delays it (a server that stalls, a
full client queue, the client itself) is in every time that is counted from there. Nothing waits for a stalled server:
each request has a task and a deadline of its own.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil

from specprof.measure.load import Order, send, until
from specprof.measure.others import Others
from specprof.measure.session import Session
from specprof.measure.wire import RawStream
from specprof.records import TIMED_OUT, Arrivals, Phase

IDLE_S = 4.0  # vLLM closes a connection that was idle for 5 s; one that we let go first is not closed under a request
MAX_PREOPENED = 64
LEAD_S = 0.05  # between setting up and the schedule's start, so that nothing is late because it is the first
SAME_INSTANT_NS = 1_000_000  # two clocks read within this long are read at once
MAX_SOCKETS = 65_536  # an overloaded server leaves a rate times a time-out of requests open

CANCELLED = "cancelled: everything that is measured had ended"

_clock = time.perf_counter_ns


@dataclass(frozen=True, slots=True)
class OpenRun:
    """What was sent, in the order it was due, and how late the client was.

    `dispatch_lags_s` holds `sent - scheduled`, without what connecting took, of every measured request that no cap
    held back.
    """

    streams: tuple[RawStream, ...]
    dispatch_lags_s: tuple[float, ...]


def num_connections(arrivals: Arrivals) -> int:
    """How many connections to open beforehand: as many as may be needed before one would be idle for too long."""
    wanted = arrivals.max_concurrency or ceil(arrivals.rate_per_s * IDLE_S)
    return min(wanted, MAX_PREOPENED)


async def open_loop(
    session: Session,
    path: str,
    orders: Sequence[Order],
    arrivals: Arrivals,
    on_done: Callable[[], None] = lambda: None,
    *,
    time_scale: float = 1.0,
    others: Others | None = None,
) -> OpenRun:
    """Send `orders[i]` when `arrivals.due_s[i]` has come, until the window is over and all of it has ended.

    With a cap, what is due waits here, first come first served. What has not ended `timeout_s` after it was due is
    given up, in the queue or on the wire; what had arrived by then is kept. What is still out when the last measured
    request ends is cancelled and kept likewise; what never left is dropped. `on_done` counts all but `Phase.FILL`.
    `time_scale`: seconds of the schedule that pass in one of ours (`measure.clock`). `others`, if this client is one of
    several: all begin at one instant, and the load is kept up until what they measure has ended as well.
    """
    return await _OpenLoop(session, path, orders, arrivals, on_done, time_scale, others).run()


def _clocks() -> tuple[float, int]:
    """One instant by the loop's clock, seconds, and by ours: read again where the machine paused between the two."""
    while True:
        before_ns, loop_s, now_ns = _clock(), asyncio.get_running_loop().time(), _clock()
        if now_ns - before_ns < SAME_INSTANT_NS:
            return loop_s, now_ns


class _OpenLoop:
    def __init__(
        self,
        session: Session,
        path: str,
        orders: Sequence[Order],
        arrivals: Arrivals,
        on_done: Callable[[], None],
        time_scale: float,
        others: Others | None,
    ) -> None:
        self._session, self._path, self._orders = session, path, orders
        self._arrivals, self._on_done, self._scale = arrivals, on_done, time_scale
        self._slots = asyncio.Semaphore(arrivals.max_concurrency) if arrivals.max_concurrency else None
        self._streams: list[RawStream] = []
        self._held: set[int] = set()  # those that a cap made wait
        self._out: set[asyncio.Task[None]] = set()
        self._num_measured = sum(order.phase is Phase.MEASURED for order in orders)
        self._all_measured = asyncio.Event()
        if not self._num_measured:
            self._all_measured.set()
        self._others = others
        loop_s, now_ns = _clocks()
        self._start_ns = now_ns + round(LEAD_S * 1e9) if others is None else others.start_ns
        self._start_s = loop_s + (self._start_ns - now_ns) / 1e9

    async def run(self) -> OpenRun:
        window_end_s = self._start_s + (self._arrivals.warmup_s + self._arrivals.duration_s) / self._scale
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(self._dispatch(group))
            left_s = window_end_s - asyncio.get_running_loop().time()
            await asyncio.sleep(left_s)  # tokens of earlier requests arrive until then
            await self._all_measured.wait()
            if self._others is not None:
                await self._others.wait()
            for task in (sending, *self._out):
                task.cancel()
        sent = tuple(raw for raw in self._streams if raw.done_ns)
        on_their_own = (raw for raw in sent if raw.phase is Phase.MEASURED and raw.stream not in self._held)
        return OpenRun(sent, tuple((raw.sent_ns - raw.connect_ns - raw.scheduled_ns) / 1e9 for raw in on_their_own))

    async def _dispatch(self, group: asyncio.TaskGroup) -> None:
        """Every request becomes a task the moment it is due; one that is overdue does not wait for a timer."""
        for number, (order, due_s) in enumerate(zip(self._orders, self._arrivals.due_s, strict=True)):
            scheduled_ns = self._start_ns + round(due_s * 1e9 / self._scale)
            raw = RawStream(order.prompt_id, order.phase, number, scheduled_ns)
            await until(scheduled_ns)
            self._streams.append(raw)
            task = group.create_task(self._request(order.body, raw, due_s))
            self._out.add(task)
            task.add_done_callback(self._out.discard)

    async def _request(self, body: bytes, raw: RawStream, due_s: float) -> None:
        deadline_s = self._start_s + (due_s + self._arrivals.timeout_s) / self._scale
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._send(body, raw)
        except TimeoutError:
            if not raw.done_ns:  # its answer may have ended in the turn of the loop in which its time was up
                self._give_up(raw)
        except asyncio.CancelledError:
            if raw.sent_ns and not raw.done_ns:
                raw.error, raw.done_ns = CANCELLED, _clock()
            raise
        if raw.phase is not Phase.FILL:
            self._on_done()
        if raw.phase is Phase.MEASURED:
            self._num_measured -= 1
            if not self._num_measured:
                self._all_measured.set()

    async def _send(self, body: bytes, raw: RawStream) -> None:
        if self._slots is None:
            await send(self._session, self._path, body, raw)
            return
        if self._slots.locked():
            self._held.add(raw.stream)
        async with self._slots:  # its waiters are served in the order they came
            await send(self._session, self._path, body, raw)

    def _give_up(self, raw: RawStream) -> None:
        """One that never left has spent all its life in the client's queue: it is `sent` when it is given up."""
        raw.done_ns = _clock()
        where = "had not ended" if raw.sent_ns else "was still waiting in the client"
        raw.sent_ns = raw.sent_ns or raw.done_ns
        raw.error = f"{TIMED_OUT}: {where} {self._arrivals.timeout_s:g} s after it was due"


@contextmanager
def many_sockets() -> Iterator[None]:
    """As many open files as the system lets us have, while the block lasts; an engine started later inherits none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ceiling = MAX_SOCKETS if hard == resource.RLIM_INFINITY else min(hard, MAX_SOCKETS)
    if soft == resource.RLIM_INFINITY or soft >= ceiling:
        yield
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
