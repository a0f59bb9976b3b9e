"""Sealed cells, sorted into what a published figure speaks of: one content, protocol, arm and N over all its blocks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, isnan, log

import numpy as np
import pyarrow as pa

from specprof.analyse import comparisons, ordering, sampled, stats
from specprof.analyse.frames import CellFrame
from specprof.analyse.gates.found import LaunchFindings, on_launch
from specprof.analyse.gates.machine import slower_clocks
from specprof.analyse.prompts import Prompts
from specprof.analyse.results import NOTHING, CellFigures, Figure, GateFinding
from specprof.analyse.stats import Array
from specprof.analyse.steady import Steps, full_load_seconds, relative_noise, step_time_by_load
from specprof.columns import CellData
from specprof.records import Cell, Role


@dataclass(frozen=True)
class Series:
    """All blocks of one (tag, protocol, arm, N): the unit a published figure speaks of."""

    frames: tuple[CellFrame, ...]

    @property
    def cell(self) -> Cell:
        """Any of its cells: they differ by block alone."""
        return self.frames[0].cell

    @cached_property
    def prompts(self) -> Prompts:
        """Whose each request is, block after block."""
        return Prompts.of(np.concatenate([frame.requests.prompt_id for frame in self.frames]))

    def column(self, name: str) -> Array:
        """A request column, block after block; missing values are NaN."""
        values: Array = np.concatenate([getattr(frame.requests, name) for frame in self.frames])
        return values

    def pooled(self, column: str) -> Array:
        """A request column over all blocks, missing values left out."""
        values = self.column(column)
        finite: Array = values[np.isfinite(values)]
        return finite

    def by_prompt(self, column: str) -> dict[str, float]:
        """Sum of a request column per prompt over all blocks: the clusters of an acceptance interval."""
        return dict(zip(self.prompts.names.tolist(), self.sums(column).tolist(), strict=True))

    def clusters(self, numerator: str, denominator: str) -> tuple[Array, Array]:
        """Two request columns summed per prompt, in the same order."""
        return self.sums(numerator), self.sums(denominator)

    def sums(self, column: str) -> Array:
        """Sum of a request column per prompt over all blocks, missing values as 0, in the order of `prompts`."""
        values = self.column(column)
        return self.prompts.sums(np.where(np.isnan(values), 0.0, values))

    def log_throughputs(self) -> dict[int, float]:
        """ln X by block."""
        return {f.cell.block: log(f.throughput) for f in self.frames if not isnan(f.throughput)}

    def log_by_prompt(self, column: str) -> dict[str, float]:
        """Mean ln of a positive request column per prompt, over blocks."""
        return self.prompts.mean_logs(self.column(column))

    def log_by_block(self, column: str) -> dict[int, float]:
        """Mean ln of a positive request column over prompts, by block."""
        values = {frame.cell.block: getattr(frame.requests, column) for frame in self.frames}
        positive = {block: told[told > 0] for block, told in values.items()}
        return {block: float(np.log(told).mean()) for block, told in positive.items() if len(told)}

    @cached_property
    def loop(self) -> ordering.Loop:
        """What each prompt took with every stream writing, and how many tokens it wrote, averaged over blocks."""
        return closed_loop(self, "output_tokens")

    @cached_property
    def full_load(self) -> tuple[dict[str, float], Array]:
        """Seconds each prompt took with every stream writing, over blocks, and the pace with fewer (`steady`)."""
        steps = [Steps.of(frame) for frame in self.frames]
        pace = step_time_by_load(steps, self.cell.concurrency)
        seconds = np.concatenate([full_load_seconds(*pair, pace) for pair in zip(self.frames, steps, strict=True)])
        return {name: exp(mean) for name, mean in self.prompts.mean_logs(seconds).items()}, pace


Key = tuple[str, str, str, int]  # tag, protocol, arm, concurrency


def key_of(cell: Cell | CellFigures) -> Key:
    """What a figure speaks of, whatever the block."""
    return cell.tag, cell.protocol, cell.arm, cell.concurrency


def alike(a: Cell, b: Cell, *names: str) -> bool:
    """Whether two cells say the same under these names, fields of `Cell`."""
    return all(getattr(a, name) == getattr(b, name) for name in names)


class Evidence:
    """The cells of a study, sorted by what they are for. A cell whose every request failed is in no series, nor is an
    open loop, whose throughput is what was offered (`analyse.service`).

    `scores`: sampled texts as the target finds them, by cell key.
    """

    def __init__(self, cells: Iterable[CellData], scores: Mapping[str, pa.Table] | None = None) -> None:
        self.frames = [CellFrame(data) for data in cells]
        grouped: dict[Key, list[CellFrame]] = defaultdict(list)
        for frame in self.frames:
            cell = frame.cell
            if cell.role not in (Role.SENTINEL, Role.OPEN) and not frame.empty:
                grouped[key_of(cell)].append(frame)
        self.series = {key: Series(tuple(found)) for key, found in sorted(grouped.items(), key=lambda item: item[0])}
        self.drift = comparisons.drift(self.frames)
        self.slower_clocks = slower_clocks(self.frames)
        self.sampled = sampled.examine(self.frames, scores or {})

    def series_of(self, role: Role) -> Iterator[tuple[Key, Series]]:
        """Series of one role."""
        return ((key, series) for key, series in self.series.items() if series.cell.role is role)

    @property
    def open_loops(self) -> list[CellFrame]:
        """The cells whose requests came by the clock."""
        return [frame for frame in self.frames if frame.cell.role is Role.OPEN]

    def failed(self, key: Key) -> list[CellFrame]:
        """The cells of a series' key that have nothing but failures."""
        return [frame for frame in self.frames if frame.empty and key_of(frame.cell) == key]

    def around(self, frame: CellFrame, of_launch: LaunchFindings) -> Iterator[GateFinding]:
        """What the rest of its launch, and of the study, say of a cell."""
        yield from on_launch(frame.data.launch, of_launch)
        if (slower := self.slower_clocks.get(frame.cell.key)) is not None:
            yield slower

    @property
    def off_arm(self) -> str | None:
        """The arm without speculation: what every gain is measured against."""
        return next((f.cell.arm for f in self.frames if f.cell.speculative_config is None), None)


