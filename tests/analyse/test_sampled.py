"""Gate 8 on sampled texts: planted corruption is found, clean studies are left alone, and the mean would not have done.

Studies run on the virtual clock: texts, corruption and scores come from the simulator, judgement from the analysis.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from specprof.analyse.evidence import Evidence
from specprof.analyse.results import Severity
from specprof.analyse.sampled import FALSE_ALARM, examine
from specprof.analyse.study import analyse
from specprof.columns import score_table
from specprof.records import Sampling, TextScores
from tests.analyse.sampled_studies import evidence, machine, written
from tests.factory import NGRAM, make_cell, make_data

ON = {"arm": "ngram-k4", "speculative_config": NGRAM}


def findings(found):
    return [finding for key in found.series for finding in found.sampled.findings_of(key)]


# -- on the simulator -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.001, 0.005, 0.02])
def test_planted_corruption_is_a_fault_in_every_cell_that_has_it(share):
    found = evidence(machine(5, corrupt_sampled_share=share))
    assert {gate.severity for gate in findings(found)} == {Severity.INVALID}
    assert all("impossible tokens " in gate.evidence for gate in findings(found))
    told = {key[2]: bool(found.sampled.findings_of(key)) for key in found.series}
    assert told == {"ngram-k4": True, "off": False}


def test_an_invalid_cell_makes_its_gain_invalid():
    figures = analyse("sampled", evidence(machine(5, corrupt_sampled_share=0.01), streams=(1,)), {})
    assert {cell.arm: cell.valid for cell in figures.cells} == {"off": True, "ngram-k4": False}
    assert not any(gain.valid for gain in figures.gains)
    assert len(figures.surprise) == 4


def test_the_mean_alone_would_have_missed_it():
    """METHOD 7: means much alike, but a largest surprise no sampler can explain."""
    found = evidence(machine(5, corrupt_sampled_share=0.003), streams=(4,))
    on = [figures for figures in found.sampled.figures if figures.arm == "ngram-k4"]
    off = [figures for figures in found.sampled.figures if figures.arm == "off"]
    for with_drafts, without in zip(on, off, strict=True):
        assert with_drafts.mean_p_value > 0.01  # no test of the mean at any usual level would have objected
        assert with_drafts.mean_nats.value == pytest.approx(without.mean_nats.value, rel=0.2)
        assert with_drafts.largest_nats > 30 > 18 > without.largest_nats
    assert {gate.severity for gate in findings(found)} == {Severity.INVALID}


def test_a_hundred_clean_studies_raise_no_alarm():
    for seed in range(100):
        found = evidence(machine(seed), num_prompts=14, streams=(4,), max_tokens=64)
        assert findings(found) == [], f"seed {seed}"
        assert len(found.sampled.figures) == 4  # and yet it was looked at


def test_two_arms_that_both_write_absurdities_are_a_caution_about_the_measurement():
    cells, scores = written(machine(5, corrupt_sampled_share=0.01), streams=(1,))
    on = {data.cell.tag: scores[data.cell.key] for data in cells if data.cell.arm == "ngram-k4"}
    swapped = {data.cell.key: on[data.cell.tag] for data in cells}  # both arms as the corrupted one wrote
    found = findings(Evidence(cells, swapped))
    assert len(found) == 4
    assert {(gate.name, gate.severity) for gate in found} == {("impossible tokens", Severity.CAUTION)}


# -- by hand --------------------------------------------------------------------------------------------------------


def texts(cell, nats):
    """One text per prompt; `nats(prompt number)` gives its tokens' surprise at T = 1."""

    def text(number, name):
        own = -np.asarray(nats(number), dtype=float)
        rest = np.log1p(-np.exp(own))
        return TextScores(name, tuple(own), (2,) * len(own), tuple((float(most),) for most in rest))

    return score_table([text(number, name) for number, name in enumerate(cell.prompt_ids)])


def compared(on_nats, off_nats, num_prompts=32):
    cells = [make_cell(num_prompts=num_prompts, sampling=Sampling(temperature=1.0), **more) for more in ({}, ON)]
    scores = {cell.key: texts(cell, nats) for cell, nats in zip(cells, (off_nats, on_nats), strict=True)}
    found = Evidence([make_data(cell) for cell in cells], scores)
    return found, findings(found)


def ordinary(seed, tail=0, tail_nats=11.0, shift=0.0):
    """64 tokens a text, `tail` of them at `tail_nats` on average."""

    def nats(number):
        rng = np.random.default_rng((seed, number))
        tokens = np.minimum(rng.exponential(1.5, 64) + 0.01, 7.0) + shift
        tokens[: rng.poisson(tail)] = tail_nats
        return tokens

    return nats


