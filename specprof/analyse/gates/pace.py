"""Gate 6 inside a cell: did the machine keep one pace, or was it still warming up (METHOD 5)?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specprof.analyse.frames import CellFrame
from specprof.analyse.gates.found import caution
from specprof.analyse.results import GateFinding
from specprof.analyse.stats import Array
from specprof.analyse.steady import TOLERANCE, step_means, warmup_length

NUM_PIECES = 24  # so that half of them, the longest warm-up the rule can find, still leave enough to be steady
MIN_STEPS_PER_PIECE = 4  # pieces of fewer steps are as restless as single steps, and their scatter is luck
SIGNIFICANCE = 1e-5  # of one cell: a study has hundreds, and a real warm-up is far beyond doubt


def warm_up(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 6: the steps of a cell, in time order, are equal pieces of work and should take equal time."""
    pieces = equal_pieces(frame)
    if not len(pieces):
        return
    start = warmup_length(pieces, SIGNIFICANCE)
    third = len(pieces) // 3
    if start is None:  # no part of the cell is steady: compare its ends
        yield from _changed(float(pieces[-third:].mean() / pieces[:third].mean()) - 1, "the first third")
    elif start:
        yield from _changed(
            float(pieces[start:].mean() / pieces[:start].mean()) - 1, f"the first {start / len(pieces):.0%}"
        )


def _changed(change: float, beginning: str) -> Iterator[GateFinding]:
    if change < -TOLERANCE:
        yield caution(
            6,
            "warm-up",
            f"{beginning} of the steps took {1 / (1 + change) - 1:.0%} longer than those at the end of the cell",
            "Send more or longer warm-up requests (warmup_tokens), or measure longer.",
        )
    elif change > TOLERANCE:
        yield caution(
            6,
            "slowing down",
            f"steps took {change:.0%} longer at the end of the cell than in {beginning}",
            "Let the machine settle and keep it quiet; with long texts, steps also grow with the context.",
        )


def equal_pieces(frame: CellFrame) -> Array:
    """Mean full-load step of each of `NUM_PIECES` stretches of equal length, in time order; empty for a short cell."""
    steps = step_means(frame)
    if len(steps) < NUM_PIECES * MIN_STEPS_PER_PIECE:
        return np.empty(0)
    return np.array([float(piece.mean()) for piece in np.array_split(steps, NUM_PIECES)])
