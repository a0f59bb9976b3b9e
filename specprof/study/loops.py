"""Degenerate loops (gate 7): text that repeats itself is easy to guess, and is not the content its tag claims."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WINDOW_TOKENS = 128
GRAM_TOKENS = 4
MIN_DISTINCT_SHARE = 0.35
MIN_TOKENS = 32  # shorter texts hold too few 4-grams to judge


def distinct_share(token_ids: NDArray[np.int64]) -> float:
    """Share of the 4-grams of a text that are different ones; 1.0 for text too short to judge."""
    if len(token_ids) < MIN_TOKENS:
        return 1.0
    grams = _grams(token_ids)
    return len(np.unique(grams)) / len(grams)


def looping_tokens(token_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Marks the tokens inside any 128-token window whose distinct 4-gram share is under 0.35.

    A shorter text is one window. Shape: (len(token_ids),).
    """
    n = len(token_ids)
    flagged = np.zeros(n, dtype=bool)
    if n < MIN_TOKENS:
        return flagged
    window = min(WINDOW_TOKENS, n)
    grams_per_window = window - GRAM_TOKENS + 1
    counts = _distinct_in_windows(_grams(token_ids), grams_per_window)
    for start in np.flatnonzero(counts < MIN_DISTINCT_SHARE * grams_per_window):
        flagged[start : start + window] = True
    return flagged


def _grams(token_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """One integer per 4-gram; equal grams have equal integers."""
    windows = np.lib.stride_tricks.sliding_window_view(token_ids, GRAM_TOKENS)
    _, codes = np.unique(windows, axis=0, return_inverse=True)
    return np.asarray(codes, dtype=np.int64).ravel()


def _distinct_in_windows(grams: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Number of distinct grams in each window of `size`: a gram counts where its previous occurrence lies before it."""
    previous = np.full(len(grams), -1)
    last: dict[int, int] = {}
    for i, gram in enumerate(grams.tolist()):
        previous[i] = last.get(gram, -1)
        last[gram] = i
    windows = np.lib.stride_tricks.sliding_window_view(previous, size)
    starts = np.arange(len(windows))[:, None]
    return np.asarray(np.count_nonzero(windows < starts, axis=1), dtype=np.int64)
