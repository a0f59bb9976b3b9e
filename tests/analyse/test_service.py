"""The service view on frames written by hand: every expected number is worked out beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
from scipy import stats as distributions

from specprof.analyse.evidence import Evidence
from specprof.analyse.results import Figure, Severity
from specprof.analyse.service import Asked, asked_by, service_figures
from specprof.analyse.service.cell import OpenCell
from specprof.analyse.service.findings import rung_gates
from specprof.analyse.service.gain import goodput_gain
from specprof.analyse.service.goodput import Climb, goodput_rate, with_collapsed
from specprof.analyse.service.goodput import climb as climb_of
from specprof.analyse.service.rung import Rung, rung_figures
from specprof.analyse.service.spread import Latencies, ratio, share, spread
from specprof.analyse.service_results import GoodputFigures, RungFigures, TargetFigures
from specprof.analyse.study import analyse
from specprof.errors import InputError
from specprof.records import ClientLoad, Counters, Speculation, Stop
from specprof.study.load import Targets
from specprof.study.reading import parse_study
from tests.analyse.open_loops import due_request, make_open_cell, measured_cell, open_frame, targets
from tests.factory import NGRAM, make_data, make_running_cell, ns

NATURAL: dict[str, Any] = {"stop": Stop.NATURAL, "protocol": "served", "max_tokens": 96}
JSON = Asked(targets={"code": Targets(ttft=1.0)}, checks={"code": "json"})


def figures_of(cell: OpenCell) -> RungFigures:
    return rung_figures(Rung((cell,)), rung_gates(Rung((cell,))))


# -- latencies and fates ----------------------------------------------------------------------------------------------


def four_fates() -> OpenCell:
    """Four requests in a window of ten seconds: 10 tokens good, 30 late (first after 2 s), 20 bad, 5 and given up."""
    cell = make_open_cell([1.0, 2.0, 3.0, 4.0], **NATURAL)
    requests = [
        due_request(cell, 0, num_tokens=10, ttft_s=0.5),
        due_request(cell, 1, num_tokens=30, ttft_s=2.0),
        due_request(cell, 2, num_tokens=20, ttft_s=0.5),
        due_request(cell, 3, num_tokens=5, ttft_s=0.5, error="timed out", finish_reason=None),
    ]
    return measured_cell(cell, requests, replace(JSON, marks={cell.key: [True, True, False, None]}))


def test_the_share_of_tokens_is_not_the_share_of_requests():
    """One of four requests is good, and 10 of 65 tokens."""
    told = figures_of(four_fates())
    assert told.good_request_share.value == pytest.approx(1 / 4)
    assert told.good_token_share.value == pytest.approx(10 / 65)
    assert told.on_target_share.value == pytest.approx(2 / 4)


def test_every_request_has_one_fate():
    fates = figures_of(four_fates()).fates
    assert (fates.offered, fates.good, fates.late, fates.bad, fates.failed, fates.timed_out) == (4, 1, 1, 1, 0, 1)


def test_each_stage_of_the_waterfall_is_a_part_of_the_one_before():
    """65 tokens came, 60 of whole answers, 30 of those on time, 10 of those good; in ten seconds."""
    falls = figures_of(four_fates()).waterfall
    stages = (falls.raw_tok_s, falls.finished_tok_s, falls.on_time_tok_s, falls.effective_tok_s)
    assert [stage.value for stage in stages] == pytest.approx([6.5, 6.0, 3.0, 1.0])


def test_a_late_answer_is_late_whether_or_not_it_is_good():
    cell = make_open_cell([1.0], **NATURAL)
    late = [due_request(cell, 0, ttft_s=2.0)]
    for mark in (True, False):
        told = figures_of(measured_cell(cell, late, replace(JSON, marks={cell.key: [mark]})))
        assert (told.fates.late, told.fates.bad) == (1, 0)


def test_texts_that_nobody_judged_yet_leave_open_what_was_effective():
    cell = make_open_cell([1.0, 2.0], **NATURAL)
    frames = [open_frame(cell, [due_request(cell, i) for i in range(2)])]
    told = service_figures(frames, JSON, lambda name: (0, name))
    assert told is not None
    (rung,) = told.rungs
    assert rung.waterfall.on_time_tok_s.value == pytest.approx(12.8)
    assert rung.waterfall.effective_tok_s == rung.good_request_share == rung.good_token_share == Figure(None)
    assert "have not been judged yet" in told.notes[0]


def test_an_answer_that_its_check_cannot_judge_is_not_called_good():
    cell = make_open_cell([1.0, 2.0], **NATURAL)
    frames = [open_frame(cell, [due_request(cell, i) for i in range(2)])]
    told = service_figures(frames, replace(JSON, marks={cell.key: [None, True]}), lambda name: (0, name))
    assert told is not None
    assert (told.rungs[0].fates.good, told.rungs[0].fates.bad) == (1, 1)
    assert told.notes == ("1 answers that were on time could not be judged by their check; they do not count as good.",)


def test_forced_texts_are_not_held_against_a_check_that_needs_their_end():
    cell = make_open_cell([1.0, 2.0])
    assert cell.stop is Stop.FORCED
    told = figures_of(measured_cell(cell, [due_request(cell, i) for i in range(2)], JSON))
    assert told.targets == TargetFigures(ttft_s=1.0)
    assert told.waterfall.effective_tok_s == told.waterfall.on_time_tok_s


def test_marks_that_do_not_fit_the_cell_are_refused():
    cell = make_open_cell([1.0, 2.0], **NATURAL)
    rung = measured_cell(cell, [due_request(cell, i) for i in range(2)], replace(JSON, marks={cell.key: [True]}))
    with pytest.raises(InputError, match="1 quality marks for 2 requests"):
        figures_of(rung)


def test_a_target_is_held_from_when_a_request_was_due():
    """Sent three seconds late, first token half a second later: 3.5 s to who waited, 0.5 s on the wire."""
    cell = make_open_cell([1.0], **NATURAL)
    late = replace(due_request(cell, 0, start_s=4.0, ttft_s=0.5), scheduled_ns=ns(1.0))
    told = figures_of(measured_cell(cell, [late], targets(ttft=1.0)))
    assert told.ttft_s is not None and told.ttft_sent_s is not None and told.client_queue_s is not None
    assert told.ttft_s.p50.value == pytest.approx(3.5)
    assert told.ttft_sent_s.p50.value == pytest.approx(0.5)
    assert told.client_queue_s.p50.value == pytest.approx(3.0)
    assert told.on_target_share.value == 0


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({"ttft": 0.5}, True),
        ({"ttft": 0.49}, False),
        ({"tpot": 0.05}, True),
        ({"tpot": 0.04}, False),
        ({"e2el": 3.65}, True),
        ({"e2el": 3.6}, False),
        ({"ttft": 0.6, "tpot": 0.06, "e2el": 3.6}, False),
    ],
)
def test_every_target_that_is_named_must_be_kept(asked, kept):
    """First token after 0.5 s, then 63 steps of 0.05 s: E2EL 3.65 s. A nanosecond is no miss."""
    cell = make_open_cell([1.0])
    limits = {name: seconds + 1e-9 for name, seconds in asked.items()}
    told = figures_of(measured_cell(cell, [due_request(cell, 0, ttft_s=0.5)], targets(**limits)))
    assert told.on_target_share.value == float(kept)


def test_a_text_of_one_chunk_has_no_time_per_token_to_miss():
    cell = make_open_cell([1.0], **NATURAL)
    told = figures_of(measured_cell(cell, [due_request(cell, 0, num_tokens=1)], targets(tpot=0.001)))
    assert told.on_target_share.value == 1
    assert told.tpot_s is None


def test_a_request_that_was_lost_is_later_than_any_other():
    """Of four, one gave up before its first token: the third of three TTFTs is no p99 of four requests."""
    cell = make_open_cell([1.0, 2.0, 3.0, 4.0], **NATURAL)
    requests = [due_request(cell, i, ttft_s=0.1 * (i + 1)) for i in range(3)]
    nothing = {"chunk_ns": (), "chunk_tokens": (), "token_ids": (), "text": "", "error": "timed out: 60 s"}
    told = figures_of(measured_cell(cell, [*requests, due_request(cell, 3, **nothing)], targets(ttft=1.0)))
    assert told.ttft_s is not None
    assert told.ttft_s.p50.value == pytest.approx(0.25)
    assert told.ttft_s.p99.value is None


NOTHING_CAME = {"chunk_ns": (), "chunk_tokens": (), "token_ids": (), "text": ""}


@pytest.mark.parametrize("begun", [False, True], ids=["no token came", "half a text came"])
def test_a_lost_request_has_no_time_per_token_that_flatters(begun):
    """60 of 100 are given up, 40 write a token every 20 ms: the median request is a lost one, the fastest are not."""
    cell = make_open_cell([i * 0.1 for i in range(100)])
    lost = {"error": "timed out after 60 s", **({"num_tokens": 32} if begun else NOTHING_CAME)}
    requests = [due_request(cell, i, step_s=0.02, **(lost if i % 5 < 3 else {})) for i in range(100)]
    rung = Rung((measured_cell(cell, requests, targets(tpot=0.05)),))
    tpot = rung.percentiles("tpot")
    assert tpot is not None
    assert [figure.value for figure in (tpot.p50, tpot.p90, tpot.p95, tpot.p99)] == [None] * 4
    assert rung.latencies("tpot").quantile(0.3) == pytest.approx(0.02)
    assert rung.on_target().value == pytest.approx(0.4)


def test_who_was_never_sent_waited_in_the_client_and_nowhere_else():
    cell = make_open_cell([1.0, 2.0], **NATURAL)
    nothing = {"chunk_ns": (), "chunk_tokens": (), "token_ids": (), "text": "", "error": "timed out in the client"}
    unsent = due_request(cell, 1, sent_ns=ns(62.0), done_ns=ns(62.0), prompt_tokens=0, **nothing)
    rung = Rung((measured_cell(cell, [due_request(cell, 0), unsent], targets(ttft=1.0)),))
    assert list(rung.pooled("client_queue")) == pytest.approx([0.0, 60.0])
    assert list(rung.pooled("ttft_sent")) == pytest.approx([0.1, np.nan], nan_ok=True)
    assert list(rung.pooled("ttft")) == pytest.approx([0.1, np.inf])
    assert rung_figures(rung, ()).prompt_tokens.value == 20


# -- the window --------------------------------------------------------------------------------------------------------


def test_tokens_count_where_they_arrive_whoever_they_belong_to():
    """Window [4, 14), one token a chunk. Due at 3 (warm-up): chunks at 3.5, 4.5, …, 7.5, of which four are inside. Due
    at 12: chunks at 12.5, 13.5, 14.5, …, two inside. Due at 15 (fill): none.
    """
    cell = make_open_cell([3.0, 12.0, 15.0], arrivals={"warmup_s": 4.0}, **NATURAL)
    requests = [due_request(cell, i, num_tokens=5, ttft_s=0.5, step_s=1.0) for i in range(3)]
    told = figures_of(measured_cell(cell, requests, targets(ttft=1.0)))
    assert told.waterfall.raw_tok_s.value == pytest.approx((4 + 2) / 10)
    assert told.fates.offered == 1
    assert told.completed_per_s.value == pytest.approx(1 / 10)  # the warm-up's, which ended inside


def test_the_server_s_gauges_are_read_inside_the_window():
    """Readings at 1, 5, 9 and 13 s; the window is [4, 14)."""
    cell = make_open_cell([5.0], arrivals={"warmup_s": 4.0}, **NATURAL)
    gauges = tuple(
        Counters(at_ns=ns(at), num_requests_running=running, num_requests_waiting=0.0)
        for at, running in ((1.0, 90.0), (5.0, 2.0), (9.0, 3.0), (13.0, 7.0))
    )
    told = figures_of(measured_cell(cell, [due_request(cell, 0)], targets(ttft=1.0), gauges=gauges))
    assert told.num_running.value == pytest.approx(4.0)
    assert told.num_waiting.value == 0.0


def test_what_the_server_does_not_say_is_not_known():
    cell = make_open_cell([1.0], **NATURAL)
    silent = [due_request(cell, 0, server=None)]
    told = figures_of(measured_cell(cell, silent, targets(ttft=1.0), before=None, after=None))
    assert told.server_queue_s is None
    assert told.num_preemptions is None
    assert told.num_running == Figure(None)
    assert told.acceptance_length is None


def test_acceptance_is_that_of_the_requests_that_ended_well():
    """0, 2, 1 accepted in turn: one a step on average."""
    cell = make_open_cell([1.0, 2.0, 3.0], speculative_config=NGRAM, arm="on", **NATURAL)
    requests = [due_request(cell, i, accepted=(0, 2, 1), num_tokens=61) for i in range(3)]
    told = figures_of(measured_cell(cell, requests, targets(ttft=1.0)))
    assert told.acceptance_length is not None
    assert told.acceptance_length.value == pytest.approx(2.0, abs=0.05)


def test_tokens_per_engine_step_count_the_steps_that_carry_no_draft():
    """The closed loop's own definition. 64 tokens each: 10 steps drafted (AL 3), the other 34 did not."""
    cell = make_open_cell([1.0, 2.0], speculative_config=NGRAM, arm="on", **NATURAL)
    chunks = (1,) * 34 + (3,) * 10
    answer = {
        "chunk_tokens": chunks,
        "chunk_ns": tuple(ns(2.1 + 0.05 * i) for i in range(len(chunks))),
        "speculation": Speculation(10, 40, 20, (2,) * 10, (4,) * 10),
    }
    requests = [due_request(cell, i, **answer) for i in range(2)]
    told = figures_of(measured_cell(cell, requests, targets(ttft=1.0)))
    assert told.acceptance_length is not None
    assert told.acceptance_length.value == pytest.approx(3.0)
    assert told.tokens_per_engine_step.value == pytest.approx(64 / 44)


