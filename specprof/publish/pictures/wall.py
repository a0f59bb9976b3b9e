"""Queue, prefill and decode as shares of each cell's wall, and where the prediction fell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specprof.analyse.results import CellFigures
from specprof.publish.grid import Grid, Protocol
from specprof.publish.numbers import known, seconds
from specprof.publish.pictures.style import INK, ORANGE, PAPER, PURPLE, SKY, SOFT, UNFIT, Sheet, label, tag_label

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

TITLE = "The wall taken apart"
CAPTION = (
    "Each bar is one measured wall, from the first request sent to the last one done; its length in seconds "
    "stands at its end. A throughput is a decode figure only where decoding fills the bar; over 30% prefill it is "
    "not. The black tick is the wall predicted from prompt tokens, prefill speed, output and decode speed: the "
    "further from 100%, the less the figures explain."
)
PARTS = (("queue", PURPLE, "xxx"), ("prefill", ORANGE, "///"), ("decode", SKY, ""))
FURTHEST = 1.5  # a prediction further off than this is drawn at the edge


def draw(grid: Grid, protocol: Protocol) -> bytes | None:
    """The picture as PNG, None if no wall is known."""
    tags = grid.tags_of(protocol)
    rows = [(n, arm) for n in grid.concurrencies(protocol=protocol.name) for arm in grid.methods]
    cells = [cell for cell in grid.figures.cells if cell.protocol == protocol.name]
    if not any(known(cell.decode_share.value) for cell in cells):
        return None
    edge = min(FURTHEST, max(1.0, *(_predicted(cell) or 0 for cell in cells))) + 0.06
    sheet = Sheet(len(tags), panel_height=0.75 + 0.27 * len(rows), sharey=True)
    for index, tag in enumerate(tags):
        axes = sheet.panel(index)
        axes.set_title(tag_label(grid.tags, tag))
        for row, (n, arm) in enumerate(rows):
            cell = grid.cell(tag, protocol.name, arm, n)
            if cell is not None:
                _draw_cell(axes, _height(row, len(grid.methods)), cell, edge)
        _finish(axes, grid, rows, edge)
    sheet.legend(_handles())
    return sheet.png()


def _height(row: int, arms: int) -> float:
    """Bars of one concurrency stand together."""
    return row + 0.45 * (row // arms)


def _predicted(cell: CellFigures) -> float | None:
    """The predicted wall as a share of the measured one."""
    measured, predicted = cell.wall_s.value, cell.predicted_wall_s.value
    return predicted / measured if known(measured) and measured > 0 and known(predicted) else None


def _draw_cell(axes: Axes, y: float, cell: CellFigures, edge: float) -> None:
    left = 0.0
    shares = (cell.queue_share, cell.prefill_share, cell.decode_share)
    for share, (_, colour, hatch) in zip((figure.value for figure in shares), PARTS, strict=True):
        if known(share):
            face, line = (colour, PAPER) if cell.valid else (PAPER, colour)
            axes.barh(y, share, 0.82, left=left, color=face, edgecolor=line, hatch=hatch, linewidth=0.8, zorder=2)
            left += share
    predicted = _predicted(cell)
    if predicted is not None:
        tick = min(predicted, FURTHEST)
        axes.plot([tick, tick], [y - 0.46, y + 0.46], color=INK, linewidth=2.2, solid_capstyle="butt", zorder=4)
    text, colour = (seconds(cell.wall_s.value), SOFT) if cell.valid else (f"{seconds(cell.wall_s.value)} !", UNFIT)
    axes.text(edge + 0.02, y, text, ha="left", va="center", fontsize=8, color=colour)


def _finish(axes: Axes, grid: Grid, rows: Sequence[tuple[int, str]], edge: float) -> None:
    heights = [_height(row, len(grid.methods)) for row in range(len(rows))]
    axes.set_yticks(heights, [f"N={n}  {label(grid.methods[arm], instead=arm)}" for n, arm in rows])
    axes.set_ylim(max(heights, default=1) + 0.7, -0.7)
    axes.set_xlim(0, edge)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "25%", "50%", "75%", "100%"])
    axes.grid(False)
    axes.grid(True, axis="x")
    axes.set_xlabel("share of the measured wall")


def _handles() -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    parts = [Patch(facecolor=colour, edgecolor=PAPER, hatch=hatch, label=name) for name, colour, hatch in PARTS]
    tick = Line2D(
        [], [], color=INK, linewidth=0, marker="|", markersize=11, markeredgewidth=2.2, label="predicted wall"
    )
    return [*parts, tick, Patch(facecolor=PAPER, edgecolor=SKY, label="hollow, !: a gate forbids it")]
