"""Explaining gate 12 of one cell, and nothing else: what may be said, of which cell, and what still stands after it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specprof.analyse.explained import EXPLAINED, asks_for_explanation
from specprof.analyse.results import Severity
from specprof.analyse.thresholds import TOO_GOOD
from specprof.decide.address import cell_at
from specprof.decide.conclude import conclude
from specprof.errors import InputError
from specprof.store import Store, now
from specprof.store.explained import Explanation, add_explanation

LONGEST_TEXT, LONGEST_NAME = 500, 80


@dataclass(frozen=True, slots=True)
class Explained:
    """What was written down and where, the evidence it answers, and the gates that forbid the cell all the same."""

    path: Path
    cell: str
    evidence: str
    still_forbidden: tuple[str, ...]


def explain(store: Store, address: str, text: str, author: str) -> Explained:
    """Write down why the draft of a cell (`code/forced/itself/8`) is hardly ever wrong.

    Raises InputError for an unknown cell, for one that gate 12 asks nothing about, and for words that say nothing.
    """
    said, name = _words("TEXT", text, LONGEST_TEXT), _words("--by", author, LONGEST_NAME)
    cell = cell_at(conclude(store).figures.cells, address, study=store.root, where=f"{address}:")
    evidence = asks_for_explanation(cell)
    if evidence is None:
        raise InputError(
            f"{address}: there is nothing to explain. Only a draft that is hardly ever wrong (gate 12, {TOO_GOOD}) can "
            "be explained; what any other gate forbids must be measured anew."
        )
    path = add_explanation(
        store.root, Explanation(cell.tag, cell.protocol, cell.arm, cell.concurrency, said, name, now())
    )
    others = (gate for gate in cell.gates if gate.severity is Severity.INVALID)
    still = tuple(f"gate {gate.gate} ({gate.name})" for gate in others if gate.name not in (TOO_GOOD, EXPLAINED))
    return Explained(path, address, evidence, still)


def _words(what: str, text: str, longest: int) -> str:
    told = " ".join(text.split())
    if not told:
        raise InputError(f"{what}: says nothing. Write why the draft is hardly ever wrong, and who says so.")
    if len(told) > longest:
        raise InputError(f"{what}: has {len(told)} characters, at most {longest} fit beside a number. Shorten it.")
    return told
