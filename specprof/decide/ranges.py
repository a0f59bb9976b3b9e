"""Decisions at measured loads → load ranges, and the policy they make up.

Neighbouring loads that were decided alike are one range. Between two that were not, nobody measured where the change
happens: those loads are undecided, unless the fitted model's crossover lies wholly below them. A model may switch
speculation off between two measurements; it never switches it on, and nothing is said beyond the largest load.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from math import ceil

from specprof.analyse.evidence import Evidence
from specprof.analyse.modelled import Crossover, ModelFigures
from specprof.analyse.results import Figure, MixFigures, Severity, StudyFigures
from specprof.decide.policy import Choice, Decision, choices, protocol_named
from specprof.study.config import Study

MIXED_NOT_MEASURED = (
    "Mixed traffic was not measured: every figure is of one content alone. A content that accepts little may slow the "
    "others in its batch."
)


class Basis(StrEnum):
    """What a range rests on."""

    MEASURED = "measured"
    MODELLED = "modelled"  # in part: its caveats say which loads
    NONE = "not measured"


@dataclass(frozen=True, slots=True)
class LoadRange:
    """Numbers of streams, both ends included, that get the same treatment.

    `num_speculative_tokens` is 0 unless the range is on. `expected_gain` is X(on) / X(off) at that measured load of the
    range (`expected_at`) which speaks least for the decision: the smallest gain where it is on, else the largest.
    """

    low: int
    high: int
    decision: Decision
    arm: str | None
    method: str
    num_speculative_tokens: int
    expected_gain: Figure
    expected_at: int | None
    basis: Basis
    first_look: bool
    reason: str
    evidence: tuple[Choice, ...]
    caveats: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TagPolicy:
    """One content: its load ranges, streams rising. Without any where it was not measured under the protocol."""

    tag: str
    ranges: tuple[LoadRange, ...]

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What was decided at the measured loads."""
        return tuple(choice for part in self.ranges for choice in part.evidence)


@dataclass(frozen=True, slots=True)
class Policy:
    """What to do with each content, and what to know before doing it."""

    study: str
    protocol: str
    stop: str
    length: int
    margin: float
    tags: tuple[TagPolicy, ...]
    caveats: tuple[str, ...]


Crossovers = Mapping[tuple[str, str], Crossover]  # by tag and arm


def make_policy(
    study: Study,
    figures: StudyFigures,
    evidence: Evidence,
    *,
    protocol: str | None = None,
    margin: float,
    models: Sequence[ModelFigures] = (),
) -> Policy:
    """The policy of a study under one protocol (`protocol_named`). Raises InputError where it has no baseline.

    `models`: what was fitted to the study; its crossovers settle loads between two measured ones.
    """
    name = protocol_named(study, protocol)
    decided = choices(study, figures, evidence, name, margin)
    found = (crossover for model in models if model.protocol == name for crossover in model.crossovers)
    falls = {(crossover.tag, crossover.arm): crossover for crossover in found if crossover.where == "inside"}
    tags = tuple(TagPolicy(tag, load_ranges(tag, made, falls)) for tag, made in decided.items())
    spec = study.protocols[name]
    return Policy(
        study=study.study,
        protocol=name,
        stop=spec.stop.value,
        length=spec.length,
        margin=margin,
        tags=tags,
        caveats=(*mixed_caveats(figures), *_caveats(study, name, tags)),
    )


def load_ranges(tag: str, made: Sequence[Choice], crossovers: Crossovers) -> tuple[LoadRange, ...]:
    """Merge the choices of one content, streams rising, into ranges that leave no load between them out."""
    parts = list(_parts(made, tag, crossovers))
    return tuple(_range(part) for part in _merged(parts))


@dataclass(frozen=True, slots=True)
class _Part:
    """A stretch of loads before merging. `notes` are caveats of its own."""

    low: int
    high: int
    decision: Decision
    arm: str | None
    evidence: tuple[Choice, ...] = ()
    notes: tuple[str, ...] = ()
    modelled: bool = False


def _parts(made: Sequence[Choice], tag: str, crossovers: Crossovers) -> Iterator[_Part]:
    for choice, following in pairwise((*made, None)):
        if choice is None:
            return
        yield _measured(choice)
        if following is not None and following.concurrency > choice.concurrency + 1:
            yield from _between(_measured(choice), _measured(following), tag, crossovers)


def _measured(choice: Choice) -> _Part:
    arm = choice.best.arm if choice.decision is Decision.ON and choice.best else None
    return _Part(choice.concurrency, choice.concurrency, choice.decision, arm, (choice,))


def _between(below: _Part, above: _Part, tag: str, crossovers: Crossovers) -> Iterator[_Part]:
    """The loads between two measured ones."""
    low, high = below.high + 1, above.low - 1
    if (below.decision, below.arm) == (above.decision, above.arm):
        yield _Part(low, high, below.decision, below.arm)
        return
    crossover = crossovers.get((tag, below.arm or ""))
    falls_by = crossover.concurrency.high if crossover is not None else None
    off_from = high + 1
    if below.decision is Decision.ON and above.decision is Decision.OFF and falls_by is not None:
        off_from = min(max(ceil(falls_by), low), high + 1)
    if low < off_from:
        yield _Part(low, off_from - 1, Decision.UNDECIDED, None, notes=tuple(_unknown(below, above)))
    if off_from <= high and crossover is not None:
        yield _Part(off_from, high, Decision.OFF, None, notes=(_modelled(off_from, high, crossover),), modelled=True)


