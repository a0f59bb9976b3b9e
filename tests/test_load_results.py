"""The committed load curve: climbed, marked and told by one and the same rule."""

from __future__ import annotations

import json

import pytest

from specprof.analyse.evidence import Evidence
from specprof.analyse.service import asked_by
from specprof.analyse.study import analyse
from specprof.columns import requests_of
from specprof.decide.conclude import environment
from specprof.records import Cell
from specprof.store import Store
from specprof.study.ladder import rung_outcome
from specprof.study.reading import parse_study
from tests.running import ROOT

RESULTS = ROOT / "results" / "load-demo"


@pytest.mark.parametrize("block", range(4))
def test_the_climb_and_the_figures_judge_a_rung_alike(block: int) -> None:
    """What stops a load curve while it is measured is what a report marks. A climb sees one block, so here one does."""
    store = Store.existing(RESULTS)
    study = parse_study(store.study_text, "load-demo")
    targets = {workload.tag: workload.targets for workload in study.workloads}
    cells = [data for data in store.cells() if data.cell.block == block and data.cell.arrivals is not None]
    judged = {
        (data.cell.arm, rate_of(data.cell)): rung_outcome(data.cell, tuple(requests_of(data.requests)), targets)
        for data in cells
    }
    asked = asked_by(study, {key: found.good for key, found in store.marks().items()})
    figures = analyse(study.study, Evidence(cells), environment(store, study), asked=asked)
    assert figures.service is not None
    told = {(rung.arm, rung.rate_per_s): rung for rung in figures.service.rungs}
    assert judged.keys() == told.keys()
    for key, outcome in judged.items():
        assert outcome.collapsed is told[key].collapsed, key
        assert outcome.on_target_share == pytest.approx(told[key].on_target_share.value, abs=1e-12), key


def test_no_arm_was_driven_beyond_the_rate_at_which_it_collapsed() -> None:
    store = Store.existing(RESULTS)
    study = parse_study(store.study_text, "load-demo")
    targets = {workload.tag: workload.targets for workload in study.workloads}
    ladders: dict[tuple[str, int], list[tuple[float, bool]]] = {}
    for data in store.cells():
        if data.cell.arrivals is not None:
            outcome = rung_outcome(data.cell, tuple(requests_of(data.requests)), targets)
            ladders.setdefault((data.cell.arm, data.cell.block), []).append((rate_of(data.cell), outcome.collapsed))
    assert any(collapsed for rungs in ladders.values() for _, collapsed in rungs)
    for rungs in ladders.values():
        assert not any(collapsed for _, collapsed in sorted(rungs)[:-1])


def rate_of(cell: Cell) -> float:
    assert cell.arrivals is not None
    return cell.arrivals.rate_per_s


def test_both_arms_got_the_same_requests_at_the_same_instants() -> None:
    schedules: dict[tuple[int, float], set[tuple[object, ...]]] = {}
    for data in Store.existing(RESULTS).cells():
        if data.cell.arrivals is not None:
            schedule = (data.cell.arrivals, data.cell.prompt_ids)
            schedules.setdefault((data.cell.block, rate_of(data.cell)), set()).add(schedule)
    assert len(schedules) >= 3 * 4
    assert all(len(of_rate) == 1 for of_rate in schedules.values())
    assert len(set().union(*schedules.values())) == len(schedules), "every block draws its own"


def test_the_report_says_what_speculation_does_to_the_goodput_and_under_which_targets() -> None:
    report = (RESULTS / "report.md").read_text(encoding="utf-8")
    assert "under these targets (TTFT ≤ 1 s, TPOT ≤ 100 ms)" in report
    (gain,) = json.loads((RESULTS / "card.json").read_text(encoding="utf-8"))["service"]["gains"]
    assert gain["outcome"] in ("raises", "lowers") or gain["needs"], "undecided must say what would decide it"
