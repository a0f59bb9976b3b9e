"""Percentiles of what a closed loop shows over and over, with prompts and launches in their intervals (METHOD 5).

Requests of one prompt are alike in every block, gaps of one text are alike, and one launch is faster throughout than
the next: so neither requests nor gaps are separate evidence, prompts and launches are.

- *Prompts*: order statistics, at the number of independent values that would scatter as much as the prompts do (Korn
  and Graubard, 1998), once each block is divided by its own median. Values of their own prompts count for one each.
- *Launches*: the logarithm of the percentile in each block, its spread between blocks with Student's t.

The two reaches add in quadrature, each with its own t: unlike Satterthwaite's mean of the degrees this holds its 95%
with two blocks as well (Banerjee, 1960). With one block only the prompts' part is known and used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, hypot, inf, log, sqrt

import numpy as np

from specprof.analyse import stats
from specprof.analyse.evidence import Series
from specprof.analyse.requests import Mask
from specprof.analyse.results import NOTHING, Figure, Percentiles
from specprof.analyse.stats import Array
from specprof.ragged import Indices

SHARES = (0.50, 0.90, 0.95, 0.99)
LINES = (0.50, 0.75, 0.90, 0.95)


@dataclass(frozen=True, slots=True)
class Block:
    """What one block showed, and the prompt of each value by number."""

    values: Array
    prompts: Indices

    def where(self, rows: Mask) -> Block:
        """Some of the values. `rows`: shape (values,)."""
        return Block(self.values[rows], self.prompts[rows])


def of_requests(series: Series, column: str) -> list[Block]:
    """A request column, block by block, missing values left out."""
    values, codes = series.column(column), series.prompts.codes
    ends = np.cumsum([len(frame.requests) for frame in series.frames])[:-1]
    blocks = zip(np.split(values, ends), np.split(codes, ends), strict=True)
    return [Block(found, prompts).where(np.isfinite(found)) for found, prompts in blocks]


def of_gaps(series: Series) -> list[Block]:
    """Seconds between neighbouring chunks of one request, block by block."""
    codes, first, found = series.prompts.codes, 0, []
    for frame in series.frames:
        num_gaps = frame.requests.num_chunks.astype(np.int64) - 1
        found.append(Block(frame.gaps, np.repeat(codes[first : first + len(num_gaps)], num_gaps)))
        first += len(num_gaps)
    return found


def median(blocks: Sequence[Block]) -> Figure:
    """The median of all values."""
    told = _figures(blocks, (0.50,))
    return told[0] if told else NOTHING


def percentiles(blocks: Sequence[Block]) -> Percentiles | None:
    """p50 to p99 of all values; None where there are none."""
    told = _figures(blocks, SHARES)
    return Percentiles(*told) if told else None


def _figures(blocks: Sequence[Block], shares: tuple[float, ...]) -> list[Figure]:
    """The percentiles at these shares; an interval that so few prompts or launches cannot bound is left out."""
    blocks = [block for block in blocks if len(block.values)]
    if not blocks:
        return []
    ordered = [np.sort(block.values) for block in blocks]
    values = _quantiles(np.sort(np.concatenate(ordered)), shares)
    apart = np.array([_quantiles(of_block, shares) for of_block in ordered])
    if len(blocks) > 1 and not (apart > 0).all():  # of blocks that show 0 no ratio can be taken
        return [Figure(value) for value in values]
    ends = _Alike.of(blocks).ends(shares, values)
    largest = np.array([of_block[-1] for of_block in ordered])
    found = []
    for value, share, bounds, of_blocks in zip(values, shares, ends, apart.T, strict=True):
        seen_once = share > 0.50 and len(blocks) > 1 and (largest >= value).sum() < 2  # one launch has the whole tail
        found.append(_with_launches(value, bounds, of_blocks) if bounds and not seen_once else Figure(value))
    return found


def _with_launches(value: float, ends: tuple[float, float], of_blocks: Array) -> Figure:
    """An interval that holds prompts alone, widened by how far the mean of the blocks' logarithms may be off."""
    if len(of_blocks) < 2:
        return Figure(value, *ends)
    variance, degrees = stats.variance_of_mean(np.log(of_blocks))
    if not variance:
        return Figure(value, *ends)
    launches = stats.t_quantile(degrees) * sqrt(variance)
    down, up = (hypot(log(end / value), launches) if end else inf for end in ends)
    return Figure(value, value * exp(-down), value * exp(up))


