"""What makes a closed loop's figures unfit makes an open one's unfit as well (METHOD 7): texts, counts, prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from specprof.analyse.evidence import Evidence
from specprof.analyse.results import GateFinding, Severity
from specprof.analyse.service.findings import rung_gates
from specprof.analyse.service.rung import Rung
from specprof.analyse.study import analyse
from specprof.columns import CellData
from specprof.records import Cell, Phase, Request, Speculation, Stop
from tests.analyse.open_loops import due_request, make_open_cell, measured_cell, open_frame, targets
from tests.factory import NGRAM, looping_tokens, make_counters, make_data

INVALID, CAUTION = Severity.INVALID, Severity.CAUTION
TOKENS, NUM_DUE, NUM_PROMPTS = 192, 64, 8
ON: dict[str, Any] = {"arm": "on", "speculative_config": NGRAM}  # K = 4
ASKED = targets(ttft=1.0)

Answers = dict[tuple[int, str], Severity]


def served(**changes: Any) -> Cell:
    """Eight prompts, asked again and again: 64 requests of up to 192 tokens in ten seconds."""
    cell = make_open_cell(
        [0.15 * i for i in range(NUM_DUE)], stop=Stop.NATURAL, protocol="served", max_tokens=TOKENS, **changes
    )
    return replace(cell, prompt_ids=tuple(f"p{i % NUM_PROMPTS}" for i in range(NUM_DUE)))


def text(index: int, seed: int = 0) -> tuple[int, ...]:
    """No token twice, another text for each prompt and seed."""
    begins = 10_000 * (1 + index % NUM_PROMPTS) + 1_000 * seed
    return tuple(range(begins, begins + TOKENS))


def requests_of(cell: Cell, told: Callable[[int], dict[str, Any]] = lambda _: {}) -> list[Request]:
    """Steps of 3 ms; drafts of an arm with speculation bring one token more in two steps of three."""
    accepted = (0, 1, 1) if cell.speculative_config else None
    plain = {"num_tokens": TOKENS, "ttft_s": 0.02, "step_s": 0.003, "accepted": accepted}
    return [due_request(cell, i, **{**plain, "token_ids": text(i), **told(i)}) for i in range(NUM_DUE)]


def findings(cell: Cell, requests: Sequence[Request], **changes: Any) -> tuple[GateFinding, ...]:
    return rung_gates(Rung((measured_cell(cell, requests, ASKED, **changes),)))


def answers(found: Sequence[GateFinding]) -> Answers:
    return {(gate.gate, gate.name): gate.severity for gate in found}


@pytest.mark.parametrize("arm", [{}, ON], ids=["off", "on"])
def test_a_sound_rung_whose_prompts_come_again_is_told_nothing(arm: dict[str, Any]) -> None:
    cell = served(**arm)
    assert answers(findings(cell, requests_of(cell))) == {}


def test_7_loops_that_make_steps_longer_are_named() -> None:
    """Half the prompts go round in circles and are guessed whole: 191 later tokens in ceil(191 / 5) = 39 steps each.
    The others write 5 tokens in 3 steps: 115 steps. 382 / 154 = 2.48 tokens a step, and 191 / 115 = 1.66 without loops.
    """
    cell = served(**ON)
    circles = {"token_ids": looping_tokens(TOKENS), "accepted": (4,)}
    found = findings(cell, requests_of(cell, lambda i: circles if i % 2 else {}))
    (loops,) = (gate for gate in found if gate.gate == 7)
    assert loops.severity is INVALID
    assert loops.evidence.startswith(
        "the texts of 4 of 8 prompts repeat themselves; tokens per step 2.48, 1.66 without"
    )
    assert "unflagged" not in loops.remedy  # a rung shows no such figure


def test_7_loops_of_an_arm_that_never_drafts_are_a_caution() -> None:
    cell = served()
    found = answers(findings(cell, requests_of(cell, lambda i: {"token_ids": looping_tokens(TOKENS)} if i % 8 else {})))
    assert found[7, "loops"] is CAUTION


def test_9_more_accepted_than_drafted_is_named() -> None:
    cell = served(**ON)
    requests = [
        replace(r, speculation=replace(r.speculation, num_accepted=3 * r.speculation.num_drafted))
        for r in requests_of(cell)
        if r.speculation is not None
    ]
    assert answers(findings(cell, requests))[9, "counters"] is INVALID


def test_12_a_draft_that_never_fails_is_named() -> None:
    """64 requests of 39 verified steps: text that loses one draft in twenty would do so once in 0.95^-2496 times."""
    cell = served(**ON)
    assert answers(findings(cell, requests_of(cell, lambda _: {"accepted": (4,)}))) == {(12, "too good"): INVALID}


def test_12_chunks_that_the_accepted_tokens_leave_no_steps_for_are_named() -> None:
    """192 chunks of a token, of which 100 were accepted with another: at most 92 steps, and 4 drafts past the end."""
    cell = served(**ON)
    counts = Speculation(num_steps=191, num_drafted=764, num_accepted=100)
    requests = [replace(r, speculation=counts) for r in requests_of(cell, lambda _: {"accepted": (0,)})]
    assert answers(findings(cell, requests)) == {(12, "inconsistent"): INVALID}


def test_12_an_acceptance_length_that_the_server_knows_otherwise_is_named() -> None:
    """By its requests AL is 1 + 2 / 3; the server counted half as many accepted tokens again: 1 + 1."""
    cell = served(**ON)
    requests = requests_of(cell)
    accepted = sum(r.speculation.num_accepted for r in requests if r.speculation is not None)
    assert answers(findings(cell, requests, counters={"num_accepted_tokens": 1.5 * accepted})) == {
        (12, "inconsistent"): INVALID
    }


def test_12_what_the_server_wrote_before_the_window_is_no_contradiction() -> None:
    """Its counters are read before the warm-up, half of all requests here, in which every draft was accepted."""
    cell = served(**ON)
    half = NUM_DUE // 2
    requests = [
        replace(request, phase=Phase.WARMUP) if i < half else request
        for i, request in enumerate(requests_of(cell, lambda i: {"accepted": (4, 4, 0)} if i < half else {}))
    ]
    found = answers(rung_gates(Rung((measured_cell(cell, requests, ASKED, after=make_counters(requests)),))))
    assert found == {(6, "few requests"): CAUTION}


def test_12_what_requests_that_were_cut_short_took_with_them_is_not_asked_for() -> None:
    """A quarter was given up after 50 tokens: the server verified and accepted more for them than anybody was told."""
    cell = served(**ON)
    requests = requests_of(cell)
    after = make_counters(requests)
    cut = [
        replace(
            request,
            error="timed out",
            finish_reason=None,
            speculation=None,
            chunk_ns=request.chunk_ns[:30],
            chunk_tokens=request.chunk_tokens[:30],
            token_ids=request.token_ids[: sum(request.chunk_tokens[:30])],
        )
        if i % 4 == 0
        else request
        for i, request in enumerate(requests)
    ]
    assert after.num_accepted_tokens is not None
    more = replace(after, num_accepted_tokens=1.2 * after.num_accepted_tokens)
    assert answers(rung_gates(Rung((measured_cell(cell, cut, ASKED, after=more),)))) == {}


def test_14_prompts_that_are_copies_are_named_and_a_prompt_that_comes_again_is_none() -> None:
    cell = served()
    found = findings(cell, requests_of(cell, lambda _: {"token_ids": text(0)}))
    assert answers(found) == {(14, "copied prompts"): INVALID}
    assert found[0].evidence == "8 prompts were answered with 1 different text"


# -- gate 8: the off arm's texts --------------------------------------------------------------------------------------


def at(cell: Cell, rate: float) -> Cell:
    """The cell at another rate."""
    assert cell.arrivals is not None
    return replace(cell, arrivals=replace(cell.arrivals, rate_per_s=rate))


def changed(
    seed_on: int, *seeds_off: int, arm: dict[str, Any] | None = None, rates: Sequence[float] = ()
) -> tuple[GateFinding, ...]:
    """An arm that writes the texts of one seed, and off cells of the same block that write those of others.

    `rates`: of the off cells, where they differ.
    """
    cell = served(**{**ON, **(arm or {})})

    def with_texts(cell: Cell, seed: int) -> list[Request]:
        return requests_of(cell, lambda i: {"token_ids": text(i, seed)})

    plain = [served(key=f"off-{i}") for i in range(len(seeds_off))]
    for i, rate in enumerate(rates):
        plain[i] = at(plain[i], rate)
    off = [open_frame(each, with_texts(each, seed)) for each, seed in zip(plain, seeds_off, strict=True)]
    return rung_gates(Rung((measured_cell(cell, with_texts(cell, seed_on), ASKED),)), off=off)


def test_8_texts_that_speculation_changed_are_named() -> None:
    """All 8 prompts differ, none between the two off cells: 1 / C(16, 8) by chance, far below 5%."""
    assert answers(changed(0, 0, 0)) == {}
    found = changed(1, 0, 0)
    assert answers(found) == {(8, "output changed"): INVALID}
    assert found[0].evidence.startswith("8 of 8 greedy texts differ from the off arm's, first at token 1 of p0")


def test_8_every_rate_without_speculation_is_a_control_of_its_own() -> None:
    """Launches at one rate repeat each other; other rates do not: 8 texts of each of three others."""
    (found,) = changed(1, 0, 0, 0, 0, rates=(1.0, 2.0, 4.0, 8.0), arm={"arrivals": {"rate_per_s": 1.0}})
    assert "off/off control 0 of 24" in found.evidence
    (found,) = changed(1, 0, 0, 0, 0)
    assert "off/off control 0 of 8" in found.evidence


def test_8_texts_that_differ_without_speculation_as_well_are_a_caution() -> None:
    assert answers(changed(2, 0, 1)) == {(8, "output differs"): CAUTION}


def test_8_requests_of_a_trace_are_asked_for_lengths_of_their_own_and_not_compared() -> None:
    lengths = {"arrivals": {"kind": "trace", "output_tokens": (TOKENS,) * NUM_DUE}}
    assert not any(gate.gate == 8 for gate in changed(1, 0, 0, arm=lengths))


# -- studies ----------------------------------------------------------------------------------------------------------


def cell_of(**told: Any) -> CellData:
    cell = served(**told.pop("arm", {}))
    return make_data(cell, requests_of(cell, lambda _: told))


def test_a_study_s_rungs_are_held_to_each_other_and_to_the_gates() -> None:
    """The on arm writes other texts, and is right every time: neither becomes a headline."""
    other = make_data(
        served(**ON), requests_of(served(**ON), lambda i: {"accepted": (4,), "token_ids": text(i, seed=1)})
    )
    told = analyse("open", Evidence([cell_of(), other]), {}, asked=ASKED).service
    assert told is not None
    off, on = sorted(told.rungs, key=lambda rung: rung.arm == "on")
    assert off.valid
    assert not on.valid
    assert answers(on.gates) == {(8, "output changed"): CAUTION, (12, "too good"): INVALID}  # no off/off control
