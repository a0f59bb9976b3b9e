"""What a token costs, METHOD 8 and seed 004: price per million effective tokens, break-even, payback. Pure functions.

A figure somebody gives has no spread of its own: it is `exact`, and an interval made of it and of a measured figure is
the measured one's. A measured figure without an interval leaves everything that is made of it without one.
"""

from __future__ import annotations

from enum import StrEnum
from math import exp, isclose, log, sqrt

from specprof.analyse.results import Figure

SECONDS_PER_HOUR = 3600
TOKENS_PRICED = 1e6
TIE = 1e-9  # given prices closer than this are equal: what is left is rounding


class Standing(StrEnum):
    """One option's price against another's. Undecided is an answer."""

    CHEAPER = "cheaper"
    DEARER = "dearer"
    EQUAL = "equal"
    UNDECIDED = "undecided"

    @classmethod
    def of(cls, ratio: Figure) -> Standing:
        """The whole interval of a price ratio on one side of 1, or undecided."""
        if is_exact(ratio) and isclose(ratio.value or 0.0, 1.0, rel_tol=TIE):
            return cls.EQUAL
        if ratio.low is None or ratio.high is None:
            return cls.UNDECIDED
        if ratio.low > 1:
            return cls.DEARER
        return cls.CHEAPER if ratio.high < 1 else cls.UNDECIDED


class Repayment(StrEnum):
    """Whether a one-off expense comes back. Undecided: the interval of the net saving holds zero, there is none, or one
    launch stands behind it (`decide.bill`).
    """

    PAYS_BACK = "pays back"
    NEVER = "never"
    UNDECIDED = "undecided"


def exact(value: float) -> Figure:
    """A given figure: nothing about it is left to chance."""
    return Figure(value, value, value)


def is_exact(figure: Figure) -> bool:
    """Whether nothing measured stands behind a figure."""
    return figure.value is not None and figure.low == figure.value == figure.high


def cost_per_million(cost_per_hour: float, throughput_tok_s: Figure) -> Figure:
    """Price of a million tokens: cost per hour / (tok/s · 3600) · 10⁶. Of effective tokens, if those are counted."""
    price = cost_per_hour / SECONDS_PER_HOUR * TOKENS_PRICED
    return Figure(*(price / q if q else None for q in _falling(throughput_tok_s)))


def break_even_throughput(cost_per_hour: float, rival_cost_per_hour: float, rival_tok_s: Figure) -> Figure:
    """Effective tok/s at which an option costs per token what its rival does."""
    return rival_tok_s.scaled(cost_per_hour, rival_cost_per_hour)


def ratio(over: Figure, under: Figure) -> Figure:
    """over / under of two independent positive figures.

    The interval recovers each one's variance from its own limits on the log scale (MOVER: Zou and Donner, Statistics in
    Medicine 27, 2008); none if one of them has none.
    """
    if not over.value or not under.value:
        return Figure(None)
    value = over.value / under.value
    if over.low is None or over.high is None or under.low is None or under.high is None:
        return Figure(value)
    down = sqrt(log(over.value / over.low) ** 2 + log(under.high / under.value) ** 2)
    up = sqrt(log(over.high / over.value) ** 2 + log(under.value / under.low) ** 2)
    return Figure(value, value * exp(-down), value * exp(up))


def running_saving(baseline_cost: Figure, price_ratio: Figure) -> Figure:
    """What is saved a period by paying `price_ratio` of the baseline's running cost: cost · (1 - ratio).

    Its limits take both intervals at their worst and best ends, so it is never too narrow, whatever ties the two
    together, and its sign is sure exactly where the ratio's side of 1 is.
    """
    if Standing.of(price_ratio) is Standing.EQUAL:
        return exact(0.0)
    cost, left = baseline_cost, Figure(*(None if r is None else 1 - r for r in _falling(price_ratio)))
    value = cost.value * left.value if cost.value is not None and left.value is not None else None
    if cost.low is None or cost.high is None or left.low is None or left.high is None:
        return Figure(value)
    low = left.low * (cost.low if left.low > 0 else cost.high)
    high = left.high * (cost.high if left.high > 0 else cost.low)
    return Figure(value, low, high)


def net_saving(saving: Figure, extra_upkeep: float) -> Figure:
    """What a period's running saving leaves once the extra upkeep is paid, which may be negative."""
    if is_exact(saving) and isclose(saving.value or 0.0, extra_upkeep, rel_tol=TIE):
        return exact(0.0)
    return Figure(*(None if s is None else s - extra_upkeep for s in (saving.value, saving.low, saving.high)))


def payback(one_off: float, saving: Figure) -> tuple[Repayment, Figure]:
    """Periods until a one-off expense has come back: one-off / net saving a period.

    No value where the saving is not positive; no `high` where its lower limit is not: it may never come back.
    """
    periods = Figure(*(one_off / s if s is not None and s > 0 else None for s in _falling(saving)))
    if saving.low is None or saving.high is None:
        return Repayment.UNDECIDED, Figure(periods.value)
    if saving.high <= 0:
        return Repayment.NEVER, Figure(None)
    return (Repayment.PAYS_BACK if saving.low > 0 else Repayment.UNDECIDED), periods


def _falling(figure: Figure) -> tuple[float | None, float | None, float | None]:
    """Value and limits in the order in which a falling function of them gives value, low and high."""
    return figure.value, figure.high, figure.low
