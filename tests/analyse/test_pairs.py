"""Two series side by side: ratios and intervals, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, sqrt

import pytest
from scipy import stats as distributions

from specprof.analyse.evidence import Series
from specprof.analyse.frames import CellFrame
from specprof.analyse.pairs import Gap, Pair, count_gap, mean_gap, median_gap, throughput_gap
from tests.factory import NGRAM, make_cell, make_frame, make_request, make_requests, make_running_cell

NAMES = tuple(f"code-{i:03d}" for i in range(4))


def running(*throughputs: float, concurrency: int = 4) -> Series:
    """A block per throughput, its prompts alike."""
    cells = [make_running_cell(x, block=b, concurrency=concurrency, num_prompts=4) for b, x in enumerate(throughputs)]
    return Series(tuple(map(CellFrame, cells)))


def test_launches_of_two_studies_add_their_variances() -> None:
    """Prompts are alike, so only launches vary: Welch's interval around the difference of mean ln X."""
    a, b = [log(x) for x in (100.0, 104.0, 101.0)], [log(x) for x in (90.0, 95.0, 91.0)]
    gap = throughput_gap(Pair(running(100, 104, 101), running(90, 95, 91), NAMES))
    assert gap is not None
    welch = distributions.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    ratio = gap.ratio
    assert ratio.value == pytest.approx(exp(sum(b) / 3 - sum(a) / 3), rel=1e-6)
    assert (ratio.low, ratio.high) == pytest.approx((exp(welch.low), exp(welch.high)), rel=1e-4)


def test_arms_of_one_study_pair_by_block() -> None:
    """Every block is 10% slower than the other arm's, however the blocks differ: nothing is left to doubt."""
    gap = throughput_gap(Pair(running(100, 130, 80), running(90, 117, 72), NAMES, same_blocks=True))
    assert gap is not None
    assert gap.ratio.value == pytest.approx(0.9, rel=1e-6)
    assert gap.error == pytest.approx(0, abs=1e-6)


def test_one_shared_prompt_leaves_no_interval_and_no_p_value() -> None:
    """However well its launches agree, nobody knows how another prompt would have differed."""
    a, b = (
        Series(tuple(CellFrame(make_running_cell(x, block=i, concurrency=1, num_prompts=1)) for i, x in enumerate(of)))
        for of in ((53.0, 53.4, 52.7, 53.1), (48.0, 48.4, 47.9, 48.2))
    )
    for found in (throughput_gap(Pair(a, b, NAMES[:1])), mean_gap(Pair(a, b, NAMES[:1]), lambda r: r.decode_speed)):
        assert found is not None
        assert found.ratio.value == pytest.approx(48.1 / 53, rel=0.01)
        assert (found.ratio.low, found.p_below(0.97)) == (None, 1.0)


def test_the_p_value_is_student_s() -> None:
    gap = Gap(100.0, 90.0, error=0.02, degrees=5.0)
    assert gap.p_below(0.97) == pytest.approx(distributions.t.cdf((log(0.9) - log(0.97)) / 0.02, 5))
    assert gap.p_above(1.03) == pytest.approx(distributions.t.sf((log(0.9) - log(1.03)) / 0.02, 5))
    assert Gap(100.0, 50.0).p_below(0.97) == 1.0, "without an error nothing is sure"


def test_two_decode_speeds_pair_by_prompt() -> None:
    """Steps of 40, 50, 60, 70 ms against 1.1 times those: prompts differ a lot, their ratios not at all."""
    cell = make_cell(concurrency=1)
    a, b = (
        Series((make_frame(cell, [make_request(n, step_s=s * f) for n, s in zip(NAMES, steps, strict=True)]),))
        for f, steps in ((1.0, (0.04, 0.05, 0.06, 0.07)), (1.1, (0.04, 0.05, 0.06, 0.07)))
    )
    gap = mean_gap(Pair(a, b, NAMES), lambda requests: requests.decode_speed)
    assert gap is not None
    assert gap.ratio.value == pytest.approx(1 / 1.1, rel=1e-6)
    assert gap.error == pytest.approx(0, abs=1e-6)
    assert gap.degrees == 3


