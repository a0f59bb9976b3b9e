"""The closed loop on paper: against schedules worked out by hand, and against loops really run many times over."""

from __future__ import annotations

from heapq import heapify, heapreplace
from itertools import permutations
from math import exp, log, sqrt

import numpy as np
import pytest

from specprof.analyse.ordering import (
    MANY_PROMPTS,
    MANY_WAVES,
    ORDERS,
    Loop,
    order_variance,
    prompt_variance,
    random_orders,
    walls,
    walls_with_one_replaced,
)
from specprof.analyse.stats import around_log

SPREAD = 0.2  # of ln(seconds) between the prompts of the population


def wall_of(seconds, streams):
    """The closed loop, one request after the other: whichever stream is free first takes the next prompt."""
    free_at = [0.0] * streams
    heapify(free_at)
    for taken in seconds:
        heapreplace(free_at, free_at[0] + taken)
    return max(free_at)


def loop_of(seconds, streams, log_tokens=None):
    names = [f"p{i:03d}" for i in range(len(seconds))]
    return Loop(
        dict(zip(names, seconds, strict=True)),
        dict(zip(names, np.zeros(len(seconds)) if log_tokens is None else log_tokens, strict=True)),
        streams,
    )


# -- walls ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "streams", "wall"),
    [
        ((0, 1, 2, 3), 1, 8.0),  # one stream: their sum
        ((3, 1, 0, 2), 1, 8.0),
        ((0, 1, 2, 3), 2, 5.0),  # A: p0 till 3; B: p1 till 1, p2 till 3; whoever takes p3 then ends at 5
        ((0, 2, 3, 1), 2, 4.0),  # A: p0 till 3; B: p2 till 2, p3 till 4; A: p1 till 4
        ((1, 2, 3, 0), 2, 5.0),  # A: p1 till 1; B: p2 till 2; A: p3 till 3; B: p0 till 5
        ((0, 1, 2, 3), 3, 3.0),  # A: p0 till 3; B: p1 till 1; C: p2 till 2; B: p3 till 3
        ((0, 1, 2, 3), 4, 3.0),  # each its own stream: the longest
        ((0, 1, 2, 3), 9, 3.0),
    ],
)
def test_a_schedule_worked_out_by_hand(order, streams, wall):
    seconds = np.array([3.0, 1.0, 2.0, 2.0])  # of p0, p1, p2, p3
    assert walls(seconds, streams, np.array([order]))[0] == wall


def test_every_order_has_its_own_wall():
    seconds = np.array([3.0, 1.0, 2.0, 2.0])
    assert walls(seconds, 2, np.array([(0, 1, 2, 3), (0, 2, 3, 1), (1, 2, 3, 0)])).tolist() == [5.0, 4.0, 5.0]


@pytest.mark.parametrize("streams", [2, 3, 8])
def test_a_schedule_is_that_of_a_loop_really_run(streams):
    seconds = np.random.default_rng(streams).lognormal(size=20)
    orders = random_orders(20)
    assert orders.shape == (ORDERS, 20)
    by_hand = [wall_of(seconds[order], streams) for order in orders]
    assert walls(seconds, streams, orders) == pytest.approx(by_hand)


def test_of_very_many_prompts_the_tail_is_nothing():
    """The last stream ends at most one prompt after the first, so sum / N is short by less than one in MANY_WAVES."""
    seconds = np.random.default_rng(0).uniform(1, 2, size=2 * MANY_WAVES + 1)
    (wall,) = walls(seconds, 2, np.arange(len(seconds))[None])
    assert wall == pytest.approx(seconds.sum() / 2)
    assert 0 <= wall_of(seconds, 2) - wall < seconds.max()


@pytest.mark.parametrize(("streams", "pace"), [(1, None), (2, None), (3, [0.2, 0.6, 1.0]), (8, None), (24, None)])
def test_with_one_replaced_it_is_the_wall_of_that_order(streams, pace):
    """The schedule that branches off is the one that would be made from the start, wherever the other prompt stands."""
    rng = np.random.default_rng(streams)
    taken, instead = rng.lognormal(size=(5, 20)), rng.lognormal(size=(5, 20))
    thinning = None if pace is None else np.array(pace)
    found = walls_with_one_replaced(taken, instead, streams, thinning)
    for order, place in np.ndindex(taken.shape):
        seconds = taken[order].copy()
        seconds[place] = instead[order, place]
        (wall,) = walls(seconds, streams, np.arange(20)[None], thinning)
        assert found[order, place] == pytest.approx(wall)
        assert pace is not None or wall == pytest.approx(wall_of(seconds, streams))


