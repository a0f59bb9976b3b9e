"""Ladders: when a rung is on target, when an engine has collapsed, and which rung comes next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specprof.records import Arrivals, Cell, Phase, Request, Role, phase_due
from specprof.study.ladder import (
    IN_ORDER,
    Ladder,
    RungOutcome,
    at_most,
    may_end_early,
    on_target,
    rung_outcome,
    sections,
)
from specprof.study.load import Goodput, Rates, Targets, Trace
from specprof.study.plan import make_plan
from specprof.study.reading import parse_study
from specprof.study.schedule import rates_of
from tests.factory import make_cell, make_request, ns
from tests.running import ROOT

# -- one request ------------------------------------------------------------------------------------------------------


def waited(queue_s: float, **changes: object) -> Request:
    """Due at 0, sent `queue_s` later, first token 0.1 s after that."""
    request = make_request(start_s=queue_s, ttft_s=0.1, **changes)
    return replace(request, scheduled_ns=ns(0))


def test_a_first_token_is_late_from_when_it_was_due_not_from_when_it_was_sent() -> None:
    assert on_target(waited(0.0), Targets(ttft=0.5))
    assert not on_target(waited(1.0), Targets(ttft=0.5))


def test_the_time_per_token_is_that_of_the_tokens_after_the_first_chunk() -> None:
    """Seven tokens in chunks of 3, 2 and 2, at 0, 0.1 and 0.3 s: 0.3 s for four tokens."""
    request = make_request(num_tokens=7, chunk_tokens=(3, 2, 2), chunk_ns=(ns(1.0), ns(1.1), ns(1.3)), done_ns=ns(1.3))
    assert on_target(request, Targets(tpot=0.0751))
    assert not on_target(request, Targets(tpot=0.0749))


def test_an_answer_of_one_chunk_has_no_time_per_token() -> None:
    assert on_target(make_request(num_tokens=1), Targets(tpot=0.001))


def test_the_whole_answer_is_held_against_its_own_target() -> None:
    request = replace(waited(1.0, num_tokens=2), done_ns=ns(2.0))
    assert on_target(request, Targets(e2el=2.01))
    assert not on_target(request, Targets(e2el=1.99))
    assert not on_target(request, Targets(ttft=1.0, e2el=2.01)), "every target that is named must be kept"


@pytest.mark.parametrize("changes", [{"error": "timed out: had not ended"}, {"token_ids": (), "chunk_tokens": ()}])
def test_what_did_not_end_well_is_on_no_target(changes: dict[str, object]) -> None:
    request = make_request(**changes)
    assert not on_target(request, None)
    assert not on_target(request, Targets(ttft=1000.0))
    assert on_target(make_request(), None)


# -- one rung ---------------------------------------------------------------------------------------------------------


def rung(due_s: tuple[float, ...], *, warmup_s: float, duration_s: float, **changes: object) -> Cell:
    rate = len(due_s) / due_s[-1]
    arrivals = Arrivals("constant", rate, 1.0, warmup_s, duration_s, 100.0, due_s)
    names = tuple(f"code-{i}" for i in range(len(due_s)))
    return make_cell(role=Role.OPEN, arrivals=arrivals, prompt_ids=names, **changes)


def served(cell: Cell, took_s: list[float] | float, **changes: object) -> list[Request]:
    """The rung's requests, each of so many seconds from when it was due."""
    assert cell.arrivals is not None
    due_s = cell.arrivals.due_s
    lasting = took_s if isinstance(took_s, list) else [took_s] * len(due_s)
    return [
        replace(
            make_request(name, start_s=at, ttft_s=0.01, num_tokens=2, **changes),
            phase=phase_due(cell.arrivals, at),
            done_ns=ns(at + took),
        )
        for name, at, took in zip(cell.prompt_ids, due_s, lasting, strict=True)
    ]


TEN = tuple(float(i) for i in range(1, 11))  # one a second, ten in the window


def ten(num_lost: int) -> RungOutcome:
    cell = rung(TEN, warmup_s=0.5, duration_s=10.0)
    requests = served(cell, 0.2)
    lost = [replace(request, error="timed out: had not ended") for request in requests[:num_lost]]
    return rung_outcome(cell, [*lost, *requests[num_lost:]], {})


def test_shares_are_of_the_measured_requests() -> None:
    assert ten(0) == IN_ORDER
    assert ten(1) == RungOutcome(on_target_share=0.9, lost_share=0.1, collapsed=False)
    assert ten(2) == RungOutcome(on_target_share=0.8, lost_share=0.2, collapsed=True), "more than 10% are lost"


