"""From the interval of a speculation gain to an action, and where a gain falls through one.

On: the whole interval lies above 1 + MARGIN. Off: the whole of it lies below. Otherwise undecided. That is the plain
rule for one arm. Which of several arms to take is decided by `decide.policy`, with intervals that hold together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite

from specprof.analyse.crossover import fall_through_one
from specprof.analyse.results import Figure, GainFigures
from specprof.decide.policy import decided
from specprof.publish.basis import FIRST_LOOK_BLOCKS
from specprof.publish.context import engine_of
from specprof.publish.grid import Grid, Protocol
from specprof.publish.numbers import known, number
from specprof.study.bounds import Bound, bound_of


class Action(StrEnum):
    """What to do with speculation."""

    ON = "on"
    UNDECIDED = "undecided"
    OFF = "off"
    UNFIT = "not fit"


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do for one content at one number of streams, and on which arm's gain that rests."""

    action: Action
    arm: str
    gain: Figure
    first_look: bool


Choices = Mapping[tuple[str, int], Choice]  # by content tag and concurrency


def action(gain: GainFigures) -> Action:
    """The policy's rule for one arm by itself."""
    return Action(decided(gain.speculation_gain).value) if gain.valid else Action.UNFIT


def is_first_look(gain: GainFigures) -> bool:
    """Whether its arm was launched once: such an interval holds the variation between prompts alone."""
    return gain.num_blocks <= FIRST_LOOK_BLOCKS


def choices(grid: Grid, protocol: Protocol) -> dict[tuple[str, int], Choice]:
    """What was decided per content and concurrency; where nobody did, the plain rule's choice."""
    by_policy = {
        (found.tag, found.concurrency): Choice(Action(found.decision), found.arm, found.gain, found.first_look)
        for found in grid.figures.decisions
        if found.protocol == protocol.name
    }
    return by_policy or plain_choices(grid, protocol)


def plain_choices(grid: Grid, protocol: Protocol) -> dict[tuple[str, int], Choice]:
    """The plain rule's choice: among arms of the best action, the one that gains most."""
    found: dict[tuple[str, int], list[GainFigures]] = {}
    for arm in candidates(grid):
        for tag in grid.tags_of(protocol):
            for gain in grid.gains_row(tag, protocol, arm):
                if known(gain.speculation_gain.value):
                    found.setdefault((tag, gain.concurrency), []).append(gain)
    return {place: _chosen(gains) for place, gains in found.items()}


def _chosen(gains: Sequence[GainFigures]) -> Choice:
    ranks = {name: rank for rank, name in enumerate(Action)}
    best = min(gains, key=lambda gain: (ranks[action(gain)], -(gain.speculation_gain.value or 0.0)))
    return Choice(action(best), best.arm, best.speculation_gain, is_first_look(best))


def candidates(grid: Grid) -> tuple[str, ...]:
    """The speculating arms somebody could serve with: no bounds."""
    bounds = bounds_of(grid)
    return tuple(arm for arm in grid.on_arms if arm not in bounds)


def bounds_of(grid: Grid) -> dict[str, Bound]:
    """The arms that are bounds: the target drafting for itself, and random weights."""
    target = engine_of(grid.figures.environment).model
    found = {arm: bound_of(grid.figures.arms.get(arm), target) for arm in grid.on_arms}
    return {arm: bound for arm, bound in found.items() if bound is not None}


@dataclass(frozen=True, slots=True)
class Crossing:
    """The number of streams N* at which a gain falls through 1, as a picture draws it (`analyse.modelled.Crossover`).

    `low` and `high` are where the bounds of its interval do: 0 and infinity where that lies outside what was measured,
    None where some gain has no interval.
    """

    streams: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def at(cls, streams: float, interval: Figure, *, bounded: bool) -> Crossing:
        """N* with the bounds of `interval`, of which None lies outside what was measured; without if not `bounded`."""
        if not bounded:
            return cls(streams)
        low, high = interval.low, interval.high
        return cls(streams, 0.0 if low is None else low, inf if high is None else high)

    def words(self, measured: Sequence[int]) -> str:
        """`3.1 [2.3, 5.6]`; `[<1, 5.6]` where the interval leaves the numbers of streams that were measured."""
        if self.low is None or self.high is None:
            return number(self.streams)
        low = number(self.low) if self.low else f"<{min(measured)}"
        high = number(self.high) if isfinite(self.high) else f">{max(measured)}"
        return f"{number(self.streams)} [{low}, {high}]"


def crossover(points: Sequence[tuple[int, Figure | None]]) -> Crossing | None:
    """N* of a gain measured at these numbers of streams (rising; None: not fit), as `fall_through_one` finds it.

    None where it falls nowhere inside the measured range, or only across a gain that is not fit.
    """
    fit = [(place, n, figure) for place, (n, figure) in enumerate(points) if figure is not None and known(figure.value)]
    if not fit:
        return None
    places, streams, figures = zip(*fit, strict=True)
    fall = fall_through_one(streams, figures)
    streams_at = fall.concurrency.value
    if fall.where != "inside" or streams_at is None:
        return None
    before, after = (places[at] for at in fall.between)
    if after - before > 1:
        return None
    bounded = all(known(figure.low) and known(figure.high) for figure in figures)
    return Crossing.at(streams_at, fall.concurrency, bounded=bounded)
