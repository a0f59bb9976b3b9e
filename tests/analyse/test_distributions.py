"""The distributions answer as `scipy.stats` does: to the last bit where they are quoted, else nearly so."""

from __future__ import annotations

import subprocess
import sys
from math import isnan

import numpy as np
import pytest
from scipy import stats

from specprof.analyse import distributions


@pytest.mark.parametrize("degrees", [1, 1.7, 2, 5, 31, 99.5, 1e4, 1e7])
@pytest.mark.parametrize("share", [0.95, 0.975, 0.99995, 1 - 5e-6 / 12, 0.2])
def test_quantiles_of_t(share: float, degrees: float) -> None:
    assert distributions.t_ppf(share, degrees) == stats.t.ppf(share, degrees)


def test_without_a_degree_of_freedom_there_is_no_quantile() -> None:
    assert isnan(distributions.t_ppf(0.975, 0.0))


@pytest.mark.parametrize("value", [-40.0, -2.5, 0.0, 0.3, 7.0])
def test_shares_below_a_value_of_t(value: float) -> None:
    assert distributions.t_cdf(value, 6.3) == stats.t.cdf(value, 6.3)


@pytest.mark.parametrize("share", [0.025, 0.5, 0.975, 0.99])
def test_normal_and_chi_square(share: float) -> None:
    assert distributions.norm_ppf(share) == stats.norm.ppf(share)
    assert distributions.norm_sf(share) == stats.norm.sf(share)
    assert distributions.chi2_ppf(share, 1) == stats.chi2.ppf(share, 1)


@pytest.mark.parametrize("chance", [0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("share", [0.025, 1 - 0.025])
def test_quantiles_of_a_binomial(chance: float, share: float) -> None:
    trials = [*range(1, 400), 1_000, 10_000, 99_999, 2_000_000]
    found = [distributions.binom_ppf(share, n, chance) for n in trials]
    assert found == [int(stats.binom.ppf(share, n, chance)) for n in trials]


@pytest.mark.parametrize(("share", "expected"), [(0.25, 0), (0.2501, 1), (0.75, 1), (0.7501, 2)])
def test_a_share_that_is_met_exactly_needs_no_more(share: float, expected: int) -> None:
    """Of two fair coins no head comes with 1/4, one at most with 3/4."""
    assert distributions.binom_ppf(share, 2, 0.5) == expected


@pytest.mark.parametrize(("successes", "trials"), [(-1, 5), (0, 5), (4, 5), (5, 5), (994, 1_000), (60, 64)])
def test_tails_of_a_binomial(successes: int, trials: int) -> None:
    assert distributions.binom_sf(successes, trials, 0.95) == pytest.approx(
        stats.binom.sf(successes, trials, 0.95), rel=1e-9
    )


def test_the_tea_that_fisher_served() -> None:
    """Eight cups, four with the milk first, and three of those four named: 17 of 70 ways name three or more."""
    assert distributions.fisher_greater(3, 4, 1, 4) == pytest.approx(17 / 70)


@pytest.mark.parametrize(
    ("marked", "drawn", "others_marked", "others"),
    [
        (0, 5, 0, 5),
        (5, 5, 5, 5),
        (1, 1, 0, 9),
        (8, 32, 1, 32),
        (340, 10_000, 295, 10_000),
        (6_000, 10_000, 5_900, 9_000),
    ],
)
def test_fisher_of_tables_small_and_large(marked: int, drawn: int, others_marked: int, others: int) -> None:
    table = np.array([[marked, drawn - marked], [others_marked, others - others_marked]])
    expected = stats.fisher_exact(table, alternative="greater").pvalue
    assert distributions.fisher_greater(marked, drawn, others_marked, others) == pytest.approx(expected, rel=1e-7)


def test_a_report_loads_none_of_the_parts_of_scipy_that_take_long() -> None:
    script = "import sys, specprof.decide.conclude, specprof.publish.report; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"scipy.stats", "scipy.optimize", "matplotlib"} & set(told.stdout.split())
