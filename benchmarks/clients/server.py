"""The server that clients are measured with: vLLM's stream, built beforehand, sent at once or on an exact schedule.

Run as a script on a core of its own (`--core`): it never sleeps while streams are open, and logs by the clock that all
processes of a machine share (CLOCK_MONOTONIC) when each request had been received and when each chunk was sent. It
prints its address, and ends when its standard input does. Only the standard library.

    POST /v1/completions, /v1/chat/completions    `max_tokens` / 4 chunks of 4 tokens, one write each, then usage
    GET  /log                                     of each request since the last time this was asked: its chunks, when
                                                  it had been received, and when chunks were sent
    GET  /health, /v1/models                      200; anything else 404
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import select
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field

TOKENS_PER_CHUNK = 4
LEAD_NS = 5_000_000  # between a request and its first chunk on a schedule, at least

_clock = time.perf_counter_ns


def _chunked(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def _event(**fields: object) -> bytes:
    shared = {"id": "cmpl-0", "object": "text_completion", "created": 0, "model": "bench"}
    return _chunked(b"data: " + json.dumps({**shared, **fields}).encode() + b"\n\n")


def _token(*, chat: bool, finish_reason: str | None) -> bytes:
    text = " word" * TOKENS_PER_CHUNK
    said = {"delta": {"role": "assistant", "content": text}} if chat else {"text": text}
    ids = [7] * TOKENS_PER_CHUNK
    choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish_reason, "token_ids": ids}
    return _event(choices=[choice])


_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNKS = {chat: _token(chat=chat, finish_reason=None) for chat in (False, True)}
_LAST = {chat: _token(chat=chat, finish_reason="length") for chat in (False, True)}
_MODELS = json.dumps({"object": "list", "data": [{"id": "bench", "object": "model", "root": "bench"}]}).encode()


def _end(num_chunks: int) -> bytes:
    num_tokens = num_chunks * TOKENS_PER_CHUNK
    usage = {"prompt_tokens": 32, "completion_tokens": num_tokens, "total_tokens": num_tokens + 32}
    return _event(choices=[], usage=usage) + _chunked(b"data: [DONE]\n\n") + _chunked(b"")


@dataclass(slots=True)
class Stream:
    """An answer on its way, and when it was asked for and sent: without a pace only its first and last chunk."""

    connection: socket.socket
    received_ns: int
    num_chunks: int
    chat: bool
    num_left: int = 0  # chunks that are still to be sent
    due_ns: int = 0
    rest: bytes = b""  # of a write that the socket did not take whole
    sent_ns: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_left = self.num_chunks

    def write(self) -> bool:
        """Send the next chunk, or what is left of the last; whether the socket took all of it."""
        if not self.rest:
            block = _LAST[self.chat] + _end(self.num_chunks) if self.num_left == 1 else _CHUNKS[self.chat]
            self.rest = _HEAD + block if self.num_left == self.num_chunks else block
            self.num_left -= 1
            self.sent_ns.append(_clock())
        return self._flush()

    def write_on(self) -> bool:
        """As `write`, in the fewest steps, for a chunk in the middle: its time is not kept."""
        if self.rest or self.num_left in (1, self.num_chunks):
            return self.write()
        self.num_left -= 1
        block = _CHUNKS[self.chat]
        try:
            sent = self.connection.send(block)
        except BlockingIOError:
            sent = 0
        if sent == len(block):
            return True
        self.rest = block[sent:]
        return False

    def _flush(self) -> bool:
        try:
            sent = self.connection.send(self.rest)
        except BlockingIOError:
            sent = 0
        self.rest = self.rest[sent:]
        return not self.rest


class Server:
    """One thread, one epoll. `pace_ns` 0: as fast as the sockets take it, one chunk of each stream in turn."""

    def __init__(self, pace_ns: int, num_phases: int) -> None:
        self._pace_ns, self._num_phases = pace_ns, num_phases
        self._num_asked = 0
        self._poll = select.epoll()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listening.setblocking(False)
        self._connections: dict[int, socket.socket] = {}
        self._received: dict[int, bytes] = {}
        self._asked: deque[tuple[int, int]] = deque()  # received and stamped, not read yet
        self._blocked: dict[int, Stream] = {}
        self._ready: list[Stream] = []  # without a pace
        self._schedule: list[tuple[int, int, Stream]] = []
        self._log: list[Stream] = []
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def serve(self) -> None:
        """Until standard input ends."""
        self._poll.register(self._listening, select.EPOLLIN)
        self._poll.register(sys.stdin, select.EPOLLIN)
        while True:
            is_busy = self._asked or self._ready or self._schedule or self._blocked
            arrived = self._poll.poll(0 if is_busy else 0.5)
            if any(descriptor == sys.stdin.fileno() for descriptor, _ in arrived):
                return
            self._hear(arrived)
            self._take_up()
            self._write_ready()
            self._write_due()

    def _hear(self, arrived: list[tuple[int, int]]) -> None:
        """All that has arrived is received and stamped before any of it is read, which the others would wait for."""
        for descriptor, event in arrived:
            if descriptor == self._listening.fileno():
                self._accept()
            elif event & select.EPOLLOUT and descriptor in self._blocked:
                self._poll.modify(descriptor, select.EPOLLIN)
                self._go_on(self._blocked.pop(descriptor))
            elif event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                data = self._receive(descriptor)
                if data:
                    self._received[descriptor] += data
                    self._asked.append((descriptor, _clock()))

    def _take_up(self) -> None:
        """Read what was received. On a schedule one request a time: the next may have come, and wants its stamp."""
        for _ in range(1 if self._pace_ns else len(self._asked)):
            if self._asked:
                self._take(*self._asked.popleft())

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except BlockingIOError:
                return
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            descriptor = connection.fileno()
            self._connections[descriptor], self._received[descriptor] = connection, b""
            self._poll.register(descriptor, select.EPOLLIN)

    def _receive(self, descriptor: int) -> bytes:
        try:
            data = self._connections[descriptor].recv(1 << 20)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self._poll.unregister(descriptor)
            self._received.pop(descriptor)
            self._blocked.pop(descriptor, None)
            self._connections.pop(descriptor).close()
        return data

    def _take(self, descriptor: int, at_ns: int) -> None:
        head, found, body = self._received[descriptor].partition(b"\r\n\r\n")
        if not found or len(body) < _content_length(head):
            return
        self._received[descriptor] = b""
        line = head.partition(b"\r\n")[0]
        if line.startswith(b"POST /v1/c"):
            self._begin(self._connections[descriptor], json.loads(body), at_ns, chat=b"/chat/" in line)
            return
        status, answer = b"200 OK", _MODELS
        if line.startswith(b"GET /log"):
            answer = json.dumps([[s.num_chunks, s.received_ns, *s.sent_ns] for s in self._log]).encode()
            self._log.clear()
        elif not line.startswith((b"GET /health", b"GET /v1/models")):
            status, answer = b"404 Not Found", b"{}"
        connection = self._connections[descriptor]
        connection.setblocking(True)
        connection.sendall(
            b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (status, len(answer), answer)
        )
        connection.setblocking(False)

    def _begin(self, connection: socket.socket, asked: dict[str, int], at_ns: int, *, chat: bool) -> None:
        num_tokens = asked.get("max_tokens") or asked.get("max_completion_tokens") or TOKENS_PER_CHUNK
        stream = Stream(connection, at_ns, max(num_tokens // TOKENS_PER_CHUNK, 1), chat)
        self._log.append(stream)
        if not self._pace_ns:
            self._ready.append(stream)
            return
        phase_ns = self._num_asked % self._num_phases * self._pace_ns // self._num_phases
        self._num_asked += 1
        earliest_ns = at_ns + LEAD_NS - phase_ns
        stream.due_ns = -(-earliest_ns // self._pace_ns) * self._pace_ns + phase_ns
        self._go_on(stream)

    def _write_ready(self) -> None:
        """One chunk of every stream that can take one."""
        writing, self._ready = self._ready, []
        for stream in writing:
            self._write(stream)

    def _write_due(self) -> None:
        while self._schedule and self._schedule[0][0] <= _clock():
            _, _, stream = heapq.heappop(self._schedule)
            stream.due_ns += self._pace_ns
            self._write(stream)

    def _write(self, stream: Stream) -> None:
        try:
            all_taken = stream.write() if self._pace_ns else stream.write_on()
        except OSError:
            return  # the client has gone
        if not all_taken:
            self._blocked[stream.connection.fileno()] = stream
            self._poll.modify(stream.connection.fileno(), select.EPOLLIN | select.EPOLLOUT)
        elif stream.num_left:
            self._go_on(stream)

    def _go_on(self, stream: Stream) -> None:
        if self._pace_ns:
            heapq.heappush(self._schedule, (stream.due_ns, id(stream), stream))
        else:
            self._ready.append(stream)


def _content_length(head: bytes) -> int:
    lines = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    return next((int(value) for name, _, value in lines if name == b"content-length"), 0)


def main() -> None:
    """Serve as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pace-ms", type=float, default=0.0, help="between two chunks of a stream; 0: none")
    parser.add_argument("--phases", type=int, default=1, help="spread streams evenly over a pace; 1: all on one tick")
    parser.add_argument("--core", type=int, help="the core to run on")
    asked = parser.parse_args()
    if asked.core is not None:
        os.sched_setaffinity(0, {asked.core})
    server = Server(round(asked.pace_ms * 1e6), asked.phases)
    print(server.url, flush=True)
    server.serve()


if __name__ == "__main__":
    main()
