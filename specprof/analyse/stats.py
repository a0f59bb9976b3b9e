"""Intervals, METHOD 5. Pure functions on arrays; ratios are argued on the log scale and returned on their own.

Two things vary: which prompts were drawn, and how one engine launch differs from the next. An interval that contains
only one of them says so by its caller (`num_launches`); it is never silently narrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, isfinite, log, sqrt

import numpy as np
from numpy.typing import NDArray

from specprof.analyse import distributions
from specprof.analyse.results import Figure

Array = NDArray[np.float64]

CONFIDENCE = 0.95


def point(value: float | None) -> Figure:
    """A figure without an interval; None where the arithmetic had nothing to work on."""
    return Figure(float(value) if value is not None and isfinite(value) else None)


def t_quantile(degrees: float, confidence: float = CONFIDENCE) -> float:
    """Two-sided Student t quantile: half-width in standard errors."""
    return distributions.t_ppf(0.5 + confidence / 2, degrees)


def around_log(estimate: float, standard_error: float, degrees: float, confidence: float = CONFIDENCE) -> Figure:
    """exp(estimate ± t·SE)."""
    reach = t_quantile(degrees, confidence) * standard_error
    return Figure(exp(estimate), exp(estimate - reach), exp(estimate + reach))


def ratio(numerators: Array, denominators: Array, *, offset: float = 0.0) -> Figure:
    """offset + Σ numerators / Σ denominators over independent clusters (prompts), with its cluster delta interval.

    The interval is symmetric on the logarithm with t_{n-1}: for acceptance (offset 1: ln τ) this holds its 95% where
    binomial intervals and small bootstraps do not (METHOD 5). One cluster has no interval, nor has a ratio of zero,
    offset or not: where nothing was ever accepted, nothing was seen of how acceptance varies.
    """
    total = float(np.sum(denominators))
    if total <= 0:
        return Figure(None)
    slope = float(np.sum(numerators)) / total
    value = offset + slope
    if len(numerators) < 2 or slope <= 0 or value <= 0:
        return Figure(value)
    variance, degrees = variance_of_log_ratio(numerators, denominators, offset=offset)
    return around_log(log(value), sqrt(variance), degrees)


def variance_of_log_ratio(numerators: Array, denominators: Array, *, offset: float = 0.0) -> tuple[float, int]:
    """Variance of ln(offset + Σ numerators / Σ denominators) over clusters, and its degrees of freedom.

    (0, 0) of one cluster, which cannot tell.
    """
    n, total = len(numerators), float(np.sum(denominators))
    if n < 2:
        return 0.0, 0
    slope = float(np.sum(numerators)) / total
    residuals = numerators - slope * denominators
    return n / (n - 1) * float(np.sum(residuals**2)) / (total * (offset + slope)) ** 2, n - 1


def log_mean(values: Array) -> Figure:
    """Geometric mean of positive values with its t interval."""
    if len(values) == 0:
        return Figure(None)
    logs = np.log(values)
    if len(logs) < 2:
        return Figure(exp(float(logs[0])))
    return around_log(float(logs.mean()), float(logs.std(ddof=1)) / sqrt(len(logs)), len(logs) - 1)


def median(values: Array) -> Figure:
    """Median with the distribution-free interval of its order statistics, which takes six values at least."""
    return percentile(values, 0.50)


def percentile(values: Array, share: float) -> Figure:
    """A quantile with the distribution-free interval of its order statistics; None where n cannot bound it."""
    if not len(values):
        return Figure(None)
    value, ranks = float(np.quantile(values, share)), bounding_ranks(len(values), share)
    return Figure(value, *map(float, np.sort(values)[[rank - 1 for rank in ranks]])) if ranks else Figure(value)


def bounding_ranks(n: int, share: float) -> tuple[int, int] | None:
    """Which of n independent values, from 1 for the smallest, bound a quantile; None where n of them cannot."""
    low = distributions.binom_ppf((1 - CONFIDENCE) / 2, n, share)
    high = distributions.binom_ppf(1 - (1 - CONFIDENCE) / 2, n, share) + 1
    return None if low < 1 or high > n else (low, high)


def two_way(per_block: Sequence[float], prompts: tuple[float, int], confidence: float = CONFIDENCE) -> Figure:
    """exp of a log quantity measured once per block, with prompt and launch variation both in its interval.

    `per_block[b]`: the log quantity of block b (say ln X_on/X_off). `prompts`: variance that another draw of prompts
    would bring, with its degrees of freedom; without these nobody knows how prompts vary, and there is no interval.
    With one block only the prompts' part is known and used.
    """
    blocks = np.asarray(per_block, dtype=float)
    estimate = float(blocks.mean())
    if not isfinite(estimate):
        return Figure(None)
    if not prompts[1]:
        return Figure(exp(estimate))
    error, degrees = pooled_error([variance_of_mean(blocks), prompts])
    return around_log(estimate, error, degrees, confidence)


def variance_of_mean(values: Array) -> tuple[float, int]:
    """Squared standard error of the mean, and its degrees of freedom; (0, 0) where one value cannot tell."""
    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return 0.0, 0
    return float(finite.var(ddof=1)) / len(finite), len(finite) - 1


def pooled_error(parts: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Standard error of a sum of independent means, with Satterthwaite's degrees of freedom (0 if nothing is known).

    A part without degrees of freedom is left out, so ask first whether its variance may be taken for none.
    """
    known = [(variance, degrees) for variance, degrees in parts if degrees > 0]
    total = sum(variance for variance, _ in known)
    spread = sum(variance**2 / degrees for variance, degrees in known)
    degrees = total**2 / spread if spread > 0 else float(sum(d for _, d in known))
    return sqrt(total), max(degrees, 1.0) if known else 0.0


def equivalent(estimate: float, standard_error: float, degrees: float, *, margin: float) -> tuple[str, Figure]:
    """TOST: is a log difference inside ±ln(1 + margin)? `pass`, `fail` (90% interval wholly outside) or `undecided`.

    And that 90% interval around the estimate, both still logarithms.
    """
    reach = t_quantile(degrees, 0.90) * standard_error
    low, high, bound = estimate - reach, estimate + reach, log(1 + margin)
    inside, outside = -bound < low and high < bound, high < -bound or low > bound
    return ("pass" if inside else "fail" if outside else "undecided"), Figure(estimate, low, high)
