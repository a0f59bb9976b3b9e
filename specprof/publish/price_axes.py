"""What the sensitivity chart of a bill shows, whatever draws it: its range, its ticks, its lines and its ties.

Price per million effective tokens (logarithmic, so that equal factors are equally high) over the effective share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, floor, log, log10

from specprof.analyse.results import Figure
from specprof.decide.bill import Bill, BreakEven, Priced
from specprof.publish.numbers import known

LEFT_OF_ALL = 0.75  # the axis begins at this part of the smallest share that is shown
SMALLEST_SHARE = 0.02
TICKS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)  # in each decade
MOST_TICKS = 9
MARGIN = 0.06  # of the price axis, above and below everything on it


@dataclass(frozen=True, slots=True)
class PriceAxes:
    """The two axes: the share begins at `start` and ends at 1, the price goes from `low` to `high`."""

    start: float
    low: float
    high: float


def axes_of(bill: Bill) -> PriceAxes:
    """Left of every option and every tie; over every price an option can have there."""
    start = _start(bill)
    ends: list[float | None] = []
    for option in bill.options:
        raw = option.raw_cost_per_million
        if raw is not None:
            highest = _upper(raw)
            ends += [_lower(raw), highest / start if known(highest) else None]
        ends += [_lower(option.cost_per_million), _upper(option.cost_per_million)]
    prices = [price for price in ends if known(price)]
    low, high = min(prices), max(prices)
    margin = exp(MARGIN * log(high / low)) if high > low else 1.2
    return PriceAxes(start, low / margin, high * margin)


def option_share(option: Priced) -> float | None:
    """The share an option has; None where only its effective output is known."""
    return option.effective_share.figure.value if option.effective_share is not None else None


def tie_share(tie: BreakEven) -> float:
    """The break-even share, NaN where there is none."""
    share = tie.effective_share.value if tie.effective_share is not None else None
    return share if known(share) else float("nan")


def cheapest_of(bill: Bill) -> Priced:
    """The option whose effective price is lowest."""
    return next(option for option in bill.options if option.name == bill.ranking_effective[0])


def shown_ties(bill: Bill, start: float) -> list[BreakEven]:
    """Where an option meets the cheapest one's price within the axis, from the left."""
    cheapest = bill.ranking_effective[0]
    ties = [tie for tie in bill.break_evens if tie.option != cheapest and start <= tie_share(tie) <= 1]
    return sorted(ties, key=tie_share)


def share_ticks(start: float) -> tuple[list[float], list[str]]:
    """Shares to mark from `start` to 1, and how they are written."""
    step = 0.1 if start < 0.6 else 0.05 if start < 0.85 else 0.01
    ticks = [round(step * n, 2) for n in range(round(1 / step) + 1) if step * n >= start - 1e-9]
    return ticks, [f"{100 * tick:.0f}%" for tick in ticks]


def price_ticks(low: float, high: float) -> tuple[Sequence[float], list[str]]:
    """Round prices within the axis, thinned out where there would be too many, and how they are written."""
    decades = range(floor(log10(low)), floor(log10(high)) + 1)
    for chosen in (TICKS, (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), (1.0, 2.0, 5.0), (1.0,)):
        ticks = [float(f"{digit * 10.0**decade:.3g}") for decade in decades for digit in chosen]
        shown = [tick for tick in ticks if low <= tick <= high]
        if len(shown) <= MOST_TICKS:
            break
    return shown, [f"{tick:,.10g}" for tick in shown]


def _start(bill: Bill) -> float:
    shares = [option_share(option) for option in bill.options]
    ties = [tie_share(tie) for tie in bill.break_evens]
    shown = [share for share in (*shares, *ties) if known(share) and share <= 1]
    return max(LEFT_OF_ALL * min(shown, default=0.5), SMALLEST_SHARE)


def _lower(figure: Figure) -> float | None:
    return figure.low if known(figure.low) else figure.value


def _upper(figure: Figure) -> float | None:
    return figure.high if known(figure.high) else figure.value