@dataclass(frozen=True, slots=True)
class _Alike:
    """Values of all blocks as if these ran alike, rising, and how many independent ones they are worth (0: unknown)."""

    ordered: Array
    worth: int

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> _Alike:
        """Each block's values are divided by its median, unless the medians are the same."""
        medians = [float(np.median(block.values)) for block in blocks]
        by = medians if min(medians) > 0 and len(set(medians)) > 1 else [1.0] * len(medians)
        values = np.concatenate([block.values / own for block, own in zip(blocks, by, strict=True)])
        ordered = np.sort(values)
        return cls(ordered, _worth(values, ordered, np.concatenate([block.prompts for block in blocks])))

    def ends(self, shares: Sequence[float], told: Sequence[float]) -> list[tuple[float, float] | None]:
        """The intervals of percentiles, given their values over blocks that ran as they did."""
        found: list[tuple[float, float] | None] = []
        for share, value, own in zip(shares, told, _quantiles(self.ordered, shares), strict=True):
            ranks, scale = self._ranks(share), value / own if value else 1.0
            low, high = (scale * float(self.ordered[rank]) for rank in ranks or (0, 0))
            found.append((min(low, value), max(high, value)) if ranks else None)
        return found

    def _ranks(self, share: float) -> tuple[int, int] | None:
        """Which values, counted from the smallest, bound a percentile; None where so few independent ones cannot."""
        n, size = self.worth, len(self.ordered)
        found = stats.bounding_ranks(n, share) if n else None
        return ((found[0] - 1) * size // n, -(-found[1] * size // n) - 1) if found else None


def _worth(values: Array, ordered: Array, prompts: Indices) -> int:
    """How many independent values scatter as these do, of which the prompts are given; `ordered`: the same, rising.

    The share up to a line is a ratio of sums over prompts. Its variance, over that of as many independent values, is
    the design effect; the largest of those at four lines counts, since where by luck few prompts lie beyond a line,
    little is seen of how they differ. Few prompts know their own scatter badly, so t is set against t (Korn and
    Graubard). But all of them are worth no less than one value for each prompt, each weighted by how many it has.
    """
    size, per_prompt = len(prompts), np.bincount(prompts)
    num_prompts = int((per_prompt > 0).sum())
    if num_prompts < 2:
        return 0
    effect, starts = 1.0, np.flatnonzero(np.diff(prompts, prepend=-1))  # gaps of one text stand together
    for line in ordered[[ceil(share * size) - 1 for share in LINES]]:
        of_texts = np.add.reduceat(values <= line, starts, dtype=np.int64)
        below = np.bincount(prompts[starts], weights=of_texts, minlength=len(per_prompt))
        share = float(below.sum()) / size
        if share < 1:
            strays = below - share * per_prompt
            variance = num_prompts / (num_prompts - 1) * float((strays**2).sum()) / size**2
            effect = max(effect, variance * (size - 1) / (share * (1 - share)))
    fewer = (stats.t_quantile(size - 1) / stats.t_quantile(num_prompts - 1)) ** 2
    least = size**2 / float((per_prompt**2).sum())
    return int(max(size / effect * fewer, least) * (1 + 1e-9))  # rounding must not cost a whole one


def _quantiles(ordered: Array, shares: Sequence[float]) -> list[float]:
    """`np.quantile` of values that rise already, which it would order once more."""
    places = np.asarray(shares) * (len(ordered) - 1)
    below = places.astype(np.int64)
    low, high = ordered[below], ordered[np.minimum(below + 1, len(ordered) - 1)]
    return [float(quantile) for quantile in low + (high - low) * (places - below)]
