"""One client: connected, warmed up, then driven through its work. In this process, or as one of several workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from specprof.engine.access import Access
from specprof.measure import open_loop
from specprof.measure.beside import beside
from specprof.measure.interference import interference_loop
from specprof.measure.load import ClientWatch, closed_loop, connected, mixed_loop, undisturbed
from specprof.measure.others import Others
from specprof.measure.session import Session
from specprof.measure.split import Work
from specprof.measure.wire import RawStream
from specprof.records import ClientLoad


@dataclass(frozen=True, slots=True)
class Driven:
    """What came of a work: its streams, in order of sending, and how busy the client was with it."""

    streams: Sequence[RawStream]
    load: ClientLoad


class Client(Protocol):
    """Whoever sends a cell's requests: one process, or several as one."""

    async def warm_up(self) -> Sequence[RawStream]:
        """Send the warm-ups, and wait for their end."""

    async def drive(self, on_done: Callable[[], None]) -> Driven:
        """Send all the rest, the measured part. `on_done` is called as requests end."""


@asynccontextmanager
async def one_client(base_url: str, access: Access, work: Work) -> AsyncIterator[OneClient]:
    """This process as a client, its connections open for as long as the block lasts."""
    with nullcontext() if work.arrivals is None else open_loop.many_sockets():
        async with _connected(base_url, access, work) as session:
            yield OneClient(session, work)


class OneClient:
    """The client of this process."""

    def __init__(self, session: Session, work: Work) -> None:
        self._session, self._work = session, work

    async def warm_up(self) -> Sequence[RawStream]:
        """Send the warm-ups on the streams that are to be measured."""
        work = self._work
        return await closed_loop(self._session, work.path, work.warmups, work.concurrency)

    async def drive(self, on_done: Callable[[], None], others: Others | None = None) -> Driven:
        """Send the rest, and watch this process meanwhile. `others`: of a client that is one of several."""
        watch = ClientWatch()
        async with beside(watch.run()):
            with undisturbed():
                streams, lags_s = await self._send(on_done, others)
            return Driven(streams, watch.load(streams, lags_s, self._session.kernel_timed))

    async def _send(
        self, on_done: Callable[[], None], others: Others | None
    ) -> tuple[Sequence[RawStream], Sequence[float]]:
        """The streams, and of an open loop how late requests were sent, seconds.

        A closed loop's streams take whatever comes next, or of a mix, are bound to one content.
        """
        session, work = self._session, self._work
        if work.arrivals is not None:
            run = await open_loop.open_loop(
                session, work.path, work.orders, work.arrivals, on_done, time_scale=work.time_scale, others=others
            )
            return run.streams, run.dispatch_lags_s
        if work.after_reads is not None:
            newcomer, *decoders = work.orders
            return await interference_loop(session, work.path, newcomer, decoders, work.after_reads, on_done), ()
        if len(work.lanes) == 1:
            return await closed_loop(session, work.path, work.orders, work.concurrency, on_done), ()
        return await mixed_loop(session, work.path, work.lanes, work.concurrency, on_done, others=others), ()


def _connected(base_url: str, access: Access, work: Work) -> AbstractAsyncContextManager[Session]:
    if work.arrivals is None:
        return connected(base_url, work.concurrency, access=access)
    num = open_loop.num_connections(work.arrivals)
    return connected(base_url, num, idle_s=open_loop.IDLE_S, access=access)