def test_the_median_is_robust_and_its_spread_is_the_prompts() -> None:
    """Twice the TTFT at every prompt is twice the p50, for certain; a single wild prompt leaves it there."""
    plain = Series((make_frame(make_cell(), [make_request(n, ttft_s=0.1 + 0.01 * i) for i, n in enumerate(NAMES)]),))
    twice = Series((make_frame(make_cell(), [make_request(n, ttft_s=0.2 + 0.02 * i) for i, n in enumerate(NAMES)]),))
    gap = median_gap(Pair(plain, twice, NAMES), lambda requests: requests.ttft)
    assert gap is not None
    assert gap.ratio.value == pytest.approx(2, rel=1e-6)
    assert gap.error == pytest.approx(0, abs=1e-6)
    three = NAMES[:3]
    wild = [make_request(n, ttft_s=t) for n, t in zip(three, (0.2, 0.22, 9.0), strict=True)]
    shaken = median_gap(Pair(plain, Series((make_frame(make_cell(), wild),)), three), lambda requests: requests.ttft)
    assert shaken is not None
    assert shaken.b == pytest.approx(0.22, rel=1e-6)
    assert shaken.error > 0.1


def test_acceptance_lengths_pair_by_prompt() -> None:
    """Two prompts, by hand: AL_A = 1 + 60/40 = 2.5, AL_B = 1 + 40/40 = 2; each prompt's influence on ln AL is
    (accepted - slope · steps) / (steps in all · AL).
    """

    def series(*counts: tuple[int, int]) -> Series:
        requests = []
        for name, (accepted, steps) in zip(NAMES, counts, strict=False):
            request = make_request(name, accepted=(1,))
            assert request.speculation is not None
            told = replace(request.speculation, num_steps=steps, num_accepted=accepted)
            requests.append(replace(request, speculation=told))
        cell = make_cell(speculative_config=NGRAM, arm="on")
        return Series((make_frame(cell, requests),))

    gap = count_gap(
        Pair(series((40, 20), (20, 20)), series((24, 20), (16, 20)), NAMES[:2]), "num_accepted", "num_steps", offset=1.0
    )
    assert gap is not None
    assert (gap.a, gap.b) == (2.5, 2.0)
    on_a = [(40 - 1.5 * 20) / (40 * 2.5), (20 - 1.5 * 20) / (40 * 2.5)]
    on_b = [(24 - 1.0 * 20) / (40 * 2.0), (16 - 1.0 * 20) / (40 * 2.0)]
    expected = sqrt(2 / 1 * sum((theirs - mine) ** 2 for mine, theirs in zip(on_a, on_b, strict=True)))
    assert gap.error == pytest.approx(expected)
    assert gap.degrees == 1


def test_acceptance_of_an_arm_without_drafts_is_not_compared() -> None:
    off = Series((make_frame(),))
    assert count_gap(Pair(off, off, NAMES), "num_accepted", "num_steps", offset=1.0) is None


def with_two_slow_prompts_more(concurrency: int) -> Pair:
    """A sent two prompts; B the same two, as fast, and two slow ones."""
    cells = [make_cell(num_prompts=n, concurrency=concurrency) for n in (2, 4)]
    requests = make_requests(cells[1])
    slow = [make_request(r.prompt_id, step_s=0.5, start_s=i * 50.0) for i, r in enumerate(requests[2:], start=1)]
    a, b = make_frame(cells[0]), make_frame(cells[1], [*requests[:2], *slow])
    return Pair(Series((a,)), Series((b,)), NAMES[:2])


def test_prompts_the_other_side_lacks_leave_the_throughput_of_one_stream() -> None:
    gap = throughput_gap(with_two_slow_prompts_more(concurrency=1))
    assert gap is not None
    assert gap.ratio.value == pytest.approx(1, rel=1e-6)


def test_and_beyond_one_stream_there_is_none_since_the_batch_is_one_unit() -> None:
    pair = with_two_slow_prompts_more(concurrency=2)
    assert not pair.whole
    assert throughput_gap(pair) is None
