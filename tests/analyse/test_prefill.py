"""Reading speed is held to the gates: METHOD 3 wants it measured, METHOD 7 says what makes a number unfit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from specprof.analyse.evidence import Evidence
from specprof.analyse.results import Severity, StudyFigures
from specprof.analyse.study import analyse
from specprof.columns import CellData
from specprof.records import ClientLoad, Role
from tests.factory import make_cell, make_data, make_requests, make_running_cell

INVALID, CAUTION = Severity.INVALID, Severity.CAUTION
BUSY = ClientLoad(cpu_share=0.95, loop_lag_p99_s=0.02)


def reading(
    *, ttft_s: float = 1.0, cached_tokens: int = 0, failed: int = 0, block: int = 0, **changes: Any
) -> CellData:
    """Four prompts of 1,000 tokens at once: 4,000 tok/s if all of it is read in a second."""
    cell = make_cell(role=Role.PREFILL, protocol="prefill", max_tokens=1, block=block)
    requests = make_requests(cell, ttft_s=ttft_s, prompt_tokens=1000, cached_tokens=cached_tokens)
    lost = [
        replace(request, error="HTTP 500", chunk_ns=(), chunk_tokens=(), token_ids=()) for request in requests[:failed]
    ]
    return make_data(cell, [*lost, *requests[failed:]], **changes)


def study(*cells: CellData, environment: Mapping[str, Any] | None = None) -> StudyFigures:
    """The reading cells beside one cell of four streams, 64 tokens each: a wall to predict."""
    return analyse("read", Evidence([make_running_cell(100.0), *cells]), environment or {})


def answers(told: StudyFigures) -> list[tuple[int, str, Severity]]:
    (found,) = told.prefill
    return [(gate.gate, gate.name, gate.severity) for gate in found.gates]


def test_a_sound_reading_speed_is_told_nothing_and_explains_the_wall() -> None:
    """80 prompt tokens at 4,000 tok/s: 0.02 s; then 64 tokens at the cell's TPOT (99% of 2.56 s over 63 steps)."""
    told = study(reading())
    assert answers(told) == []
    assert told.cells[0].predicted_wall_s.value == pytest.approx(80 / 4000 + 64 * (0.99 * 2.56 / 63))


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (reading(ttft_s=0.05, cached_tokens=990), (5, "prefix cache", INVALID)),  # 80,000 tok/s that nobody read
        (reading(failed=1), (10, "failed requests", INVALID)),  # 3,000 tok/s, of three prompts
        (reading(counters={"prompt_tokens": 8000.0}), (9, "foreign traffic", INVALID)),  # half was read for others
    ],
    ids=["cached", "failed", "foreign"],
)
def test_an_unfit_reading_speed_is_shown_and_explains_no_wall(
    cell: CellData, expected: tuple[int, str, Severity]
) -> None:
    told = study(cell)
    assert expected in answers(told)
    assert not told.prefill[0].valid
    assert told.prefill[0].speed_tok_s.value is not None
    for shown in (told.cells[0].predicted_wall_s, told.cells[0].prefill_speed_tok_s, told.cells[0].prediction_error):
        assert shown.value is None


def test_a_busy_client_is_a_caution_and_the_wall_is_explained() -> None:
    told = study(reading(client=BUSY))
    assert answers(told) == [(11, "client", CAUTION)]
    assert told.cells[0].predicted_wall_s.value is not None


def test_a_block_of_which_nothing_was_read_is_not_left_out_without_a_word() -> None:
    assert (10, "failed requests", INVALID) in answers(study(reading(), reading(failed=4, block=1)))


def test_what_is_true_of_a_launch_is_true_of_its_reading() -> None:
    """A rehearsal's stages share the cores of a CPU: its reading speed is none either."""
    launches = {"launches": {"0": {"extra": {"rehearsal": "rehearsal: not a pipeline figure"}}}}
    assert (15, "rehearsal", INVALID) in answers(study(reading(), environment=launches))


def test_the_interval_of_a_reading_speed_holds_launches_alone() -> None:
    """Four prompts, one launch: no interval. Two launches at 4,000 and 2,000 tok/s: one that holds both."""
    (one,) = study(reading()).prefill
    (two,) = study(reading(), reading(ttft_s=2.0, block=1)).prefill
    assert one.speed_tok_s.low is one.speed_tok_s.high is None
    assert two.speed_tok_s.low is not None and two.speed_tok_s.low < 2000
    assert two.speed_tok_s.high is not None and two.speed_tok_s.high > 4000
