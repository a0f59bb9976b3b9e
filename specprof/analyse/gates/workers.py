"""Gate 11 where several clients sent one cell: is every one's part there, and are their clocks one clock.

What one request takes is a difference of instants of one clock, whoever sent it. What is read across requests (the
wall of a cell, how many streams wrote at once, who waited for whom) compares clocks of different workers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specprof.analyse.frames import CellFrame
from specprof.analyse.gates.found import caution, invalid
from specprof.analyse.results import GateFinding
from specprof.records import ClientLoad

MAX_CLOCK_ERROR = 0.10  # of the time between two chunks of a text, the shortest that is measured


def workers(frame: CellFrame) -> Iterator[GateFinding]:
    """A cell that lost a worker is a smaller one; clocks that are not known well enough blur what happens at once."""
    load = frame.data.client
    if load is None or not load.workers:
        return
    yield from _lost(load)
    error_s = max(worker.clock_error_ns for worker in load.workers) / 1e9
    gap_s = float(np.median(frame.gaps)) if len(frame.gaps) else float("nan")
    if len(load.workers) > 1 and error_s > MAX_CLOCK_ERROR * gap_s:
        yield caution(
            11,
            "clocks of the workers",
            f"the clocks of {len(load.workers)} workers are known to ±{error_s * 1e3:.2g} ms, "
            f"{error_s / gap_s:.0%} of the {gap_s * 1e3:.2g} ms between two chunks",
            "Times within one request stand. For what happens at once, put the workers on one machine or a nearer one.",
        )


def busiest_share(load: ClientLoad | None) -> float:
    """The part of a cell's reads that its busiest client took in: 1 of one client."""
    reads = [worker.num_reads for worker in load.workers] if load is not None else []
    return max(reads) / sum(reads) if sum(reads) else 1.0


def _lost(load: ClientLoad) -> Iterator[GateFinding]:
    lost = [worker for worker in load.workers if worker.lost is not None]
    if not lost:
        return
    num_requests = sum(worker.num_requests for worker in lost)
    which = "; ".join(f"worker {worker.worker + 1}: {worker.lost}" for worker in lost)
    yield invalid(
        11,
        "lost worker",
        f"{len(lost)} of {len(load.workers)} workers ended with the {num_requests} requests they were given ({which})",
        "Remove the cell's folder under cells/, and run again: it is then measured anew.",
    )