def _unknown(below: _Part, above: _Part) -> Iterator[str]:
    if Decision.UNDECIDED not in (below.decision, above.decision):  # else the loads join what is undecided anyway
        sides = (f"{part.low if part is above else part.high} ({part.decision})" for part in (below, above))
        yield f"where it changes between {' and '.join(sides)} was not measured"


def _modelled(low: int, high: int, crossover: Crossover) -> str:
    at, source = crossover.concurrency, "the model" if crossover.modelled else "the measured gains around it"
    bounds = ", ".join(f"{bound:.1f}" for bound in (at.low, at.high) if bound is not None)
    where = f"{at.value:.1f} streams" if at.value is not None else "a load"
    return f"{streams(low, high)}: modelled, not measured; the gain falls through 1 at {where} [{bounds}] by {source}"


def _merged(parts: Iterable[_Part]) -> Iterator[_Part]:
    current: _Part | None = None
    for part in parts:
        if current is None:
            current = part
        elif (current.decision, current.arm) == (part.decision, part.arm):
            current = replace(
                current,
                high=part.high,
                evidence=(*current.evidence, *part.evidence),
                notes=(*current.notes, *part.notes),
                modelled=current.modelled or part.modelled,
            )
        else:
            yield current
            current = part
    if current is not None:
        yield current


def _range(part: _Part) -> LoadRange:
    weakest = _least_convincing(part)
    best = weakest.best if weakest else None
    return LoadRange(
        low=part.low,
        high=part.high,
        decision=part.decision,
        arm=part.arm,
        method=best.method if best else "",
        num_speculative_tokens=best.num_speculative_tokens if best and part.decision is Decision.ON else 0,
        expected_gain=best.gain if best else Figure(None),
        expected_at=weakest.concurrency if weakest else None,
        basis=Basis.MODELLED if part.modelled else Basis.MEASURED if part.evidence else Basis.NONE,
        first_look=any(choice.first_look for choice in part.evidence),
        reason=weakest.reason if weakest else "; ".join(part.notes),
        evidence=part.evidence,
        caveats=tuple(dict.fromkeys((*(part.notes if weakest else ()), *_range_caveats(part.evidence)))),
    )


def _least_convincing(part: _Part) -> Choice | None:
    def gain(choice: Choice) -> float:
        return (choice.best.gain.value if choice.best else None) or 0.0

    if not part.evidence:
        return None
    return min(part.evidence, key=gain) if part.decision is Decision.ON else max(part.evidence, key=gain)


def _range_caveats(evidence: Iterable[Choice]) -> Iterator[str]:
    for choice in evidence:
        at = f"at {streams(choice.concurrency, choice.concurrency)}"
        if choice.tied:
            yield f"{at}: not told apart from {', '.join(other.method for other in choice.tied)}"
        for candidate in choice.candidates:
            if candidate is not choice.best and candidate.forbidden is not None:
                gate = candidate.forbidden
                yield f"{at}: {candidate.method} was left out, gate {gate.gate} ({gate.name}) forbids its figure"
        for gate in choice.best.gates if choice.best else ():
            if gate.severity is Severity.CAUTION:
                yield f"{at}: gate {gate.gate} ({gate.name}): {gate.evidence}"


def mixed_caveats(figures: StudyFigures) -> tuple[str, ...]:
    """What is known of contents that share a batch: each mixed figure with speculation, or that none was measured."""
    told = tuple(_mixed(mix) for mix in figures.mixes if figures.arms.get(mix.arm) is not None)
    return told or (MIXED_NOT_MEASURED,)


def _mixed(mix: MixFigures) -> str:
    beside = f"{mix.tag} beside {' and '.join(mix.beside)} at N={mix.concurrency}, {mix.method}"
    if not mix.valid:
        return f"Mixed traffic, {beside}: a gate forbids this figure, so nothing is known of it."
    slowed = f"Mixed traffic, {beside}: {mix.verdict.value}, {_ratio(mix.tested_ratio)} of its decode speed alone"
    gain = mix.speculation_gain_mixed
    if gain is None or gain.value is None:
        return f"{slowed}."
    return f"{slowed}; there speculation makes its decoding {_ratio(gain)} as fast as without."


def _ratio(figure: Figure) -> str:
    if figure.value is None:
        return "an unknown share"
    bounds = f" [{figure.low:.2f}, {figure.high:.2f}]" if figure.low is not None and figure.high is not None else ""
    return f"{figure.value:.2f}×{bounds}"


def _caveats(study: Study, protocol: str, tags: Sequence[TagPolicy]) -> Iterator[str]:
    made = [choice for tag in tags for choice in tag.choices]
    if any(choice.first_look for choice in made):
        yield (
            "One block per arm: a first look. Intervals hold the variation between prompts, not between launches; "
            "blocks: 4 would measure both. Decisions marked (first look) rest on it."
        )
    num_arms = max((len(choice.candidates) for choice in made), default=0)
    if num_arms > 1:
        yield (
            f"The best of {num_arms} arms was chosen: intervals are wide enough to hold for all of them together "
            "(Bonferroni)."
        )
    if study.protocols[protocol].stop.value == "forced":
        yield (
            f"Decided under forced {study.protocols[protocol].length} tokens. Texts that end by themselves spend a "
            "larger share of their time being read and may gain less; --protocol decides by another one."
        )
    largest = max((choice.concurrency for choice in made), default=0)
    yield f"Nothing is decided beyond {streams(largest, largest)}, the most measured: speculation stays off there."


def streams(low: int, high: int) -> str:
    """`1 stream`, `4–8 streams`."""
    return f"{low}–{high} streams" if high > low else f"{low} {'stream' if low == 1 else 'streams'}"
