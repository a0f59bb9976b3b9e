"""The SSE decoder against a reference: the same events with the same times wherever the network cut the bytes."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specprof.columns import request_table, requests_of
from specprof.measure.reads import Reads
from specprof.measure.wire import RawStream, decode, events
from specprof.records import Phase
from tests.fuzz.conftest import fuzz
from tests.fuzz.hostile import ANYTHING, any_bytes, as_json, mutated

BOM = b"\xef\xbb\xbf"


def reference(blob: bytes) -> list[tuple[int, bytes]]:
    """By the standard (WHATWG HTML 9.2.5 and 9.2.6), a byte at a time: payload of each event, and where it ended.

    A line ends at LF, at CR, and at CRLF as one; an empty line dispatches what the data fields said, each value
    without one leading space, joined by LF. An event without data is none, and neither is an unfinished one.
    """
    found: list[tuple[int, bytes]] = []
    data: list[bytes] = []
    line = b""
    for end, byte in enumerate(blob, start=1):
        if byte == 0x0A and blob[end - 2 : end - 1] == b"\r":
            continue  # the CR before it has ended the line
        if byte not in (0x0A, 0x0D):
            line += bytes([byte])
            if line == BOM and end == len(BOM):
                line = b""
            continue
        field, _, value = line.partition(b":")
        if line == b"":
            found += [(end, b"\n".join(data))] if data else []
            data = []
        elif field == b"data":
            data.append(value[1:] if value.startswith(b" ") else value)
        line = b""
    return found


def cut(blob: bytes, places: list[int]) -> list[tuple[int, bytes]]:
    """A stream in reads, the first at time 100, each 10 later; some of them empty."""
    edges = [0, *sorted(place % (len(blob) + 1) for place in places), len(blob)]
    return [(100 + 10 * i, blob[start:end]) for i, (start, end) in enumerate(pairwise(edges))]


def arrived(reads: list[tuple[int, bytes]], end: int) -> int:
    """When the first `end` bytes had all been read."""
    ends = accumulate(len(block) for _, block in reads)
    return next(at for (at, _), up_to in zip(reads, ends, strict=True) if up_to >= end)


CONTENT = st.one_of(st.binary(max_size=10), st.text(max_size=4).map(str.encode))
LINE = st.one_of(
    CONTENT,
    CONTENT.map(lambda value: b"data:" + value),
    CONTENT.map(lambda value: b"data: " + value),
    st.sampled_from(
        [b"", b"", b"", b"data", b"data ", b"datum: x", b": comment", b"event: x", b"id: 7", b"retry: 1", BOM]
    ),
)
BLOB = st.lists(st.tuples(LINE, st.sampled_from([b"\n", b"\r", b"\r\n", b"\n\n", b"\r\n\r\n", b""])), max_size=14).map(
    lambda lines: b"".join(line + end for line, end in lines)
)


@fuzz
@given(st.one_of(BLOB, BLOB.map(lambda blob: BOM + blob)), st.lists(st.integers(0, 400), max_size=10))
@example(b"data: a\r\n\r\ndata: b\r\n\r\n", [8, 9, 10, 11])
@example(BOM + b"data: a\n\n", [1, 2])
@example(b"data: a\r\rdata: b\r\r", [8, 8, 9])
@example(b"\r\n" * 5, list(range(10)))
def test_events_are_those_of_the_standard_wherever_the_network_cut_them(blob: bytes, places: list[int]) -> None:
    reads = cut(blob, places)
    assert list(events(reads)) == [(arrived(reads, end), payload) for end, payload in reference(blob)]


def test_a_token_of_a_megabyte_in_small_reads_is_one_event() -> None:
    payload = b"x" * 1_000_000
    blob = b"data: " + payload + b"\n\n"
    reads = [(at, blob[at : at + 100]) for at in range(0, len(blob), 100)]
    assert list(events(reads)) == [(reads[-1][0], payload)]


STREAM = [
    {"choices": [{"index": 0, "text": "wo", "token_ids": [5, 6], "delta": {"content": "wo"}}]},
    {"choices": [{"index": 0, "text": "rd", "token_ids": [7], "finish_reason": "length"}]},
    {
        "choices": [],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0}},
        "metrics": {
            "queue_time_ms": 1.5,
            "time_to_first_token_ms": 2,
            "generation_time_ms": 3,
            "speculative_decoding": {
                "num_spec_steps": 2,
                "num_draft_tokens": 8,
                "num_accepted_draft_tokens": 1,
                "per_step_accepted": [1, 0],
                "per_step_drafted": [4, 4],
            },
        },
        "timings": {"cache_n": 0, "prompt_n": 5, "predicted_n": 3, "draft_n": 4, "draft_n_accepted": 2},
    },
]


def streamed(blocks: list[bytes], status: int) -> RawStream:
    reads = Reads([(1000 + i, block) for i, block in enumerate(blocks)])
    return RawStream("p", Phase.MEASURED, 0, 0, sent_ns=10, done_ns=5000, status=status, reads=reads)


def is_kept(raw: RawStream) -> None:
    """A request that the store can hold, whatever came; its tokens are those of its chunks."""
    request = decode(raw, asked=8)
    assert len(request.chunk_ns) == len(request.chunk_tokens)
    if request.token_ids:
        assert sum(request.chunk_tokens) == len(request.token_ids)
    if request.error is not None:
        assert 0 < len(request.error) < 1000
    (kept,) = requests_of(request_table([request]))
    assert (kept.token_ids, kept.text, kept.error) == (request.token_ids, request.text, request.error)


def encoded(payloads: list[Any]) -> bytes:
    lines = (as_json(payload).encode() for payload in payloads)
    return b"".join(b"data: " + line + b"\n\n" for line in lines) + b"data: [DONE]\n\n"


def test_the_stream_that_is_mutated_is_a_request() -> None:
    request = decode(streamed([encoded(STREAM)], 200))
    assert (request.error, request.text, request.token_ids) == (None, "word", (5, 6, 7))


@fuzz
@given(mutated(STREAM, times=3), st.lists(st.integers(0, 600), max_size=4), st.sampled_from([200, 200, 500]))
def test_anything_anywhere_in_a_stream_is_a_request_or_its_error(payloads: Any, places: list[int], status: int) -> None:
    blob = encoded(payloads if isinstance(payloads, list) else [payloads])
    is_kept(streamed([block for _, block in cut(blob, places)], status))


@fuzz
@given(any_bytes(encoded(STREAM)), st.lists(st.integers(0, 600), max_size=4), st.sampled_from([200, 404]))
def test_any_bytes_are_a_request_or_its_error(blob: bytes, places: list[int], status: int) -> None:
    is_kept(streamed([block for _, block in cut(blob, places)], status))


@fuzz
@given(st.lists(ANYTHING, max_size=3), st.sampled_from(["error", "message"]))
def test_any_refusal_is_told_on_one_short_line(values: list[Any], name: str) -> None:
    error = decode(streamed([as_json({name: values[0] if values else {}, "code": values}).encode()], 429)).error
    assert error is not None and error.startswith("HTTP 429: ") and "\n" not in error and len(error) < 400


@pytest.mark.parametrize("payload", [b"[" * 100_000, b'{"error": ' + b"[" * 1000 + b"]" * 1000 + b"}", b"9" * 100_000])
def test_depth_and_length_without_end_are_errors_of_the_request(payload: bytes) -> None:
    is_kept(streamed([b"data: " + payload + b"\n\n"], 200))
    is_kept(streamed([payload], 500))
