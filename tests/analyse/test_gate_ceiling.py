"""Gate 11 against what the client could take in: planted rates on either side of a tenth of its ceiling."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specprof.analyse.evidence import Evidence
from specprof.analyse.gates import Limits, cell_gates, limits
from specprof.analyse.results import Severity
from specprof.analyse.study import analyse
from specprof.records import Phase
from tests.factory import NGRAM, make_cell, make_data, make_frame, make_requests

# 4 streams at once, each 64 tokens, one a chunk: 0.1 s to the first and 50 ms to every other.
CHUNKS_PER_S = 4 * 64 / (0.1 + 63 * 0.05)


def found(frame, ceiling):
    return [
        gate for gate in cell_gates(frame, None, Limits(client_chunks_per_s=ceiling)) if gate.name == "client ceiling"
    ]


def test_a_client_that_could_take_in_less_than_ten_times_its_load_is_cautioned():
    (gate,) = found(make_frame(), 9.9 * CHUNKS_PER_S)
    assert (gate.gate, gate.severity) == (11, Severity.CAUTION)
    assert gate.evidence == (
        "79 chunks/s arrived, and the client could take in only 9.9× this load "
        "(780 chunks/s from a server that costs nothing)"
    )
    assert "faster core" in gate.remedy


@pytest.mark.parametrize("ceiling", [10.1 * CHUNKS_PER_S, 1e6, None])
def test_a_client_with_room_or_of_unknown_ceiling_is_not(ceiling):
    assert not found(make_frame(), ceiling)


def test_chunks_count_and_not_tokens():
    """Four tokens a step: 64 tokens are a chunk of one, from the reading, and 16 of up to four."""
    cell = make_cell(arm="on", speculative_config=NGRAM)
    frame = make_frame(cell, make_requests(cell, accepted=(3,)))
    chunks_per_s = 4 * 17 / (0.1 + 16 * 0.05)
    assert found(frame, 9.9 * chunks_per_s)
    assert not found(frame, 10.1 * chunks_per_s)


def test_warm_up_requests_are_no_load():
    cell = make_cell(num_warmup=4)
    measured = make_requests(cell)
    warmups = [replace(request, phase=Phase.WARMUP) for request in measured]
    assert not found(make_frame(cell, [*warmups, *measured]), 10.1 * CHUNKS_PER_S)


@pytest.mark.parametrize(
    ("environment", "ceiling"),
    [
        ({}, None),  # a study older than the measurement
        ({"client_ceiling_chunks_per_s": None, "client_ceiling_problem": "no"}, None),
        ({"client_ceiling_chunks_per_s": "many"}, None),
        ({"client_ceiling_chunks_per_s": 0}, None),
        ({"client_ceiling_chunks_per_s": 40_000}, 40_000),
        ({"client_ceiling_chunks_per_s": 40_000, "launches": {"1": {"extra": {"time_scale": 8}}}}, 40_000),
        # 8 engine seconds pass in one of the client's, so 40,000 chunks of one are 5,000 of the other
        ({"client_ceiling_chunks_per_s": 40_000, "launches": {"0": {"extra": {"time_scale": 8}}}}, 5_000),
    ],
)
def test_the_ceiling_is_told_by_the_environment_on_the_clock_of_the_launch(environment, ceiling):
    assert limits(environment, 0).client_chunks_per_s == ceiling


@pytest.mark.parametrize(("time_scale", "cautioned"), [(1, False), (2, True)])
def test_a_study_is_held_to_its_own_client(time_scale, cautioned):
    """15 times the load by the client's clock is 7.5 times at double speed: twice as many chunks come in a second."""
    environment = {
        "client_ceiling_chunks_per_s": 15 * CHUNKS_PER_S,
        "launches": {"0": {"extra": {"time_scale": time_scale}}},
    }
    (cell,) = analyse("s", Evidence([make_data()]), environment).cells
    assert any(gate.name == "client ceiling" for gate in cell.gates) is cautioned
    assert cell.valid
