"""A vLLM that answers completions as a test writes them down, byte by byte; its other pages are well unless told."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tests.measure.scripted import Answer, _request, _say

METRICS = b"vllm:prompt_tokens_total 0\nvllm:generation_tokens_total 0\nvllm:num_requests_running 0\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PATIENCE_S = 60.0  # how long it waits for a client, or for what an answer is held back for
WORDS = ("die ", "Würde ", "文字 ", "end")  # one token each, some of more bytes than letters


def page(status: int, body: bytes = b"", **headers: str) -> bytes:
    """A whole answer of known length."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def event(value: object) -> bytes:
    """One server-sent event; text as it is, not escaped."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def chunk(content: bytes) -> bytes:
    """A piece of a body of unknown length."""
    return b"%x\r\n%b\r\n" % (len(content), content)


def token_events() -> list[bytes]:
    """The four tokens of an answer that is well."""
    return [event({"choices": [{"index": 0, "text": word, "token_ids": [i]}]}) for i, word in enumerate(WORDS)]


def ending(num_tokens: int = len(WORDS)) -> bytes:
    """What follows the tokens: why it ended, usage, the end."""
    usage = {"prompt_tokens": 5, "completion_tokens": num_tokens}
    reason = event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
    return reason + event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n"


def answer(*body: bytes) -> bytes:
    """A whole stream of these pieces."""
    return STREAM_HEAD + b"".join(map(chunk, body)) + chunk(b"")


WELL: Answer = (answer(*token_events(), ending()),)


@dataclass(frozen=True)
class After:
    """An answer that is held back until something has happened, and for no longer than a test may wait for it."""

    happened: threading.Event
    then: Answer

    def __iter__(self) -> Iterator[bytes | float | str]:
        self.happened.wait(PATIENCE_S)
        return iter(self.then)


Page = bytes | Callable[[], bytes]  # a whole answer, or what makes one each time it is asked for


@dataclass
class Misbehaving:
    """Answers by prompt text: what is not named is answered well. `asked` is the order in which prompts came.

    `pages` are whole answers by path, which may be changed while it runs.
    """

    answers: Mapping[str, Answer | After] = field(default_factory=dict)
    pages: dict[str, Page] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    base_url: str = ""

    def serve(self, listening: socket.socket) -> None:
        """Take connections until the socket is closed."""
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                connection.settimeout(PATIENCE_S)
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while request := _whole(connection):
                if not _say(connection, self._said(request)):
                    return

    def _said(self, request: bytes) -> Answer | After:
        path = request.split(b" ", 2)[1].decode().partition("?")[0]
        if path == "/v1/completions":
            prompt = json.loads(request.partition(b"\r\n\r\n")[2])["prompt"]
            self.asked.append(prompt)
            return self.answers.get(prompt, WELL)
        told = self.pages.get(path, _page(path))
        return (told() if callable(told) else told,)


def _page(path: str) -> bytes:
    pages = {"/health": b"", "/metrics": METRICS, "/reset_prefix_cache": b'{"success": true}'}
    pages["/v1/models"] = b'{"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 2048}]}'
    return page(200, pages[path]) if path in pages else page(404)


def _whole(connection: socket.socket) -> bytes:
    """The next request; a GET has no length of its own."""
    first = connection.recv(1, socket.MSG_PEEK)
    if first == b"G":
        head = b""
        while b"\r\n\r\n" not in head and (data := connection.recv(65536)):
            head += data
        return head
    return _request(connection) if first else b""


@contextmanager
def misbehaving(
    answers: Mapping[str, Answer | After] | None = None, pages: Mapping[str, Page] | None = None
) -> Iterator[Misbehaving]:
    """The server, up on a free port; it takes nobody any more when the block ends."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        server = Misbehaving(
            answers or {}, dict(pages or {}), base_url=f"http://127.0.0.1:{listening.getsockname()[1]}"
        )
        threading.Thread(target=server.serve, args=(listening,), daemon=True).start()
        try:
            yield server
        finally:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
