"""Speculation gain against streams, one line per arm, one panel per content, and where each line falls through 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite, log
from typing import TYPE_CHECKING

from specprof.analyse.results import GainFigures
from specprof.publish.decisions import Crossing, bounds_of, crossover
from specprof.publish.grid import Grid, Protocol
from specprof.publish.numbers import known
from specprof.publish.pictures.style import (
    INK,
    SOFT,
    Sheet,
    arm_look,
    hollow_handle,
    label,
    line_with_bars,
    lower,
    streams_axis,
    tag_label,
    upper,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

TITLE = "Speculation gain against concurrency"
CAPTION = (
    "Throughput with speculation over throughput without it at the same number of streams; bars are 95% intervals. "
    "Above the black line speculation gains, below it costs. N* is where a line falls through 1 (for the last time), "
    "straight between measured points on these axes, and the bar beneath runs from where the lower ends of the "
    "intervals do so to where the upper ends do; an arrow: beyond what was measured. Where no N* stands, "
    "the line does not fall through 1 within the measured range. Points of several arms stand a little "
    "apart, so that their bars can be told apart."
)
DODGE, SPREAD = 0.09, 0.45  # octaves between neighbouring arms, and between the outermost at most
PANEL_IN, WORDS_IN, ROW_IN = 3.1, 0.8, 0.27  # heights of a panel, of its title and labels, of a crossover's row
SPARSE, MIDDLE = 4.0, 1.9  # spans of the gain axis from which ticks stand further apart
TICKS = {  # by the least span
    SPARSE: tuple(round(2 ** (half / 2), 2) for half in range(-10, 11)),
    MIDDLE: (0.4, 0.5, 0.6, 0.8, 1, 1.25, 1.5, 2, 2.5, 3, 4),
    1.0: tuple(round(0.5 + 0.1 * step, 1) for step in range(16)),
}


@dataclass(frozen=True, slots=True)
class Line:
    """One arm's gains on one content, and where they fall through 1."""

    place: int  # of the arm among those that speculate
    gains: tuple[GainFigures, ...]

    @property
    def crossover(self) -> Crossing | None:
        """Over the gains that are fit."""
        return crossover([(gain.concurrency, gain.speculation_gain if gain.valid else None) for gain in self.gains])


def draw(grid: Grid, protocol: Protocol) -> bytes | None:
    """The picture as PNG, None if nothing was compared."""
    shown = {tag: lines for tag in grid.tags_of(protocol) if (lines := _lines(grid, protocol, tag))}
    figures = [gain.speculation_gain for lines in shown.values() for line in lines for gain in line.gains]
    ends = [end for figure in figures for end in (lower(figure), upper(figure)) if known(end) and end > 0]
    if not ends:
        return None
    rows = sorted({line.place for lines in shown.values() for line in lines if line.crossover})
    sheet = Sheet(len(shown), panel_height=PANEL_IN + ROW_IN * len(rows))
    for index, (tag, lines) in enumerate(shown.items()):
        axes = sheet.panel(index)
        axes.set_title(tag_label(grid.tags, tag))
        axes.axhline(1, color=INK, linewidth=1.1, zorder=1)
        streams_axis(axes, grid.concurrencies(tag, protocol.name))
        _gain_axis(axes, min(1.0, *ends), max(1.0, *ends), len(rows))
        for line in lines:
            _draw_line(axes, line, len(grid.on_arms))
        for line in lines:
            if (found := line.crossover) is not None:
                _draw_crossover(axes, _row_at(rows.index(line.place), len(rows)), line, found)
        if sheet.is_first_column(index):
            axes.set_ylabel("speculation gain, on / off (×)")
    sheet.legend(_handles(grid, shown))
    return sheet.png()


def _lines(grid: Grid, protocol: Protocol, tag: str) -> tuple[Line, ...]:
    rows = [Line(place, grid.gains_row(tag, protocol, arm)) for place, arm in enumerate(grid.on_arms)]
    return tuple(row for row in rows if any(known(gain.speculation_gain.value) for gain in row.gains))


