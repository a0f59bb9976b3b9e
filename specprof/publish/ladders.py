"""Looking the open loops of a study up: one ladder per content and protocol, its rungs by arm, rates rising."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from specprof.analyse.results import StudyFigures
from specprof.analyse.service_results import (
    GoodputFigures,
    GoodputGain,
    RungFigures,
    ServiceFigures,
    TargetFigures,
)
from specprof.publish.grid import OFF, Grid, Protocol, protocol_of, shared_methods
from specprof.publish.numbers import known


@dataclass(frozen=True, slots=True)
class Ladder:
    """The open loops of one content under one protocol; the arm without speculation comes first."""

    tag: str
    protocol: Protocol
    rungs: Mapping[str, tuple[RungFigures, ...]]  # by arm, rates rising
    goodputs: Mapping[str, GoodputFigures]
    gains: Mapping[str, GoodputGain]

    @property
    def any_rung(self) -> RungFigures:
        """What all rungs share, stands in any: arrivals, stop rule, targets."""
        return next(iter(self.rungs.values()))[0]

    @property
    def targets(self) -> TargetFigures:
        """What a useful answer had to keep."""
        return self.any_rung.targets

    @property
    def share(self) -> float | None:
        """The share of requests that must keep the targets, None where no goodput was asked for."""
        return next((goodput.share for goodput in self.goodputs.values()), None)

    @property
    def rates(self) -> tuple[float, ...]:
        """Every rate that some arm was offered, rising, requests per second."""
        return tuple(sorted({rung.rate_per_s for rungs in self.rungs.values() for rung in rungs}))

    def rung(self, arm: str, rate: float) -> RungFigures | None:
        """One rung, None where the arm was not offered this rate."""
        return next((rung for rung in self.rungs.get(arm, ()) if rung.rate_per_s == rate), None)

    def relied_on(self, arm: str) -> tuple[RungFigures, ...]:
        """The rungs that an arm's goodput is made of: the valid ones, or all where a gate forbids every one."""
        return tuple(rung for rung in self.rungs.get(arm, ()) if rung.valid) or self.rungs.get(arm, ())

    def telling_rate(self) -> float:
        """The rate at which to compare the arms: the largest at which the better of them still keeps the targets.

        A rate that all arms were offered goes before a larger one that some were not; the smallest where none keeps
        them or none are named.
        """
        kept = {rung.rate_per_s for rungs in self.rungs.values() for rung in rungs if self._keeps(rung)}
        shared = {rate for rate in kept if all(self.rung(arm, rate) is not None for arm in self.rungs)}
        return max(shared or kept, default=self.rates[0])

    def _keeps(self, rung: RungFigures) -> bool:
        on_target = rung.on_target_share.value
        return not rung.collapsed and known(on_target) and self.share is not None and on_target >= self.share


def ladders(figures: StudyFigures) -> tuple[Ladder, ...]:
    """Every ladder of a study, forced protocols before natural ones, else in the study's order."""
    service = rungs_named_apart(figures).service or ServiceFigures()
    found: dict[tuple[str, Protocol], dict[str, list[RungFigures]]] = {}
    for rung in service.rungs:
        found.setdefault((rung.tag, protocol_of(rung)), {}).setdefault(rung.arm, []).append(rung)
    made = (_ladder(service, tag, protocol, arms) for (tag, protocol), arms in found.items())
    return tuple(sorted(made, key=lambda ladder: ladder.protocol.stop != "forced"))


def _ladder(service: ServiceFigures, tag: str, protocol: Protocol, arms: Mapping[str, list[RungFigures]]) -> Ladder:
    off_first = sorted(arms.items(), key=lambda item: item[1][0].method != OFF)
    return Ladder(
        tag=tag,
        protocol=protocol,
        rungs={arm: tuple(sorted(rungs, key=lambda rung: rung.rate_per_s)) for arm, rungs in off_first},
        goodputs={g.arm: g for g in service.goodputs if (g.tag, g.protocol) == (tag, protocol.name)},
        gains={g.arm: g for g in service.gains if (g.tag, g.protocol) == (tag, protocol.name)},
    )


def arm_places(figures: StudyFigures) -> dict[str, int | None]:
    """Every arm of the open loops → its place among the speculating ones, which decides how pictures draw it.

    The same places as in the closed loops of the study, None for arms without speculation.
    """
    service = figures.service or ServiceFigures()
    speculating = list(dict.fromkeys((*Grid(figures).on_arms, *(r.arm for r in service.rungs if r.method != OFF))))
    return {r.arm: None if r.method == OFF else speculating.index(r.arm) for r in service.rungs}


def rungs_named_apart(figures: StudyFigures) -> StudyFigures:
    """The same figures, arms of open loops whose `method` reads alike named as well: `ngram K=4 (wide)`."""
    service = figures.service
    if service is None:
        return figures
    alike = shared_methods((rung.arm, rung.method) for rung in service.rungs) - {OFF}
    if not alike:
        return figures

    def words(method: str, arm: str) -> str:
        return f"{method} ({arm})" if method in alike else method

    return replace(
        figures,
        service=replace(
            service,
            rungs=tuple(replace(r, method=words(r.method, r.arm)) for r in service.rungs),
            goodputs=tuple(replace(g, method=words(g.method, g.arm)) for g in service.goodputs),
            gains=tuple(replace(g, method=words(g.method, g.arm)) for g in service.gains),
        ),
    )
