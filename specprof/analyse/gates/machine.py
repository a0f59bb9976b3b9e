"""Gate 6 of the hardware: clocks that fell, cards that held themselves back, links narrower than they can be.

Readings of an idle card say nothing: clocks and links go down when there is nothing to do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from specprof.analyse.frames import CellFrame
from specprof.analyse.gates.found import caution
from specprof.analyse.results import GateFinding
from specprof.records import GpuReading

MAX_CLOCK_FALL = 0.02  # as for the drift of a sentinel: a step is no faster than the clock
MIN_BUSY_PERCENT = 10
MIN_READINGS = 3  # under load: fewer say nothing about a cell
ORDINARY = frozenset({"software power cap"})  # large cards run at their power limit whenever they work

Cards = Mapping[int, Sequence[GpuReading]]  # by NVML index: readings under load, in time order


def cards_of(environment: Mapping[str, Any], launch: int) -> tuple[Mapping[str, Any], ...]:
    """What one launch said of its GPUs; empty where nobody looked."""
    facts = (environment.get("launches") or {}).get(str(launch)) or {}
    hardware = (facts.get("extra") or {}).get("hardware") or {}
    return tuple(hardware.get("gpus") or ())


def machine_gates(frame: CellFrame, cards: Sequence[Mapping[str, Any]]) -> Iterator[GateFinding]:
    """What one cell's readings show. `cards`: what each GPU and its link can do."""
    links = {card.get("index"): card for card in cards}
    for index, readings in under_load(frame).items():
        yield from _throttled(index, readings)
        yield from _fell(index, readings)
        yield from _narrow(index, readings, links.get(index) or {})


def slower_clocks(frames: Sequence[CellFrame]) -> dict[str, GateFinding]:
    """Cells in which a card ran slower than in the study's fastest cell, by cell key."""
    clocks: dict[int, dict[str, float]] = defaultdict(dict)
    for frame in frames:
        for index, readings in under_load(frame).items():
            told = [one.sm_clock_mhz for one in readings if one.sm_clock_mhz]
            if told:
                clocks[index][frame.cell.key] = float(median(told))
    found: dict[str, GateFinding] = {}
    for index, of_cell in clocks.items():
        fastest = max(of_cell.values())
        for key, clock in of_cell.items():
            if clock < fastest * (1 - MAX_CLOCK_FALL):
                evidence = f"GPU {index} ran at {clock:.0f} MHz, and at {fastest:.0f} in this study's fastest cell"
                found.setdefault(key, _clock(evidence))
    return found


def under_load(frame: CellFrame) -> Cards:
    """The readings of each card that worked, where there are enough of them."""
    found: dict[int, list[GpuReading]] = defaultdict(list)
    for reading in frame.data.hardware:
        for gpu in reading.gpus:
            if gpu.busy_percent is None or gpu.busy_percent >= MIN_BUSY_PERCENT:
                found[gpu.index].append(gpu)
    return {index: readings for index, readings in found.items() if len(readings) >= MIN_READINGS}


def _throttled(index: int, readings: Sequence[GpuReading]) -> Iterator[GateFinding]:
    held = [one for one in readings if set(one.throttled) - ORDINARY]
    if not held:
        return
    reasons = sorted({why for one in held for why in one.throttled} - ORDINARY)
    hottest = max((one.temperature_c for one in held if one.temperature_c is not None), default=None)
    heat = f", at up to {hottest:.0f} °C" if hottest is not None else ""
    yield caution(
        6,
        "throttled",
        f"GPU {index} held its clock down in {len(held)} of {len(readings)} readings: {', '.join(reasons)}{heat}",
        "Cool the card, or limit its power and clock to what it can keep, and measure again.",
    )


def _fell(index: int, readings: Sequence[GpuReading]) -> Iterator[GateFinding]:
    clocks = [one.sm_clock_mhz for one in readings if one.sm_clock_mhz]
    third = len(clocks) // 3
    if not third:
        return
    first, last = median(clocks[:third]), median(clocks[-third:])
    if last < first * (1 - MAX_CLOCK_FALL):
        yield _clock(f"GPU {index} fell from {first:.0f} to {last:.0f} MHz within the cell")


def _clock(evidence: str) -> GateFinding:
    remedy = "Fix the clock (nvidia-smi --lock-gpu-clocks), or let the card warm up before the first cell."
    return caution(6, "clock", evidence, remedy)


def _narrow(index: int, readings: Sequence[GpuReading], card: Mapping[str, Any]) -> Iterator[GateFinding]:
    """The best the link did under load, against what card and slot can do together."""
    told = (
        ("generation", "max_pcie_generation", [one.pcie_generation for one in readings]),
        ("width", "max_pcie_width", [one.pcie_width for one in readings]),
    )
    for what, name, seen in told:
        best, most = max((value for value in seen if value), default=None), card.get(name)
        if best is not None and isinstance(most, int) and best < most:
            yield caution(
                6,
                "PCIe link",
                f"GPU {index} ran on PCIe {what} {best} under load, where card and slot can do {most}",
                "Seat the card again or try another slot; hand-overs between pipeline stages go over this link.",
            )
