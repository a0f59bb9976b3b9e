"""Open loops against a queue whose truth is known: M/D/1, one server and one constant service time D.

Mean wait: F. Pollaczek (1930) and A. Khinchine (1932); for constant service ρ·D / (2·(1 - ρ)). Distribution: A. K.
Erlang, "The theory of probabilities and telephone conversations" (1909); C. D. Crommelin, "Delay probability formulae
when the holding times are constant" (1932), of which this is the case of one server:

    P(W <= t) = (1 - ρ) · Σ_{k = 0}^{floor(t / D)} (-λ (t - k D))^k / k! · exp(λ (t - k D))

Both are written out below and nowhere else. The engine is the simulator's `queue`: three forced tokens take 0.020 s to
the first and 0.010 s for each of the others, so D = 0.040 s, and a first token comes W + 0.020 s after it was due.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import exp, factorial, floor

import numpy as np
import pytest
from scipy.optimize import brentq

from specprof.analyse.frames import CellFrame
from specprof.analyse.results import Figure, Percentiles
from specprof.analyse.service import service_figures
from specprof.analyse.service.cell import OpenCell
from specprof.analyse.service.goodput import climb, goodput_rate
from specprof.analyse.service.rung import Rung, rung_figures
from specprof.analyse.service_results import RungFigures, ServiceFigures
from specprof.columns import CellData
from specprof.engine.sim import Faults, machine_of
from specprof.study.load import Rates
from tests.analyse.open_loops import ladder, targets

D, FIRST, TOKENS = 0.040, 0.020, 3
TTFT = 0.100  # W <= 2 D
RATES = (8.0, 11.0, 13.0, 15.0, 17.0, 20.0)  # ρ = 0.32 … 0.80
LOAD = Rates(kind="rates", rates=RATES, duration=40, warmup=4, timeout=4)
NUM_SEEDS = 40
ASKED = targets(ttft=TTFT)


def waits_at_most(t: float, rate: float) -> float:
    """Erlang's distribution of the wait in M/D/1."""
    terms = (
        (-rate * (t - k * D)) ** k / factorial(k) * exp(rate * (t - k * D)) for k in range(floor(t / D + 1e-9) + 1)
    )
    return (1 - rate * D) * sum(terms)


def mean_wait(rate: float) -> float:
    """Pollaczek and Khinchine's mean wait in M/D/1."""
    return rate * D * D / (2 * (1 - rate * D))


def true_goodput(share: float) -> float:
    """The rate at which this share of first tokens comes in time."""
    return float(brentq(lambda rate: waits_at_most(TTFT - FIRST, rate) - share, 1.0, 0.99 / D))


@dataclass(frozen=True)
class Measured:
    """One seed: its rungs, and what is said of them."""

    rungs: tuple[Rung, ...]
    figures: ServiceFigures


@cache
def measured(seed: int) -> Measured:
    frames = ladder(machine_of("queue"), LOAD, f"seed {seed}", tokens=TOKENS)
    figures = service_figures(frames, ASKED, lambda name: (0, name))
    assert figures is not None
    return Measured(tuple(Rung((OpenCell(frame, ASKED),)) for frame in frames), figures)


def holds(figure: Figure, truth: float) -> bool:
    """An end that is not known is never wrong; how often it is known is asked beside. Clocks tick in nanoseconds."""
    low, high = figure.low, figure.high
    return (low is None or low - 1e-8 <= truth) and (high is None or truth <= high + 1e-8)


def test_the_two_formulas_agree_with_each_other() -> None:
    """The mean is the integral of what is left of the distribution."""
    grid = np.arange(0, 20 * D, 1e-4)
    for rate in (5.0, 15.0):
        left = [1 - waits_at_most(float(t), rate) for t in grid]
        assert np.trapezoid(left, grid) == pytest.approx(mean_wait(rate), rel=1e-3)


@pytest.mark.parametrize("place", range(len(RATES)))
def test_the_mean_wait_is_pollaczek_and_khinchine_s(place: int) -> None:
    """Within three standard errors over the seeds, which are independent."""
    waits = [float((measured(seed).rungs[place].pooled("ttft") - FIRST).mean()) for seed in range(NUM_SEEDS)]
    error = np.std(waits, ddof=1) / NUM_SEEDS**0.5
    assert np.mean(waits) == pytest.approx(mean_wait(RATES[place]), abs=3 * error)
    assert 3 * error < 0.15 * mean_wait(RATES[place])


@pytest.mark.parametrize("place", range(len(RATES)))
def test_the_percentiles_of_the_first_token_are_erlang_s(place: int) -> None:
    """Intervals hold the true quantile in 90% of the seeds at least, each percentile by itself."""
    told = [measured(seed).figures.rungs[place].ttft_s for seed in range(NUM_SEEDS)]
    for name, share in (("p50", 0.50), ("p90", 0.90), ("p95", 0.95), ("p99", 0.99)):
        truth = FIRST + quantile_of_wait(share, RATES[place])
        assert np.mean([holds(getattr(figures, name), truth) for figures in told]) >= 0.90, name
    bounded = [figures.p90.high is not None for figures in told if figures is not None]
    assert np.mean(bounded) >= (0.75 if RATES[place] < 20 else 0.25)  # at ρ = 0.8 forty seconds hold few busy periods


