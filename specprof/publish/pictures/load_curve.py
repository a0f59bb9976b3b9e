"""The load curve of one content: output, waits and the share on target against the offered rate, arm beside arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import TYPE_CHECKING, Any

from specprof.analyse.results import Figure, Percentiles
from specprof.analyse.service_results import GoodputFigures, RungFigures
from specprof.publish.ladders import Ladder
from specprof.publish.numbers import known, percent, rate, seconds
from specprof.publish.pictures.style import (
    INK,
    PAPER,
    SOFT,
    WIDTH_IN,
    Sheet,
    arm_look,
    bars,
    label,
    mark_unfit,
    upper,
    values,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

TITLE = "Load curve"
CAPTION = (
    "Every point is one offered rate; bars are 95% intervals. Solid: effective output, p99, the share on target. "
    "Dotted: raw output, p50. TTFT begins when a request was due. Along the top edge of each panel: the operating "
    "range of each arm, from the lowest rate measured to the goodput, with the goodput's interval; it is shaded "
    "below. The knee is the largest rate the engine still completes; beyond it, queues grow. Hollow: collapsed "
    "there, or a gate forbids the figure."
)
DOTTED = (0, (1, 1.6))
TARGET = (0, (6, 2, 1, 2))  # dash and dot
DODGE = 0.006  # of the rates' span, between neighbouring arms
TOP, ROW = 0.965, 0.06  # where the arms' operating ranges stand, as shares of a panel
HEADROOM = 0.1  # share of a linear panel left free above the points, a row of ranges each


@dataclass(frozen=True, slots=True)
class Curve:
    """One arm of the picture: how it looks, and where its points stand."""

    words: str
    look: Mapping[str, Any]
    row: int  # of its operating range, counted from the top
    shift: float  # to the right of the rate, so that bars of several arms can be told apart
    rungs: tuple[RungFigures, ...]
    goodput: GoodputFigures | None


def draw(ladder: Ladder, places: Mapping[str, int | None]) -> bytes | None:
    """The picture as PNG, None where one rate alone was offered. `places`: `ladders.arm_places`."""
    if len(ladder.rates) < 2:
        return None
    curves = _curves(ladder, places)
    sheet = Sheet(2, rows=2, panel_height=2.95, sharey=False, width=WIDTH_IN)
    output, on_target = sheet.panel(0), sheet.panel(0, 1)
    first, each = sheet.panel(1), sheet.panel(1, 1)
    _draw_output(output, curves)
    _draw_share(on_target, curves, ladder.share)
    _draw_wait(first, [(c, [r.ttft_s for r in c.rungs]) for c in curves], ladder.targets.ttft_s)
    _draw_wait(each, [(c, [r.tpot_s for r in c.rungs]) for c in curves], ladder.targets.tpot_s)
    titles = ("Output", "Requests that keep their targets", "TTFT, from due", "TPOT")
    units = ("output, tok/s", "share of requests", "time to first token", "time per output token")
    for axes, title, unit in zip((output, on_target, first, each), titles, units, strict=True):
        axes.set_title(title)
        axes.set_ylabel(unit)
        _rates_axis(axes, ladder.rates)
        _draw_ranges(axes, curves, ladder.rates[0])
    sheet.legend(_handles(curves, ladder))
    return sheet.png()


def _curves(ladder: Ladder, places: Mapping[str, int | None]) -> tuple[Curve, ...]:
    step = DODGE * (ladder.rates[-1] - ladder.rates[0])
    middle = (len(ladder.rungs) - 1) / 2
    return tuple(
        Curve(
            words=curve_words(rungs[0], places[arm]),
            look=curve_look(places[arm]),
            row=row,
            shift=(row - middle) * step,
            rungs=rungs,
            goodput=ladder.goodputs.get(arm),
        )
        for row, (arm, rungs) in enumerate(ladder.rungs.items())
    )


def curve_look(place: int | None) -> dict[str, Any]:
    """How an arm is drawn, as in the pictures of closed loops; dashes and dots are left to say what a line shows."""
    return {**arm_look(place), "linestyle": "-"}


def curve_words(rung: RungFigures, place: int | None) -> str:
    """An arm's name as the fonts can show it."""
    return "speculation off" if place is None else label(rung.method, instead=f"arm {place + 1}")


# -- the four panels --------------------------------------------------------------------------------------------------


