"""The hit rate of a warm prefix cache, from counters written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

import pytest

from specprof.analyse.cache import cache_figures
from specprof.analyse.results import Figure
from specprof.records import CachePolicy
from tests.factory import make_cell, make_frame


def hit_rate(*of_blocks: Sequence[float]) -> Figure:
    """Of launches that found so many tokens of so many in the cache."""
    told = cache_figures(
        make_frame(
            make_cell(cache=CachePolicy.REPLAY, block=block),
            counters={"prefix_cache_hits": found, "prefix_cache_queries": looked_up},
        )
        for block, (found, looked_up) in enumerate(of_blocks)
    )
    assert told is not None
    (hits,) = told.hits
    return hits.hit_rate


def test_one_launch_leaves_no_interval() -> None:
    assert hit_rate((30.0, 80.0)) == Figure(30 / 80)


def test_the_interval_holds_the_launches() -> None:
    """Half of 80 tokens, then three quarters: 100 of 160, each launch 10 tokens off its share of that.

    Cluster delta method: the variance of the ratio is n / (n - 1) * sum of squares / total squared, here
    2 * 200 / 160^2, and Student's t with one degree of freedom is 12.706. A share ends at 1.
    """
    found, middle = hit_rate((40.0, 80.0), (60.0, 80.0)), 100 / 160
    reach = 12.7062 * (2 * 200) ** 0.5 / 160 / middle
    assert (found.value, found.low, found.high) == pytest.approx(
        (middle, exp(log(middle) - reach), min(exp(log(middle) + reach), 1.0)), rel=1e-4
    )


def test_nothing_looked_up_is_no_rate() -> None:
    assert hit_rate((0.0, 0.0)) == Figure(None)
