"""The few distributions that intervals and gates rest on, named and answering as in `scipy.stats`.

They stand on `scipy.special` alone: loading `scipy.stats` takes as long as analysing a small study.
"""

from __future__ import annotations

from math import ceil, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special


def t_ppf(share: float, degrees: float) -> float:
    """Quantile of Student's t; NaN without a degree of freedom."""
    return float(special.stdtrit(degrees, share)) if degrees > 0 else nan


def t_cdf(value: float, degrees: float) -> float:
    """P(T <= value) of Student's t."""
    return float(special.stdtr(degrees, value))


def norm_ppf(share: float) -> float:
    """Quantile of the standard normal distribution."""
    return float(special.ndtri(share))


def norm_sf(value: float) -> float:
    """P(Z > value) of the standard normal distribution."""
    return float(special.ndtr(-value))


def chi2_ppf(share: float, degrees: float) -> float:
    """Quantile of the chi-square distribution."""
    return float(2 * special.gammaincinv(degrees / 2, share))


def binom_ppf(share: float, trials: int, chance: float) -> int:
    """The smallest k with P(K <= k) >= share, of so many trials."""
    found = max(
        ceil(special.bdtrik(share, trials, chance)), 0
    )  # where P meets the share exactly, it may be one too far
    return found - 1 if found and special.bdtr(found - 1, trials, chance) >= share else found


def binom_sf(successes: int, trials: int, chance: float) -> float:
    """P(K > successes), of so many trials."""
    return float(special.bdtrc(successes, trials, chance)) if successes >= 0 else 1.0


def fisher_greater(marked: int, drawn: int, others_marked: int, others: int) -> float:
    """Fisher's exact test, one-sided: P(so many of the drawn are marked, or more) if marks fell blindly on all.

    Counts: `marked` of `drawn`, and `others_marked` of `others`.
    """
    all_marked = marked + others_marked
    counts = np.arange(marked, min(all_marked, drawn) + 1)
    ways = _log_choose(drawn, counts) + _log_choose(others, all_marked - counts)
    return float(np.exp(ways - _log_choose(drawn + others, all_marked)).sum())


def _log_choose(things: int, chosen: int | NDArray[np.int64]) -> Any:
    """ln of the number of ways to choose so many of these things."""
    return -np.log(things + 1) - special.betaln(things - chosen + 1, chosen + 1)
