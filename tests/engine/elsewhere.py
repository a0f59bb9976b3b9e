"""A small server that speaks as vLLM, SGLang or llama.cpp does, with a token or TLS if asked, in a thread of its own.

Shapes are those of SGLang's `entrypoints/openai/protocol.py` and of llama.cpp's `tools/server` (README and
`server-task.cpp`): no token ids, usage in the last chunk, llama.cpp's `timings` with `draft_n` where it drafted.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PROMPT_TOKENS = 5
STEP_S = 0.002
_OWNERS = {"llama.cpp": "llamacpp"}


@dataclass
class Elsewhere:
    """What it is, what it refuses, and everything it was asked. `per_step` tokens come in one chunk."""

    kind: str = "vllm"  # or "sglang", "llama.cpp"
    model: str = "m"
    models: tuple[str, ...] = ()
    max_model_len: int = 2048
    drafts: bool = False
    drafted: int = 12  # of a whole answer, and so many of them held
    accepted: int = 6
    per_step: int = 1
    counters: bool = True
    foreign_tokens: int = 0  # that somebody else asked for during each of our requests
    refused: tuple[str, ...] = ()  # fields
    ends_by_itself: bool = False  # after two tokens, whatever it is told
    token: str | None = None
    prefix: str = ""
    dies_after: int | None = None  # answers
    token_expires_after: int | None = None  # answers; then it says which token it does not take
    asked: list[dict[str, Any]] = field(default_factory=list)
    tokens_seen: list[str | None] = field(default_factory=list)
    generated: int = 0
    prompts: int = 0
    base_url: str = ""

    def pages(self) -> dict[str, Any]:
        """What it tells on GET. An absent path is a 404."""
        cards = [self.card(name) for name in self.models or (self.model,)]
        pages: dict[str, Any] = {"/v1/models": {"object": "list", "data": cards}}
        if self.kind == "vllm":
            pages |= {"/version": {"version": "0.32.0"}, "/health": {}}
        if self.kind == "sglang":
            algorithm = "EAGLE3" if self.drafts else None
            pages["/server_info"] = {"version": "0.5.9", "speculative_algorithm": algorithm, "api_key": "sk-secret"}
            pages["/health"] = {}
        if self.kind == "llama.cpp":
            pages["/props"] = {"build_info": "b8000-abc", "total_slots": 4, "model_path": "/home/me/m.gguf"}
            pages["/props"] |= {"default_generation_settings": {"n_ctx": self.max_model_len}}
            pages["/health"] = {"status": "ok"}
        return pages

    def card(self, name: str) -> dict[str, Any]:
        """One model of the list."""
        told: dict[str, Any] = {"id": name, "object": "model", "owned_by": _OWNERS.get(self.kind, self.kind)}
        return told if self.kind == "llama.cpp" else told | {"max_model_len": self.max_model_len}

    def metrics(self) -> str | None:
        """Its Prometheus page."""
        if not self.counters:
            return None
        if self.kind == "vllm":
            drafts = {"vllm:spec_decode_num_drafts_total": 0, "vllm:spec_decode_num_draft_tokens_total": 0}
            told = {
                "vllm:generation_tokens_total": self.generated,
                "vllm:prompt_tokens_total": self.prompts,
                "vllm:num_requests_running": 0,
                **(drafts if self.drafts else {}),
            }
        elif self.kind == "sglang":
            told = {"sglang:generation_tokens_total": self.generated, "sglang:num_running_reqs": 0}
        else:
            told = {"llamacpp:tokens_predicted_total": self.generated, "llamacpp:requests_processing": 0}
        return "".join(f"{name} {value}\n" for name, value in told.items())

    def refusal(self, body: dict[str, Any]) -> str | None:
        """Why it does not take a request."""
        named = next((name for name in self.refused if name in body), None)
        return f"Extra inputs are not permitted: {named}" if named else None

    def chunks(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of one answer."""
        asked = int(body["max_tokens"])
        wanted = min(asked, 2) if self.ends_by_itself else asked
        chat = "messages" in body
        for start in range(0, wanted, self.per_step):
            number = min(self.per_step, wanted - start)
            yield {"choices": [self._choice(chat, " w" * number, start, number)]}
        reason = "length" if wanted == asked else "stop"
        yield {"choices": [{"index": 0, "finish_reason": reason, **({"delta": {}} if chat else {"text": ""})}]}
        self.generated += wanted + self.foreign_tokens
        self.prompts += PROMPT_TOKENS
        yield self._closing(wanted, body)

    def _choice(self, chat: bool, text: str, start: int, number: int) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": None}
        choice |= {"delta": {"content": text}} if chat else {"text": text}
        return choice | ({"token_ids": list(range(start, start + number))} if self.kind == "vllm" else {})

    def _closing(self, wanted: int, body: dict[str, Any]) -> dict[str, Any]:
        usage: dict[str, Any] = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": wanted}
        closing: dict[str, Any] = {"choices": [], "usage": usage | {"total_tokens": PROMPT_TOKENS + wanted}}
        if self.kind == "vllm":
            closing["usage"]["prompt_tokens_details"] = {"cached_tokens": 0}
            closing["metrics"] = {"queue_time_ms": 0.1}
        if self.kind == "llama.cpp":
            closing["timings"] = {"cache_n": 1, "prompt_n": PROMPT_TOKENS - 1, "predicted_n": wanted}
            if self.drafts:
                closing["timings"] |= {"draft_n": self.drafted, "draft_n_accepted": self.accepted}
        if not (body.get("stream_options") or {}).get("include_usage"):
            del closing["usage"]
        return closing


