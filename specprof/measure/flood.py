"""A server that costs nothing: every byte it streams is built beforehand, and it keeps any pace a client can.

Run as a script, in a process of its own: it prints its address, and ends when its standard input does, so that it never
outlives whoever started it. A POST is answered with `max_tokens` events of vLLM's shape, one write each, `pace_s` apart
on every connection. It imports nothing of specprof, so that it is up in a moment.
"""

from __future__ import annotations

import asyncio
import json
import sys

_END_OF_HEAD = b"\r\n\r\n"
_HEALTHY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def _http_chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def _event(**fields: object) -> bytes:
    shared = {"id": "cmpl-0", "object": "text_completion", "created": 0, "model": "flood"}
    return _http_chunk(b"data: " + json.dumps({**shared, **fields}).encode() + b"\n\n")


def _token(finish_reason: str | None) -> bytes:
    choice = {"index": 0, "text": " word", "logprobs": None, "finish_reason": finish_reason, "token_ids": [7]}
    return _event(choices=[choice])


_TOKEN, _LAST_TOKEN = _token(None), _token("length")


def _end(num_tokens: int) -> bytes:
    """The last token, the usage event and the end of the stream."""
    usage = {"prompt_tokens": 1, "completion_tokens": num_tokens, "total_tokens": num_tokens + 1}
    return _LAST_TOKEN + _event(choices=[], usage=usage) + _http_chunk(b"data: [DONE]\n\n") + _http_chunk(b"")


class Flood(asyncio.Protocol):
    """One connection, kept alive over its requests. Streams take turns: at most one write per round of the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._num_left = 0  # events still to write of the present stream
        self._end = b""
        self._pace_s = self._due_at = 0.0
        self._may_write = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - a socket's transport; tells the type checker
        self._transport = transport
        transport.set_write_buffer_limits(high=0)  # what the socket does not take is not to pile up here

    def data_received(self, data: bytes) -> None:
        """A request or part of one, answered once it is whole. A client waits for its answer before it asks again."""
        self._received += data
        head, found, body = self._received.partition(_END_OF_HEAD)
        if not found or len(body) < _content_length(head):
            return
        self._received = b""
        if head.startswith(b"POST "):
            asked = json.loads(body)
            self._num_left, self._end = asked["max_tokens"], _end(asked["max_tokens"])
            self._pace_s, self._due_at = asked["pace_s"], self._loop.time()
            self._transport.write(_HEAD)
            self._write_on()
        else:
            self._transport.write(_HEALTHY)

    def pause_writing(self) -> None:
        """The client does not keep up: wait for it."""
        self._may_write = False

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._may_write = True
        self._write_on()

    def _write_on(self) -> None:
        """Write what is due and come back: a timer would be a millisecond late, which is many events."""
        if not self._num_left or not self._may_write or self._transport.is_closing():
            return
        if self._loop.time() >= self._due_at:
            self._due_at += self._pace_s
            self._num_left -= 1
            self._transport.write(_TOKEN if self._num_left else self._end)
        if self._may_write:  # otherwise `resume_writing` goes on
            self._loop.call_soon(self._write_on)


def _content_length(head: bytes) -> int:
    lines = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    return next((int(value) for name, _, value in lines if name == b"content-length"), 0)


async def serve() -> None:
    """Listen on loopback until standard input ends."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), done.set)  # nothing is ever written there: readable means closed
    server = await loop.create_server(Flood, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    sys.stdout.write(f"http://{host}:{port}\n")
    sys.stdout.flush()
    await done.wait()


if __name__ == "__main__":
    asyncio.run(serve())
