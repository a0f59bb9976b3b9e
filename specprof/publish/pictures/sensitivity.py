"""Cost per million effective tokens against the effective share, one line per option, break-even marked."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, floor, log, log10
from typing import TYPE_CHECKING, Any

from specprof.analyse.cost import is_exact
from specprof.decide.bill import Bill, BreakEven, Priced
from specprof.publish.numbers import known
from specprof.publish.pictures.style import INK, PAPER, SOFT, Sheet, arm_look, label, lower, upper, values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

POINTS = 200  # of a line
WIDTH_IN, HEIGHT_IN = 8.0, 4.0
LEFT_OF_ALL = 0.75  # the axis begins at this part of the smallest share that is shown
SMALLEST_SHARE = 0.02
TICKS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)  # in each decade
MOST_TICKS = 9
NEAR_THE_LEFT = 0.25  # of the axis: here a tie's words stand to its right
ROW_POINTS = 13  # between the words of two ties


def draw(bill: Bill) -> bytes:
    """The picture as PNG."""
    sheet = Sheet(1, panel_height=HEIGHT_IN, width=WIDTH_IN)
    axes = sheet.panel(0)
    axes.set_title(label(bill.title, instead="cost"))
    start = _start(bill)
    for place, option in enumerate(bill.options):
        _draw_option(axes, option, place, start)
    cheapest = next(option for option in bill.options if option.name == bill.ranking_effective[0])
    if len(bill.options) > 1:
        axes.axhline(cheapest.cost_per_million.value or 0, color=SOFT, linewidth=1.1, linestyle="--", zorder=1)
    ties = [tie for tie in bill.break_evens if tie.option != cheapest.name and _within(tie, start)]
    ties.sort(key=_tie_share)
    for row, tie in enumerate(ties):
        _draw_break_even(axes, tie, cheapest.cost_per_million.value or 0, start, row)
    axes.set_xlim(start, 1.0)
    _share_ticks(axes, start)
    _cost_axis(axes, bill, start)
    axes.set_xlabel("effective share of the tokens written")
    axes.set_ylabel(f"{label(bill.currency, instead='cost')} per million effective tokens")
    sheet.legend(_handles(bill, cheapest, ties))
    return sheet.png()


def _start(bill: Bill) -> float:
    """Where the share axis begins: left of every option and every break-even."""
    shares = [share for option in bill.options if known(share := _share(option))]
    ties = [_tie_share(tie) for tie in bill.break_evens]
    shown = [share for share in (*shares, *ties) if known(share) and share <= 1]
    return max(LEFT_OF_ALL * min(shown, default=0.5), SMALLEST_SHARE)


def _share(option: Priced) -> float | None:
    return option.effective_share.figure.value if option.effective_share is not None else None


def _tie_share(tie: BreakEven) -> float:
    """The break-even share, NaN where there is none."""
    return values([tie.effective_share])[0]


def _within(tie: BreakEven, start: float) -> bool:
    return start <= _tie_share(tie) <= 1


def _draw_option(axes: Axes, option: Priced, place: int, start: float) -> None:
    """The option's price over every share it might reach, and its mark at the share it has."""
    look = arm_look(place)
    colour, marker = look["color"], look["marker"]
    raw, share = option.raw_cost_per_million, _share(option)
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
    share = _tie_share(tie)
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


def _share_ticks(axes: Axes, start: float) -> None:
    step = 0.1 if start < 0.6 else 0.05 if start < 0.85 else 0.01
    ticks = [round(step * n, 2) for n in range(round(1 / step) + 1) if step * n >= start - 1e-9]
    axes.set_xticks(ticks, [f"{100 * tick:.0f}%" for tick in ticks])


def _cost_axis(axes: Axes, bill: Bill, start: float) -> None:
    """A logarithmic axis, equal factors equally high, over every price an option can have here."""
    ends = []
    for option in bill.options:
        raw = option.raw_cost_per_million
        ends += [lower(raw), upper(raw) / start] if raw is not None else []
        ends += [lower(option.cost_per_million), upper(option.cost_per_million)]
    low, high = min(ends), max(ends)
    margin = exp(0.06 * log(high / low)) if high > low else 1.2
    axes.set_yscale("log")
    ticks = _cost_ticks(low / margin, high * margin)
    axes.set_yticks(ticks, [f"{tick:,.10g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(low / margin, high * margin)


def _cost_ticks(low: float, high: float) -> Sequence[float]:
    """Round prices within the axis, thinned out where there would be too many."""
    decades = range(floor(log10(low)), floor(log10(high)) + 1)
    for chosen in (TICKS, (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), (1.0, 2.0, 5.0), (1.0,)):
        ticks = [float(f"{digit * 10.0**decade:.3g}") for decade in decades for digit in chosen]
        shown = [tick for tick in ticks if low <= tick <= high]
        if len(shown) <= MOST_TICKS:
            return shown
    return shown


def _handles(bill: Bill, cheapest: Priced, ties: Sequence[BreakEven]) -> list[Line2D]:
    from matplotlib.lines import Line2D

    handles = []
    for place, option in enumerate(bill.options):
        name = label(option.name, instead=f"option {place + 1}")
        fixed = _share(option) is None
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
