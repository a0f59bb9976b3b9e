"""Acceptance, METHOD 1, held against counters other people published."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprof.analyse.acceptance import (
    acceptance_length,
    acceptance_rate,
    accepted_at,
    conditional,
    engine_steps,
    survival,
)
from tests.factory import data

PUBLIC = data("public_tables.json")


@pytest.mark.parametrize(
    ("accepted", "steps", "drafted", "length", "rate"),
    [(48266, 20468, 204680, 3.358, 0.2358), (128899, 84995, 254985, 2.517, 0.5055)],
)
def test_length_and_rate_of_the_method_s_vectors(accepted, steps, drafted, length, rate):
    assert acceptance_length(accepted, steps) == pytest.approx(length, abs=5e-4)
    assert acceptance_rate(accepted, drafted) == pytest.approx(rate, abs=5e-5)


@pytest.mark.parametrize("row", ["SpecBench_K10", "MTBench_K10"])
def test_length_of_the_counters_of_pull_request_26498(row):
    told = PUBLIC["vllm_pr_26498"][row]
    assert acceptance_length(told["accepted"], told["drafts"]) == pytest.approx(told["AL"], abs=0.005)


@pytest.mark.parametrize("row", ["SpecBench_K10", "MTBench_K10"])
def test_published_survival_sums_to_the_length_less_one(row):
    told = PUBLIC["vllm_pr_26498"][row]
    rounding = 0.005 * len(told["survival"]) + 0.005  # each figure is printed to two places
    assert 1 + sum(told["survival"]) == pytest.approx(told["AL"], abs=rounding)


def test_survival_of_pull_request_48892_sums_to_its_length():
    told = PUBLIC["vllm_pr_48892"]["GSM8K_c64"]["MTP8"]
    assert 1 + sum(told["survival"]) == pytest.approx(told["AL"], abs=0.005)


def test_a_step_that_accepted_j_tokens_accepted_positions_1_to_j():
    assert accepted_at([0, 1, 3, 3], 4).tolist() == [3, 2, 2, 0]


@settings(deadline=None)
@given(st.lists(st.integers(0, 8), min_size=1, max_size=200))
def test_length_is_one_plus_the_sum_of_survival(accepted_per_step):
    steps = len(accepted_per_step)
    curve = survival(accepted_at(accepted_per_step, 8), steps)
    assert acceptance_length(sum(accepted_per_step), steps) == pytest.approx(1 + curve.sum())
    assert all(later <= earlier for earlier, later in pairwise(curve))


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=200))
def test_conditional_chances_multiply_back_to_survival(accepted_per_step):
    curve = survival(accepted_at(accepted_per_step, 5), len(accepted_per_step))
    chances = conditional(curve)
    reached = np.concatenate([[1.0], curve[:-1]]) > 0
    assert np.cumprod(chances[reached]) == pytest.approx(curve[reached])
    assert np.isnan(chances[~reached]).all()


def test_a_position_nothing_reached_has_no_conditional_chance():
    assert np.isnan(conditional([0.0, 0.0])[1])


def test_engine_steps_are_tokens_less_the_accepted_ones():
    # 10 tokens of which 6 were accepted guesses: 4 steps, each with a token of its own.
    assert engine_steps(np.array([10.0]), np.array([6.0]), np.array([4.0])).tolist() == [4]


def test_tokens_accepted_past_the_end_do_not_hide_steps():
    # Seen: 27 reported, 24 delivered. Four chunks arrived, so there were four steps, whatever was counted.
    assert engine_steps(np.array([24.0]), np.array([23.0]), np.array([4.0])).tolist() == [4]


def test_merged_chunks_do_not_hide_steps():
    assert engine_steps(np.array([10.0]), np.array([0.0]), np.array([7.0])).tolist() == [10]


def test_every_text_took_a_step_of_its_own():
    # One token, said to be an accepted guess, and no chunk whose tokens are known: something still wrote it.
    assert engine_steps(np.array([1.0]), np.array([1.0]), np.array([0.0])).tolist() == [1]
