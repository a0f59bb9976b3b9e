"""When a study with `blocks: auto` may stop: planned looks, and a boundary that pays for looking more than once.

Looks come after 4, 8 and 12 blocks. Pocock's constant boundary |z| > 2.289 (Pocock 1977) keeps the two-sided error at
5% over all three if the variance is known. Here it is estimated from those few blocks, and intervals use Student's t:
with 2.289 they would err in 5.4% of studies, with 2.32 they err in 5.0%. So a look's intervals are drawn at 97.97%.
"""

from __future__ import annotations

from dataclasses import replace
from math import log

from specprof.analyse import distributions
from specprof.analyse.evidence import Evidence, contrasted
from specprof.analyse.results import DecisionFigures, Figure, Outcome, StudyFigures
from specprof.study.config import AUTO_LOOKS

BOUNDARY_Z = 2.32


def look_confidence() -> float:
    """Two-sided confidence of one look's interval."""
    return 1 - 2 * distributions.norm_sf(BOUNDARY_Z)


def enough(figures: StudyFigures, target_half_width: float) -> bool:
    """Whether a look may be the last: every verdict is decided, every valid speculation gain known well enough."""
    verdicts_decided = all(v.outcome is not Outcome.UNDECIDED for v in figures.verdicts)
    gains = [gain.speculation_gain for gain in figures.gains if gain.valid]
    return verdicts_decided and bool(gains or figures.verdicts) and all(_narrow(g, target_half_width) for g in gains)


def settled(figures: StudyFigures, evidence: Evidence, line: float) -> bool:
    """The same of a study whose gains need only decide (`until: decided`): every load of every content is on or off, or
    such that no more blocks will tell. No number of them mends a gain that is unfit.

    `line`: what a gain has to exceed.
    """
    verdicts_decided = all(v.outcome is not Outcome.UNDECIDED for v in figures.verdicts)
    open_loads = [load for load in figures.decisions if load.decision == "undecided"]
    return (
        verdicts_decided
        and bool(figures.decisions or figures.verdicts)
        and all(_left_to_prompts(load, evidence, line) for load in open_loads)
    )


def _left_to_prompts(load: DecisionFigures, evidence: Evidence, line: float) -> bool:
    """Whether the prompts alone leave the line inside the interval, at the last look and if launches never differed.

    Blocks send the same prompts, so they narrow only what launches add; another sample of prompts would move the rest,
    and how far, a single prompt never shows. With few prompts, more launches also tell better how the rest varies.
    """
    arms = (load.arm, evidence.off_arm or "")
    on, off = (evidence.series.get((load.tag, load.protocol, arm, load.concurrency)) for arm in arms)
    if on is None or off is None or load.gain.value is None:
        return False
    _, rests_on = contrasted([(on, 1), (off, -1)])
    distance = abs(log(load.gain.value / line))
    reaches = (of.reach(look_confidence(), blocks=AUTO_LOOKS[-1]) for of in (rests_on, replace(rests_on, launches=0.0)))
    return all(reach is None or distance < reach for reach in reaches)


def _narrow(gain: Figure, target_half_width: float) -> bool:
    return gain.half_width is not None and gain.half_width <= target_half_width
