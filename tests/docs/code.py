"""Python on the pages: the blocks of one page run one after the other, as the cells of a notebook."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.docs.pages import Block, blocks


@dataclass(frozen=True, slots=True)
class Cell:
    """A block of Python and the block of text after it that holds what it prints; None where nothing is said."""

    code: Block
    shown: Block | None


def cells(page: Path) -> list[Cell]:
    """The blocks of Python of a page."""
    following = [*pairwise(blocks(page)), *((last, None) for last in blocks(page)[-1:])]
    return [
        Cell(block, after if after is not None and after.language == "text" else None)
        for block, after in following
        if block.language == "python"
    ]


def run_cells(page: Path) -> Iterator[tuple[Cell, str]]:
    """Each cell of a page and what it prints, in the working folder and one namespace."""
    namespace: dict[str, Any] = {"__name__": "page"}
    for cell in cells(page):
        printed = io.StringIO()
        code = compile("\n" * cell.code.line + cell.code.text, str(page), "exec")  # errors name the page's own line
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        yield cell, printed.getvalue()
