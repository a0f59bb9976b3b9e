"""Where a gain falls through 1 as the load rises: N*, with what its intervals leave open. Nothing is extrapolated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from typing import Literal

from specprof.analyse.results import Figure

Where = Literal["inside", "above", "below"]


@dataclass(frozen=True, slots=True)
class Fall:
    """N* and where it lies; `between`: the places in the curve on either side of it, or the end it lies beyond."""

    concurrency: Figure
    where: Where
    between: tuple[int, ...]


def fall_through_one(streams: Sequence[int], gains: Sequence[Figure]) -> Fall:
    """N* of a curve of gains at rising N, which all have a value. ln S is straight in ln N between neighbours.

    A curve that dips under 1 and comes back crosses where it falls for the last time: up to there some load gains.
    The interval runs from the lowest N at which the lower bound falls through 1 to the highest at which the upper
    bound does. `low` is the largest N if the lower bound never falls, None if it is under 1 at the smallest N or not
    known; `high` the smallest N if the upper bound is under 1 everywhere, None if it ends above 1 or is not known.
    """
    values = [gain.value or 0.0 for gain in gains]
    low, high = _lowest_fall(streams, [g.low for g in gains]), _highest_fall(streams, [g.high for g in gains])
    falls = list(_falls(streams, values))
    if values[-1] >= 1:
        return Fall(Figure(None, low, high), "above", (len(gains) - 1,))
    if not falls:
        return Fall(Figure(None, low, high), "below", (0,))
    at, value = falls[-1]
    return Fall(Figure(value, low, high), "inside", (at, at + 1))


def _falls(streams: Sequence[int], gains: Sequence[float]) -> Iterator[tuple[int, float]]:
    """Each fall through 1: the place before it, and its N."""
    for at, (before, after) in enumerate(pairwise(gains)):
        if before >= 1 > after:
            share = log(before) / (log(before) - log(after))
            yield at, exp(log(streams[at]) + share * (log(streams[at + 1]) - log(streams[at])))


def _lowest_fall(streams: Sequence[int], bounds: Sequence[float | None]) -> float | None:
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds) or known[0] < 1:
        return None
    return next((n for _, n in _falls(streams, known)), float(streams[-1]))


def _highest_fall(streams: Sequence[int], bounds: Sequence[float | None]) -> float | None:
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds) or known[-1] >= 1:
        return None
    falls = [n for _, n in _falls(streams, known)]
    return falls[-1] if falls else float(streams[0])
