"""The sensitivity chart of a bill as the cost page draws it: places in an SVG, nothing about how it looks but colours.

Lengths are units of the SVG's own view box, from its top left corner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log

from specprof.decide.bill import Bill, BreakEven, Priced
from specprof.publish.numbers import known, one_line
from specprof.publish.pictures.style import arm_look, shortened
from specprof.publish.price_axes import (
    PriceAxes,
    axes_of,
    cheapest_of,
    option_share,
    price_ticks,
    share_ticks,
    shown_ties,
    tie_share,
)

WIDTH, HEIGHT = 880.0, 400.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 860.0, 34.0, 350.0  # of the field between the axes
POINTS = 60  # of a line
NEAR_THE_LEFT = 0.25  # of the field: here a tie's words stand to its right
ROW = 17.0  # between the words of two ties

# One shape per marker of `pictures.style`, around 0, 0.
SHAPES = {
    "o": "M-5.5,0a5.5,5.5 0 1,0 11,0a5.5,5.5 0 1,0 -11,0Z",
    "^": "M0,-6.5L6,5L-6,5Z",
    "D": "M0,-6.5L6.5,0L0,6.5L-6.5,0Z",
    "v": "M0,6.5L6,-5L-6,-5Z",
    "P": "M-2,-6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z",
    "X": "M-6,-3.5L-3.5,-6L0,-2.5L3.5,-6L6,-3.5L2.5,0L6,3.5L3.5,6L0,2.5L-3.5,6L-6,3.5L-2.5,0Z",
}

Place = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """One option: its price over every share, the band of its interval, and its mark at the share it has.

    `line`, `band`: points as SVG writes them, `band` empty without an interval. `fixed`: its share is unknown, so the
    line is level.
    """

    name: str
    colour: str
    shape: str
    line: str
    band: str
    mark: Place | None
    fixed: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """Where an axis is marked, and with what."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class TieMark:
    """Where an option costs what the cheapest one does, and where the words about it stand."""

    name: str
    share: str
    at: Place
    words_at: Place
    anchor: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Everything the SVG draws. `level`: the cheapest option's price, None where it stands alone."""

    curves: tuple[Curve, ...]
    share_ticks: tuple[Tick, ...]
    price_ticks: tuple[Tick, ...]
    ties: tuple[TieMark, ...]
    level: float | None
    cheapest: str

    @property
    def has_bands(self) -> bool:
        """Whether any interval is drawn."""
        return any(curve.band for curve in self.curves)


def chart_of(bill: Bill) -> Chart:
    """Lay out the chart of a bill."""
    field = _Field(axes_of(bill))
    cheapest = cheapest_of(bill)
    shares, prices = share_ticks(field.axes.start), price_ticks(field.axes.low, field.axes.high)
    price = cheapest.cost_per_million.value or 0.0
    return Chart(
        curves=tuple(_curve(option, place, field) for place, option in enumerate(bill.options)),
        share_ticks=tuple(Tick(field.across(at), text) for at, text in zip(*shares, strict=True)),
        price_ticks=tuple(Tick(field.down(at), text) for at, text in zip(*prices, strict=True)),
        ties=tuple(_ties(shown_ties(bill, field.axes.start), price, field)),
        level=field.down(price) if len(bill.options) > 1 else None,
        cheapest=one_line(cheapest.name),
    )


@dataclass(frozen=True, slots=True)
class _Field:
    axes: PriceAxes

    def across(self, share: float) -> float:
        """From the left edge of the SVG to a share."""
        start = self.axes.start
        return round(LEFT + (RIGHT - LEFT) * (share - start) / (1 - start), 1)

    def down(self, price: float) -> float:
        """From the top edge of the SVG to a price."""
        low, high = self.axes.low, self.axes.high
        return round(BOTTOM - (BOTTOM - TOP) * log(price / low) / log(high / low), 1)


def _curve(option: Priced, place: int, field: _Field) -> Curve:
    look, raw, share = arm_look(place), option.raw_cost_per_million, option_share(option)
    name, colour, shape = one_line(option.name), look["color"], SHAPES[look["marker"]]
    if raw is None or not known(raw.value) or not known(share):
        level = field.down(option.cost_per_million.value or 0.0)
        return Curve(name, colour, shape, _points([(LEFT, level), (RIGHT, level)]), "", None, fixed=True)
    start = field.axes.start
    shares = [start + (1 - start) * step / (POINTS - 1) for step in range(POINTS)]
    band: list[Place] = []
    if known(raw.low) and known(raw.high) and raw.low < raw.high:
        band = [*_along(raw.low, shares, field), *reversed(_along(raw.high, shares, field))]
    mark = (field.across(share), field.down(raw.value / share)) if share >= start else None
    return Curve(name, colour, shape, _points(_along(raw.value, shares, field)), _points(band), mark, fixed=False)


def _along(raw_price: float, shares: Sequence[float], field: _Field) -> list[Place]:
    return [(field.across(share), field.down(raw_price / share)) for share in shares]


def _points(places: Sequence[Place]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in places)


def _ties(ties: list[BreakEven], price: float, field: _Field) -> Iterator[TieMark]:
    """Each tie's words in a row of their own, so that neighbours do not cover each other."""
    for row, tie in enumerate(ties):
        share = tie_share(tie)
        x, y = field.across(share), field.down(price)
        left = x < LEFT + NEAR_THE_LEFT * (RIGHT - LEFT)
        words_at = (x + 10, y - 10 - ROW * row) if left else (x - 10, y + 20 + ROW * row)
        yield TieMark(
            shortened(one_line(tie.option)), f"{share * 100:.4g}%", (x, y), words_at, "start" if left else "end"
        )
