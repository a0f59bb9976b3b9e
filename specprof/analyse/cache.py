"""How much of the prompts came from the prefix cache, where traffic is replayed with a warm one (METHOD 2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specprof.analyse import stats
from specprof.analyse.frames import CellFrame
from specprof.analyse.results import NOTHING, Figure
from specprof.records import CachePolicy, Role, arm_in_words


@dataclass(frozen=True, slots=True)
class CacheHits:
    """One cell over all its blocks. `hit_rate`: prompt tokens found in the cache / looked up, None if not told.

    `rate_per_s` is None in a closed loop, whose load is `concurrency`.
    """

    tag: str
    protocol: str
    stop: str
    length: int
    arm: str
    method: str
    concurrency: int
    rate_per_s: float | None
    hit_rate: Figure
    num_launches: int


@dataclass(frozen=True, slots=True)
class CacheFigures:
    """What a study with a warm prefix cache says of it."""

    policy: str
    hits: tuple[CacheHits, ...]


def cache_figures(frames: Iterable[CellFrame]) -> CacheFigures | None:
    """The hit rate of every cell by the server's own counters; None where the cache was kept out."""
    series: dict[tuple[str, str, int, float, bool, str], list[CellFrame]] = defaultdict(list)
    for frame in frames:
        cell = frame.cell
        if cell.cache is CachePolicy.REPLAY and cell.role is not Role.SENTINEL:
            rate = cell.arrivals.rate_per_s if cell.arrivals is not None else 0.0
            speculates = cell.speculative_config is not None  # the arm without comes first
            series[cell.tag, cell.protocol, cell.concurrency, rate, speculates, cell.arm].append(frame)
    if not series:
        return None
    return CacheFigures(CachePolicy.REPLAY.value, tuple(_hits(found) for _, found in sorted(series.items())))


def _hits(frames: Sequence[CellFrame]) -> CacheHits:
    cell = frames[0].cell
    return CacheHits(
        tag=cell.tag,
        protocol=cell.protocol,
        stop=cell.stop.value,
        length=cell.max_tokens,
        arm=cell.arm,
        method=arm_in_words(cell.speculative_config),
        concurrency=cell.concurrency,
        rate_per_s=cell.arrivals.rate_per_s if cell.arrivals is not None else None,
        hit_rate=_hit_rate(frames),
        num_launches=len({frame.data.launch for frame in frames}),
    )


def _hit_rate(frames: Sequence[CellFrame]) -> Figure:
    """Its interval holds how launches differ; the traffic is the same in each."""
    found, looked_up = np.zeros(len(frames)), np.zeros(len(frames))
    for n, frame in enumerate(frames):
        before, after = frame.data.before, frame.data.after
        if before is None or after is None or after.prefix_cache_queries is None or after.prefix_cache_hits is None:
            return NOTHING
        found[n] = after.prefix_cache_hits - (before.prefix_cache_hits or 0.0)
        looked_up[n] = after.prefix_cache_queries - (before.prefix_cache_queries or 0.0)
    rate = stats.ratio(found, looked_up)
    return rate if rate.high is None else replace(rate, high=min(rate.high, 1.0))
