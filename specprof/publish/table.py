"""A table of the report as data, told once for HTML and Markdown alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from specprof.analyse.results import Figure, GateFinding
from specprof.publish.context import SEPARATOR
from specprof.publish.grid import Protocol, UnderProtocol, protocol_of
from specprof.publish.numbers import UNKNOWN, interval, number, one_line, percent, percent_interval, seconds

_Measured = TypeVar("_Measured", bound=UnderProtocol)


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


def protocol_tables(
    measured: Iterable[_Measured],
    engine: str,
    columns: tuple[Column, ...],
    group: Callable[[str, list[_Measured]], Group],
    content: Callable[[_Measured], str] = lambda found: one_line(found.tag),
) -> tuple[Table, ...]:
    """One table per protocol, in it one group per content, all as they come.

    `group` makes a group of a content, in the words that `content` finds for it, and of what was measured of it.
    """
    of_protocol: dict[Protocol, dict[str, list[_Measured]]] = {}
    for found in measured:
        of_protocol.setdefault(protocol_of(found), {}).setdefault(content(found), []).append(found)
    return tuple(
        Table(f"{protocol.words}{SEPARATOR}{engine}", columns, tuple(group(*item) for item in contents.items()))
        for protocol, contents in of_protocol.items()
    )


def groups_of(rows: Mapping[str, Sequence[Row]]) -> tuple[Group, ...]:
    """Rows by content as groups that share nothing else."""
    return tuple(Group(content, "", tuple(of_content)) for content, of_content in rows.items())


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
