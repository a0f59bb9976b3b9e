"""The wire of other engines: no token ids, counts in the last chunk, in `timings`, or nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from specprof.measure.wire import RawStream, decode, encode
from specprof.records import Phase, Sampling, Speculation
from tests.factory import make_cell, make_prompt

STREAMS = Path(__file__).parents[1] / "data" / "streams"
DONE = b"data: [DONE]\n\n"


def stream(*events: Any, done: bool = True) -> RawStream:
    """One event per read, at 1000, 1001, …"""
    blocks = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    timed = [(1000 + i, block) for i, block in enumerate(blocks)]
    if done:
        timed.append((1000 + len(blocks), DONE))
    return RawStream("p", Phase.MEASURED, 0, 990, sent_ns=995, done_ns=2000, status=200, reads=timed)


def text(words: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": words, "logprobs": None, "finish_reason": finish}]}


def usage(num: int, **details: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": num, "total_tokens": 7 + num, **details}}


def recorded(name: str) -> RawStream:
    """A recorded stream, every line a read of its own."""
    lines = (STREAMS / name).read_bytes().splitlines(keepends=True)
    timed = [(1000 + i, line) for i, line in enumerate(lines)]
    return RawStream("p", Phase.MEASURED, 0, 990, sent_ns=995, done_ns=2000, status=200, reads=timed)


def test_sglang_s_usage_is_shared_evenly_among_its_chunks() -> None:
    """Seven tokens in three chunks, as a speculating server sends them: which chunk held how many is not said."""
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    parts = [{"choices": [{"index": 0, "delta": {"content": part}}]} for part in (" a b", " c d e", " f g")]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length", "matched_stop": None}], "usage": None}
    request = decode(stream(role, *parts, end, usage(7, prompt_tokens_details=None, reasoning_tokens=0)))
    assert request.error is None
    assert request.chunk_ns == (1001, 1002, 1003)
    assert sum(request.chunk_tokens) == 7
    assert set(request.chunk_tokens) == {2, 3}
    assert request.token_ids == ()
    assert (request.text, request.prompt_tokens, request.cached_tokens) == (" a b c d e f g", 7, None)
    assert request.finish_reason == "length"


def test_llama_cpp_counts_in_its_timings_where_no_usage_was_asked_for() -> None:
    timings = {"cache_n": 3, "prompt_n": 4, "predicted_n": 2, "prompt_ms": 10.0, "predicted_ms": 20.0}
    request = decode(stream(text(" a"), text(" b"), text("", "length") | {"timings": timings}))
    assert request.error is None
    assert (request.chunk_tokens, request.prompt_tokens, request.cached_tokens) == ((1, 1), 7, 3)
    assert request.speculation is None


def test_llama_cpp_counts_drafted_tokens_and_no_steps() -> None:
    timings = {"cache_n": 0, "prompt_n": 7, "predicted_n": 3, "draft_n": 4, "draft_n_accepted": 1}
    per_token = {"timings": {"cache_n": 0, "prompt_n": 7, "predicted_n": 1}}  # as with timings_per_token
    request = decode(stream(text(" a") | per_token, text(" b"), text(" c", "length") | {"timings": timings}, usage(3)))
    assert request.error is None
    assert request.chunk_tokens == (1, 1, 1)
    assert request.speculation == Speculation(num_steps=0, num_drafted=4, num_accepted=1)


@pytest.mark.parametrize("name", ["chat", "completion"])
def test_llama_cpp_python_counts_nothing_and_what_it_was_asked_for_is_what_it_wrote(name: str) -> None:
    """Recorded from llama-cpp-python 0.3.36 with SmolLM2, asked for 12 tokens with min_tokens 12."""
    raw = recorded(f"llama-cpp-python-0.3.36-{name}.sse")
    request = decode(raw, asked=12)
    assert request.error is None
    assert request.finish_reason == "length"
    assert sum(request.chunk_tokens) == 12
    assert len(request.chunk_ns) == len(request.chunk_tokens)
    assert list(request.chunk_ns) == sorted(set(request.chunk_ns))
    assert request.text.strip()
    assert (request.prompt_tokens, request.cached_tokens, request.token_ids) == (0, None, ())
    assert "no usage" in str(decode(raw).error), "nobody said how many tokens that was"


def test_a_text_that_ended_by_itself_and_that_nobody_counted_has_no_length() -> None:
    assert "no usage" in str(decode(stream(text(" a"), text("", "stop")), asked=12).error)
    assert "without [DONE]" in str(decode(stream(text(" a"), text("", "length"), done=False), asked=12).error)


def test_a_single_token_without_a_text_of_its_own_came_with_the_last_event() -> None:
    request = decode(stream({"choices": []}, text("", "length"), usage(1)))
    assert request.error is None
    assert (request.chunk_ns, request.chunk_tokens) == ((1001,), (1,))


def test_reasoning_is_written_too() -> None:
    thought = {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]}
    request = decode(stream(thought, {"choices": [{"index": 0, "delta": {"content": "so"}}]}, usage(2)))
    assert (request.chunk_ns, request.chunk_tokens) == ((1000, 1001), (1, 1))
    assert (request.reasoning, request.text) == ("hm", "so")


def test_ids_win_over_counts() -> None:
    named = {"choices": [{"index": 0, "text": " a b", "token_ids": [5, 6]}]}
    assert decode(stream(named, usage(2))).chunk_tokens == (2,)
    assert "usage says 3" in str(decode(stream(named, usage(3))).error)


def test_ids_are_counted_where_no_usage_counts_them() -> None:
    named = {"choices": [{"index": 0, "text": " a b", "token_ids": [5, 6], "finish_reason": "length"}]}
    request = decode(stream(named))
    assert (request.error, request.chunk_tokens) == (None, (2,))
    assert decode(stream(named, done=False)).error == "stream ended without [DONE]"


def test_a_refused_field_is_left_out_unless_it_asks_for_something() -> None:
    refused = {"top_k", "repetition_penalty", "seed", "return_token_ids"}

    def sent(sampling: Sampling) -> set[str]:
        body = encode(make_cell(sampling=sampling), make_prompt(), "m", max_tokens=8, without=refused)
        return refused & set(orjson.loads(body))

    assert sent(Sampling()) == set()
    assert sent(Sampling(temperature=0.7, top_k=40, repetition_penalty=1.1)) == {"top_k", "repetition_penalty", "seed"}
