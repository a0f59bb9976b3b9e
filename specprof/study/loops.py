"""Degenerate loops (gate 7): text that repeats itself is easy to guess, and is not the content its tag claims.

A text is judged by its 4-grams: how many of them, in any 128 tokens of it, are different ones. A gram is a new one in a
window if it last occurred before the window began; so one pass over each gram's last occurrence tells all windows of
all texts, and no window is counted by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specprof.ragged import Indices, Ragged

WINDOW_TOKENS = 128
GRAM_TOKENS = 4
MIN_DISTINCT_SHARE = 0.35
MIN_TOKENS = 32  # shorter texts hold too few 4-grams to judge

_LARGEST_VOCABULARY = 2**22
_BATCH_TOKENS = 50_000  # judged at a time: what is sorted fits a core's cache, and a gram fits 64 bits (`_grams`)


@dataclass(frozen=True, slots=True)
class Repetition:
    """How much each of some texts repeats itself.

    `distinct_share`: share of its 4-grams that are different ones, 1.0 for text too short to judge; shape (texts,).
    `looping`: the tokens inside any 128-token window (a shorter text is one window) whose own distinct share is under
    0.35, `num_looping` how many each text has of them; shapes (tokens of all texts,) and (texts,).
    """

    distinct_share: NDArray[np.float64]
    looping: NDArray[np.bool_]
    num_looping: Indices


def repetition(texts: Ragged) -> Repetition:
    """Judge texts of token ids, each by itself."""
    share, looping = np.ones(len(texts)), np.zeros(len(texts.values), dtype=bool)
    for rows in _batches(texts):
        batch = texts[rows]
        grams = _Grams.of(batch)
        share[rows] = grams.distinct_share()
        looping[texts.offsets[rows.start] : texts.offsets[rows.stop]] = grams.looping_tokens(len(batch.values))
    return Repetition(share, looping, Ragged(looping, texts.offsets).sums())


def looping_tokens(token_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Marks the looping tokens of one text (`Repetition`). Shape: (len(token_ids),)."""
    return repetition(Ragged.of([token_ids])).looping


def _batches(texts: Ragged) -> Iterator[slice]:
    """Neighbouring texts of `_BATCH_TOKENS` together, or one that is longer."""
    start = 0
    while start < len(texts):
        fits = int(np.searchsorted(texts.offsets, texts.offsets[start] + _BATCH_TOKENS, side="right")) - 1
        stop = max(fits, start + 1)
        yield slice(start, stop)
        start = stop


@dataclass(frozen=True, slots=True)
class _Grams:
    """The 4-grams of a batch, text by text; those too short to judge have none.

    Grams are numbered through the batch: text i has `starts[i]` to `starts[i + 1]`, and each window of it holds
    `window[i]`. `previous`: where the same gram last occurred in the same text, below the text's start if nowhere.
    """

    starts: Indices  # shape (texts + 1,)
    first_tokens: Indices  # of each text, shape (texts,)
    window: Indices  # shape (texts,)
    owner: Indices  # shape (grams,)
    previous: Indices  # shape (grams,)

    @classmethod
    def of(cls, texts: Ragged) -> _Grams:
        lengths = texts.lengths
        counts = np.where(lengths >= MIN_TOKENS, lengths - GRAM_TOKENS + 1, 0)
        starts = np.concatenate([[0], np.cumsum(counts)])
        owner = np.repeat(np.arange(len(texts)), counts)
        places = np.arange(starts[-1]) + (texts.offsets[:-1] - starts[:-1])[owner]
        window = np.minimum(lengths, WINDOW_TOKENS) - GRAM_TOKENS + 1
        return cls(starts, texts.offsets[:-1], window, owner, _previous(_keys(texts.values, places)))

    def distinct_share(self) -> NDArray[np.float64]:
        """Of each text."""
        new = self.previous < self.starts[self.owner]
        counts = np.diff(self.starts)
        found = np.bincount(self.owner[new], minlength=len(counts))
        return np.divide(found, counts, out=np.ones(len(counts)), where=counts > 0)

    def looping_tokens(self, num_tokens: int) -> NDArray[np.bool_]:
        """Of each token of the batch, whether it lies in a looping window."""
        places, size = np.arange(len(self.owner)), self.window[self.owner]
        last_start = self.starts[1:][self.owner] - size
        begins = np.flatnonzero((self._distinct() < MIN_DISTINCT_SHARE * size) & (places <= last_start))
        if not len(begins):
            return np.zeros(num_tokens, dtype=bool)
        text = self.owner[begins]
        first = begins - self.starts[text] + self.first_tokens[text]
        return _covered(first, first + self.window[text] + GRAM_TOKENS - 1, num_tokens) > 0

    def _distinct(self) -> Indices:
        """Different grams of the window that begins at each gram, where a whole one does."""
        places, size = np.arange(len(self.owner)), self.window[self.owner]
        start, end = self.starts[self.owner], self.starts[self.owner + 1]
        earliest = np.maximum(np.maximum(self.previous, start - 1), places - size) + 1  # the windows it is new in
        latest = np.minimum(places, end - size)
        counted = earliest <= latest
        return _covered(earliest[counted], latest[counted] + 1, len(places))


def _covered(first: Indices, end: Indices, count: int) -> Indices:
    """By how many of the stretches `first` to `end` (exclusive) each of `count` places is covered."""
    turns = np.bincount(first, minlength=count + 1) - np.bincount(end, minlength=count + 1)
    return np.cumsum(turns)[:count]


def _keys(tokens: NDArray[np.int64], places: Indices) -> NDArray[np.uint64]:
    """One number per 4-gram that begins at `places`; equal grams have equal numbers, and no others have.

    Tokens are numbered anew, 0 to n - 1, and a gram is four digits to the base n. Up to 65,536 different tokens that
    fits 64 bits: more than a batch holds, unless one text alone has as many; its grams then differ nearly surely.
    """
    digits, base = _digits(tokens)
    keys = np.zeros(len(places), dtype=np.uint64)
    for step in range(GRAM_TOKENS):
        keys *= base
        keys += digits[places + step]
    return keys


def _digits(tokens: NDArray[np.int64]) -> tuple[NDArray[np.uint64], np.uint64]:
    """The tokens numbered anew, 0 to n - 1, and n."""
    lowest, highest = (int(edge(tokens)) if len(tokens) else 0 for edge in (np.min, np.max))
    if highest - lowest > _LARGEST_VOCABULARY:  # nobody's tokens: a table of them all would not fit
        seen, digits = np.unique(tokens, return_inverse=True)
        return digits.astype(np.uint64), np.uint64(len(seen))
    present = np.zeros(highest - lowest + 1, dtype=bool)
    present[tokens - lowest] = True
    numbers = np.cumsum(present, dtype=np.uint64)
    return numbers[tokens - lowest] - np.uint64(1), numbers[-1]


def _previous(keys: NDArray[np.uint64]) -> Indices:
    """Where each key last stood before, which may be in an earlier text; -1 where it did not."""
    previous = np.full(len(keys), -1, dtype=np.int64)
    ordered = np.argsort(keys)  # the fast way leaves equal keys in any order, so that those are ordered once more
    same = np.flatnonzero(keys[ordered[1:]] == keys[ordered[:-1]])
    repeated = np.unique(ordered[np.concatenate([same, same + 1])])
    order = repeated[np.argsort(keys[repeated], kind="stable")]
    follows = keys[order[1:]] == keys[order[:-1]]
    previous[order[1:][follows]] = order[:-1][follows]
    return previous
