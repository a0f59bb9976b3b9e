"""Paired permutation tests: exact, one-sided, silent without pairs, and honest about how small p can get."""

from __future__ import annotations

import numpy as np
import pytest

from specprof.analyse.permutation import holm, sign_flip


def test_p_is_the_share_of_sign_patterns_that_reach_what_was_seen():
    assert sign_flip(np.array([[1.0], [1.0], [1.0]])) == [1 / 8]
    assert sign_flip(np.array([[3.0], [1.0], [-1.0]])) == [3 / 8]  # seen 3; reached by 3+1+1, 3+1-1 and 3-1+1
    assert sign_flip(np.array([[-1.0], [-1.0], [-1.0]])) == [1.0]


def test_no_pairs_and_no_difference_prove_nothing():
    assert list(sign_flip(np.empty((0, 2)))) == [1.0, 1.0]
    assert list(sign_flip(np.zeros((5, 2)))) == [1.0, 1.0]


@pytest.mark.parametrize("num_pairs", [10, 40])
def test_under_no_effect_p_is_not_below_alpha_too_often(num_pairs):
    """Counts of rare things: mostly zeros, which is where a t test would go wrong."""
    rng = np.random.default_rng(1)
    counts = rng.poisson(0.3, size=(2, num_pairs, 400)).astype(float)
    p_values = sign_flip(counts[0] - counts[1])
    assert (p_values < 0.05).mean() <= 0.07


def test_an_effect_is_found_where_there_are_pairs_enough():
    rng = np.random.default_rng(2)
    differences = rng.normal(1.0, 1.0, size=(32, 1))
    assert sign_flip(differences)[0] < 1e-3
    assert sign_flip(differences[:6])[0] >= 2**-6


def test_the_same_data_give_the_same_p():
    differences = np.random.default_rng(3).normal(size=(30, 2))
    assert list(sign_flip(differences)) == list(sign_flip(differences))


def test_holm_pays_for_every_comparison_and_keeps_the_order():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({}) == {}
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