def _gain_axis(axes: Axes, low: float, high: float, num_rows: int) -> None:
    """A logarithmic axis, equal factors equally high, with room at its foot for the crossovers' rows."""
    foot, head = _row_at(-1, num_rows) + 0.03, 0.05
    octaves = max(log(high / low), 0.1) / (1 - foot - head)
    axes.set_yscale("log")
    span = next(least for least in TICKS if high / low >= least)
    ticks = [tick for tick in TICKS[span] if low / 1.02 <= tick <= high * 1.02]
    axes.set_yticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(low * exp(-foot * octaves), high * exp(head * octaves))


def _draw_line(axes: Axes, line: Line, num_arms: int) -> None:
    shift = 2.0 ** ((line.place - (num_arms - 1) / 2) * min(DODGE, SPREAD / num_arms))
    xs = [gain.concurrency * shift for gain in line.gains]
    look = arm_look(line.place)
    line_with_bars(
        axes, xs, [gain.speculation_gain for gain in line.gains], line.gains, linewidth=1.5, markersize=5, **look
    )


def _row_at(row: int, num_rows: int) -> float:
    """How high the row of a crossover lies, the first on top, as a share of the panel."""
    return 0.02 + ROW_IN * (num_rows - 1 - row) / (PANEL_IN + ROW_IN * num_rows - WORDS_IN)


def _draw_crossover(axes: Axes, y: float, line: Line, found: Crossing) -> None:
    """N* on the line and, in a row of its own at the panel's foot, on its interval."""
    left, right = axes.get_xlim()
    feet = axes.get_xaxis_transform()  # x in streams, y as a share of the panel
    look = {**arm_look(line.place), "linestyle": "none"}
    colour = look["color"]
    if found.low is not None and found.high is not None:
        low, high = max(found.low, left * 1.03), min(found.high, right / 1.03)
        axes.plot([low, high], [y, y], color=colour, linewidth=2.2, alpha=0.55, transform=feet, zorder=3)
        for end, outside, arrow in ((low, not found.low, "<"), (high, not isfinite(found.high), ">")):
            axes.plot([end], [y], arrow if outside else "|", color=colour, markersize=6, transform=feet, zorder=3)
    axes.plot([found.streams], [y], markersize=6, transform=feet, zorder=4, clip_on=False, **look)
    axes.plot([found.streams], [1], markeredgecolor=INK, markersize=5.5, zorder=5, **look)
    place = log(found.streams / left) / log(right / left)
    align = "left" if place < 0.25 else "right" if place > 0.75 else "center"
    text = f"N* {found.words([gain.concurrency for gain in line.gains])}"
    offset = {"left": -4, "center": 0, "right": 4}[align]
    axes.annotate(
        text, (found.streams, y), (offset, 4), xycoords=feet, textcoords="offset points", ha=align, va="bottom",
        fontsize=7.5, color=colour,
    )  # fmt: skip


def _handles(grid: Grid, shown: Mapping[str, Sequence[Line]]) -> list[Line2D]:
    from matplotlib.lines import Line2D

    bounds = bounds_of(grid)
    places = sorted({line.place for lines in shown.values() for line in lines})
    arms = []
    for place in places:
        arm = grid.on_arms[place]
        words = label(grid.methods[arm], instead=f"arm {place + 1}")
        arms.append(Line2D([], [], label=f"{words}, {bounds[arm]}" if arm in bounds else words, **arm_look(place)))
    handles = [*arms, Line2D([], [], color=INK, linewidth=1.1, label="1: no difference")]
    if any(line.crossover for lines in shown.values() for line in lines):
        handles.append(Line2D([], [], color=SOFT, marker="o", linewidth=2.2, label="N*: falls through 1"))
    if any(not gain.valid for lines in shown.values() for line in lines for gain in line.gains):
        handles.append(hollow_handle())
    return handles
