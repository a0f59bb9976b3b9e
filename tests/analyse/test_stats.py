"""Intervals, METHOD 5: they hold what they promise, and say so when they cannot."""

from __future__ import annotations

from math import exp, inf, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as distributions

from specprof.analyse import stats
from specprof.analyse.evidence import Variation
from specprof.analyse.results import Figure
from tests.factory import data

TOST = {v["id"]: v for v in data("seed_claims.json")["verdict_vectors"] if v["id"].startswith("tost")}


def interval(figure: Figure) -> tuple[float, float]:
    assert figure.low is not None
    assert figure.high is not None
    return figure.low, figure.high


# -- the cluster delta interval of acceptance -----------------------------------------------------------------------


def test_length_of_acceptance_and_its_interval_by_hand():
    """Two prompts of 10 steps, 10 and 20 accepted: tau 2.5, linearised residuals -5 and 5, so SE(tau) = 0.5."""
    figure = stats.ratio(np.array([10.0, 20.0]), np.array([10.0, 10.0]), offset=1.0)
    reach = 12.7062 * 0.5 / 2.5  # t_1 at 97.5%; the delta method on ln tau
    assert figure.value == pytest.approx(2.5)
    assert interval(figure) == pytest.approx((2.5 * exp(-reach), 2.5 * exp(reach)), rel=1e-4)


def test_one_prompt_has_no_interval():
    assert stats.ratio(np.array([5.0]), np.array([10.0]), offset=1.0) == Figure(1.5)


def test_nothing_drafted_is_no_figure():
    assert stats.ratio(np.zeros(4), np.zeros(4)) == Figure(None)
    assert stats.ratio(np.empty(0), np.empty(0)) == Figure(None)


def test_a_share_of_zero_is_zero_without_an_interval():
    assert stats.ratio(np.zeros(4), np.ones(4)) == Figure(0.0)


def test_where_nothing_was_accepted_nothing_is_known_of_how_acceptance_varies():
    """Two prompts of one step each say little of a length of 1: another draft of the same may well be accepted."""
    assert stats.ratio(np.zeros(2), np.ones(2), offset=1.0) == Figure(1.0)


def test_a_ratio_that_is_the_same_in_every_cluster_is_exact():
    """Without drafts every engine step delivers one token, by construction."""
    tokens = np.array([64.0, 32.0, 64.0])
    assert stats.ratio(tokens, tokens) == Figure(1.0, 1.0, 1.0)


@pytest.mark.parametrize("num_prompts", [16, 32])
def test_the_acceptance_interval_covers_95_percent(num_prompts):
    """3,000 studies whose prompts differ and whose steps are correlated within a prompt, as real traces are.

    Truth: steps ~ 1 + Poisson(40), accepted ~ Binomial(4·steps, p) with p ~ Beta(4, 4) per prompt, independent of the
    steps, so tau = 1 + 4·E[p] = 3. Coverage must lie within 95 ± 1.5% (its own standard error is 0.4%).
    """
    rng = np.random.default_rng(20_261_129)
    shape = (3000, num_prompts)
    steps = 1 + rng.poisson(40, shape)
    accepted = rng.binomial(4 * steps, rng.beta(4, 4, shape))
    ends = [
        interval(stats.ratio(a.astype(float), s.astype(float), offset=1.0))
        for a, s in zip(accepted, steps, strict=True)
    ]
    covered = np.mean([low <= 3 <= high for low, high in ends])
    assert covered == pytest.approx(0.95, abs=0.015)


def test_a_naive_binomial_interval_would_not():
    """Why clusters: on the same traces the binomial interval holds its 95% in fewer than 7 studies of 10 (METHOD 5)."""
    rng = np.random.default_rng(20_261_129)
    steps = 1 + rng.poisson(40, (1000, 32))
    accepted = rng.binomial(4 * steps, rng.beta(4, 4, (1000, 32)))
    rate, drafted = accepted.sum(1) / (4 * steps.sum(1)), 4 * steps.sum(1)
    error = np.sqrt(rate * (1 - rate) / drafted)
    assert np.mean(np.abs(rate - 0.5) < 1.96 * error) < 0.69


# -- medians and percentiles ----------------------------------------------------------------------------------------


def test_the_median_interval_is_that_of_the_order_statistics():
    """n = 10: P(B < 2) = 11/1024 < 2.5% <= P(B < 3), so the interval runs from the 2nd to the 9th value."""
    figure = stats.median(np.arange(1.0, 11.0))
    assert figure == Figure(5.5, 2.0, 9.0)


def test_six_values_are_the_fewest_with_a_median_interval():
    assert stats.median(np.arange(1.0, 7.0)) == Figure(3.5, 1.0, 6.0)  # covers 1 - 2/64 = 96.9%
    assert stats.median(np.arange(1.0, 6.0)) == Figure(3.0)  # could cover 93.75% at best
    assert stats.median(np.empty(0)) == Figure(None)