def quantile_of_wait(share: float, rate: float) -> float:
    """Below the share of requests that find the server free nobody waits."""
    if share <= waits_at_most(0.0, rate):
        return 0.0
    return float(brentq(lambda t: waits_at_most(t, rate) - share, 0, 20 * D))


@pytest.mark.parametrize("place", range(len(RATES)))
def test_the_interval_of_the_share_on_target_holds_its_truth(place: int) -> None:
    truth = waits_at_most(TTFT - FIRST, RATES[place])
    shares = [measured(seed).figures.rungs[place].on_target_share for seed in range(NUM_SEEDS)]
    assert all(share.low is not None and share.high is not None for share in shares)
    assert np.mean([holds(share, truth) for share in shares]) >= 0.90


def test_an_interval_of_independent_requests_would_be_too_narrow() -> None:
    """At ρ = 0.8 neighbours queue together: the binomial interval misses far more often than one time in twenty."""
    truth, misses = waits_at_most(TTFT - FIRST, RATES[-1]), 0
    for seed in range(NUM_SEEDS):
        rung = measured(seed).rungs[-1]
        share = rung.on_target().value
        assert share is not None
        misses += abs(share - truth) > 1.96 * (share * (1 - share) / rung.num_offered) ** 0.5
    assert misses / NUM_SEEDS > 0.25


@pytest.mark.parametrize("share", [0.80, 0.90, 0.95])
def test_the_goodput_s_interval_holds_the_rate_solved_from_erlang_s_formula(share: float) -> None:
    truth = true_goodput(share)
    assert RATES[0] < truth < RATES[-1]
    found = [goodput_rate(climb(measured(seed).rungs), share) for seed in range(NUM_SEEDS)]
    assert np.mean([holds(figure, truth) for figure in found]) >= 0.90
    assert np.median([figure.value or 0.0 for figure in found]) == pytest.approx(truth, rel=0.08)


def test_most_of_the_goodputs_are_bounded_from_both_sides() -> None:
    """So that no interval above holds the truth by saying nothing. None is wider than three rungs to either side."""
    found = [measured(seed).figures.goodputs[0] for seed in range(NUM_SEEDS)]
    assert {goodput.share for goodput in found} == {0.90}
    bounded = [(g.rate_per_s.low, g.rate_per_s.high) for g in found if g.rate_per_s.low and g.rate_per_s.high]
    assert len(bounded) >= 0.9 * NUM_SEEDS
    assert np.median([(high or 0.0) / (low or 1.0) for low, high in bounded]) <= 2.2


def test_the_knee_lies_where_the_server_is_full() -> None:
    """It serves 25 a second; at 32 it completes 78%, and no luck of forty seconds makes that 95%."""
    load = Rates(kind="rates", rates=(15.0, 20.0, 32.0, 40.0), duration=40, warmup=4, timeout=60)
    frames = ladder(machine_of("queue"), load, "knee", tokens=TOKENS)
    figures = service_figures(frames, ASKED, lambda name: (0, name))
    assert figures is not None
    assert figures.goodputs[0].knee_per_s == 20.0
    assert [rung.collapsed for rung in figures.rungs] == [False, False, True, True]
    for rung in figures.rungs[2:]:
        assert rung.completed_per_s.value == pytest.approx(1 / D, rel=0.01)


# -- coordinated omission ----------------------------------------------------------------------------------------------


def stalled(cap: int | None) -> RungFigures:
    """Ten requests a second of 0.04 s each for 60 s; from second 20 on the server does nothing for two seconds."""
    load = Rates(
        kind="rates", rates=(10.0,), duration=60, warmup=2, timeout=30, arrivals="constant", max_concurrency=cap
    )
    frozen = replace(machine_of("queue"), faults=Faults(freeze_at_s=20.0, freeze_s=2.0))
    (frame,) = ladder(frozen, load, "stall", tokens=TOKENS)
    return rung_figures(Rung((OpenCell(frame, ASKED),)), ())


def p99(told: Percentiles | None) -> float:
    assert told is not None and told.p99.value is not None
    return told.p99.value


def test_a_stall_shows_in_what_is_counted_from_when_requests_were_due() -> None:
    """With one request out at a time, only the one that was out saw the stall: 1 of 600. But twenty were due meanwhile,
    and the one due d seconds after the stall began was served ten requests a second later, 22 + 0.04 · 10 d: it waited
    2 - 0.6 d. The sixth longest of 600 is due 0.5 to 0.6 s into the stall.
    """
    held_back = stalled(1)
    assert p99(held_back.ttft_sent_s) == pytest.approx(FIRST, abs=1e-6)
    assert p99(held_back.ttft_s) == pytest.approx(2 - 0.6 * 0.55 + FIRST, abs=0.06)
    assert held_back.client_queue_s is not None
    assert p99(held_back.client_queue_s) == pytest.approx(p99(held_back.ttft_s) - FIRST, abs=0.08)


