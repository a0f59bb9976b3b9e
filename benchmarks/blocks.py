"""A server that costs next to nothing: a block of chunks, built beforehand, to every open stream in turn.

`measure.flood` writes every chunk by itself, as an engine does, and so costs as much as a client that reads them; this
one leaves the cores to the clients. Run as a script with a port that others may share (0: any); it prints the port, and
ends when its standard input does. A POST is answered with `max_tokens` chunks, a whole number of blocks, as fast as
they are taken.
"""

from __future__ import annotations

import json
import select
import socket
import sys
from contextlib import suppress

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices": [{"index": 0, "text": " word", "token_ids": [7]}]}\n\n'
CHUNKS_PER_BLOCK = 500  # 40 kB
BLOCK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT) * CHUNKS_PER_BLOCK
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
        self._left: dict[socket.socket, int] = {}  # blocks of each open stream

    def serve(self) -> None:
        """Until standard input ends."""
        while True:
            for descriptor, _ in self._poll.poll(0 if self._left else None):
                if descriptor == sys.stdin.fileno():
                    return
                self._hear(descriptor)
            self._write()

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
        self._left[connection] = json.loads(body)["max_tokens"] // CHUNKS_PER_BLOCK
        connection.sendall(HEAD)

    def _write(self) -> None:
        """One block to each stream; a client that does not take it makes all wait."""
        for connection, left in list(self._left.items()):
            connection.sendall(BLOCK if left > 1 else BLOCK + END)
            if left > 1:
                self._left[connection] = left - 1
            else:
                del self._left[connection]


if __name__ == "__main__":
    server = Server(int(sys.argv[1]))
    print(server.listening.getsockname()[1], flush=True)
    server.serve()