def test_warm_ups_and_what_fills_up_count_for_nothing() -> None:
    cell = rung(TEN, warmup_s=2.5, duration_s=5.0)
    requests = served(cell, 0.2)
    phases = [request.phase for request in requests]
    assert (phases.count(Phase.WARMUP), phases.count(Phase.MEASURED), phases.count(Phase.FILL)) == (2, 5, 3)
    failed = [r if r.phase is Phase.MEASURED else replace(r, error="HTTP 503: busy") for r in requests]
    assert rung_outcome(cell, failed, {}) == IN_ORDER


def test_fewer_than_half_on_target_is_a_collapse() -> None:
    cell = rung(TEN, warmup_s=0.5, duration_s=10.0)
    for num_late, collapsed in ((5, False), (6, True)):
        requests = served(cell, [2.0] * num_late + [0.2] * (10 - num_late))
        outcome = rung_outcome(cell, requests, {"code": Targets(e2el=1.0)})
        assert outcome == RungOutcome((10 - num_late) / 10, 0.0, collapsed)


def test_each_content_has_its_own_targets() -> None:
    cell = rung(TEN, warmup_s=0.5, duration_s=10.0, tag="code+json", prompt_tags=("code", "json") * 5)
    targets = {"code": Targets(e2el=1.0), "json": Targets(e2el=0.1)}
    assert rung_outcome(cell, served(cell, 0.2), targets).on_target_share == 0.5
    assert rung_outcome(cell, served(cell, 0.2), {"json": Targets(e2el=0.1)}).on_target_share == 0.5
    assert rung_outcome(cell, served(cell, 0.2), {}).on_target_share == 1.0


def one_at_a_time(cell: Cell, service_s: float) -> list[float]:
    """How long each request takes on a server that serves one at a time, first come first served."""
    assert cell.arrivals is not None
    free_s, took = 0.0, []
    for at in cell.arrivals.due_s:
        free_s = max(free_s, at) + service_s
        took.append(free_s - at)
    return took


@pytest.mark.parametrize(("rate", "collapsed"), [(0.8, False), (1.1, False), (2.0, True)])
def test_an_engine_that_completes_less_than_it_is_offered_has_collapsed(rate: float, collapsed: bool) -> None:
    """One second of service: at 2 requests per second half are completed, at 1.1 ten elevenths."""
    due_s = tuple(i / rate for i in range(1, int(150 * rate)))
    cell = rung(due_s, warmup_s=10.0, duration_s=60.0)
    outcome = rung_outcome(cell, served(cell, one_at_a_time(cell, 1.0)), {})
    assert outcome == RungOutcome(1.0, 0.0, collapsed)


def test_an_engine_that_was_empty_when_the_window_began_has_not_collapsed() -> None:
    """Three seconds each, whatever else there is: of the ten seconds' requests three tenths end after the window."""
    due_s = tuple(i / 5 for i in range(1, 100))
    cell = rung(due_s, warmup_s=0.0, duration_s=10.0)
    assert not rung_outcome(cell, served(cell, 3.0), {}).collapsed


def test_a_few_long_answers_at_the_end_of_a_short_window_are_no_collapse() -> None:
    cell = rung(TEN, warmup_s=0.5, duration_s=10.0)
    assert not rung_outcome(cell, served(cell, [0.2] * 7 + [5.0] * 3), {}).collapsed


def test_a_rung_without_a_measured_request_let_nobody_down() -> None:
    cell = rung((1.0,), warmup_s=5.0, duration_s=5.0)
    assert rung_outcome(cell, served(cell, 1.0), {}) == IN_ORDER


# -- the way up -------------------------------------------------------------------------------------------------------


def ladder(load: Rates | Goodput | Trace, count: int) -> Ladder:
    return Ladder(load, tuple(make_cell(key=f"r{i}", role=Role.OPEN) for i in range(count)))


def climb(steps: Ladder, judged: dict[str, RungOutcome]) -> list[str]:
    """The keys of the rungs measured, in order, where each goes as `judged` says."""
    seen: dict[str, RungOutcome] = {}
    for _ in range(len(steps.rungs) + 1):
        rung = steps.next_rung(seen)
        if rung is None:
            return list(seen)
        assert rung.key not in seen
        seen[rung.key] = judged[rung.key]
    raise AssertionError("it never ended")


CURVE = Rates(kind="rates", rates=(1, 2, 3, 4, 5), duration=10)
GONE = RungOutcome(0.1, 0.5, collapsed=True)


@pytest.mark.parametrize("last", [1, 3, 5])
def test_a_curve_is_climbed_until_the_engine_has_collapsed(last: int) -> None:
    judged = {f"r{i}": GONE if i >= last - 1 else IN_ORDER for i in range(5)}
    assert climb(ladder(CURVE, 5), judged) == [f"r{i}" for i in range(last)]


def test_a_curve_of_a_strong_engine_is_climbed_to_its_end() -> None:
    assert climb(ladder(CURVE, 5), dict.fromkeys((f"r{i}" for i in range(5)), IN_ORDER)) == [f"r{i}" for i in range(5)]


