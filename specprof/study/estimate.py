"""What a plan will cost before anything starts, under assumptions that are named with the answer."""

from __future__ import annotations

from dataclasses import dataclass

from specprof.records import Cell, Launch, Phase, phase_due
from specprof.study.attach import AttachEngine
from specprof.study.config import Study
from specprof.study.engines import SimEngine

CELL_S = 0.5  # warm-up, counters, sealing
BATCHING = 0.9  # N streams write N**0.9 times as fast as one
PROMPT_TOKENS = 120  # of a prompt whose length nobody has counted yet


@dataclass(frozen=True, slots=True)
class Rates:
    """Assumed speeds of one stream, tokens per second of the measuring clock, and of an engine's start."""

    decode: float = 20.0
    prefill: float = 600.0
    start_s: float = 45.0
    time_scale: float = 1.0  # seconds of a schedule that pass in one of ours: a simulated engine's clock


def assumed_rates(study: Study) -> Rates:
    """What is assumed of an engine nobody has measured yet: the CPU demo's speeds, or a simulated GPU's."""
    if isinstance(study.engine, SimEngine):
        scale = study.engine.time_scale
        return Rates(decode=60 * scale, prefill=3000 * scale, start_s=1.0, time_scale=scale)
    if isinstance(study.engine, AttachEngine):
        return Rates(start_s=1.0)  # it runs already
    return Rates()


def num_requests(cell: Cell) -> int:
    """How many requests a cell sends, without what only keeps its load up at the end."""
    if cell.arrivals is None:
        return len(cell.prompt_ids)
    return sum(phase_due(cell.arrivals, due_s) is not Phase.FILL for due_s in cell.arrivals.due_s)


def cell_seconds(cell: Cell, rates: Rates) -> float:
    """Expected seconds to measure a cell: natural texts are assumed to use all they may, and a rung to be climbed."""
    if cell.arrivals is not None:
        scheduled_s = (cell.arrivals.warmup_s + cell.arrivals.duration_s) / rates.time_scale
        return CELL_S + scheduled_s + cell.max_tokens / rates.decode
    requests = len(cell.prompt_ids)
    streams = min(cell.concurrency, requests)
    reading = requests * PROMPT_TOKENS / rates.prefill
    writing = requests * cell.max_tokens / (rates.decode * streams**BATCHING) if cell.max_tokens > 1 else 0.0
    warmup = cell.warmup_tokens / rates.decode if cell.num_warmup else 0.0
    return CELL_S + reading + writing + warmup


def launch_seconds(launch: Launch, rates: Rates) -> float:
    """Expected seconds of a launch, its start included."""
    return rates.start_s + sum(cell_seconds(cell, rates) for cell in launch.cells)