@pytest.mark.parametrize(
    ("pace", "wall"),
    [
        ([1.0, 1.0, 1.0], 4.0),  # as if nobody had left
        ([0.5, 1.0, 1.0], 3.0),  # 2 till two have left, and the 2 s after it in half the time
        ([0.2, 0.6, 1.0], 1.0 + 1.0 * 0.6 + 2.0 * 0.2),  # 1 with three, 1 with two at 0.6, 2 with one at 0.2
    ],
)
def test_a_batch_that_thins_goes_on_at_its_own_pace(pace, wall):
    seconds = np.array([1.0, 2.0, 4.0])
    assert walls(seconds, 3, np.array([(0, 1, 2)]), np.array(pace))[0] == pytest.approx(wall)


# -- which prompts were drawn ---------------------------------------------------------------------------------------


def brute_variance(draw, terms, rng, num_draws=2500, num_orders=12):
    """Variance over draws of prompts of a weighted sum of ln X (one token a prompt), and its standard error.

    `terms`: streams and weight of each loop. `draw(rng)`: seconds of each prompt, a row per loop. A draw is judged by
    its mean over orders; what so few orders add by chance is their own variance / their number, and is taken off again.
    """
    means, luck = [], []
    for _ in range(num_draws):
        loops = list(zip(draw(rng), terms, strict=True))
        orders = [rng.permutation(len(loops[0][0])) for _ in range(num_orders)]
        values = [sum(-w * log(wall_of(row[order], n)) for row, (n, w) in loops) for order in orders]
        means.append(np.mean(values))
        luck.append(np.var(values, ddof=1) / num_orders)
    squares = (np.array(means) - np.mean(means)) ** 2
    return squares.mean() - np.mean(luck), squares.std() / sqrt(num_draws)


def mean_estimate(draw, terms, rng, num_draws):
    """What `prompt_variance` says of such draws on average, and its standard error."""
    found = [
        prompt_variance([(loop_of(row, n), w) for row, (n, w) in zip(draw(rng), terms, strict=True)])[0]
        for _ in range(num_draws)
    ]
    return np.mean(found), np.std(found) / sqrt(num_draws)


def assert_agree(draw, terms, seed):
    """Within four standard errors. With two prompts a stream the estimate is known to be high, by 0.1 at N = 8 and by
    0.3 in N = 8 over N = 1 (3,000 draws): taking one of so few away is no small change. That errs on the safe side.
    """
    rng = np.random.default_rng(seed)
    few = len(draw(rng)[0]) <= 16
    truth, truth_error = brute_variance(draw, terms, rng)
    estimate, estimate_error = mean_estimate(draw, terms, rng, num_draws=500 if few else 250)
    tolerance = 4 * sqrt((truth_error / truth) ** 2 + (estimate_error / estimate) ** 2)
    assert tolerance < 0.6, "too few draws to tell anything"
    assert 1 - tolerance < estimate / truth < 1 + tolerance + (0.3 if few else 0.0)


ALONE, EIGHT, BATCHING_GAIN = [(1, 1)], [(8, 1)], [(8, 1), (1, -1)]


@pytest.mark.parametrize("num_prompts", [16, 32])
@pytest.mark.parametrize("terms", [ALONE, EIGHT, BATCHING_GAIN], ids=["N=1", "N=8", "N=8 over N=1"])
def test_another_draw_of_prompts_moves_throughput_as_much_as_estimated(terms, num_prompts):
    """In N = 8 over N = 1 the prompts' mean cancels, and what is left is who comes last: leaving each prompt out in
    turn, with nobody in its place, over-counts that by 1.7 with 32 prompts and misses 0.4 of it with 16.
    """

    def draw(rng):
        return [rng.lognormal(0.0, SPREAD, size=num_prompts)] * len(terms)

    assert_agree(draw, terms, seed=num_prompts)


def test_two_arms_that_share_their_prompts_share_their_luck():
    """Off, every prompt takes its own time; on, that time over its own gain. Both walls wait for whoever is last."""

    def draw(rng):
        off = rng.lognormal(0.0, SPREAD, size=16)
        return [off / rng.lognormal(0.5, 0.1, size=16), off]

    assert_agree(draw, [(8, 1), (8, -1)], seed=3)


def jackknife(over, under):
    """Variance of ln(Σ over / Σ under): it is worked out without each pair in turn, and (n-1)/n of the sum of squares
    about their mean is taken (Efron and Stein, 1981).
    """
    places = np.arange(len(over))
    left = np.array([log(np.sum(over[places != i]) / np.sum(under[places != i])) for i in places])
    return (len(places) - 1) / len(places) * ((left - left.mean()) ** 2).sum()


def test_at_one_stream_it_is_that_of_a_ratio_of_sums():
    """By hand: ln of 40 tokens in 6 s, of 40 in 5 s and of 20 in 3 s, with each of three prompts left out."""
    logs = np.log([40 / 6, 40 / 5, 20 / 3])
    by_hand = 2 / 3 * ((logs - logs.mean()) ** 2).sum()
    assert prompt_variance([(loop_of([1.0, 2.0, 4.0], 1, np.log([10.0, 10.0, 30.0])), 1)]) == (
        pytest.approx(by_hand),
        2,
    )