@settings(deadline=None)
@given(st.integers(6, 60))
def test_the_median_interval_never_promises_too_much(n):
    low, high = interval(stats.median(np.arange(1.0, n + 1)))
    covers = sum(distributions.binom.pmf(k, n, 0.5) for k in range(int(low), int(high)))
    assert covers >= 0.95 - 1e-12


def test_p99_of_few_values_has_no_upper_bound():
    assert stats.percentile(np.arange(1.0, 33.0), 0.99).high is None


# -- launches and prompts -------------------------------------------------------------------------------------------


def test_with_one_block_only_the_prompts_are_in_the_interval():
    figure = stats.two_way([log(2)], (0.01**2, 15))
    assert figure.value == pytest.approx(2)
    assert interval(figure) == pytest.approx((2 * exp(-2.1314 * 0.01), 2 * exp(2.1314 * 0.01)), rel=1e-5)  # t_15


def test_one_block_and_one_prompt_say_that_nothing_is_known():
    assert stats.two_way([log(2)], (0.0, 0)) == Figure(pytest.approx(2))


def test_one_prompt_has_no_interval_however_many_blocks_sent_it():
    """How another prompt would differ is unknown, which is not the same as none."""
    assert stats.two_way([log(2) - 0.02, log(2) + 0.02], (0.0, 0)) == Figure(pytest.approx(2))


def test_half_an_interval_is_as_wide_as_its_quantile():
    assert Variation(4, 16, 0.0, 0.01**2).reach(0.95, blocks=10**6) == pytest.approx(2.1314 * 0.01, rel=1e-4)  # t_15
    assert Variation(4, 1, 0.0, None).reach(0.95) is None


def test_with_two_blocks_one_degree_of_freedom_keeps_the_interval_honest():
    """Blocks at ln 2 ± 0.02, prompts known exactly: SE = 0.02, t_1 = 12.706."""
    figure = stats.two_way([log(2) - 0.02, log(2) + 0.02], (0.0, 15))
    assert interval(figure) == pytest.approx((2 * exp(-12.7062 * 0.02), 2 * exp(12.7062 * 0.02)), rel=1e-4)


def test_with_four_blocks_both_variances_add():
    """Satterthwaite by hand: variances 1e-4 (3 df) and 1e-4 (15 df) → 2e-4 with 4e-8 / (1e-8/3 + 1e-8/15) = 10 df."""
    spread = 0.02 * sqrt(3) / 2  # four values ±spread have variance of the mean 1e-4
    blocks = [log(2) + d for d in (spread, -spread, spread, -spread)]
    reach = 2.2281 * sqrt(2e-4)  # t_10
    assert interval(stats.two_way(blocks, (1e-4, 15))) == pytest.approx((2 * exp(-reach), 2 * exp(reach)), rel=1e-5)


def test_more_blocks_of_the_same_spread_know_more():
    wide = stats.two_way([0.0, 0.04], (1e-5, 15))
    narrow = stats.two_way([0.0, 0.04] * 2, (1e-5, 15))
    assert wide.half_width > 2 * narrow.half_width


def test_a_lower_confidence_is_a_narrower_interval():
    assert stats.two_way([0.0], (1e-4, 15), 0.90).half_width < stats.two_way([0.0], (1e-4, 15), 0.95).half_width


def test_the_two_way_interval_covers_95_percent():
    """Launches (SD 3%) and prompts (SD of their mean 2%) both drawn anew in each of 4,000 studies of four blocks."""
    rng = np.random.default_rng(7)
    blocks = rng.normal(0, 0.03, (4000, 4))
    prompts = rng.normal(0, 0.02 * sqrt(16), (4000, 16))
    hits = 0
    for launch, prompt in zip(blocks, prompts, strict=True):
        low, high = interval(stats.two_way(list(launch + prompt.mean()), stats.variance_of_mean(prompt)))
        hits += low <= 1 <= high
    assert hits / 4000 == pytest.approx(0.95, abs=0.02)


# -- equivalence ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(TOST))
def test_the_seed_s_equivalence_tests(name):
    vector = TOST[name]
    assert log(1.05) == pytest.approx(vector["margin"], abs=1e-5)
    outcome, figure = stats.equivalent(vector["log_gap"], vector["se"], inf, margin=0.05)
    assert outcome == vector["verdict"]
    assert interval(figure) == pytest.approx(vector["ci90"], abs=1e-4)


def test_a_small_difference_known_well_is_equivalent():
    assert stats.equivalent(0.01, 0.005, inf, margin=0.05)[0] == "pass"


@settings(deadline=None)
@given(st.floats(-0.3, 0.3), st.floats(1e-4, 0.2), st.integers(1, 50))
def test_equivalence_does_not_depend_on_which_side_is_first(gap, error, degrees):
    there, back = (stats.equivalent(sign * gap, error, degrees, margin=0.05)[0] for sign in (1, -1))
    assert there == back
