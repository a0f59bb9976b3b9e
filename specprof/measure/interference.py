"""Steady decoders, and one long prompt that arrives among them: who waits for whom is read from the records later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from specprof.measure.load import Order, send
from specprof.measure.session import Session
from specprof.measure.wire import RawStream

WATCH_PERIOD_S = 0.002  # a fraction of any engine step, and nothing to a client that wakes for every chunk

_clock = time.perf_counter_ns


async def interference_loop(
    session: Session,
    path: str,
    newcomer: Order,
    decoders: Sequence[Order],
    after_reads: int,
    on_done: Callable[[], None] = lambda: None,
) -> list[RawStream]:
    """Every decoder at once, and the newcomer when each of them has been read from `after_reads` times or has ended.

    Reads are counted rather than tokens, since counting them costs the hot path nothing; each brings one token at
    least. A decoder that ended too early is for analysis to find. Results in order of sending.
    """
    streams: list[RawStream] = []

    async def sent(order: Order) -> None:
        raw = RawStream(order.prompt_id, order.phase, len(streams), scheduled_ns=_clock())
        streams.append(raw)
        await send(session, path, order.body, raw)
        on_done()

    def heard(decoder: RawStream) -> bool:
        return len(decoder.reads) >= after_reads or bool(decoder.done_ns)

    async with asyncio.TaskGroup() as group:
        for order in decoders:
            group.create_task(sent(order))
        while len(streams) < len(decoders) or not all(map(heard, streams)):  # noqa: ASYNC110 - see the docstring
            await asyncio.sleep(WATCH_PERIOD_S)
        group.create_task(sent(newcomer))
    return streams