def _draw_output(axes: Axes, curves: Sequence[Curve]) -> None:
    for curve in curves:
        _line(axes, curve, [rung.waterfall.raw_tok_s for rung in curve.rungs], solid=False)
        _line(axes, curve, [rung.waterfall.effective_tok_s for rung in curve.rungs], solid=True)
        for rung in curve.rungs:
            if not rung.valid:
                mark_unfit(axes, rung.rate_per_s, upper(rung.waterfall.raw_tok_s), rung.gates)
        _draw_knee(axes, curve)
    _leave_room(axes, curves, _top(curves))


def _draw_share(axes: Axes, curves: Sequence[Curve], share: float | None) -> None:
    from matplotlib.ticker import PercentFormatter

    for curve in curves:
        _line(axes, curve, [rung.on_target_share for rung in curve.rungs], solid=True)
    if share is not None:
        _target_line(axes, share, f"≥ {percent(share)}")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _leave_room(axes, curves, 1.0)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0])


def _draw_wait(axes: Axes, waits: Sequence[tuple[Curve, Sequence[Percentiles | None]]], target_s: float | None) -> None:
    """Median and tail of a wait, on an axis where equal factors are equally high."""
    shown: list[float] = [] if target_s is None else [target_s]
    num_rows = len(waits)
    for curve, latencies in waits:
        tails, middles = ([getattr(wait, name, None) for wait in latencies] for name in ("p99", "p50"))
        _line(axes, curve, middles, solid=False)
        _line(axes, curve, tails, solid=True)
        lost = [rung for rung, tail in zip(curve.rungs, tails, strict=True) if tail is not None and tail.value is None]
        if lost:
            _mark_lost(axes, curve, lost, TOP - ROW * num_rows)
            num_rows += 1
        told = [figure for figure in (*tails, *middles) if figure is not None]
        ends = [end for figure in told for end in (figure.value, figure.low, figure.high)]
        shown += [end for end in ends if known(end) and end > 0]
    if target_s is not None:
        _target_line(axes, target_s, f"≤ {seconds(target_s)}")
    if shown:
        _wait_axis(axes, min(shown), max(shown), num_rows)


def _mark_lost(axes: Axes, curve: Curve, lost: Sequence[RungFigures], y: float) -> None:
    """In a row below the operating ranges: rungs whose tail is that of a lost request, which no axis can show."""
    rows = axes.get_xaxis_transform()
    colour = curve.look["color"]
    look: dict[str, Any] = {"markerfacecolor": PAPER, "markersize": 4.5, "linestyle": "none", "transform": rows}
    axes.plot([rung.rate_per_s for rung in lost], [y] * len(lost), curve.look["marker"], color=colour, zorder=4, **look)
    axes.annotate(
        "p99 lost", (lost[0].rate_per_s, y), (-5, 0), xycoords=rows, textcoords="offset points", ha="right",
        va="center", fontsize=7, color=colour, zorder=5,
    )  # fmt: skip


def _wait_axis(axes: Axes, low: float, high: float, num_rows: int) -> None:
    """A logarithmic axis in milliseconds and seconds, with room on top for the operating ranges."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    bottom = low / 1.25
    decades = max(log10(high * 1.15 / bottom), 0.5)
    free = 1 - (HEADROOM + ROW * num_rows)
    axes.set_yscale("log")
    axes.set_ylim(bottom, bottom * 10 ** (decades / free))
    subs = (1.0,) if decades > 2.5 else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(10, subs=subs))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short_time(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _short_time(value_s: float) -> str:
    return f"{value_s:g} s" if value_s >= 1 else f"{value_s * 1000:.3g} ms"


# -- what all panels share --------------------------------------------------------------------------------------------


def _line(axes: Axes, curve: Curve, figures: Sequence[Figure | None], *, solid: bool) -> None:
    """One line with intervals. Points where the arm collapsed, or a gate forbids the figure, are hollow."""
    colour, marker = curve.look["color"], curve.look["marker"]
    xs = [rung.rate_per_s + curve.shift for rung in curve.rungs]
    style: dict[str, Any] = {"linestyle": "-", "linewidth": 1.7} if solid else {"linestyle": DOTTED, "linewidth": 1.3}
    axes.errorbar(xs, values(figures), yerr=bars(figures), elinewidth=1.0, color=colour, zorder=3, **style)
    for x, y, rung in zip(xs, values(figures), curve.rungs, strict=True):
        face = PAPER if rung.collapsed or not rung.valid else colour
        size = 5.5 if solid else 3.8
        axes.plot([x], [y], marker, color=colour, markerfacecolor=face, markeredgewidth=1.2, markersize=size, zorder=4)


def _target_line(axes: Axes, at: float, words: str) -> None:
    """A line across the panel, named in its right margin, where no point stands."""
    axes.axhline(at, color=INK, linewidth=1.1, linestyle=TARGET, zorder=2)
    axes.annotate(
        words, (1, at), (4, 0), xycoords=("axes fraction", "data"), textcoords="offset points", ha="left",
        va="center", fontsize=8, color=INK, annotation_clip=False,
    )  # fmt: skip


def _draw_knee(axes: Axes, curve: Curve) -> None:
    """A tick at the foot of the output panel, where the arm's rates are still completed and no further."""
    knee = curve.goodput.knee_per_s if curve.goodput is not None else None
    if not known(knee):
        return
    foot = axes.get_xaxis_transform()
    colour = curve.look["color"]
    height = 0.14 + 0.085 * curve.row
    axes.plot([knee, knee], [0, height], color=colour, linewidth=1.4, transform=foot, zorder=2)
    axes.annotate(
        f"knee {rate(knee)}", (knee, height), (3 if curve.row else -3, -1), xycoords=foot, textcoords="offset points",
        ha="left" if curve.row else "right", va="top", fontsize=7.5, color=colour, zorder=5,
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.4, "alpha": 0.8},
    )  # fmt: skip


