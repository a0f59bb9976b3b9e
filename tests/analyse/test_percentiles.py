"""Percentiles of a closed loop: prompts and launches are what varies, and requests or gaps are not."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specprof.analyse.evidence import Evidence
from specprof.analyse.frontier import Keeping
from specprof.analyse.percentiles import Block, median, of_gaps, of_requests, percentiles
from specprof.analyse.results import Figure
from specprof.analyse.study import analyse
from tests.factory import make_cell, make_data, make_request

T_1 = 12.7062  # Student's t with one degree of freedom, 97.5%


def blocks_of(*values, prompts=None):
    """One block for each list, the prompt of each value by its place unless told otherwise."""
    return [Block(np.array(own, dtype=float), np.arange(len(own)) if prompts is None else prompts) for own in values]


TEN = list(np.arange(1.0, 11.0))  # its median's interval runs from the 2nd value to the 9th (`test_stats`)


def test_in_one_block_every_prompt_counts_for_one():
    assert median(blocks_of(TEN)) == Figure(5.5, 2.0, 9.0)


def test_the_same_prompts_in_further_blocks_tell_no_more_of_prompts():
    assert median(blocks_of(*[TEN] * 4)) == Figure(5.5, 2.0, 9.0)


def test_many_gaps_of_a_text_that_are_alike_are_one():
    gaps = np.repeat(TEN, 50)
    assert median(blocks_of(gaps, prompts=np.repeat(np.arange(10), 50))) == Figure(5.5, 2.0, 9.0)


def test_gaps_that_are_not_alike_are_many():
    """500 values that know nothing of their prompt: ±1.96 · √500 / 2 places if they were sure to, twice that at most
    where ten prompts must show it. As ten values they would be worth ±200 places.
    """
    values = np.random.default_rng(2).permutation(np.arange(1.0, 501.0))
    figure = median(blocks_of(values, prompts=np.repeat(np.arange(10), 50)))
    assert figure.value == 250.5
    assert 1.96 * sqrt(500) < figure.high - figure.low < 2 * 1.96 * sqrt(500)


def test_launches_widen_it_by_hand():
    """Prompts all alike, blocks at e^±0.02: the mean of two logarithms has a standard error of 0.02."""
    figure = median(blocks_of([exp(-0.02)] * 10, [exp(0.02)] * 10))
    assert figure.value == pytest.approx(1.0, abs=1e-3)
    assert log(figure.high / figure.value) == pytest.approx(T_1 * 0.02, rel=1e-3)
    assert log(figure.value / figure.low) == pytest.approx(T_1 * 0.02, rel=1e-3)


def test_prompts_and_launches_add_in_quadrature():
    """Upwards the prompts reach ln(9 / 5.5), downwards ln(5.5 / 2), whatever the launches do; these t_1 · 0.02."""
    slow, fast = (np.array(TEN) * exp(shift) for shift in (0.02, -0.02))
    figure = median(blocks_of(slow, fast))
    assert log(figure.high / figure.value) == pytest.approx(sqrt(log(9 / 5.5) ** 2 + (T_1 * 0.02) ** 2), rel=1e-6)
    assert log(figure.value / figure.low) == pytest.approx(sqrt(log(5.5 / 2) ** 2 + (T_1 * 0.02) ** 2), rel=1e-6)


@pytest.mark.parametrize(
    "blocks",
    [
        blocks_of([1.0] * 5),  # six values are the fewest with a median interval
        blocks_of(*[[1.0, 2.0, 3.0]] * 8),
        blocks_of(np.arange(1.0, 101.0), prompts=np.zeros(100, dtype=np.int64)),  # one prompt, however many gaps
        blocks_of([0.0] * 10, TEN),  # a launch that shows 0: of no launch's ratio anything can be said
    ],
    ids=["five prompts", "three prompts", "one prompt", "a median of 0"],
)
def test_too_little_leaves_no_interval(blocks):
    figure = median(blocks)
    assert figure.value is not None
    assert (figure.low, figure.high) == (None, None)


def test_nothing_measured_is_no_percentile():
    assert median([]) == median(blocks_of([], [])) == Figure(None)
    assert percentiles(blocks_of([])) is None


def test_a_tail_that_one_launch_has_to_itself_is_not_bounded():
    values = np.linspace(1.0, 1.01, 100)
    alike, apart = (percentiles(blocks_of(values, values * factor)) for factor in (1.0, 1.5))
    assert alike.p90.high is not None
    assert apart.p90.value > 1.5
    assert (apart.p90.low, apart.p90.high) == (None, None)
    assert apart.p50.high is not None


def test_values_are_those_of_all_requests():
    first, second = np.random.default_rng(3).lognormal(size=(2, 40))
    told = percentiles(blocks_of(first, second))
    expected = np.quantile([*first, *second], (0.50, 0.90, 0.95, 0.99))
    assert [told.p50.value, told.p90.value, told.p95.value, told.p99.value] == pytest.approx(list(expected))


# -- how often it holds ---------------------------------------------------------------------------------------------


def simulated(num_blocks, num_prompts, between_prompts, between_launches, seed, num_studies=300):
    """Medians of so many studies whose truth is 1: values differ by prompt, by launch, and by 0.5% more by chance."""
    rng = np.random.default_rng(seed)
    for _ in range(num_studies):
        prompts = rng.normal(0, between_prompts, num_prompts)
        launches = rng.normal(0, between_launches, (num_blocks, 1))
        yield median(blocks_of(*np.exp(prompts + launches + rng.normal(0, 0.005, (num_blocks, num_prompts)))))


@pytest.mark.parametrize(
    ("num_blocks", "num_prompts", "between_prompts", "between_launches"),
    [(2, 32, 0.01, 0.038), (4, 32, 0.01, 0.038), (4, 16, 0.10, 0.0), (8, 8, 0.10, 0.02)],
)
def test_the_median_interval_holds_95_percent(num_blocks, num_prompts, between_prompts, between_launches):
    """METHOD 5's seed: launches differ by 3.8%. Of 300, 95% ± 1.3%; where prompts say it all, order statistics hold
    more than they promise. A target 0.1% short of the truth is hardly ever said to be kept.
    """
    found = list(simulated(num_blocks, num_prompts, between_prompts, between_launches, seed=num_blocks))
    assert all(figure.low is not None for figure in found)
    assert np.mean([figure.low <= 1 <= figure.high for figure in found]) > 0.915
    kept = [Keeping.of(figure, 0.999, num_blocks) for figure in found]
    assert np.mean([keeping is Keeping.HOLDS for keeping in kept]) < 0.05


# -- from records ---------------------------------------------------------------------------------------------------


def cell_of(block, steps_s, failing=()):
    """Prompts that each write at their own pace; of a failed one nothing counts."""
    cell = make_cell(num_prompts=len(steps_s), concurrency=1, block=block, max_tokens=8)
    requests = [
        replace(
            make_request(name, num_tokens=2 + i, start_s=10.0 * i, step_s=step_s),
            error="boom" if i in failing else None,
        )
        for i, (name, step_s) in enumerate(zip(cell.prompt_ids, steps_s, strict=True))
    ]
    return make_data(cell, requests)


def test_each_gap_is_of_its_request_s_prompt():
    evidence = Evidence([cell_of(0, [0.01, 0.02, 0.03], failing=(0,)), cell_of(1, [0.04, 0.05, 0.06])])
    (series,) = evidence.series.values()
    names = series.prompts.names
    told = [
        (round(gap, 3), names[prompt])
        for block in of_gaps(series)
        for gap, prompt in zip(block.values.tolist(), block.prompts, strict=True)
    ]
    assert told == [
        *[(0.02, "code-001")] * 2,
        *[(0.03, "code-002")] * 3,
        *[(0.04, "code-000")],
        *[(0.05, "code-001")] * 2,
        *[(0.06, "code-002")] * 3,
    ]
    paces = [(block.values.round(3).tolist(), names[block.prompts].tolist()) for block in of_requests(series, "tpot")]
    assert paces == [
        ([0.02, 0.03], ["code-001", "code-002"]),
        ([0.04, 0.05, 0.06], ["code-000", "code-001", "code-002"]),
    ]


def test_further_blocks_of_a_study_do_not_narrow_what_prompts_differ():
    steps_s = [0.010 + 0.001 * i for i in range(10)]
    one, four = (analyse("s", Evidence([cell_of(b, steps_s) for b in range(n)]), {}).cells[0] for n in (1, 4))
    for name in ("tpot_s", "itl_s"):
        ours, theirs = getattr(four, name).p50, getattr(one, name).p50
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=0.1)
    speeds = (1 / 0.018, 1 / 0.011)  # of the 2nd and the 9th of ten
    assert (four.decode_speed_tok_s.low, four.decode_speed_tok_s.high) == pytest.approx(speeds)
    assert (four.output_tokens.low, four.output_tokens.high) == (3.0, 10.0)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_values_are_numpy_s_quantiles_of_them_all(values):
    told = percentiles(blocks_of(values))
    found = [told.p50.value, told.p90.value, told.p95.value, told.p99.value]
    assert found == pytest.approx(np.quantile(values, (0.50, 0.90, 0.95, 0.99)).tolist())
