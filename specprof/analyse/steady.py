"""When a machine has warmed up: the rule by which warm-up is told from measurement (METHOD 5).

A sequence of equal pieces of work is steady from the first index after which (1) a changepoint test finds no slower
beginning, (2) no trend is left, and (3) the last two thirds agree within 2%.
"""

from __future__ import annotations

from math import log

import numpy as np
from scipy import stats as distributions

from specprof.analyse.stats import Array

TOLERANCE = 0.02
MIN_PIECES = 9  # thirds of fewer than three pieces say nothing
MAX_WARMUP_SHARE = 0.5
SIGNIFICANCE = 0.01


def warmup_length(durations: Array) -> int | None:
    """How many leading pieces to exclude; None if the sequence never becomes steady. Shape (n,), seconds, n >= 9."""
    logs = np.log(durations)
    start = _changepoint(logs)
    rest = logs[start:]
    if len(rest) < MIN_PIECES or _has_trend(rest) or not _thirds_agree(rest):
        return None
    return start


def _changepoint(logs: Array) -> int:
    """Length of a beginning that differs in mean from the rest: best split by squared error, kept if it matters."""
    candidates = range(1, int(len(logs) * MAX_WARMUP_SHARE) + 1)
    best = min(candidates, key=lambda k: float(logs[:k].var() * k + logs[k:].var() * (len(logs) - k)))
    before, after = logs[:best], logs[best:]
    spread = float(after.std(ddof=1))
    standard_error = spread * (1 / len(before) + 1 / len(after)) ** 0.5
    gap = abs(float(before.mean() - after.mean()))
    # The split was chosen to look large, so it must clear the bar for every split that was tried.
    bar = float(distributions.t.ppf(1 - SIGNIFICANCE / 2 / len(candidates), len(after) - 1)) * standard_error
    return best if gap > max(bar, log(1 + TOLERANCE)) else 0


def _has_trend(logs: Array) -> bool:
    fit = distributions.linregress(np.arange(len(logs)), logs)
    return bool(fit.pvalue < SIGNIFICANCE and abs(fit.slope) * len(logs) > TOLERANCE)


def _thirds_agree(logs: Array) -> bool:
    third = len(logs) // 3
    middle, last = logs[third : 2 * third], logs[2 * third :]
    return abs(float(np.median(middle) - np.median(last))) <= log(1 + TOLERANCE)
