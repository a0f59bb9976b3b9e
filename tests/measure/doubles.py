"""An engine and an observer that do as a test tells them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from specprof.errors import EngineDied
from specprof.records import Cell, EngineFacts, Launch
from tests.measure.sse import Vllm
from tests.running import when


class FakeEngine:
    """A running server that dies when it is told to, and stays dead."""

    def __init__(self, vllm: Vllm) -> None:
        self.vllm = vllm
        self.dies_at = float("inf")
        self.dies_when: Callable[[], bool] = lambda: False
        self._is_dead = False

    @property
    def base_url(self) -> str:
        return self.vllm.base_url

    @property
    def served_model(self) -> str:
        return "planted"

    def facts(self) -> EngineFacts:
        return EngineFacts("fake", "fake", "0", "m", "")

    def death(self) -> EngineDied | None:
        self._is_dead = self._is_dead or time.monotonic() >= self.dies_at or self.dies_when()
        return EngineDied("The engine died.", cause="planted") if self._is_dead else None


class Journal:
    """An observer that remembers; `stop_at` raises when so many cells are sealed."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.launches: list[Launch] = []
        self.cells: list[Cell] = []
        self.sealed_keys: list[str] = []
        self.left: list[int] = []
        self.requests = 0
        self.stop_at = stop_at

    def launch(self, launch: Launch) -> None:
        self.launches.append(launch)

    def engine_says(self, text: str) -> None:
        pass

    def cell(self, cell: Cell) -> None:
        self.cells.append(cell)

    def request_done(self) -> None:
        self.requests += 1

    def remaining(self, at_most: int) -> None:
        self.left.append(at_most)

    def sealed(self, cell: Cell) -> None:
        self.sealed_keys.append(cell.key)
        if len(self.sealed_keys) == self.stop_at:
            raise KeyboardInterrupt


@contextmanager
def at_work(engine: FakeEngine, act: Callable[[], object]) -> Iterator[None]:
    """While the block lasts, act as soon as the engine is asked something. No text ends before."""
    num_before = len(engine.vllm.asked)
    with when(lambda: len(engine.vllm.asked) > num_before, act) as acted:
        engine.vllm.may_end = lambda body: acted.is_set()
        yield
