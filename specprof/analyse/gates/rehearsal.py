"""Gate 15: a rehearsal goes the way of a measurement, and none of its numbers is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specprof.analyse.gates.found import invalid
from specprof.analyse.results import GateFinding


def rehearsed(environment: Mapping[str, Any]) -> dict[int, GateFinding]:
    """The finding of every launch that only rehearsed its pipeline, by launch number."""
    told = environment.get("launches") or {}
    stamps = {int(number): (facts.get("extra") or {}).get("rehearsal") for number, facts in told.items()}
    return {number: _finding(str(stamp)) for number, stamp in stamps.items() if stamp}


def _finding(stamp: str) -> GateFinding:
    return invalid(
        15,
        "rehearsal",
        f"{stamp}; its stages share the cores of a CPU, one batch at a time",
        "Measure on GPUs; a rehearsal shows that the procedure works and that the texts stay the same.",
    )
