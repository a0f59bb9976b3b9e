"""What a TPOT costs in throughput: one line per arm, its points numbered by streams, and the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specprof.analyse.frontier import FrontierFigures, FrontierPoint
from specprof.publish.grid import Grid, Protocol
from specprof.publish.numbers import known
from specprof.publish.pictures.style import (
    INK,
    PAPER,
    Sheet,
    arm_look,
    bars,
    hollow_handle,
    label,
    ring_handle,
    shortened,
    tag_label,
    upper,
    values,
)
from specprof.publish.service_text import milliseconds, tpot_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

TITLE = "Frontier: TPOT against throughput"
CAPTION = (
    "Every point is one number of streams N (written beside it): further right each stream waits longer for a token, "
    "further up all streams together write more. Bars are 95% intervals. Dash-dotted: the TPOT target; N keeps it only "
    "where the whole bar lies to its left. Ringed: no other cell of any arm is better in one figure and as good in the "
    "other."
)
TARGET = (0, (6, 2, 1, 2))
LABELS = ((0, -9, "center", "top"), (0, 9, "center", "bottom"), (10, 0, "left", "center"))  # N, by arm: points, place


def draw(grid: Grid, protocol: Protocol) -> bytes | None:
    """The picture as PNG, None if no content has a frontier under the protocol."""
    shown: dict[str, list[FrontierFigures]] = {}
    for frontier in grid.figures.frontiers:
        if frontier.protocol == protocol.name:
            shown.setdefault(frontier.tag, []).append(frontier)
    if not shown:
        return None
    sheet = Sheet(len(shown), panel_height=3.3, sharey=False)
    for index, (tag, found) in enumerate(shown.items()):
        axes = sheet.panel(index)
        axes.set_title(shortened(tag_label(grid.tags, tag)))
        for frontier in found:
            _draw_arm(axes, frontier, grid.place(frontier.arm))
        _finish(axes, found)
        if sheet.is_first_column(index):
            axes.set_ylabel("aggregate throughput, tok/s")
    sheet.legend(_handles(grid, [frontier for of in shown.values() for frontier in of]))
    return sheet.png()


def _draw_arm(axes: Axes, frontier: FrontierFigures, place: int | None) -> None:
    look = arm_look(place)
    marker = look.pop("marker")
    tpot = [milliseconds(point.tpot_s) for point in frontier.points]
    speed = [point.throughput_tok_s for point in frontier.points]
    axes.errorbar(values(tpot), values(speed), xerr=bars(tpot), yerr=bars(speed), elinewidth=0.9, zorder=3, **look)
    for x, y, point in zip(values(tpot), values(speed), frontier.points, strict=True):
        face = look["color"] if point.valid else PAPER
        axes.plot([x], [y], marker, color=look["color"], markerfacecolor=face, markeredgewidth=1.4, zorder=4)
        if point.pareto:
            axes.plot([x], [y], "o", markersize=10.5, markerfacecolor="none", markeredgecolor=INK, zorder=5)
        _name(axes, x, y, point, 0 if place is None else 1 + place, look["color"])


def _name(axes: Axes, x: float, y: float, point: FrontierPoint, row: int, colour: str) -> None:
    if not (known(x) and known(y)):
        return
    dx, dy, ha, va = LABELS[row % len(LABELS)]
    axes.annotate(
        f"N={point.concurrency}", (x, y), (dx, dy), textcoords="offset points", ha=ha, va=va, fontsize=7.5,
        color=colour, zorder=6, bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.2, "alpha": 0.7},
    )  # fmt: skip


def _finish(axes: Axes, found: Sequence[FrontierFigures]) -> None:
    target_ms = 1000 * found[0].target_tpot_s
    axes.axvline(target_ms, color=INK, linewidth=1.1, linestyle=TARGET, zorder=2)
    points = [point for frontier in found for point in frontier.points]
    right = max((end for p in points if known(end := 1000 * upper(p.tpot_s))), default=target_ms)
    top = max((end for p in points if known(end := upper(p.throughput_tok_s))), default=1.0)
    axes.set_xlim(0, 1.14 * max(right, target_ms))
    axes.set_ylim(0, 1.16 * top)
    beyond = target_ms > 0.6 * max(right, target_ms)
    axes.annotate(
        f"target {tpot_words(found[0].target_tpot_s)}", (target_ms, 1), (-4 if beyond else 4, -1),
        xycoords=axes.get_xaxis_transform(), textcoords="offset points", ha="right" if beyond else "left", va="top",
        fontsize=8, color=INK, zorder=6, bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6},
    )  # fmt: skip
    axes.set_xlabel("TPOT of the median request, ms")


def _handles(grid: Grid, found: Sequence[FrontierFigures]) -> list[Line2D]:
    from matplotlib.lines import Line2D

    handles = []
    for arm in dict.fromkeys(frontier.arm for frontier in found):
        place = grid.place(arm)
        words = "speculation off" if place is None else label(grid.methods[arm], instead=f"arm {place + 1}")
        handles.append(Line2D([], [], label=words, **arm_look(place)))
    handles.append(ring_handle("on the frontier"))
    handles.append(Line2D([], [], color=INK, linewidth=1.1, linestyle=TARGET, label="TPOT target"))
    if any(not point.valid for frontier in found for point in frontier.points):
        handles.append(hollow_handle())
    return handles
