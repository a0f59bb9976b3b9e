"""Drafts, side by side: what each guesses right, what it costs, what it gives, and what to use it for, in a sentence.

The sentences follow the plain rule of `decisions`, with the policy's own interval where it took the arm. They carry
their protocol, engine and target, so that they can be quoted alone. An arm that is a bound (the target drafting for
itself, random weights) is explained, never recommended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log

from specprof.analyse.evidence import Variation
from specprof.analyse.results import Figure, GainFigures
from specprof.decide.policy import MARGIN
from specprof.decide.verdict import PUBLISHABLE_BLOCKS, needs
from specprof.publish.advice import Step, step_of
from specprof.publish.context import SEPARATOR, Engine, one_per_gate
from specprof.publish.decisions import Action, action, bounds_of
from specprof.publish.grid import Grid, Protocol
from specprof.publish.numbers import UNKNOWN, known, one_line, percent, times
from specprof.publish.summary import listed
from specprof.publish.table import ARM, GATES, Column, Entry, Group, Row, Table, value
from specprof.study.bounds import Bound

FEWEST = 2  # speculating arms that can stand side by side


@dataclass(frozen=True, slots=True)
class DraftVerdict:
    """What one arm is good for, in words that may be quoted."""

    arm: str
    method: str
    words: str
    context: str

    @property
    def sentence(self) -> str:
        """All of it on one line: method, protocol, engine, target, then the verdict."""
        return f"{self.method} · {self.context}: {self.words}."


@dataclass(frozen=True, slots=True)
class Profile:
    """The arms of one protocol, side by side: a verdict each, and the figures behind them."""

    verdicts: tuple[DraftVerdict, ...]
    table: Table


def profiles(grid: Grid, engine: Engine) -> tuple[Profile, ...]:
    """One profile per protocol that compared at least two speculating arms with off."""
    return tuple(
        Profile(tuple(verdict(grid, protocol, arm, engine) for arm in arms), _table(grid, protocol, arms, engine))
        for protocol in grid.protocols
        if len(arms := _compared(grid, protocol)) >= FEWEST
    )


def _compared(grid: Grid, protocol: Protocol) -> list[str]:
    return [arm for arm in grid.on_arms if any(_steps(grid, protocol, arm))]


def _steps(grid: Grid, protocol: Protocol, arm: str) -> list[Step]:
    """The arm's gains over off, content by content, streams rising, each with the interval that decided it."""
    rows = (grid.gains_row(tag, protocol, arm) for tag in grid.tags_of(protocol))
    return [step_of(grid, gain) for row in rows for gain in row if known(gain.speculation_gain.value)]


# -- verdicts ---------------------------------------------------------------------------------------------------------


def verdict(grid: Grid, protocol: Protocol, arm: str, engine: Engine) -> DraftVerdict:
    """What the arm is good for under this protocol."""
    bound = bounds_of(grid).get(arm)
    words = _BOUNDS[bound] if bound is not None else _words(_steps(grid, protocol, arm))
    target = [f"target {engine.model}"] if engine.model else []
    context = SEPARATOR.join([protocol.words, engine.words, *target, f"worth having from {1 + MARGIN:g}×"])
    return DraftVerdict(arm, one_line(grid.methods[arm]), words, context)


_BOUNDS = {
    Bound.UPPER: (
        "upper bound, no candidate: the target drafts for itself, so no draft is accepted more often, and one that "
        "gains more must cost less"
    ),
    Bound.LOWER: "lower bound, no candidate: with random weights only chance is accepted, and the cost remains",
}


def _words(steps: Sequence[Step]) -> str:
    """The verdict of a candidate, first looks said to be no decision."""
    parts = "; ".join(_parts(steps))
    if not any(step.first_look for step in steps):
        return parts
    return f"first look, no decision (one launch per arm; blocks: {PUBLISHABLE_BLOCKS} would show more): {parts}"


def _parts(steps: Sequence[Step]) -> Iterator[str]:
    """Use it for, helps nothing, not for, undecided, no fit figure: as far as each is so."""
    by_action = {name: [step for step in steps if action(step.gain) is name] for name in Action}
    on, off, open_, unfit = (by_action[name] for name in (Action.ON, Action.OFF, Action.UNDECIDED, Action.UNFIT))
    if on:
        use = "would be used for" if any(step.first_look for step in steps) else "use it for"
        yield f"{use} {_places(on, steps, up_to=True)}"
    if off and not on and not open_:
        yield f"helps nothing, at best {_best(off)}"
    elif off:
        yield f"not for {_places(off, steps)}"
    if open_:
        yield f"undecided for {_places(open_, steps)}: {_needed(open_)}"
    if unfit:
        yield f"no fit figure for {_places(unfit, steps)}: read the gates"


