"""What the terminal shows: a plan before it runs, then the present cell and how long still. Quiet in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from specprof.publish.paragraphs import verbatim
from specprof.records import Cell, Launch, Role, Stop, arm_in_words
from specprof.study.config import Study
from specprof.study.estimate import assumed_rates, launch_seconds, num_requests
from specprof.study.ladder import at_most, may_end_early
from specprof.study.load import Goodput, Load, Rates, Trace
from specprof.study.plan import Plan
from specprof.study.smallest import SmallestGrid


class RunDisplay:
    """An `Observer` that draws a progress bar on a terminal, and one line per launch elsewhere."""

    def __init__(
        self, console: Console, progress: Progress, plan: Plan, sealed: int, total: int, verb: str = "measure"
    ) -> None:
        self._console, self._progress, self._verb = console, progress, verb
        self._num_launches = len(plan.launches)
        self._num_sealed = sealed
        self._cells = progress.add_task("cells", total=total, completed=sealed)
        self._now = progress.add_task("", total=None, visible=False)
        self._label = ""
        self._launched = 0.0

    def launch(self, launch: Launch) -> None:
        """An engine is about to start."""
        self._launched = time.monotonic()
        words = arm_in_words(launch.speculative_config)
        self._label = f"launch {launch.index + 1}/{self._num_launches} · {launch.arm}"
        detail = "" if words == launch.arm else f" ({words})"
        up_to = "up to " if any(cell.arrivals is not None for cell in launch.cells) else ""
        self._say(f"{self._label}{detail}: starting the engine, {up_to}{_cells(len(launch.cells))} to {self._verb}")
        self._progress.update(self._now, description=f"{self._label} · starting", total=None, visible=True)

    def engine_says(self, text: str) -> None:
        """What the engine is busy with while it starts."""
        waited = time.monotonic() - self._launched
        self._progress.update(self._now, description=f"{self._label} · {text[:60]} ({waited:.0f} s)")

    def cell(self, cell: Cell) -> None:
        """A cell is about to be measured, or its texts scored."""
        load = f"N={cell.concurrency}" if cell.arrivals is None else f"{cell.arrivals.rate_per_s:.3g} req/s"
        description = f"{self._label} · {cell.tag} · {cell.protocol} · {load}"
        self._progress.reset(self._now, total=num_requests(cell), description=description)

    def request_done(self) -> None:
        """One request of the present cell ended."""
        self._progress.advance(self._now)

    def sealed(self, cell: Cell) -> None:
        """A cell is on disk for good."""
        del cell
        self._num_sealed += 1
        self._progress.advance(self._cells)

    def remaining(self, at_most: int) -> None:
        """How many cells are left at most."""
        self._progress.update(self._cells, total=self._num_sealed + at_most)

    def _say(self, text: str) -> None:
        if not self._console.is_terminal:
            verbatim(text, self._console)


@contextmanager
def run_display(console: Console, plan: Plan, sealed: int, total: int, verb: str = "measure") -> Iterator[RunDisplay]:
    """The display of one run, `sealed` of whose `total` cells are done; the bars vanish when it ends."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield RunDisplay(console, progress, plan, sealed, total, verb)


class TerminalProgress:
    """A run as a terminal shows it (`api.progress.Progress`): bars that vanish, and the lines that stay."""

    def __init__(self, console: Console, errors: Console) -> None:
        self._console, self._errors = console, errors

    def say(self, text: str) -> None:
        """One line of the output."""
        verbatim(text, self._console)

    def warn(self, text: str) -> None:
        """One line beside it."""
        verbatim(text, self._errors)

    def cells(self, plan: Plan, sealed: int, total: int, verb: str = "measure") -> AbstractContextManager[RunDisplay]:
        """The bars of a run."""
        return run_display(self._console, plan, sealed, total, verb)

    @contextmanager
    def texts(self, total: int) -> Iterator[Callable[[], None]]:
        """One bar of all texts."""
        with Progress(console=self._console, transient=True, disable=not self._console.is_terminal) as progress:
            bar = progress.add_task("texts", total=total)
            yield lambda: progress.advance(bar)


def print_plan(study: Study, plan: Plan, console: Console) -> None:
    """What would be measured on each launch, and how long it may take."""
    rates, plan = assumed_rates(study), at_most(study, plan)
    launches = f"{'up to ' if len(study.looks) > 1 else ''}{len(plan.launches)} launches"
    title = f"{study.study}: {launches}, {_up_to(study)}{len(plan.cells)} cells"
    table = Table(title=title, title_justify="left")
    for heading in ("launch", "block", "cells", "requests", "time"):
        table.add_column(heading, justify="right")
    table.add_column("arm")
    for launch in plan.launches:
        words = arm_in_words(launch.speculative_config)
        numbers = (launch.index + 1, launch.block + 1, len(launch.cells), sum(map(num_requests, launch.cells)))
        arm = launch.arm if launch.arm == words else f"{launch.arm} ({words})"
        table.add_row(*map(str, numbers), _minutes(launch_seconds(launch, rates)), arm)
    console.print(table)
    for line in (*_grid(study, plan), *_looks(study), *plan.notes):
        verbatim(line, console)
    assumed = f"an engine starts in {rates.start_s:.0f} s and one stream writes {rates.decode:.0f} tok/s"
    verbatim(f"Estimated time: {_total(study, plan)}, if {assumed}. Nothing was started.", console)