@dataclass(frozen=True, slots=True)
class Variation:
    """What the interval of a contrast rests on: the blocks and prompts that all its cells share, and how they vary.

    `launches`, `prompts`: variance that other launches, and another draw of prompts, would bring to the logarithm. None
    where nobody knows: one prompt cannot show how others would differ.
    """

    num_blocks: int
    num_prompts: int = 0
    launches: float = 0.0
    prompts: float | None = 0.0

    def reach(self, confidence: float, *, blocks: int | None = None, prompts: int | None = None) -> float | None:
        """Half the interval of the logarithm; of so many blocks and prompts, if these vary no more than those measured.

        None where nobody knows how prompts vary.
        """
        blocks, prompts = blocks or self.num_blocks, prompts or self.num_prompts
        if self.prompts is None:
            return None
        of_launches = self.launches * self.num_blocks / blocks, blocks - 1
        of_prompts = self.prompts * self.num_prompts / max(prompts, 1), prompts - 1
        error, degrees = stats.pooled_error([of_launches, of_prompts])
        return stats.t_quantile(degrees, confidence) * error if error else 0.0


def contrast(terms: Sequence[tuple[Series | None, int]], confidence: float = stats.CONFIDENCE) -> Figure:
    """exp of a weighted sum of ln X over cells, with launches (blocks) and prompts in its interval."""
    return contrasted(terms, confidence)[0]


def contrasted(
    terms: Sequence[tuple[Series | None, int]], confidence: float = stats.CONFIDENCE
) -> tuple[Figure, Variation]:
    """The same, and what its interval rests on."""
    known = [(series, weight) for series, weight in terms if series is not None]
    if len(known) < len(terms):
        return NOTHING, Variation(0)
    per_block = _by_block([(series.log_throughputs(), weight) for series, weight in known])
    num_prompts = len(set.intersection(*(set(series.loop.seconds) for series, _ in known)))
    if _cancels(known):
        return Figure(1.0, 1.0, 1.0), Variation(len(per_block), num_prompts)
    loops = [(series.loop, weight) for series, weight in known]
    prompts, degrees = ordering.prompt_variance(loops)
    launches, _ = stats.variance_of_mean(np.array(per_block))
    rests_on = Variation(len(per_block), num_prompts, launches, prompts if degrees else None)
    if not per_block:
        return NOTHING, rests_on
    if len(per_block) == 1:
        prompts += ordering.order_variance(loops) + sum(step_noise(series) * w**2 for series, w in known)
    return stats.two_way(per_block, (prompts, degrees), confidence), rests_on


def _cancels(terms: Sequence[tuple[Series, int]]) -> bool:
    """Whether each cell is set against itself, as at N = 1 the gain of batching is: then no chance is involved."""
    weights: Counter[int] = Counter()
    for series, weight in terms:
        weights[id(series)] += weight
    return not any(weights.values())


def _by_block(terms: Sequence[tuple[Mapping[int, float], int]]) -> list[float]:
    """The weighted sum in each block that every term has."""
    shared = [block for block in terms[0][0] if all(block in values for values, _ in terms)]
    return [sum(values[block] * weight for values, weight in terms) for block in shared]


def step_noise(series: Series) -> float:
    """Variance that the engine's uneven steps bring to ln X within one launch.

    With several launches it is part of the spread between them; with one it is the least that would have differed.
    """
    return relative_noise(series.frames[0])[0] ** 2


def closed_loop(series: Series, amount: str) -> ordering.Loop:
    """The series as a loop in which what a prompt wrote is counted by `amount`, a request column."""
    seconds, pace = series.full_load
    written = series.log_by_prompt(amount)
    taken = {name: value for name, value in seconds.items() if name in written}
    return ordering.Loop(taken, written, series.cell.concurrency, pace)