def _places(chosen: Sequence[Step], steps: Sequence[Step], *, up_to: bool = False) -> str:
    """`code up to 4 streams and json`: where these are, a content alone where they are all there is of it."""
    told = []
    for tag in dict.fromkeys(step.gain.tag for step in chosen):
        here = [step.concurrency for step in chosen if step.gain.tag == tag]
        measured = [step.concurrency for step in steps if step.gain.tag == tag]
        told.append(one_line(tag) if here == measured and not up_to else f"{one_line(tag)} {_loads(here, measured)}")
    return listed(told)


def _loads(here: Sequence[int], measured: Sequence[int]) -> str:
    """`up to 4 streams` and `from 8 streams` where nothing measured on that side is missing, else one by one."""
    if list(here) == list(measured[: len(here)]) and here[-1] > 1 and measured[0] == 1:
        return f"up to {here[-1]} streams"
    if list(here) == list(measured[-len(here) :]) and len(here) > 1:
        return f"from {here[0]} streams"
    plural = "stream" if list(here) == [1] else "streams"
    return f"at {listed(list(map(str, here)))} {plural}"


def _best(steps: Sequence[Step]) -> str:
    best = max((step.gain for step in steps), key=lambda gain: gain.speculation_gain.value or 0.0)
    return f"{times(best.speculation_gain)} {_place(best)}"


def _needed(undecided: Sequence[Step]) -> str:
    """What would decide the one that is nearest to a decision."""
    step = max(undecided, key=lambda step: _clearness(step.gain))
    nearest = step.gain
    rests_on = Variation(nearest.num_blocks, nearest.num_prompts, nearest.launch_variance, nearest.prompt_variance)
    asked = needs(nearest.speculation_gain, 1 + MARGIN, rests_on, step.confidence)
    of_several = "nearest to a decision is " if len(undecided) > 1 else ""
    return f"{of_several}{times(nearest.speculation_gain)} {_place(nearest)}, and to decide it: {asked}"


def _place(gain: GainFigures) -> str:
    return f"for {one_line(gain.tag)} at N={gain.concurrency}"


def _clearness(gain: GainFigures) -> float:
    """How far the estimate lies from the margin, in half-widths of its interval. Below 1, or it were decided."""
    figure = gain.speculation_gain
    if not (known(figure.value) and known(figure.low) and known(figure.high)) or figure.high <= figure.low:
        return 0.0
    return abs(log(figure.value / (1 + MARGIN))) / (log(figure.high / figure.low) / 2)


# -- the table --------------------------------------------------------------------------------------------------------


def _table(grid: Grid, protocol: Protocol, arms: Sequence[str], engine: Engine) -> Table:
    streams = grid.concurrencies(protocol=protocol.name)
    columns = (
        ARM,
        Column("AL", f"tokens, N={streams[0]}"),
        Column("tokens per step", f"engine step, N={streams[0]}"),
        Column("conditional acceptance", f"by position, N={streams[0]}"),
        *(Column("step time", f"on / off, N={n}") for n in _ends(streams)),
        *(Column("gain", f"on / off, N={n}") for n in streams),
        GATES,
    )
    groups = tuple(
        Group(one_line(tag), "", tuple(_row(grid, protocol, tag, arm, streams) for arm in arms))
        for tag in grid.tags_of(protocol)
    )
    return Table(f"{protocol.words} · drafts, side by side · {engine.words}", columns, groups)


def _row(grid: Grid, protocol: Protocol, tag: str, arm: str, streams: Sequence[int]) -> Row:
    gains = {n: grid.gain(tag, protocol.name, arm, n) for n in streams}
    cells = grid.row(tag, protocol, arm)
    first = grid.cell(tag, protocol.name, arm, streams[0])
    bound = bounds_of(grid).get(arm)
    entries = (
        Entry(one_line(grid.methods[arm]), str(bound) if bound else ""),
        value(first.acceptance_length if first else None),
        value(first.tokens_per_engine_step if first else None),
        Entry(_by_position(first.conditional if first else ())),
        *(value(gain.step_time_ratio if (gain := gains[n]) else None) for n in _ends(streams)),
        *(value(gain.speculation_gain if (gain := gains[n]) else None) for n in streams),
        Entry("", gates=one_per_gate(gate for cell in cells for gate in cell.gates)),
    )
    return Row(entries, unfit=any(not cell.valid for cell in cells))


def _ends(streams: Sequence[int]) -> tuple[int, ...]:
    """The fewest streams and the most."""
    return tuple(dict.fromkeys((streams[0], streams[-1])))


def _by_position(conditional: Sequence[Figure]) -> str:
    """`62% · 71% · 68%`: a_1, a_2, …"""
    return SEPARATOR.join(percent(figure.value) for figure in conditional) or UNKNOWN