def print_saving(study: Study, whole: Plan, smaller: Plan, grid: SmallestGrid, console: Console) -> None:
    """What the whole study would take beside a smaller plan of it, and what the smaller one leaves out."""
    whole = at_most(study, whole)
    if len(smaller.cells) == len(whole.cells):
        lines = ["The study is as small as one that decides can be."]
    else:
        cells = f"{_up_to(study)}{len(whole.cells)} cells on {len(whole.launches)} launches"
        lines = [f"The whole study would have taken {_total(study, whole)}: {cells}."]
    for line in (*lines, *_left_out(study, grid)):
        verbatim(line, console)
    verbatim("The K and N between those of this grid come from the step-time model, never beyond them.", console)


def _left_out(study: Study, grid: SmallestGrid) -> Iterator[str]:
    """Arms, protocols and workloads that a smaller grid goes without, and why."""
    arms = [name for name in study.arms if name not in (*grid.study.arms, *grid.bounds)]
    gone = {name: protocol.mix for name, protocol in study.protocols.items() if name not in grid.study.protocols}
    for what, names, why in (
        ("Arms", grid.bounds, "bounds, which no policy chooses"),
        ("Arms", arms, "one arm without speculation and the smallest and largest K of each drafter decide"),
        (
            "Protocols",
            [name for name, mix in gone.items() if not mix],
            "one forced closed loop of each content decides",
        ),
        ("Mixes", [name for name, mix in gone.items() if mix], "nothing here measures their contents alone like that"),
    ):
        if names:
            yield f"{what} left out: {', '.join(names)} ({why})."
    if grid.left_out:
        yield f"No forced protocol measures {', '.join(grid.left_out)}: nothing will be decided there."


def _total(study: Study, plan: Plan) -> str:
    rates = assumed_rates(study)
    return _up_to(study) + _minutes(sum(launch_seconds(launch, rates) for launch in plan.launches))


def _up_to(study: Study) -> str:
    """Before a count of what is planned: less is measured where a look shows enough, or an engine has collapsed."""
    return "up to " if len(study.looks) > 1 or may_end_early(study) else ""


def _looks(study: Study) -> Iterator[str]:
    """When the evidence of `blocks: auto` is looked at."""
    *earlier, last = study.looks
    if earlier:
        after = f"{', '.join(map(str, earlier))} and {last} blocks"
        yield f"  looked at after {after}: the first look that shows enough is the last"


def _grid(study: Study, plan: Plan) -> Iterator[str]:
    cells = plan.launches[0].cells
    for name, protocol in study.protocols.items():
        own = [cell for cell in cells if cell.protocol == name]
        tags = ", ".join(dict.fromkeys(cell.tag for cell in own))
        if (load := study.load_of(name)) is not None:
            length = f"{'at most ' if protocol.stop is Stop.NATURAL else ''}{protocol.length} tokens"
            yield f"  {name}: {protocol.stop.value}, {length} · {tags} · open loop, {_in_words(load)}"
            continue
        streams = ", ".join(map(str, sorted({cell.concurrency for cell in own})))
        prompts = "/".join(map(str, sorted({len(cell.prompt_ids) for cell in own})))
        asked = f"{protocol.stop.value} {protocol.length} tokens"
        yield f"  {name}: {asked} · {tags} · N = {streams} · {prompts} prompts each"
    probes = sum(cell.role is Role.PREFILL for cell in cells)
    yield f"  and per launch {_cells(probes, 'prefill ')} and a sentinel cell before and after"
    if not study.clients.alone:
        where = "actors of a Ray cluster" if study.clients.backend == "ray" else "processes"
        yield f"  requests are sent by {study.clients.workers} {where}"


def _in_words(load: Load) -> str:
    """When requests arrive: `Poisson, 0.5, 1, 2 req/s, 60 s each after 15 s`."""
    window = f"after {load.warmup:g} s"
    match load:
        case Rates():
            rates = ", ".join(f"{rate:g}" for rate in load.rates)
            said = f"{_gaps(load)}, {rates} req/s, {load.duration:g} s each {window}"
        case Goodput():
            low, high = load.between
            said = (
                f"{_gaps(load)}, {load.rungs} rungs between {low:g} and {high:g} req/s to find where "
                f"{load.share:.0%} are on target, {load.duration:g} s each {window}"
            )
        case Trace():
            lasting = "all of it" if load.duration is None else f"{load.duration:g} s"
            said = f"trace {load.file.name}{f' at {load.speed:g}x' if load.speed != 1 else ''}, {lasting} {window}"
    return said if load.max_concurrency is None else f"{said}, at most {load.max_concurrency} at once"


def _gaps(load: Rates | Goodput) -> str:
    if load.arrivals == "gamma":
        return f"gamma (burstiness {load.burstiness:g})"
    return {"poisson": "Poisson", "constant": "constant gaps"}[load.arrivals]


def _cells(count: int, kind: str = "") -> str:
    return f"{count} {kind}cell{'' if count == 1 else 's'}"


def _minutes(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 90:
        return f"{minutes:.1f} min"
    return f"{minutes / 60:.1f} h" if minutes < 48 * 60 else f"{minutes / 1440:.1f} days"
