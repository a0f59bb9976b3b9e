"""Clients in one process, each driven by a few lines: specprof's own, bare loops, and vLLM's.

    python -m benchmarks.clients.drivers CLIENT URL --streams 64 --requests 512 --tokens 1024 [--core 1]

prints one JSON object: chunks, wall and CPU seconds of the loaded part, and what the client itself says of the times.
specprof is driven as `specprof run` does it: connected beforehand, closed loop, bytes and times kept; what decoding
afterwards costs is told apart. vLLM's is `vllm.benchmarks.lib.endpoint_request_func` with the connector of `vllm bench
serve`, its tasks started as that starts them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.clients.measuring import p99

PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Times:
    """Of one request, seconds: to its first chunk, and between chunks."""

    ttft_s: float
    itl_s: tuple[float, ...]


@dataclass(slots=True)
class Driven:
    """What a client did. `cpu_s` and `wall_s` are of the loaded part."""

    wall_s: float
    cpu_s: float
    times: list[Times]
    decode_cpu_s: float | None = None
    connect_s: float | None = None


Load = argparse.Namespace
Driver = Callable[[Load], Driven]


def body_of(load: Load) -> dict[str, Any]:
    """The request that every client sends."""
    return {
        "model": "bench",
        "prompt": "word " * 32,
        "max_tokens": load.tokens,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


class Meter:
    """CPU and wall seconds between two looks."""

    def __init__(self) -> None:
        gc.collect()
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def read(self) -> tuple[float, float]:
        """Wall and CPU seconds so far."""
        return time.perf_counter() - self._wall, time.process_time() - self._cpu


# -- specprof ---------------------------------------------------------------------------------------------------------


def specprof(load: Load) -> Driven:
    """The path of `specprof run`."""
    from specprof.measure.load import Order, closed_loop, connected, run, undisturbed
    from specprof.measure.wire import decode
    from specprof.records import Phase

    body = json.dumps(body_of(load) | {"return_token_ids": True}).encode()
    orders = [Order(str(number), Phase.MEASURED, body) for number in range(load.requests)]

    async def drive() -> tuple[Any, float, float, float]:
        began = time.perf_counter()
        async with connected(load.url, load.streams) as session:
            connect_s = time.perf_counter() - began
            with undisturbed():
                meter = Meter()
                streams = await closed_loop(session, PATH, orders, load.streams)
                return streams, *meter.read(), connect_s

    streams, wall_s, cpu_s, connect_s = run(drive())
    decoding = Meter()
    requests = [decode(stream) for stream in streams]
    decode_cpu_s = decoding.read()[1]
    failed = [request.error for request in requests if request.error is not None]
    if failed:
        raise RuntimeError(failed[0])
    times = [_times(request.sent_ns, request.chunk_ns) for request in requests]
    return Driven(wall_s, cpu_s, times, decode_cpu_s, connect_s)


def _times(sent_ns: int, chunk_ns: tuple[int, ...] | list[int]) -> Times:
    return Times((chunk_ns[0] - sent_ns) / 1e9, tuple((b - a) / 1e9 for a, b in pairwise(chunk_ns)))


# -- bare loops -------------------------------------------------------------------------------------------------------


def aiohttp_decode(load: Load) -> Driven:
    """aiohttp on uvloop; every chunk is parsed as it comes."""
    return _bare(load, decode=True)


def aiohttp_store(load: Load) -> Driven:
    """aiohttp on uvloop; a read is put into a list with its time, and nothing else."""
    return _bare(load, decode=False)


def _bare(load: Load, *, decode: bool) -> Driven:
    import aiohttp
    import orjson
    import uvloop

    body = json.dumps(body_of(load)).encode()
    headers = {"Content-Type": "application/json"}

    async def one(session: aiohttp.ClientSession) -> Times:
        reads: list[tuple[int, bytes]] = []
        chunk_ns: list[int] = []
        rest = b""
        sent_ns = time.perf_counter_ns()
        async with session.post(load.url + PATH, data=body, headers=headers) as response:
            async for data in response.content.iter_any():
                if not decode:
                    reads.append((time.perf_counter_ns(), data))
                    continue
                *events, rest = (rest + data).split(b"\n\n")
                for event in events:
                    payload = event.removeprefix(b"data: ")
                    if payload != b"[DONE]" and orjson.loads(payload)["choices"]:
                        chunk_ns.append(time.perf_counter_ns())
        return _times(sent_ns, chunk_ns or [at_ns for at_ns, _ in reads])

    async def drive() -> Driven:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            return await _loaded(load, lambda: one(session))

    return uvloop.run(drive())


async def _loaded(load: Load, one: Callable[[], Awaitable[Times]]) -> Driven:
    """A closed loop of `load.streams`, warm connections, times in the order of ending."""
    left = iter(range(load.requests))
    times: list[Times] = []

    async def stream() -> None:
        for _ in left:
            times.append(await one())  # noqa: PERF401 - one after the other is the point

    meter = Meter()
    await asyncio.gather(*(stream() for _ in range(load.streams)))
    return Driven(*meter.read(), times)


# -- vLLM -------------------------------------------------------------------------------------------------------------


def vllm(load: Load) -> Driven:
    """The client of `vllm bench serve --max-concurrency`."""
    import aiohttp
    from vllm.benchmarks.lib import endpoint_request_func as theirs

    asked = theirs.RequestFuncInput(
        prompt="word " * 32,
        api_url=load.url + PATH,
        prompt_len=32,
        output_len=load.tokens,
        model="bench",
        extra_body={"temperature": 0.0},
    )

    async def drive() -> Driven:
        connector = aiohttp.TCPConnector(
            limit=load.streams,
            limit_per_host=load.streams,
            ttl_dns_cache=300,
            use_dns_cache=True,
            keepalive_timeout=60,
            enable_cleanup_closed=True,
            force_close=False,
        )
        timeout = aiohttp.ClientTimeout(total=6 * 60 * 60)
        async with aiohttp.ClientSession(connector=connector, trust_env=True, timeout=timeout) as session:
            at_once = asyncio.Semaphore(load.streams)

            async def limited() -> Any:
                async with at_once:
                    return await theirs.async_request_openai_completions(asked, session)

            meter = Meter()
            outputs = await asyncio.gather(*(asyncio.create_task(limited()) for _ in range(load.requests)))
            wall_s, cpu_s = meter.read()
        failed = [output.error for output in outputs if not output.success]
        if failed:
            raise RuntimeError(failed[0])
        return Driven(wall_s, cpu_s, [Times(output.ttft, tuple(output.itl)) for output in outputs])

    return asyncio.run(drive())


DRIVERS: dict[str, Driver] = {
    "specprof": specprof,
    "vllm": vllm,
    "aiohttp-decode": aiohttp_decode,
    "aiohttp-store": aiohttp_store,
}


def summary(driven: Driven) -> dict[str, float | None]:
    """What is printed: seconds."""
    spaced = [times for times in driven.times if times.itl_s]
    return {
        "wall_s": driven.wall_s,
        "cpu_s": driven.cpu_s,
        "decode_cpu_s": driven.decode_cpu_s,
        "connect_s": driven.connect_s,
        "ttft_mean_s": sum(times.ttft_s for times in driven.times) / len(driven.times),
        "itl_p99_s": p99([gap for times in spaced for gap in times.itl_s]),
        "tpot_mean_s": sum(sum(times.itl_s) / len(times.itl_s) for times in spaced) / len(spaced),
    }


def main() -> None:
    """Drive one client as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=DRIVERS)
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--core", type=int, help="the core to run on")
    load = parser.parse_args()
    if load.core is not None:
        os.sched_setaffinity(0, {load.core})
    print(json.dumps(summary(DRIVERS[load.client](load))))


if __name__ == "__main__":
    main()
