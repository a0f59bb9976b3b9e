"""What forbids publication: invalid gates, a missing interval, mixed contents, a hidden stop rule, too good a draft.

A number stands among the headlines only if nothing is to be said against it; every objection names its gate or rule,
the evidence, and the remedy. Publication is stricter than a report in one point: a draft position accepted at least
999 times in 1,000 blocks it whatever the number of steps, since the reader of a page cannot weigh the luck (METHOD 7,
gate 12). Once explained (`specprof explain`), it is published with the explanation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from specprof.analyse.explained import EXPLAINED
from specprof.analyse.gates.found import each_once
from specprof.analyse.results import CellFigures, Figure, GainFigures, GateFinding, Severity, StudyFigures
from specprof.analyse.thresholds import SUSPICIOUS_SURVIVAL
from specprof.decide.address import address_of
from specprof.errors import InputError
from specprof.publish.basis import Basis
from specprof.publish.card import QUOTED_GAINS, headline_key, headlines
from specprof.publish.context import place
from specprof.publish.grid import Grid, Protocol
from specprof.publish.numbers import known, one_line, quantity, times
from specprof.publish.service_card import ServiceNumber, service_numbers

THROUGHPUT, SPECULATION = "throughput_tok_s", "speculation_gain"

_MIXTURES = frozenset({"*", "all", "any", "average", "combined", "mean", "mix", "mixed", "overall", "total"})
_JOINED = re.compile(r"(?<=\w)\s*[,+;|]\s*(?=\w)|\w\s+(?:and|&)\s+\w", re.IGNORECASE)  # `c++`, `q&a` are one


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a number cannot be quoted: the gate (`gate 7 (loops)`) or rule (`no interval`), evidence and remedy."""

    gate: str
    evidence: str
    remedy: str

    @property
    def words(self) -> str:
        """All of it in sentences."""
        return f"{_capitalized(self.gate)}: {_sentence(self.evidence)} {_sentence(self.remedy)}"


@dataclass(frozen=True, slots=True)
class Number:
    """A cell's throughput, or one of its gains over others. `parts`: the cells its gains are made of."""

    metric: str
    cell: CellFigures
    figure: Figure
    parts: tuple[CellFigures, ...]
    basis: Basis

    @property
    def words(self) -> str:
        """`135.5 tok/s [128, 143]`, `speculation gain 1.41× [1.11, 1.80]`."""
        if self.metric == THROUGHPUT:
            return quantity(self.figure, "tok/s")
        return f"{QUOTED_GAINS[self.metric]} {times(self.figure)}"

    @property
    def gates(self) -> tuple[GateFinding, ...]:
        """The findings of all its cells, each once."""
        return each_once(gate for part in self.parts for gate in part.gates)


@dataclass(frozen=True, slots=True)
class Fit:
    """A number fit to be quoted, and its line to copy."""

    number: Number
    context: str


@dataclass(frozen=True, slots=True)
class Unfit:
    """A number that is shown, never quoted."""

    number: Number
    objections: tuple[Objection, ...]


@dataclass(frozen=True, slots=True)
class Fitness:
    """Every known number of a study, in the study's order, on one side or the other."""

    study: str
    fit: tuple[Fit, ...]
    unfit: tuple[Unfit, ...]
    service: tuple[ServiceNumber, ...] = ()  # of open loops, all of them fit

    def has(self, cell: str) -> bool:
        """Whether the study has a number of this cell, by its address."""
        return cell in self._cells()

    def unknown_cell(self, cell: str) -> str:
        """What to say to somebody who asked for a cell that is not there."""
        near = get_close_matches(cell, self._cells(), n=1, cutoff=0.0)
        example = f" The nearest in {self.study} is '{near[0]}'." if near else ""
        return f"--only {one_line(cell)}: is no measured cell. Write content/protocol/arm/streams.{example}"

    def of_cells(self, cells: Container[str]) -> Fitness:
        """The numbers of some cells, by their addresses."""
        return Fitness(
            self.study,
            tuple(found for found in self.fit if address(found.number.cell) in cells),
            tuple(found for found in self.unfit if address(found.number.cell) in cells),
        )

    def reasons(self) -> tuple[str, ...]:
        """Each gate or rule with how many numbers it holds back, the most first: `gate 7 (loops): 2`."""
        counted = Counter(objection.gate for found in self.unfit for objection in found.objections)
        return tuple(f"{gate}: {count}" for gate, count in counted.most_common())

    def _cells(self) -> list[str]:
        numbers = (*(found.number for found in self.fit), *(found.number for found in self.unfit))
        return list(dict.fromkeys(address(number.cell) for number in numbers))


