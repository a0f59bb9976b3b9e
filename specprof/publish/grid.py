"""Looking a study's figures up by content, protocol, arm and concurrency, in the order a reader expects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol as Structure
from typing import TypeVar

from specprof.analyse.results import CellFigures, DecisionFigures, GainFigures, MixFigures, StudyFigures
from specprof.publish.numbers import one_line

_Named = TypeVar("_Named", CellFigures, GainFigures, MixFigures)

OFF = "off"  # the `method` of an arm without speculation


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol as a reader meets it: its name, who ends a text, and after how many tokens at most."""

    name: str
    stop: str
    length: int

    @property
    def rule(self) -> str:
        """The stop rule in words: `forced 128`, `natural ≤256`."""
        return f"forced {self.length}" if self.stop == "forced" else f"{self.stop} ≤{self.length}"

    @property
    def words(self) -> str:
        """Name and stop rule on one line, the name only where it says more than the rule."""
        return one_line(self.rule if self.name == self.stop else f"{self.name} ({self.rule})")


class UnderProtocol(Structure):
    """What was measured of one content under one protocol: cells, rungs, and whatever is told of them."""

    @property
    def tag(self) -> str:
        """The content."""

    @property
    def protocol(self) -> str:
        """The name of the protocol."""

    @property
    def stop(self) -> str:
        """Who ends a text: `forced` or `natural`."""

    @property
    def length(self) -> int:
        """Tokens asked for (forced) or allowed (natural)."""


class Grid:
    """The figures of a study as a grid. Forced protocols come first: the decode ceiling everything is held against."""

    def __init__(self, figures: StudyFigures) -> None:
        """Index the figures once, arms that sound alike told apart."""
        figures = named_apart(figures)
        self.figures = figures
        self._cells = {(c.tag, c.protocol, c.arm, c.concurrency): c for c in figures.cells}
        self._gains = {(g.tag, g.protocol, g.arm, g.concurrency): g for g in figures.gains}
        self._decisions = {(d.tag, d.protocol, d.concurrency): d for d in figures.decisions}

    @property
    def tags(self) -> tuple[str, ...]:
        """Content tags, as the study orders them."""
        return self.figures.tags

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """Protocols, forced before natural, else as the study orders them."""
        found = dict.fromkeys(protocol_of(cell) for cell in self.figures.cells)
        return tuple(sorted(found, key=lambda protocol: protocol.stop != "forced"))

    @property
    def methods(self) -> dict[str, str]:
        """Arm name → what it does in words, arms without speculation first. No two read alike."""
        found = {cell.arm: cell.method for cell in self.figures.cells}
        return dict(sorted(found.items(), key=lambda item: item[1] != OFF))

    @property
    def off_arm(self) -> str | None:
        """The arm without speculation, if one was measured."""
        return next((arm for arm, method in self.methods.items() if method == OFF), None)

    @property
    def on_arms(self) -> tuple[str, ...]:
        """The arms with speculation."""
        return tuple(arm for arm, method in self.methods.items() if method != OFF)

    def place(self, arm: str) -> int | None:
        """An arm's place among those with speculation, by which pictures draw it; None for any other."""
        on_arms = self.on_arms
        return on_arms.index(arm) if arm in on_arms else None

    def concurrencies(self, tag: str | None = None, protocol: str | None = None) -> tuple[int, ...]:
        """The numbers of streams measured, rising, for one tag and protocol or for all."""
        chosen = (
            cell.concurrency
            for cell in self.figures.cells
            if tag in (None, cell.tag) and protocol in (None, cell.protocol)
        )
        return tuple(sorted(set(chosen)))

    def cell(self, tag: str, protocol: str, arm: str | None, concurrency: int) -> CellFigures | None:
        """One cell, None if it was not measured."""
        return None if arm is None else self._cells.get((tag, protocol, arm, concurrency))

    def gain(self, tag: str, protocol: str, arm: str, concurrency: int) -> GainFigures | None:
        """The gains of one cell, None without a baseline."""
        return self._gains.get((tag, protocol, arm, concurrency))

    def decision(self, tag: str, protocol: str, concurrency: int) -> DecisionFigures | None:
        """What the policy decided for one content at one load, None where it did not."""
        return self._decisions.get((tag, protocol, concurrency))

    def tags_of(self, protocol: Protocol) -> tuple[str, ...]:
        """The contents measured under a protocol."""
        return tuple(tag for tag in self.tags if self.concurrencies(tag, protocol.name))

    def row(self, tag: str, protocol: Protocol, arm: str) -> tuple[CellFigures, ...]:
        """The cells of one content, protocol and arm, streams rising."""
        found = (self.cell(tag, protocol.name, arm, n) for n in self.concurrencies(tag, protocol.name))
        return tuple(cell for cell in found if cell is not None)

    def gains_row(self, tag: str, protocol: Protocol, arm: str) -> tuple[GainFigures, ...]:
        """The gains of one content, protocol and arm, streams rising."""
        found = (self.gain(tag, protocol.name, arm, n) for n in self.concurrencies(tag, protocol.name))
        return tuple(gain for gain in found if gain is not None)

    def parts(self, gain: GainFigures) -> tuple[CellFigures, ...]:
        """The cells a gain is made of: on and off, at its own concurrency and at the lowest."""
        lowest = min(self.concurrencies(gain.tag, gain.protocol), default=gain.concurrency)
        places = dict.fromkeys((arm, n) for n in (gain.concurrency, lowest) for arm in (gain.arm, self.off_arm))
        found = (self.cell(gain.tag, gain.protocol, arm, n) for arm, n in places)
        return tuple(cell for cell in found if cell is not None)


def named_apart(figures: StudyFigures) -> StudyFigures:
    """The same figures, arms whose `method` reads alike named as well: `ngram K=4 (wide)`, `ngram K=4 (narrow)`."""
    alike = shared_methods((cell.arm, cell.method) for cell in figures.cells) - {OFF}
    if not alike:
        return figures

    def named(item: _Named) -> _Named:
        return replace(item, method=f"{item.method} ({item.arm})") if item.method in alike else item

    return replace(
        figures,
        cells=tuple(map(named, figures.cells)),
        gains=tuple(map(named, figures.gains)),
        mixes=tuple(map(named, figures.mixes)),
    )


def shared_methods(arms: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Of arms and their methods, the methods of more than one arm: such words alone do not tell the arms apart."""
    of_method: dict[str, set[str]] = {}
    for arm, method in arms:
        of_method.setdefault(method, set()).add(arm)
    return frozenset(method for method, alike in of_method.items() if len(alike) > 1)


def protocol_of(found: UnderProtocol) -> Protocol:
    """The protocol something was measured under."""
    return Protocol(found.protocol, found.stop, found.length)
