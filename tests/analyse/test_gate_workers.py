"""Gate 11 of a cell that several workers sent: planted losses, clock errors and shares."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specprof.analyse.gates import Limits, cell_gates, open_gates
from specprof.analyse.results import Severity
from specprof.records import LOST_WITH_WORKER, ClientLoad, WorkerLoad
from tests.factory import make_cell, make_frame, make_requests

GAP_S = 0.05  # between two chunks of the factory's texts
CHUNKS_PER_S = 4 * 64 / (0.1 + 63 * GAP_S)  # as in test_gate_ceiling


def worker(number: int, **changes) -> WorkerLoad:
    plain = WorkerLoad(number, 0.2, 0.001, num_requests=2, num_reads=128, clock_offset_ns=0, clock_error_ns=100_000)
    return replace(plain, **changes)


def found(*workers: WorkerLoad, requests=None, ceiling: float | None = None, **load):
    cell = make_cell()
    told = ClientLoad(**{"cpu_share": 0.2, "loop_lag_p99_s": 0.001, **load}, workers=workers)
    frame = make_frame(cell, requests or make_requests(cell), client=told)
    return [gate for gate in cell_gates(frame, None, Limits(client_chunks_per_s=ceiling)) if gate.gate in (10, 11)]


def test_two_workers_that_came_back_with_clocks_well_known_are_fine() -> None:
    assert not found(worker(0), worker(1, clock_offset_ns=10**15))


def test_a_lost_worker_makes_the_cell_invalid_and_is_named() -> None:
    error = f"{LOST_WITH_WORKER} 2 of 2: its process was killed by signal 9"
    whole = make_requests(make_cell())
    requests = [
        replace(r, error=error, chunk_ns=(), chunk_tokens=(), token_ids=()) if i % 2 else r for i, r in enumerate(whole)
    ]
    failed, lost = found(worker(0), worker(1, lost="its process was killed by signal 9"), requests=requests)
    assert (failed.gate, failed.severity) == (10, Severity.INVALID)
    assert failed.evidence == f"2 of 4 failed: {error}"
    assert (lost.gate, lost.severity) == (11, Severity.INVALID)
    assert lost.evidence == (
        "1 of 2 workers ended with the 2 requests they were given (worker 2: its process was killed by signal 9)"
    )
    assert "run again" in lost.remedy


def test_an_open_loop_that_lost_every_worker_is_invalid_all_the_same() -> None:
    gone = [replace(r, error="gone", chunk_ns=(), chunk_tokens=(), token_ids=()) for r in make_requests(make_cell())]
    load = ClientLoad(0.0, 0.0, workers=(worker(0, lost="gone"), worker(1, lost="gone")))
    (lost,) = open_gates(make_frame(make_cell(), gone, client=load))
    assert lost.evidence.startswith("2 of 2 workers ended with the 4 requests")


@pytest.mark.parametrize(("error_s", "is_told"), [(0.09 * GAP_S, False), (0.11 * GAP_S, True)])
def test_a_clock_that_is_not_known_to_a_tenth_of_a_chunk_is_a_caution(error_s: float, is_told: bool) -> None:
    gates = found(worker(0), worker(1, clock_error_ns=round(error_s * 1e9)))
    assert [gate.name for gate in gates] == ["clocks of the workers"] * is_told
    if is_told:
        assert gates[0].severity is Severity.CAUTION
        assert gates[0].evidence == "the clocks of 2 workers are known to ±5.5 ms, 11% of the 50 ms between two chunks"


def test_one_actor_alone_has_nobody_to_differ_from() -> None:
    assert not found(worker(0, clock_error_ns=10**9))


def test_the_busiest_worker_is_the_one_that_is_held_to_a_process_s_ceiling() -> None:
    """A quarter of the reads and three quarters of them: the second took in 0.75 of the cell's chunks."""
    uneven = (worker(0, num_reads=64), worker(1, num_reads=192))
    assert not found(*uneven, ceiling=10.1 * 0.75 * CHUNKS_PER_S)
    (gate,) = found(*uneven, ceiling=9.9 * 0.75 * CHUNKS_PER_S)
    assert gate.evidence.startswith(
        "59 chunks/s arrived at the busiest of 2 workers, and the client could take in only 9.9×"
    )


def test_a_late_worker_is_told_as_a_late_client() -> None:
    (gate,) = found(worker(0), worker(1, loop_lag_p99_s=0.008), loop_lag_p99_s=0.008)
    assert gate.evidence == "event loop late by 8.0 ms (p99), client CPU 20% at the busiest of 2 workers"
