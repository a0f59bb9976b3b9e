"""Sealed cells, sorted into what a published figure speaks of: one content, protocol, arm and N over all its blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from specprof.analyse import comparisons, stats
from specprof.analyse.frames import CellFrame
from specprof.analyse.results import Figure
from specprof.analyse.stats import Array
from specprof.records import Cell, Role
from specprof.store import CellData

NOTHING = Figure(None)


@dataclass(frozen=True)
class Series:
    """All blocks of one (tag, protocol, arm, N): the unit a published figure speaks of."""

    frames: tuple[CellFrame, ...]

    @property
    def cell(self) -> Cell:
        """Any of its cells: they differ by block alone."""
        return self.frames[0].cell

    def pooled(self, column: str) -> Array:
        """A request column over all blocks, missing values left out."""
        values = np.concatenate([frame.requests[column].to_numpy(dtype=float) for frame in self.frames])
        return values[np.isfinite(values)]

    def by_prompt(self, column: str) -> dict[str, float]:
        """Sum of a request column per prompt over all blocks: the clusters of an acceptance interval."""
        sums: dict[str, float] = defaultdict(float)
        for frame in self.frames:
            for name, value in zip(frame.requests["prompt_id"], frame.requests[column], strict=True):
                sums[name] += 0.0 if value != value else float(value)
        return sums

    def clusters(self, numerator: str, denominator: str) -> tuple[Array, Array]:
        """Two request columns summed per prompt, in the same order."""
        over, under = self.by_prompt(numerator), self.by_prompt(denominator)
        names = list(over)
        return np.array([over[n] for n in names]), np.array([under[n] for n in names])

    def log_throughputs(self) -> dict[int, float]:
        """ln X by block."""
        return {f.cell.block: log(f.throughput) for f in self.frames if f.throughput == f.throughput}

    def log_by_prompt(self, column: str) -> dict[str, float]:
        """Mean ln of a positive request column per prompt, over blocks."""
        values: dict[str, list[float]] = defaultdict(list)
        for frame in self.frames:
            for name, value in zip(frame.requests["prompt_id"], frame.requests[column], strict=True):
                if value > 0:
                    values[name].append(log(value))
        return {name: float(np.mean(logs)) for name, logs in values.items()}

    def log_prompt_rates(self) -> dict[str, float]:
        """ln(output tokens / latency) of each prompt, averaged over blocks: its share in ln X, up to a constant."""
        return self.log_by_prompt("rate")


Key = tuple[str, str, str, int]  # tag, protocol, arm, concurrency


class Evidence:
    """The cells of a study, sorted by what they are for."""

    def __init__(self, cells: Iterable[CellData]) -> None:
        self.frames = [CellFrame(data) for data in cells]
        grouped: dict[Key, list[CellFrame]] = defaultdict(list)
        for frame in self.frames:
            cell = frame.cell
            if cell.role is not Role.SENTINEL:
                grouped[cell.tag, cell.protocol, cell.arm, cell.concurrency].append(frame)
        self.series = {key: Series(tuple(found)) for key, found in sorted(grouped.items(), key=lambda item: item[0])}
        self.drift = comparisons.drift(self.frames)

    def series_of(self, role: Role) -> Iterator[tuple[Key, Series]]:
        """Series of one role."""
        return ((key, series) for key, series in self.series.items() if series.cell.role is role)

    @property
    def off_arm(self) -> str | None:
        """The arm without speculation: what every gain is measured against."""
        return next((f.cell.arm for f in self.frames if f.cell.speculative_config is None), None)


def contrast(terms: Sequence[tuple[Series | None, int]], confidence: float = stats.CONFIDENCE) -> Figure:
    """exp of a weighted sum of ln X over cells: per block for launches, per prompt for prompts."""
    known = [(series, weight) for series, weight in terms if series is not None]
    if len(known) < len(terms):
        return NOTHING
    if all(a[0] is b[0] for a, b in zip(known[::2], known[1::2], strict=False)):
        return Figure(1.0, 1.0, 1.0)  # a cell against itself
    per_block = _combined([(series.log_throughputs(), weight) for series, weight in known])
    per_prompt = _combined([(series.log_prompt_rates(), weight) for series, weight in known])
    if not per_block:
        return NOTHING
    return stats.two_way(per_block, np.array(per_prompt), confidence)


def _combined(terms: Sequence[tuple[Mapping[Any, float], int]]) -> list[float]:
    """The weighted sum over the units (blocks, prompts) that every term has."""
    shared = [unit for unit in terms[0][0] if all(unit in values for values, _ in terms)]
    return [sum(values[unit] * weight for values, weight in terms) for unit in shared]
