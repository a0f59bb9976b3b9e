"""Verdicts: a line drawn before the measurement, and whether the evidence is wholly on one side of it (METHOD 5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil, log
from typing import Any

import numpy as np

from specprof.analyse import stats
from specprof.analyse.evidence import Evidence, Series, contrast
from specprof.analyse.results import Figure, Outcome, VerdictFigures
from specprof.decide.looks import look_confidence
from specprof.store import DeclaredVerdict
from specprof.study.config import Selector, Study, VerdictSpec

PUBLISHABLE_BLOCKS = 4


def judge(study: Study, evidence: Evidence, declared: Mapping[str, DeclaredVerdict]) -> Iterator[VerdictFigures]:
    """Every verdict of the study. One that was not `declared` before the first measurement is post hoc.

    One block cannot show how a second would differ, so it decides nothing. With `blocks: auto` the interval is that of
    a planned look, wide enough to have looked before.
    """
    for spec in study.verdicts:
        confidence = look_confidence() if study.blocks == "auto" else 1 - spec.alpha
        over, under = (_series(spec, selector, evidence) for selector in (spec.numerator, spec.denominator))
        ratio = _ratio(spec, over, under, confidence)
        blocks = min((len(series.frames) for series in (over, under) if series), default=0)
        outcome = Outcome.of(ratio, spec.at_least) if blocks > 1 else Outcome.UNDECIDED
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
            needs=needs(ratio, spec.at_least, blocks) if outcome is Outcome.UNDECIDED else "",
        )


def needs(ratio: Figure, threshold: float, num_blocks: int) -> str:
    """What would decide it: how many blocks shrink the interval to the distance between estimate and threshold."""
    if not ratio.value or num_blocks == 0:
        return "the cells it compares have not been measured"
    if ratio.low is None or ratio.high is None or num_blocks < 2:
        return f"blocks: {PUBLISHABLE_BLOCKS}, since {num_blocks} cannot show how launches vary"
    distance = abs(log(ratio.value / threshold))
    reach = log(ratio.high / ratio.low) / 2
    if distance == 0:
        return "nothing will: the estimate is the threshold"
    blocks = max(num_blocks + 1, ceil(num_blocks * (reach / distance) ** 2))
    return f"about blocks: {blocks} (now {num_blocks}), if the estimate stays where it is"


def _series(spec: VerdictSpec, selector: Selector, evidence: Evidence) -> Series | None:
    return evidence.series.get((spec.workload, spec.protocol, selector.arm or spec.arm, selector.concurrency))


def _ratio(spec: VerdictSpec, over: Series | None, under: Series | None, confidence: float) -> Figure:
    if spec.metric == "throughput":
        return contrast([(over, 1), (under, -1)], confidence)
    if over is None or under is None:
        return Figure(None)
    by_block = _gaps(over.log_by_block("decode_speed"), under.log_by_block("decode_speed"))
    by_prompt = _gaps(over.log_by_prompt("decode_speed"), under.log_by_prompt("decode_speed"))
    return (
        stats.two_way(list(by_block), stats.variance_of_mean(by_prompt), confidence) if len(by_block) else Figure(None)
    )


def _gaps(over: Mapping[Any, float], under: Mapping[Any, float]) -> stats.Array:
    """The differences in the blocks, or for the prompts, that both have."""
    return np.array([over[unit] - under[unit] for unit in over if unit in under])
