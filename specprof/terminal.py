"""What the terminal shows: a plan before it runs, then the present cell and how long still. Quiet in a pipe."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from specprof.records import Cell, Launch, Role, arm_in_words
from specprof.study.config import Study
from specprof.study.estimate import assumed_rates, launch_seconds
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


def print_plan(study: Study, plan: Plan, console: Console) -> None:
    """What would be measured on each launch, and how long it may take."""
    rates = assumed_rates(study)
    table = Table(title=f"{study.study}: {len(plan.launches)} launches, {len(plan.cells)} cells", title_justify="left")
    for heading in ("launch", "block", "cells", "requests", "time"):
        table.add_column(heading, justify="right")
    table.add_column("arm")
    for launch in plan.launches:
        words = arm_in_words(launch.speculative_config)
        numbers = (launch.index + 1, launch.block + 1, len(launch.cells), sum(len(c.prompt_ids) for c in launch.cells))
        arm = launch.arm if launch.arm == words else f"{launch.arm} ({words})"
        table.add_row(*map(str, numbers), _minutes(launch_seconds(launch, rates)), arm)
    console.print(table)
    for line in (*_grid(study, plan), *plan.notes):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(
        f"Estimated time: {_total(study, plan)}, if an engine starts in {rates.start_s:.0f} s and one stream writes "
        f"{rates.decode:.0f} tok/s. Nothing was started.",
        highlight=False,
        soft_wrap=True,
    )


def print_saving(study: Study, whole: Plan, smaller: Plan, left_out: Sequence[str], console: Console) -> None:
    """What the whole study would take beside a smaller plan of it, and which workloads the smaller one leaves out."""
    cells = f"{len(whole.cells)} cells on {len(whole.launches)} launches"
    lines = [f"The whole study would have taken {_total(study, whole)}: {cells}."]
    if len(smaller.cells) == len(whole.cells):
        lines = ["The study is as small as one that decides can be."]
    if left_out:
        lines.append(f"No forced protocol measures {', '.join(left_out)}: nothing will be decided there.")
    lines.append("The K and N between those of this grid come from the step-time model, never beyond them.")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _total(study: Study, plan: Plan) -> str:
    rates = assumed_rates(study)
    return _minutes(sum(launch_seconds(launch, rates) for launch in plan.launches))


def _grid(study: Study, plan: Plan) -> Iterator[str]:
    cells = plan.launches[0].cells
    for name, protocol in study.protocols.items():
        own = [cell for cell in cells if cell.protocol == name]
        tags = ", ".join(dict.fromkeys(cell.tag for cell in own))
        streams = ", ".join(map(str, sorted({cell.concurrency for cell in own})))
        prompts = "/".join(map(str, sorted({len(cell.prompt_ids) for cell in own})))
        asked = f"{protocol.stop.value} {protocol.length} tokens"
        yield f"  {name}: {asked} · {tags} · N = {streams} · {prompts} prompts each"
    probes = sum(cell.role is Role.PREFILL for cell in cells)
    yield f"  and per launch {probes} prefill cells and a sentinel cell before and after"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
