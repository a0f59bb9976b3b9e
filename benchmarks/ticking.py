"""A server that is as cheap as one can be that writes every chunk by itself: on each tick, one to every open stream.

It sleeps between ticks, unlike `measure.flood`, so that what it takes of a core is what its chunks cost. Run as a
script with a port that others may share (0: any); it prints the port, and ends when its standard input does. A POST is
answered with `max_tokens` chunks, `pace_s` apart, the same pace for all.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from contextlib import suppress

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices": [{"index": 0, "text": " word", "token_ids": [7]}]}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
END = b"0\r\n\r\n"
HEALTHY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Server:
    """One thread, one epoll."""

    def __init__(self, port: int) -> None:
        self.listening = socket.create_server(("127.0.0.1", port), backlog=1024, reuse_port=True)
        self._poll = select.epoll()
        for source in (self.listening, sys.stdin):
            self._poll.register(source, select.EPOLLIN)
        self._connections: dict[int, socket.socket] = {}
        self._left: dict[socket.socket, int] = {}  # chunks of each open stream
        self._pace_s = self._due_s = 0.0

    def serve(self) -> None:
        """Until standard input ends."""
        while True:
            wait_s = max(self._due_s - time.monotonic(), 0) if self._left else None
            for descriptor, _ in self._poll.poll(wait_s):
                if descriptor == sys.stdin.fileno():
                    return
                self._hear(descriptor)
            if self._left and time.monotonic() >= self._due_s:
                self._due_s = max(self._due_s, time.monotonic() - self._pace_s) + self._pace_s
                self._tick()

    def _hear(self, descriptor: int) -> None:
        if descriptor == self.listening.fileno():
            connection, _ = self.listening.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections[connection.fileno()] = connection
            self._poll.register(connection, select.EPOLLIN)
            return
        connection = self._connections[descriptor]
        data = b""
        with suppress(ConnectionError):
            data = connection.recv(65536)
        if not data:
            self._poll.unregister(descriptor)
            self._left.pop(self._connections.pop(descriptor), None)
            connection.close()
        elif data.startswith(b"GET"):
            connection.sendall(HEALTHY)
        else:
            self._begin(connection, data)

    def _begin(self, connection: socket.socket, data: bytes) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        while len(body) < length:
            body += connection.recv(65536)
        asked = json.loads(body)
        if not self._left:
            self._due_s = time.monotonic()
        self._pace_s, self._left[connection] = asked["pace_s"], asked["max_tokens"]
        connection.sendall(HEAD)

    def _tick(self) -> None:
        for connection, left in list(self._left.items()):
            connection.sendall(CHUNK if left > 1 else CHUNK + END)
            if left > 1:
                self._left[connection] = left - 1
            else:
                del self._left[connection]


if __name__ == "__main__":
    server = Server(int(sys.argv[1]))
    print(server.listening.getsockname()[1], flush=True)
    server.serve()
