"""Which rung of an open loop is measured next. Decided from what is sealed alone, so a killed run goes on as it would.

A ladder is the rates of one content, protocol, arm and block. A load curve is climbed upward until the engine has
collapsed: what lies above costs a time-out per rung and says nothing new. A goodput is found by halving.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import sqrt

from specprof.records import Arrivals, Cell, Phase, Request, Role
from specprof.study.config import Study
from specprof.study.load import Goodput, Load, Rates, Targets
from specprof.study.plan import Plan

COLLAPSED_ON_TARGET = 0.50  # fewer on target than this: the service is not one any more
COLLAPSED_LOST = 0.10  # more failed or timed out than this
COLLAPSED_COMPLETED = 0.80  # of what is offered; less is completed: the queue grows for as long as the load lasts
BEYOND_CHANCE = 2.0  # standard deviations by which it must have grown: a few long answers at the end are no collapse

NS = 1e9


@dataclass(frozen=True, slots=True)
class RungOutcome:
    """How one rung went, over its measured requests: shares that kept their targets, and that failed or timed out."""

    on_target_share: float
    lost_share: float
    collapsed: bool


IN_ORDER = RungOutcome(on_target_share=1.0, lost_share=0.0, collapsed=False)


def rung_outcome(cell: Cell, requests: Sequence[Request], targets: Mapping[str, Targets | None]) -> RungOutcome:
    """Judge a measured open-loop cell. `targets`, by content tag: of a content without any, to end well is enough."""
    if cell.arrivals is None:
        raise ValueError(f"{cell.key}: is not an open loop")
    tags = dict(zip(cell.prompt_ids, cell.prompt_tags, strict=True)) if cell.prompt_tags else {}
    measured = [request for request in requests if request.phase is Phase.MEASURED]
    if not measured:
        return IN_ORDER  # nobody came, so nobody was let down
    kept = sum(on_target(request, targets.get(tags.get(request.prompt_id, cell.tag))) for request in measured)
    lost = sum(not ended_well(request) for request in measured)
    on_target_share, lost_share = kept / len(measured), lost / len(measured)
    behind = falls_behind(*_second_half(requests, cell.arrivals))
    return RungOutcome(on_target_share, lost_share, has_collapsed(on_target_share, lost_share, behind=behind))


def has_collapsed(on_target_share: float, lost_share: float, *, behind: bool) -> bool:
    """Whether the service is none any more at this rate: the one rule that ends the climbing and marks a figure."""
    return on_target_share < COLLAPSED_ON_TARGET or lost_share > COLLAPSED_LOST or behind


def falls_behind(offered: int, completed: int, under_way: int) -> bool:
    """Whether the engine completes less than it is offered, beyond what comes and goes by chance.

    All three are counted in the second half of the window; `under_way` are the requests at its two ends.
    """
    missing = offered - completed
    return missing > (1 - COLLAPSED_COMPLETED) * offered and missing > BEYOND_CHANCE * sqrt(under_way)


def ended_well(request: Request) -> bool:
    """Whether it brought a whole answer."""
    return request.error is None and bool(request.chunk_tokens)


def on_target(request: Request, targets: Targets | None) -> bool:
    """Whether a request ended well and, counted from when it was due, in time (METHOD 1 with the client's queue).

    An answer of a single chunk has no time per token, and keeps that target.
    """
    if not ended_well(request):
        return False
    if targets is None:
        return True
    first, last = request.chunk_ns[0], request.chunk_ns[-1]
    later_tokens = sum(request.chunk_tokens[1:])
    took_s = {
        "ttft": (first - request.scheduled_ns) / NS,
        "tpot": (last - first) / NS / later_tokens if later_tokens else 0.0,
        "e2el": (request.done_ns - request.scheduled_ns) / NS,
    }
    limits = ((name, getattr(targets, name)) for name in took_s)
    return all(limit is None or took_s[name] <= limit for name, limit in limits)


def _second_half(requests: Sequence[Request], arrivals: Arrivals) -> tuple[int, int, int]:
    """Requests offered and completed in the second half of the window, and under way at its ends.

    By then it holds as many requests as it will at this rate, if the warm-up and half the window are longer than an
    answer takes; from an engine that was empty a moment ago, nobody can expect as many answers as questions.
    """
    start_ns = min(request.scheduled_ns for request in requests) - arrivals.due_s[0] * NS
    end_ns = start_ns + (arrivals.warmup_s + arrivals.duration_s) * NS
    middle_ns = end_ns - arrivals.duration_s / 2 * NS
    offered = sum(middle_ns <= request.scheduled_ns < end_ns for request in requests)
    completed = sum(ended_well(request) and middle_ns <= request.done_ns < end_ns for request in requests)
    under_way = sum(r.scheduled_ns < at_ns <= r.done_ns for at_ns in (middle_ns, end_ns) for r in requests)
    return offered, completed, under_way


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs of one ladder, rising, and the load that says how it is climbed."""

    load: Load
    rungs: tuple[Cell, ...]

    def next_rung(self, outcomes: Mapping[str, RungOutcome]) -> Cell | None:
        """The rung to measure next, None at the end. `outcomes`, by cell key: of the rungs measured so far."""
        match self.load:
            case Goodput():
                return self._halving(self.load, outcomes)
            case Rates():
                return self._upward(outcomes)
            case _:  # a trace is measured whole
                return next((rung for rung in self.rungs if rung.key not in outcomes), None)

    def most_left(self, outcomes: Mapping[str, RungOutcome]) -> tuple[Cell, ...]:
        """The rungs still to be measured if each of them goes well: never fewer than will be."""
        known, left = dict(outcomes), list[Cell]()
        while (rung := self.next_rung(known)) is not None:
            left.append(rung)
            known[rung.key] = IN_ORDER
        return tuple(left)

    def _upward(self, outcomes: Mapping[str, RungOutcome]) -> Cell | None:
        for rung in self.rungs:
            if rung.key not in outcomes:
                return rung
            if outcomes[rung.key].collapsed:
                return None
        return None

    def _halving(self, load: Goodput, outcomes: Mapping[str, RungOutcome]) -> Cell | None:
        """Between a rate below the ladder that is taken to be kept and one above it that is not, the middle one."""
        kept, missed = -1, len(self.rungs)
        while missed - kept > 1:
            middle = (kept + missed) // 2
            outcome = outcomes.get(self.rungs[middle].key)
            if outcome is None:
                return self.rungs[middle]
            if outcome.on_target_share >= load.share:
                kept = middle
            else:
                missed = middle
        return None


def sections(study: Study, cells: Sequence[Cell]) -> list[Cell | Ladder]:
    """A launch's cells in order, the rungs of a ladder put together; a ladder's rungs stand side by side in a plan."""
    found: list[Cell | Ladder] = []
    for (role, _, protocol), group in groupby(cells, key=lambda cell: (cell.role, cell.tag, cell.protocol)):
        load = study.load_of(protocol) if role is Role.OPEN else None
        if load is None:
            found += group
        else:
            found.append(Ladder(load, tuple(group)))
    return found


def at_most(study: Study, plan: Plan) -> Plan:
    """The plan with no more rungs than will be climbed: of a goodput as many as are visited, of a load curve all."""

    def climbed(section: Cell | Ladder) -> tuple[Cell, ...]:
        return section.most_left({}) if isinstance(section, Ladder) else (section,)

    launches = (
        replace(launch, cells=tuple(cell for part in sections(study, launch.cells) for cell in climbed(part)))
        for launch in plan.launches
    )
    return replace(plan, launches=tuple(launches))


def may_end_early(study: Study) -> bool:
    """Whether a load curve is among what is measured, so that fewer cells may be measured than are planned."""
    return any(isinstance(study.load_of(name), Rates) for name in study.protocols)
