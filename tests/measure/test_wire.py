"""The wire: what is asked for, and what the bytes that came back said."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprof.columns import request_table, requests_of
from specprof.engine.access import Access
from specprof.measure.reads import Reads
from specprof.measure.wire import RawStream, decode, encode, events, path_of
from specprof.records import Phase, Sampling, ServerTimes, Speculation, Stop
from tests.factory import make_cell, make_prompt

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}


def sse(*payloads: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(p).encode() + b"\n\n" for p in payloads)


def chunk(ids: Any, text: Any = "x", **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "token_ids": ids, **more}], "usage": None}


def stream(*reads: bytes, status: int = 200, error: str | None = None) -> RawStream:
    timed = Reads([(1000 + i, block) for i, block in enumerate(reads)])
    return RawStream("p", Phase.MEASURED, 0, 990, sent_ns=995, done_ns=2000, status=status, reads=timed, error=error)


# -- asking ---------------------------------------------------------------------------------------------------------


def asked(cell, prompt=None, max_tokens=64):
    return orjson.loads(encode(cell, prompt or make_prompt(), "m", max_tokens=max_tokens))


def test_every_sampling_parameter_is_sent_since_defaults_hide_in_no_result():
    body = asked(make_cell(sampling=Sampling(0.7, 0.9, 40, 1.1, 11)))
    assert {k: body[k] for k in ("temperature", "top_p", "top_k", "repetition_penalty")} == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "repetition_penalty": 1.1,
    }


def test_every_prompt_draws_with_a_seed_of_its_own_the_same_each_time():
    def seed(prompt_id: str, study_seed: int) -> int:
        cell = make_cell(sampling=Sampling(temperature=0.7, seed=study_seed))
        return asked(cell, make_prompt(prompt_id))["seed"]

    assert seed("a", 1) == seed("a", 1)
    assert len({seed("a", 1), seed("b", 1), seed("a", 2)}) == 3
    assert 0 <= seed("a", 0) < 2**31


def test_tokens_are_counted_by_the_server_s_ids_and_its_usage():
    body = asked(make_cell())
    assert body["stream"] is True
    assert body["return_token_ids"] is True
    assert body["stream_options"] == {"include_usage": True}


def test_forced_writes_past_the_end_and_masks_it_only_when_told():
    assert "min_tokens" not in asked(make_cell())
    assert asked(make_cell())["ignore_eos"] is True
    assert asked(make_cell(mask_eos=True))["min_tokens"] == 64


def test_natural_stops_by_itself():
    body = asked(make_cell(stop=Stop.NATURAL))
    assert "ignore_eos" not in body
    assert "min_tokens" not in body


def test_completion_and_chat():
    assert asked(make_cell())["prompt"] == "def area(radius):"
    assert path_of(make_cell()) == "/v1/completions"
    chat = make_cell(chat=True)
    assert asked(chat)["messages"] == [{"role": "user", "content": "def area(radius):"}]
    assert "prompt" not in asked(chat)
    assert path_of(chat) == "/v1/chat/completions"


def test_a_schema_constrains_the_output_only_where_the_protocol_is_guided():
    prompt = make_prompt(schema={"type": "object"})
    assert "structured_outputs" not in asked(make_cell(), prompt)
    assert asked(make_cell(guided=True), prompt)["structured_outputs"] == {"json": {"type": "object"}}


# -- reading --------------------------------------------------------------------------------------------------------

METRICS = {
    "queue_time_ms": 1.5,
    "time_to_first_token_ms": 20.0,
    "generation_time_ms": 400.0,
    "speculative_decoding": {
        "num_spec_steps": 2,
        "num_draft_tokens": 8,
        "num_accepted_draft_tokens": 3,
        "acceptance_histogram": [0, 1, 1, 0, 0],
        "per_step_accepted": [2, 1],
        "per_step_drafted": [4, 4],
    },
}


def test_a_whole_stream():
    raw = stream(
        sse(chunk([11], "a")),
        sse(chunk([12, 13], "文", finish_reason="length")),
        sse({"choices": [], "usage": USAGE, "metrics": METRICS}) + DONE,
    )
    request = decode(raw)
    assert request.error is None
    assert request.chunk_ns == (1000, 1001)
    assert request.chunk_tokens == (1, 2)
    assert request.token_ids == (11, 12, 13)
    assert (request.text, request.finish_reason) == ("a文", "length")
    assert (request.prompt_tokens, request.cached_tokens) == (7, 2)
    assert request.server == ServerTimes(0.0015, 0.02, 0.4)
    assert request.speculation == Speculation(2, 8, 3, (2, 1), (4, 4))


def test_chat_deltas():
    first = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    text = {"choices": [{"delta": {"content": "hi"}, "token_ids": [1, 2, 3]}]}
    request = decode(stream(sse(first, text, {"choices": [], "usage": USAGE}) + DONE))
    assert (request.text, request.token_ids, request.error) == ("hi", (1, 2, 3), None)


def test_text_held_back_is_a_chunk_of_tokens_all_the_same():
    request = decode(stream(sse(chunk([1], ""), chunk([2, 3], "好"), {"choices": [], "usage": USAGE}) + DONE))
    assert request.chunk_tokens == (1, 2)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (stream(b'{"error": {"message": "too long", "code": 400}}', status=400), "HTTP 400: too long"),
        (stream(b"Internal Server Error", status=500), "HTTP 500: Internal Server Error"),
        (stream(b"", status=502), "HTTP 502: no message"),
        (stream(error="connection failed: reset"), "connection failed: reset"),
        (stream(sse(chunk([1, 2, 3]), {"choices": [], "usage": USAGE})), "stream ended without [DONE]"),
        (
            stream(sse({"choices": [{"index": 0, "text": "hi"}]}) + DONE),
            "no usage chunk; the server must honour stream_options.include_usage",
        ),
        (stream(sse(chunk([1]), {"choices": [], "usage": USAGE}) + DONE), "1 token ids streamed, usage says 3"),
        (stream(sse({"error": {"message": "EngineDeadError"}}) + DONE), "EngineDeadError"),
        (stream(b"data: {\n\n"), "malformed stream: "),
        (stream(sse(chunk(["a"]))), "malformed stream: a token id or count must be an integer"),
        (stream(sse(chunk([2**31]))), "malformed stream: a token id or count must be an integer"),
        (stream(sse(chunk([1], text=7))), "malformed stream: a text must be a string"),
        (stream(sse({"choices": [], "usage": {"prompt_tokens": 1e300, "completion_tokens": 1}})), "malformed stream: "),
    ],
)
def test_whatever_is_wrong_ends_in_the_error(raw, error):
    assert decode(raw).error.startswith(error)


TOKEN = "sk-a/very+secret"


@pytest.mark.parametrize("token", [TOKEN, TOKEN.replace("/", r"\/"), TOKEN.replace("a", r"\u0061")])
@pytest.mark.parametrize("said_before", ["", "x" * (300 - len("wrong key: ") - 5)])
def test_an_error_is_kept_without_the_token_whatever_its_status_and_spelling(token, said_before, monkeypatch):
    """Also where an error is cut after 300 characters, in the midst of the token."""
    monkeypatch.setenv("PLANTED", TOKEN)
    body = b'{"error": {"message": "wrong key: %b%b"}}' % (said_before.encode(), token.encode())
    for raw in (stream(b"data: " + body + b"\n\n" + DONE), stream(body, status=401)):
        error = decode(raw, access=Access("PLANTED")).error
        assert "wrong key: " in error and "sk-" not in error
        assert len(error) <= 300


def test_what_arrived_before_a_break_is_kept_beside_the_error():
    request = decode(stream(sse(chunk([1], "a"), chunk([2], "b")), error="connection failed: reset"))
    assert request.error == "connection failed: reset"
    assert (request.token_ids, request.chunk_ns, request.text) == ((1, 2), (1000, 1000), "ab")


def test_a_break_stays_the_error_whatever_else_is_wrong():
    assert decode(stream(sse(chunk(["a"])), error="timed out: no data for 300 s")).error.startswith("timed out")


# -- server-sent events ---------------------------------------------------------------------------------------------


def reference(blob: bytes) -> list[bytes]:
    """The SSE standard on a whole stream: an event ends at an empty line, an unfinished one is dropped."""
    found, data = [], []
    for line in blob.replace(b"\r\n", b"\n").split(b"\n")[:-1]:
        if line == b"":
            found += [b"\n".join(data)] if data else []
            data = []
        elif line.startswith(b"data:"):
            value = line[len(b"data:") :]
            data.append(value[1:] if value.startswith(b" ") else value)
        elif line == b"data":  # a field without a colon has an empty value
            data.append(b"")
    return found


LINES = st.one_of(
    st.binary(max_size=12).map(lambda b: b"data: " + b.replace(b"\r", b"").replace(b"\n", b"")),
    st.binary(max_size=12).map(lambda b: b"data:" + b.replace(b"\r", b"").replace(b"\n", b"")),
    st.sampled_from(
        [b"", b"", b": comment", b"event: message", b"id: 7", b"retry: 10", b"data", b"data: \xe6\x96\x87"]
    ),
)
BLOBS = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n"])), max_size=12).map(
    lambda lines: b"".join(line + end for line, end in lines)
)


def cut(blob: bytes, places: list[int]) -> list[tuple[int, bytes]]:
    edges = [0, *sorted(p % (len(blob) + 1) for p in places), len(blob)]
    return [(i, blob[a:b]) for i, (a, b) in enumerate(pairwise(edges))]


@settings(max_examples=150, deadline=None)
@given(BLOBS, st.lists(st.integers(0, 500), max_size=8))
def test_events_do_not_depend_on_where_the_network_cut_them(blob, places):
    assert [payload for _, payload in events(cut(blob, places))] == reference(blob)


@settings(deadline=None)
@given(st.lists(st.integers(0, 500), max_size=8))
def test_an_event_has_the_time_of_the_read_that_completed_it(places):
    blob = sse({"a": 1}, {"b": "文字"}) + DONE
    reads = cut(blob, places)
    ends = [i + 2 for i in range(len(blob)) if blob[i : i + 2] == b"\n\n"]
    arrived = [next(at for at, _ in reads if sum(len(b) for t, b in reads if t <= at) >= end) for end in ends]
    assert [at for at, _ in events(reads)] == arrived


# -- anything at all --------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    [
        "choices",
        "usage",
        "metrics",
        "error",
        "token_ids",
        "text",
        "delta",
        "content",
        "finish_reason",
        "prompt_tokens",
        "completion_tokens",
        "prompt_tokens_details",
        "cached_tokens",
        "speculative_decoding",
        "num_spec_steps",
    ]
)
VLLM_LIKE = st.recursive(
    JSON, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=5), max_leaves=10
)


def is_clean(raw: RawStream) -> None:
    """A request the store can keep, whatever came; and every token belongs to a chunk."""
    request = decode(raw)
    assert sum(request.chunk_tokens) == len(request.token_ids)
    assert len(request.chunk_ns) == len(request.chunk_tokens)
    (kept,) = requests_of(request_table([request]))
    assert kept.token_ids == request.token_ids
    assert kept.error == request.error


@settings(max_examples=60, deadline=None)
@given(st.lists(VLLM_LIKE, max_size=4), st.sampled_from([200, 400]))
def test_any_json_is_a_request_or_an_error(payloads, status):
    is_clean(stream(sse(*payloads), DONE, status=status))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["text", "token_ids", "finish_reason", "delta"]), JSON)
def test_any_value_in_a_choice_is_a_request_or_an_error(name, value):
    is_clean(stream(sse({"choices": [{"token_ids": [1], "text": "a", name: value}]}), DONE))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=4), st.sampled_from([200, 500]))
def test_any_bytes_are_a_request_or_an_error(blocks, status):
    is_clean(stream(*blocks, status=status))


@pytest.mark.parametrize("payload", [b'{"error": ' + b"[" * 900 + b"]" * 900 + b"}", b"[" * 5000])
def test_deep_nesting_is_an_error_too(payload):
    is_clean(stream(b"data: " + payload + b"\n\n"))
    is_clean(stream(payload, status=500))
