"""A client on a virtual clock, and the server at the other end: instants come out as reckoned on any machine.

The client is the real one, from its open loop down to the bytes of HTTP. Only the clock, the event loop's timers and
the socket are not: time goes on by a moment with each turn of the loop and, when nothing is left to do, to the next
timer; and what one end writes the other has read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from specprof.measure import http1, load, open_loop, session
from tests.measure.sse import event

TURN_S = 0.000_01
MOMENT_S = 0.002  # some hundred turns: more than anything here takes that takes no time
URL = "http://127.0.0.1:1"

_HEALTHY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is its own, and whose every connection leads to one server."""

    def __init__(self, server: Server) -> None:
        self._now_s = 1_000.0
        self._server = server
        super().__init__()

    def time(self) -> float:
        """Its clock, seconds."""
        return self._now_s

    def clock_ns(self) -> int:
        """Its clock, as the client reads it."""
        return round(self._now_s * 1e9)

    def pass_by(self, seconds: float) -> None:
        """Let time go by in which nobody does anything, as in a loop that is blocked."""
        self._now_s += seconds

    async def connection(self, _family: int, _address: object, _kernel: object, reader: Callable[[], Any]) -> Any:
        """A connection to the server, wherever it was to lead."""
        protocol = reader()
        protocol.connection_made(_Pipe(self, protocol, self._server))
        return protocol

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """At once: a thread would take real time."""
        done = self.create_future()
        done.set_result(func(*args))
        return done

    def _run_once(self) -> None:
        self._now_s += TURN_S
        if not self._ready:
            due_s = min((timer.when() for timer in self._scheduled if not timer.cancelled()), default=None)
            assert due_s is not None, "nothing will ever happen any more"
            self._now_s = max(self._now_s, due_s)
        super()._run_once()


class _Pipe(asyncio.Transport):
    """The client's end of a connection."""

    def __init__(self, loop: VirtualLoop, protocol: Any, server: Server) -> None:
        super().__init__()
        self._loop, self._protocol, self._server = loop, protocol, server
        self._is_closing = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: Any) -> None:
        self._server.is_asked(bytes(data), self)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._server.is_left(self)
            self._loop.call_soon(self._protocol.connection_lost, None)

    abort = close

    def brings(self, data: bytes) -> None:
        """What the server wrote."""
        if not self._is_closing:
            self._protocol.data_received(data)


@dataclass
class Server:
    """Writes a token per step. What it does takes the time that it says, and nothing else takes any."""

    step_s: float = 0.002
    stall_s: float = 0.0  # after the first token
    forgets: int = 0  # so many requests, the first of all, are not thought of again after their first token
    stands_still: tuple[int, float] | None = None  # with which request (0: the first) the whole server does, seconds
    asked: list[dict[str, Any]] = field(default_factory=list)
    _busy_until_s: float = 0.0
    _answering: dict[_Pipe, asyncio.Task[None]] = field(default_factory=dict)

    def is_asked(self, request: bytes, pipe: _Pipe) -> None:
        """A whole request, as the client writes it."""
        loop = asyncio.get_running_loop()
        head, _, body = request.partition(b"\r\n\r\n")
        if head.startswith(b"GET"):
            loop.call_soon(pipe.brings, _HEALTHY)
            return
        number, told = len(self.asked), json.loads(body)
        self.asked.append(told)
        if self.stands_still is not None and self.stands_still[0] == number:
            self._busy_until_s = loop.time() + self.stands_still[1]
        self._answering[pipe] = loop.create_task(self._answer(pipe, number, told["max_tokens"]))

    def is_left(self, pipe: _Pipe) -> None:
        """The client has hung up."""
        answering = self._answering.pop(pipe, None)
        if answering is not None:
            answering.cancel()

    async def _answer(self, pipe: _Pipe, number: int, num_tokens: int) -> None:
        pipe.brings(_HEAD)
        for i in range(num_tokens):
            await asyncio.sleep(self.step_s)
            await self._awake()
            pipe.brings(_chunk(event({"choices": [{"index": 0, "text": "w", "token_ids": [i]}]})))
            if i == 0:
                await asyncio.sleep(self.stall_s if number >= self.forgets else 1e6)
        finish = event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        usage = event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": num_tokens}})
        pipe.brings(_chunk(finish + usage + b"data: [DONE]\n\n") + _chunk(b""))

    async def _awake(self) -> None:
        """Wait while the server stands still."""
        await asyncio.sleep(max(0.0, self._busy_until_s - asyncio.get_running_loop().time()))


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


@contextmanager
def virtual(server: Server) -> Iterator[VirtualLoop]:
    """A loop to run a client in, which notes instants by its clock while the block lasts."""
    loop = VirtualLoop(server)
    with ExitStack() as stack:
        stack.callback(loop.close)
        for module in (http1, load, open_loop, session):
            stack.enter_context(mock.patch.object(module, "_clock", loop.clock_ns))
        stack.enter_context(mock.patch.object(session, "plain_connection", loop.connection))
        yield loop
