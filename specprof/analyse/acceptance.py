"""Acceptance, METHOD 1: what share of the guesses held. Counts in, ratios out.

A *step* is a verification step that had a draft. Position k starts at 1. `survival[j-1]` = S_j, the share of steps in
which position j was accepted (what vLLM calls "per position"); `conditional[j-1]` = S_j / S_{j-1} with S_0 = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specprof.analyse.stats import Array


def acceptance_length(num_accepted: float, num_steps: float) -> float:
    """AL, tau = 1 + accepted / steps: tokens a drafted step delivers, the bonus token included."""
    return 1 + num_accepted / num_steps


def acceptance_rate(num_accepted: float, num_drafted: float) -> float:
    """AR = accepted / drafted. Depends on K: compare it only at equal K."""
    return num_accepted / num_drafted


def accepted_at(accepted_per_step: Sequence[int] | NDArray[Any], num_positions: int) -> Array:
    """How many steps accepted position 1 … `num_positions`: a step that accepted j tokens accepted positions 1 … j."""
    accepted = np.asarray(accepted_per_step, dtype=np.float64)
    return np.array([np.count_nonzero(accepted >= j) for j in range(1, num_positions + 1)], dtype=np.float64)


def survival(num_accepted_at: Sequence[float] | Array, num_steps: float) -> Array:
    """S_j. Their sum is AL - 1."""
    return np.asarray(num_accepted_at, dtype=np.float64) / np.float64(num_steps)


def conditional(survival_curve: Sequence[float] | Array) -> Array:
    """a_j = S_j / S_{j-1}: how good the j-th guess is once the earlier ones held. NaN where none held."""
    curve = np.asarray(survival_curve, dtype=np.float64)
    before = np.concatenate([[1.0], curve[:-1]])
    held = np.full(curve.shape, np.nan)
    np.divide(curve, before, out=held, where=before > 0)
    return held


def engine_steps(output_tokens: Array, num_accepted: Array, num_chunks: Array) -> Array:
    """Engine steps of each request: every step delivers one token of its own plus the accepted ones.

    Both ways of counting can only miss steps: vLLM counts tokens accepted past the end that are never delivered, and
    chunks merge when the reader lags. So the larger count stands.
    """
    steps: Array = np.maximum(np.maximum(output_tokens - num_accepted, num_chunks), 1)
    return steps
