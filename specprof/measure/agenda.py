"""What of a plan is still to be measured, as far as its sealed cells can tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from specprof.columns import requests_of
from specprof.errors import StoreError
from specprof.records import LOST_WITH_WORKER, Cell, Launch, Request
from specprof.store import Store
from specprof.study.config import Study
from specprof.study.ladder import Ladder, RungOutcome, rung_outcome, sections
from specprof.study.plan import Plan

_ALL_BUT_KEY = tuple(field.name for field in fields(Cell) if field.name != "key")


class Agenda:
    """A study's plan beside its store. It remembers how sealed rungs went, and nothing else: seals never change."""

    def __init__(self, study: Study, plan: Plan, store: Store) -> None:
        self._store = store
        self._launches = [(launch, sections(study, launch.cells)) for launch in plan.launches]
        self._targets = {workload.tag: workload.targets for workload in study.workloads}
        self._outcomes: dict[str, RungOutcome] = {}

    def pending(self) -> Iterator[Launch]:
        """The launches that have something left, with the cells that are left at most. No engine starts for nothing."""
        for launch, parts in self._launches:
            cells = tuple(cell for part in parts for cell in self._left(part))
            if cells:
                yield replace(launch, cells=cells)

    def cells(self, launch: Launch) -> Iterator[Cell]:
        """What to measure on a launch, one by one: each must be sealed before the next is asked for."""
        parts = next(parts for planned, parts in self._launches if planned.index == launch.index)
        for part in parts:
            while left := self._left(part):
                yield left[0]

    def num_sealed(self) -> int:
        """How many cells are measured."""
        parts = (part for _, parts in self._launches for part in parts)
        cells = (cell for part in parts for cell in (part.rungs if isinstance(part, Ladder) else (part,)))
        return sum(self._store.is_sealed(cell.key) for cell in cells)

    def num_left(self) -> int:
        """How many cells are left at most: a load curve may end early."""
        return sum(len(launch.cells) for launch in self.pending())

    def _left(self, part: Cell | Ladder) -> tuple[Cell, ...]:
        if isinstance(part, Ladder):
            return part.most_left(self._known(part))
        return () if self._store.is_sealed(part.key) else (part,)

    def _known(self, ladder: Ladder) -> dict[str, RungOutcome]:
        for rung in ladder.rungs:
            if rung.key not in self._outcomes and self._store.is_sealed(rung.key):
                requests = tuple(filter(_is_of_the_server, requests_of(self._store.cell(rung.key).requests)))
                self._outcomes[rung.key] = rung_outcome(rung, requests, self._targets)
        return {rung.key: self._outcomes[rung.key] for rung in ladder.rungs if rung.key in self._outcomes}


def require_same_cells(plan: Plan, store: Store) -> None:
    """Raise StoreError where a cell of the plan is sealed already as another cell: one of its prompts, or the trace it
    replays, was changed since. Measured again it would stand beside the old one under one name.
    """
    planned = {cell.key: cell for cell in plan.cells}
    others = {_name(key): key for key in store.sealed_keys() - planned.keys()}
    for key, cell in planned.items():
        if (sealed_as := others.get(_name(key))) is not None:
            then = store.cell(sealed_as).cell
            changed = [name for name in _ALL_BUT_KEY if getattr(then, name) != getattr(cell, name)]
            what = f"the prompts of {cell.tag}" if "suite_hash" in changed else ", ".join(changed)
            raise StoreError(
                f"{store.root}: {what} changed since cell {sealed_as} was measured. Put that back to go on, "
                "or give the study a new name (study: …) to measure what is there now; sealed cells stay as they are."
            )


def _is_of_the_server(request: Request) -> bool:
    """Whether it says anything of the server; one that went with its worker ends no climb."""
    return request.error is None or not request.error.startswith(LOST_WITH_WORKER)


def _name(key: str) -> str:
    """The readable part of a cell's key, which says its place in the grid."""
    return key.rpartition("-")[0]
