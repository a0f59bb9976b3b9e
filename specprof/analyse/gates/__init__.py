"""Gates, METHOD 7: what makes a number unfit. Each gate looks at one cell and answers with evidence and a remedy.

`invalid` forbids a headline; `caution` must be read beside the number. Where a gate rests on a sample, it answers only
what the sample can tell from chance: a study asks hundreds of such questions, and an alarm nobody believes is no gate.
Comparisons between cells (gates 5, 6, 8, 10 and 12) are in `comparisons`.
"""

from __future__ import annotations

from collections.abc import Iterator

from specprof.analyse.frames import CellFrame
from specprof.analyse.gates.counts import counters, impossible, inactive
from specprof.analyse.gates.load import client, prefix_cache, queueing, rate_sum, reading, short_stops
from specprof.analyse.gates.pace import warm_up
from specprof.analyse.gates.texts import failures, filler, lengths, looping
from specprof.analyse.results import GateFinding, Loops


def cell_gates(frame: CellFrame, loops: Loops | None) -> Iterator[GateFinding]:
    """Every gate one cell can fail by itself."""
    yield from failures(frame)
    if frame.requests.empty:
        return
    yield from queueing(frame)
    yield from short_stops(frame)
    yield from reading(frame)
    yield from rate_sum(frame)
    yield from prefix_cache(frame)
    yield from warm_up(frame)
    yield from looping(frame, loops)
    yield from counters(frame)
    yield from lengths(frame)
    yield from client(frame)
    yield from impossible(frame)
    yield from inactive(frame)
    yield from filler(frame)
