"""Gates, METHOD 7: each trips on its fault, says what it saw and what to do, and is silent on a healthy cell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specprof.analyse.evidence import Evidence, Series
from specprof.analyse.gates import cell_gates
from specprof.analyse.gates.found import caution, each_once, invalid
from specprof.analyse.looping import loop_evidence, own_ends
from specprof.analyse.results import Severity
from specprof.analyse.study import analyse
from specprof.records import ClientLoad, Counters, Sampling, ServerTimes, Speculation, Stop
from tests.factory import (
    NGRAM,
    distinct_tokens,
    looping_tokens,
    make_cell,
    make_data,
    make_frame,
    make_request,
    make_requests,
    ns,
)

ON = {"arm": "ngram-k4", "speculative_config": NGRAM}


def found(frame, loops=None):
    return {(gate.gate, gate.name): gate for gate in cell_gates(frame, loops)}


def on_frame(**changes):
    cell = make_cell(**ON)
    return make_frame(cell, make_requests(cell, **changes))


@pytest.mark.parametrize("frame", [make_frame(), on_frame(), on_frame(accepted=(0, 4, 2))])
def test_a_healthy_cell_trips_no_gate(frame):
    assert found(frame, loop_evidence(Series((frame,)), {})) == {}


def test_every_finding_says_what_was_seen_and_what_to_do():
    cell = make_cell(stop=Stop.NATURAL, protocol="natural")
    bad = make_frame(
        cell, make_requests(cell, num_tokens=9, ttft_s=5.0, cached_tokens=20), counters={"num_preemptions": 3.0}
    )
    for gate in cell_gates(bad, None):
        assert gate.evidence
        assert gate.remedy.endswith(".")


# -- 1: queueing ----------------------------------------------------------------------------------------------------


CAPPED = Counters(0, num_requests_running=2.0, num_requests_waiting=2.0)
FLOWING = Counters(0, num_requests_running=4.0, num_requests_waiting=0.0)


def test_1_requests_that_waited_at_the_server_are_not_concurrency():
    waited = make_requests(make_cell(), ttft_s=1.1, server=ServerTimes(1.0, 0.1, 3.15))  # 1.0 of 4.25 s
    gate = found(make_frame(requests=waited, gauges=(CAPPED,)))[1, "server queue"]
    assert gate.severity is Severity.CAUTION
    assert "24% of the latency was spent waiting at the server; at most 2 ran" in gate.evidence
    assert "N = 2" in gate.remedy


def test_1_waiting_for_the_step_in_progress_is_no_queue():
    admitted = make_requests(make_cell(), server=ServerTimes(0.05, 0.05, 3.15))  # one step, 1.5% of the latency
    assert not found(make_frame(requests=admitted, gauges=(CAPPED, FLOWING, FLOWING)))


def test_1_where_the_server_does_not_time_its_queue_the_gauges_speak():
    silent = make_requests(make_cell(), server=None)
    assert (1, "server queue") in found(make_frame(requests=silent, gauges=(CAPPED, CAPPED, FLOWING)))
    assert not found(make_frame(requests=silent, gauges=(CAPPED, FLOWING, FLOWING)))
    assert not found(make_frame(requests=silent))


def test_1_a_client_that_sends_late_is_a_queue_of_its_own():
    late = [replace(r, scheduled_ns=r.sent_ns - 100_000_000) for r in make_requests(make_cell())]
    assert (1, "client queue") in found(make_frame(requests=late))
    slightly = [replace(r, scheduled_ns=r.sent_ns - 10_000_000) for r in make_requests(make_cell())]  # 0.3% of 3.25 s
    assert not found(make_frame(requests=slightly))


def test_1_a_client_s_queue_says_which_requests_had_to_connect_first():
    late = [replace(r, scheduled_ns=r.sent_ns - 100_000_000) for r in make_requests(make_cell())]
    load = ClientLoad(0.2, 0.001, num_connects=3, connect_max_s=0.0921)
    gate = found(make_frame(requests=late, client=load))[1, "client queue"]
    assert gate.evidence.endswith("; 3 requests had to connect first, the longest took 92.1 ms")


# -- 2: short natural stops -----------------------------------------------------------------------------------------


def natural(num_tokens, **changes):
    cell = make_cell(stop=Stop.NATURAL, protocol="natural", max_tokens=256)
    return make_frame(cell, make_requests(cell, num_tokens=num_tokens, finish_reason="stop", **changes))


def test_2_short_natural_answers_are_not_a_decode_figure():
    gate = found(natural(61))[2, "short natural stops"]  # the seed's 486 / 8 tokens
    assert "median output 61 tokens" in gate.evidence
    assert not found(natural(128))


def test_2_long_answers_that_were_mostly_waited_for_are_not_either():
    assert (2, "short natural stops") in found(natural(128, ttft_s=3.0))  # 6.35 s of writing in 9.35 s: 68%


# -- 3: reading -----------------------------------------------------------------------------------------------------


def test_3_a_wall_that_was_a_third_reading():
    gate = found(make_frame(requests=make_requests(make_cell(), ttft_s=1.6)))[3, "prefill"]  # 1.6 of 4.75 s
    assert "34% of the wall was reading" in gate.evidence


def test_3_a_fifth_is_allowed():
    assert (3, "prefill") not in found(make_frame(requests=make_requests(make_cell(), ttft_s=0.78)))  # 20%


def test_3_waiting_in_the_server_s_queue_is_not_reading():
    queued = make_requests(make_cell(), ttft_s=1.6, server=ServerTimes(1.5, 0.1, 3.15))
    assert (3, "prefill") not in found(make_frame(requests=queued))


# -- 4: sum of rates ------------------------------------------------------------------------------------------------


def test_4_self_reported_rates_that_flatter():
    gate = found(make_frame(requests=make_requests(make_cell(), ttft_s=0.9)))[4, "sum of rates"]
    # Four streams at 20 tok/s = 80, against 4 × 64 tokens in 0.9 + 63 × 0.05 s = 63.2.
    assert "1.27×" in gate.evidence


def test_4_one_stream_has_no_sum():
    cell = make_cell(concurrency=1)
    assert (4, "sum of rates") not in found(make_frame(cell, make_requests(cell, ttft_s=0.9)))


# -- 5: prefix cache ------------------------------------------------------------------------------------------------


def test_5_cached_prompt_tokens_were_not_read():
    gate = found(make_frame(requests=make_requests(make_cell(), cached_tokens=16)))[5, "prefix cache"]
    assert gate.severity is Severity.INVALID
    assert "80.0%" in gate.evidence  # 16 of each 20


def test_5_a_server_that_does_not_say_cannot_be_vouched_for():
    gate = found(make_frame(requests=make_requests(make_cell(), cached_tokens=None)))[5, "prefix cache unknown"]
    assert "--enable-prompt-tokens-details" in gate.remedy


# -- 7: loops -------------------------------------------------------------------------------------------------------


def looping_series(accepted_in_loops, *, spec=True):
    """Half the texts repeat themselves, and draft better or worse than the others."""
    cell = make_cell(**(ON if spec else {}), num_prompts=4, max_tokens=129)
    requests = []
    for i, name in enumerate(cell.prompt_ids):
        loops = i % 2 == 0
        ids = looping_tokens(129) if loops else distinct_tokens(name, 129)
        accepted = (accepted_in_loops if loops else (1,)) if spec else None
        requests.append(make_request(name, num_tokens=129, token_ids=ids, accepted=accepted))
    return Series((make_frame(cell, requests),))


def seven(series, ends=()):
    loops = loop_evidence(series, dict(ends))
    return loops, found(series.frames[0], loops).get((7, "loops"))


def test_7_loops_that_inflate_acceptance_forbid_a_headline():
    """Loops deliver 128 tokens in 32 later steps, the others in 64: 256 / 96 = 2.67 against 2.0 without them."""
    loops, gate = seven(looping_series((3,)))
    assert gate.severity is Severity.INVALID
    assert "2 of 4 prompts" in gate.evidence
    assert "2.67, 2.00 without" in gate.evidence
    assert loops.num_requests_flagged == 2
    assert loops.prompt_ids == ("code-000", "code-002")
    assert loops.acceptance_length_unflagged.value == pytest.approx(2.0)


def test_7_loops_that_deflate_acceptance_do_too():
    _, gate = seven(looping_series((0,)))
    assert gate.severity is Severity.INVALID
    assert "1.33, 2.00 without" in gate.evidence  # 256 tokens in 128 + 64 steps


def test_7_loops_that_change_nothing_are_a_caution():
    _, gate = seven(looping_series((1,)))
    assert gate.severity is Severity.CAUTION


def test_7_with_speculation_off_a_loop_cannot_flatter_the_figure():
    _, gate = seven(looping_series(None, spec=False))
    assert gate.severity is Severity.CAUTION


def test_7_a_cell_that_is_nothing_but_loops_has_no_content_figure():
    cell = make_cell(**ON, max_tokens=128)
    frame = make_frame(cell, make_requests(cell, token_ids=looping_tokens(128)))
    loops, gate = seven(Series((frame,)))
    assert loops.share_of_tokens_flagged == 1.0
    assert gate.severity is Severity.INVALID
    assert loops.acceptance_length_unflagged.value is None


def test_7_text_past_its_own_end_is_compared_with_the_text_before_it():
    """41 tokens in 10 later steps up to the natural end, then 60 tokens in 60: 4.0 before the end, 100 / 70 in all."""
    cell = make_cell(**ON, num_prompts=1, max_tokens=101)
    chunks = (1, *[4] * 10, *[1] * 60)
    times = tuple(ns(0.1 + 0.05 * i) for i in range(len(chunks)))
    accepted = (*[3] * 10, *[0] * 60)
    told = Speculation(70, 280, 30, accepted, (4,) * 70)
    frame = make_frame(
        cell, [make_request(num_tokens=101, chunk_tokens=chunks, chunk_ns=times, done_ns=times[-1], speculation=told)]
    )
    loops, gate = seven(Series((frame,)), {"code-000": 41})
    assert loops.tokens_per_engine_step_before_eos.value == pytest.approx(4.0)
    assert gate.severity is Severity.INVALID
    assert "1.43, 4.00 before the text's own end" in gate.evidence


def test_7_a_shorter_text_of_the_same_acceptance_is_no_fault():
    """Every step accepts 3, before the end at 41 of 129 tokens and after: the undrafted first token must not count."""
    cell = make_cell(**ON, num_prompts=1, max_tokens=129)
    frame = make_frame(cell, [make_request(num_tokens=129, accepted=(3,))])
    _, gate = seven(Series((frame,)), {"code-000": 41})
    assert gate is None


def test_7_merged_chunks_alone_are_no_loop():
    """Chinese text is held back and arrives in merged chunks, with speculation off just as well."""
    cell = make_cell(num_prompts=1, max_tokens=128)
    chunks = (1, 2, 9, 1) * 9 + (1, 1, 9)
    times = tuple(ns(0.1 + 0.1 * i) for i in range(len(chunks)))
    request = make_request(num_tokens=128, chunk_tokens=chunks, chunk_ns=times, done_ns=times[-1])
    _, gate = seven(Series((make_frame(cell, [request]),)), {"code-000": 60})
    assert gate is None


def natural_run(length, **changes):
    """Two prompts, the first of which ends by itself after so many tokens."""
    written = make_cell(num_prompts=2, stop=Stop.NATURAL, **{"protocol": "natural", **changes})
    ended = make_request("code-000", num_tokens=length, finish_reason="stop")
    return make_data(written, [ended, make_request("code-001", num_tokens=64)])


def test_7_the_own_end_is_that_of_the_natural_run_of_the_same_prompt_and_arm():
    forced = make_cell(num_prompts=2)
    evidence = Evidence([make_data(forced), natural_run(30)])
    assert own_ends(evidence, forced) == {"code-000": 30}  # the other never stopped by itself
    assert own_ends(evidence, make_cell(num_prompts=2, **ON)) == {}


@pytest.mark.parametrize(
    "change",
    [{"guided": True}, {"chat": True}, {"sampling": Sampling(repetition_penalty=1.5)}],
    ids=["guided", "chat", "sampling"],
)
def test_7_a_natural_run_that_wrote_other_texts_tells_no_own_end(change):
    forced = make_cell(num_prompts=2)
    other = natural_run(12, protocol="other", **change)
    assert own_ends(Evidence([make_data(forced), other]), forced) == {}
    assert own_ends(Evidence([make_data(forced), natural_run(30), other]), forced) == {"code-000": 30}


# -- 9: counters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "what"),
    [
        ("generation_tokens", "output tokens"),
        ("prompt_tokens", "prompt tokens"),
        ("num_accepted_tokens", "accepted tokens"),
        ("num_draft_tokens", "drafted tokens"),
    ],
)
def test_9_tokens_the_requests_do_not_own_are_foreign_traffic(counter, what):
    cell = make_cell(**ON)
    honest = getattr(make_frame(cell).data.after, counter)
    gate = found(make_frame(cell, counters={counter: honest * 1.02}))[9, "foreign traffic"]
    assert gate.severity is Severity.INVALID
    assert what in gate.evidence
    assert (9, "foreign traffic") not in found(make_frame(cell, counters={counter: honest * 1.004}))


def test_9_no_metrics_cannot_rule_foreign_traffic_out():
    assert found(make_frame(before=None, after=None))[9, "no counters"].severity is Severity.CAUTION


def test_9_a_server_without_per_request_metrics_is_not_foreign_traffic():
    told = on_frame().data.after
    cell = make_cell(**ON)
    silent = make_frame(cell, make_requests(cell, speculation=None))
    counted = {name: getattr(told, name) for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens")}
    frame = make_frame(cell, make_requests(cell, speculation=None), counters=counted, before=silent.data.before)
    assert (9, "foreign traffic") not in found(frame)


@pytest.mark.parametrize(
    ("told", "evidence"),
    [
        (Speculation(32, 60, 64, (2,) * 32, (2,) * 32), "more tokens accepted than drafted"),
        (Speculation(10, 100, 60, (6,) * 10, (10,) * 10), "AL 7.00 above K + 1 = 5"),
        (Speculation(32, 128, 32, (1,) * 30, (4,) * 30), "does not sum to the steps"),
    ],
)
def test_9_counters_that_contradict_themselves(told, evidence):
    gate = found(on_frame(speculation=told))[9, "counters"]
    assert gate.severity is Severity.INVALID
    assert evidence in gate.evidence


# -- 10: lengths, failures, preemptions -----------------------------------------------------------------------------


def test_10_forced_texts_have_the_length_asked_for():
    gate = found(make_frame(make_cell(max_tokens=64), make_requests(make_cell(), num_tokens=60)))[10, "length"]
    assert gate.severity is Severity.INVALID
    assert "4 of 4 texts are not the 64 tokens" in gate.evidence


def test_10_failed_requests_are_not_silently_left_out():
    requests = make_requests(make_cell())
    requests[0] = replace(requests[0], error="HTTP 500: out of memory")
    gate = found(make_frame(requests=requests))[10, "failed requests"]
    assert gate.severity is Severity.INVALID
    assert "1 of 4 failed: HTTP 500: out of memory" in gate.evidence


def test_10_a_cell_in_which_everything_failed_says_so_and_nothing_else():
    requests = [replace(r, error="timed out") for r in make_requests(make_cell())]
    assert list(found(make_frame(requests=requests))) == [(10, "failed requests")]


def test_10_preempted_requests():
    assert (
        "3 requests were preempted" in found(make_frame(counters={"num_preemptions": 3.0}))[10, "preemptions"].evidence
    )


# -- 11: the client -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [ClientLoad(0.2, 0.006), ClientLoad(0.85, 0.001)])
def test_11_a_busy_client_measures_itself(load):
    assert (11, "client") in found(make_frame(client=load))


@pytest.mark.parametrize(
    ("kernel_timed", "said"),
    [
        (0.25, "client CPU 20%; 75% of its reads have the client's own time, which is as late"),
        (0.995, "client CPU 20%"),
        (None, "client CPU 20%"),
    ],
)
def test_11_a_busy_client_says_how_many_of_its_times_are_its_own(kernel_timed, said):
    gate = found(make_frame(client=ClientLoad(0.2, 0.006, kernel_timed=kernel_timed)))[11, "client"]
    assert gate.evidence.endswith(said)


def test_11_an_idle_client_does_not():
    assert not found(make_frame(client=ClientLoad(0.2, 0.004)))


# -- 12: what cannot be ---------------------------------------------------------------------------------------------


def test_12_more_throughput_than_n_streams_could_write():
    """One request that says it was sent when it was nearly done: X is above what its own pace allows."""
    requests = [
        replace(r, sent_ns=r.done_ns - 10**9, scheduled_ns=r.done_ns - 10**9) for r in make_requests(make_cell())
    ]
    assert found(make_frame(requests=requests))[12, "impossible"].severity is Severity.INVALID


def test_12_short_and_slow_texts_beside_long_and_fast_ones_are_possible():
    """Mean TPOT over requests would say 0.5 s and forbid 20 tok/s; the streams really wrote that."""
    cell = make_cell(stop=Stop.NATURAL, protocol="natural", max_tokens=256, concurrency=1, num_prompts=2)
    short = make_request("code-000", num_tokens=2, step_s=1.0, ttft_s=0.01)
    long = make_request("code-001", num_tokens=256, start_s=1.01, step_s=0.05, ttft_s=0.01)
    assert (12, "impossible") not in found(make_frame(cell, [short, long]))


def test_12_merged_chunks_break_only_the_itl():
    chunks = (2,) * 32
    times = tuple(ns(0.1 + 0.1 * i) for i in range(32))
    requests = make_requests(make_cell(), chunk_tokens=chunks, chunk_ns=times, done_ns=times[-1])
    gate = found(make_frame(requests=requests))[12, "merged chunks"]
    assert gate.severity is Severity.CAUTION
    assert "256 engine steps arrived as 128 chunks" in gate.evidence


def test_12_more_chunks_than_the_accepted_tokens_leave_steps_for():
    """64 chunks of one token each, yet 48 tokens are said to have been accepted: 16 steps, and 4 past the end."""
    cell = make_cell(**ON)
    requests = make_requests(cell, accepted=(0,), speculation=Speculation(12, 48, 48, (4,) * 12, (4,) * 12))
    gate = found(make_frame(cell, requests))[12, "inconsistent"]
    assert gate.severity is Severity.INVALID
    assert "256 chunks arrived" in gate.evidence
    assert "at most 80 engine steps" in gate.evidence


def test_12_tokens_accepted_past_the_end_are_no_contradiction():
    """Seen with vLLM 0.32: accepted tokens past max_tokens are counted and not delivered."""
    cell = make_cell(**ON, max_tokens=12)
    frame = make_frame(cell, make_requests(cell, accepted=(4,), step_s=1.0))  # 1 + 5 + 5 + 1, 12 accepted, 3 lost
    assert frame.requests.engine_steps.tolist() == [4] * 4
    assert not {key for key in found(frame) if key[0] == 12 and key[1] != "too good"}


def test_12_acceptance_by_counters_and_by_requests_must_agree():
    gate = found(make_frame(make_cell(**ON), counters={"num_drafts": 64.0}))[12, "inconsistent"]
    assert "AL 3.00 by the server's counters, 2.00 by its requests" in gate.evidence


def test_12_a_position_accepted_always_is_blocked_until_explained():
    cell = make_cell(**ON, num_prompts=8)
    always = make_frame(cell, make_requests(cell, accepted=(4,)))  # 104 steps: text that loses 1 in 20 does so in 200
    assert found(always)[12, "too good"].severity is Severity.INVALID
    assert (12, "too good") not in found(on_frame(accepted=(4,)))  # 52 steps: luck, once in 14
    assert (12, "too good") not in found(on_frame(accepted=(4,) * 12 + (0,)))


# -- 13: inactive ---------------------------------------------------------------------------------------------------


def test_13_an_arm_that_never_drafted():
    gate = found(on_frame(accepted=(0,), speculation=Speculation(0, 0, 0)))[13, "speculation inactive"]
    assert gate.severity is Severity.INVALID


def test_13_an_arm_whose_server_does_not_even_offer_the_counters():
    """records.Counters: with speculation off they are None, which is how an inactive arm shows."""
    assert (13, "speculation inactive") in found(on_frame(speculation=None))


def test_13_the_off_arm_is_meant_to_be_inactive():
    assert not found(make_frame())


def test_a_gate_found_in_every_block_is_told_once_and_with_the_first_block_s_evidence():
    cells = [make_cell(block=block) for block in range(3)]
    evidence = Evidence([make_data(c, counters={"num_preemptions": 1.0 + c.block}) for c in cells])
    (shown,) = analyse("demo", evidence, {}).cells
    assert [gate.evidence for gate in shown.gates if gate.gate == 10] == ["1 requests were preempted"]


def test_a_caution_does_not_stand_in_for_what_forbids_a_figure():
    """Of two blocks, or of a guided cell and its free twin, one may be forbidden by the gate that only warns of the
    other; what both say alike stands once.
    """
    mild, grave = caution(7, "loops", "one text", ""), invalid(7, "loops", "all texts", "")
    assert each_once([mild, grave, replace(mild, evidence="another text")]) == (mild, grave)
