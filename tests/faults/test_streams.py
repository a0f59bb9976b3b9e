"""One stream of a cell goes wrong: it is recorded as what it was, once, and the others and the cell stay whole.

How each kind of byte is read is tested where bytes are read (`tests/measure/test_wire.py`, `test_http1.py`); here it is
what becomes of the cell and of what is said about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from specprof.analyse.frames import CellFrame
from specprof.analyse.gates.texts import failures
from specprof.analyse.results import Severity
from specprof.columns import cell_data
from specprof.measure import load, loop
from specprof.records import CellRecord
from tests.factory import make_cell, make_prompt
from tests.faults.misbehaving import (
    STREAM_HEAD,
    WORDS,
    answer,
    chunk,
    ending,
    event,
    misbehaving,
    page,
    token_events,
)
from tests.measure.doubles import FakeEngine
from tests.measure.scripted import CLOSE, RESET, Answer

TOKENS = token_events()
TWO_TOKENS = STREAM_HEAD + chunk(TOKENS[0]) + chunk(TOKENS[1])
SILENCE_S = 4.0  # longer than a busy machine keeps anybody waiting who is well
STALL_S = 3 * SILENCE_S

# What a server does to one request → the tokens that are kept of it, and what its record says.
FAULTS: dict[str, tuple[Answer, tuple[int, ...], str]] = {
    "closed in the middle": ((TWO_TOKENS, 0.02, CLOSE), (0, 1), "connection failed"),
    "reset in the middle": ((TWO_TOKENS, 0.02, RESET), (0, 1), "connection failed"),
    "closed before the first token": ((STREAM_HEAD, 0.02, CLOSE), (), "connection failed"),
    "closed without an answer": ((0.02, CLOSE), (), "connection failed"),
    "reset without an answer": ((0.02, RESET), (), "connection failed"),
    "stalled in the middle": ((TWO_TOKENS, STALL_S), (0, 1), "timed out: no data for 4.0 s"),
    "stalled before an answer": ((STALL_S,), (), "timed out: no data for 4.0 s"),
    "no JSON": ((answer(TOKENS[0], b"data: {not JSON\n\n"),), (0,), "malformed stream"),
    "half a character": ((answer(TOKENS[0], b'data: {"a": "\xe6"}\n\n'),), (0,), "malformed stream"),
    "no end": ((answer(*TOKENS),), (0, 1, 2, 3), "stream ended without [DONE]"),
    "a wrong count": ((answer(*TOKENS, ending(3)),), (0, 1, 2, 3), "4 token ids streamed, usage says 3"),
    "an error event": ((answer(event({"error": {"message": "out of memory"}})),), (), "out of memory"),
    "no HTTP": ((b"not HTTP at all\r\n\r\n", 0.02, CLOSE), (), "malformed answer"),
    "5xx": ((page(503, b"overloaded"),), (), "HTTP 503: overloaded"),
    "429": ((page(429, b"slow down", **{"Retry-After": "1"}),), (), "HTTP 429: slow down"),
}


@pytest.fixture(autouse=True, scope="module")
def _quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "SETTLE_S", 0.2)
        patch.setattr(loop, "WATCH_PERIOD_S", 0.05)
        patch.setattr(load, "SILENCE_S", SILENCE_S)
        yield


def measured(prompts: Sequence[str], answers: Mapping[str, Answer]) -> tuple[CellRecord, list[str]]:
    """A cell of these prompts at two streams, of which some are answered so; and the prompts that the server saw."""
    cell = make_cell(prompt_ids=tuple(prompts), max_tokens=len(WORDS), concurrency=2)
    suite = {name: make_prompt(name, text=name) for name in prompts}
    with misbehaving(answers) as server:
        return loop.measure(cell, suite, FakeEngine(server), launch=0), server.asked


@pytest.fixture(scope="module")
def met() -> tuple[CellRecord, list[str]]:
    """One cell that meets every fault, with prompts between them that are answered well."""
    prompts = [name for fault in FAULTS for name in (fault, f"after {fault}")]
    return measured(prompts, {fault: said for fault, (said, _, _) in FAULTS.items()})


@pytest.mark.parametrize("fault", FAULTS)
def test_a_stream_that_fails_is_recorded_with_what_came_and_is_sent_once(
    fault: str, met: tuple[CellRecord, list[str]]
) -> None:
    record, asked = met
    _, kept, told = FAULTS[fault]
    (failed,) = (request for request in record.requests if request.prompt_id == fault)
    assert failed.error is not None and failed.error.startswith(told)
    assert failed.token_ids == kept
    assert failed.sent_ns <= failed.done_ns
    assert asked.count(fault) == 1, "a retry would be load that nobody asked for, and a second chance"


def test_the_others_are_whole_and_the_cell_says_that_it_cannot_be_quoted(met: tuple[CellRecord, list[str]]) -> None:
    record, asked = met
    others = [request for request in record.requests if request.prompt_id not in FAULTS]
    assert {(request.error, request.text) for request in others} == {(None, "".join(WORDS))}
    assert len(others) == len(FAULTS) == len(asked) / 2
    (finding,) = failures(CellFrame(cell_data(record)))
    assert finding.severity is Severity.INVALID
    assert finding.evidence.startswith(f"{len(FAULTS)} of {2 * len(FAULTS)} failed: connection failed")


def test_a_character_that_the_network_cut_in_half_is_whole_again() -> None:
    """Between two writes, and between two chunks of the body: bytes are put together before they are text."""
    whole = b"".join(TOKENS) + ending()
    cut = whole.index("文".encode()) + 1
    in_two_writes = answer(whole)
    middle = in_two_writes.index("文".encode()) + 1
    for said in ((in_two_writes[:middle], 0.02, in_two_writes[middle:]), (answer(whole[:cut], whole[cut:]),)):
        record, _ = measured(["whole", "cut"], {"cut": said})
        assert {(request.error, request.text) for request in record.requests} == {(None, "".join(WORDS))}


def test_a_burst_of_5xx_fails_what_it_met_and_nothing_after_it() -> None:
    prompts = ("a", "b", "c", "d")
    record, _ = measured(prompts, dict.fromkeys(prompts[:2], (page(502, b"bad gateway"),)))
    assert [request.error for request in record.requests] == ["HTTP 502: bad gateway"] * 2 + [None] * 2


def test_a_redirection_is_not_followed() -> None:
    """It may lead to another machine, which is not the one to measure, and would be handed the token."""
    with misbehaving() as elsewhere:
        record, _ = measured(["a"], {"a": (page(307, Location=f"{elsewhere.base_url}/v1/completions"),)})
        assert elsewhere.asked == []
    assert [request.error for request in record.requests] == ["HTTP 307: no message"]


def test_a_server_that_is_slow_and_does_not_fall_silent_is_waited_for() -> None:
    """No pause is near the limit, and all of them together are beyond it."""
    pause_s = 0.35 * SILENCE_S
    pieces = (chunk(TOKENS[0]), chunk(b"".join(TOKENS[1:])), chunk(ending()) + chunk(b""))
    slow: Answer = (STREAM_HEAD, *(step for piece in pieces for step in (pause_s, piece)))
    record, _ = measured(["a"], {"a": slow})
    (request,) = record.requests
    assert request.error is None
    assert request.done_ns - request.sent_ns > SILENCE_S * 1e9, "longer than the silence that would have failed it"


def test_a_server_that_is_well_has_no_finding() -> None:
    """The control: what the other tests find is the fault's doing."""
    record, _ = measured(["a", "b"], {})
    assert list(failures(CellFrame(cell_data(record)))) == []
