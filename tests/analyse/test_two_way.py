"""The two-way bootstrap (METHOD 5) beside our interval: launches, then prompts, resampled in one study at N = 1."""

from __future__ import annotations

import random
from dataclasses import replace
from math import log, sqrt

import numpy as np
import pytest
from scipy import stats as distributions

from specprof.analyse.evidence import Evidence, contrast
from specprof.columns import cell_data
from specprof.engine.sim import Content, Noise, VirtualEngine, machine_of
from specprof.records import Prompt
from tests.factory import make_cell

BLOCKS, PROMPTS, TOKENS = 4, 32, 64
SPECULATION = {"method": "draft", "num_speculative_tokens": 4}
RESAMPLES = 20_000


@pytest.fixture(scope="module")
def records():
    """One study: prompts that differ in how well they are guessed, launches that differ by 5%."""
    machine = replace(
        machine_of("small"),
        contents={"code": Content((0.75, 0.68, 0.62, 0.58), prompt_spread=0.5, eos_mean_tokens=5000)},
        noise=Noise(launch_sigma=0.05, step_sigma=0.05),
        seed=9,
    )
    suite = {f"p{i}": Prompt(f"p{i}", "code", "en", f"def step_{i}(x):") for i in range(PROMPTS)}
    found = []
    for block in range(BLOCKS):
        order = tuple(random.Random(block).sample(list(suite), PROMPTS))
        for index, speculation in enumerate((None, SPECULATION)):
            cell = make_cell(
                block=block,
                arm="on" if speculation else "off",
                speculative_config=speculation,
                concurrency=1,
                prompt_ids=order,
                max_tokens=TOKENS,
            )
            engine = VirtualEngine(machine, speculation, launch_index=2 * block + index)
            found.append(engine.measure(cell, suite))
    return found


@pytest.fixture(scope="module")
def log_gains(records):
    """ln(seconds off / seconds on) of each prompt in each block, straight from the records. Shape (blocks, prompts)."""
    seconds = {
        (record.cell.arm, record.cell.block, request.prompt_id): (request.done_ns - request.sent_ns) / 1e9
        for record in records
        for request in record.requests
    }
    names = [f"p{i}" for i in range(PROMPTS)]
    return np.array([[log(seconds["off", b, p] / seconds["on", b, p]) for p in names] for b in range(BLOCKS)])


@pytest.fixture(scope="module")
def analytic(records):
    series = Evidence(cell_data(record) for record in records).series
    on, off = (series["code", "forced", arm, 1] for arm in ("on", "off"))
    return contrast([(on, 1), (off, -1)])


def bootstrap(table):
    """Means of ln gain over launches drawn with replacement, and prompts drawn with replacement within them."""
    rng = np.random.default_rng(0)
    launches = rng.multinomial(BLOCKS, np.full(BLOCKS, 1 / BLOCKS), size=RESAMPLES)
    prompts = rng.multinomial(PROMPTS, np.full(PROMPTS, 1 / PROMPTS), size=RESAMPLES)
    return np.einsum("rb,bp,rp->r", launches, table, prompts) / (BLOCKS * PROMPTS)


def parts(table):
    """Squared standard errors of the launches' and the prompts' mean, and what is left per measurement."""
    launches, prompts = table.mean(axis=1), table.mean(axis=0)
    rest = table - launches[:, None] - prompts + table.mean()
    return launches.var(ddof=1) / BLOCKS, prompts.var(ddof=1) / PROMPTS, float((rest**2).mean()) / rest.size


def test_the_bootstrap_is_narrow_by_what_so_few_launches_cost_it(log_gains):
    """A resample of B launches has (B-1)/B of their variance, one of n prompts (n-1)/n; the rest adds once more."""
    launches, prompts, rest = parts(log_gains)
    expected = launches * (BLOCKS - 1) / BLOCKS + prompts * (PROMPTS - 1) / PROMPTS + rest
    error = sqrt(2 / RESAMPLES)  # of a variance
    assert bootstrap(log_gains).var() == pytest.approx(expected, rel=4 * error)


def test_our_interval_is_the_bootstrap_s_widened_by_what_it_is_known_to_lack(log_gains, analytic):
    """Known: the factor above, and normal quantiles where so few launches ask for t. What then still differs: ours
    takes ln of each block's throughput, in which a prompt weighs by the time it takes, the bootstrap the mean ln of its
    prompts; and the ends of the bootstrap's interval are 20,000 draws' quantiles, good to 0.7%.
    """
    launches, prompts, rest = parts(log_gains)
    degrees = (launches + prompts) ** 2 / (launches**2 / (BLOCKS - 1) + prompts**2 / (PROMPTS - 1))
    shrunk = launches * (BLOCKS - 1) / BLOCKS + prompts * (PROMPTS - 1) / PROMPTS + rest
    lacking = distributions.t.ppf(0.975, degrees) / distributions.norm.ppf(0.975) * sqrt((launches + prompts) / shrunk)

    low, high = np.quantile(bootstrap(log_gains), (0.025, 0.975))
    ours = log(analytic.high / analytic.low)
    assert lacking > 1.15, "nothing would be lacking here"
    assert ours / (high - low) == pytest.approx(lacking, rel=0.05)


def test_both_are_about_the_same_gain(log_gains, analytic):
    """ln of a ratio of sums against the mean of ln ratios: they differ by less than half their interval's width."""
    assert log(analytic.value) == pytest.approx(log_gains.mean(), abs=log(analytic.high / analytic.low) / 4)
