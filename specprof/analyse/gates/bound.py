"""Gate 12: throughput above what reading the weights allows (METHOD 9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from specprof.analyse.frames import CellFrame
from specprof.analyse.gates.found import invalid
from specprof.analyse.hardware import served_on
from specprof.analyse.results import GateFinding

TOLERANCE = 1.05


def reading_time_s(environment: Mapping[str, Any], launch: int) -> float | None:
    """Seconds in which one launch's machine reads the model's weights once; None where model or machine is unknown."""
    read = environment.get("launches", {}).get(str(launch), {}).get("extra", {}).get("step_bytes")
    machine = served_on(environment, launch)
    if machine is None or not isinstance(read, int) or read <= 0:
        return None
    return read / machine.bandwidth


def above_roofline(frame: CellFrame, reading_s: float | None) -> Iterator[GateFinding]:
    """Every step reads the weights once and gives each stream its tokens: more tokens per second cannot be."""
    steps = float(np.nansum(frame.requests.engine_steps))
    if not reading_s or not steps:
        return
    streams = min(frame.cell.concurrency, len(frame.requests))
    tokens_per_step = float(frame.requests.output_tokens.sum()) / steps
    bound = streams * tokens_per_step / reading_s
    if frame.throughput > TOLERANCE * bound:
        yield invalid(
            12,
            "above the roofline",
            f"{frame.throughput:.1f} tok/s, but reading the weights once a step allows {bound:.1f}",
            "Check the model, the GPU named and the token counts: one of the three is not what it seems.",
        )
