"""Open loops on the virtual clock: who is sent when, who is given up, and when the load ends. All by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sim_cells import open_cell, plain, suite

from specprof.engine.sim import Faults, Scheduler, VirtualEngine
from specprof.records import CellRecord, Phase, Request

THREE = suite("code", 3)
ONE_AT_A_TIME = plain(scheduler=Scheduler(max_num_seqs=1, gather_s=0.0))  # a request of 11 tokens takes 0.11 s


def from_start_s(record: CellRecord, instant: str) -> list[float]:
    """An instant of each request, seconds from the cell's start, in the order in which they were due."""
    rows = sorted(record.requests, key=lambda request: request.scheduled_ns)
    assert record.cell.arrivals is not None
    start_ns = rows[0].scheduled_ns - round(record.cell.arrivals.due_s[0] * 1e9)
    return [(getattr(row, instant) - start_ns) / 1e9 for row in rows]


def in_order(record: CellRecord) -> list[Request]:
    return sorted(record.requests, key=lambda request: request.scheduled_ns)


def test_requests_leave_when_they_are_due_whether_or_not_others_are_done() -> None:
    record = VirtualEngine(ONE_AT_A_TIME).measure(open_cell(THREE, [0.05, 0.06, 0.50], tokens=11), THREE)
    assert from_start_s(record, "scheduled_ns") == pytest.approx([0.05, 0.06, 0.50])
    assert from_start_s(record, "sent_ns") == pytest.approx([0.05, 0.06, 0.50])
    assert from_start_s(record, "done_ns") == pytest.approx([0.16, 0.27, 0.61])
    assert [row.prompt_id for row in in_order(record)] == ["code-0", "code-1", "code-2"]


def test_phases_go_by_when_a_request_is_due_and_the_load_ends_with_the_last_measured_request() -> None:
    """Measured: due in [0.2, 0.4). The last is done at 0.47, so the one due at 0.45 is sent, that at 0.5 not."""
    cell = open_cell(THREE, [0.1, 0.2, 0.35, 0.45, 0.5], tokens=11, warmup_s=0.2, duration_s=0.2)
    rows = in_order(VirtualEngine(plain()).measure(cell, THREE))
    assert [row.phase for row in rows] == [Phase.WARMUP, Phase.MEASURED, Phase.MEASURED, Phase.FILL]
    assert all(row.error is None for row in rows)
    assert {len(row.token_ids) for row in rows} == {11}  # a warm-up by the clock is a whole request


def test_a_request_is_given_up_when_its_time_is_over_and_keeps_what_it_had() -> None:
    """Both at 0: the second waits 0.11 s, reads for 0.01 s and then has 0.035 s left, three steps' worth."""
    cell = open_cell(THREE, [0.0, 0.0], tokens=11, timeout_s=0.155)
    first, second = VirtualEngine(ONE_AT_A_TIME).measure(cell, THREE).requests
    assert first.error is None
    assert second.error is not None and second.error.startswith("timed out")
    assert (second.done_ns - second.scheduled_ns) / 1e9 == pytest.approx(0.155)
    assert sum(second.chunk_tokens) == len(second.token_ids) == 1 + 3


def test_the_engine_drops_what_was_given_up() -> None:
    """Due at 0, 0 and 0.16: the third finds the engine free at 0.16, and not at 0.22, where the second would end."""
    engine = VirtualEngine(ONE_AT_A_TIME)
    record = engine.measure(open_cell(THREE, [0.0, 0.0, 0.16], tokens=11, timeout_s=0.15), THREE)
    assert from_start_s(record, "done_ns") == pytest.approx([0.11, 0.15, 0.27])
    assert engine.world.totals.finished["abort"] == 1
    assert engine.world.num_running == 0


def test_a_cap_holds_requests_back_and_some_are_never_sent() -> None:
    """One out at a time, 0.11 s each: the third would be sent at 0.22 and is given up at 0.2, in the client."""
    record = VirtualEngine(plain()).measure(open_cell(THREE, [0.0] * 3, tokens=11, timeout_s=0.2, cap=1), THREE)
    *_, third = record.requests
    assert from_start_s(record, "sent_ns") == pytest.approx([0.0, 0.11, 0.2])
    assert from_start_s(record, "done_ns") == pytest.approx([0.11, 0.2, 0.2])
    assert third.token_ids == ()
    assert [row.error is None for row in in_order(record)] == [True, False, False]


def test_a_trace_s_requests_have_lengths_of_their_own() -> None:
    cell = open_cell(THREE, [0.0, 1.0, 2.0], tokens=99, output_tokens=[5, 7, 3])
    rows = in_order(VirtualEngine(plain()).measure(cell, THREE))
    assert [len(row.token_ids) for row in rows] == [5, 7, 3]


def test_a_late_client_sends_late_and_says_so() -> None:
    machine = plain(faults=Faults(client_late_s=0.03))
    record = VirtualEngine(machine).measure(open_cell(THREE, [0.0, 1.0], tokens=11), THREE)
    assert from_start_s(record, "sent_ns") == pytest.approx([0.03, 1.03])
    assert record.client is not None
    assert record.client.dispatch_lag_p99_s == pytest.approx(0.03)


def test_a_frozen_engine_starts_nothing_until_it_wakes() -> None:
    """Frozen from 0.055 to 1.055: the step under way ends at 0.06, the next begins at 1.055."""
    machine = plain(faults=Faults(freeze_at_s=0.055, freeze_s=1.0))
    (request,) = VirtualEngine(machine).measure(open_cell(THREE, [0.0], tokens=11), THREE).requests
    arrived = [(at - request.sent_ns) / 1e9 for at in request.chunk_ns]
    assert arrived[5:7] == pytest.approx([0.06, 1.065])
    assert arrived[-1] == pytest.approx(1.055 + 0.05)


def test_the_same_cell_gives_the_same_record() -> None:
    cell = open_cell(THREE, [0.1 * i for i in range(20)], tokens=11, cap=2)
    first, again = (VirtualEngine(replace(ONE_AT_A_TIME)).measure(cell, THREE) for _ in range(2))
    assert first == again
