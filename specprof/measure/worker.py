"""A worker: one client that does as it is told from elsewhere, and the process that it is.

`Worker` is the same whatever it runs in; a Ray actor is made of it as it stands (`measure.ray_crew`). As a process of
its own (`python -m specprof.measure.worker`) it hears calls on standard input and answers on standard output, each a
length and a pickle, written and read by a process and its own child. Its input ends with its parent, and it with that.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from specprof.engine.access import Access
from specprof.measure.client import OneClient, one_client
from specprof.measure.load import run, until
from specprof.measure.others import Others
from specprof.measure.split import Work
from specprof.measure.wire import RawStream
from specprof.records import ClientLoad

HEADER = struct.Struct("!Q")

_clock = time.perf_counter_ns


@dataclass(frozen=True, slots=True)
class Progress:
    """How many requests of the present work have ended, and whether all that is measured has."""

    num_done: int
    all_measured: bool


@dataclass(frozen=True, slots=True)
class Returned:
    """What a worker sends back: its streams, as bytes that `streams_of` reads, how many, and its own load."""

    streams: bytes
    num_streams: int
    num_reads: int
    load: ClientLoad | None  # of a warm-up none


def streams_of(returned: Returned) -> list[RawStream]:
    """The streams, by the worker's clock. Raises ValueError where they are not as many as it says."""
    streams: list[RawStream] = pickle.loads(returned.streams)  # noqa: S301 - our own worker's
    if len(streams) != returned.num_streams:
        raise ValueError(f"sent back {len(streams)} of {returned.num_streams} streams")
    return streams


class Worker:
    """One client, told by calls: `clock`, `prepare`, `warm_up`, `drive`, and beside that `progress` and `finish`."""

    def __init__(self) -> None:
        self._open = AsyncExitStack()
        self._client: OneClient | None = None
        self._work: Work | None = None
        self._others: Others | None = None
        self._num_done = 0

    async def clock(self) -> int:
        """This process's clock, now: nanoseconds from a beginning that is its own."""
        return _clock()

    async def admit(self, name: str, token: str) -> None:
        """Take a bearer token that only the caller's environment holds into this process's, and nowhere else."""
        os.environ[name] = token

    async def prepare(self, base_url: str, access: Access, work: Work) -> None:
        """Take over a work, encoded as it is, and connect."""
        await self._open.aclose()
        self._work, self._num_done, self._others = work, 0, None
        self._client = await self._open.enter_async_context(one_client(base_url, access, work))

    async def warm_up(self) -> Returned:
        """Send the warm-ups."""
        assert self._client is not None  # noqa: S101 - prepared before
        return _returned(await self._client.warm_up(), None)

    async def drive(self, start_ns: int) -> Returned:
        """Begin when this process's clock reads `start_ns`, send all the rest and let go of the connections."""
        assert self._client is not None and self._work is not None  # noqa: S101 - prepared before
        self._others = Others(start_ns)
        if self._work.arrivals is None:  # an open loop begins by itself when it is due
            await until(start_ns)
        driven = await self._client.drive(self._count, self._others)
        await self._open.aclose()
        return _returned(driven.streams, driven.load)

    async def progress(self) -> Progress:
        """How far it is; that it answers at all says that it lives."""
        return Progress(self._num_done, self._others is not None and self._others.was_asked)

    async def finish(self) -> None:
        """What is measured has ended everywhere: nothing needs to keep the load up any more."""
        if self._others is not None:
            self._others.end()

    async def close(self) -> None:
        """Let go of whatever is open."""
        await self._open.aclose()

    def _count(self) -> None:
        self._num_done += 1


def _returned(streams: Sequence[RawStream], load: ClientLoad | None) -> Returned:
    num_reads = sum(len(raw.reads) for raw in streams)
    return Returned(pickle.dumps(list(streams), pickle.HIGHEST_PROTOCOL), len(streams), num_reads, load)


# -- the process ------------------------------------------------------------------------------------------------------


def frame(value: Any) -> bytes:
    """A value as it goes through a pipe."""
    body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body


async def serve(calls: asyncio.StreamReader, answers: int) -> None:
    """Answer calls, (number, method, arguments), with (number, whether it went well, result), until there are no more.

    Calls overlap, so that a worker that drives can still be asked how far it is.
    """
    worker, running = Worker(), set[asyncio.Task[None]]()

    async def answer(number: int, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            outcome = (number, True, await getattr(worker, method)(*arguments))
        except Exception as problem:  # noqa: BLE001 - whatever it is, the parent is told
            outcome = (number, False, f"{type(problem).__name__}: {problem}")
        _write(answers, frame(outcome))

    while (call := await _next(calls)) is not None:
        task = asyncio.create_task(answer(*call))
        running.add(task)
        task.add_done_callback(running.discard)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await worker.close()


async def _next(calls: asyncio.StreamReader) -> Any:
    """The next call; None once the parent is gone."""
    try:
        (length,) = HEADER.unpack(await calls.readexactly(HEADER.size))
        return pickle.loads(await calls.readexactly(length))  # noqa: S301 - written by our own parent
    except asyncio.IncompleteReadError:
        return None


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


async def main() -> None:
    """Serve whoever started this process, until that ends."""
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whoever prints must not write among the answers
    calls = asyncio.StreamReader()
    reads_calls = asyncio.StreamReaderProtocol(calls)
    await asyncio.get_running_loop().connect_read_pipe(lambda: reads_calls, os.fdopen(os.dup(sys.stdin.fileno()), "rb"))
    await serve(calls, answers)


if __name__ == "__main__":
    from specprof.measure import worker  # noqa: PLW0406 - its importable name, the one that its results are pickled under

    run(worker.main())
