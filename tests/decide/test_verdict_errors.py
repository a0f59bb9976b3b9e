"""How often a verdict is wrong when nothing is there: simulated studies whose true ratio is the threshold itself.

A bound here is the count that a sound method exceeds once in a thousand. Seeds are fixed: it passes or fails for good.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from math import exp, log, sqrt

import numpy as np
import pytest
from scipy import stats as distributions

from specprof.analyse import stats
from specprof.analyse.evidence import Evidence, Series
from specprof.analyse.results import Outcome
from specprof.columns import cell_data
from specprof.decide.looks import look_confidence
from specprof.decide.verdict import judge
from specprof.engine.sim import Content, Drafter, Hardware, Noise, Prefill, VirtualEngine, machine_of
from specprof.records import Prompt
from specprof.study.config import AUTO_LOOKS, Study
from tests.factory import make_cell

SPECULATION = {"method": "draft", "num_speculative_tokens": 4}
BLOCKS = 4
ALPHA = 0.05
LAUNCH_NOISE = 0.10  # of the log of every step time of a launch: a machine on which nothing repeats
PASS, FAIL, UNDECIDED = Outcome.PASS, Outcome.FAIL, Outcome.UNDECIDED


def most_by_chance(num_studies, rate):
    """The count that so many studies, each wrong at this rate, exceed once in a thousand."""
    return int(distributions.binom.ppf(0.999, num_studies, rate))


def study_of(at_least, blocks, streams):
    """A study with one verdict: on over off is at least so much."""
    verdict = {
        "name": "gain",
        "metric": "throughput",
        "protocol": "forced",
        "workload": "code",
        "arm": "on",
        "numerator": {"concurrency": streams},
        "denominator": {"concurrency": streams, "arm": "off"},
        "at_least": at_least,
        "alpha": ALPHA,
    }
    return Study.model_validate(
        {
            "study": "null",
            "engine": {"kind": "sim", "preset": "small"},
            "arms": {"off": {}, "on": {"speculative_config": SPECULATION}},
            "workloads": [{"tag": "code", "suite": "code.jsonl"}],
            "protocols": {"forced": {"stop": "forced", "output_tokens": 8}},
            "concurrency": [streams],
            "blocks": blocks,
            "verdicts": [verdict],
        }
    )


def records(machine, *, blocks, streams, prompts, tokens):
    """Cells of one study, speculation off and on in every block; each block has launches and an order of its own."""
    suite = {name: Prompt(name, "code", "en", name) for name in (f"{machine.seed}-{i}" for i in range(prompts))}
    for block in range(blocks):
        order = tuple(random.Random(f"{machine.seed}/{block}").sample(list(suite), prompts))
        for index, speculation in enumerate((None, SPECULATION)):
            cell = make_cell(
                block=block,
                arm="on" if speculation else "off",
                speculative_config=speculation,
                concurrency=streams,
                prompt_ids=order,
                max_tokens=tokens,
            )
            yield VirtualEngine(machine, speculation, launch_index=2 * block + index).measure(cell, suite)


def only_blocks(evidence, first, last):
    """What a study that measured these blocks alone would know."""
    part = Evidence(())
    part.series = {
        key: Series(tuple(frame for frame in series.frames if first <= frame.cell.block < last))
        for key, series in evidence.series.items()
    }
    return part


def verdict_of(study, evidence):
    (verdict,) = judge(study, evidence, {}, ())
    return verdict


# -- on and off are equal -------------------------------------------------------------------------------------------


def equal_world(seed):
    """Drafts cost nothing and none is ever accepted, so the true gain is 1 exactly; launches differ by 10%."""
    return replace(
        machine_of("small"),
        hardware=Hardware(fixed_s=0.005, per_sequence_s=0.0005),
        prefill=Prefill(speed_tok_s=20_000, fixed_s=0.001),
        drafters={"*": Drafter()},
        contents={"code": Content((0.0,), eos_mean_tokens=5000)},
        noise=Noise(launch_sigma=LAUNCH_NOISE, step_sigma=0.02),
        seed=seed,
    )


@pytest.fixture(scope="module")
def equal_studies():
    """Evidence of 80 studies of 12 blocks."""
    shape = {"blocks": AUTO_LOOKS[-1], "streams": 2, "prompts": 4, "tokens": 8}
    return [Evidence(map(cell_data, records(equal_world(seed), **shape))) for seed in range(80)]


@pytest.fixture(scope="module")
def equal_quarters(equal_studies):
    """Every 4 blocks of those are a study by themselves: 240, since no launch is in two of them."""
    starts = range(0, AUTO_LOOKS[-1], BLOCKS)
    return [only_blocks(evidence, start, start + BLOCKS) for evidence in equal_studies for start in starts]


def test_at_the_boundary_at_most_5_percent_of_verdicts_are_wrong(equal_quarters):
    """α = 5% is 2.5% on either side. Normal instead of t quantiles would miss 14.5% of the time with four blocks."""
    study = study_of(1.0, BLOCKS, 2)
    seen = Counter(verdict_of(study, evidence).outcome for evidence in equal_quarters)
    assert sum(seen.values()) == 240
    assert seen[PASS] + seen[FAIL] <= most_by_chance(240, ALPHA)
    assert max(seen[PASS], seen[FAIL]) <= most_by_chance(240, ALPHA / 2)
    assert distributions.binom.cdf(most_by_chance(240, ALPHA), 240, 0.145) < 0.05, "normal quantiles would pass too"


def test_looking_three_times_still_errs_in_at_most_5_percent(equal_studies):
    """`blocks: auto` takes the first decision of three looks for good."""
    study = study_of(1.0, "auto", 2)
    wrong = sum(
        any(verdict_of(study, only_blocks(evidence, 0, look)).outcome is not UNDECIDED for look in AUTO_LOOKS)
        for evidence in equal_studies
    )
    assert wrong <= most_by_chance(len(equal_studies), ALPHA)


def test_the_three_looks_err_in_5_percent_where_launches_are_all_that_varies():
    """The same intervals with nothing but launches in them, so often that intervals of 95% at every look, which err
    in 11.5% of studies, could not pass. (Pocock's constant is exact for a known variance.)
    """
    num_studies = 4000
    rng = np.random.default_rng(0)
    wrong = {look_confidence(): 0, 0.95: 0}
    for logs in rng.normal(0, 0.1, size=(num_studies, AUTO_LOOKS[-1])):
        for confidence in wrong:
            ratios = (stats.two_way(logs[:look].tolist(), (0.0, 15), confidence) for look in AUTO_LOOKS)
            wrong[confidence] += any(Outcome.of(ratio, 1.0) is not UNDECIDED for ratio in ratios)
    assert wrong[look_confidence()] <= most_by_chance(num_studies, ALPHA)
    assert wrong[0.95] > most_by_chance(num_studies, ALPHA)


def test_pure_noise_stays_undecided_and_says_how_many_blocks_would_decide(equal_quarters):
    """At least 1.05 is asked for and the truth is 1. Four blocks of ln(on / off), each with √2 times the launches'
    noise, know their mean to 7%: the t statistic is noncentral, and its tails are what may pass and fail.
    """
    shift = -log(1.05) / (LAUNCH_NOISE * sqrt(2 / BLOCKS))
    bound = distributions.t.ppf(1 - ALPHA / 2, BLOCKS - 1)
    passing, failing = (
        tail(x, BLOCKS - 1, shift) for tail, x in ((distributions.nct.sf, bound), (distributions.nct.cdf, -bound))
    )
    assert passing < ALPHA / 2 < failing < 0.1

    study = study_of(1.05, BLOCKS, 2)
    verdicts = [verdict_of(study, evidence) for evidence in equal_quarters]
    seen = Counter(verdict.outcome for verdict in verdicts)
    assert seen[PASS] <= most_by_chance(len(verdicts), passing)
    assert seen[FAIL] <= most_by_chance(len(verdicts), failing)
    assert seen[UNDECIDED] > 0.8 * len(verdicts)
    for verdict in verdicts:
        prompts = r"(?:prompts: \d+ \(now \d+\) and )?"  # where the estimate is all but on the line
        told = re.fullmatch(
            rf"about {prompts}blocks: (\d+) \(now 4\), if the estimate stays where it is", verdict.needs
        )
        beyond = verdict.needs.startswith("more than 100 blocks")  # on the line, as far as anybody could tell
        assert (told is not None or beyond) == (verdict.outcome is UNDECIDED)
        assert told is None or int(told[1]) > BLOCKS


# -- a real gain, asked for exactly ---------------------------------------------------------------------------------

GAIN = {"streams": 4, "prompts": 16, "tokens": 24}


def speculating_world(seed):
    """Prompts differ in how well they are guessed, launches by 2%, steps by 5%."""
    content = Content((0.75, 0.68, 0.62, 0.58), prompt_spread=0.5, drift_per_100_tokens=0.1, eos_mean_tokens=5000)
    noise = Noise(launch_sigma=0.02, step_sigma=0.05)
    return replace(machine_of("small"), contents={"code": content}, noise=noise, seed=seed)


def true_gain(num_worlds):
    """exp of the mean ln(X on / X off) over worlds that no study uses, straight from token counts and walls."""
    gains = []
    for seed in range(10**6, 10**6 + num_worlds):
        walls = {}
        for record in records(speculating_world(seed), blocks=1, **GAIN):
            requests = record.requests
            walls[record.cell.arm] = max(r.done_ns for r in requests) - min(r.sent_ns for r in requests)
            assert {len(r.token_ids) for r in requests} == {GAIN["tokens"]}
        gains.append(log(walls["off"] / walls["on"]))
    return exp(np.mean(gains)), np.std(gains) / sqrt(num_worlds)


def test_a_threshold_that_is_the_truth_is_decided_wrongly_in_at_most_5_percent():
    """Every study is another world with other prompts: what the interval has to hold is more than launches here.

    The threshold is known to a tenth of an interval's half-width, which moves either tail by less than half of itself
    and their sum by next to nothing.
    """
    threshold, error = true_gain(250)
    study = study_of(threshold, BLOCKS, GAIN["streams"])
    seen, reaches = Counter(), []
    for seed in range(100):
        verdict = verdict_of(study, Evidence(map(cell_data, records(speculating_world(seed), blocks=BLOCKS, **GAIN))))
        seen[verdict.outcome] += 1
        reaches.append(log(verdict.ratio.high / verdict.ratio.low) / 2)
    assert error < np.median(reaches) / 10
    assert seen[PASS] + seen[FAIL] <= most_by_chance(100, ALPHA)
    assert max(seen[PASS], seen[FAIL]) <= most_by_chance(100, ALPHA / 2 * 1.5)
