"""How a gate answers, and how the answers of several cells become those of one figure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from specprof.analyse.results import GateFinding, Severity

LaunchFindings = Sequence[Mapping[int, GateFinding]]  # by launch number: what is true of every cell of a launch


def invalid(gate: int, name: str, evidence: str, remedy: str) -> GateFinding:
    """The number is shown but never a headline."""
    return GateFinding(gate, name, Severity.INVALID, evidence, remedy)


def caution(gate: int, name: str, evidence: str, remedy: str) -> GateFinding:
    """The evidence must be read beside the number."""
    return GateFinding(gate, name, Severity.CAUTION, evidence, remedy)


def on_launch(launch: int, of_launch: LaunchFindings) -> Iterator[GateFinding]:
    """What is true of every cell of one launch."""
    return (by_launch[launch] for by_launch in of_launch if launch in by_launch)


def each_once(findings: Iterable[GateFinding]) -> tuple[GateFinding, ...]:
    """The first finding of each gate, name and severity: no caution stands in for what forbids a figure."""
    first: dict[tuple[int, str, Severity], GateFinding] = {}
    for finding in findings:
        first.setdefault((finding.gate, finding.name, finding.severity), finding)
    return tuple(first.values())
