"""From one stream without speculation to many with it, in three factors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from specprof.analyse.results import GainFigures, GateFinding
from specprof.publish.grid import Grid, Protocol
from specprof.publish.numbers import known
from specprof.publish.pictures.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PAPER,
    RED,
    SOFT,
    Sheet,
    doubling_ticks,
    mark_unfit,
    tag_label,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

TITLE = "What batching gave, what speculation gave"
CAPTION = (
    "Every group starts at one stream without speculation (1×). Blue is what batching gives by itself, green what "
    "speculation gives a single stream. Were the two independent, throughput would reach the top of the green "
    "bar. The last bar leads from there to what was measured (black line, with the 95% interval of the "
    "interaction): its factor is the interaction. The axis doubles at every step, so bars of equal height are "
    "equal factors."
)
BATCHING, SPECULATION, LOST, WON = (BLUE, ""), (GREEN, "///"), (RED, "\\\\\\"), (ORANGE, "...")
Align = Literal["left", "center", "right"]
ALL_LEVELS = 4  # start, after batching, if both multiplied, as measured
SAME = 1e-6  # a factor this close to one is one by definition
WIDTH = 0.28  # of a bar, where groups are 1 apart


def draw(grid: Grid, protocol: Protocol, arm: str) -> bytes | None:
    """The picture as PNG, None if nothing was compared."""
    shown = {tag: gains for tag in grid.tags_of(protocol) if (gains := grid.gains_row(tag, protocol, arm))}
    falls = {tag: [_levels(gains[0], gain) for gain in gains] for tag, gains in shown.items()}
    heights = [level for rows in falls.values() for levels in rows for level in levels]
    if not heights:
        return None
    sheet = Sheet(len(shown), panel_height=3.4)
    for index, (tag, gains) in enumerate(shown.items()):
        axes = sheet.panel(index)
        axes.set_title(tag_label(grid.tags, tag))
        for place, (gain, levels) in enumerate(zip(gains, falls[tag], strict=True)):
            _draw_waterfall(axes, place, levels, gain, _forbidding(grid, gain))
        _finish(axes, gains)
        doubling_ticks(axes, min(1.0, *heights) / 1.35, max(2.0, *heights) * 1.5, unit="×")
        if sheet.is_first_column(index):
            axes.set_ylabel("throughput, × one stream without speculation")
    sheet.legend(_handles(falls.values()))
    return sheet.png()


def _levels(single: GainFigures, gain: GainFigures) -> tuple[float, ...]:
    """Start, after batching, if both multiplied, as measured; as far as it is known."""
    levels = [1.0]
    for factor in (gain.batching_gain_off.value, single.speculation_gain.value, gain.interaction.value):
        if not known(factor) or factor <= 0:
            break
        levels.append(levels[-1] * factor)
    return tuple(levels)


def _forbidding(grid: Grid, gain: GainFigures) -> list[GateFinding] | None:
    """The gates of the cells behind an unfit gain; None if it is fit."""
    parts = grid.parts(gain)
    if gain.valid and all(cell.valid for cell in parts):
        return None
    return [gate for cell in parts for gate in cell.gates]


def _draw_waterfall(
    axes: Axes, place: int, levels: tuple[float, ...], gain: GainFigures, forbidding: list[GateFinding] | None
) -> None:
    together = LOST if len(levels) == ALL_LEVELS and levels[3] < levels[2] else WON
    for step, ((start, end), look) in enumerate(zip(pairwise(levels), (BATCHING, SPECULATION, together), strict=False)):
        if abs(end / start - 1) > SAME:
            _draw_step(axes, place + (step - 1) * WIDTH, (start, end), look, fit=forbidding is None)
    if len(levels) == ALL_LEVELS:
        _draw_measured(axes, place + WIDTH, levels[2], gain)
    if forbidding is not None:
        mark_unfit(axes, place, max(levels) * 1.16, forbidding)


def _draw_step(axes: Axes, x: float, span: tuple[float, float], look: tuple[str, str], *, fit: bool) -> None:
    """One factor as a bar between two levels, its size written at the end away from the others."""
    colour, hatch = look
    face, edge = (colour, PAPER) if fit else (PAPER, colour)
    start, end = span
    axes.bar(x, end - start, WIDTH, bottom=start, color=face, edgecolor=edge, hatch=hatch, linewidth=0.9, zorder=2)
    if look == BATCHING:
        _write(axes, f"{end / start:.1f}×", (x + WIDTH / 2, max(span)), 2, "right")
    elif look == SPECULATION:
        _write(axes, f"{end / start:.1f}×", (x, max(span)), 2, "center")


def _write(axes: Axes, text: str, at: tuple[float, float], lift: float, align: Align) -> None:
    """A factor above (lift > 0) or below its bar."""
    va: Literal["bottom", "top"] = "bottom" if lift > 0 else "top"
    axes.annotate(text, at, (0, lift), textcoords="offset points", ha=align, va=va, fontsize=7.5)


def _draw_measured(axes: Axes, x: float, product: float, gain: GainFigures) -> None:
    """Where throughput really ended, with the interaction and its interval."""
    factor, low, high = gain.interaction.value, gain.interaction.low, gain.interaction.high
    if not known(factor):
        return
    end = product * factor
    axes.plot([x - WIDTH / 2, x + WIDTH / 2], [end, end], color=INK, linewidth=2.4, solid_capstyle="butt", zorder=4)
    bottom = end
    if known(low) and known(high) and 0 < low < high:
        axes.plot([x, x], [product * low, product * high], color=INK, linewidth=1.1, zorder=4)
        bottom = product * low
    if abs(factor - 1) > SAME:
        _write(axes, f"{factor:.2f}×", (x - WIDTH / 2, bottom), -3, "left")


def _finish(axes: Axes, gains: Sequence[GainFigures]) -> None:
    axes.axhline(1, color=SOFT, linewidth=0.9)
    axes.set_xticks(range(len(gains)), [str(gain.concurrency) for gain in gains])
    axes.set_xlim(-0.55, len(gains) - 0.45)
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("concurrent streams N")


def _handles(falls: Iterable[Sequence[tuple[float, ...]]]) -> list[Artist]:
    """What the legend explains: of lost and won, only what occurs."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    ends = [levels[3] / levels[2] - 1 for rows in falls for levels in rows if len(levels) == ALL_LEVELS]
    words = [(BATCHING, "batching alone"), (SPECULATION, "speculation alone (N=1)")]
    if any(end < -SAME for end in ends):
        words.append((LOST, "lost together"))
    if any(end > SAME for end in ends):
        words.append((WON, "won together"))
    bars = [Patch(facecolor=colour, edgecolor=PAPER, hatch=hatch, label=text) for (colour, hatch), text in words]
    return [*bars, Line2D([], [], color=INK, linewidth=2.4, label="measured")]