def assess(figures: StudyFigures) -> Fitness:
    """Hold every number of a study against what forbids publication."""
    context = {headline_key(line): str(line["context"]) for line in headlines(figures)}
    fit, unfit = [], []
    for number in _numbers(Grid(figures)):
        line = context.get((number.metric, *_where(number.cell)))
        objections = tuple(_objections(number))
        if line is not None and not objections:
            fit.append(Fit(number, line))
        else:
            unfit.append(Unfit(number, objections or (_UNEXPLAINED,)))
    return Fitness(one_line(figures.study), tuple(fit), tuple(unfit), service_numbers(figures))


_UNEXPLAINED = Objection(
    "unfit gain", "the analysis holds this gain unfit", "Read the gates of all the cells it is made of in the report."
)


def require_publishable(fitness: Fitness) -> None:
    """Refuse a study of which nothing can be published."""
    if fitness.fit or fitness.service:
        return
    if not fitness.unfit:
        raise InputError(
            f"{fitness.study}: holds no number yet that can be published. Measure it with 'specprof run CONFIG'; of an "
            "open loop that was measured, 'specprof report' names the gates that forbid it."
        )
    first = fitness.unfit[0].objections[0]
    raise InputError(
        f"{fitness.study}: none of its {len(fitness.unfit)} numbers can be published "
        f"({'; '.join(fitness.reasons())}). First of all {first.words}"
    )


def require_fit(fitness: Fitness) -> None:
    """Refuse cells somebody asked for by name, which alone `fitness` holds, unless all their numbers are fit."""
    for found in fitness.unfit:
        raise InputError(
            f"{fitness.study}: {address(found.number.cell)}, {found.number.words}, cannot be published. "
            f"{found.objections[0].words}"
        )


def address(cell: CellFigures) -> str:
    """A cell by name, `code/forced/ngram-k4/8`: content, protocol, arm, streams."""
    return one_line(address_of(cell))


def claim_address(claim: Mapping[str, Any]) -> str:
    """The same of a headline in a card, with its metric, whatever it lacks."""
    names = ("tag", "protocol", "arm", "concurrency")
    return f"{'/'.join(one_line(claim.get(name, '?')) for name in names)} ({one_line(claim.get('metric', '?'))})"


def claim_objections(claim: Mapping[str, Any]) -> Iterator[Objection]:
    """What a headline in somebody's card breaks by itself; the card may be of any shape."""
    tag, figure, gates = claim.get("tag"), claim.get("figure"), claim.get("gates")
    if _hides_stop_rule(claim):
        yield Objection(
            "hidden stop rule",
            "it does not say who ends a text, or its line to copy leaves it out",
            "State stop and length, and name the rule in the context, as in 'forced 128' or 'natural ≤256'.",
        )
    yield from _mixture(tag if isinstance(tag, str) else "")
    told = figure if isinstance(figure, Mapping) else {}
    yield from _without_interval(*(told.get(name) for name in ("value", "low", "high")))
    for gate in gates if isinstance(gates, list) else ():
        if isinstance(gate, Mapping) and gate.get("severity") == Severity.INVALID:
            name, evidence, remedy = (one_line(gate.get(key, "")) for key in ("name", "evidence", "remedy"))
            yield Objection(f"gate {one_line(gate.get('gate', '?'))} ({name})", evidence, remedy)


