"""Verdicts: a line drawn before the measurement, and whether the evidence is wholly on one side of it (METHOD 5)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from math import log
from typing import Any

import numpy as np

from specprof.analyse import stats
from specprof.analyse.evidence import Evidence, Key, Series, Variation, contrasted, key_of
from specprof.analyse.results import CellFigures, Figure, Outcome, Severity, VerdictFigures
from specprof.decide.looks import look_confidence
from specprof.store import DeclaredVerdict
from specprof.study.config import Selector, Study, VerdictSpec

PUBLISHABLE_BLOCKS = 4
MOST_BLOCKS, MOST_PROMPTS = 100, 1000  # nobody is told to measure more


def judge(
    study: Study, evidence: Evidence, declared: Mapping[str, DeclaredVerdict], cells: Iterable[CellFigures]
) -> Iterator[VerdictFigures]:
    """Every verdict of the study. One that was not `declared` before the first measurement is post hoc.

    `cells`: the figures of the evidence; one that a gate forbids decides nothing, however clear its ratio is. Nor does
    one block, which cannot show how a second would differ. With `blocks: auto` the interval is that of a planned look,
    wide enough to have looked before.
    """
    shown = {key_of(cell): cell for cell in cells}
    for spec in study.verdicts:
        confidence = look_confidence() if study.blocks == "auto" else 1 - spec.alpha
        keys = [_key(spec, selector) for selector in (spec.numerator, spec.denominator)]
        over, under = (evidence.series.get(key) for key in keys)
        ratio, rests_on = _ratio(spec, over, under, confidence)
        forbidden = next(_forbidden(shown[key] for key in keys if key in shown), None)
        decides = forbidden is None and rests_on.num_blocks > 1
        outcome = Outcome.of(ratio, spec.at_least) if decides else Outcome.UNDECIDED
        asked = forbidden or needs(ratio, spec.at_least, rests_on, confidence)
        yield VerdictFigures(
            name=spec.name,
            metric=spec.metric,
            tag=spec.workload,
            protocol=spec.protocol,
            outcome=outcome,
            ratio=ratio,
            threshold=spec.at_least,
            hash=spec.digest()[:12],
            post_hoc=declared.get(spec.name) != DeclaredVerdict(spec.digest(), post_hoc=False),
            needs=asked if outcome is Outcome.UNDECIDED else "",
        )


def _forbidden(cells: Iterable[CellFigures]) -> Iterator[str]:
    """What must be done about each gate that forbids one of these cells. No number of blocks mends it."""
    for cell in cells:
        for gate in cell.gates:
            if gate.severity is Severity.INVALID:
                where = f"{cell.arm} at N={cell.concurrency}"
                evidence, remedy = gate.evidence.rstrip("."), gate.remedy.rstrip(".")
                yield (
                    f"cells that no gate forbids. Gate {gate.gate} ({gate.name}) forbids {where}: {evidence}. {remedy}"
                )


def needs(ratio: Figure, threshold: float, rests_on: Variation, confidence: float = stats.CONFIDENCE) -> str:
    """What would decide it: how many blocks or prompts shrink the interval to the distance to the threshold.

    Blocks shrink what launches add to it, prompts what prompts add. `confidence`: that of the interval.
    """
    num_blocks = rests_on.num_blocks
    if not ratio.value or num_blocks == 0:
        return "the cells it compares have not been measured"
    if rests_on.prompts is None:
        shared = f"{rests_on.num_prompts} cannot show how prompts vary" if rests_on.num_prompts else "they share none"
        return f"more prompts: at least 2, since {shared}"
    if ratio.low is None or ratio.high is None or num_blocks < 2:
        return f"blocks: {PUBLISHABLE_BLOCKS}, since {num_blocks} cannot show how launches vary"
    distance = abs(log(ratio.value / threshold))
    if distance == 0:
        return "nothing will: the estimate is the threshold"
    asked = _units_needed(distance, rests_on, confidence)
    if not asked:
        return f"more than {MOST_BLOCKS} blocks of {MOST_PROMPTS} prompts: the estimate is all but the threshold"
    return f"about {asked}, if the estimate stays where it is"


def _units_needed(distance: float, rests_on: Variation, confidence: float) -> str:
    """`blocks: 16 (now 4)`, or prompts where no number of blocks would do, or both; empty where not even that would."""
    now, prompts = rests_on.num_blocks, rests_on.num_prompts

    def decides(blocks: int, prompts: int) -> bool:
        reach = rests_on.reach(confidence, blocks=blocks, prompts=prompts)
        return reach is not None and reach < distance

    if found := next((n for n in range(now + 1, MOST_BLOCKS + 1) if decides(n, prompts)), None):
        return f"blocks: {found} (now {now})"
    more = range(prompts + 1, MOST_PROMPTS + 1)
    if (place := bisect_left(more, True, key=lambda n: decides(now, n))) < len(more):
        return f"prompts: {more[place]} (now {prompts}), since blocks send the same ones again"
    for factor in range(2, MOST_BLOCKS):
        if factor * now <= MOST_BLOCKS and factor * prompts <= MOST_PROMPTS and decides(factor * now, factor * prompts):
            return f"prompts: {factor * prompts} (now {prompts}) and blocks: {factor * now} (now {now})"
    return ""


def _key(spec: VerdictSpec, selector: Selector) -> Key:
    return spec.workload, spec.protocol, selector.arm or spec.arm, selector.concurrency


def _ratio(spec: VerdictSpec, over: Series | None, under: Series | None, confidence: float) -> tuple[Figure, Variation]:
    """The ratio, and what its interval rests on."""
    if spec.metric == "throughput":
        return contrasted([(over, 1), (under, -1)], confidence)
    if over is None or under is None:
        return Figure(None), Variation(0)
    by_block = _gaps(over.log_by_block("decode_speed"), under.log_by_block("decode_speed"))
    by_prompt = _gaps(over.log_by_prompt("decode_speed"), under.log_by_prompt("decode_speed"))
    prompts = stats.variance_of_mean(by_prompt)
    launches, _ = stats.variance_of_mean(by_block)
    rests_on = Variation(len(by_block), prompts[1] + 1, launches, prompts[0] if prompts[1] else None)
    return (stats.two_way(list(by_block), prompts, confidence) if len(by_block) else Figure(None)), rests_on


def _gaps(over: Mapping[Any, float], under: Mapping[Any, float]) -> stats.Array:
    """The differences in the blocks, or for the prompts, that both have."""
    return np.array([over[unit] - under[unit] for unit in over if unit in under])