def test_without_speculation_every_engine_step_is_a_token():
    cell = make_open_cell([1.0], **NATURAL)
    told = figures_of(measured_cell(cell, [due_request(cell, 0, num_tokens=61)], targets(ttft=1.0)))
    assert told.tokens_per_engine_step.value == pytest.approx(1.0)


def test_contents_of_a_trace_are_held_against_their_own_targets():
    cell = make_open_cell(
        [1.0, 2.0], tag="code+chat", prompt_tags=("code", "chat"), arrivals={"kind": "trace"}, **NATURAL
    )
    requests = [due_request(cell, i, ttft_s=0.5) for i in range(2)]
    asked = Asked(targets={"code": Targets(ttft=1.0), "chat": Targets(ttft=0.4)})
    figures = service_figures([open_frame(cell, requests)], asked, lambda name: (0, name))
    assert figures is not None
    (told,) = figures.rungs
    assert told.on_target_share.value == pytest.approx(0.5)
    assert told.targets.by_content
    assert told.arrivals == "trace"
    assert figures.goodputs == ()


# -- intervals ---------------------------------------------------------------------------------------------------------


def test_the_error_of_a_ratio_by_hand():
    """Ten batches of 10 requests, hits 10 or 8 in turn: 90%, every batch one hit off. Variance 10/9 · 10 · 1 / 100²."""
    hits = np.array([[10.0, 8.0] * 5])
    found = spread(hits, np.full((1, 10), 10.0))
    assert found is not None
    assert found.value == pytest.approx(0.9)
    assert found.error == pytest.approx(sqrt(10 / 9 * 10) / 100)
    assert found.degrees == pytest.approx(9)


