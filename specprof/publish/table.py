"""A table of the report as data, told once for HTML and Markdown alike."""

from __future__ import annotations

from dataclasses import dataclass

from specprof.analyse.results import Figure, GateFinding
from specprof.publish.numbers import UNKNOWN, interval, number, percent, percent_interval, seconds


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands in one place of a table: a value, its interval, and gates if it is the place for them."""

    text: str
    aside: str = ""
    gates: tuple[GateFinding, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a table; `unfit` if a gate forbids its figures."""

    entries: tuple[Entry, ...]
    unfit: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that share a content: its tag, and the rest of what they share."""

    tag: str
    context: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and its unit. Words are set left, numbers right."""

    heading: str
    unit: str = ""
    words: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table with the context its numbers share in its title."""

    title: str
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]


STREAMS = Column("N", "streams")

ARM = Column("arm", words=True)

GATES = Column("gates", words=True)


def value(figure: Figure | None) -> Entry:
    """A measured value with its interval."""
    return Entry(number(figure.value), interval(figure)) if figure is not None else Entry(UNKNOWN)


def share(figure: Figure | None, *, signed: bool = False) -> Entry:
    """A share of something, in per cent."""
    if figure is None:
        return Entry(UNKNOWN)
    return Entry(percent(figure.value, signed=signed), percent_interval(figure))


def duration(figure: Figure | None) -> Entry:
    """A time, without its interval: the speeds carry it."""
    return Entry(seconds(figure.value if figure else None))
