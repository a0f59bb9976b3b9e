"""The frontier: which loads keep a TPOT target for sure, and which cells no other is better than."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specprof.analyse.frontier import FrontierFigures, Keeping, frontiers
from specprof.analyse.results import CellFigures, Figure, Percentiles
from tests.publish.conftest import make_cell, make_gate

TARGET = 0.060


def cell(n: int, tpot: Figure, tok_s: float, *, arm: str = "off", valid: bool = True) -> CellFigures:
    """A cell of code of which only TPOT and throughput matter; its tail is no part of the frontier."""
    gates = () if valid else (make_gate(7, "loops", "it loops", "Stop it.", invalid=True),)
    made = make_cell("code", "forced", arm, n)
    tail = Figure(9.9)
    return replace(made, tpot_s=Percentiles(tpot, tail, tail, tail), throughput_tok_s=Figure(tok_s), gates=gates)


def only(*cells: CellFigures) -> FrontierFigures:
    (found,) = frontiers(cells, {"code": TARGET})
    return found


SURE, BEYOND = Figure(0.040, 0.038, 0.043), Figure(0.080, 0.075, 0.086)


@pytest.mark.parametrize(
    ("tpot", "said"),
    [
        (Figure(0.058, 0.055, 0.060), Keeping.HOLDS),  # the whole interval is within 60 ms, its end on it
        (Figure(0.058, 0.055, 0.0601), Keeping.UNDECIDED),
        (Figure(0.062, 0.060, 0.064), Keeping.UNDECIDED),  # its lower end is on the target, not beyond it
        (Figure(0.062, 0.0601, 0.064), Keeping.MISSES),
        (Figure(0.030, None, None), Keeping.UNDECIDED),  # half the target, but from too few prompts for an interval
    ],
)
def test_the_interval_decides(tpot: Figure, said: Keeping) -> None:
    assert only(cell(1, tpot, 10.0)).points[0].keeping is said


def test_a_single_launch_decides_nothing() -> None:
    """Its interval holds prompts alone, and the next launch may be slower throughout."""
    found = only(replace(cell(1, SURE, 10.0), num_launches=1), replace(cell(2, BEYOND, 10.0), num_launches=1))
    assert [point.keeping for point in found.points] == [Keeping.UNDECIDED] * 2
    assert (found.largest_concurrency, found.open_concurrency) == (None, 1)


def test_largest_n_is_where_the_climb_ends() -> None:
    found = only(cell(8, BEYOND, 70.0), cell(1, SURE, 10.0), cell(4, SURE, 40.0))
    assert [point.concurrency for point in found.points] == [1, 4, 8]
    assert (found.largest_concurrency, found.open_concurrency) == (4, None)


def test_a_doubt_ends_the_climb_even_if_a_larger_load_seems_to_hold() -> None:
    doubt = Figure(0.058, 0.055, 0.063)
    found = only(cell(1, SURE, 10.0), cell(2, doubt, 19.0), cell(4, SURE, 40.0))
    assert (found.largest_concurrency, found.open_concurrency) == (1, 2)


def test_a_cell_that_a_gate_forbids_decides_nothing() -> None:
    found = only(cell(1, SURE, 10.0), cell(2, SURE, 20.0, valid=False))
    assert (found.largest_concurrency, found.open_concurrency) == (1, 2)
    assert [point.pareto for point in found.points] == [True, False]


def test_no_load_at_all_may_hold() -> None:
    found = only(cell(1, BEYOND, 10.0))
    assert (found.largest_concurrency, found.open_concurrency) == (None, None)
    assert only(cell(1, SURE, 10.0)).open_concurrency is None


def test_pareto_asks_all_arms_of_a_content() -> None:
    """By hand: on at N=1 is faster for each stream and in all than off at N=1; off at N=2 writes most of all."""
    off = (cell(1, Figure(0.050), 20.0), cell(2, Figure(0.055), 36.0))
    on = (cell(1, Figure(0.030), 30.0, arm="on"), cell(2, Figure(0.060), 33.0, arm="on"))
    of_off, of_on = frontiers((*off, *on), {"code": TARGET})
    assert (of_off.arm, of_on.arm) == ("off", "on")
    assert [point.pareto for point in of_off.points] == [False, True]
    assert [point.pareto for point in of_on.points] == [True, False]


def test_equal_cells_are_both_on_the_frontier() -> None:
    found = frontiers((cell(1, SURE, 20.0), cell(1, SURE, 20.0, arm="on")), {"code": TARGET})
    assert all(point.pareto for frontier in found for point in frontier.points)


def test_contents_without_a_target_have_none() -> None:
    cells = (cell(1, SURE, 20.0), replace(cell(1, SURE, 20.0), tag="json"))
    assert [frontier.tag for frontier in frontiers(cells, {"code": TARGET})] == ["code"]
    assert frontiers(cells, {}) == ()
