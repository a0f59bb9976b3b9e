"""The wall audit, METHOD 3: the seed's four numbers taken apart."""

from __future__ import annotations

import pytest

from specprof.analyse import wall
from specprof.analyse.cell import cell_figures
from specprof.analyse.evidence import Evidence, Series
from tests.factory import make_cell, make_data, make_frame, make_request, make_requests


def test_the_171_tok_s_case_was_a_third_reading():
    reading = wall.prefill_time(8 * 352, 3005)
    assert reading == pytest.approx(0.937, rel=0.01)
    assert wall.prefill_share(reading, 2.84) == pytest.approx(0.330, abs=0.001)


def test_the_72_tok_s_case_was_84_percent_reading():
    reading = wall.prefill_time(8 * 5634, 3005)
    assert wall.prefill_share(reading, 17.77) == pytest.approx(0.844, abs=0.001)


def test_the_additive_form_is_an_upper_bound():
    assert wall.predicted_wall(15.0, 160, 47.25) == pytest.approx(18.39, rel=0.01)
    assert wall.predicted_wall(15.0, 160, 47.25) > 17.77  # measured: later prefills overlapped earlier decodes


def test_the_606_tok_s_case_was_writing():
    predicted = wall.throughput(8 * 512, wall.predicted_wall(0.23, 512, 79.45))
    assert predicted == pytest.approx(613.7, rel=0.002)
    assert predicted / wall.throughput(8 * 512, 6.76) - 1 == pytest.approx(0.0128, abs=0.001)


def test_effective_concurrency_is_throughput_times_tpot():
    # Four streams that write 20 tok/s each and do nothing else: X = 80, TPOT = 0.05.
    assert wall.effective_concurrency(80, 0.05) == pytest.approx(4)


def test_rates_that_were_reported_one_by_one_exceed_the_aggregate():
    # Eight requests of 512 tokens in a wall of 6.76 s, each of which wrote at 79.45 tok/s by its own clock.
    aggregate = wall.throughput(8 * 512, 6.76)
    assert wall.rate_inflation(8 * 79.45, aggregate) == pytest.approx(8 * 79.45 * 6.76 / 4096)


def figures(*frames):
    cell = frames[0].cell
    key = (cell.tag, cell.protocol, cell.arm, cell.concurrency)
    return cell_figures(key, Series(frames), prefill_speed=200.0, loops=None, gates=())


def test_the_prediction_meets_a_wall_built_from_its_own_parts():
    """4 streams, one prompt of 20 tokens each: all read at once at 200 tok/s in 0.4 s, then 63 steps of 0.05 s."""
    shown = figures(make_frame(requests=make_requests(make_cell(), ttft_s=0.4)))
    assert shown.wall_s.value == pytest.approx(0.4 + 63 * 0.05)
    assert shown.predicted_wall_s.value == pytest.approx(0.4 + 64 * 0.05)  # METHOD 3 counts L tokens, not L - 1 gaps
    assert shown.prediction_error.value == pytest.approx(0.05 / 3.55)
    assert shown.predicted_throughput_tok_s.value == pytest.approx(4 * 64 / 3.6)


def test_the_shares_of_the_wall_are_those_of_its_parts():
    request = make_request(ttft_s=0.4, server=None)
    told = make_requests(make_cell(), ttft_s=0.4)
    shown = figures(make_frame(requests=told))
    assert shown.prefill_share.value == pytest.approx(0.4 / 3.55)
    assert shown.decode_share.value == pytest.approx(63 * 0.05 / 3.55)
    assert shown.queue_share.value == 0.0
    assert figures(make_frame(requests=[request])).queue_share.value is None  # the server did not say: not zero


def test_the_sum_of_rates_counts_each_stream_once():
    """Eight requests on four streams: four were writing at a time, so four speeds of 20 tok/s add up to 80."""
    shown = figures(make_frame(make_cell(num_prompts=8)))
    assert shown.sum_of_rates_tok_s.value == pytest.approx(80)


def test_a_cell_of_single_tokens_has_no_decode_figures_and_no_nan():
    cell = make_cell(max_tokens=1)
    shown = figures(make_frame(cell, make_requests(cell)))
    for figure in (shown.decode_speed_tok_s, shown.effective_concurrency, shown.sum_of_rates_tok_s):
        assert figure.value is None
    assert shown.throughput_tok_s.value == pytest.approx(4 / 0.1)


def test_evidence_leaves_a_wholly_failed_cell_out_of_its_series():
    failed = make_data(
        requests=[make_request(error="HTTP 500: out of memory", token_ids=(), chunk_ns=(), chunk_tokens=())]
    )
    evidence = Evidence([failed])
    assert not evidence.series
    assert len(evidence.failed(("code", "forced", "off", 4))) == 1
