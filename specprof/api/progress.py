"""Who is told how a run goes. The command line draws it; Python is quiet unless it asks for the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from specprof.measure.loop import Observer
from specprof.records import Cell, Launch
from specprof.study.plan import Plan

_log = logging.getLogger("specprof")


class Progress(Protocol):
    """Is told how a run goes, as it goes."""

    def say(self, text: str) -> None:
        """Where the run is, in one line."""

    def warn(self, text: str) -> None:
        """Something known that may spoil the measurement, in one line."""

    def cells(self, plan: Plan, sealed: int, total: int, verb: str = "measure") -> AbstractContextManager[Observer]:
        """An observer while cells of `plan` are measured or their texts scored; `sealed` of `total` are done.

        `verb`: which of the two, "measure" or "score".
        """

    def texts(self, total: int) -> AbstractContextManager[Callable[[], None]]:
        """What to call after each of `total` texts, whether it was judged or was none to judge."""


class Logged:
    """Progress for whoever reads the log `specprof` (INFO and WARNING) and quiet for whoever does not."""

    def say(self, text: str) -> None:
        """Log one line."""
        _log.info(text)

    def warn(self, text: str) -> None:
        """Log one line that matters."""
        _log.warning(text)

    def cells(self, plan: Plan, sealed: int, total: int, verb: str = "measure") -> AbstractContextManager[Observer]:
        """Log every launch and every sealed cell."""
        del plan
        return nullcontext(_LoggedCells(sealed, total, verb))

    def texts(self, total: int) -> AbstractContextManager[Callable[[], None]]:
        """Log nothing: a text is judged in a moment."""
        del total
        return nullcontext(lambda: None)


class _LoggedCells:
    """An `Observer` that writes to the log."""

    def __init__(self, sealed: int, total: int, verb: str) -> None:
        self._sealed, self._total, self._verb = sealed, total, verb

    def launch(self, launch: Launch) -> None:
        """Log which engine starts."""
        _log.info("launch %d: starting the engine for arm %s", launch.index + 1, launch.arm)

    def engine_says(self, text: str) -> None:
        """Log it for whoever looks closely."""
        _log.debug("%s", text)

    def cell(self, cell: Cell) -> None:
        """Nothing to say before it is done."""

    def request_done(self) -> None:
        """Nothing to say: there are thousands."""

    def sealed(self, cell: Cell) -> None:
        """Log how far the run is."""
        self._sealed += 1
        _log.info("%d of %d cells are %sd: %s", self._sealed, self._total, self._verb, cell.key)

    def remaining(self, at_most: int) -> None:
        """A load curve ended early: fewer are left."""
        self._total = self._sealed + at_most
