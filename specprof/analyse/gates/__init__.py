"""Gates, METHOD 7: what makes a number unfit. Each gate looks at one cell and answers with evidence and a remedy.

`invalid` forbids a headline; `caution` must be read beside the number. Where a gate rests on a sample, it answers only
what the sample can tell from chance: a study asks hundreds of such questions, and an alarm nobody believes is no gate.
Comparisons between cells (gates 5, 6, 8, 10 and 12) are in `comparisons`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specprof.analyse.frames import CellFrame
from specprof.analyse.gates.bound import above_roofline, reading_time_s
from specprof.analyse.gates.counts import consistent, counters, impossible, inactive
from specprof.analyse.gates.load import (
    ceiling_of,
    client,
    client_ceiling,
    prefix_cache,
    queueing,
    rate_sum,
    reading,
    short_stops,
)
from specprof.analyse.gates.machine import cards_of, machine_gates
from specprof.analyse.gates.pace import warm_up
from specprof.analyse.gates.rehearsal import rehearsed
from specprof.analyse.gates.texts import failures, filler, lengths, looping
from specprof.analyse.gates.workers import workers
from specprof.analyse.results import GateFinding, Loops

__all__ = [
    "UNLIMITED",
    "Limits",
    "cell_gates",
    "interference_gates",
    "limits",
    "mixed_gates",
    "open_gates",
    "prefill_gates",
    "rehearsed",
]


@dataclass(frozen=True, slots=True)
class Limits:
    """What client and machine can do at most during one launch; None where nobody knows.

    `client_chunks_per_s`: gate 11. `weights_s`: seconds in which the weights are read once, gate 12. `cards`: what the
    launch said of its GPUs (`measure.hardware`), gate 6.
    """

    client_chunks_per_s: float | None = None
    weights_s: float | None = None
    cards: tuple[Mapping[str, Any], ...] = ()


UNLIMITED = Limits()

_OF_ONE_CONTENT = (2, 3, 4, 7, 14)


def limits(environment: Mapping[str, Any], launch: int) -> Limits:
    """The limits of one launch, from a study's environment."""
    return Limits(ceiling_of(environment, launch), reading_time_s(environment, launch), cards_of(environment, launch))


def cell_gates(frame: CellFrame, loops: Loops | None, at_most: Limits = UNLIMITED) -> Iterator[GateFinding]:
    """Every gate one cell can fail by itself."""
    yield from failures(frame)
    yield from workers(frame)
    if frame.empty:
        return
    yield from queueing(frame)
    yield from short_stops(frame)
    yield from reading(frame)
    yield from rate_sum(frame)
    yield from prefix_cache(frame)
    yield from warm_up(frame)
    yield from looping(frame.cell, len(frame.cell.prompt_ids), loops)
    yield from counters(frame)
    yield from lengths(frame)
    yield from _client_and_machine(frame, at_most)
    yield from impossible(frame)
    yield from above_roofline(frame, at_most.weights_s)
    yield from inactive(frame)
    yield from filler(frame)


def mixed_gates(frame: CellFrame, at_most: Limits = UNLIMITED) -> Iterator[GateFinding]:
    """The gates of a cell that mixes contents: those of the machine and the client.

    Gates of a content are asked of it alone, and gate 4 speaks of an aggregate that a mix has not.
    """
    return (found for found in cell_gates(frame, None, at_most) if found.gate not in _OF_ONE_CONTENT)


def prefill_gates(frame: CellFrame, at_most: Limits = UNLIMITED) -> Iterator[GateFinding]:
    """The gates of a reading speed: whether all prompts were read, by this engine, for nobody else, and timed well."""
    yield from failures(frame)
    yield from workers(frame)
    if frame.empty:
        return
    yield from prefix_cache(frame)
    yield from counters(frame)
    yield from _client_and_machine(frame, at_most)


def interference_gates(frame: CellFrame, decoders: CellFrame, at_most: Limits = UNLIMITED) -> Iterator[GateFinding]:
    """The gates of a newcomer among decoders: those of reading, and of who decodes. `decoders`: the cell without it."""
    yield from prefill_gates(frame, at_most)
    if frame.empty or decoders.empty:
        return
    yield from lengths(decoders)
    yield from inactive(frame)


def open_gates(frame: CellFrame, at_most: Limits = UNLIMITED) -> Iterator[GateFinding]:
    """The gates of a closed loop that also hold for an open one; `analyse.service.findings` has its own beside them.

    Not those that ask how much of N streams' time was decoding (1 to 4), nor of one pace: what comes by the clock
    queues, reads and waits as the load has it.
    """
    yield from workers(frame)
    if frame.empty:
        return
    yield from prefix_cache(frame)
    yield from consistent(frame)
    yield from _client_and_machine(frame, at_most)
    yield from impossible(frame)
    yield from inactive(frame)
    yield from filler(frame)


def _client_and_machine(frame: CellFrame, at_most: Limits) -> Iterator[GateFinding]:
    """What every cell asks, whatever it measures: was the client able, and were the cards steady."""
    yield from client(frame)
    yield from client_ceiling(frame, at_most.client_chunks_per_s)
    yield from machine_gates(frame, at_most.cards)
