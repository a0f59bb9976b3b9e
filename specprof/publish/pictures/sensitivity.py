"""Cost per million effective tokens against the effective share, one line per option, break-even marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specprof.analyse.cost import is_exact
from specprof.decide.bill import Bill, BreakEven, Priced
from specprof.publish.numbers import known
from specprof.publish.pictures.style import INK, PAPER, SOFT, Sheet, arm_look, label
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

POINTS = 200  # of a line
WIDTH_IN, HEIGHT_IN = 8.0, 4.0
NEAR_THE_LEFT = 0.25  # of the axis: here a tie's words stand to its right
ROW_POINTS = 13  # between the words of two ties


def draw(bill: Bill) -> bytes:
    """The picture as PNG."""
    sheet = Sheet(1, panel_height=HEIGHT_IN, width=WIDTH_IN)
    axes = sheet.panel(0)
    axes.set_title(label(bill.title, instead="cost"))
    shown = axes_of(bill)
    for place, option in enumerate(bill.options):
        _draw_option(axes, option, place, shown.start)
    cheapest = cheapest_of(bill)
    if len(bill.options) > 1:
        axes.axhline(cheapest.cost_per_million.value or 0, color=SOFT, linewidth=1.1, linestyle="--", zorder=1)
    ties = shown_ties(bill, shown.start)
    for row, tie in enumerate(ties):
        _draw_break_even(axes, tie, cheapest.cost_per_million.value or 0, shown.start, row)
    _set_axes(axes, shown)
    axes.set_xlabel("effective share of the tokens written")
    axes.set_ylabel(f"{label(bill.currency, instead='cost')} per million effective tokens")
    sheet.legend(_handles(bill, cheapest, ties))
    return sheet.png()


def _set_axes(axes: Axes, shown: PriceAxes) -> None:
    axes.set_xlim(shown.start, 1.0)
    axes.set_xticks(*share_ticks(shown.start))
    axes.set_yscale("log")
    axes.set_yticks(*price_ticks(shown.low, shown.high))
    axes.minorticks_off()
    axes.set_ylim(shown.low, shown.high)


def _draw_option(axes: Axes, option: Priced, place: int, start: float) -> None:
    """The option's price over every share it might reach, and its mark at the share it has."""
    look = arm_look(place)
    colour, marker = look["color"], look["marker"]
    raw, share = option.raw_cost_per_million, option_share(option)
    if raw is None or not known(share):  # only its effective throughput is known
        axes.axhline(option.cost_per_million.value or 0, color=colour, linewidth=1.8, linestyle=":", zorder=3)
        return
    shares = [start + (1 - start) * step / (POINTS - 1) for step in range(POINTS)]
    axes.plot(shares, [(raw.value or 0) / at for at in shares], color=colour, zorder=3)
    if known(raw.low) and known(raw.high) and raw.low < raw.high:
        lows, highs = [raw.low / at for at in shares], [raw.high / at for at in shares]
        axes.fill_between(shares, lows, highs, color=colour, alpha=0.15, linewidth=0, zorder=2)
    if share >= start:
        axes.plot(
            [share], [option.cost_per_million.value or 0], marker, color=colour, markersize=8, zorder=5, clip_on=False
        )


def _draw_break_even(axes: Axes, tie: BreakEven, price: float, start: float, row: int) -> None:
    """A ring where the option's line meets the cheapest price; its words beneath all lines, each tie in its own row."""
    share = tie_share(tie)
    axes.plot([share, share], [0, price], color=INK, linewidth=0.9, linestyle=(0, (1, 2)), zorder=2)
    axes.plot(
        [share], [price], "o", markersize=8, markerfacecolor=PAPER, markeredgecolor=INK, markeredgewidth=1.5, zorder=6
    )
    left = share < start + NEAR_THE_LEFT * (1 - start)
    align, rise, shift = ("left", "bottom", (7, 8)) if left else ("right", "top", (-7, -8))
    shift = (shift[0], shift[1] + (ROW_POINTS if left else -ROW_POINTS) * row)
    axes.annotate(
        f"{label(tie.option, instead='option')} ties at {share * 100:.4g}%",
        (share, price), shift, textcoords="offset points", ha=align, va=rise, fontsize=9, color=INK,
    )  # fmt: skip


def _handles(bill: Bill, cheapest: Priced, ties: Sequence[BreakEven]) -> list[Line2D]:
    from matplotlib.lines import Line2D

    handles = []
    for place, option in enumerate(bill.options):
        name = label(option.name, instead=f"option {place + 1}")
        fixed = option_share(option) is None
        look: dict[str, Any] = {"color": arm_look(place)["color"], "linestyle": ":"} if fixed else arm_look(place)
        handles.append(Line2D([], [], label=f"{name} (share unknown)" if fixed else name, **look))
    if len(bill.options) > 1:
        name = label(cheapest.name, instead=f"option {bill.options.index(cheapest) + 1}")
        handles.append(
            Line2D([], [], color=SOFT, linewidth=1.1, linestyle="--", label=f"price of {name}, the cheapest")
        )
    if any(option.raw_cost_per_million and not is_exact(option.raw_cost_per_million) for option in bill.options):
        handles.append(Line2D([], [], color=SOFT, linewidth=8, alpha=0.25, label="95% interval"))
    if ties:
        hollow: dict[str, Any] = {"marker": "o", "markerfacecolor": PAPER, "markeredgewidth": 1.5, "linewidth": 0}
        handles.append(Line2D([], [], color=INK, label="break-even", **hollow))
    return handles
