"""The goodput: the largest rate at which enough requests keep their latency targets (METHOD 8).

Shares cannot rise with the rate, so the measured ones are first made to fall (isotonic regression, each rung weighing
as many requests as it had). The goodput lies between the last rung that holds and the first that does not; the value is
read off between the two, linear in the logarithm of the rate. Its interval assumes nothing of what lies between rungs:
it begins at the largest rate whose share is surely high enough and ends at the smallest whose share surely is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import numpy as np

from specprof.analyse.results import NOTHING, Figure
from specprof.analyse.service.cell import OpenCell
from specprof.analyse.service.rung import Rung, collapsed
from specprof.analyse.service_results import GoodputFigures, RungFigures, TargetFigures
from specprof.analyse.stats import CONFIDENCE, Array
from specprof.records import arm_in_words

COMPLETES = 0.95  # of what is offered: beyond a rate that completes less, queues grow

Measured = tuple[Rung, RungFigures]


@dataclass(frozen=True, slots=True)
class Climb:
    """What the rungs of one ladder say, rates rising: how many requests each had, and what share was on target."""

    rates: Array
    num_requests: Array
    shares: tuple[Figure, ...]

    def fitted(self) -> Array:
        """The shares as they would be if they never rose with the rate."""
        from scipy.optimize import isotonic_regression  # takes long to load, and only ladders need it

        told = np.array([share.value for share in self.shares], dtype=float)
        return np.asarray(isotonic_regression(told, weights=self.num_requests, increasing=False).x, dtype=float)

    def surely_kept(self, share: float) -> float | None:
        """The largest rate whose whole interval lies at or above the share."""
        held = [r for r, s in zip(self.rates, self.shares, strict=True) if s.low is not None and s.low >= share]
        return float(max(held)) if held else None

    def surely_missed(self, share: float) -> float | None:
        """The smallest rate whose whole interval lies below the share."""
        missed = [r for r, s in zip(self.rates, self.shares, strict=True) if s.high is not None and s.high < share]
        return float(min(missed)) if missed else None

    def num_kept(self, share: float) -> int:
        """How many rungs from the lowest hold."""
        return int((self.fitted() >= share - 1e-12).sum())


def climb(rungs: Sequence[Rung], confidence: float = CONFIDENCE) -> Climb:
    """The rungs of one ladder that had requests; where a block did not go on, as it was where it collapsed."""
    told = [rung for rung in with_collapsed(rungs) if rung.num_offered]
    return Climb(
        rates=np.array([rung.arrivals.rate_per_s for rung in told], dtype=float),
        num_requests=np.array([rung.num_offered for rung in told], dtype=float),
        shares=tuple(rung.on_target(confidence) for rung in told),
    )


def with_collapsed(rungs: Sequence[Rung]) -> list[Rung]:
    """The rungs, rates rising, each with the cells of those blocks that had collapsed at a lower rate.

    A climb ends where its block collapses, so that only the luckier blocks measure a high rate, which would seem to
    hold. The others count there as they did where they collapsed: at their best, since no share rises with the rate.
    """
    ended: dict[int, OpenCell] = {}
    whole = []
    for rung in sorted(rungs, key=lambda r: r.arrivals.rate_per_s):
        present = {cell.cell.block for cell in rung.cells}
        missing = [cell for block, cell in ended.items() if block not in present]
        whole.append(Rung((*rung.cells, *missing)))
        ended |= {cell.cell.block: cell for cell in rung.cells if collapsed(Rung((cell,)))}
    return whole


def goodput_rate(ladder: Climb, share: float) -> Figure:
    """The goodput in requests per second.

    The value is None where no rung holds, and the largest rate where all do. `low` is None where no rung surely holds,
    `high` where none surely misses.
    """
    if not len(ladder.rates):
        return NOTHING
    low, high = ladder.surely_kept(share), ladder.surely_missed(share)
    if low is not None and high is not None and low > high:
        low, high = high, low  # rungs that contradict each other: somewhere between them
    value = _crossing(ladder, share)
    if value is None:
        return Figure(low, low, high)
    bounded = max(value, low) if low is not None else value
    return Figure(min(bounded, high) if high is not None else bounded, low, high)


def _crossing(ladder: Climb, share: float) -> float | None:
    kept = ladder.num_kept(share)
    if kept == 0:
        return None
    if kept == len(ladder.rates):
        return float(ladder.rates[-1])
    fitted = ladder.fitted()
    (last, missed), (above, below) = np.log(ladder.rates[kept - 1 : kept + 1]), fitted[kept - 1 : kept + 1]
    return exp(float(last + (above - share) / (above - below) * (missed - last)))


def knee(rungs: Sequence[Rung]) -> float | None:
    """The largest offered rate, all lower ones included, of which the engine completes 95% or may do so by chance."""
    found = None
    for rung in sorted(rungs, key=lambda r: r.arrivals.rate_per_s):
        completed = rung.completed_share()
        most = completed.value if completed.high is None else completed.high
        if most is None or most < COMPLETES:
            break
        found = rung.arrivals.rate_per_s
    return found


def relied_on(measured: Sequence[Measured]) -> list[Measured]:
    """The rungs that a goodput is made of, rates rising: the valid ones, or all where a gate forbids every one."""
    valid = [(rung, figures) for rung, figures in measured if figures.valid]
    return sorted(valid or measured, key=lambda pair: pair[1].rate_per_s)


def goodput_figures(measured: Sequence[Measured], share: float) -> GoodputFigures:
    """The goodput of one ladder: of its valid rungs, or of all, marked invalid, where a gate forbids every one."""
    used = relied_on(measured)
    ladder = climb([rung for rung, _ in used])
    rate = goodput_rate(ladder, share)
    cell = used[0][0].cell
    kept = ladder.num_kept(share) if len(ladder.rates) else 0
    best = float(ladder.rates[kept - 1]) if kept else None
    effective = next((f.waterfall.effective_tok_s for _, f in used if f.rate_per_s == best), NOTHING)
    return GoodputFigures(
        tag=cell.tag,
        protocol=cell.protocol,
        arm=cell.arm,
        method=arm_in_words(cell.speculative_config),
        share=share,
        targets=used[0][1].targets,
        rate_per_s=rate,
        effective_tok_s=effective,
        knee_per_s=knee([rung for rung, _ in used]),
        num_rungs=len(used),
        sentence=" ".join(_sentences(ladder, rate, share, len(measured) - len(used), used[0][1].targets)),
        valid=used[0][1].valid,
    )


def _sentences(ladder: Climb, rate: Figure, share: float, left_out: int, targets: TargetFigures) -> list[str]:
    """What a reader must know of the interval."""
    told = []
    if not len(ladder.rates):
        return ["No request was due inside any window."]
    lowest, highest = float(ladder.rates[0]), float(ladder.rates[-1])
    kept = ladder.num_kept(share)
    if kept == len(ladder.rates):
        told.append(f"No measured rate misses: the goodput may be above {highest:g} req/s. Measure higher rates.")
    elif kept == 0 and rate.low is None:
        told.append(f"No measured rate holds: the goodput may be below {lowest:g} req/s. Measure lower rates.")
    elif rate.low is None:
        told.append("No measured rate surely holds. Measure lower rates, or longer.")
    elif rate.high is None:
        told.append("No measured rate surely misses. Measure higher rates, or longer.")
    if left_out:
        told.append(f"{left_out} of the rates left out: a gate forbids their figures.")
    if targets == TargetFigures(quality=targets.quality):
        told.append("No latency target is named: a request that ends well is on target.")
    return told