def test_launches_that_differ_add_to_the_error():
    """Two launches, steady in themselves: 100 of 100 and 80 of 100. Between: 2/1 · (10² + 10²) / 200², 1 degree."""
    hits = np.array([[10.0] * 10, [8.0] * 10])
    found = spread(hits, np.full((2, 10), 10.0))
    assert found is not None
    assert found.error == pytest.approx(sqrt(2 * 200) / 200)
    assert found.degrees == pytest.approx(1)


def test_a_share_has_wilson_s_interval_at_its_effective_number_of_requests():
    """The batches above scatter as 0.9 · 0.1 / (111.1 / 100²) = 8.1 independent requests would, where 100 came."""
    told = share(np.array([[10.0, 8.0] * 5]), np.full((1, 10), 10.0), 100)
    n = 0.09 / (10 / 9 * 10 / 100**2)
    t = float(distributions.t.ppf(0.975, 9))
    wilson = [(0.9 + t**2 / 2 / n + s * t * sqrt(0.09 / n + t**2 / 4 / n**2)) / (1 + t**2 / n) for s in (-1, 1)]
    assert (told.low, told.high) == pytest.approx(wilson)


def test_a_share_is_never_surer_than_its_requests_allow():
    """Nobody missed, in batches that do not scatter: Wilson's interval for 100 of 100, with t of 9."""
    told = share(np.full((1, 10), 10.0), np.full((1, 10), 10.0), 100)
    t = float(distributions.t.ppf(0.975, 9))
    assert told == Figure(1.0, pytest.approx(1 / (1 + t**2 / 100)), 1.0)


