"""The wire: a cell's prompt → request body before the run, bytes with their arrival times → a `Request` after it.

Nothing here runs while tokens arrive. An event's time is that of the read that completed it; tokens are counted from
the server's token ids, never from text and never from the number of events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import orjson

from specprof.records import (
    Cell,
    Phase,
    Prompt,
    Request,
    ServerTimes,
    Speculation,
    Stop,
)

MAX_ERROR_CHARS = 300
MAX_COUNT = 2**31 - 1  # token ids and counts are stored as 32-bit integers


@dataclass(slots=True)
class RawStream:
    """One request as it happened: instants, and the bytes of each read with the time it returned."""

    prompt_id: str
    phase: Phase
    stream: int
    scheduled_ns: int
    sent_ns: int = 0
    done_ns: int = 0
    status: int = 0
    reads: list[tuple[int, bytes]] = field(default_factory=list)
    error: str | None = None


def path_of(cell: Cell) -> str:
    """The API path a cell's requests go to."""
    return "/v1/chat/completions" if cell.chat else "/v1/completions"


def encode(cell: Cell, prompt: Prompt, model: str, *, max_tokens: int) -> bytes:
    """The request body. Every sampling parameter is sent: a server's own defaults come from the model, unseen.

    Each prompt draws with a seed of its own, the same in every arm, so that prompts do not share their luck.
    """
    sampling = cell.sampling
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": sampling.seed + crc32(prompt.id.encode()) % 2**31,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    if cell.chat:
        body["messages"] = [dict(message) for message in prompt.messages]
    else:
        body["prompt"] = prompt.text
    if cell.stop is Stop.FORCED:
        body["ignore_eos"] = True
        if cell.mask_eos:
            body["min_tokens"] = max_tokens
    if cell.guided and prompt.schema is not None:
        body["structured_outputs"] = {"json": prompt.schema}
    return orjson.dumps(body)


def decode(raw: RawStream) -> Request:
    """What the bytes said. Whatever is wrong with them ends in the request's `error`, never in an exception."""
    seen = _Seen()
    error = raw.error
    if error is None and raw.status != 200:
        error = f"HTTP {raw.status}: {_message(b''.join(data for _, data in raw.reads))}"
    elif error is None:
        try:
            for at_ns, payload in events(raw.reads):
                seen.take(at_ns, payload)
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            error = f"malformed stream: {problem}"[:MAX_ERROR_CHARS]
        error = error or seen.problem()
    return Request(
        prompt_id=raw.prompt_id,
        phase=raw.phase,
        stream=raw.stream,
        scheduled_ns=raw.scheduled_ns,
        sent_ns=raw.sent_ns,
        done_ns=raw.done_ns,
        chunk_ns=tuple(seen.chunk_ns),
        chunk_tokens=tuple(seen.chunk_tokens),
        token_ids=tuple(seen.token_ids),
        text="".join(seen.text),
        prompt_tokens=seen.prompt_tokens,
        cached_tokens=seen.cached_tokens,
        finish_reason=seen.finish_reason,
        error=error,
        server=seen.server,
        speculation=seen.speculation,
    )


def events(reads: Sequence[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The `data:` payloads of a server-sent event stream, each with the time of the read that completed it.

    Lines may end in LF or CRLF, an event may be split anywhere or share a read with others; comments and other fields
    are passed over. An unfinished last event is dropped, as the SSE standard says.
    """
    rest = b""
    data: list[bytes] = []
    for at_ns, block in reads:
        *lines, rest = (rest + block).split(b"\n")
        for line in (ended.removesuffix(b"\r") for ended in lines):
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield at_ns, b"\n".join(data)
                data = []


class _Seen:
    """What the events of one stream have said so far."""

    def __init__(self) -> None:
        self.chunk_ns: list[int] = []
        self.chunk_tokens: list[int] = []
        self.token_ids: list[int] = []
        self.text: list[str] = []
        self.prompt_tokens = 0
        self.completion_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.finish_reason: str | None = None
        self.server: ServerTimes | None = None
        self.speculation: Speculation | None = None
        self.server_error: str | None = None
        self.ended = False

    def take(self, at_ns: int, payload: bytes) -> None:
        if payload == b"[DONE]":
            self.ended = True
            return
        event = orjson.loads(payload)
        if event.get("error"):
            self.server_error = _message(payload)
        for choice in event.get("choices") or ():
            self._take_choice(at_ns, choice)
        if event.get("usage"):
            self._take_usage(event["usage"])
        if event.get("metrics"):
            self._take_metrics(event["metrics"])

    def _take_choice(self, at_ns: int, choice: dict[str, Any]) -> None:
        ids = _counts(choice.get("token_ids"))
        if ids:
            self.chunk_ns.append(at_ns)
            self.chunk_tokens.append(len(ids))
            self.token_ids.extend(ids)
        text = choice.get("text") or (choice.get("delta") or {}).get("content")
        self.text.append(_text(text or ""))
        self.finish_reason = _text(choice.get("finish_reason") or self.finish_reason or "") or None

    def _take_usage(self, usage: dict[str, Any]) -> None:
        self.prompt_tokens = _count(usage["prompt_tokens"])
        self.completion_tokens = _count(usage["completion_tokens"])
        details = usage.get("prompt_tokens_details")
        if details is not None:
            self.cached_tokens = _count(details.get("cached_tokens") or 0)

    def _take_metrics(self, metrics: dict[str, Any]) -> None:
        def seconds(name: str) -> float | None:
            value = metrics.get(name)
            return None if value is None else value / 1000

        self.server = ServerTimes(
            seconds("queue_time_ms"), seconds("time_to_first_token_ms"), seconds("generation_time_ms")
        )
        told = metrics.get("speculative_decoding")
        if told is not None:
            self.speculation = Speculation(
                num_steps=_count(told["num_spec_steps"]),
                num_drafted=_count(told["num_draft_tokens"]),
                num_accepted=_count(told["num_accepted_draft_tokens"]),
                accepted_per_step=_counts(told.get("per_step_accepted")),
                drafted_per_step=_counts(told.get("per_step_drafted")),
            )

    def problem(self) -> str | None:
        """Why this stream cannot be used, None if it can."""
        if self.server_error is not None:
            return self.server_error
        if not self.ended:
            return "stream ended without [DONE]"
        if self.completion_tokens is None:
            return "no usage chunk; the server must honour stream_options.include_usage"
        if self.completion_tokens != len(self.token_ids):
            return f"{len(self.token_ids)} token ids streamed, usage says {self.completion_tokens}"
        return None


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise ValueError(f"a token id or count must be an integer from 0 to {MAX_COUNT}")
    return value


def _counts(value: Any) -> tuple[int, ...]:
    return tuple(_count(item) for item in value or ())


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text must be a string")
    return value


def _message(payload: bytes) -> str:
    """What an error body says: the innermost `error` or `message` of its JSON, else the body itself."""
    text = payload.decode(errors="replace")
    try:
        said = orjson.loads(payload)
    except ValueError:
        said = None
    while isinstance(said, dict):
        said = said.get("error") or said.get("message")
    return " ".join((said if isinstance(said, str) else text).split())[:MAX_ERROR_CHARS] or "no message"
