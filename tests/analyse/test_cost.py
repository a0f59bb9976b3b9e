"""What a token costs: intervals that hold, savings whose sign is sure, and expenses that come back or do not."""

from __future__ import annotations

from math import exp, inf, log, sqrt

import numpy as np
import pytest

from specprof.analyse.cost import (
    Repayment,
    Standing,
    break_even_throughput,
    cost_per_million,
    exact,
    is_exact,
    net_saving,
    payback,
    ratio,
    running_saving,
)
from specprof.analyse.results import Figure
from specprof.analyse.stats import around_log

SEED = 20261007
DRAWS = 4000


def test_a_faster_machine_is_cheaper_so_the_limits_change_places():
    """3.6 an hour at 1,000 tok/s is 1 per million tokens; at half and double the speed 2 and 0.5."""
    assert cost_per_million(3.6, Figure(1000, 500, 2000)) == Figure(
        pytest.approx(1.0), pytest.approx(0.5), pytest.approx(2.0)
    )


def test_what_was_given_has_no_spread_of_its_own():
    price = cost_per_million(3.6, exact(1000))
    assert is_exact(price)
    assert is_exact(ratio(price, cost_per_million(7.2, exact(900))))
    assert is_exact(break_even_throughput(80, 100, exact(9500)))


def test_an_interval_against_a_given_figure_is_the_measured_ones():
    told = ratio(Figure(12, 10, 15), exact(4))
    assert (told.value, told.low, told.high) == pytest.approx((3, 2.5, 3.75))


def test_two_independent_errors_add_in_quadrature_on_the_log_scale():
    """exp(±0.3) over exp(±0.4) is exp(±0.5)."""
    told = ratio(Figure(2, 2 * exp(-0.3), 2 * exp(0.3)), Figure(1, exp(-0.4), exp(0.4)))
    assert (told.low, told.high) == pytest.approx((2 * exp(-0.5), 2 * exp(0.5)))


def test_without_an_interval_nothing_that_is_made_of_it_has_one():
    told = ratio(Figure(2.0), exact(1))
    assert told == Figure(2.0)
    assert Standing.of(told) is Standing.UNDECIDED


@pytest.mark.parametrize(
    ("told", "standing"),
    [
        (Figure(1.1, 1.05, 1.2), Standing.DEARER),
        (Figure(0.9, 0.8, 0.95), Standing.CHEAPER),
        (Figure(1.1, 0.99, 1.2), Standing.UNDECIDED),
        (exact(0.1 + 0.2 + 0.7), Standing.EQUAL),  # 1 but for rounding
        (exact(1.0001), Standing.DEARER),
    ],
)
def test_a_price_is_dearer_only_where_the_whole_interval_says_so(told, standing):
    assert Standing.of(told) is standing


def measured(truth: float, error: float, shift: float) -> Figure:
    """A figure that was measured with a known error on the log scale, `shift` errors off its truth."""
    return around_log(log(truth) + shift * error, error, inf)


@pytest.mark.parametrize("errors", [(0.1, 0.1), (0.02, 0.2)])
def test_the_interval_of_a_ratio_covers_95_percent(errors):
    """Binomial error of the share at 4,000 draws: 0.34%."""
    shifts = np.random.default_rng(SEED).standard_normal((DRAWS, 2))
    told = [ratio(measured(3.0, errors[0], a), measured(2.0, errors[1], b)) for a, b in shifts]
    covered = np.mean([(t.low or 0) <= 1.5 <= (t.high or 0) for t in told])
    assert covered == pytest.approx(0.95, abs=3 * sqrt(0.95 * 0.05 / DRAWS))


@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.9])
def test_the_interval_of_a_saving_covers_at_least_95_percent_whatever_ties_price_and_ratio(correlation):
    """The baseline costs 1,000 a period and the option 80% of it: 200 are saved."""
    mixing = np.linalg.cholesky(np.array([[1, correlation], [correlation, 1]]))
    shifts = np.random.default_rng(SEED).standard_normal((DRAWS, 2)) @ mixing.T
    told = [running_saving(measured(1000, 0.05, a), measured(0.8, 0.05, b)) for a, b in shifts]
    covered = np.mean([(t.low or 0) <= 200 <= (t.high or 0) for t in told])
    assert covered >= 0.95 - 3 * sqrt(0.95 * 0.05 / DRAWS)


def test_a_saving_is_sure_exactly_where_the_ratio_is():
    baseline = Figure(1000, 900, 1100)
    assert (running_saving(baseline, Figure(0.9, 0.8, 0.99)).low or 0) > 0
    unsure = running_saving(baseline, Figure(0.9, 0.8, 1.01))
    assert (unsure.low or 0) < 0 < (unsure.high or 0)
    assert (running_saving(baseline, Figure(1.1, 1.02, 1.2)).high or 0) < 0


# -- payback: one-off / (running saving - extra upkeep) ---------------------------------------------------------------


def test_an_expense_comes_back_after_one_off_over_net_saving():
    """20,000 over (5,000 - 1,000) a month: five months."""
    saving = running_saving(exact(10_000), exact(0.5))
    assert payback(20_000, net_saving(saving, 1000)) == (Repayment.PAYS_BACK, exact(5.0))


@pytest.mark.parametrize("upkeep", [5000, 6000])
def test_a_saving_that_upkeep_eats_never_pays_back(upkeep):
    saving = running_saving(exact(10_000), exact(0.5))
    assert payback(20_000, net_saving(saving, upkeep)) == (Repayment.NEVER, Figure(None))


def test_equal_prices_save_nothing_whatever_rounding_left():
    """0.3 / (0.1 + 0.2) is not 1 in binary floating point."""
    equal = ratio(exact(0.3), exact(0.1 + 0.2))
    assert equal.value != 1
    assert payback(1, net_saving(running_saving(exact(1e9), equal), 0)) == (Repayment.NEVER, Figure(None))


def test_upkeep_as_large_as_the_saving_never_pays_back_whatever_rounding_left():
    saving = running_saving(exact(1000), exact(0.9))
    assert saving.value != 100
    assert payback(1, net_saving(saving, 100))[0] is Repayment.NEVER


@pytest.mark.parametrize(
    ("saving", "repayment", "periods"),
    [
        (Figure(100, 50, 200), Repayment.PAYS_BACK, Figure(10, 5, 20)),
        (Figure(100, -50, 200), Repayment.UNDECIDED, Figure(10, 5, None)),
        (Figure(-10, -50, 200), Repayment.UNDECIDED, Figure(None, 5, None)),
        (Figure(-100, -200, -50), Repayment.NEVER, Figure(None)),
        (Figure(100), Repayment.UNDECIDED, Figure(10)),
    ],
)
def test_a_measured_saving_pays_back_only_if_all_of_its_interval_is_one(saving, repayment, periods):
    assert payback(1000, saving) == (repayment, periods)
