"""The committed load curve: climbed, marked and told by one and the same rule."""

from __future__ import annotations

import json

import pytest

from specprof.columns import requests_of
from specprof.decide.conclude import conclude
from specprof.store import Store
from specprof.study.ladder import rung_outcome
from tests.running import ROOT

RESULTS = ROOT / "results" / "load-demo"


def test_the_climb_and_the_figures_judge_a_rung_alike() -> None:
    """What stops a load curve while it is measured is what the report marks."""
    conclusion = conclude(Store.existing(RESULTS))
    assert conclusion.figures.service is not None
    told = {(rung.arm, rung.rate_per_s): rung for rung in conclusion.figures.service.rungs}
    targets = {workload.tag: workload.targets for workload in conclusion.study.workloads}
    judged = {}
    for data in Store.existing(RESULTS).cells():
        if data.cell.arrivals is not None:
            outcome = rung_outcome(data.cell, tuple(requests_of(data.requests)), targets)
            judged[data.cell.arm, data.cell.arrivals.rate_per_s] = outcome
    assert judged.keys() == told.keys()
    assert {rung.collapsed for rung in told.values()} == {True, False}
    for key, outcome in judged.items():
        assert outcome.collapsed is told[key].collapsed, key
        assert outcome.on_target_share == pytest.approx(told[key].on_target_share.value, abs=1e-12), key


def test_both_arms_got_the_same_requests_at_the_same_instants() -> None:
    schedules: dict[float, set[tuple[object, ...]]] = {}
    for data in Store.existing(RESULTS).cells():
        if data.cell.arrivals is not None:
            schedule = (data.cell.arrivals, data.cell.prompt_ids)
            schedules.setdefault(data.cell.arrivals.rate_per_s, set()).add(schedule)
    assert len(schedules) >= 3
    assert all(len(of_rate) == 1 for of_rate in schedules.values())


def test_the_report_says_what_speculation_does_to_the_goodput_and_under_which_targets() -> None:
    report = (RESULTS / "report.md").read_text(encoding="utf-8")
    assert "under these targets (TTFT ≤ 1 s, TPOT ≤ 100 ms)" in report
    (gain,) = json.loads((RESULTS / "card.json").read_text(encoding="utf-8"))["service"]["gains"]
    assert gain["outcome"] in ("raises", "lowers") or gain["needs"], "undecided must say what would decide it"