def test_a_heavier_tail_of_possible_tokens_is_a_fault_too():
    _, (gate,) = compared(ordinary(1, tail=1.0), ordinary(2, tail=0.15))
    assert (gate.name, gate.severity) == ("output changed", Severity.INVALID)
    assert "impossible tokens 0 (off 0)" in gate.evidence


def with_one_absurd(nats):
    """The same texts, with one token in the first of them that no sampler draws."""
    return lambda number: [*nats(number)[:-1], 45.0 if number == 0 else nats(number)[-1]]


def test_one_absurd_token_without_speculation_does_not_excuse_a_heavier_tail():
    """Every second text of the arm holds eight absurd tokens: 2^-16 at most that signs alone would do so."""
    heavy = ordinary(1, tail=8.0, tail_nats=45.0)
    _, gates = compared(
        lambda number: heavy(number) if number % 2 else ordinary(3)(number), with_one_absurd(ordinary(2))
    )
    assert ("output changed", Severity.INVALID) in [(gate.name, gate.severity) for gate in gates]
    _, gates = compared(with_one_absurd(ordinary(1, tail=1.0)), with_one_absurd(ordinary(2, tail=0.15)))
    assert ("output changed", Severity.INVALID) in [(gate.name, gate.severity) for gate in gates]


def test_one_absurd_token_in_either_arm_is_a_caution_about_the_measurement():
    _, gates = compared(with_one_absurd(ordinary(1)), with_one_absurd(ordinary(2)))
    assert {(gate.name, gate.severity) for gate in gates} == {("impossible tokens", Severity.CAUTION)}
    assert len(gates) == 2
    assert all(gate.evidence.endswith("; without speculation too") for gate in gates)


def test_a_lighter_tail_is_no_fault():
    _, gates = compared(ordinary(1, tail=0.15), ordinary(2, tail=1.0))
    assert not any(gate.severity is Severity.INVALID for gate in gates)


def test_another_mean_alone_is_a_caution():
    _, (gate,) = compared(ordinary(1, shift=0.4), ordinary(2))
    assert (gate.name, gate.severity) == ("output differs", Severity.CAUTION)


def test_a_single_token_that_chance_explains_is_no_proof():
    def one(number):
        return [20.0 if number == 0 else 1.0, *[1.0] * 63]

    _, (gate,) = compared(one, lambda number: [1.0] * 64)
    assert (gate.name, gate.severity) == ("rare tokens", Severity.CAUTION)
    assert "impossible tokens 1 (off 0)" in gate.evidence


def test_what_chance_explains_grows_with_the_number_of_tokens():
    """n * V * p: 27 nats are beyond chance among 2,000 tokens and not among 200,000."""
    assert math.log(2_000 * 300_000 / FALSE_ALARM) < 27.2 < 30 < math.log(200_000 * 300_000 / FALSE_ALARM)


def test_too_few_prompts_for_a_test_leave_the_impossible_to_speak():
    """Four pairs cannot get p under 1/16, whatever they show."""
    found, gates = compared(ordinary(1, tail=8.0), ordinary(2), num_prompts=4)
    assert gates == []
    (on,) = (figures for figures in found.sampled.figures if figures.arm == "ngram-k4")
    assert on.tail_p_value >= 1 / 16


def test_without_an_off_arm_an_absurd_token_still_counts():
    cell = make_cell(sampling=Sampling(temperature=1.0), **ON)
    found = Evidence([make_data(cell)], {cell.key: texts(cell, lambda _: [45.0, 1.0])})
    (gate,) = findings(found)
    assert gate.severity is Severity.INVALID
    assert "off" not in gate.evidence


def test_under_a_penalty_nothing_is_called_impossible():
    sampling = Sampling(temperature=1.0, repetition_penalty=1.2)
    cell = make_cell(sampling=sampling, **ON)
    found = Evidence([make_data(cell)], {cell.key: texts(cell, lambda _: [45.0, 1.0])})
    assert findings(found) == []
    assert found.sampled.figures[0].impossible is None


def test_greedy_cells_are_not_looked_at_and_unscored_ones_are_told():
    greedy, sampled = make_cell(), make_cell(sampling=Sampling(temperature=0.8), protocol="sampled")
    found = Evidence([make_data(greedy), make_data(replace(sampled, key="sampled"))])
    assert found.sampled.figures == ()
    assert found.sampled.unscored == (("code", "sampled", "off", 4),)
    assert any("Gate 8 is open for 1 sampled cells" in note for note in analyse("s", found, {}).notes)


def test_a_study_without_cells_has_nothing_to_examine():
    assert examine([], {}).figures == ()