class _Handler(BaseHTTPRequestHandler):
    what: Elsewhere

    def do_GET(self) -> None:
        if not self._let_in():
            return
        path = self.path.partition("?")[0].removeprefix(self.what.prefix)
        if path == "/metrics" and (page := self.what.metrics()) is not None:
            self._answer(200, page.encode())
        elif path in (pages := self.what.pages()):
            self._answer(200, json.dumps(pages[path]).encode())
        else:
            self._answer(404, b'{"detail":"Not Found"}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if not self._let_in():
            return
        if not self.path.removeprefix(self.what.prefix).endswith("/completions"):
            self._answer(404, b'{"detail":"Not Found"}')
            return
        self.what.asked.append(body)
        expires = self.what.token_expires_after
        if expires is not None and len(self.what.asked) > expires:
            self._answer(401, json.dumps({"error": f"invalid key: {self.headers.get('Authorization')}"}).encode())
            return
        if (refusal := self.what.refusal(body)) is not None:
            self._answer(400, json.dumps({"object": "error", "message": refusal, "code": 400}).encode())
            return
        with suppress(BrokenPipeError, ConnectionResetError):
            self._stream(body)

    def _stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for chunk in self.what.chunks(body):
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.wfile.flush()
            time.sleep(STEP_S)
        self.wfile.write(b"data: [DONE]\n\n")
        if self.what.dies_after is not None and len(self.what.asked) >= self.what.dies_after:
            self.server.socket.close()  # nobody is let in any more, as when the process is gone

    def _let_in(self) -> bool:
        given = self.headers.get("Authorization")
        self.what.tokens_seen.append(given)
        if self.what.token is None or given == f"Bearer {self.what.token}":
            return True
        self._answer(401, b'{"error":"Unauthorized"}')
        return False

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # a busy machine must not turn clients away


@contextmanager
def running(what: Elsewhere, certificate: tuple[Path, Path] | None = None) -> Iterator[Elsewhere]:
    """The server, up on a free port, behind TLS if it has a certificate and key; gone when the block ends."""
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"what": what}))
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # a client that refuses our certificate
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    what.base_url = f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}{what.prefix}"
    thread = threading.Thread(target=_serve, args=(server,), daemon=True)
    thread.start()
    try:
        yield what
    finally:
        with suppress(OSError, ValueError):
            server.shutdown()
        server.server_close()
        thread.join(10)


def _serve(server: ThreadingHTTPServer) -> None:
    with suppress(OSError, ValueError):  # its socket was closed under it
        server.serve_forever(0.01)
