"""What a run shows while it runs: the present launch and cell, how far along, how long still. Quiet in a pipe."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from specprof.records import Cell, Launch, arm_in_words
from specprof.study.plan import Plan


class RunDisplay:
    """An `Observer` that draws a progress bar on a terminal, and one line per launch elsewhere."""

    def __init__(self, console: Console, progress: Progress, plan: Plan, sealed: int) -> None:
        self._console, self._progress = console, progress
        self._num_launches = len(plan.launches)
        self._cells = progress.add_task("cells", total=len(plan.cells), completed=sealed)
        self._now = progress.add_task("", total=None, visible=False)
        self._label = ""
        self._launched = 0.0

    def launch(self, launch: Launch) -> None:
        """An engine is about to start."""
        self._launched = time.monotonic()
        words = arm_in_words(launch.speculative_config)
        self._label = f"launch {launch.index + 1}/{self._num_launches} · {launch.arm}"
        detail = "" if words == launch.arm else f" ({words})"
        self._say(f"{self._label}{detail}: starting the engine, {len(launch.cells)} cells to measure")
        self._progress.update(self._now, description=f"{self._label} · starting", total=None, visible=True)

    def engine_says(self, text: str) -> None:
        """What the engine is busy with while it starts."""
        waited = time.monotonic() - self._launched
        self._progress.update(self._now, description=f"{self._label} · {text[:60]} ({waited:.0f} s)")

    def cell(self, cell: Cell) -> None:
        """A cell is about to be measured."""
        description = f"{self._label} · {cell.tag} · {cell.protocol} · N={cell.concurrency}"
        self._progress.reset(self._now, total=len(cell.prompt_ids), description=description)

    def request_done(self) -> None:
        """One request of the present cell ended."""
        self._progress.advance(self._now)

    def sealed(self, cell: Cell) -> None:
        """A cell is on disk for good."""
        del cell
        self._progress.advance(self._cells)

    def _say(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(text, highlight=False, soft_wrap=True)


@contextmanager
def run_display(console: Console, plan: Plan, sealed: int) -> Iterator[RunDisplay]:
    """The display of one run; the bars vanish when it ends."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield RunDisplay(console, progress, plan, sealed)
