"""Two series side by side: ln(B/A) of a quantity, paired by prompt, with the launches of both sides in its error.

The same prompts are sent to both sides, so what a prompt is worth cancels and only what it does *differently* is left.
Launches are another matter. Arms of one study ran in the same blocks, side by side, and pair by block; two studies
started their engines at other times, so their launches are independent and their variances add.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Any

import numpy as np

from specprof.analyse import distributions, ordering, stats
from specprof.analyse.evidence import Series, closed_loop, step_noise
from specprof.analyse.frames import CellFrame
from specprof.analyse.requests import Requests
from specprof.analyse.results import Figure
from specprof.analyse.stats import Array

Quantity = Callable[[Requests], Array]  # requests of a cell → one positive value each

_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Gap:
    """B against A: both values, and what the standard error of ln(B/A) is known to be.

    `degrees`: of freedom of the error; 0 says that nothing is known of it.
    """

    a: float
    b: float
    error: float = 0.0
    degrees: float = 0.0

    @property
    def estimate(self) -> float:
        """ln(B/A)."""
        return log(self.b / self.a)

    @property
    def ratio(self) -> Figure:
        """B/A with its 95% interval."""
        if not self.degrees:
            return Figure(self.b / self.a)
        return stats.around_log(self.estimate, self.error, self.degrees)

    def p_below(self, ratio: float) -> float:
        """One-sided p of "B/A is `ratio` or more": small where B/A lies surely below."""
        return self._tail(self.estimate - log(ratio))

    def p_above(self, ratio: float) -> float:
        """One-sided p of "B/A is `ratio` or less": small where B/A lies surely above."""
        return self._tail(log(ratio) - self.estimate)

    def _tail(self, distance: float) -> float:
        if not self.degrees:
            return 1.0
        if self.error == 0:
            return 0.0 if distance < 0 else 1.0
        return distributions.t_cdf(distance / self.error, self.degrees)


@dataclass(frozen=True, slots=True)
class Pair:
    """A and B: two series of one content, protocol and N, and the prompts (ids) both have.

    `same_blocks`: both come from one study, so that block b of A stood beside block b of B.
    """

    a: Series
    b: Series
    names: tuple[str, ...]
    same_blocks: bool = False

    @property
    def sides(self) -> tuple[Series, Series]:
        """A, then B."""
        return self.a, self.b

    @property
    def whole(self) -> bool:
        """Whether every prompt either side sent is shared, so that the batches are alike."""
        return all(set(side.cell.prompt_ids) <= set(self.names) for side in self.sides)

    @property
    def fewest_blocks(self) -> int:
        """Blocks of the side that has fewer; of one study, those that both arms have."""
        blocks = [{frame.cell.block for frame in side.frames} for side in self.sides]
        return len(blocks[0] & blocks[1]) if self.same_blocks else min(map(len, blocks))


def throughput_gap(pair: Pair, amount: str = "output_tokens") -> Gap | None:
    """ln of the aggregate throughputs' ratio; None where a side has none. `amount`: what is counted, a request column.

    A block in which prompts were sent that the other side lacks counts with the shared ones alone if it had one stream;
    with more the batch is one unit (METHOD 5) and there is nothing to compare.
    """
    per_block = [_log_throughputs(side, pair.names, amount) for side in pair.sides]
    loops = [closed_loop(side, amount).only(pair.names) for side in pair.sides]
    variance, degrees = ordering.prompt_variance([(loops[1], 1), (loops[0], -1)])
    return _gap(pair, per_block, (variance + _variance_of_one_launch(pair, loops), degrees))


def mean_gap(pair: Pair, quantity: Quantity) -> Gap | None:
    """ln of the ratio of two geometric means over prompts (decode speed, say); None where a side has no value."""
    by_prompt = [_log_by_prompt(side, pair.names, quantity) for side in pair.sides]
    gaps = np.array([by_prompt[1][name] - by_prompt[0][name] for name in by_prompt[1] if name in by_prompt[0]])
    per_block = [_log_by_block(side, pair.names, quantity, np.mean) for side in pair.sides]
    return _gap(pair, per_block, stats.variance_of_mean(gaps))


def median_gap(pair: Pair, quantity: Quantity) -> Gap | None:
    """ln of the ratio of two medians over prompts (TTFT p50, say); None where a side has no value.

    A median has no simple variance: prompts are resampled, the same ones on both sides, and the spread is what they
    show. The interval is Student's around it, since the resamples' own quantiles are too narrow for so few prompts.
    """
    by_prompt = [_log_by_prompt(side, pair.names, quantity) for side in pair.sides]
    both = np.array([(by_prompt[0][n], by_prompt[1][n]) for n in by_prompt[0] if n in by_prompt[1]])
    per_block = [_log_by_block(side, pair.names, quantity, np.median) for side in pair.sides]
    return _gap(pair, per_block, _variance_of_medians(both))


def count_gap(pair: Pair, numerator: str, denominator: str, *, offset: float = 0.0) -> Gap | None:
    """ln of the ratio of two `offset + Σ numerator / Σ denominator` (acceptance length: offset 1).

    Prompts are the clusters (METHOD 5): what is accepted does not depend on how fast a launch is. Cluster delta method
    on ln B - ln A, each prompt's influence on one less that on the other, t with n - 1 degrees of freedom.
    """
    values, influences = [], []
    for side in pair.sides:
        over, under = (side.by_prompt(column) for column in (numerator, denominator))
        counts = np.array([(over[name], under[name]) for name in pair.names])
        total = float(counts[:, 1].sum()) if len(counts) else 0.0
        slope = float(counts[:, 0].sum()) / total if total else 0.0
        if not total or offset + slope <= 0:
            return None
        values.append(offset + slope)
        influences.append((counts[:, 0] - slope * counts[:, 1]) / (total * (offset + slope)))
    n = len(pair.names)
    if n < 2:
        return Gap(values[0], values[1])
    return Gap(values[0], values[1], sqrt(n / (n - 1) * float(np.sum((influences[1] - influences[0]) ** 2))), n - 1)


def _gap(pair: Pair, per_block: Sequence[Mapping[int, float]], prompts: tuple[float, int]) -> Gap | None:
    """The estimate over blocks, with the error of launches and of prompts; of one prompt nobody knows the error."""
    a, b = per_block
    if pair.same_blocks:
        a, b = ({block: side[block] for block in a if block in b} for side in (a, b))
    if not a or not b:
        return None
    logs = [np.array(list(side.values())) for side in (a, b)]
    values = exp(logs[0].mean()), exp(logs[1].mean())
    if not prompts[1] and pair.a is not pair.b:
        return Gap(*values)
    launches = [logs[1] - logs[0]] if pair.same_blocks else logs
    return Gap(*values, *stats.pooled_error([*map(stats.variance_of_mean, launches), prompts]))


def _variance_of_one_launch(pair: Pair, loops: Sequence[ordering.Loop]) -> float:
    """What the order of the prompts and uneven steps add, for sides whose blocks are too few to show it."""
    if pair.a is pair.b:
        return 0.0  # a cell against itself
    single = [len({frame.cell.block for frame in side.frames}) == 1 for side in pair.sides]
    noise = sum(step_noise(side) for side, one in zip(pair.sides, single, strict=True) if one)
    if all(single) and pair.a.cell.prompt_ids == pair.b.cell.prompt_ids:  # both share one order
        return noise + ordering.order_variance([(loops[1], 1), (loops[0], -1)])
    return noise + sum(ordering.order_variance([(loop, 1)]) for loop, one in zip(loops, single, strict=True) if one)


def _log_throughputs(series: Series, names: Sequence[str], amount: str) -> dict[int, float]:
    """ln of units per second, by block."""
    found = {}
    for frame in series.frames:
        value = _throughput(frame, names, amount)
        if value > 0:
            found[frame.cell.block] = log(value)
    return found


def _throughput(frame: CellFrame, names: Sequence[str], amount: str) -> float:
    """Units per second of a block; 0 where the shared prompts' own cannot be told from the batch's."""
    shared = frame.requests.where(frame.requests.of_prompts(names))
    total = float(np.nansum(getattr(shared, amount)))
    if set(frame.cell.prompt_ids) <= set(names):
        return total / frame.wall_s
    return total / float(shared.e2el.sum()) if total and frame.cell.concurrency == 1 else 0.0


def _logs(frame: CellFrame, names: Sequence[str], quantity: Quantity) -> dict[str, float]:
    """ln of the quantity by prompt, where it is positive."""
    told = zip(frame.requests.prompt_id, quantity(frame.requests), strict=True)
    wanted = set(names)
    return {name: log(value) for name, value in told if name in wanted and value > 0}


def _log_by_prompt(series: Series, names: Sequence[str], quantity: Quantity) -> dict[str, float]:
    """Mean ln over blocks, by prompt."""
    found: dict[str, list[float]] = defaultdict(list)
    for frame in series.frames:
        for name, value in _logs(frame, names, quantity).items():
            found[name].append(value)
    return {name: float(np.mean(values)) for name, values in found.items()}


def _log_by_block(
    series: Series, names: Sequence[str], quantity: Quantity, middle: Callable[[Array], Any]
) -> dict[int, float]:
    """The middle of the logs over prompts, by block."""
    logs = {frame.cell.block: _logs(frame, names, quantity) for frame in series.frames}
    return {block: float(middle(np.array(list(found.values())))) for block, found in logs.items() if found}


def _variance_of_medians(both: Array) -> tuple[float, int]:
    """Variance over other draws of the prompts of median(B) - median(A). `both`: shape (prompts, 2), logs."""
    n = len(both)
    if n < 2:
        return 0.0, 0
    drawn = np.random.default_rng(0).integers(0, n, (_RESAMPLES, n))
    medians = np.median(both[drawn], axis=1)
    return float(np.var(medians[:, 1] - medians[:, 0])), n - 1
