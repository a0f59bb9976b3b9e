"""What a terminal shows: running text, wrapped where it is still easy to read, lines to copy, and tables.

Text from outside is never taken for markup.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from specprof.publish.numbers import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

READ_AT_MOST = 96  # columns


def paragraph(text: str, console: Console, *, style: str = "", indent: int = 0, bullet: str = "") -> None:
    """One paragraph, without trailing blanks. `bullet` stands before its first line, `indent` blanks before every."""
    from rich.text import Text

    lead = " " * indent + bullet
    for line in Text(one_line(text), style=style).wrap(console, min(console.width, READ_AT_MOST) - len(lead)):
        line.rstrip()
        console.print(Text(lead) + line, highlight=False, soft_wrap=True)
        lead = " " * len(lead)


def bullets(heading: str, items: Iterable[str], console: Console) -> None:
    """A list under a heading; nothing at all without items."""
    told = list(items)
    if not told:
        return
    console.print()
    paragraph(heading, console, style="bold")
    for item in told:
        paragraph(item, console, bullet="- ")


def verbatim(text: str, console: Console) -> None:
    """Text as it is, in lines of any length: commands, paths and what else is copied."""
    console.print(text, highlight=False, soft_wrap=True, markup=False, emoji=False)


def bare_table(*, gap: int = 1) -> Table:
    """A table without a frame, `gap` blanks between its columns."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False)
