"""How a gate answers."""

from __future__ import annotations

from specprof.analyse.results import GateFinding, Severity


def invalid(gate: int, name: str, evidence: str, remedy: str) -> GateFinding:
    """The number is shown but never a headline."""
    return GateFinding(gate, name, Severity.INVALID, evidence, remedy)


def caution(gate: int, name: str, evidence: str, remedy: str) -> GateFinding:
    """The evidence must be read beside the number."""
    return GateFinding(gate, name, Severity.CAUTION, evidence, remedy)
