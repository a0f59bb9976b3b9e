"""What this client can do at best, whatever the server: how much it can take in, at what cost, and how truly timed.

The load client drives a server that costs nothing (`measure.flood`), faster and faster. What counts is reads, not
events: a client that has fallen behind finds several events in one read, and those share one arrival time. The most
reads per second at any pace are the ceiling, which gate 11 holds a study's load to; flooded without a pace, any client
swallows far more than it can time. Before that the server keeps an easy pace, and what the client makes of it is the
floor of its timing errors, the server's own small lateness included. Of unencrypted connections, that is: those of
others have the times of reads.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from subprocess import DEVNULL, PIPE, Popen

from specprof.measure import flood
from specprof.measure.load import Order, closed_loop, connected, p99, run, undisturbed
from specprof.measure.session import Session
from specprof.measure.wire import RawStream
from specprof.records import Phase

STREAMS = 8
OFFERED_PER_S = (8_000, 16_000, 32_000, 64_000, 128_000)  # chunks, over all streams
STAGE_S = 0.08
ROUNDS = 2  # of every pace: a machine that stands still for a while spoils one turn of one of them
LONGEST_STAGE_S = 2.0  # a turn that takes longer was disturbed, and does not count
EASY_PACE_S = 0.005  # of the timing floor: 1,600 chunks a second
NUM_EASY = 50  # chunks of each stream


@dataclass(frozen=True, slots=True)
class ClientFloor:
    """`chunks_per_s`: the most that were taken in, each with an arrival time of its own, at `cpu_s_per_chunk`.

    `itl_p99_error_s`: how much too long the 99th percentile of the intervals between chunks was at an easy pace.
    """

    chunks_per_s: float
    cpu_s_per_chunk: float
    itl_p99_error_s: float


def client_floor() -> ClientFloor:
    """What this client can do. Takes a second and a half.

    Raises OSError (TimeoutError is one) or RuntimeError where that cannot be found out.
    """
    with flood_server() as base_url:
        return run(_measured(base_url))


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


async def _measured(base_url: str) -> ClientFloor:
    with undisturbed():
        async with connected(base_url, STREAMS) as session:
            easy = [await _drive(session, NUM_EASY, EASY_PACE_S) for _ in range(ROUNDS)]
            error_s = min(map(_itl_p99_s, easy)) - EASY_PACE_S
        chunks_per_s, cpu_s_per_chunk = await _ramp(base_url)
    return ClientFloor(chunks_per_s, cpu_s_per_chunk, error_s)


async def _ramp(base_url: str) -> tuple[float, float]:
    """The most reads per second over all stages, and CPU seconds of each read of that stage.

    What else the machine does can only lower a stage.
    """
    best = 0.0, 0.0
    async with connected(base_url, STREAMS) as session:
        for offered_per_s in OFFERED_PER_S * ROUNDS:
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_STAGE_S):
                    best = max(best, await _stage(session, offered_per_s))
    if not best[0]:
        raise RuntimeError(f"{STAGE_S:g} s of load took longer than {LONGEST_STAGE_S:g} s")
    return best


async def _stage(session: Session, offered_per_s: int) -> tuple[float, float]:
    """Reads per second, and CPU seconds of each, while so many chunks per second are offered."""
    cpu_before_s, before_s = time.process_time(), time.perf_counter()
    streams = await _drive(session, round(offered_per_s * STAGE_S / STREAMS), STREAMS / offered_per_s)
    cpu_s, wall_s = time.process_time() - cpu_before_s, time.perf_counter() - before_s
    num_reads = sum(len(stream.reads) for stream in streams)
    return num_reads / wall_s, cpu_s / num_reads  # to the last read, not to when what it brought had come


async def _drive(session: Session, num_chunks: int, pace_s: float) -> list[RawStream]:
    """Every stream once. Raises RuntimeError if one is not what was asked for."""
    asked = json.dumps({"max_tokens": num_chunks, "pace_s": pace_s}).encode()
    orders = [Order(str(number), Phase.MEASURED, asked) for number in range(STREAMS)]
    streams = await closed_loop(session, "/v1/completions", orders, STREAMS)
    for stream in streams:
        if stream.error or stream.status != 200:
            raise RuntimeError(stream.error or f"HTTP {stream.status}")
    return streams


def _itl_p99_s(streams: Sequence[RawStream]) -> float:
    """Of the intervals between one read and the next, seconds; of a stream that came in one read, all its time."""
    instants = [[at_ns for at_ns, _ in stream.reads] for stream in streams]
    apart = [(later - earlier) / 1e9 for stream in instants for earlier, later in pairwise(stream)]
    return p99(apart or [NUM_EASY * EASY_PACE_S])
