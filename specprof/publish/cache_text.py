"""The prefix cache of a study that replays traffic: its hit rate beside every load."""

from __future__ import annotations

from collections.abc import Iterator

from specprof.analyse.cache import CacheHits
from specprof.analyse.results import StudyFigures
from specprof.publish.context import SEPARATOR
from specprof.publish.grid import Protocol
from specprof.publish.numbers import one_line, percent, rate
from specprof.publish.table import ARM, Column, Entry, Group, Row, Table, share

_COLUMNS = (
    Column("load", words=True),
    ARM,
    Column("prefix cache", "of prompt tokens"),
)


def cache_tables(figures: StudyFigures, engine: str) -> tuple[Table, ...]:
    """One table per protocol; none where the cache was kept out of the measurement."""
    of_protocol: dict[Protocol, dict[str, list[CacheHits]]] = {}
    for hits in figures.cache.hits if figures.cache is not None else ():
        contents = of_protocol.setdefault(Protocol(hits.protocol, hits.stop, hits.length), {})
        contents.setdefault(one_line(hits.tag), []).append(hits)
    return tuple(
        Table(
            f"{one_line(protocol.words)}{SEPARATOR}{engine}",
            _COLUMNS,
            tuple(Group(tag, "", tuple(map(_row, found))) for tag, found in contents.items()),
        )
        for protocol, contents in of_protocol.items()
    )


def cache_sentences(figures: StudyFigures) -> Iterator[str]:
    """One sentence per cell: how much of its prompts was not read."""
    for hits in figures.cache.hits if figures.cache is not None else ():
        protocol = Protocol(hits.protocol, hits.stop, hits.length)
        where = SEPARATOR.join((one_line(hits.tag), protocol.words, load_words(hits), one_line(hits.method)))
        yield f"{where}: {percent(hits.hit_rate.value)} of the prompt tokens came from the prefix cache"


def load_words(hits: CacheHits) -> str:
    """`N=8`, or what was offered: `1.5 req/s`."""
    return f"N={hits.concurrency}" if hits.rate_per_s is None else f"{rate(hits.rate_per_s)} req/s"


def _row(hits: CacheHits) -> Row:
    return Row((Entry(load_words(hits)), Entry(one_line(hits.method)), share(hits.hit_rate)))
