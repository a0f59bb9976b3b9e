"""Lists of unequal length as two arrays: the chunks and tokens of a million requests are never Python objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Lists end to end: list i is `values[offsets[i]:offsets[i + 1]]`. Shape of `offsets`: (lists + 1,), 0 first."""

    values: NDArray[Any]
    offsets: Indices

    @classmethod
    def of(cls, lists: Iterable[Sequence[int] | NDArray[Any]]) -> Ragged:
        """From one sequence of integers per list."""
        arrays = [np.asarray(one, dtype=np.int64) for one in lists]
        return cls.with_lengths(np.concatenate([np.empty(0, dtype=np.int64), *arrays]), [len(one) for one in arrays])

    @classmethod
    def with_lengths(cls, values: NDArray[Any], lengths: Sequence[int] | Indices) -> Ragged:
        """From the values end to end and the length of each list."""
        return cls(values, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, place: int) -> NDArray[Any]: ...

    @overload
    def __getitem__(self, place: slice) -> Ragged: ...

    def __getitem__(self, place: int | slice) -> NDArray[Any] | Ragged:
        """One list, or several neighbouring ones; nothing is copied."""
        if isinstance(place, slice):
            start, stop, _ = place.indices(len(self))
            offsets = self.offsets[start : max(stop, start) + 1]
            return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])
        return self.values[self.offsets[place] : self.offsets[place + 1]]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self.values[start:end] for start, end in pairwise(self.offsets.tolist()))

    @property
    def lengths(self) -> Indices:
        """Of each list."""
        return np.diff(self.offsets)

    @property
    def owner(self) -> Indices:
        """The list that each value is in. Shape (values,)."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def has_next(self) -> NDArray[np.bool_]:
        """Whether the value after this one is in the same list, for all values but the last. Shape (values - 1,)."""
        inside = np.ones(max(len(self.values) - 1, 0), dtype=bool)
        heads = self.offsets[1:-1]
        inside[heads[(heads > 0) & (heads < len(self.values))] - 1] = False
        return inside

    def sums(self) -> Indices:
        """Of each list of integers."""
        up_to = np.concatenate([[0], np.cumsum(self.values, dtype=np.int64)])
        return np.asarray(np.diff(up_to[self.offsets]))

    def edges(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """First and last value of each list, none of which may be empty."""
        return self.values[self.offsets[:-1]], self.values[self.offsets[1:] - 1]

    def take(self, rows: Indices, lengths: Indices) -> Ragged:
        """The first `lengths[i]` values of list `rows[i]`, for every i."""
        if len(rows) == len(self) and (rows == np.arange(len(self))).all() and (lengths == self.lengths).all():
            return self
        taken = Ragged.with_lengths(self.values, lengths).offsets
        places = np.arange(taken[-1]) + np.repeat(self.offsets[rows] - taken[:-1], lengths)
        return Ragged(self.values[places], taken)