def _hides_stop_rule(claim: Mapping[str, Any]) -> bool:
    stop, length, context = claim.get("stop"), claim.get("length"), claim.get("context")
    if stop not in ("forced", "natural") or not isinstance(length, int):
        return True
    return Protocol("", stop, length).rule not in str(context)


def _numbers(grid: Grid) -> Iterator[Number]:
    """Every known number; gains that are one by definition are none."""
    for cell in grid.figures.cells:
        if known(cell.throughput_tok_s.value):
            yield Number(THROUGHPUT, cell, cell.throughput_tok_s, (cell,), Basis.of_cell(cell))
    for gain in grid.figures.gains:
        yield from _gain_numbers(grid, gain)


def _gain_numbers(grid: Grid, gain: GainFigures) -> Iterator[Number]:
    cell = grid.cell(gain.tag, gain.protocol, gain.arm, gain.concurrency)
    if cell is None:
        return
    lowest, parts = gain.concurrency == min(grid.concurrencies(gain.tag, gain.protocol)), grid.parts(gain)
    for metric in QUOTED_GAINS:
        figure: Figure = getattr(gain, metric)
        if known(figure.value) and (metric == SPECULATION or not lowest):
            yield Number(metric, cell, figure, parts, Basis.of_gain(metric, gain, parts))


def _objections(number: Number) -> Iterator[Objection]:
    for part in number.parts:
        where = "" if part is number.cell else f"{place(part)}: "
        for objection in _cell_objections(part):
            yield Objection(objection.gate, f"{where}{objection.evidence}", objection.remedy)
    yield from _mixture(number.cell.tag)
    yield from _without_interval(number.figure.value, number.figure.low, number.figure.high)


def _cell_objections(cell: CellFigures) -> Iterator[Objection]:
    refused = [gate for gate in cell.gates if gate.severity is Severity.INVALID]
    for gate in refused:
        yield Objection(f"gate {gate.gate} ({one_line(gate.name)})", one_line(gate.evidence), one_line(gate.remedy))
    if not any(gate.gate == 12 for gate in refused) and not any(gate.name == EXPLAINED for gate in cell.gates):
        yield from _too_good(cell.survival)


def _too_good(survival: Iterable[Figure]) -> Iterator[Objection]:
    for position, figure in enumerate(survival, start=1):
        if known(figure.value) and figure.value >= SUSPICIOUS_SURVIVAL:
            yield Objection(
                "gate 12 (too good)",
                f"draft position {position} was accepted in {figure.value:.1%} of the steps",
                "Explain it before publishing: filler prompts, loops, a draft that is the target itself, or too few "
                "steps to tell.",
            )
            return


def _mixture(tag: str) -> Iterator[Objection]:
    if tag.strip().lower() in _MIXTURES or _JOINED.search(tag):
        yield Objection(
            "mixed contents",
            f"'{one_line(tag)}' is more than one content, and acceptance depends on the content",
            "Measure each content as a workload of its own, under its own tag.",
        )


def _without_interval(value: Any, low: Any, high: Any) -> Iterator[Objection]:
    told = all(isinstance(item, int | float) for item in (value, low, high))
    if not told or not low <= value <= high:
        yield Objection(
            "no interval",
            "one prompt, or an interval that does not hold its value",
            "Measure more prompts or more blocks: 32 prompts a tag and blocks: 4 make a number fit to be published.",
        )


def _where(cell: CellFigures) -> tuple[str, str, str, int]:
    return cell.tag, cell.protocol, cell.arm, cell.concurrency


def _sentence(text: str) -> str:
    return f"{_capitalized(text).rstrip('.')}."


def _capitalized(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
