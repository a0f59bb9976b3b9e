"""A cell by the name people write: `code/forced/ngram-k4/8` is content, protocol, arm and streams."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from specprof.analyse.results import CellFigures
from specprof.errors import InputError


def cell_at(cells: Iterable[CellFigures], address: str, *, study: Path, where: str) -> CellFigures:
    """The cell of a `study` that has this address.

    Raises InputError, beginning with `where`, with the nearest address that one has.
    """
    known = {address_of(cell): cell for cell in cells}
    if address in known:
        return known[address]
    near = get_close_matches(address, known, n=1, cutoff=0.0)
    example = f"The nearest in {study} is '{near[0]}'." if near else f"{study} holds none yet."
    raise InputError(f"{where} is no measured cell. Write content/protocol/arm/streams. {example}")


def address_of(cell: CellFigures) -> str:
    """What people write for it."""
    return f"{cell.tag}/{cell.protocol}/{cell.arm}/{cell.concurrency}"
