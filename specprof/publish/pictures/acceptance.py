"""Survival by draft position, and beneath it what acceptance is worth per engine step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specprof.analyse.results import CellFigures
from specprof.publish.grid import Grid, Protocol
from specprof.publish.numbers import known
from specprof.publish.pictures.style import (
    BLUE,
    RED,
    SOFT,
    Sheet,
    hollow_handle,
    line_with_bars,
    mark_unfit,
    streams_axis,
    streams_look,
    tag_label,
    upper,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

TITLE = "Acceptance by content and draft position"
CAPTION = (
    "Top: of the verification steps that carried a draft, the share in which draft position j was accepted; bars "
    "are 95% intervals. The faster a line falls, the less a longer draft is worth. Bottom: AL (circles) counts "
    "only steps with a draft; tokens per engine step (squares) counts every step. The gap between them is the "
    "steps in which the drafter had nothing to propose, common with n-gram: speed follows the squares."
)
SPREAD = 0.085  # how far points of neighbouring concurrency stand apart


def draw(grid: Grid, protocol: Protocol, arm: str) -> bytes | None:
    """The picture as PNG, None if nothing was drafted."""
    shown = {tag: grid.row(tag, protocol, arm) for tag in grid.tags_of(protocol)}
    if not any(cell.survival for cells in shown.values() for cell in cells):
        return None
    streams = grid.concurrencies(protocol=protocol.name)
    sheet = Sheet(len(shown), rows=2, panel_height=2.5)
    for index, (tag, cells) in enumerate(shown.items()):
        top, bottom = sheet.panel(index), sheet.panel(index, 1)
        top.set_title(tag_label(grid.tags, tag))
        _draw_survival(top, cells, streams)
        _draw_tokens(bottom, cells)
        if sheet.is_first_column(index):
            top.set_ylabel("steps accepting position j")
            bottom.set_ylabel("tokens")
    highest = max((value for cells in shown.values() for cell in cells if known(value := _top(cell))), default=2.0)
    for index in range(len(shown)):
        sheet.panel(index, 1).set_ylim(0.8, 1 + (highest - 1) * 1.25)
    sheet.legend(_handles(streams))
    return sheet.png()


def _draw_survival(axes: Axes, cells: Sequence[CellFigures], streams: Sequence[int]) -> None:
    from matplotlib.ticker import PercentFormatter

    longest = max((len(cell.survival) for cell in cells), default=0) or 1
    for cell in cells:
        depth = streams.index(cell.concurrency)
        shift = (depth - (len(streams) - 1) / 2) * SPREAD
        xs = [position + shift for position in range(1, len(cell.survival) + 1)]
        look = streams_look(depth, len(streams))
        line_with_bars(axes, xs, cell.survival, [cell] * len(xs), linewidth=1.0, markersize=4.5, **look)
    unfit = [cell for cell in cells if not cell.valid and cell.survival]
    if unfit:
        highest = max(unfit, key=lambda cell: cell.survival[-1].value or 0)
        mark_unfit(axes, len(highest.survival), upper(highest.survival[-1]), highest.gates)
    axes.set_xticks(range(1, longest + 1))
    axes.set_xlim(0.6, longest + 0.4)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("draft position j")


def _draw_tokens(axes: Axes, cells: Sequence[CellFigures]) -> None:
    streams = [cell.concurrency for cell in cells]
    axes.axhline(1, color=SOFT, linewidth=1, linestyle=(0, (1, 2)))
    line_with_bars(axes, streams, [cell.acceptance_length for cell in cells], cells, color=BLUE, marker="o")
    steps = [cell.tokens_per_engine_step for cell in cells]
    line_with_bars(axes, streams, steps, cells, color=RED, marker="s", linestyle="--")
    for cell in cells:
        if not cell.valid:
            mark_unfit(axes, cell.concurrency, _top(cell), cell.gates)
    streams_axis(axes, streams)


def _top(cell: CellFigures) -> float:
    return upper(cell.acceptance_length or cell.tokens_per_engine_step)


def _handles(streams: Sequence[int]) -> list[Line2D]:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], linewidth=1.0, label=f"N={n}", **streams_look(depth, len(streams)))
        for depth, n in enumerate(streams)
    ]
    length = Line2D([], [], color=BLUE, marker="o", label="AL (steps with a draft)")
    steps = Line2D([], [], color=RED, marker="s", linestyle="--", label="tokens per engine step")
    return [*handles, length, steps, hollow_handle()]
