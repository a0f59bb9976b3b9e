"""The wire: a cell's prompt → request body before the run, bytes with their arrival times → a `Request` after it.

Nothing here runs while tokens arrive. An event's time is that of the read that completed it; tokens are counted from
the server's token ids, never from text and never from the number of events. A server that streams no ids has counted
them itself (usage, or llama.cpp's timings), and its count is shared evenly among the events that brought text; one that
counts nothing either has written what it was asked for where it says that it was cut there (`finish_reason: length`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import orjson

from specprof.engine.access import OPEN, Access
from specprof.measure.reads import Reads
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
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(slots=True)
class RawStream:
    """One request as it happened: instants, and the bytes of each read with the time it returned.

    `sent_ns` is when it was written to a connection that stood; opening one for it, if none was free, took
    `connect_ns` before that. A request that never left is `sent` when it failed.
    """

    prompt_id: str
    phase: Phase
    stream: int
    scheduled_ns: int
    sent_ns: int = 0
    done_ns: int = 0
    status: int = 0
    reads: Reads = field(default_factory=Reads)
    error: str | None = None
    connect_ns: int = 0


def path_of(cell: Cell) -> str:
    """The API path a cell's requests go to."""
    return "/v1/chat/completions" if cell.chat else "/v1/completions"


def encode(cell: Cell, prompt: Prompt, model: str, *, max_tokens: int, without: Collection[str] = ()) -> bytes:
    """The request body. Every sampling parameter is sent: a server's own defaults come from the model, unseen.

    Each prompt draws with a seed of its own, the same in every arm, so that prompts do not share their luck.
    `without`: fields that the server refuses. One that asks for something is sent all the same, and refused openly.
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
    asks_for = {"top_k": sampling.top_k != 0, "repetition_penalty": sampling.repetition_penalty != 1.0}
    asks_for["seed"] = sampling.temperature > 0
    return orjson.dumps({name: value for name, value in body.items() if name not in without or asks_for.get(name)})


def decode(raw: RawStream, *, asked: int | None = None, access: Access = OPEN) -> Request:
    """What the bytes said. Whatever is wrong with them ends in the request's `error`, never in an exception.

    `asked`: the tokens it was sent for, which count where a text was cut there and the server counts none. `access`:
    whose token an error is kept without, whatever the status it came with.
    """
    seen = _Seen(asked)
    error = raw.error
    if raw.status == 200:  # also of a stream that broke or was given up: what had arrived by then is kept
        found = _read(seen, raw.reads)
        error = error or found
    elif error is None:
        error = f"HTTP {raw.status}: {_message(raw.reads.body())}"
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
        error=None if error is None else access.scrubbed_text(error)[:MAX_ERROR_CHARS],
        server=seen.server,
        speculation=seen.speculation,
        reasoning="".join(seen.reasoning) or None,
    )


def _read(seen: _Seen, reads: Iterable[tuple[int, bytes]]) -> str | None:
    """Take in every event; why the stream cannot be used, None if it can."""
    try:
        for at_ns, payload in events(reads):
            seen.take(at_ns, payload)
        seen.close()
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        return f"malformed stream: {problem}"
    return seen.problem()


def events(reads: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The `data:` payloads of a server-sent event stream, each with the time of the read that completed it.

    By the SSE standard (WHATWG HTML, 9.2.6): lines end in LF, CRLF or CR, a byte order mark may come first, an event
    may be split anywhere or share a read with others, comments and other fields are passed over, and an unfinished
    last event is dropped.
    """
    unfinished: list[bytes] = []  # of a line; joined once, since a long one may come in a thousand reads
    data: list[bytes] = []
    at_start, after_cr = True, False
    for at_ns, read in reads:
        block = read.removeprefix(b"\n") if after_cr else read  # the second half of a CRLF
        after_cr = read.endswith(b"\r") if read else after_cr
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = block.split(b"\n")
        if lines and unfinished:
            lines[0] = b"".join((*unfinished, lines[0]))
            unfinished.clear()
        if rest:
            unfinished.append(rest)
        if lines and at_start:
            lines[0], at_start = lines[0].removeprefix(_BYTE_ORDER_MARK), False
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif line == b"data":
                data.append(b"")
            elif not line and data:
                yield at_ns, b"\n".join(data)
                data = []


