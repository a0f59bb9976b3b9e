"""What to do for one content with one way of speculating, load by load, as the policy decides it (`decide.policy`).

The policy holds every arm of a load against the off arm, with intervals that pay for having tried several arms and for
having looked more than once, and takes the fastest. Each arm is told by that interval and its gates; one that gains and
was not taken, by how it stands beside the one that was. Where nobody decided, the plain rule for one arm
(`decisions.action`) stands in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from specprof.analyse.results import GainFigures, StudyFigures
from specprof.analyse.stats import CONFIDENCE
from specprof.decide.policy import MARGIN
from specprof.publish.decisions import Action, action, candidates, is_first_look
from specprof.publish.grid import Grid, Protocol
from specprof.publish.numbers import known, one_line, times


class Effect(StrEnum):
    """What the interval of a gain lets us say."""

    GAINS = "gains"
    LOSES = "loses"
    SAME = "not worth having"
    UNDECIDED = "undecided"
    LEVEL = "not told apart from another arm"
    SLOWER = "slower than another arm"
    UNREPEATED = "no interval"
    UNFIT = "unfit"
    UNKNOWN = "unknown"


ACTIONS = {
    Effect.GAINS: "on",
    Effect.LOSES: "off",
    Effect.SAME: "off",
    Effect.UNDECIDED: "undecided",
    Effect.LEVEL: "level",
    Effect.SLOWER: "slower",
    Effect.UNREPEATED: "repeat",
    Effect.UNFIT: "unfit",
    Effect.UNKNOWN: "unknown",
}


_NEITHER = (  # neither on nor off
    ("undecided", "undecided at {}: keep it off until more is measured"),
    ("level", "not told apart from a faster arm at {}"),
    ("slower", "another arm is faster at {}"),
    ("repeat", "one prompt at {}: more prompts are needed for an interval"),
    ("unfit", "no answer at {}: read the gates"),
    ("unknown", "no figure at {}"),
)


def effect(gain: GainFigures) -> Effect:
    """What the plain rule (`decisions.action`) makes of the speculation gain's interval, in a reader's words."""
    figure, chosen = gain.speculation_gain, action(gain)
    if chosen is Action.UNFIT:
        return Effect.UNFIT
    if not known(figure.value):
        return Effect.UNKNOWN
    if not known(figure.low) or not known(figure.high):
        return Effect.UNREPEATED
    if chosen is Action.OFF:
        return Effect.LOSES if figure.high < 1 else Effect.SAME
    return Effect.GAINS if chosen is Action.ON else Effect.UNDECIDED


@dataclass(frozen=True, slots=True)
class Step:
    """The answer at one concurrency. `gain` has the interval that decides, at `confidence`."""

    concurrency: int
    effect: Effect
    gain: GainFigures
    first_look: bool = False
    confidence: float = CONFIDENCE

    @property
    def action(self) -> str:
        """`on`, `off`, `undecided`, `level`, `slower`, `repeat`, `unfit` or `unknown`."""
        return ACTIONS[self.effect]

    @property
    def provisional(self) -> bool:
        """Whether it would be an answer, had there been more than a first look."""
        return self.first_look and self.action in ("on", "off")


def step_of(grid: Grid, gain: GainFigures) -> Step:
    """What to do with one arm at one load, given what the policy decided there."""
    decided, first_look = grid.decision(gain.tag, gain.protocol, gain.concurrency), is_first_look(gain)
    tried = next((one for one in decided.tried if one.arm == gain.arm), None) if decided is not None else None
    if decided is None or tried is None:
        return Step(gain.concurrency, effect(gain), gain, first_look)
    told = replace(gain, speculation_gain=tried.gain, valid=tried.fit)
    found = effect(told)
    if found is Effect.GAINS and decided.arm != gain.arm:
        taken = decided.decision == Action.ON
        level = tried.tied or first_look  # one launch an arm tells no two of them apart
        found = Effect.UNDECIDED if not taken else Effect.LEVEL if level else Effect.SLOWER
    return Step(gain.concurrency, found, told, first_look, decided.confidence)


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do for one content under one protocol with one way of speculating."""

    tag: str
    protocol: Protocol
    arm: str
    method: str
    steps: tuple[Step, ...]

    @property
    def action(self) -> str:
        """What to do, in a line."""
        words = (
            ("on", "speculate at {}", "would speculate at {}"),
            ("off", "leave it off at {}", "would leave it off at {}"),
            *((name, text, text) for name, text in _NEITHER),
        )
        parts = ["first look, no decision (one launch per arm)"] if self.provisional else []
        for name, *texts in words:
            for first_look, text in zip((False, True), texts, strict=True):
                of = self.where(name, first_look=first_look)
                parts += [text.format(streams_words(of))] if of else []
        return sentence("; ".join(parts)) if parts else "Speculation was not compared with off."

    @property
    def finding(self) -> str:
        """What was found, with its intervals."""
        templates: tuple[tuple[Effect, str], ...] = (
            (Effect.GAINS, "speculation gains {}"),
            (Effect.SAME, f"gains less than {MARGIN:.0%}: {{}}"),
            (Effect.UNDECIDED, "undecided: {}"),
            (Effect.LEVEL, "not told apart from a faster arm: {}"),
            (Effect.SLOWER, "another arm is faster: {}"),
            (Effect.LOSES, "loses: {}"),
            (Effect.UNREPEATED, "one prompt, so without an interval: {}"),
            (Effect.UNFIT, "unfit to be quoted (a gate failed): {}"),
            (Effect.UNKNOWN, "no figure: {}"),
        )
        parts = [text.format(_found(of)) for kind, text in templates if (of := self._with(kind))]
        return f"{'; '.join(parts)}." if parts else "speculation was not compared with off."

    @property
    def sentence(self) -> str:
        """The finding with the content it is about."""
        return f"{one_line(self.tag)}: {self.finding}"

    @property
    def provisional(self) -> bool:
        """Whether anything would be decided, had there been more than a first look."""
        return any(step.provisional for step in self.steps)

    def where(self, action: str, *, first_look: bool) -> list[int]:
        """The numbers of streams at which this is the thing to do, or on a first look would be."""
        return [step.concurrency for step in self.steps if step.action == action and step.first_look is first_look]

    def _with(self, kind: Effect) -> list[Step]:
        return [step for step in self.steps if step.effect is kind]


def advice(figures: StudyFigures) -> tuple[Advice, ...]:
    """One answer per protocol, arm and tag, in that order; arms that are bounds (`study.bounds`) are no advice."""
    grid = Grid(figures)
    return tuple(
        Advice(
            tag,
            protocol,
            arm,
            grid.methods[arm],
            tuple(step_of(grid, gain) for gain in grid.gains_row(tag, protocol, arm)),
        )
        for protocol in grid.protocols
        for arm in candidates(grid)
        for tag in grid.tags_of(protocol)
    )


def _found(steps: Iterable[Step]) -> str:
    told = []
    for step in steps:
        gain = step.gain.speculation_gain
        told.append(f"{times(gain)} at N={step.concurrency}" if known(gain.value) else f"N={step.concurrency}")
    return ", ".join(told)


def streams_words(numbers: Sequence[int]) -> str:
    """`N=1, 2, 4`."""
    return f"N={', '.join(map(str, numbers))}"


def sentence(text: str) -> str:
    """With a capital and one full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""