def test_a_rung_that_only_misses_its_targets_does_not_end_a_curve() -> None:
    judged = dict.fromkeys((f"r{i}" for i in range(5)), RungOutcome(0.6, 0.0, collapsed=False))
    assert len(climb(ladder(CURVE, 5), judged)) == 5


def test_a_search_halves_by_ratio() -> None:
    """Between 1 and 16 for an engine that is good for 5 requests per second: 4 is kept, 8 and sqrt(32) are missed,
    sqrt(4 * sqrt(32)) = 4.757 is kept.
    """
    load = Goodput(kind="goodput", between=(1, 16), rungs=4, duration=10)
    rates = rates_of(load)
    judged = {f"r{i}": RungOutcome(0.9 if rate <= 5 else 0.89, 0.0, False) for i, rate in enumerate(rates)}
    visited = [rates[int(key[1:])] for key in climb(ladder(load, 15), judged)]
    assert visited == pytest.approx([4.0, 8.0, 5.656854, 4.756828])


@pytest.mark.parametrize("num_good", range(16))
def test_a_search_ends_between_the_best_kept_and_the_worst_missed(num_good: int) -> None:
    load = Goodput(kind="goodput", between=(1, 16), rungs=4, duration=10, share=0.95)
    judged = {f"r{i}": RungOutcome(1.0 if i < num_good else 0.94, 0.0, False) for i in range(15)}
    visited = climb(ladder(load, 15), judged)
    assert len(visited) == 4
    for neighbour in (num_good - 1, num_good):
        assert f"r{neighbour}" in visited or neighbour in (-1, 15), "both sides of the step are measured"


@pytest.mark.parametrize("load", [CURVE, Goodput(kind="goodput", between=(1, 2), rungs=3, duration=10)])
def test_a_killed_run_goes_on_along_the_same_way(load: Rates | Goodput) -> None:
    steps = ladder(load, 5 if isinstance(load, Rates) else 7)
    judged = {rung.key: IN_ORDER if i < 3 else GONE for i, rung in enumerate(steps.rungs)}
    way = climb(steps, judged)
    for done in range(len(way)):
        so_far = {key: judged[key] for key in reversed(way[:done])}  # on disk there is no order
        following = steps.next_rung(so_far)
        assert following is not None
        assert following.key == way[done]
        assert len(steps.most_left(so_far)) >= len(way) - done
    assert steps.next_rung({key: judged[key] for key in way}) is None
    assert steps.most_left({key: judged[key] for key in way}) == ()


def test_a_trace_is_one_rung() -> None:
    steps = ladder(Trace.model_construct(kind="trace"), 1)
    assert climb(steps, {"r0": GONE}) == ["r0"]


# -- a plan -----------------------------------------------------------------------------------------------------------

STUDY = f"""\
study: served
engine: {{kind: sim, preset: small}}
arms: {{"off": {{}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}, {{tag: json, suite: {ROOT}/prompts/json.jsonl}}]
protocols:
  curve: {{stop: natural, max_tokens: 32, load: {{kind: rates, rates: [1, 2, 3], duration: 30}}}}
  search: {{stop: natural, max_tokens: 32, load: {{kind: goodput, between: [1, 4], rungs: 3, duration: 30}}}}
  forced: {{stop: forced, output_tokens: 32, concurrency: [1, 2]}}
prompts: 4
"""


def test_a_launch_s_rungs_are_put_together_and_its_other_cells_stay_alone() -> None:
    study = parse_study(STUDY, "served.yaml")
    cells = make_plan(study).launches[0].cells
    parts = sections(study, cells)
    ladders = [part for part in parts if isinstance(part, Ladder)]
    assert sorted((part.rungs[0].protocol, part.rungs[0].tag, len(part.rungs)) for part in ladders) == [
        ("curve", "code", 3),
        ("curve", "json", 3),
        ("search", "code", 7),
        ("search", "json", 7),
    ]
    for part in ladders:
        rates = [cell.arrivals.rate_per_s for cell in part.rungs if cell.arrivals]
        assert rates == sorted(rates)
    flat = [cell for part in parts for cell in (part.rungs if isinstance(part, Ladder) else (part,))]
    assert flat == list(cells)


def test_a_plan_holds_at_most_what_is_climbed() -> None:
    study = parse_study(STUDY, "served.yaml")
    plan = make_plan(study)
    climbed = at_most(study, plan)
    by_protocol = {name: sum(cell.protocol == name for cell in climbed.cells) for name in study.protocols}
    assert by_protocol == {"curve": 6, "search": 6, "forced": 4}
    assert set(climbed.cells) < set(plan.cells)
    assert may_end_early(study)
    only_search = parse_study("\n".join(line for line in STUDY.splitlines() if "curve" not in line), "s")
    assert not may_end_early(only_search)
