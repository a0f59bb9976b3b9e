"""The numbers of a study cell by cell, as card.md and the published page list them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from specprof.analyse.gates.found import each_once
from specprof.analyse.results import CellFigures, GateFinding
from specprof.publish.basis import Basis
from specprof.publish.card import QUOTED_GAINS
from specprof.publish.context import SEPARATOR, Engine, context_line
from specprof.publish.fitness import SPECULATION, THROUGHPUT, Fit, Number, Objection, Unfit, address
from specprof.publish.grid import OFF
from specprof.publish.numbers import quantity, times


@dataclass(frozen=True, slots=True)
class Quoted:
    """What may be quoted of one cell: its throughput, its gain over the arm without speculation, or both."""

    cell: CellFigures
    throughput: Fit | None
    gain: Fit | None

    @property
    def gates(self) -> tuple[GateFinding, ...]:
        """The findings of every cell its numbers are made of, each once."""
        told = [fit.number for fit in (self.throughput, self.gain) if fit is not None]
        return each_once(gate for number in told for gate in number.gates)

    @property
    def basis(self) -> Basis:
        """That of its gain, the narrower of the two, where it has one."""
        fit = self.gain or self.throughput
        return fit.number.basis if fit is not None else Basis.of_cell(self.cell)

    def context(self, engine: Engine) -> str:
        """Both numbers with everything they depend on, in one line."""
        said = []
        if self.throughput is not None:
            said.append(quantity(self.throughput.number.figure, "tok/s"))
        if self.gain is not None:
            said.append(f"{QUOTED_GAINS[SPECULATION]} {times(self.gain.number.figure)} against {OFF}")
        return context_line(replace(self.cell, gates=self.gates), engine, self.basis, SEPARATOR.join(said))


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Numbers of one cell that share what is to be said against them."""

    cell: CellFigures
    numbers: tuple[Number, ...]
    objections: tuple[Objection, ...]


def quoted(fit: Iterable[Fit]) -> tuple[Quoted, ...]:
    """One entry per cell that has a throughput or a speculation gain to quote."""
    found: dict[str, dict[str, Fit]] = {}
    for item in fit:
        found.setdefault(address(item.number.cell), {})[item.number.metric] = item
    return tuple(
        Quoted(next(iter(of_cell.values())).number.cell, of_cell.get(THROUGHPUT), of_cell.get(SPECULATION))
        for of_cell in found.values()
        if THROUGHPUT in of_cell or SPECULATION in of_cell
    )


def held_back(unfit: Iterable[Unfit]) -> tuple[HeldBack, ...]:
    """Unfit numbers, those of one cell together where the same stands against them."""
    found: dict[tuple[str, tuple[Objection, ...]], list[Number]] = {}
    for item in unfit:
        found.setdefault((address(item.number.cell), item.objections), []).append(item.number)
    return tuple(HeldBack(numbers[0].cell, tuple(numbers), objections) for (_, objections), numbers in found.items())
