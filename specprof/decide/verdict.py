"""Verdicts: a line drawn before the measurement, and whether the evidence is wholly on one side of it (METHOD 5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import ceil, log
from typing import Any

import numpy as np

from specprof.analyse import stats
from specprof.analyse.evidence import Basis, Evidence, Key, Series, basis, contrast, key_of
from specprof.analyse.results import CellFigures, Figure, Outcome, Severity, VerdictFigures
from specprof.decide.looks import look_confidence
from specprof.store import DeclaredVerdict
from specprof.study.config import Selector, Study, VerdictSpec

PUBLISHABLE_BLOCKS = 4


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
        asked = forbidden or needs(ratio, spec.at_least, rests_on)
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


def needs(ratio: Figure, threshold: float, rests_on: Basis) -> str:
    """What would decide it: how many blocks or prompts shrink the interval to the distance to the threshold.

    Blocks shrink what launches add to it, prompts what prompts add.
    """
    num_blocks, of_prompts = rests_on.num_blocks, rests_on.prompts_reach
    if not ratio.value or num_blocks == 0:
        return "the cells it compares have not been measured"
    if of_prompts is None:
        return f"more prompts: at least 2, since {rests_on.num_prompts} cannot show how prompts vary"
    if ratio.low is None or ratio.high is None or num_blocks < 2:
        return f"blocks: {PUBLISHABLE_BLOCKS}, since {num_blocks} cannot show how launches vary"
    distance = abs(log(ratio.value / threshold))
    if distance == 0:
        return "nothing will: the estimate is the threshold"
    reach = log(ratio.high / ratio.low) / 2
    return f"about {_units_needed(distance, reach, of_prompts, rests_on)}, if the estimate stays where it is"


def _units_needed(distance: float, reach: float, of_prompts: float, rests_on: Basis) -> str:
    """`blocks: 16 (now 4)`, or prompts where theirs alone reaches the threshold, or both where launches' does as well.

    Squares of the reaches add; those of launches shrink with 1 / blocks, those of prompts with 1 / prompts.
    """
    room, prompts = distance**2, of_prompts**2
    launches = max(reach**2 - prompts, 0.0)
    if prompts < room:
        return f"blocks: {_more(rests_on.num_blocks, launches / (room - prompts))}"
    left = max(room - launches, room / 2)
    told = f"prompts: {_more(rests_on.num_prompts, prompts / left)}"
    if launches <= room / 2:
        return f"{told}, since blocks send the same ones again"
    return f"{told} and blocks: {_more(rests_on.num_blocks, launches / (room / 2))}"


def _more(now: int, factor: float) -> str:
    return f"{max(now + 1, ceil(now * factor))} (now {now})"


def _key(spec: VerdictSpec, selector: Selector) -> Key:
    return spec.workload, spec.protocol, selector.arm or spec.arm, selector.concurrency


def _ratio(spec: VerdictSpec, over: Series | None, under: Series | None, confidence: float) -> tuple[Figure, Basis]:
    """The ratio, and what its interval rests on."""
    terms = [(over, 1), (under, -1)]
    if spec.metric == "throughput":
        return contrast(terms, confidence), basis(terms, confidence)
    if over is None or under is None:
        return Figure(None), Basis(0)
    by_block = _gaps(over.log_by_block("decode_speed"), under.log_by_block("decode_speed"))
    by_prompt = _gaps(over.log_by_prompt("decode_speed"), under.log_by_prompt("decode_speed"))
    prompts = stats.variance_of_mean(by_prompt)
    rests_on = Basis(len(by_block), len(by_prompt), stats.reach(prompts, confidence))
    return (stats.two_way(list(by_block), prompts, confidence) if len(by_block) else Figure(None)), rests_on


def _gaps(over: Mapping[Any, float], under: Mapping[Any, float]) -> stats.Array:
    """The differences in the blocks, or for the prompts, that both have."""
    return np.array([over[unit] - under[unit] for unit in over if unit in under])
