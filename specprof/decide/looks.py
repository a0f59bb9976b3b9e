"""When a study with `blocks: auto` may stop: planned looks, and a boundary that pays for looking more than once.

Looks come after 4, 8 and 12 blocks. Pocock's constant boundary |z| > 2.289 (Pocock 1977) keeps the two-sided error at
5% over all three if the variance is known. Here it is estimated from those few blocks, and intervals use Student's t:
with 2.289 they would err in 5.4% of studies, with 2.32 they err in 5.0%. So a look's intervals are drawn at 97.97%.
"""

from __future__ import annotations

from scipy import stats as distributions

from specprof.analyse.results import Figure, Outcome, StudyFigures

BOUNDARY_Z = 2.32


def look_confidence() -> float:
    """Two-sided confidence of one look's interval."""
    return float(1 - 2 * distributions.norm.sf(BOUNDARY_Z))


def enough(figures: StudyFigures, target_half_width: float) -> bool:
    """Whether a look may be the last: every verdict is decided, every valid speculation gain known well enough."""
    verdicts_decided = all(v.outcome is not Outcome.UNDECIDED for v in figures.verdicts)
    gains = [gain.speculation_gain for gain in figures.gains if gain.valid]
    return verdicts_decided and bool(gains or figures.verdicts) and all(_narrow(g, target_half_width) for g in gains)


def _narrow(gain: Figure, target_half_width: float) -> bool:
    return gain.half_width is not None and gain.half_width <= target_half_width
