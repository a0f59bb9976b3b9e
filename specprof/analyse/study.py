"""From sealed cells to everything a study has to say. The order here is the order of the argument."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp
from typing import Any

from specprof.analyse import comparisons, gates
from specprof.analyse.account import account_of, unexplained
from specprof.analyse.attached import attached_notes
from specprof.analyse.cell import cell_figures
from specprof.analyse.content import content_effects, identity, two_cuts
from specprof.analyse.evidence import Evidence, Key, Series, key_of
from specprof.analyse.explained import unneeded, with_explanations
from specprof.analyse.gates.found import LaunchFindings, each_once
from specprof.analyse.interference import interference
from specprof.analyse.looping import loop_evidence, own_ends
from specprof.analyse.mixed import mixed_effects
from specprof.analyse.pipeline import pipeline_figures
from specprof.analyse.prefill import TOGETHER, prefill_figures
from specprof.analyse.results import (
    CellFigures,
    GateFinding,
    Loops,
    Severity,
    StudyFigures,
)
from specprof.analyse.service import NOTHING_ASKED, Asked, service_figures
from specprof.analyse.split import split_gains
from specprof.records import Role
from specprof.store.explained import Explanation

LimitsOf = Mapping[int, gates.Limits]  # by launch number


def analyse(
    study: str,
    evidence: Evidence,
    environment: Mapping[str, Any],
    order: Sequence[str] = (),
    asked: Asked = NOTHING_ASKED,
    explanations: Sequence[Explanation] = (),
) -> StudyFigures:
    """Every figure of a study, shown in the `order` in which the study names its content tags and protocols.

    `asked`: what makes an answer of an open loop a useful one. `explanations`: what was said about gate 12.
    """
    of_launch = (evidence.drift, comparisons.cached_repeats(evidence.frames), gates.rehearsed(environment))
    limits = {launch: gates.limits(environment, launch) for launch in {f.data.launch for f in evidence.frames}}
    prefill = prefill_figures(evidence, of_launch, limits)
    speeds = {(p.tag, p.arm, p.concurrency): p.speed_tok_s.value for p in prefill if p.shape == TOGETHER and p.valid}
    found = [_cell(key, series, evidence, speeds, of_launch, limits) for key, series in evidence.series_of(Role.FIGURE)]
    shown = [with_explanations(cell, explanations) for cell in found]
    by_key = {key_of(cell): cell for cell in shown}
    split = [split_gains(cell, evidence, by_key) for cell in shown if cell.arm != evidence.off_arm]
    mixes = mixed_effects(evidence, by_key, of_launch, limits)

    def rank(name: str) -> tuple[int, str]:
        return (order.index(name) if name in order else len(order)), name

    def place(item: Any) -> tuple[Any, ...]:
        protocol = getattr(item, "protocol", "")
        load = getattr(item, "concurrency", 0)
        return rank(item.tag), rank(protocol), load, item.arm != evidence.off_arm, item.arm

    return StudyFigures(
        study=study,
        environment=environment,
        cells=tuple(sorted(shown, key=place)),
        gains=tuple(sorted((gain for gain in split if gain is not None), key=place)),
        prefill=tuple(sorted(prefill, key=place)),
        verdicts=(),
        notes=(*_notes(evidence), *attached_notes(environment), *unneeded(found, explanations)),
        contents=tuple(content_effects(evidence)),
        cuts=tuple(two_cuts(evidence)),
        surprise=tuple(sorted(evidence.sampled.figures, key=place)),
        mixes=tuple(sorted(mixes, key=place)),
        interference=tuple(interference(evidence, limits, of_launch)),
        pipeline=tuple(sorted(pipeline_figures(evidence, environment, shown), key=place)),
        service=service_figures(evidence.open_loops, asked, rank, of_launch, limits),
        arms=dict(sorted(_speculation(evidence).items())),
    )


def _cell(
    key: Key,
    series: Series,
    evidence: Evidence,
    speeds: Mapping[Any, float | None],
    of_launch: LaunchFindings,
    limits: LimitsOf,
) -> CellFigures:
    tag, _, arm, concurrency = key
    loops = loop_evidence(series, own_ends(evidence, series.cell))
    found = each_once(_gates(key, series, evidence, loops, of_launch, limits))
    return cell_figures(key, series, prefill_speed=speeds.get((tag, arm, concurrency)), loops=loops, gates=found)


def _gates(
    key: Key,
    series: Series,
    evidence: Evidence,
    loops: Loops | None,
    of_launch: LaunchFindings,
    limits: LimitsOf,
) -> Iterator[GateFinding]:
    """What every gate says of every block, those that need other cells included."""
    tag, protocol, _, concurrency = key
    off = [
        frame
        for (t, p, arm, _), other in evidence.series.items()
        if (t, p, arm) == (tag, protocol, evidence.off_arm)
        for frame in other.frames
    ]
    for frame in (*series.frames, *evidence.failed(key)):
        yield from gates.cell_gates(frame, loops, limits[frame.data.launch])
        yield from comparisons.changed_output(frame, off)
        yield from evidence.around(frame, of_launch)
    without = evidence.series.get((tag, protocol, evidence.off_arm or "", concurrency))
    if without is not None and series.cell.speculative_config:
        yield from comparisons.length_mismatch(*(s.log_by_prompt("output_tokens") for s in (series, without)))
        yield from _above_cause(series, without)
        yield from unexplained(account_of(series, without))
    yield from evidence.sampled.findings_of(key)


def _above_cause(on: Series, off: Series) -> Iterator[GateFinding]:
    with_drafts, without = identity(on), identity(off)
    if with_drafts is None or without is None:
        return
    gain = exp(with_drafts.total - without.total)
    finding = comparisons.above_cause(gain, exp(with_drafts.tokens_per_step), exp(without.tokens_per_step))
    if finding is None:
        return
    confirmed = comparisons.faster_with_drafts(on.frames, off.frames)
    if confirmed is None:
        yield replace(finding, severity=Severity.CAUTION, evidence=f"{finding.evidence}; too few full steps to be sure")
    elif confirmed:
        yield finding


def _notes(evidence: Evidence) -> Iterator[str]:
    told = (Role.FIGURE, Role.MIXED)
    for key in sorted({key_of(f.cell) for f in evidence.frames if f.cell.role in told} - set(evidence.series)):
        tag, protocol, arm, concurrency = key
        why = next(iter(evidence.failed(key)[0].failures), "no request was measured")
        yield f"{tag}, {protocol}, {arm}, N = {concurrency}: no figure, every request failed ({why})."
    unscored = evidence.sampled.unscored
    nameless = [key for key in unscored if not any(frame.names_tokens for frame in evidence.series[key].frames)]
    if nameless:
        yield (
            f"Gate 8 cannot be asked of {len(nameless)} sampled cells: the server does not say which tokens it wrote, "
            "so that the target cannot be asked about them."
        )
    if unscored := tuple(key for key in unscored if key not in nameless):
        yield (
            f"Gate 8 is open for {len(unscored)} sampled cells whose texts the target has not scored yet: "
            "'specprof run' does so when everything is measured."
        )
    blocks: dict[str, set[int]] = defaultdict(set)  # not launches: a resumed block has two
    for frame in evidence.frames:
        blocks[frame.cell.arm].add(frame.cell.block)
    fewest = min((len(found) for found in blocks.values()), default=0)
    if fewest == 1:
        yield (
            "One launch per arm: intervals hold the variation between prompts, not that between launches. "
            "blocks: 4 would measure both."
        )
    elif fewest and fewest < 4:
        yield f"{fewest} launches per arm: intervals are wide because launches are few; blocks: 4 is publishing grade."


def _speculation(evidence: Evidence) -> dict[str, Mapping[str, Any] | None]:
    """The speculative flags of every arm that was measured."""
    return {frame.cell.arm: frame.cell.speculative_config for frame in evidence.frames}
