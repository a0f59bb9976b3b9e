"""A small server that speaks as vLLM does, in a thread of its own, with every fault a keyword away.

No test may rest on how fast it or its client is. So it can be told to wait for what a test needs to have happened: for
so many requests at once, for a look at its counters, for the client to have read, for anybody else.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web

PATIENCE_S = 60.0  # how long it waits for what does not happen: the test then fails by what it asserts


@dataclass
class Vllm:
    """What it does with a request, what it was asked, and how much of it was going on at once."""

    step_s: float = 0.002
    status: int = 200
    tokens_per_step: int = 1
    stall_s: float = 0.0  # after the first chunk
    hang_up_after: int | None = None  # chunks
    gather: int = 0  # so many requests must have been there at once before any is answered
    first_seen_running: int = 0  # ... and somebody have read, in the counters, that so many were
    goes_on: Callable[[int], bool] = lambda chunks: True  # whether it writes on after so many chunks
    may_end: Callable[[dict[str, Any]], bool] = lambda body: True  # a text is longer than asked for until it may end
    asked: list[dict[str, Any]] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)
    running: int = 0
    most_running: int = 0
    most_seen_running: int = 0
    wrote_ns: list[int] = field(default_factory=list)  # just before each chunk of every text
    prompt_tokens: int = 0
    generation_tokens: int = 0
    resets: int = 0
    base_url: str = ""

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions: one chunk per step, then usage, then [DONE]."""
        body = await request.json()
        self.asked.append(body)
        self.connections.add(request.transport)
        if self.status != 200:
            return web.json_response({"error": {"message": "out of memory", "code": self.status}}, status=self.status)
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            await _until(self._may_begin)
            return await self._stream(request, body)
        finally:
            self.running -= 1

    def _may_begin(self) -> bool:
        return self.most_running >= self.gather and self.most_seen_running >= self.first_seen_running

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        wanted, written, chunks = body["max_tokens"], 0, 0
        give_up_s = time.monotonic() + PATIENCE_S
        while written < wanted or not (self.may_end(body) or time.monotonic() > give_up_s):
            await asyncio.sleep(self.step_s)
            ids = list(range(written, max(min(written + self.tokens_per_step, wanted), written + 1)))
            written, chunks = written + len(ids), chunks + 1
            self.generation_tokens += len(ids)
            self.wrote_ns.append(time.perf_counter_ns())
            await response.write(event({"choices": [{"index": 0, "text": "w" * len(ids), "token_ids": ids}]}))
            if self.hang_up_after == chunks:
                request.transport.abort()
                return response
            await asyncio.sleep(self.stall_s if chunks == 1 else 0)
            await _until(partial(self.goes_on, chunks))
        self.prompt_tokens += 5
        await response.write(event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}))
        usage = {"prompt_tokens": 5, "completion_tokens": written, "prompt_tokens_details": {"cached_tokens": 0}}
        await response.write(event({"choices": [], "usage": usage, "metrics": {"queue_time_ms": 1.5}}))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics."""
        self.most_seen_running = max(self.running, self.most_seen_running)
        lines = {
            "vllm:prompt_tokens_total": ("counter", self.prompt_tokens),
            "vllm:generation_tokens_total": ("counter", self.generation_tokens),
            "vllm:num_requests_running": ("gauge", self.running),
            "vllm:num_requests_waiting": ("gauge", 0),
        }
        text = "".join(f"# TYPE {name} {kind}\n{name} {value}\n" for name, (kind, value) in lines.items())
        return web.Response(text=text)

    async def health(self, request: web.Request) -> web.Response:
        """GET /health."""
        return web.Response()

    async def reset(self, request: web.Request) -> web.Response:
        """POST /reset_prefix_cache."""
        self.resets += 1
        return web.json_response({"success": True})


def event(value: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


async def _until(ready: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not ready() and time.monotonic() < give_up_s:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.001)


@contextmanager
def serving(vllm: Vllm) -> Iterator[Vllm]:
    """The server, up on a free port; gone when the block ends."""
    loop, up = asyncio.new_event_loop(), threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", vllm.complete)
        app.router.add_post("/reset_prefix_cache", vllm.reset)
        app.router.add_get("/metrics", vllm.metrics)
        app.router.add_get("/health", vllm.health)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        vllm.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        up.set()
        await stop.wait()
        await runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.wait([*left, asyncio.ensure_future(asyncio.sleep(0.01))])  # sockets close a turn later

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(serve())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert up.wait(PATIENCE_S)
    try:
        yield vllm
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_S)
