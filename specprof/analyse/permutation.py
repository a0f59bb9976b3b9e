"""Paired permutation tests: exact whatever the counts look like, and silent where there are too few pairs to tell.

If two arms write alike, either of a pair's two values might as well have been the other's, so every sign pattern of
the differences is equally likely. Rare tokens need this: their counts are mostly zeros, where a t test invents
certainty. With n pairs no p-value can fall under 2^-n.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from specprof.analyse.stats import Array

MOST_PAIRS_EXACT = 14
NUM_DRAWN = 100_000  # sign patterns drawn where there are too many to try them all
_CHUNK = 10_000

Unit = TypeVar("Unit", bound=Hashable)


def sign_flip(differences: Array) -> Array:
    """One-sided p-values that each column's mean is above zero. `differences`: (pairs, quantities) → (quantities,)."""
    num_pairs = len(differences)
    if num_pairs == 0:
        return np.ones(differences.shape[1])
    observed = differences.sum(axis=0)
    at_least = observed - 1e-9 * np.abs(differences).sum(axis=0)  # rounding must not make a pattern unlike itself
    hits, num_patterns = np.zeros(differences.shape[1]), 0
    for signs in _patterns(num_pairs):
        hits += (signs @ differences >= at_least).sum(axis=0)
        num_patterns += len(signs)
    return np.asarray(hits / num_patterns)


def _patterns(num_pairs: int) -> Iterator[NDArray[np.int8]]:
    """Sign patterns, the observed one (all plus) among them: all of them, or a large sample."""
    if num_pairs <= MOST_PAIRS_EXACT:
        bits = np.arange(2**num_pairs)[:, None] >> np.arange(num_pairs)
        yield np.where(bits & 1, -1, 1).astype(np.int8)
        return
    yield np.ones((1, num_pairs), dtype=np.int8)
    rng = np.random.default_rng(0)  # the same patterns whenever a study is read
    for _ in range(NUM_DRAWN // _CHUNK):
        yield (2 * rng.integers(0, 2, size=(_CHUNK, num_pairs), dtype=np.int8) - 1).astype(np.int8)


def holm(p_values: Mapping[Unit, float]) -> dict[Unit, float]:
    """p-values adjusted (Holm 1979) so that one below α among them all is a false alarm with probability α at most."""
    adjusted: dict[Unit, float] = {}
    floor = 0.0
    for rank, (unit, p_value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        floor = max(floor, min(1.0, p_value * (len(p_values) - rank)))
        adjusted[unit] = floor
    return adjusted