def test_a_client_that_nothing_holds_back_sees_the_stall_either_way() -> None:
    free, held_back = stalled(None), stalled(1)
    assert p99(free.ttft_sent_s) == p99(free.ttft_s)
    assert p99(free.ttft_s) == pytest.approx(p99(held_back.ttft_s), abs=0.05)
    assert (free.on_target_share.value or 0) == pytest.approx(held_back.on_target_share.value, abs=0.01)


# -- the window --------------------------------------------------------------------------------------------------------


def test_the_waterfall_only_falls_and_its_top_is_every_token_of_the_window() -> None:
    """Twice what the server can do, given up after 2 s: half is lost, and more, since first come first served spends
    its time on those that are about to give up. Tokens are counted here one by one.
    """
    load = Rates(kind="rates", rates=(50.0,), duration=20, warmup=4, timeout=2)
    (frame,) = ladder(machine_of("queue"), load, "falls", tokens=TOKENS)
    told = rung_figures(Rung((OpenCell(frame, targets(ttft=1.9)),)), ())
    arrivals = frame.cell.arrivals
    assert arrivals is not None
    rows = frame.data.requests.to_pylist()
    begins = min(row["scheduled_ns"] for row in rows) + round((arrivals.warmup_s - arrivals.due_s[0]) * 1e9)
    inside = {"all": 0, "ended": 0}
    for row in rows:
        chunks = zip(row["chunk_ns"], row["chunk_tokens"], strict=True)
        here = sum(tokens for at, tokens in chunks if 0 <= (at - begins) / 1e9 < 20)
        inside["all"] += here
        inside["ended"] += here if row["error"] is None else 0
    falls = told.waterfall
    assert falls.raw_tok_s.value == pytest.approx(inside["all"] / 20)
    assert falls.finished_tok_s.value == pytest.approx(inside["ended"] / 20)
    stages = [falls.raw_tok_s, falls.finished_tok_s, falls.on_time_tok_s, falls.effective_tok_s]
    values = [stage.value or 0.0 for stage in stages]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[1] > values[2] == values[3] > 0
    fates = told.fates
    assert fates.offered == fates.good + fates.late + fates.bad + fates.failed + fates.timed_out
    assert fates.timed_out > fates.offered / 2
    assert told.collapsed


# -- launches ---------------------------------------------------------------------------------------------------------


def pooled(seeds: Sequence[int]) -> RungFigures:
    """One rate at ρ = 0.6 over a launch per seed, each with arrivals of its own."""
    load = Rates(kind="rates", rates=(15.0,), duration=20, warmup=4, timeout=4)
    frames = [ladder(machine_of("queue"), load, f"launch {s}", tokens=TOKENS, launch=i)[0] for i, s in enumerate(seeds)]
    return rung_figures(Rung(tuple(OpenCell(frame, ASKED) for frame in frames)), ())


def test_launches_are_pooled_and_their_spread_is_in_the_interval() -> None:
    truth = waits_at_most(TTFT - FIRST, 15.0)
    found = [pooled(range(4 * i, 4 * i + 4)) for i in range(20)]
    assert {told.num_launches for told in found} == {4}
    assert np.mean([told.fates.offered for told in found]) == pytest.approx(4 * 20 * 15, rel=0.05)
    assert np.mean([holds(told.on_target_share, truth) for told in found]) >= 0.90


# -- many requests ----------------------------------------------------------------------------------------------------


def large(duration: float) -> CellData:
    """Twenty requests a second for so long."""
    load = Rates(kind="rates", rates=(20.0,), duration=duration, warmup=1, timeout=1)
    (frame,) = ladder(machine_of("queue"), load, "large", tokens=TOKENS)
    return frame.data


def num_calls(work: Callable[[], object]) -> int:
    """How many functions it calls from Python, those written in C among them."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that Python and NumPy hold for it at one time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_rung_of_ten_thousand_requests_is_read_in_columns() -> None:
    """Ten times the requests are no more steps of Python, and no more than ten times the memory: no request is looked
    at by itself, and none is held against every other.
    """
    few, many = large(50), large(500)
    assert many.requests.num_rows > 9_500
    times = many.requests.num_rows / few.requests.num_rows
    assert 9 < times < 11

    def reading(cell: CellData) -> Callable[[], object]:
        return lambda: rung_figures(Rung((OpenCell(CellFrame(cell), ASKED),)), ())

    reading(few)()  # what is imported and set up once
    assert num_calls(reading(many)) < 1.5 * num_calls(reading(few))
    assert peak_bytes(reading(many)) < 1.5 * times * peak_bytes(reading(few))
