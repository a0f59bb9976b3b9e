"""Where a gain of speculation comes from, METHOD 4: one arm beside the arm without, over the blocks that have both.

    gain = tokens per step / step time × N effective          (on / off; exact for tokens after a text's first chunk)

The residual takes N effective from the share of its own time that a request was written. What it leaves over are
streams that had no request: with one stream nothing, with more those that were done while the last texts were written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from math import exp, log

import numpy as np

from specprof.analyse import gains, stats
from specprof.analyse.cell import shares_of_time
from specprof.analyse.content import identity, log_steps_per_s
from specprof.analyse.evidence import Series, step_noise
from specprof.analyse.frames import CellFrame
from specprof.analyse.gates.found import caution
from specprof.analyse.results import NOTHING, Figure, GateFinding

MAX_RESIDUAL = 0.05


@dataclass(frozen=True, slots=True)
class Change:
    """What speculation changed, as logs of on / off: the gain, then its factors.

    `writing`: the share of its time that a request was written.
    """

    throughput: float
    tokens_per_step: float
    steps_per_s: float
    writing: float


@dataclass(frozen=True, slots=True)
class Account:
    """`step_time_ratio`: mean duration of an engine step, on / off, with launches and prompts in its interval.

    `mediated_share`: of the gain, through tokens per step. `residual`: what tokens per step, steps per second and the
    share of time spent writing leave over of the gain.
    """

    step_time_ratio: Figure = NOTHING
    mediated_share: Figure = NOTHING
    residual: Figure = NOTHING


def account_of(on: Series, off: Series) -> Account:
    """Over the blocks that measured both; nothing where none did, or nothing tells how long a step took.

    One launch does not show how the time of a step would differ in another: its uneven steps stand in for the least
    that it would have.
    """
    found = _by_block(on, off)
    if not found:
        return Account()
    of_on, of_off = log_steps_per_s(on), log_steps_per_s(off)
    prompts, degrees = stats.variance_of_mean(
        np.array([of_off[name] - of_on[name] for name in of_on if name in of_off])
    )
    if len(found) == 1:
        prompts += step_noise(on) + step_noise(off)
    mean = Change(*np.mean([astuple(change) for change in found], axis=0).tolist())
    return Account(
        stats.two_way([-change.steps_per_s for change in found], (prompts, degrees)),
        stats.point(gains.mediated_share(exp(mean.tokens_per_step), exp(mean.throughput))),
        stats.point(gains.residual(*map(exp, astuple(mean)))),
    )


def unexplained(account: Account) -> Iterator[GateFinding]:
    """Gate 4: a gain of which the account leaves over more than 5%, as where streams stand idle."""
    left_over = account.residual.value
    if left_over is not None and abs(left_over) > MAX_RESIDUAL:
        below, fewer = ("below", "fewer") if left_over < 0 else ("above", "more")
        yield caution(
            4,
            "unexplained gain",
            f"the gain is {abs(left_over):.0%} {below} what tokens per step, step time and the time spent writing make "
            f"it: {fewer} streams had work with speculation than without",
            "Send more prompts per stream: while the last texts are written the other streams stand idle, and how long "
            "is chance.",
        )


def _by_block(on: Series, off: Series) -> list[Change]:
    plain = {frame.cell.block: frame for frame in off.frames}
    pairs = ((frame, plain[frame.cell.block]) for frame in on.frames if frame.cell.block in plain)
    return [change for pair in pairs if (change := _change(*pair)) is not None]


def _change(on: CellFrame, off: CellFrame) -> Change | None:
    drafted, plain = Series((on,)), Series((off,))
    mine, other = identity(drafted), identity(plain)
    if mine is None or other is None:
        return None
    writing = [shares_of_time(side)[2].value or float("nan") for side in (drafted, plain)]
    return Change(
        throughput=mine.total - other.total,
        tokens_per_step=mine.tokens_per_step - other.tokens_per_step,
        steps_per_s=mine.steps_per_s - other.steps_per_s,
        writing=log(writing[0] / writing[1]),
    )
