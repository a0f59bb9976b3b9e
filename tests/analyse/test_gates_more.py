"""Gates 5, 9, 10, 12 and 14 where the evidence is indirect: repeats, gauges, histograms, paired lengths, full steps."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest

from specprof.analyse.comparisons import cached_repeats, faster_with_drafts, length_mismatch
from specprof.analyse.frames import CellFrame
from specprof.analyse.gates import cell_gates
from specprof.analyse.gates.texts import looping
from specprof.analyse.results import Figure, Loops, Severity
from specprof.records import Counters, Speculation, Stop
from tests.factory import NGRAM, make_cell, make_frame, make_request, make_requests

ON = {"arm": "ngram-k4", "speculative_config": NGRAM}


def found(frame):
    return {(gate.gate, gate.name): gate for gate in cell_gates(frame, None)}


# -- 5: a repeat that is read faster --------------------------------------------------------------------------------


def alone(ttft_s, start_s, *, cached_tokens=None, num_prompts=8, launch=0, concurrency=1, chat=False):
    cell = make_cell(num_prompts=num_prompts, concurrency=concurrency, chat=chat)
    at = {"cached_tokens": cached_tokens, "ttft_s": ttft_s}
    requests = [make_request(name, start_s=start_s + 10 * i, **at) for i, name in enumerate(cell.prompt_ids)]
    return make_frame(cell, requests, launch=launch)


def test_5_prompts_that_are_read_faster_when_sent_again_were_cached():
    (gate,) = cached_repeats([alone(0.5, 1000.0), alone(1.0, 0.0)]).values()  # in the order they were sent
    assert gate.severity is Severity.INVALID
    assert "TTFT of the same 8 prompts fell by 50%" in gate.evidence


def test_5_a_server_that_counts_no_cached_tokens_may_not_see_every_cache():
    """METHOD 7.5 asks for cached tokens *or* a TTFT that falls: a proxy or a store of its own may hold the prompts."""
    (gate,) = cached_repeats([alone(1.0, 0.0, cached_tokens=0), alone(0.5, 1000.0, cached_tokens=0)]).values()
    assert gate.severity is Severity.CAUTION
    assert "TTFT of the same 8 prompts fell by 50%" in gate.evidence
    assert "no cached tokens" in gate.evidence
    assert cached_repeats([alone(1.0, 0.0, cached_tokens=0), alone(0.85, 1000.0, cached_tokens=0)]) == {}


@pytest.mark.parametrize(
    "again",
    [
        alone(0.85, 1000.0),  # 15%: under the 20% of METHOD 7
        alone(0.5, 1000.0, launch=1),  # another launch has another cache
        alone(0.5, 1000.0, cached_tokens=15),  # the server counts them, and its own count is judged
        alone(0.5, 1000.0, chat=True),  # a template makes it another prompt
        alone(0.5, 1000.0, concurrency=4),  # TTFT in a crowd hangs on the crowd
        alone(0.5, 1000.0, num_prompts=4),  # four prompts fall by chance, once in 16
    ],
)
def test_5_other_falls_tell_nothing(again):
    assert cached_repeats([alone(1.0, 0.0), again]) == {}


# -- 9: gauges and histograms ---------------------------------------------------------------------------------------


def test_9_more_requests_than_streams():
    crowd, own = Counters(0, num_requests_running=6.0), Counters(0, num_requests_running=4.0)
    assert (
        "up to 6 requests ran at once" in found(make_frame(gauges=(own, crowd, crowd)))[9, "foreign traffic"].evidence
    )
    assert not found(make_frame(gauges=(own, crowd)))  # once: one leaves as another comes


@pytest.mark.parametrize(
    ("told", "evidence"),
    [
        (Speculation(32, 128, 40, (1,) * 32, (4,) * 32), "does not sum to the accepted tokens"),
        (Speculation(32, 128, 32, (1,) * 32, (0,) * 16 + (8,) * 16), "a step accepted more tokens than it drafted"),
    ],
)
def test_9_histograms_that_contradict_their_totals(told, evidence):
    cell = make_cell(**ON)
    assert evidence in found(make_frame(cell, make_requests(cell, speculation=told)))[9, "counters"].evidence


def test_9_a_later_position_cannot_survive_more_often():
    cell = make_cell(**ON)
    gate = found(make_frame(cell, counters={"num_accepted_tokens_per_pos": (60.0, 68.0, 0.0, 0.0)}))[9, "counters"]
    assert "later draft position" in gate.evidence


def test_9_a_server_may_tell_a_position_once_it_has_accepted_it():
    frame = make_frame(make_cell(**ON), counters={"num_accepted_tokens_per_pos": (60.0, 30.0, 0.0, 0.0)})
    told = {few: replace(frame.data.before, num_accepted_tokens_per_pos=few) for few in [(9.0,), (0.0, 29.0), ()]}
    for before in told.values():
        assert (9, "counters") not in found(CellFrame(replace(frame.data, before=before)))
    rising = replace(frame.data.after, num_accepted_tokens_per_pos=(60.0,))
    assert (9, "counters") not in found(CellFrame(replace(frame.data, before=told[0.0, 29.0], after=rising)))


# -- 10: lengths ----------------------------------------------------------------------------------------------------


def test_10_natural_texts_that_hit_a_limit_nobody_asked_for():
    cell = make_cell(stop=Stop.NATURAL, protocol="natural", max_tokens=256)
    cut = found(make_frame(cell, make_requests(cell, num_tokens=200, finish_reason="length")))
    assert "4 of 4 texts were cut short of the 256 tokens allowed" in cut[10, "length"].evidence
    assert (10, "length") not in found(make_frame(cell, make_requests(cell, num_tokens=256, finish_reason="length")))


def test_10_a_drafter_that_ends_before_the_text_does():
    def reaching(limit):
        cell = make_cell(arm="draft", speculative_config={**NGRAM, "max_model_len": limit})
        return found(make_frame(cell))

    assert "ends at 80 tokens of context, texts reached 84" in reaching(80)[10, "drafter length"].evidence
    assert (10, "drafter length") not in reaching(84)


def lengths(factor, sigma=0.3, count=32):
    luck = np.random.default_rng(0)
    off = {f"p{i}": log(200) + sigma * luck.standard_normal() for i in range(count)}
    on = {name: log(200 * factor) + sigma * luck.standard_normal() for name in off}
    return list(length_mismatch(on, off))


def test_10_arms_whose_texts_differ_in_length():
    (gate,) = lengths(0.6)
    assert gate.severity is Severity.INVALID
    assert "as long with speculation as without, over 32 prompts" in gate.evidence
    assert lengths(1.0) == []
    assert lengths(0.6, count=1) == []  # one sampled text may have any length


# -- 7: text past its own end, judged by what is left of it ---------------------------------------------------------


def own_end(half_width, flagged=0):
    kept = Figure(2.1, 2.1 / (1 + half_width), 2.1 * (1 + half_width))
    whole = Figure(2.0, 2.0 / 1.03, 2.0 * 1.03)
    nothing = Figure(None)
    loops = Loops(flagged, 0.1 * bool(flagged), ("code-000",) * flagged, nothing, kept, nothing, nothing, whole)
    return [gate.severity for gate in looping(make_cell(**ON), 4, loops)]


def test_7_a_smaller_sample_of_the_same_steps_may_wander():
    assert own_end(0.035) == [Severity.INVALID]  # 5% apart, where chance brings 3%
    assert own_end(0.10) == []  # 5% apart, where chance brings 15%
    assert own_end(0.10, flagged=1) == [Severity.INVALID]  # repetition that was seen is no chance


# -- 12: gain and cause ---------------------------------------------------------------------------------------------


def running(step_s, **changes):
    cell = make_cell(num_prompts=8, **changes)
    return make_frame(cell, make_requests(cell, step_s=step_s))


def test_12_only_shorter_steps_confirm_a_gain_above_its_cause():
    assert faster_with_drafts([running(0.04, **ON)], [running(0.05)]) is True
    assert faster_with_drafts([running(0.05, **ON)], [running(0.05)]) is False  # a luckier tail, then
    assert (
        faster_with_drafts([running(0.04, **ON), running(0.05, **ON, block=1)], [running(0.05), running(0.05, block=1)])
        is False
    )


def test_12_few_steps_cannot_tell():
    short = {"max_tokens": 4}
    assert faster_with_drafts([running(0.04, **ON, **short)], [running(0.05, **short)]) is None


def test_12_the_server_s_counts_per_position_stand_in_for_those_of_requests():
    cell = make_cell(**ON)
    silent = make_requests(cell, speculation=None)
    counted = {
        "num_drafts": 200.0,
        "num_accepted_tokens": 400.0,
        "num_accepted_tokens_per_pos": (200.0, 150.0, 50.0, 0.0),
    }
    before = Counters(0, num_drafts=0.0, num_accepted_tokens=0.0, prompt_tokens=0.0, generation_tokens=0.0)
    assert (
        "100.0% of 200 steps"
        in found(make_frame(cell, silent, counters=counted, before=before))[12, "too good"].evidence
    )


# -- 14: prompts nobody wrote ---------------------------------------------------------------------------------------


def test_14_prompts_that_are_answered_alike_are_one_prompt():
    cell = make_cell(num_prompts=8)
    same = [replace(request, token_ids=tuple(range(64))) for request in make_requests(cell)]
    gate = found(make_frame(cell, same))[14, "copied prompts"]
    assert gate.severity is Severity.INVALID
    assert "8 prompts were answered with 1 different text" in gate.evidence


def test_14_short_answers_may_well_be_the_same():
    cell = make_cell(num_prompts=8, max_tokens=8)
    assert (14, "copied prompts") not in found(
        make_frame(cell, [replace(r, token_ids=tuple(range(8))) for r in make_requests(cell)])
    )


def test_14_prompts_of_exactly_one_length():
    cell = make_cell(num_prompts=8)
    gate = found(make_frame(cell))[14, "prompts of one length"]
    assert gate.severity is Severity.CAUTION
    assert "all 8 prompts have exactly 20 tokens" in gate.evidence
    natural = [replace(r, prompt_tokens=20 + i) for i, r in enumerate(make_requests(cell))]
    assert not found(make_frame(cell, natural))