def _draw_ranges(axes: Axes, curves: Sequence[Curve], lowest: float) -> None:
    """From the lowest rate to each arm's goodput: shaded, and as a bar in a row of its own at the top."""
    rows = axes.get_xaxis_transform()
    for curve in curves:
        figure = curve.goodput.rate_per_s if curve.goodput is not None else Figure(None)
        goodput = figure.value if known(figure.value) else figure.low
        if not known(goodput):
            continue
        colour, y = curve.look["color"], TOP - ROW * curve.row
        axes.axvspan(lowest, goodput, color=colour, alpha=0.07, linewidth=0, zorder=0)
        axes.plot(
            [lowest, goodput], [y, y], color=colour, linewidth=3.2, solid_capstyle="butt", transform=rows, alpha=0.7
        )
        if known(figure.low) and known(figure.high):
            axes.plot(
                [figure.low, figure.high], [y, y], "|-", color=colour, linewidth=0.9, markersize=6, transform=rows
            )
        axes.plot(
            [goodput], [y], curve.look["marker"], color=colour, markeredgecolor=INK, markersize=5.5, transform=rows,
            zorder=5,
        )  # fmt: skip


def _leave_room(axes: Axes, curves: Sequence[Curve], highest: float) -> None:
    """A linear axis from zero with the rows of the operating ranges free above the highest point."""
    top = highest / (1 - HEADROOM - ROW * len(curves))
    axes.set_ylim(-0.02 * top, top)  # a mark at zero is not cut in half


def _top(curves: Sequence[Curve]) -> float:
    ends = [upper(rung.waterfall.raw_tok_s) for curve in curves for rung in curve.rungs]
    return max((end for end in ends if known(end)), default=1.0)


def _rates_axis(axes: Axes, rates: Sequence[float]) -> None:
    span = rates[-1] - rates[0]
    axes.set_xlim(max(0.0, rates[0] - 0.06 * span), rates[-1] + 0.06 * span)
    axes.set_xlabel("offered rate, req/s")


def _handles(curves: Sequence[Curve], ladder: Ladder) -> list[Line2D]:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=curve.words, linewidth=1.7, **curve.look) for curve in curves]
    handles += [
        Line2D([], [], color=SOFT, linewidth=1.7, label="effective, p99"),
        Line2D([], [], color=SOFT, linewidth=1.3, linestyle=DOTTED, label="raw, p50"),
    ]
    if any(target is not None for target in (ladder.targets.ttft_s, ladder.targets.tpot_s, ladder.share)):
        handles.append(Line2D([], [], color=INK, linewidth=1.1, linestyle=TARGET, label="target"))
    if ladder.goodputs:
        handles.append(Line2D([], [], color=SOFT, linewidth=3.2, alpha=0.7, label="operating range"))
    rungs = [rung for curve in curves for rung in curve.rungs]
    if any(rung.collapsed or not rung.valid for rung in rungs):
        look: dict[str, Any] = {"marker": "o", "markerfacecolor": PAPER, "linewidth": 0, "color": SOFT}
        words = "hollow: collapsed" if all(rung.valid for rung in rungs) else "hollow: collapsed, or a gate forbids it"
        handles.append(Line2D([], [], markeredgewidth=1.2, label=words, **look))
    return handles