def test_a_rate_of_nothing_has_no_interval():
    assert ratio(np.zeros((1, 10)), np.ones((1, 10))) == Figure(0.0)
    assert ratio(np.zeros((1, 10)), np.zeros((1, 10))) == Figure(None)


def test_percentiles_of_values_that_come_in_no_order():
    """1 … 1000, each batch a fair sample: the intervals are the ranks p ± t_9 · sqrt(p (1 - p) / n), or nearly."""
    values = np.random.default_rng(3).permutation(np.arange(1.0, 1001.0))
    told = Latencies.of(values, np.arange(1000) // 100, 1).percentiles()
    assert told is not None
    assert told.p50.value == pytest.approx(500.5)
    assert told.p99.value == pytest.approx(0.99 * 999 + 1)
    least = float(distributions.t.ppf(0.975, 9)) * sqrt(0.25 / 1000) * 999
    assert told.p50.low is not None and told.p50.high is not None
    assert told.p50.value - told.p50.low >= least - 1
    assert told.p50.high - told.p50.low < 4 * least
    assert told.p99.high is not None


def test_percentiles_of_values_that_come_in_bunches_are_known_less():
    """The same values sorted into their batches: one batch decides each, and the interval says so."""
    values = np.arange(1.0, 1001.0)
    mixed = Latencies.of(np.random.default_rng(3).permutation(values), np.arange(1000) // 100, 1).percentiles()
    bunched = Latencies.of(values, np.arange(1000) // 100, 1).percentiles()
    assert mixed is not None and bunched is not None
    assert (bunched.p50.low or 0) < (mixed.p50.low or 0) - 100


def test_a_percentile_that_few_values_cannot_bound_has_no_upper_end():
    told = Latencies.of(np.arange(1.0, 31.0), np.arange(30) // 3, 1).percentiles()
    assert told is not None
    assert told.p99.high is None
    assert told.p50.high is not None


# -- goodput -----------------------------------------------------------------------------------------------------------


def climb(*shares: tuple[float, float, float, float]) -> Climb:
    """(rate, share, low, high) of each rung, 100 requests each."""
    return Climb(
        rates=np.array([rate for rate, *_ in shares]),
        num_requests=np.full(len(shares), 100.0),
        shares=tuple(Figure(value, low, high) for _, value, low, high in shares),
    )


def test_the_goodput_lies_between_the_last_rung_that_holds_and_the_first_that_does_not():
    """0.96 at 2, 0.84 at 4: half-way in the logarithm, 2 · 2^0.5. Surely held at 1, surely missed at 8."""
    told = goodput_rate(
        climb((1, 1.0, 0.97, 1.0), (2, 0.96, 0.89, 0.99), (4, 0.84, 0.75, 0.91), (8, 0.2, 0.1, 0.3)), 0.9
    )
    assert told == Figure(pytest.approx(2 * sqrt(2)), 1.0, 8.0)


def test_a_share_that_rises_with_the_rate_is_levelled():
    """0.88 below 0.94 cannot be: both are 0.91 together, and hold; from 0.91 to 0.5 the line passes 0.9 at 1/41."""
    told = goodput_rate(climb((1, 0.88, 0.8, 0.93), (2, 0.94, 0.88, 0.97), (4, 0.5, 0.4, 0.6)), 0.9)
    assert told.value == pytest.approx(2 * 2 ** (0.01 / 0.41))
    assert (told.low, told.high) == (None, 4.0)


def test_where_nothing_missed_the_goodput_has_no_upper_end():
    told = goodput_rate(climb((1, 1.0, 0.97, 1.0), (2, 0.99, 0.95, 1.0)), 0.9)
    assert told == Figure(2.0, 2.0, None)


def test_where_nothing_held_the_goodput_is_below_the_lowest_rate():
    told = goodput_rate(climb((1, 0.6, 0.5, 0.7), (2, 0.3, 0.2, 0.4)), 0.9)
    assert told == Figure(None, None, 1.0)


def test_rungs_that_contradict_each_other_leave_the_goodput_between_them():
    told = goodput_rate(climb((1, 0.7, 0.6, 0.8), (2, 0.97, 0.93, 1.0)), 0.9)
    assert (told.low, told.high) == (1.0, 2.0)


def block_at(rate: float, block: int, num_hits: int) -> OpenCell:
    """100 requests in ten seconds, so many of them on target."""
    cell = make_open_cell([0.1 * i for i in range(100)], block=block, arrivals={"rate_per_s": rate})
    requests = [due_request(cell, i, ttft_s=0.1 if i < num_hits else 2.0) for i in range(100)]
    return measured_cell(cell, requests, targets(ttft=1.0))


def test_a_block_that_collapsed_counts_at_the_rates_it_was_spared():
    """One block holds at 2 and 4 and one collapses at 2: at 4, of the luckier one alone, all would seem to hold.

    With the other as it was at 2, the share at 4 is (100 + 20) / 200, at 2 as well; from 1.0 at 1 to 0.6 at 2 the line
    passes 0.9 at a quarter of the way.
    """
    first, second = (Rung((block_at(rate, 0, 100), block_at(rate, 1, hits))) for rate, hits in ((1.0, 100), (2.0, 20)))
    ladder = with_collapsed([first, second, Rung((block_at(4.0, 0, 100),))])
    assert [[cell.arrivals.rate_per_s for cell in rung.cells] for rung in ladder] == [[1, 1], [2, 2], [4, 2]]
    told = goodput_rate(climb_of([first, second, Rung((block_at(4.0, 0, 100),))]), 0.9)
    assert told.value == pytest.approx(2**0.25)


def test_a_block_that_is_missing_without_having_collapsed_counts_nowhere_else():
    """A goodput's halving takes other rates in every block: what one did not measure is not known of it."""
    lower, upper = Rung((block_at(1.0, 0, 100), block_at(1.0, 1, 80))), Rung((block_at(2.0, 0, 95),))
    assert [len(rung.cells) for rung in with_collapsed([upper, lower])] == [2, 1]


def test_a_reader_is_told_which_launches_a_rate_lacks():
    frames = [block_at(rate, block, hits).frame for rate, block, hits in ((1.0, 0, 100), (1.0, 1, 20), (2.0, 0, 100))]
    told = service_figures(frames, targets(ttft=1.0), lambda name: (0, name))
    assert told is not None
    assert [note for note in told.notes if "2 req/s: 1 of 2 launches had collapsed" in note]


def goodput(rate: Figure, **changes: Any) -> GoodputFigures:
    plain = GoodputFigures(
        tag="code",
        protocol="served",
        arm="off",
        method="off",
        share=0.9,
        targets=TargetFigures(ttft_s=1.0),
        rate_per_s=rate,
        effective_tok_s=Figure(None),
        knee_per_s=None,
        num_rungs=2,
        sentence="",
        valid=True,
    )
    return replace(plain, **changes)


def rungs(*hits: tuple[float, int]) -> list[Rung]:
    """(rate, how many of 100 requests were on target): 100 requests in ten seconds, those that missed spread evenly."""
    made = []
    for rate, num_hits in hits:
        cell = make_open_cell([0.1 * i for i in range(100)], arrivals={"rate_per_s": rate})
        kept = [(i * num_hits) // 100 != ((i + 1) * num_hits) // 100 for i in range(100)]
        requests = [due_request(cell, i, ttft_s=0.1 if kept[i] else 2.0) for i in range(100)]
        made.append(Rung((measured_cell(cell, requests, targets(ttft=1.0)),)))
    return made


def gain(on: Sequence[tuple[float, int]], off: Sequence[tuple[float, int]], **changes: Any) -> Any:
    arms = [rungs(*of_arm) for of_arm in (on, off)]
    figures = [goodput(Figure(None), arm=name, method=name) for name in ("on", "off")]
    return goodput_gain(replace(figures[0], **changes), figures[1], (arms[0], arms[1]))


def test_one_rate_at_which_on_holds_and_off_misses_decides():
    """Off lies between 1 and 2, on between 2 and 4: the ratio is 1 at least and 4 at most."""
    told = gain([(1.0, 100), (2.0, 100), (4.0, 20)], [(1.0, 100), (2.0, 40), (4.0, 0)])
    assert told.outcome == "raises"
    assert (told.ratio.low, told.ratio.high) == (1.0, 4.0)
    assert told.needs == ""
    turned = gain([(1.0, 100), (2.0, 40), (4.0, 0)], [(1.0, 100), (2.0, 100), (4.0, 20)])
    assert turned.outcome == "lowers"
    assert (turned.ratio.low, turned.ratio.high) == (0.25, 1.0)


def test_arms_in_the_same_gap_are_undecided_and_need_rates_inside_it():
    told = gain([(1.0, 100), (4.0, 30)], [(1.0, 100), (4.0, 10)])
    assert told.outcome == "undecided"
    assert told.needs == "rates of on between 1 and 4 req/s, rates of off between 1 and 4 req/s"


def test_a_rung_that_may_hold_or_not_needs_more_requests():
    told = gain([(1.0, 100), (2.0, 90), (4.0, 0)], [(1.0, 100), (2.0, 90), (4.0, 0)])
    assert told.outcome == "undecided"
    assert "a longer window or more blocks for on at 2 req/s" in told.needs


def test_an_arm_without_an_end_needs_it():
    told = gain([(1.0, 100), (2.0, 100)], [(1.0, 20), (2.0, 0)])
    assert told.outcome == "raises"
    assert told.ratio == Figure(None, 2.0, None)
    both = gain([(1.0, 100)], [(1.0, 100)])
    assert both.outcome == "undecided"
    assert both.needs == "rates of on that surely miss, rates of off that surely miss"


def test_an_arm_that_a_gate_forbids_decides_nothing():
    told = gain([(1.0, 100), (2.0, 100), (4.0, 20)], [(1.0, 100), (2.0, 40), (4.0, 0)], valid=False)
    assert told.outcome == "undecided"
    assert "a valid rung of on" in told.needs


# -- gates -------------------------------------------------------------------------------------------------------------


def gates_of(cell: OpenCell) -> dict[tuple[int, str], Severity]:
    return {(found.gate, found.name): found.severity for found in rung_gates(Rung((cell,)))}


def busy(num: int = 60, ttft: float | None = None, **changes: Any) -> OpenCell:
    """Sixty requests of 0.4 s each in ten seconds: nothing to complain about."""
    cell = make_open_cell([0.1 * i for i in range(num)], max_tokens=7, **changes.pop("cell", {}))
    requests = [due_request(cell, i, num_tokens=7, **changes.get("request", {})) for i in range(num)]
    changes.pop("request", None)
    return measured_cell(cell, requests, targets(ttft=ttft or 1.0), **changes)


def test_a_sound_rung_is_told_nothing():
    assert gates_of(busy()) == {}


def test_a_share_of_few_requests_is_a_caution():
    assert gates_of(busy(49)) == {(6, "few requests"): Severity.CAUTION}


def test_a_window_of_a_few_requests_lengths_is_a_caution():
    assert gates_of(busy(request={"step_s": 0.2})) == {(6, "short window"): Severity.CAUTION}  # 1.3 s in 10 s


@pytest.mark.parametrize(
    ("lag", "expected"),
    [(0.04, {}), (0.06, {(11, "client"): Severity.CAUTION}), (0.21, {(11, "client"): Severity.INVALID})],
)
def test_a_client_late_by_a_share_of_the_first_token_s_target_is_named(lag, expected):
    load = ClientLoad(cpu_share=0.1, loop_lag_p99_s=0.001, dispatch_lag_p99_s=lag, dispatch_lag_max_s=lag)
    assert gates_of(busy(client=load)) == expected


def test_without_a_target_the_client_is_held_against_the_first_tokens_that_came():
    load = ClientLoad(cpu_share=0.1, loop_lag_p99_s=0.001, dispatch_lag_p99_s=0.01, dispatch_lag_max_s=0.01)
    cell = replace(busy(client=load), asked=Asked())
    assert gates_of(cell) == {(11, "client"): Severity.CAUTION}  # 10% of 0.1 s


def test_failed_requests_are_named_and_time_outs_are_not():
    cell = make_open_cell([0.1 * i for i in range(60)], max_tokens=7)
    requests = [due_request(cell, i, num_tokens=7) for i in range(60)]
    failed = [*requests[1:], replace(requests[0], error="HTTP 500: out of memory")]
    given_up = [*requests[1:], replace(requests[0], error="timed out")]
    (found,) = rung_gates(Rung((measured_cell(cell, failed, targets(ttft=1.0)),)))
    assert (found.gate, found.name, found.severity) == (10, "failed requests", Severity.CAUTION)
    assert found.evidence == "1 of 60 failed: HTTP 500: out of memory"
    assert gates_of(measured_cell(cell, given_up, targets(ttft=1.0))) == {}


def test_what_kept_the_load_up_and_was_cancelled_has_not_failed():
    cell = make_open_cell([0.1 * i for i in range(60)] + [10.5], max_tokens=7)
    requests = [due_request(cell, i, num_tokens=7) for i in range(60)]
    cancelled = due_request(cell, 60, num_tokens=3, error="cancelled: everything that is measured had ended")
    told = measured_cell(cell, [*requests, cancelled], targets(ttft=1.0), counters={"generation_tokens": 423.0})
    assert gates_of(told) == {}


def test_what_a_request_that_was_cut_short_may_have_been_written_is_nobody_s_traffic():
    """It received 3 of 7 tokens: the server may have written 4 more, and not 30 more."""
    cell = make_open_cell([0.1 * i for i in range(60)], max_tokens=7)
    requests = [due_request(cell, i, num_tokens=7) for i in range(59)]
    requests.append(due_request(cell, 59, num_tokens=3, error="timed out"))
    for written, expected in ((59 * 7 + 7, {}), (59 * 7 + 3 + 30, {(9, "foreign traffic"): Severity.INVALID})):
        told = measured_cell(cell, requests, targets(ttft=1.0), counters={"generation_tokens": float(written)})
        assert gates_of(told) == expected


def test_other_people_s_traffic_is_named():
    assert gates_of(busy(counters={"generation_tokens": 500.0})) == {(9, "foreign traffic"): Severity.INVALID}


def test_cached_prompts_and_texts_of_another_length_are_named():
    assert gates_of(busy(request={"cached_tokens": 16})) == {(5, "prefix cache"): Severity.INVALID}
    cut = make_open_cell([0.1 * i for i in range(60)], max_tokens=9)
    short = measured_cell(cut, [due_request(cut, i, num_tokens=7) for i in range(60)], targets(ttft=1.0))
    assert gates_of(short) == {(10, "length"): Severity.INVALID}


def test_an_arm_with_speculation_that_never_drafts_is_named():
    told = busy(cell={"speculative_config": NGRAM, "arm": "on"})
    assert gates_of(told) == {(13, "speculation inactive"): Severity.INVALID}


# -- studies -----------------------------------------------------------------------------------------------------------

OPEN_STUDY = """
study: open
engine: {kind: sim, preset: small}
arms: {"off": {}}
workloads:
  - {tag: code, suite: prompts/code.jsonl, targets: {ttft: 0.5, tpot: 0.1}, quality: json}
  - {tag: json, suite: prompts/json.jsonl}
protocols:
  served: {stop: natural, max_tokens: 96, load: {kind: goodput, between: [1, 8], rungs: 2, duration: 20, share: 0.8}}
  cut: {stop: forced, output_tokens: 96, load: {kind: rates, rates: [1, 2], duration: 20}}
"""


def test_what_a_study_file_asks():
    asked = asked_by(parse_study(OPEN_STUDY, "open"), {"key": [True]})
    assert asked.of("code", Stop.NATURAL) == TargetFigures(ttft_s=0.5, tpot_s=0.1, quality="json")
    assert asked.of("code", Stop.FORCED) == TargetFigures(ttft_s=0.5, tpot_s=0.1)
    assert asked.of("json", Stop.NATURAL) == TargetFigures()
    assert (asked.share("served"), asked.share("cut")) == (0.8, 0.9)
    assert asked.marks == {"key": [True]}


def test_an_open_loop_is_in_no_closed_series_and_a_study_of_nothing_else_is_analysed():
    cell = make_open_cell([1.0, 2.0], **NATURAL)
    data = make_data(cell, [due_request(cell, i) for i in range(2)])
    evidence = Evidence([data])
    assert evidence.series == {}
    assert evidence.off_arm == "off"
    told = analyse("open", evidence, {}, asked=targets(ttft=1.0))
    assert told.cells == told.gains == ()
    assert told.service is not None
    assert told.service.rungs[0].fates.offered == 2


def test_a_study_without_open_loops_has_no_service_view():
    assert analyse("closed", Evidence([make_running_cell(40.0)]), {}).service is None


def test_open_loops_leave_the_closed_figures_alone():
    cell = make_open_cell([1.0, 2.0], **NATURAL)
    opened = make_data(cell, [due_request(cell, i) for i in range(2)])
    closed = make_running_cell(40.0)
    with_it, without = (analyse("both", Evidence(cells), {}) for cells in ([closed, opened], [closed]))
    assert replace(with_it, service=None) == without


def test_a_rate_too_low_for_its_window_is_said():
    cell = make_open_cell([])
    told = service_figures([open_frame(cell, [])], Asked(), lambda name: (0, name))
    assert told is not None
    assert told.rungs == ()
    assert "had no request that was due" in told.notes[0]
