"""What a server takes of a request and tells in its answer, learned from one small request before anything is measured.

Our requests speak vLLM's dialect. Other servers refuse some of its fields, or pass over them in silence, and their
streams tell less: SGLang counts tokens in the last chunk, llama.cpp in its own `timings`, llama-cpp-python nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from specprof.errors import EngineError, InputError
from specprof.records import Cell, Role, Stop

PROBE_TOKENS = 16
_QUESTION = "Is water wet? Answer with the single word yes or no."
_SAMPLING_OF_VLLM = {"repetition_penalty": 1.0, "top_k": 0, "seed": None}  # and the value that asks for nothing
_TELLING = ("return_token_ids", "stream_options")
_LENGTH = ("ignore_eos", "min_tokens")
OPTIONAL = (*_TELLING, *_LENGTH, *_SAMPLING_OF_VLLM)  # what may be left out where it is refused
_REFUSED = (400, 422)

Ask = Callable[[Mapping[str, Any]], tuple[int, bytes]]  # a request body → status, bytes of the stream


@dataclass(frozen=True, slots=True)
class Dialect:
    """`left_out`: fields the server refuses, which requests to it go without. The rest: what its streams tell."""

    left_out: tuple[str, ...]
    token_ids: bool  # the ids of the tokens it wrote
    token_counts: bool  # how many they were
    cached_tokens: bool  # how many prompt tokens came from its cache
    request_times: bool  # how long the request waited there
    acceptance: bool  # its drafts, and how many of them held
    stopped_early: bool  # it ended the text by itself though `ignore_eos` was sent

    def not_reported(self) -> Iterator[str]:
        """What the records of this server will lack, in words. Acceptance is asked of an arm that speculates alone."""
        told = {
            "token ids": self.token_ids,
            "token counts": self.token_counts or self.token_ids,
            "cached prompt tokens": self.cached_tokens,
            "queue times": self.request_times,
        }
        yield from (name for name, is_told in told.items() if not is_told)


def learn(base_url: str, model: str, cells: Sequence[Cell], ask: Ask) -> Dialect:
    """Send one small request, again without whatever is refused, until it is answered.

    EngineError if it never is; InputError where the cells need a field that the server refuses.
    """
    body = _body(model, cells)
    left_out: list[str] = []
    while True:
        status, answer = ask({name: value for name, value in body.items() if name not in left_out})
        if status == 200:
            return _dialect(answer, tuple(left_out))
        culprit = _culprit(answer, [name for name in OPTIONAL if name in body and name not in left_out])
        if status not in _REFUSED or culprit is None:
            said = " ".join(answer.decode(errors="replace").split())[:200]
            raise EngineError(f"{base_url} does not answer a small request.", cause=f"HTTP {status}: {said}")
        left_out.append(culprit)


def require_length(dialect: Dialect, cells: Sequence[Cell], base_url: str) -> None:
    """Raise InputError where a protocol's length cannot be forced, or a natural one cannot be counted, on a server."""
    figures = [cell for cell in cells if cell.role not in (Role.PREFILL, Role.SENTINEL)]
    forced = [cell for cell in figures if cell.stop is Stop.FORCED]
    masked = any(cell.mask_eos for cell in forced)
    for name, needed in (("ignore_eos", bool(forced) and not masked), ("min_tokens", masked)):
        if needed and name in dialect.left_out:
            raise InputError(
                f"{base_url}: refuses {name}, so protocol {forced[0].protocol!r} cannot force the length of its texts. "
                "Use protocols with stop: natural on this server"
                + ("." if masked else ", or force the length by mask_eos: true (min_tokens).")
            )
    if forced and dialect.stopped_early:
        other = "leave mask_eos out" if masked else "add mask_eos: true (min_tokens)"
        raise InputError(
            f"{base_url}: ends a text by itself although it is told to write on, so protocol {forced[0].protocol!r} "
            f"cannot force the length of its texts. {other.capitalize()}, or use protocols with stop: natural."
        )
    natural = [cell for cell in figures if cell.stop is Stop.NATURAL]
    if natural and not (dialect.token_counts or dialect.token_ids):
        raise InputError(
            f"{base_url}: its streams count no tokens (no usage, no token ids), so the texts of protocol "
            f"{natural[0].protocol!r}, which end by themselves, have no length. Use stop: forced, where the length is "
            "the one asked for."
        )


def _body(model: str, cells: Sequence[Cell]) -> dict[str, Any]:
    """A request with every field that the cells will use."""
    sampling = cells[0].sampling
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": PROBE_TOKENS,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": sampling.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "ignore_eos": True,
    }
    if any(cell.mask_eos for cell in cells):
        body["min_tokens"] = PROBE_TOKENS
    if cells[0].chat:
        return body | {"messages": [{"role": "user", "content": _QUESTION}]}
    return body | {"prompt": f"{_QUESTION}\nAnswer:"}


def _culprit(answer: bytes, fields: Sequence[str]) -> str | None:
    """The field an error speaks of, else the one that other engines are most likely not to know."""
    said = answer.decode(errors="replace")
    return next((name for name in fields if name in said), fields[0] if fields else None)


def _dialect(answer: bytes, left_out: tuple[str, ...]) -> Dialect:
    events = list(_events(answer))
    choices = [choice for event in events for choice in event.get("choices") or () if isinstance(choice, dict)]
    usages = [event["usage"] for event in events if isinstance(event.get("usage"), dict)]
    timings = [event["timings"] for event in events if isinstance(event.get("timings"), dict)]
    details = [usage.get("prompt_tokens_details") for usage in usages]
    return Dialect(
        left_out=left_out,
        token_ids=any(choice.get("token_ids") for choice in choices),
        token_counts=bool(usages) or any("predicted_n" in timing for timing in timings),
        cached_tokens=any(details) or any("cache_n" in timing for timing in timings),
        request_times=any(isinstance(event.get("metrics"), dict) for event in events),
        acceptance=any("draft_n" in timing for timing in timings)
        or any("speculative_decoding" in (event.get("metrics") or {}) for event in events),
        stopped_early=any(choice.get("finish_reason") == "stop" for choice in choices),
    )


def _events(answer: bytes) -> Iterator[Mapping[str, Any]]:
    """The JSON objects of a server-sent event stream; what is none is passed over."""
    for line in answer.splitlines():
        payload = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
        if payload.startswith(b"{"):
            try:
                yield orjson.loads(payload)
            except orjson.JSONDecodeError:
                continue
