"""Frames: every METHOD 1 quantity, from one request worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from specprof.analyse.cell import cell_figures
from specprof.analyse.evidence import Evidence, Series, key_of
from specprof.records import Phase, ServerTimes, Speculation
from tests.factory import NGRAM, make_cell, make_data, make_frame, make_request, make_requests, ns

BY_HAND = make_request(
    scheduled_ns=ns(0.0),
    sent_ns=ns(0.5),
    done_ns=ns(3.0),
    chunk_ns=(ns(1.0), ns(1.5), ns(2.5)),
    chunk_tokens=(1, 3, 2),
    token_ids=(11, 12, 13, 14, 15, 16),
    text="六个字的文本",
    speculation=Speculation(2, 8, 3, (2, 1), (4, 4)),
)


def test_every_quantity_of_one_request():
    requests = make_frame(requests=[BY_HAND]).requests
    expected = {
        "client_queue": 0.5,
        "ttft": 0.5,
        "e2el": 2.5,
        "output_tokens": 6,
        "later_tokens": 5,
        "tpot": 1.5 / 5,
        "decode_speed": 5 / 1.5,
        "chars": 6,
        "num_chunks": 3,
        "engine_steps": 3,
        "rate": 6 / 2.5,
    }
    assert {name: float(getattr(requests, name)[0]) for name in expected} == pytest.approx(expected)


def test_throughput_is_all_tokens_over_last_done_less_first_sent():
    late = make_request("code-001", sent_ns=ns(1.0), done_ns=ns(5.5), scheduled_ns=ns(1.0))
    frame = make_frame(requests=[BY_HAND, late])
    assert frame.wall_s == pytest.approx(5.0)
    assert frame.throughput == pytest.approx((6 + 64) / 5.0)


def test_itl_is_the_gap_between_chunks_of_one_request_never_across_two():
    frame = make_frame(requests=[BY_HAND, make_request("code-001", num_tokens=3, step_s=0.25)])
    assert frame.gaps == pytest.approx([0.5, 1.0, 0.25, 0.25])


def test_warm_ups_are_kept_on_disk_and_left_out_of_the_figures():
    warmup = make_request("code-000", phase=Phase.WARMUP, start_s=-10)
    frame = make_frame(requests=[warmup, BY_HAND])
    assert len(frame.requests) == 1
    assert frame.wall_s == pytest.approx(2.5)


def test_failed_requests_are_counted_and_their_time_stays_in_the_wall():
    failed = make_request("code-001", error="HTTP 500", done_ns=ns(9.5), token_ids=(), chunk_ns=(), chunk_tokens=())
    frame = make_frame(requests=[BY_HAND, failed])
    assert len(frame.requests) == 1
    assert frame.failures == ("HTTP 500",)
    assert frame.wall_s == pytest.approx(9.5)


def test_a_request_without_a_token_is_a_failure_though_nobody_reported_an_error():
    silent = make_request(token_ids=(), chunk_ns=(), chunk_tokens=())
    assert make_frame(requests=[silent]).failures == ("no token arrived",)


def test_a_text_of_one_chunk_has_no_tpot():
    frame = make_frame(requests=[make_request(num_tokens=1)])
    assert np.isnan(frame.requests.tpot).all()
    assert np.isnan(frame.requests.decode_speed).all()
    assert frame.tpot_s != frame.tpot_s


def test_tpot_of_a_cell_weighs_texts_by_what_they_wrote():
    """99 tokens at 0.01 s and 1 token at 1 s: 1.99 s for 100 tokens, not the mean of 0.01 and 1."""
    quick, slow = make_request(num_tokens=100, step_s=0.01), make_request("code-001", num_tokens=2, step_s=1.0)
    assert make_frame(requests=[quick, slow]).tpot_s == pytest.approx(1.99 / 100)


def test_an_empty_cell_is_empty_everywhere():
    frame = make_frame(requests=[])
    assert frame.empty and len(frame.requests) == 0
    assert frame.failures == ()
    assert len(frame.gaps) == 0
    assert frame.throughput != frame.throughput


def on_figures(accepted, **changes):
    cell = make_cell(arm="ngram-k4", speculative_config=NGRAM)
    frame = make_frame(cell, make_requests(cell, accepted=accepted, **changes))
    return cell_figures(key_of(cell), Series((frame,)), prefill_speed=None, loops=None, gates=())


def test_a_cell_s_acceptance_adds_up():
    """AL = 1 + ΣS_j and AR = accepted / drafted, from steps that accept 0, 2 and 4 tokens in turn."""
    shown = on_figures((0, 2, 4))
    counts = shown.acceptance_counts
    assert shown.acceptance_length.value == pytest.approx(1 + counts.num_accepted / counts.num_steps)
    assert shown.acceptance_length.value == pytest.approx(1 + sum(s.value for s in shown.survival))
    assert shown.acceptance_rate.value == pytest.approx(counts.num_accepted / counts.num_drafted)
    assert len(shown.survival) == 4
    assert shown.conditional[1].value == pytest.approx(1.0)  # whoever accepted one token here accepted two


def test_the_request_mean_weighs_texts_equally_and_the_token_figure_does_not():
    cell = make_cell(arm="ngram-k4", speculative_config=NGRAM, num_prompts=2)
    good = make_request("code-000", accepted=(3,), num_tokens=41)  # 10 steps of 4 tokens: AL 4
    poor = make_request("code-001", accepted=(0,), num_tokens=31)  # 30 steps of 1 token: AL 1
    shown = cell_figures(
        key_of(cell), Series((make_frame(cell, [good, poor]),)), prefill_speed=None, loops=None, gates=()
    )
    assert shown.acceptance_length.value == pytest.approx(1 + 30 / 40)
    assert shown.acceptance_length_request_mean.value == pytest.approx((4 + 1) / 2)


def test_where_the_server_tells_no_single_steps_there_is_no_survival_rather_than_zero():
    shown = on_figures((2,), speculation=Speculation(20, 80, 40))
    assert shown.acceptance_length.value == pytest.approx(3.0)
    assert shown.survival == ()


def test_blocks_send_the_same_prompts_again():
    """Two blocks of 4 prompts: 8 requests, and still 4 prompts."""
    frames = tuple(make_frame(cell, make_requests(cell)) for cell in (make_cell(block=0), make_cell(block=1)))
    shown = cell_figures(key_of(frames[0].cell), Series(frames), prefill_speed=None, loops=None, gates=())
    assert (shown.num_requests, shown.num_prompts) == (8, 4)


def test_an_arm_that_drafted_nothing_has_no_acceptance_rather_than_zero():
    shown = on_figures((0,), speculation=Speculation(0, 0, 0))
    assert shown.acceptance_length is None
    assert shown.survival == ()
    assert shown.acceptance_counts.num_steps == 0


def test_tokens_per_engine_step_differs_from_al_where_steps_carry_no_draft():
    """64 tokens: 22 steps with 2 accepted each would be 66; here 10 steps drafted (AL 3) and the other 34 did not."""
    told = Speculation(10, 40, 20, (2,) * 10, (4,) * 10)
    cell = make_cell(arm="ngram-k4", speculative_config=NGRAM)
    chunks = (1,) * 34 + (3,) * 10
    times = tuple(ns(0.1 + 0.05 * i) for i in range(len(chunks)))
    requests = [make_request(n, chunk_tokens=chunks, chunk_ns=times, speculation=told) for n in cell.prompt_ids]
    shown = cell_figures(key_of(cell), Series((make_frame(cell, requests),)), prefill_speed=None, loops=None, gates=())
    assert shown.acceptance_length.value == pytest.approx(3.0)
    assert shown.tokens_per_engine_step.value == pytest.approx(64 / 44)


def test_characters_per_second_do_not_depend_on_the_tokenizer():
    """[seed 003] The same 209 characters in 106 or 461 tokens and the same time: tok/s differ 4.35×, chars/s not."""

    def shown(num_tokens):
        cell = make_cell(max_tokens=num_tokens, num_prompts=1)
        request = make_request(num_tokens=num_tokens, step_s=10 / (num_tokens - 1), text="x" * 209)
        frame = make_frame(cell, [request])
        return cell_figures(key_of(cell), Series((frame,)), prefill_speed=None, loops=None, gates=())

    few, many = shown(106), shown(461)
    assert many.throughput_tok_s.value / few.throughput_tok_s.value == pytest.approx(4.349, rel=0.002)
    assert many.chars_per_s.value == pytest.approx(few.chars_per_s.value)


def test_characters_of_reasoning_were_written_like_those_of_the_answer():
    thought = make_request(text="so", reasoning="hm, 好 ")
    frame = make_frame(requests=[thought, make_request("p1", text="yes")])
    assert frame.requests.chars.tolist() == [6 + 2, 3]
    assert frame.texts().to_pylist() == ["hm, 好 so", "yes"]


def test_blocks_of_one_cell_are_one_series():
    evidence = Evidence([make_data(make_cell(block=block)) for block in range(3)])
    (series,) = evidence.series.values()
    assert [frame.cell.block for frame in series.frames] == [0, 1, 2]


def test_missing_server_times_are_missing_not_zero():
    assert np.isnan(make_frame(requests=[make_request(server=ServerTimes())]).requests.queue_s).all()
