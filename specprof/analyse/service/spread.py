"""Intervals of what is counted while requests queue: batch means in time, and launches.

Requests that queue together are late together, so that neighbours are no separate evidence, and an interval that takes
them for it is far too narrow. The measured window is cut into ten batches of equal time instead, each long beside a
request; what is counted in one batch is then nearly independent of the next (batch means: A. M. Law, *Simulation
Modeling and Analysis*, ch. 9). With several launches the spread between them is added. Degrees of freedom follow
Satterthwaite, as everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from specprof.analyse import stats
from specprof.analyse.results import NOTHING, Figure, Percentiles
from specprof.analyse.stats import CONFIDENCE, Array

NUM_BATCHES = 10
SHARES = (0.50, 0.90, 0.95, 0.99)
LINES = (0.50, 0.75, 0.90, 0.95)
RESOLUTION_S = 1e-6  # what lies closer together is one value: rounding comes in bunches, too


@dataclass(frozen=True, slots=True)
class Spread:
    """A ratio of sums, its standard error, and the degrees of freedom of that error."""

    value: float
    error: float
    degrees: float


def spread(over: Array, under: Array) -> Spread | None:
    """Σ over / Σ under, counted by launch and batch, both of shape (launches, NUM_BATCHES); None over nothing.

    The error is that of a ratio estimator: how far each batch lies from the ratio of the whole, within its launch and,
    where there are several, each launch as a whole. Launches as a whole scatter by what their batches do as well, which
    is so counted twice: an interval is up to 1.45 times as wide as need be where launches are alike. Without it two
    launches that differ as much as their batches make them would hold 92.5% instead of 95%.
    """
    total = float(under.sum())
    if total <= 0:
        return None
    value = float(over.sum()) / total
    strays = over - value * under
    num_launches, num_batches = strays.shape
    own = strays - strays.mean(axis=1, keepdims=True)
    parts = [(num_batches / (num_batches - 1) * float((own**2).sum()) / total**2, num_launches * (num_batches - 1))]
    if num_launches > 1:
        between = num_launches / (num_launches - 1) * float((strays.sum(axis=1) ** 2).sum()) / total**2
        parts.append((between, num_launches - 1))
    error, degrees = stats.pooled_error(parts)
    return Spread(value, error, degrees)


def ratio(over: Array, under: Array) -> Figure:
    """Σ over / Σ under with its interval, which ends at 0. Nothing counted has no interval."""
    found = spread(over, under)
    if found is None:
        return NOTHING
    if found.value == 0:
        return Figure(0.0)
    reach = stats.t_quantile(found.degrees) * found.error
    return Figure(found.value, max(found.value - reach, 0.0), found.value + reach)


def share(
    hits: Array, totals: Array, num_requests: int, *, confidence: float = CONFIDENCE, effect: float = 1.0
) -> Figure:
    """Σ hits / Σ totals as a share of requests or tokens, with Wilson's interval at the effective number of requests.

    So many independent requests would scatter as much as the batches do: `num_requests` / design effect, which is never
    taken for less than `effect`. Unlike ±t·SE the interval stays inside 0..1, and tells something where nobody missed.
    """
    found = spread(hits, totals)
    if found is None or not num_requests:
        return NOTHING
    p, chance = found.value, found.value * (1 - found.value)
    of_batches = found.error**2 * num_requests / chance if chance > 0 else 1.0
    q = stats.t_quantile(found.degrees, confidence) ** 2 * max(of_batches, effect) / num_requests
    middle, reach = (p + q / 2) / (1 + q), sqrt(q * (chance + q / 4)) / (1 + q)
    return Figure(p, min(max(middle - reach, 0.0), p), max(min(middle + reach, 1.0), p))


@dataclass(frozen=True, slots=True)
class Latencies:
    """The values of one latency, rising, each with the place (launch * NUM_BATCHES + batch) it was measured in.

    Infinite values stand for requests that were lost.
    """

    ordered: Array
    place: NDArray[np.int64]
    num_launches: int

    @classmethod
    def of(cls, values: Array, place: NDArray[np.int64], num_launches: int) -> Latencies:
        """NaN, where there is nothing to tell, is left out."""
        told = ~np.isnan(values)
        order = np.argsort(values[told], kind="stable")
        return cls(values[told][order], place[told][order], num_launches)

    def below(self, limit: float) -> Spread | None:
        """The share of values up to a limit."""
        shape = (self.num_launches, NUM_BATCHES)
        num_below = int(np.searchsorted(self.ordered, limit, side="right"))
        hits, totals = (np.bincount(ids, minlength=shape[0] * shape[1]) for ids in (self.place[:num_below], self.place))
        return spread(hits.reshape(shape).astype(float), totals.reshape(shape).astype(float))

    def design_effect(self) -> tuple[float, float]:
        """By how much neighbours that are alike widen what is said of these values; and its degrees of freedom.

        The variance that a share below some line has, over that of as many independent values: the largest of those at
        the median and above. A single line is not enough: where by luck few values lie beyond it, little is seen of how
        they come in bunches, and an interval would be narrow just where it is off.
        """
        worst = (1.0, float(self.num_launches * (NUM_BATCHES - 1)))
        for p in LINES:
            limit = self.quantile(p)
            found = None if limit is None else self.below(limit + RESOLUTION_S)
            if found is not None and 0 < found.value < 1:
                effect = found.error**2 * len(self.ordered) / (found.value * (1 - found.value))
                worst = max(worst, (effect, found.degrees))
        return worst

    def quantile(self, p: float) -> float | None:
        """Linear between order statistics; None where that needs a value that is not known."""
        place = p * (len(self.ordered) - 1)
        below, above = float(self.ordered[floor(place)]), float(self.ordered[ceil(place)])
        return below + (place - floor(place)) * (above - below) if isfinite(above) else None

    def percentiles(self) -> Percentiles | None:
        """p50 to p99; a percentile that lies among the lost ones is not known.

        The intervals are Woodruff's (1952): how far the share of values below the percentile may be off, read back from
        the values themselves. An end that so few values cannot bound is None.
        """
        if not len(self.ordered):
            return None
        effect, degrees = self.design_effect()
        reach = stats.t_quantile(degrees) * sqrt(effect / len(self.ordered))
        return Percentiles(*(self._percentile(p, reach * sqrt(p * (1 - p))) for p in SHARES))

    def _percentile(self, p: float, reach: float) -> Figure:
        low = self.quantile(p - reach) if p - reach > 0 else None
        high = self.quantile(p + reach) if p + reach < 1 else None
        return Figure(self.quantile(p), low, high)