class _Seen:
    """What the events of one stream have said so far."""

    def __init__(self, asked: int | None = None) -> None:
        self.asked = asked
        self.text_ns: list[int] = []  # of events that brought text, whether or not they name its tokens
        self.chunk_ns: list[int] = []
        self.chunk_tokens: list[int] = []
        self.token_ids: list[int] = []
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.prompt_tokens = 0
        self.completion_tokens: int | None = None
        self.timed_tokens: tuple[int, int] | None = None  # llama.cpp: read, written
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
        if event.get("timings"):
            self._take_timings(event["timings"])

    def close(self) -> None:
        """Without token ids: when the text came, and its tokens as the server counted them, shared evenly."""
        if self.completion_tokens is None and self.timed_tokens is not None:
            self.prompt_tokens, self.completion_tokens = self.timed_tokens
        if self.token_ids:
            if self.completion_tokens is None and self.ended:
                self.completion_tokens = len(self.token_ids)
            return
        if self.completion_tokens is None and self.ended and self.finish_reason == "length":
            self.completion_tokens = self.asked
        if self.completion_tokens:
            self.chunk_ns = self.text_ns
            self.chunk_tokens = _shared(self.completion_tokens, len(self.text_ns))

    def _take_choice(self, at_ns: int, choice: dict[str, Any]) -> None:
        ids = _counts(choice.get("token_ids"))
        if ids:
            self.chunk_ns.append(at_ns)
            self.chunk_tokens.append(len(ids))
            self.token_ids.extend(ids)
        delta = choice.get("delta") or {}
        text = _text(choice.get("text") or delta.get("content") or "")
        reasoning = _text(delta.get("reasoning_content") or delta.get("reasoning") or "")
        self.text.append(text)
        self.reasoning.append(reasoning)
        self.finish_reason = _text(choice.get("finish_reason") or self.finish_reason or "") or None
        last_chance = self.finish_reason and not self.text_ns  # a single token may have no text of its own
        if text or reasoning or last_chance:
            self.text_ns.append(at_ns)

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

    def _take_timings(self, timings: dict[str, Any]) -> None:
        """llama.cpp's account of a request. It counts drafted tokens, not the steps that carried a draft."""
        cached = _count(timings.get("cache_n", 0))
        if "predicted_n" in timings:
            self.timed_tokens = _count(timings.get("prompt_n", 0)) + cached, _count(timings["predicted_n"])
        if "cache_n" in timings:
            self.cached_tokens = cached
        if "draft_n" in timings:
            self.speculation = Speculation(
                num_steps=0,
                num_drafted=_count(timings["draft_n"]),
                num_accepted=_count(timings.get("draft_n_accepted", 0)),
            )

    def problem(self) -> str | None:
        """Why this stream cannot be used, None if it can."""
        if self.server_error is not None:
            return self.server_error
        if not self.ended:
            return "stream ended without [DONE]"
        if self.completion_tokens is None:
            return "no usage chunk; the server must honour stream_options.include_usage"
        if self.token_ids and self.completion_tokens != len(self.token_ids):
            return f"{len(self.token_ids)} token ids streamed, usage says {self.completion_tokens}"
        return None


def _shared(num_tokens: int, num_events: int) -> list[int]:
    """Whole tokens for each event, as even as can be. Their sum is `num_tokens`, if there is an event."""
    ends = [num_tokens * (i + 1) // num_events for i in range(num_events)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


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
    return " ".join((said if isinstance(said, str) else text).split()) or "no message"
