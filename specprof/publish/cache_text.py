"""The prefix cache of a study that replays traffic: its hit rate beside every load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specprof.analyse.cache import CacheHits
from specprof.analyse.results import StudyFigures
from specprof.publish.context import SEPARATOR
from specprof.publish.grid import protocol_of
from specprof.publish.numbers import one_line, percent, rate
from specprof.publish.table import ARM, Column, Entry, Group, Row, Table, protocol_tables, share

_COLUMNS = (
    Column("load", words=True),
    ARM,
    Column("prefix cache", "of prompt tokens"),
)


def cache_tables(figures: StudyFigures, engine: str) -> tuple[Table, ...]:
    """One table per protocol; none where the cache was kept out of the measurement."""

    def group(content: str, found: list[CacheHits]) -> Group:
        return Group(content, "", tuple(map(_row, found)))

    return protocol_tables(_hits(figures), engine, _COLUMNS, group)


def cache_sentences(figures: StudyFigures) -> Iterator[str]:
    """One sentence per cell: how much of its prompts was not read."""
    for hits in _hits(figures):
        where = SEPARATOR.join((one_line(hits.tag), protocol_of(hits).words, load_words(hits), one_line(hits.method)))
        yield f"{where}: {percent(hits.hit_rate.value)} of the prompt tokens came from the prefix cache"


def load_words(hits: CacheHits) -> str:
    """`N=8`, or what was offered: `1.5 req/s`."""
    return f"N={hits.concurrency}" if hits.rate_per_s is None else f"{rate(hits.rate_per_s)} req/s"


def _hits(figures: StudyFigures) -> Sequence[CacheHits]:
    return figures.cache.hits if figures.cache is not None else ()


def _row(hits: CacheHits) -> Row:
    return Row((Entry(load_words(hits)), Entry(one_line(hits.method)), share(hits.hit_rate)))
