"""When a machine has warmed up: the rule by which warm-up is told from measurement (METHOD 5).

A sequence of equal pieces of work is steady from the first index after which (1) a changepoint test finds no slower
beginning, (2) no trend is left, and (3) the last two thirds agree within 2%. Each of the three asks for more than 2%
*and* for more than chance: 2% between two handfuls of noisy pieces is nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from specprof.analyse import distributions
from specprof.analyse.frames import CellFrame
from specprof.analyse.requests import NS
from specprof.analyse.stats import Array, pooled_error, t_quantile, variance_of_mean

TOLERANCE = 0.02
MIN_PIECES = 9  # thirds of fewer than three pieces say nothing
MAX_WARMUP_SHARE = 0.5
SIGNIFICANCE = 0.01


def warmup_length(durations: Array, significance: float = SIGNIFICANCE) -> int | None:
    """How many leading pieces to exclude; None if the sequence never becomes steady. Shape (n,), seconds, n >= 9."""
    logs = np.log(durations)
    start = _changepoint(logs, significance)
    rest = logs[start:]
    if len(rest) < MIN_PIECES or _has_trend(rest, significance) or not _thirds_agree(rest, significance):
        return None
    return start


def _changepoint(logs: Array, significance: float) -> int:
    """Length of a beginning that differs in mean from the rest: best split by squared error, kept if it matters."""
    candidates = range(1, int(len(logs) * MAX_WARMUP_SHARE) + 1)
    best = min(candidates, key=lambda k: float(logs[:k].var() * k + logs[k:].var() * (len(logs) - k)))
    before, after = logs[:best], logs[best:]
    # Scatter of both parts around their own means: the longer part alone may look calmer than it is.
    degrees = len(logs) - 2
    spread = ((before.var() * len(before) + after.var() * len(after)) / degrees) ** 0.5
    standard_error = float(spread) * (1 / len(before) + 1 / len(after)) ** 0.5
    gap = abs(float(before.mean() - after.mean()))
    # The split was chosen to look large, so it must clear the bar for every split that was tried.
    bar = distributions.t_ppf(1 - significance / 2 / len(candidates), degrees) * standard_error
    return best if gap > max(bar, log(1 + TOLERANCE)) else 0


def _has_trend(logs: Array, significance: float) -> bool:
    """Whether the least-squares line through the pieces rises or falls."""
    places = np.arange(len(logs)) - (len(logs) - 1) / 2
    spread, degrees = float(places @ places), len(logs) - 2
    slope = float(places @ logs) / spread
    left = logs - logs.mean() - slope * places
    error = (float(left @ left) / degrees / spread) ** 0.5
    reach = t_quantile(degrees, 1 - significance) * error
    return abs(slope) * len(logs) > TOLERANCE and abs(slope) > reach


def _thirds_agree(logs: Array, significance: float) -> bool:
    third = len(logs) // 3
    middle, last = logs[third : 2 * third], logs[2 * third :]
    if abs(float(np.median(middle) - np.median(last))) <= log(1 + TOLERANCE):
        return True
    if np.ptp(middle) == np.ptp(last) == 0.0:
        return False  # two different constants: no chance is involved
    error, degrees = pooled_error([variance_of_mean(middle), variance_of_mean(last)])  # Welch's test
    return abs(float(middle.mean() - last.mean())) <= t_quantile(degrees, 1 - significance) * error


@dataclass(frozen=True, slots=True)
class Steps:
    """The gaps between neighbouring chunks of one request, request by request: each began and ended (seconds) while so
    many streams wrote. Shapes: (gaps,).
    """

    starts: Array
    ends: Array
    writing: NDArray[np.int64]

    @classmethod
    def of(cls, frame: CellFrame) -> Steps:
        """Those of a cell."""
        arrived = frame.lists("chunk_ns")
        times, inside = arrived.values / NS, arrived.has_next
        starts, ends = times[:-1][inside], times[1:][inside]
        first = np.sort(frame.requests.first)
        last = np.sort(frame.requests.last)
        writing = np.searchsorted(first, starts, side="right") - np.searchsorted(last, ends, side="left")
        return cls(starts, ends, writing)


def full_load_steps(frame: CellFrame) -> Array:
    """Seconds between neighbouring chunks, in time order, while every stream of the cell wrote.

    Equal pieces of work: a batch that fills up, drains, or makes room for a prompt has other steps. Where streams had
    to queue, "every" is the most that ever wrote at once. A stream sees a batch's step once each, so a step is there as
    often as there were streams.
    """
    gaps = Steps.of(frame)
    if not len(gaps.starts):
        return np.empty(0)
    full = gaps.writing == gaps.writing.max()
    order = np.argsort(gaps.starts[full], kind="stable")
    steps: Array = (gaps.ends - gaps.starts)[full][order]
    return steps[steps > 0]


def step_time_by_load(cells: Sequence[Steps], concurrency: int) -> Array:
    """Step time with m streams writing, relative to all of them, for m = 1 … N: a line through the cells' own steps.

    Never rising as streams leave; flat where the cells never ran with fewer. Shape (concurrency,).
    """
    flat = np.ones(concurrency)
    writing = np.concatenate([gaps.writing for gaps in cells])
    steps = np.concatenate([gaps.ends - gaps.starts for gaps in cells])
    if len(steps) < MIN_PIECES or np.ptp(writing) == 0:
        return flat
    strays = writing - writing.mean()
    slope = float(strays @ (steps - steps.mean()) / (strays @ strays))  # np.polyfit takes ten times as long
    intercept = float(steps.mean() - slope * writing.mean())
    full = intercept + slope * concurrency
    if slope <= 0 or full <= 0:
        return flat
    streams = np.arange(1, concurrency + 1)
    line: Array = np.maximum((intercept + slope * streams) / full, streams / concurrency)
    return line


def full_load_seconds(frame: CellFrame, steps: Steps, pace: Array) -> Array:
    """How long each request would have taken had every stream gone on writing. Same order as `frame.requests`.

    `pace`: `step_time_by_load`. Each of a request's steps is stretched by how many streams had left.
    """
    writing = np.clip(steps.writing, 1, len(pace))
    stretched = (steps.ends - steps.starts) * (1 / pace[writing - 1] - 1)
    owner = np.repeat(np.arange(len(frame.requests)), frame.requests.num_chunks.astype(int) - 1)
    added = np.bincount(owner, weights=stretched, minlength=len(frame.requests))
    return np.asarray(frame.requests.e2el + added)


def step_means(frame: CellFrame) -> Array:
    """Full-load steps as the batch made them: the streams' views of each step averaged into one."""
    steps = full_load_steps(frame)
    streams = min(frame.cell.concurrency, len(frame.requests))
    whole = len(steps) // streams * streams
    means: Array = steps[:whole].reshape(-1, streams).mean(axis=1)
    return means


def relative_noise(frame: CellFrame) -> tuple[float, float]:
    """Standard error of ln(mean step time) of a cell, from the scatter of its own steps, and its degrees of freedom."""
    gaps = frame.gaps[frame.gaps > 0]
    num_steps = len(gaps) / min(frame.cell.concurrency, len(frame.requests))  # a batch's step counts once
    if num_steps < 2:
        return 0.0, 1.0
    return float(np.log(gaps).std()) / num_steps**0.5, num_steps - 1


def ratio_interval(steps: Array, others: Array, confidence: float) -> tuple[float, float]:
    """Interval of mean(steps) / mean(others), each an array of (nearly) independent durations, by the delta method."""
    variances = [float(part.var(ddof=1) / part.mean() ** 2 / len(part)) for part in (steps, others)]
    middle = log(float(steps.mean() / others.mean()))
    reach = t_quantile(min(len(steps), len(others)) - 1, confidence) * sum(variances) ** 0.5
    return float(np.exp(middle - reach)), float(np.exp(middle + reach))
