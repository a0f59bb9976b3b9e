"""`until: decided`: a look may be the last when every load is decided, or when more blocks could not decide it."""

from __future__ import annotations

from dataclasses import fields

import pytest

from specprof.analyse.evidence import Evidence
from specprof.analyse.results import DecisionFigures, Figure, Outcome, StudyFigures, VerdictFigures
from specprof.decide.looks import settled
from specprof.study.reading import parse_study
from specprof.study.smallest import smallest_grid
from tests.factory import NGRAM, make_cell, make_data, make_request

LINE = 1.03
ARM = "ngram-k4"


def only_with(kind, **given):
    """A figure of which nothing else is looked at."""
    return kind(**{field.name: None for field in fields(kind)} | given)


def load(decision, gain=1.0):
    told = Figure(gain, 0.5, 2.0)
    return only_with(
        DecisionFigures, tag="code", protocol="forced", concurrency=1, decision=decision, arm=ARM, gain=told
    )


def study(*loads, verdicts=()):
    outcomes = tuple(only_with(VerdictFigures, outcome=Outcome(one)) for one in verdicts)
    return only_with(StudyFigures, decisions=loads, verdicts=outcomes)


def evidence(gains, launches=(1.0, 1.1, 0.9, 1.0)):
    """One stream, one prompt per gain: with drafts prompt i takes 1 / gains[i] as long, in launches of these speeds."""

    def cell(block, arm, speed, flags=None):
        of = make_cell(
            arm=arm, speculative_config=flags, block=block, concurrency=1, num_prompts=len(gains), max_tokens=64
        )
        start, requests = 0.0, []
        for name, gain in zip(of.prompt_ids, gains, strict=True):
            step_s = 0.05 / speed / (gain if flags else 1.0)
            requests.append(make_request(name, start_s=start, ttft_s=step_s, step_s=step_s))
            start += 64 * step_s
        return make_data(of, requests)

    off = [cell(block, "off", 1.0) for block in range(len(launches))]
    return Evidence([*off, *(cell(block, ARM, speed, NGRAM) for block, speed in enumerate(launches))])


def test_loads_that_are_decided_need_not_be_known_well():
    assert settled(study(load("on"), load("off"), load("not fit")), evidence([1.0] * 8), LINE)


def test_launches_that_differ_may_still_average_out():
    """All prompts gain the same, so the interval is the launches' alone, and more of them would narrow it."""
    assert not settled(study(load("on"), load("undecided", 1.0)), evidence([1.0] * 8), LINE)


def test_prompts_that_differ_stay_what_they_are_however_often_they_are_sent():
    """ln of the gains ±0.29 around 0: their mean is known to ±0.24 (t, 7 degrees), and the line lies 0.03 away."""
    assert settled(study(load("on"), load("undecided", 1.0)), evidence([0.75, 1 / 0.75] * 4), LINE)


@pytest.mark.parametrize(("gain", "may_end"), [(1.25, True), (1.45, False)])
def test_beyond_what_prompts_could_move_more_blocks_may_decide(gain, may_end):
    """ln(1.25 / 1.03) = 0.19 lies within ±0.24, ln(1.45 / 1.03) = 0.34 does not."""
    assert settled(study(load("undecided", gain)), evidence([0.75, 1 / 0.75] * 4), LINE) is may_end


def test_no_number_of_blocks_tells_what_one_prompt_cannot():
    assert settled(study(load("undecided", 1.45)), evidence([1.4]), LINE)


def test_verdicts_are_waited_for_and_nothing_at_all_settles_nothing():
    assert not settled(study(load("on"), verdicts=["undecided"]), evidence([1.0] * 8), LINE)
    assert settled(study(load("on"), verdicts=["pass"]), evidence([1.0] * 8), LINE)
    assert not settled(study(), evidence([1.0] * 8), LINE)


TEXT = """
study: small
engine: {kind: sim, preset: small}
arms: {"off": {}, k1: {speculative_config: {method: draft, num_speculative_tokens: 1}}}
workloads: [{tag: code, suite: code.jsonl}]
protocols: {forced: {stop: forced, output_tokens: 8}}
blocks: auto
"""


def test_a_policy_s_plan_is_measured_until_it_has_decided_and_stays_the_same_study():
    whole = parse_study(TEXT, "study.yaml")
    assert (whole.until, smallest_grid(whole).study.until) == ("known", "decided")
    assert parse_study(f"{TEXT}until: decided\n", "study.yaml").content_hash() == whole.content_hash()
