"""Running text on a terminal: wrapped where it is still easy to read, text from outside never taken for markup."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from specprof.publish.numbers import one_line

if TYPE_CHECKING:
    from rich.console import Console

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
    """A list under a heading ("" for none); nothing at all without items."""
    told = list(items)
    if not told:
        return
    if heading:
        console.print()
        paragraph(heading, console, style="bold")
    for item in told:
        paragraph(item, console, bullet="- ")
