"""What a plan will cost before anything starts: requests, tokens, and a time that names its assumptions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from specprof.records import Cell, Launch, Role, arm_in_words
from specprof.study.config import SimEngine, Study
from specprof.study.plan import Plan

START_S = 45.0
CELL_S = 0.5  # warm-up, counters, sealing
BATCHING = 0.9  # N streams write N**0.9 times as fast as one


@dataclass(frozen=True, slots=True)
class Rates:
    """Assumed speed of one stream, tokens/s."""

    decode: float = 20.0
    prefill: float = 600.0


def cell_seconds(cell: Cell, rates: Rates) -> float:
    """Expected seconds to measure a cell: natural texts are assumed to use all they may."""
    requests = len(cell.prompt_ids)
    streams = min(cell.concurrency, requests)
    reading = requests * 60 / rates.prefill
    writing = requests * cell.max_tokens / (rates.decode * streams**BATCHING) if cell.max_tokens > 1 else 0.0
    warmup = cell.warmup_tokens / rates.decode if cell.num_warmup else 0.0
    return CELL_S + reading + writing + warmup


def launch_seconds(launch: Launch, rates: Rates, start_s: float = START_S) -> float:
    """Expected seconds of a launch, its start included."""
    return start_s + sum(cell_seconds(cell, rates) for cell in launch.cells)


def print_plan(study: Study, plan: Plan, console: Console, rates: Rates | None = None) -> None:
    """The plan as tables: what is measured on each launch, and how long it may take."""
    rates = rates or Rates()
    start_s = 1.0 if isinstance(study.engine, SimEngine) else START_S
    table = Table(title=f"{study.study}: {len(plan.launches)} launches, {len(plan.cells)} cells", title_justify="left")
    for heading, justify in (
        ("launch", "right"),
        ("block", "right"),
        ("arm", "left"),
        ("cells", "right"),
        ("requests", "right"),
        ("time", "right"),
    ):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for launch in plan.launches:
        requests = sum(len(cell.prompt_ids) for cell in launch.cells)
        words = arm_in_words(launch.speculative_config)
        arm = launch.arm if launch.arm == words else f"{launch.arm} ({words})"
        seconds = launch_seconds(launch, rates, start_s)
        table.add_row(
            str(launch.index + 1), str(launch.block + 1), arm, str(len(launch.cells)), str(requests), _minutes(seconds)
        )
    console.print(table)
    for line in _grid(study, plan):
        console.print(line, highlight=False, soft_wrap=True)
    total = sum(launch_seconds(launch, rates, start_s) for launch in plan.launches)
    console.print(
        f"Estimated time: {_minutes(total)}, if an engine starts in {start_s:.0f} s and one stream writes "
        f"{rates.decode:.0f} tok/s. Nothing was started.",
        highlight=False,
        soft_wrap=True,
    )


def _grid(study: Study, plan: Plan) -> Iterator[str]:
    first = plan.launches[0]
    for name, protocol in study.protocols.items():
        tags = protocol.workloads or tuple(w.tag for w in study.workloads)
        streams = protocol.concurrency or study.concurrency
        yield (
            f"  {name}: {protocol.stop.value} {protocol.length} tokens · {', '.join(tags)} · "
            f"N = {', '.join(map(str, streams))} · {study.prompts} prompts each"
        )
    probes = sum(cell.role is Role.PREFILL for cell in first.cells)
    yield f"  and per launch {probes} prefill cells and a sentinel cell before and after"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
