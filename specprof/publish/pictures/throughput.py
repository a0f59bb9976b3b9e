"""Aggregate throughput against streams, one line per arm, one panel per content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specprof.analyse.results import CellFigures
from specprof.publish.grid import Grid, Protocol
from specprof.publish.numbers import known
from specprof.publish.pictures.style import (
    SOFT,
    Sheet,
    arm_look,
    doubling_ticks,
    hollow_handle,
    label,
    line_with_bars,
    lower,
    mark_unfit,
    streams_axis,
    tag_label,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

TITLE = "Throughput against concurrency"
CAPTION = (
    "Both axes double at every step, so equal distances are equal ratios: the height between two lines is the "
    "speculation gain, the rise along a line is the batching gain. Dotted: perfect scaling from each arm's own "
    "first point. Bars are 95% intervals; where they overlap, the picture decides nothing."
)
DOTTED = (0, (1, 2.5))


def draw(grid: Grid, protocol: Protocol) -> bytes | None:
    """The picture as PNG, None if there is no throughput to show."""
    tags = grid.tags_of(protocol)
    told = (cell.throughput_tok_s.value for cell in grid.figures.cells if cell.protocol == protocol.name)
    speeds = [speed for speed in told if known(speed) and speed > 0]
    if not speeds:
        return None
    sheet = Sheet(len(tags), panel_height=3.2)
    for index, tag in enumerate(tags):
        axes = sheet.panel(index)
        axes.set_title(tag_label(grid.tags, tag))
        for arm in grid.methods:
            _draw_arm(axes, grid.row(tag, protocol, arm), arm_look(grid.place(arm)), floor=min(speeds) / 1.35)
        streams_axis(axes, grid.concurrencies(tag, protocol.name))
        doubling_ticks(axes, min(speeds) / 1.35, max(speeds) * 1.6)
        if sheet.is_first_column(index):
            axes.set_ylabel("aggregate throughput, tok/s")
    sheet.legend(_handles(grid))
    return sheet.png()


def _draw_arm(axes: Axes, cells: Sequence[CellFigures], style: dict[str, Any], floor: float) -> None:
    """`floor`: the bottom of the axis. A mark below it, where an interval nearly reaches zero, would take all room."""
    if not cells:
        return
    streams = [cell.concurrency for cell in cells]
    line_with_bars(axes, streams, [cell.throughput_tok_s for cell in cells], cells, **style)
    first = cells[0].throughput_tok_s.value
    if known(first):
        perfect = [first * n / streams[0] for n in streams]
        axes.plot(streams, perfect, color=style["color"], linewidth=1.1, linestyle=DOTTED, alpha=0.75, zorder=2)
    for cell in cells:
        if not cell.valid:
            mark_unfit(axes, cell.concurrency, max(lower(cell.throughput_tok_s), floor), cell.gates, below=True)


def _handles(grid: Grid) -> list[Line2D]:
    from matplotlib.lines import Line2D

    arms = [Line2D([], [], **arm_look(grid.place(arm)), label=_words(grid, arm)) for arm in grid.methods]
    return [
        *arms,
        Line2D([], [], color=SOFT, linewidth=1.1, linestyle=DOTTED, label="perfect scaling"),
        hollow_handle(),
    ]


def _words(grid: Grid, arm: str) -> str:
    return label(grid.methods[arm], instead=arm) if arm in grid.on_arms else "speculation off"
