"""From raw scores to surprise under the distribution that was sampled from: bounds that hold, exact where they can be.

Every expectation is worked out on a whole vocabulary, of which the code under test is shown the 20 most likely tokens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprof.analyse.surprise import scored_cell, surprises
from specprof.columns import score_table
from specprof.records import Sampling, TextScores
from tests.factory import make_cell, make_frame

NUM_TOP = 20


def vocabulary(seed, size=400, spread=3.0):
    """Raw log probabilities of a whole vocabulary, falling."""
    logits = np.random.default_rng(seed).normal(0.0, spread, size)
    return np.sort(logits - np.log(np.exp(logits).sum()))[::-1]


def sampled_from(raw, sampling):
    """Probabilities after temperature, top-k, then top-p, as vLLM applies them."""
    scaled = np.exp(raw / sampling.temperature)
    if sampling.top_k:
        scaled[sampling.top_k :] = 0
    scaled /= scaled.sum()
    before = np.concatenate([[0.0], np.cumsum(scaled)[:-1]])
    scaled[before >= sampling.top_p] = 0
    return scaled / scaled.sum()


def seen(raw, ranks, sampling):
    """What the code under test makes of the tokens at these places (0: the most likely)."""
    ranks = np.asarray(ranks)
    return surprises(raw[ranks], ranks + 1, np.tile(raw[:NUM_TOP], (len(ranks), 1)), sampling)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.3, 0.8, 1.0, 1.5]),
    top_p=st.sampled_from([0.5, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 8, 20, 50]),
)
def test_surprise_is_a_lower_bound_and_no_possible_token_is_excluded(seed, temperature, top_p, top_k):
    raw, sampling = vocabulary(seed), Sampling(temperature=temperature, top_p=top_p, top_k=top_k)
    truth = sampled_from(raw, sampling)
    possible = np.flatnonzero(truth)
    found = seen(raw, possible, sampling)
    actual = -np.log(truth[possible])
    assert (found.nats <= actual + 1e-9).all()
    assert not found.excluded.any()
    if found.slack_nats is not None:
        assert (found.nats + found.slack_nats >= actual - 1e-9).all()


def test_it_is_exact_at_temperature_one_and_under_a_short_top_k():
    raw = vocabulary(1)
    for sampling in (Sampling(temperature=1.0), Sampling(temperature=0.7, top_k=10)):
        truth = sampled_from(raw, sampling)[:10]
        assert seen(raw, range(10), sampling).nats == pytest.approx(-np.log(truth), abs=1e-9)


def test_what_top_p_left_to_choose_from_is_part_of_the_slack():
    """Of 0.5, 0.3 and 0.2 top-p 0.6 leaves the first two: 0.5 is then 0.5 / 0.8, and taken to be 0.5 / 0.6 at most."""
    raw = np.log([0.5, 0.3, 0.2])
    found = surprises(raw[:1], np.array([1]), raw[None, :], Sampling(temperature=1.0, top_p=0.6))
    actual = np.log(0.8 / 0.5)
    assert found.nats == pytest.approx(np.log(0.6 / 0.5))
    assert found.slack_nats is not None
    assert found.nats + found.slack_nats >= actual
    assert found.slack_nats == pytest.approx(np.log(1 / 0.6))  # all of S may have been left


def test_the_slack_is_small_where_twenty_tokens_hold_most_of_the_mass():
    slack = seen(vocabulary(1), [0, 5], Sampling(temperature=0.8)).slack_nats
    assert slack is not None and 0 < slack.max() < 0.1


def test_tokens_far_outside_top_k_and_top_p_are_excluded_and_neighbours_of_the_edge_are_not():
    raw = vocabulary(1)
    assert seen(raw, [0, 100], Sampling(temperature=0.8, top_k=5)).excluded.tolist() == [False, True]
    assert seen(raw, [0, 100], Sampling(temperature=0.8, top_k=40)).excluded.tolist() == [False, True]
    assert seen(raw, [0, 100], Sampling(temperature=0.8, top_p=0.3)).excluded.tolist() == [False, True]
    tied = np.log(np.full(30, 1 / 30))  # rounding decides who of equals is in: nobody can be accused
    assert not seen(tied, [29], Sampling(temperature=0.8, top_k=5)).excluded.any()
    assert not seen(tied, [29], Sampling(temperature=0.8, top_p=0.3)).excluded.any()


def test_an_impossible_token_stays_finite_and_far():
    raw = np.append(vocabulary(1), -45.0)
    assert seen(raw, [400], Sampling(temperature=0.8)).nats[0] > 50
    forbidden = np.append(vocabulary(1), -9999.0)  # how vLLM writes minus infinity
    assert np.isfinite(seen(forbidden, [400], Sampling(temperature=0.8)).nats[0])


@pytest.mark.parametrize(
    ("changes", "known"),
    [({}, True), ({"mask_eos": True}, False), ({"guided": True}, False)],
)
def test_what_shaped_the_distribution_unseen_keeps_scores_from_saying_what_was_possible(changes, known):
    cell = make_cell(sampling=Sampling(temperature=0.8), **changes)
    assert scored_cell(make_frame(cell), score_table([])).known is known
    penalised = replace(cell, sampling=Sampling(temperature=0.8, repetition_penalty=1.1))
    assert not scored_cell(make_frame(penalised), score_table([])).known


def test_texts_that_could_not_be_scored_are_counted():
    cell = make_cell(sampling=Sampling(temperature=0.8))
    own = TextScores("code-000", (-0.5,) * 2, (1,) * 2, ((-0.5, -2.0),) * 2)
    found = scored_cell(make_frame(cell), score_table([own, TextScores("code-001", error="too long")]))
    assert [name for name, _ in found.texts] == ["code-000"]
    assert found.num_unscored == 3
