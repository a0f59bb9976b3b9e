"""Which content gets speculation, with which draft, up to which load: on, off or undecided (METHOD 6, "Decision").

At every measured number of streams the fastest arm with speculation is held against the off arm. It is shipped only
if the lower bound of its gain clears 1 + margin; it stays off if no arm's upper bound reaches that line; anything else
is undecided, which means off until somebody measures more. Reading the best of several arms by its own 95% interval
would be a winner's curse, so with m arms each interval is drawn at 1 - alpha/m (Bonferroni) and all hold together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from specprof.analyse.evidence import Evidence, Variation, contrast, contrasted, key_of
from specprof.analyse.gates.found import each_once
from specprof.analyse.results import (
    CellFigures,
    DecisionFigures,
    Figure,
    GateFinding,
    Severity,
    StudyFigures,
    TriedArm,
)
from specprof.analyse.stats import CONFIDENCE
from specprof.decide.looks import look_confidence
from specprof.decide.verdict import needs
from specprof.errors import InputError
from specprof.records import Stop, draft_length
from specprof.study.bounds import bound_of
from specprof.study.config import Study

MARGIN = 0.03


class Decision(StrEnum):
    """Undecided is an answer: nothing is switched on before the evidence is there."""

    ON = "on"
    OFF = "off"
    UNDECIDED = "undecided"


def decided(gain: Figure, margin: float = MARGIN) -> Decision:
    """One gain against its line, 1 + margin: wholly above, wholly below, or undecided (also without an interval)."""
    if gain.low is None or gain.high is None:
        return Decision.UNDECIDED
    if gain.low > 1 + margin:
        return Decision.ON
    return Decision.OFF if gain.high < 1 + margin else Decision.UNDECIDED


@dataclass(frozen=True, slots=True)
class Candidate:
    """An arm with speculation at one load. `gain` is X(on) / X(off), its interval wide enough for all arms together.

    `confidence` is that of this interval, `rests_on` what it rests on. `gates` are those of both cells, each once.
    """

    arm: str
    method: str
    num_speculative_tokens: int
    throughput_tok_s: Figure
    gain: Figure
    rests_on: Variation
    confidence: float = CONFIDENCE
    gates: tuple[GateFinding, ...] = ()

    @property
    def forbidden(self) -> GateFinding | None:
        """The gate that keeps this gain from deciding anything, if there is one."""
        return next((gate for gate in self.gates if gate.severity is Severity.INVALID), None)

    @property
    def fit(self) -> bool:
        """Whether this gain may decide: a value, and no gate against it."""
        return self.gain.value is not None and self.forbidden is None

    def proven(self, margin: float) -> bool:
        """Whether the whole interval is beyond 1 + margin, and no gate objects."""
        return self.fit and decided(self.gain, margin) is Decision.ON


@dataclass(frozen=True, slots=True)
class Choice:
    """What the evidence decides at one measured number of streams.

    `best`: the fastest fit arm (the fastest of all where a gate forbids every one). `tied`: the others that were as
    fast, as far as this evidence can tell. `first_look`: one block per arm, which cannot show how another launch would
    differ.
    """

    concurrency: int
    decision: Decision
    reason: str
    best: Candidate | None
    candidates: tuple[Candidate, ...]
    tied: tuple[Candidate, ...] = ()

    @property
    def first_look(self) -> bool:
        """Whether this is a first look only."""
        return self.best is not None and self.best.rests_on.num_blocks < 2


def choose(concurrency: int, candidates: Sequence[Candidate], margin: float) -> Choice:
    """Decide one load. Intervals of `candidates` must already hold together (see the module)."""
    fit = [candidate for candidate in candidates if candidate.fit]
    best = max(fit or candidates, key=_speed, default=None)
    if best is None:
        return Choice(concurrency, Decision.UNDECIDED, "no arm with speculation was measured here", None, ())
    if best.forbidden is not None:
        return Choice(concurrency, Decision.UNDECIDED, _forbidden(best.forbidden), best, tuple(candidates))
    if best.proven(margin):
        decision, reason = Decision.ON, f"the whole interval lies above the margin of {margin:+.1%}"
    elif fit and all(decided(candidate.gain, margin) is Decision.OFF for candidate in fit):
        decision, reason = Decision.OFF, _why_off(best.gain, margin)
    else:
        decision, reason = Decision.UNDECIDED, _why_undecided(best, margin)
    return Choice(concurrency, decision, reason, best, tuple(candidates))


def _speed(candidate: Candidate) -> float:
    return candidate.throughput_tok_s.value or 0.0


def _forbidden(gate: GateFinding) -> str:
    return f"gate {gate.gate} ({gate.name}) forbids this figure: {gate.evidence.rstrip('.')}. {gate.remedy}"


def _why_off(gain: Figure, margin: float) -> str:
    if gain.high is not None and gain.high < 1:
        return "speculation would lose throughput here"
    return f"whatever speculation gains here is less than the margin of {margin:+.1%}"


def _why_undecided(best: Candidate, margin: float) -> str:
    line = 1 + margin
    if best.gain.low is None or best.gain.high is None:
        return f"the gain has no interval; needs {needs(best.gain, line, best.rests_on, best.confidence)}"
    if best.gain.high < line:
        slower = "the fastest arm gains too little, but a slower one's interval is wide enough to gain"
        return f"{slower}; needs more blocks or prompts"
    asked = needs(best.gain, line, best.rests_on, best.confidence)
    return f"the margin of {margin:+.1%} lies inside the interval; needs {asked}"


# -- from a study ----------------------------------------------------------------------------------------------------


def protocol_named(study: Study, name: str | None) -> str:
    """The protocol to decide by: the one named, else the first forced one (METHOD 2), else the first of all.

    Raises InputError for one that is not in the study, in which contents share the engine, or whose requests come by
    the clock; and where a study has no other.
    """
    # a study that mixes contents measures each of them alone as well
    alone = [known for known, protocol in study.protocols.items() if protocol.mix is None]
    closed = [known for known in alone if study.load_of(known) is None]
    if name is not None and name not in study.protocols:
        raise InputError(f"--protocol {name}: is not in this study; it has {', '.join(study.protocols)}.")
    if not closed:
        raise InputError(
            f"{study.study}: no protocol of this study is a closed loop, and a policy needs one: the throughput of an "
            "open loop is what was asked of it. Add one with a concurrency: of its own, in a study of another "
            "name, and measure that."
        )
    if name is None:
        return next((known for known in closed if study.protocols[known].stop is Stop.FORCED), closed[0])
    if name not in alone:
        raise InputError(f"--protocol {name}: mixes contents, and a policy needs each alone: {', '.join(closed)}.")
    if name not in closed:
        raise InputError(
            f"--protocol {name}: is an open loop, whose throughput is what was asked of it; a policy needs a closed "
            f"one: {', '.join(closed)}."
        )
    return name


def choices(
    study: Study, figures: StudyFigures, evidence: Evidence, protocol: str, margin: float
) -> dict[str, tuple[Choice, ...]]:
    """What is decided at each measured load of each content, streams rising; the contents in the study's order.

    Raises InputError where nothing was measured without speculation, since every gain is held against that.
    """
    bounds = bounding_arms(figures)
    cells = {key_of(cell): cell for cell in figures.cells if cell.protocol == protocol and cell.arm not in bounds}
    if not any(cell.arm == evidence.off_arm for cell in cells.values()):
        raise InputError(f"{figures.study}: {_no_baseline(study, protocol)}")
    confidence = look_confidence() if study.blocks == "auto" else CONFIDENCE
    found: dict[str, tuple[Choice, ...]] = {workload.tag: () for workload in study.workloads}
    for tag in found:
        loads = sorted({cell.concurrency for cell in cells.values() if cell.tag == tag})
        rows = (_Row(evidence, cells, (tag, protocol, n), confidence) for n in loads)
        found[tag] = tuple(row.choice(margin) for row in rows)
    return found


def _no_baseline(study: Study, protocol: str) -> str:
    off = next((name for name, arm in study.arms.items() if not arm.speculative_config), None)
    if off is None:
        return (
            f"holds no cell of protocol '{protocol}' without speculation, so there is no gain to decide by. Measure an "
            'arm "off": {} beside the others.'
        )
    return (
        f"arm '{off}' is not measured yet under protocol '{protocol}', and every gain is held against it. Go on with "
        "'specprof run CONFIG', or name a protocol that is measured with --protocol."
    )


def bounding_arms(figures: StudyFigures) -> set[str]:
    """Arms that nobody would serve with (`study.bounds`): they are measured, and never chosen."""
    launches = figures.environment.get("launches") or {}
    target = next((str(facts.get("model") or "") for facts in launches.values()), "")
    return {arm for arm, flags in figures.arms.items() if bound_of(flags, target)}


def decisions(study: Study, figures: StudyFigures, evidence: Evidence) -> Iterator[DecisionFigures]:
    """Every measured load of every content and unmixed protocol; nothing without an arm that does not speculate."""
    if evidence.off_arm is None:
        return
    for name, protocol in study.protocols.items():
        measured = {cell.arm for cell in figures.cells if cell.protocol == name}
        if protocol.mix is not None or evidence.off_arm not in measured:
            continue
        for tag, chosen in choices(study, figures, evidence, name, MARGIN).items():
            for choice in chosen:
                if choice.best is not None:
                    yield _told(tag, name, choice, choice.best)


def _told(tag: str, protocol: str, choice: Choice, best: Candidate) -> DecisionFigures:
    return DecisionFigures(
        tag=tag,
        protocol=protocol,
        concurrency=choice.concurrency,
        decision="not fit" if best.forbidden else choice.decision.value,
        arm=best.arm,
        method=best.method,
        gain=best.gain,
        first_look=choice.first_look,
        reason=choice.reason,
        confidence=best.confidence,
        tried=tuple(TriedArm(one.arm, one.gain, one.fit, one in choice.tied) for one in choice.candidates),
    )


class _Row:
    """All arms of one content, protocol and load."""

    def __init__(
        self,
        evidence: Evidence,
        cells: Mapping[tuple[str, str, str, int], CellFigures],
        place: tuple[str, str, int],
        confidence: float,
    ) -> None:
        tag, protocol, self.concurrency = place
        here = {c.arm: c for (t, p, _, n), c in cells.items() if (t, p, n) == place}
        self._off = here.pop(evidence.off_arm or "", None)
        self._cells = here
        self._series = {arm: evidence.series.get((tag, protocol, arm, self.concurrency)) for arm in here}
        self._without = evidence.series.get((tag, protocol, evidence.off_arm or "", self.concurrency))
        self._confidence = confidence

    def choice(self, margin: float) -> Choice:
        made = choose(self.concurrency, tuple(self._candidates()), margin)
        if made.decision is not Decision.ON or made.best is None:
            return made
        tied = tuple(other for other in made.candidates if other.fit and self._is_tied(other, made.best))
        return replace(made, tied=tied)

    def _candidates(self) -> Iterator[Candidate]:
        without = self._without
        if self._off is None or without is None:
            return
        each = 1 - (1 - self._confidence) / max(len(self._cells), 1)
        for arm, cell in self._cells.items():
            series = self._series[arm]
            if series is None:
                continue
            gain, rests_on = contrasted([(series, 1), (without, -1)], each)
            yield Candidate(
                arm=arm,
                method=cell.method,
                num_speculative_tokens=draft_length(series.cell.speculative_config),
                throughput_tok_s=cell.throughput_tok_s,
                gain=gain,
                rests_on=rests_on,
                confidence=each,
                gates=_gates(cell, self._off),
            )

    def _is_tied(self, other: Candidate, best: Candidate) -> bool:
        """Whether this evidence cannot tell an arm's speed from the best one's."""
        if other.arm == best.arm:
            return False
        lead = contrast([(self._series[best.arm], 1), (self._series[other.arm], -1)], self._confidence)
        return lead.low is None or lead.low <= 1


def _gates(*cells: CellFigures) -> tuple[GateFinding, ...]:
    """Each once, those that forbid a figure first."""
    found = each_once(gate for cell in cells for gate in cell.gates)
    return tuple(sorted(found, key=lambda gate: (gate.severity is not Severity.INVALID, gate.gate)))
