"""A server that answers as a test writes it down, byte by byte, in threads of its own."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

CLOSE = "close"
RESET = "reset"

# What is written, pauses in seconds, what must have happened before it goes on, and how it ends where it does.
Answer = Sequence[bytes | float | threading.Event | str]
PATIENCE_S = 60.0


@dataclass
class Scripted:
    """Its address, and what it was asked: one entry per request, with the number of its connection."""

    answers: Sequence[Answer]
    tls: ssl.SSLContext | None = None
    base_url: str = ""
    asked: list[tuple[int, bytes]] = field(default_factory=list)
    num_connections: int = 0

    def serve(self, listening: socket.socket) -> None:
        """Take connections until the socket is closed."""
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                connection.settimeout(PATIENCE_S)
                self.num_connections += 1
                threading.Thread(target=self._talk, args=(connection, self.num_connections), daemon=True).start()

    def _talk(self, connection: socket.socket, number: int) -> None:
        with suppress(OSError), connection, self._secured(connection) as talking:
            while request := _request(talking):
                if request.partition(b"\r\n")[0].endswith(b"/health HTTP/1.1"):
                    talking.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    continue
                self.asked.append((number, request))
                if not _say(talking, self.answers[min(len(self.asked), len(self.answers)) - 1]):
                    return

    def _secured(self, connection: socket.socket) -> socket.socket:
        return connection if self.tls is None else self.tls.wrap_socket(connection, server_side=True)


def _say(talking: socket.socket, answer: Answer) -> bool:
    """Whether the connection stays."""
    for step in answer:
        if isinstance(step, float):
            time.sleep(step)
        elif isinstance(step, threading.Event):
            step.wait(PATIENCE_S)
        elif isinstance(step, bytes):
            talking.sendall(step)
        else:
            if step == RESET:
                talking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
    return True


def _request(talking: socket.socket) -> bytes:
    """The next request; empty once the client is gone."""
    received = b""
    while data := talking.recv(65536):
        received += data
        head, found, body = received.partition(b"\r\n\r\n")
        if found:
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            if len(body) >= length:
                return received
    return b""


@contextmanager
def scripted(*answers: Answer, tls: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    """The i-th request is answered by the i-th answer, any further one by the last. GET /health is always well."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        scheme = "http" if tls is None else "https"
        server = Scripted(answers, tls, f"{scheme}://127.0.0.1:{listening.getsockname()[1]}")
        threading.Thread(target=server.serve, args=(listening,), daemon=True).start()
        try:
            yield server
        finally:
            listening.shutdown(socket.SHUT_RDWR)
