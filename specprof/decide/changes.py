"""What a comparison says of every cell, and when a difference is a regression (METHOD 5).

Which differences count
-----------------------
Throughput and decode speed decide; acceptance length, tokens per engine step and TTFT stand beside them to say why.
A speed is a *regression* where it is surely below 1 - margin of A's, an *improvement* where surely above 1 + margin.

One comparison of 24 cells asks 48 such questions, and at 2.5% each one would be answered wrongly by chance alone. So
both directions are tested one-sided, against 1 - margin and 1 + margin, and each direction's p-values are adjusted by
Holm (1979) over all questions of the comparison at 2.5%. That is what "the whole 95% interval lies beyond" means for a
single one, and keeps the chance of *any* false mark at 2.5% a direction, 5% in all, even where every ratio lies
exactly on its margin. Intervals are printed at 95%, unadjusted, so that they can be read alone; one that is
*clear alone*, not among all, is marked.

*Equivalent* is said of one cell at a time: its whole 95% interval lies within the margin. What remains shows no
difference beyond the margin, which is not the same as showing that there is none.

A cell that a gate forbids on either side decides nothing. Neither does one launch a side, whose interval holds the
prompts only (`first_look` decides on it and says so), nor a batch of which only some prompts are shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from specprof.analyse.pairs import Gap
from specprof.analyse.permutation import holm
from specprof.analyse.results import Figure, GateFinding
from specprof.decide.fairness import Difference

ALPHA = 0.025  # a direction; one-sided, so that a single comparison is decided by its 95% interval


class Change(StrEnum):
    """What a comparison says of B."""

    REGRESSION = "regression"
    UNFIT = "unfit"  # a gate forbids it
    UNDECIDED = "undecided"  # one launch a side, other prompts in the batch, or no interval at all
    NOT_SHOWN = "no difference shown"
    IMPROVEMENT = "improvement"
    EQUIVALENT = "equivalent"


class Metric(StrEnum):
    """What is compared. The first two decide."""

    THROUGHPUT = "throughput"
    DECODE_SPEED = "decode_speed"
    ACCEPTANCE_LENGTH = "acceptance_length"
    TOKENS_PER_STEP = "tokens_per_engine_step"
    TTFT_P50 = "ttft_p50_s"


DECIDING = (Metric.THROUGHPUT, Metric.DECODE_SPEED)


@dataclass(frozen=True, slots=True)
class RatioFigures:
    """One metric of one cell: both values (None where a side has none) and B/A.

    `change` and the adjusted one-sided p-values are None for metrics and cells that decide nothing.
    """

    metric: Metric
    unit: str
    a: float | None
    b: float | None
    ratio: Figure
    change: Change | None = None
    slower_p_value: float | None = None
    faster_p_value: float | None = None

    def clear_alone(self, margin: float) -> bool:
        """Whether its own interval lies beyond the margin while, among all that were compared, nothing is shown."""
        low, high = self.ratio.low, self.ratio.high
        beyond = low is not None and high is not None and (high < 1 - margin or low > 1 + margin)
        return beyond and self.change is Change.NOT_SHOWN


@dataclass(frozen=True, slots=True)
class Row:
    """One content, protocol and N, arm A against arm B. `num_left_out`: prompts that only one side has."""

    tag: str
    protocol: str
    stop: str
    length: int
    concurrency: int
    arm_a: str
    arm_b: str
    method_a: str
    method_b: str
    num_prompts: int
    num_left_out: int
    num_blocks_a: int
    num_blocks_b: int
    ratios: tuple[RatioFigures, ...]
    change: Change
    gates_a: tuple[GateFinding, ...]
    gates_b: tuple[GateFinding, ...]
    num_texts_differ: int | None  # greedy texts that are not the same on both sides; None for sampled ones

    def of(self, metric: Metric) -> RatioFigures:
        """One metric's ratio."""
        return next(ratio for ratio in self.ratios if ratio.metric is metric)

    @property
    def decided(self) -> bool:
        """Whether it says anything of B."""
        return self.change not in (Change.UNFIT, Change.UNDECIDED)

    def clear_alone(self, margin: float) -> bool:
        """Whether it shows nothing though an interval of its own does (`RatioFigures.clear_alone`)."""
        return self.change is Change.NOT_SHOWN and any(ratio.clear_alone(margin) for ratio in self.ratios)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A place that both studies measured and that cannot be compared, with what forbids it."""

    tag: str
    protocol: str
    arm_a: str
    arm_b: str
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything a comparison has to say. `dimensions`: what it is about, none for a repeat.

    `arms_left_out`: arms that only one side has, none where the arms were named.
    """

    a: str
    b: str
    dimensions: tuple[str, ...]
    differs: tuple[Difference, ...]
    came_along: tuple[Difference, ...]
    allowed: tuple[Difference, ...]
    equal: tuple[str, ...]
    margin: float
    num_comparisons: int
    rows: tuple[Row, ...]
    refused: tuple[Refusal, ...]
    arms_left_out: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether every part was compared and decided, so that finding no regression says something."""
        return not self.refused and all(row.decided for row in self.rows)

    def count(self, change: Change) -> int:
        """How many rows ended so."""
        return sum(row.change is change for row in self.rows)


@dataclass(frozen=True)
class Measured:
    """A row before it is judged: its gaps, and whether it may decide anything."""

    row: Row
    gaps: Mapping[Metric, Gap]
    decides: bool


def judged(measured: Sequence[Measured], margin: float) -> tuple[tuple[Row, ...], int]:
    """Rows with their marks, and how many comparisons shared the error."""
    asked = {
        (index, metric): one.gaps[metric]
        for index, one in enumerate(measured)
        for metric in DECIDING
        if one.decides and metric in one.gaps and one.gaps[metric].degrees
    }
    slower = holm({unit: gap.p_below(1 - margin) for unit, gap in asked.items()})
    faster = holm({unit: gap.p_above(1 + margin) for unit, gap in asked.items()})
    rows = []
    for index, one in enumerate(measured):
        ratios = tuple(
            replace(
                ratio,
                change=_change(ratio.ratio, slower[unit], faster[unit], margin),
                slower_p_value=slower[unit],
                faster_p_value=faster[unit],
            )
            if (unit := (index, ratio.metric)) in asked
            else ratio
            for ratio in one.row.ratios
        )
        changes = [ratio.change for ratio in ratios if ratio.change is not None]
        rows.append(replace(one.row, ratios=ratios, change=_worst(changes, one.row.change)))
    return tuple(rows), len(asked)


def _change(ratio: Figure, slower: float, faster: float, margin: float) -> Change:
    if slower <= ALPHA:
        return Change.REGRESSION
    if faster <= ALPHA:
        return Change.IMPROVEMENT
    if ratio.low is not None and ratio.high is not None and 1 - margin <= ratio.low and ratio.high <= 1 + margin:
        return Change.EQUIVALENT
    return Change.NOT_SHOWN


def _worst(changes: Sequence[Change], otherwise: Change) -> Change:
    """A row is what the worse of its speeds is; an improvement of one beside no difference of the other counts."""
    order = (Change.REGRESSION, Change.IMPROVEMENT, Change.NOT_SHOWN, Change.EQUIVALENT)
    return next((change for change in order if change in changes), otherwise)
