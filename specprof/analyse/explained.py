"""Gate 12 once somebody has explained it (METHOD 7: "publication is blocked until explained").

Only a draft that is hardly ever wrong can be explained: it may be so. Every other gate says that a number is not what
it seems, and no words change that. The gate stays where it stood, with its number and evidence; the explanation stands
beside it, in its author's words, and the reader judges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from specprof.analyse.results import CellFigures, GateFinding, Severity
from specprof.analyse.thresholds import SUSPICIOUS_SURVIVAL, TOO_GOOD
from specprof.store.explained import Explanation

GATE = 12
EXPLAINED = f"{TOO_GOOD}, explained"


def asks_for_explanation(cell: CellFigures) -> str | None:
    """What there is to explain about a cell; None where nothing is.

    The gate's own evidence, or, where too few steps tell a fault from luck, the draft position that never fails: that
    alone blocks publication, too.
    """
    for gate in cell.gates:
        if gate.gate == GATE and gate.name in (TOO_GOOD, EXPLAINED):
            return gate.evidence
    for position, survival in enumerate(cell.survival, start=1):
        if survival.value is not None and survival.value >= SUSPICIOUS_SURVIVAL:
            return f"draft position {position} was accepted in {survival.value:.1%} of the steps"
    return None


def with_explanations(cell: CellFigures, explanations: Sequence[Explanation]) -> CellFigures:
    """The cell with what was said about it: gate 12 is then a caution that holds the explanation."""
    own = [said for said in explanations if said.cell == _place(cell)]
    evidence = asks_for_explanation(cell)
    if not own or evidence is None:
        return cell
    others = tuple(gate for gate in cell.gates if (gate.gate, gate.name) != (GATE, TOO_GOOD))
    finding = GateFinding(
        GATE,
        EXPLAINED,
        Severity.CAUTION,
        f"{evidence}; {'; '.join(map(_quoted, own))}",
        "Judge the explanation for yourself: the draft is right more often than on natural text.",
    )
    return replace(cell, gates=(*others, finding))


def unneeded(cells: Sequence[CellFigures], explanations: Sequence[Explanation]) -> Iterator[str]:
    """A note for every explanation of what gate 12 does not ask about, so that none is lost without a word."""
    asked = {_place(cell) for cell in cells if asks_for_explanation(cell) is not None}
    for said in explanations:
        if said.cell not in asked:
            yield f"An explanation of {'/'.join(map(str, said.cell))} by {said.author} has nothing to explain."


def _place(cell: CellFigures) -> tuple[str, str, str, int]:
    """The cell as an explanation names it (`Explanation.cell`)."""
    return cell.tag, cell.protocol, cell.arm, cell.concurrency


def _quoted(said: Explanation) -> str:
    """The words of others as such, one line, no quotation mark that could end them early."""
    text = " ".join(said.text.replace("“", '"').replace("”", '"').split())
    return f"explained by {' '.join(said.author.split())} on {said.written_at[:10]}: “{text}”"
