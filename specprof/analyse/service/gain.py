"""What speculation does to the goodput: on / off, both arms given the same arrivals and the same prompts.

The ratio's interval is derived from those of the two goodputs: it runs from on's lower end over off's upper end to the
reverse. Each is drawn at 97.5%, so that both hold together at 95% whatever the arms share (Bonferroni); what they share
can only make it hold more often. Where at one measured rate one arm surely holds and the other surely misses, the
answer is decided by that rate alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specprof.analyse.results import Figure
from specprof.analyse.service.goodput import Climb, climb, goodput_rate
from specprof.analyse.service.rung import Rung
from specprof.analyse.service_results import GoodputFigures, GoodputGain
from specprof.analyse.stats import CONFIDENCE

CONFIDENCE_OF_TWO = 1 - (1 - CONFIDENCE) / 2

RAISES, LOWERS, UNDECIDED = "raises", "lowers", "undecided"


def goodput_gain(on: GoodputFigures, off: GoodputFigures, rungs: tuple[Sequence[Rung], Sequence[Rung]]) -> GoodputGain:
    """On against off. `rungs`: those that the goodput of each, on and off, was made of."""
    ladders = [climb(of_arm, CONFIDENCE_OF_TWO) for of_arm in rungs]
    wide_on, wide_off = (goodput_rate(ladder, on.share) for ladder in ladders)
    outcome = _outcome(wide_on, wide_off) if on.valid and off.valid else UNDECIDED
    needs = ", ".join(_needs(on, off, ladders)) if outcome == UNDECIDED else ""
    return GoodputGain(
        tag=on.tag,
        protocol=on.protocol,
        arm=on.arm,
        method=on.method,
        off=off,
        on=on,
        ratio=_over(wide_on, wide_off),
        outcome=outcome,
        needs=needs,
        difference_per_s=_less(wide_on, wide_off),
    )


def _over(on: Figure, off: Figure) -> Figure:
    def over(a: float | None, b: float | None) -> float | None:
        return a / b if a is not None and b else None

    return Figure(over(on.value, off.value), over(on.low, off.high), over(on.high, off.low))


def _less(on: Figure, off: Figure) -> Figure:
    def less(a: float | None, b: float | None) -> float | None:
        return a - b if a is not None and b is not None else None

    return Figure(less(on.value, off.value), less(on.low, off.high), less(on.high, off.low))


def _outcome(on: Figure, off: Figure) -> str:
    """An arm that surely holds where the other surely misses has the larger goodput."""
    if on.low is not None and off.high is not None and on.low >= off.high:
        return RAISES
    if off.low is not None and on.high is not None and off.low >= on.high:
        return LOWERS
    return UNDECIDED


def _needs(on: GoodputFigures, off: GoodputFigures, ladders: Sequence[Climb]) -> Iterator[str]:
    """What would decide it."""
    for arm, ladder in zip((on, off), ladders, strict=True):
        if not arm.valid:
            yield f"a valid rung of {arm.method}"
            continue
        wide = goodput_rate(ladder, arm.share)
        if wide.low is None:
            yield f"rates of {arm.method} that surely hold"
        if wide.high is None:
            yield f"rates of {arm.method} that surely miss"
        if wide.low is not None and wide.high is not None:
            yield from _between(arm, ladder, wide.low, wide.high)


def _between(arm: GoodputFigures, ladder: Climb, low: float, high: float) -> Iterator[str]:
    unsure = [float(rate) for rate in ladder.rates if low < rate < high]
    if unsure:
        told = ", ".join(f"{rate:.3g}" for rate in unsure)
        yield f"a longer window or more blocks for {arm.method} at {told} req/s"
    else:
        yield f"rates of {arm.method} between {low:.3g} and {high:.3g} req/s"
