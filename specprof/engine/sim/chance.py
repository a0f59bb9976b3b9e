"""Randomness without state: a draw is a function of a key and a position, never of what was drawn before.

That is what makes a prompt behave the same in every arm, at every concurrency and in any order: its luck belongs to
its text.
"""

from __future__ import annotations

from hashlib import blake2b
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53
_STANDARD_NORMAL = NormalDist()

MAX_WIDTH = 64  # draws per position (draft positions of one step) at most; rows of a wider table would overlap


def key(*parts: object) -> int:
    """A 64-bit key of anything printable; equal parts give equal keys on every machine and in every process."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def uniforms(seed: int, num_rows: int, width: int = 1) -> NDArray[np.float64]:
    """Uniform draws in [0, 1), shape (num_rows, width). Entry (i, j) depends on `seed`, i and j alone (splitmix64)."""
    rows = np.arange(num_rows, dtype=np.uint64)[:, None] * np.uint64(MAX_WIDTH)
    counter = rows + np.arange(1, width + 1, dtype=np.uint64)[None, :]
    with np.errstate(over="ignore"):
        bits = np.uint64(seed) + counter * _GOLDEN
        bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
        bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
        bits ^= bits >> np.uint64(31)
    return np.asarray((bits >> np.uint64(11)).astype(np.float64) * _TO_UNIT)


def uniform(*parts: object) -> float:
    """One uniform draw in (0, 1) of a key."""
    return (key(*parts) + 0.5) * 2.0**-64


def normal(*parts: object) -> float:
    """One standard normal draw of a key."""
    return _STANDARD_NORMAL.inv_cdf(min(max(uniform(*parts), 1e-12), 1.0 - 1e-12))
