"""How many chunks a second this client could take in, whatever the server: gate 11 holds a study's load to it.

The load client drives a server that costs nothing (`measure.flood`), faster and faster. What counts is reads, not
events: a client that has fallen behind finds several events in one read, and those share one arrival time. The most
reads per second at any pace are the ceiling; flooded without a pace, any client swallows far more than it can time.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from subprocess import DEVNULL, PIPE, Popen

import aiohttp

from specprof.measure import flood
from specprof.measure.load import Order, closed_loop, connected
from specprof.records import Phase

STREAMS = 8
OFFERED_PER_S = (8_000, 16_000, 32_000, 64_000, 128_000)  # chunks, over all streams; in turn, while there is time
STAGE_S = 0.08
MEASURE_S = 1.0


def client_ceiling() -> float:
    """Chunks per second that this client can take in, each with an arrival time of its own. Takes about a second.

    Raises OSError (TimeoutError is one) or RuntimeError where that cannot be found out.
    """
    with flood_server() as base_url:
        return asyncio.run(_ramp(base_url))


@contextmanager
def flood_server() -> Iterator[str]:
    """The address of a `flood` server; its process is gone when the block ends."""
    with Popen(
        [sys.executable, "-I", "-S", flood.__file__],  # bare: it needs nothing but the standard library
        stdin=PIPE,  # its end tells the server that we are gone, even if we were killed
        stdout=PIPE,
        stderr=DEVNULL,
        text=True,
        start_new_session=True,  # an interrupt at the terminal is ours to handle
    ) as process:
        try:
            assert process.stdout is not None  # noqa: S101 - asked for above; tells the type checker
            base_url = process.stdout.readline().strip()
            if not base_url:
                raise RuntimeError("the server to measure it with did not start")
            yield base_url
        finally:
            process.kill()


async def _ramp(base_url: str) -> float:
    """The most reads per second over the stages there is time for; what else the machine does can only lower one."""
    best = 0.0
    with suppress(TimeoutError):  # cuts the last stage short, which then does not count
        async with asyncio.timeout(MEASURE_S), connected(base_url, STREAMS) as session:
            for offered_per_s in cycle(OFFERED_PER_S):
                best = max(best, await _stage(session, offered_per_s))
    if not best:
        raise RuntimeError(f"{STAGE_S:g} s of load took longer than {MEASURE_S:g} s")
    return best


async def _stage(session: aiohttp.ClientSession, offered_per_s: int) -> float:
    """Reads per second while so many chunks per second are offered."""
    asked = {"max_tokens": round(offered_per_s * STAGE_S / STREAMS), "pace_s": STREAMS / offered_per_s}
    orders = [Order(str(number), Phase.MEASURED, json.dumps(asked).encode()) for number in range(STREAMS)]
    streams = await closed_loop(session, "/v1/completions", orders, STREAMS)
    for stream in streams:
        if stream.error or stream.status != 200:
            raise RuntimeError(stream.error or f"HTTP {stream.status}")
    wall_ns = max(stream.done_ns for stream in streams) - min(stream.sent_ns for stream in streams)
    return sum(len(stream.reads) for stream in streams) / (wall_ns / 1e9)
