"""Markdown that says what it was given: text from outside can start no markup."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specprof.publish.context import gate_codes
from specprof.publish.numbers import plain
from specprof.publish.table import Entry, Table

_SPECIAL = re.compile(r"([\\`*|]|(?<!\w)_|_(?!\w)|~~|!(?=\[)|(?<=\])(?=[(\[:]))")


class Verbatim(str):
    """Markdown made here, to be left as it is."""

    __slots__ = ()


def finalize(value: object) -> object:
    """Escape everything a template prints, unless it was made here."""
    if value is None or isinstance(value, Verbatim):
        return value or ""
    return escaped(value)


def escaped(value: object) -> str:
    """Text on one line that renders as itself."""
    line = " ".join(plain(value).split()).replace("&", "&amp;").replace("<", "&lt;")
    return _SPECIAL.sub(r"\\\1", line)


def fenced(text: object) -> Verbatim:
    """Text of several lines in a fence longer than any it contains."""
    shown = plain(text)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", shown)), default=0))
    return Verbatim(f"{fence}text\n{shown}\n{fence}")


def table_lines(table: Table) -> Verbatim:
    """A table with its content in the first column of every row, so that no row loses its context."""
    return Verbatim("\n".join(_lines(table)))


def _lines(table: Table) -> Iterator[str]:
    headings = [
        f"{escaped(column.heading)}{f' ({escaped(column.unit)})' if column.unit else ''}" for column in table.columns
    ]
    yield f"| content | {' | '.join(headings)} |"
    yield f"|:--|{'|'.join(':--' if column.words else '--:' for column in table.columns)}|"
    for group in table.groups:
        for row in group.rows:
            yield f"| {escaped(group.tag)}{' †' if row.unfit else ''} | {' | '.join(map(_entry, row.entries))} |"
    yield ""
    for group in table.groups:
        if group.context:
            yield f"* {escaped(group.tag)}: {escaped(group.context)}"


def _entry(entry: Entry) -> str:
    codes = gate_codes(entry.gates)
    return " ".join(part for part in (escaped(entry.text), escaped(entry.aside), codes) if part) or "none"
