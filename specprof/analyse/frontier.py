"""The frontier (METHOD 8): what a TPOT costs in throughput, N by N, and the largest N that keeps a target.

One line per content, protocol and arm, over the closed-loop cells. TPOT is that of the median request. Whether a load
keeps the target is asked of its 95% interval: it *holds* only where the upper end is within the target, it *misses*
only where the lower end is beyond it, and everything else is undecided. So is a load of a single launch, since nothing
tells how the next would differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

from specprof.analyse.results import CellFigures, Figure, GateFinding


class Keeping(StrEnum):
    """Whether a load keeps the TPOT target. Undecided is an answer."""

    HOLDS = "holds"
    MISSES = "misses"
    UNDECIDED = "undecided"

    @classmethod
    def of(cls, tpot_s: Figure, target_s: float, num_launches: int) -> Keeping:
        """From the interval; without one, or with one that holds no launches, nothing is decided."""
        if tpot_s.low is None or tpot_s.high is None or num_launches < 2:
            return cls.UNDECIDED
        if tpot_s.high <= target_s:
            return cls.HOLDS
        return cls.MISSES if tpot_s.low > target_s else cls.UNDECIDED


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One number of streams. `pareto`: no fit cell of the same content and protocol, of any arm, is as good in both
    figures and better in one; by value alone, intervals not asked. `valid`: no gate forbids the cell.
    """

    concurrency: int
    tpot_s: Figure  # of the median request
    throughput_tok_s: Figure
    pareto: bool
    keeping: Keeping
    gates: tuple[GateFinding, ...]
    valid: bool


@dataclass(frozen=True, slots=True)
class FrontierFigures:
    """One content, protocol and arm; `points` rise in N.

    `largest_concurrency`: up to here every measured load surely keeps the target; None where not even the smallest
    does. `open_concurrency`: the next measured load, where the climb ended in doubt and not in a miss.
    """

    tag: str
    protocol: str
    stop: str
    length: int
    arm: str
    method: str
    prompt_tokens: Figure  # median
    target_tpot_s: float
    points: tuple[FrontierPoint, ...]
    largest_concurrency: int | None
    open_concurrency: int | None


def frontiers(cells: Iterable[CellFigures], targets_tpot_s: Mapping[str, float]) -> tuple[FrontierFigures, ...]:
    """The frontier of every content that has a TPOT target (seconds, by tag), in the order of the cells."""
    groups: dict[tuple[str, str], dict[str, list[CellFigures]]] = {}
    for cell in cells:
        if cell.tag in targets_tpot_s and cell.tpot_s is not None:
            groups.setdefault((cell.tag, cell.protocol), {}).setdefault(cell.arm, []).append(cell)
    return tuple(
        _frontier(of_arm, [cell for other in arms.values() for cell in other], targets_tpot_s[tag])
        for (tag, _), arms in groups.items()
        for of_arm in arms.values()
    )


def _frontier(cells: Sequence[CellFigures], rivals: Sequence[CellFigures], target_s: float) -> FrontierFigures:
    rising = sorted(cells, key=lambda cell: cell.concurrency)
    points = tuple(_point(cell, rivals, target_s) for cell in rising)
    kept = list(takewhile(lambda point: point.valid and point.keeping is Keeping.HOLDS, points))
    after = points[len(kept)] if len(kept) < len(points) else None
    in_doubt = after is not None and not (after.valid and after.keeping is Keeping.MISSES)
    first = rising[0]
    return FrontierFigures(
        tag=first.tag,
        protocol=first.protocol,
        stop=first.stop,
        length=first.length,
        arm=first.arm,
        method=first.method,
        prompt_tokens=first.prompt_tokens,
        target_tpot_s=target_s,
        points=points,
        largest_concurrency=kept[-1].concurrency if kept else None,
        open_concurrency=after.concurrency if after is not None and in_doubt else None,
    )


def _point(cell: CellFigures, rivals: Iterable[CellFigures], target_s: float) -> FrontierPoint:
    tpot = _tpot(cell)
    return FrontierPoint(
        concurrency=cell.concurrency,
        tpot_s=tpot,
        throughput_tok_s=cell.throughput_tok_s,
        pareto=cell.valid and not any(_beats(rival, cell) for rival in rivals if rival.valid),
        keeping=Keeping.of(tpot, target_s, cell.num_launches),
        gates=cell.gates,
        valid=cell.valid,
    )


def _beats(rival: CellFigures, cell: CellFigures) -> bool:
    """Whether the rival is at least as good in both figures and better in one. Unknown figures beat nothing."""
    theirs, ours = (_tpot(rival).value, rival.throughput_tok_s.value), (_tpot(cell).value, cell.throughput_tok_s.value)
    if theirs[0] is None or theirs[1] is None:
        return False
    if ours[0] is None or ours[1] is None:
        return True
    return theirs[0] <= ours[0] and theirs[1] >= ours[1] and theirs != ours


def _tpot(cell: CellFigures) -> Figure:
    return cell.tpot_s.p50 if cell.tpot_s is not None else Figure(None)
