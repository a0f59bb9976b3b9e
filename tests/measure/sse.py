"""A small server that speaks as vLLM does, in a thread of its own, with every fault a keyword away."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Vllm:
    """What it does with a request, what it was asked, and how much of it was going on at once."""

    step_s: float = 0.002
    status: int = 200
    tokens_per_step: int = 1
    stall_s: float = 0.0  # after the first chunk
    hang_up_after: int | None = None  # chunks
    asked: list[dict[str, Any]] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)
    running: int = 0
    most_running: int = 0
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
            return await self._stream(request, body)
        finally:
            self.running -= 1

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        wanted = body["max_tokens"]
        for chunks, start in enumerate(range(0, wanted, self.tokens_per_step), start=1):
            await asyncio.sleep(self.step_s)
            ids = list(range(start, min(start + self.tokens_per_step, wanted)))
            self.generation_tokens += len(ids)
            await response.write(event({"choices": [{"index": 0, "text": "w" * len(ids), "token_ids": ids}]}))
            if self.hang_up_after == chunks:
                request.transport.abort()
                return response
            await asyncio.sleep(self.stall_s if chunks == 1 else 0)
        self.prompt_tokens += 5
        await response.write(event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}))
        usage = {"prompt_tokens": 5, "completion_tokens": wanted, "prompt_tokens_details": {"cached_tokens": 0}}
        await response.write(event({"choices": [], "usage": usage, "metrics": {"queue_time_ms": 1.5}}))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics."""
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
    assert up.wait(10)
    try:
        yield vllm
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
