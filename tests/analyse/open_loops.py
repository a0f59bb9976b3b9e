"""Open-loop cells for tests: written by hand, or measured on the virtual clock of a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specprof.analyse.frames import CellFrame
from specprof.analyse.service.asked import Asked
from specprof.analyse.service.cell import OpenCell
from specprof.columns import cell_data
from specprof.engine.sim import Machine, VirtualEngine
from specprof.records import Arrivals, Cell, Prompt, Request, Role, phase_due
from specprof.study.load import Rates, Targets
from specprof.study.schedule import Schedule, open_schedules
from tests.factory import make_cell, make_data, make_request

PROMPTS = tuple(Prompt(f"code-{i}", "code", "", f"prompt number {i} ".ljust(200, ".")) for i in range(8))
SUITE: Mapping[str, Prompt] = {prompt.id: prompt for prompt in PROMPTS}


def make_arrivals(due_s: Sequence[float], **changes: Any) -> Arrivals:
    """Everybody is measured in a window of ten seconds unless told otherwise."""
    plain = Arrivals(
        kind="poisson",
        rate_per_s=len(due_s) / 10.0,
        burstiness=1.0,
        warmup_s=0.0,
        duration_s=10.0,
        timeout_s=60.0,
        due_s=tuple(due_s),
    )
    return replace(plain, **changes)


def make_open_cell(due_s: Sequence[float], **changes: Any) -> Cell:
    """A natural open-loop cell; prompts `r0`, `r1`, … in the order in which they are due."""
    arrivals = make_arrivals(due_s, **changes.pop("arrivals", {}))
    names = tuple(f"r{i}" for i in range(len(due_s)))
    return make_cell(role=Role.OPEN, concurrency=0, prompt_ids=names, arrivals=arrivals, **changes)


def due_request(cell: Cell, index: int, **changes: Any) -> Request:
    """Request `index` of an open-loop cell, sent when it is due; its cell starts at second 0 of the clock. Prompts are
    not all of one length.
    """
    assert cell.arrivals is not None
    due_s = cell.arrivals.due_s[index]
    phase = phase_due(cell.arrivals, due_s)
    return make_request(
        cell.prompt_ids[index],
        **{"start_s": due_s, "stream": index, "phase": phase, "prompt_tokens": 20 + index % 5, **changes},
    )


def open_frame(cell: Cell, requests: Sequence[Request], **changes: Any) -> CellFrame:
    return CellFrame(make_data(cell, requests, **changes))


def measured_cell(cell: Cell, requests: Sequence[Request], asked: Asked, **changes: Any) -> OpenCell:
    return OpenCell(open_frame(cell, requests, **changes), asked)


def scheduled_cell(schedule: Schedule, **changes: Any) -> Cell:
    """The cell that sends a drawn schedule, forced lengths."""
    names = tuple(prompt.id for prompt in schedule.prompts)
    return make_cell(role=Role.OPEN, concurrency=0, prompt_ids=names, arrivals=schedule.arrivals, **changes)


def ladder(machine: Machine, load: Rates, seed: str, *, tokens: int, launch: int = 0) -> list[CellFrame]:
    """Every rung of a load curve of `PROMPTS` on one launch of a machine, rates rising."""
    engine = VirtualEngine(machine, launch_index=launch)
    (schedules,) = open_schedules(load, {"code": PROMPTS}, seed, tokens)
    cells = [
        scheduled_cell(s, max_tokens=tokens, block=launch, key=f"b{launch}-{s.arrivals.rate_per_s:g}")
        for s in schedules
    ]
    return [CellFrame(cell_data(engine.measure(cell, SUITE))) for cell in cells]


def targets(**seconds: float) -> Asked:
    """An Asked of one content, `code`, with these latency targets."""
    return Asked(targets={"code": Targets(**seconds)})