def test_a_long_text_weighs_as_much_as_it_is_long():
    """One prompt writes nearly everything and gains nearly everything: what others gain says little of the sum."""
    off = np.array([30.0, 1.0, 1.0, 1.0])
    on = off / [3.0, 1.0, 1.1, 0.9]
    found = prompt_variance([(loop_of(on, 1), 1), (loop_of(off, 1), -1)])
    assert found == (pytest.approx(jackknife(off, on)), 3)  # the gain is Σ off / Σ on: equal tokens cancel


def test_of_many_prompts_it_is_the_delta_method_s():
    """With R = Σ over / Σ under it is n/(n-1) · Σ (over - R · under)² / (Σ over)² to first order (Cochran, *Sampling
    Techniques*, 6.3, in logs).
    """
    rng = np.random.default_rng(5)
    tokens, seconds = rng.lognormal(0.0, 0.3, (2, 199))
    residuals = tokens - tokens.sum() / seconds.sum() * seconds
    expected = 199 / 198 * (residuals**2).sum() / tokens.sum() ** 2
    assert prompt_variance([(loop_of(seconds, 1, np.log(tokens)), 1)]) == (pytest.approx(expected, rel=0.02), 198)


@pytest.mark.parametrize("spread", [0.5, 1.0])
def test_texts_of_unequal_lengths_leave_the_interval_honest(spread):
    """Gain of 600 draws of 32 prompts, each with its own length and its own gain g: the truth is 1 / E[1/g]."""
    rng = np.random.default_rng(41)
    tokens = rng.lognormal(5.0, spread, (600, 32))
    gains = rng.lognormal(log(1.5), 0.3, tokens.shape)
    truth, hits = 1.5 * exp(-(0.3**2) / 2), 0
    for length, gain in zip(tokens, gains, strict=True):
        off, on = length / 20, length / 20 / gain
        loops = [(loop_of(on, 1, np.log(length)), 1), (loop_of(off, 1, np.log(length)), -1)]
        variance, degrees = prompt_variance(loops)
        figure = around_log(log(off.sum() / on.sum()), sqrt(variance), degrees)
        hits += figure.low <= truth <= figure.high
    assert 0.92 <= hits / 600 <= 0.98


def test_of_very_many_prompts_only_the_sum_moves():
    seconds = np.random.default_rng(0).lognormal(size=MANY_PROMPTS + 1)
    expected = jackknife(seconds, np.ones(len(seconds)))
    assert prompt_variance([(loop_of(seconds, 8), 1)]) == (pytest.approx(expected), MANY_PROMPTS)


@pytest.mark.parametrize("streams", [1, 4])
def test_a_loop_against_itself_has_no_luck(streams):
    loop = loop_of(np.random.default_rng(1).lognormal(size=8), streams)
    variance, degrees = prompt_variance([(loop, 1), (loop, -1)])
    assert (variance, degrees) == (pytest.approx(0.0, abs=1e-12), 7)


def test_only_prompts_that_every_loop_has_are_paired():
    both, extra = loop_of([1.0, 2.0, 4.0], 1), loop_of([1.0, 2.0, 4.0, 100.0], 1)
    assert prompt_variance([(both, 1), (extra, -1)]) == (pytest.approx(0.0), 2)


def test_one_prompt_cannot_tell_how_prompts_differ():
    assert prompt_variance([(loop_of([1.0], 4), 1)]) == (0.0, 0)
    assert order_variance([(loop_of([1.0], 4), 1)]) == 0.0


# -- their order ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [2, 3])
def test_another_order_moves_throughput_as_much_as_all_orders_do(streams):
    seconds = [1.0, 1.5, 2.5, 4.0, 0.7]
    everything = np.array([-log(wall_of(order, streams)) for order in permutations(seconds)])
    squares = (everything - everything.mean()) ** 2
    error = squares.std() / sqrt(ORDERS)  # of a variance from ORDERS orders drawn at random
    found = order_variance([(loop_of(seconds, streams), 1)])
    assert found == pytest.approx(squares.mean(), abs=4 * error)
    assert squares.mean() > 5 * error, "a variance of nothing would pass"


@pytest.mark.parametrize("streams", [1, 5, 9])
def test_one_stream_or_one_for_every_prompt_knows_no_order(streams):
    assert order_variance([(loop_of([1.0, 1.5, 2.5, 4.0, 0.7], streams), 1)]) == pytest.approx(0.0, abs=1e-20)


def test_arms_that_differ_by_a_factor_share_what_the_order_does():
    """A block sends its prompts in the same order on every arm, so the order moves both walls alike."""
    seconds = np.array([1.0, 1.5, 2.5, 4.0, 0.7])
    on, off = loop_of(seconds / exp(0.4), 2), loop_of(seconds, 2)
    assert order_variance([(off, 1)]) > 1e-3
    assert order_variance([(on, 1), (off, -1)]) == pytest.approx(0.0, abs=1e-20)
