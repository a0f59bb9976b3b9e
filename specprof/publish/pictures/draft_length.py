"""Throughput against draft length, one line per number of streams, with the best length K* of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specprof.analyse.results import CellFigures
from specprof.publish.advice import step_of
from specprof.publish.decisions import Action, action, candidates, is_first_look
from specprof.publish.grid import Grid, Protocol
from specprof.publish.numbers import known
from specprof.publish.pictures.style import (
    INK,
    Sheet,
    doubling_ticks,
    hollow_handle,
    line_with_bars,
    ring_handle,
    streams_look,
    tag_label,
    upper,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

TITLE = "Draft length against throughput"
CAPTION = (
    "Every line is one number of streams; K = 0 is speculation off. Bars are 95% intervals. A ring marks K*: the "
    "fastest of the draft lengths whose gain over off is worth having, or 0 where none is. Dotted ring: the fastest "
    "measured, but undecided or seen in one launch. Neighbours whose bars overlap may do as well."
)
LENGTH = "num_speculative_tokens"
RING = {True: "-", False: (0, (1, 1.2))}  # settled or not


@dataclass(frozen=True, slots=True)
class Lengths:
    """Arms that differ in draft length alone, by length K; the arm without speculation is K = 0."""

    name: str  # of the first of them
    arms: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class BestLength:
    """K* at one number of streams, and whether the intervals say so."""

    length: int
    settled: bool


def families(grid: Grid) -> tuple[Lengths, ...]:
    """The groups of arms in which only the draft length differs, at least two lengths each."""
    found: dict[str, dict[int, str]] = {}
    for arm in candidates(grid):
        config: Mapping[str, Any] = grid.figures.arms.get(arm) or {}
        length = config.get(LENGTH)
        if isinstance(length, int):
            rest = json.dumps({key: item for key, item in config.items() if key != LENGTH}, sort_keys=True)
            found.setdefault(rest, {}).setdefault(length, arm)
    off = {} if grid.off_arm is None else {0: grid.off_arm}
    return tuple(
        Lengths(next(iter(arms.values())), {**off, **dict(sorted(arms.items()))})
        for arms in found.values()
        if len(arms) > 1
    )


def best_length(grid: Grid, protocol: Protocol, tag: str, concurrency: int, lengths: Lengths) -> BestLength | None:
    """K*: the fastest length that is on, 0 if all are off, else the fastest, undecided; each by the policy's interval.

    None where no length has a gain that is fit.
    """
    told = {length: grid.gain(tag, protocol.name, arm, concurrency) for length, arm in lengths.arms.items() if length}
    found = {length: step_of(grid, gain).gain for length, gain in told.items() if gain is not None}
    fit = {length: gain for length, gain in found.items() if action(gain) is not Action.UNFIT}
    speeds = {length: gain.throughput_on_tok_s.value or 0.0 for length, gain in fit.items()}
    if not fit:
        return None
    repeated = not any(is_first_look(gain) for gain in fit.values())
    on = [length for length, gain in fit.items() if action(gain) is Action.ON]
    if on:
        return BestLength(max(on, key=speeds.__getitem__), repeated)
    if all(action(gain) is Action.OFF for gain in fit.values()):
        return BestLength(0, repeated)
    speeds[0] = next(iter(fit.values())).throughput_off_tok_s.value or 0.0
    return BestLength(max(speeds, key=speeds.__getitem__), settled=False)


def draw(grid: Grid, protocol: Protocol, lengths: Lengths) -> bytes | None:
    """The picture as PNG, None if none of these arms was measured under the protocol."""
    tags = [tag for tag in grid.tags_of(protocol) if len(_measured(grid, protocol, tag, lengths)) > 1]
    cells = [cell for tag in tags for arm in lengths.arms.values() for cell in grid.row(tag, protocol, arm)]
    speeds = [speed for cell in cells if known(speed := cell.throughput_tok_s.value) and speed > 0]
    if not speeds:
        return None
    streams = grid.concurrencies(protocol=protocol.name)
    sheet = Sheet(len(tags), panel_height=3.6)
    for index, tag in enumerate(tags):
        axes = sheet.panel(index)
        axes.set_title(tag_label(grid.tags, tag))
        for depth, concurrency in enumerate(streams):
            _draw_line(axes, grid, protocol, tag, concurrency, lengths, streams_look(depth, len(streams)))
        axes.set_xticks(list(lengths.arms), ["off" if length == 0 else str(length) for length in lengths.arms])
        axes.set_xlabel("draft length K, tokens")
        axes.margins(x=0.1)
        doubling_ticks(axes, min(speeds) / 1.35, max(speeds) * 1.7)
        if sheet.is_first_column(index):
            axes.set_ylabel("aggregate throughput, tok/s")
    sheet.legend(_handles(streams))
    return sheet.png()


def _measured(grid: Grid, protocol: Protocol, tag: str, lengths: Lengths) -> dict[int, tuple[CellFigures, ...]]:
    """The cells of each speculating length, the lengths without any left out."""
    rows = {length: grid.row(tag, protocol, arm) for length, arm in lengths.arms.items() if length}
    return {length: row for length, row in rows.items() if row}


def _draw_line(
    axes: Axes,
    grid: Grid,
    protocol: Protocol,
    tag: str,
    concurrency: int,
    lengths: Lengths,
    look: dict[str, Any],
) -> None:
    found = {k: grid.cell(tag, protocol.name, arm, concurrency) for k, arm in lengths.arms.items()}
    cells = {length: cell for length, cell in found.items() if cell is not None}
    if not cells:
        return
    figures = [cell.throughput_tok_s for cell in cells.values()]
    line_with_bars(axes, list(cells), figures, list(cells.values()), linewidth=1.4, **look)
    best = best_length(grid, protocol, tag, concurrency, lengths)
    if best is not None and best.length in cells:
        _mark_best(axes, best, cells[best.length])


def _mark_best(axes: Axes, best: BestLength, cell: CellFigures) -> None:
    value = cell.throughput_tok_s.value
    if not known(value):
        return
    axes.scatter(
        [best.length], [value], s=150, facecolors="none", edgecolors=INK, linewidths=1.3, zorder=6,
        linestyles=[RING[best.settled]],
    )  # fmt: skip
    axes.annotate(
        f"K*={best.length}" if best.settled else f"K*={best.length}?",
        (best.length, max(value, upper(cell.throughput_tok_s))), (0, 6), textcoords="offset points",
        ha="center", va="bottom", fontsize=8, color=INK,
    )  # fmt: skip


def _handles(streams: Sequence[int]) -> list[Line2D]:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], label=f"N={n}", **streams_look(depth, len(streams))) for depth, n in enumerate(streams)]
    return [*lines, ring_handle("K*: fastest worth having (? undecided)"), hollow_handle()]
