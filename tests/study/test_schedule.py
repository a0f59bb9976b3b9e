"""Schedules: how requests arrive, that every arm gets the same, and that rungs differ by their rate alone."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from statistics import fmean, stdev

import pytest

from specprof.records import Cell, Phase, Role, phase_due
from specprof.study.load import Goodput, Rates
from specprof.study.plan import Plan, make_plan
from specprof.study.reading import parse_study
from specprof.study.schedule import Schedule, open_schedules, rates_of
from tests.factory import make_prompt
from tests.running import ROOT

PROMPTS = {"code": tuple(make_prompt(f"code-{i}", text=f"def f{i}():") for i in range(7))}
NUM_GAPS = 40_000  # about: 400 s at 100 requests per second
FOUR_SIGMA = 4.0  # one seed in 16,000 would fail by chance, and the seed is fixed


def rates(**changes: object) -> Rates:
    said = {"kind": "rates", "rates": (100.0,), "duration": 300.0, "warmup": 10.0, "timeout": 90.0, **changes}
    return Rates.model_validate(said)


def drawn(load: Rates | Goodput, seed: str = "0") -> list[Schedule]:
    (ladder,) = open_schedules(load, PROMPTS, seed, max_tokens=32)
    return ladder


def gaps(schedule: Schedule) -> list[float]:
    return [later - earlier for earlier, later in pairwise((0.0, *schedule.arrivals.due_s))]


# -- the distribution -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("burstiness", "expected"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5)])
def test_gamma_gaps_have_the_rate_and_the_variation_that_their_burstiness_says(
    burstiness: float, expected: float
) -> None:
    """A Gamma of shape k has the coefficient of variation 1/sqrt(k).

    Of n gaps the mean is off by a relative cv/sqrt(n) (one standard deviation). For the coefficient itself the delta
    method gives the relative variance ((kurtosis - 1)/4 - skewness*cv + cv²)/n, which with the Gamma's kurtosis
    3 + 6/k, skewness 2/sqrt(k) and cv = 1/sqrt(k) is (1 + 1/k)/(2n).
    """
    (schedule,) = drawn(rates(arrivals="gamma", burstiness=burstiness))
    seen = gaps(schedule)
    n = len(seen)
    assert n == pytest.approx(NUM_GAPS, rel=0.1)
    assert fmean(seen) == pytest.approx(1 / 100, rel=FOUR_SIGMA * expected / sqrt(n))
    variation = stdev(seen) / fmean(seen)
    assert variation == pytest.approx(expected, rel=FOUR_SIGMA * sqrt((1 + 1 / burstiness) / (2 * n)))


def test_poisson_gaps_are_exponential() -> None:
    """Of an exponential the share of gaps longer than t means is exp(-t); a share p of n is off by sqrt(p(1-p)/n)."""
    (schedule,) = drawn(rates())
    seen = gaps(schedule)
    for means, share in ((0.5, 0.606531), (1.0, 0.367879), (3.0, 0.049787)):
        longer = sum(gap > means / 100 for gap in seen) / len(seen)
        assert longer == pytest.approx(share, abs=FOUR_SIGMA * sqrt(share * (1 - share) / len(seen)))
    assert schedule.arrivals.kind == "poisson"


def test_constant_gaps_are_constant() -> None:
    (schedule,) = drawn(rates(arrivals="constant", rates=(4.0,), duration=10.0, warmup=1.0, timeout=1.0))
    assert schedule.arrivals.due_s == pytest.approx([0.25 * i for i in range(1, 48)])


# -- rungs, arms, blocks ----------------------------------------------------------------------------------------------


def test_every_rate_is_the_same_draw_only_faster() -> None:
    slow, fast = drawn(rates(rates=(2.0, 8.0), arrivals="gamma", burstiness=0.5))
    assert len(fast.arrivals.due_s) > len(slow.arrivals.due_s)
    assert [4 * at for at in fast.arrivals.due_s[: len(slow.arrivals.due_s)]] == pytest.approx(slow.arrivals.due_s)
    assert fast.prompts[: len(slow.prompts)] == slow.prompts


def test_prompts_come_in_turns_and_another_seed_is_another_schedule() -> None:
    (schedule,), (other,) = drawn(rates()), drawn(rates(), "1")
    assert len(schedule.prompts) == len(schedule.arrivals.due_s)
    assert {prompt.id for prompt in schedule.prompts[:7]} == {f"code-{i}" for i in range(7)}
    assert schedule.prompts[:7] == schedule.prompts[7:14]
    assert schedule.arrivals.due_s != other.arrivals.due_s


def test_the_load_is_kept_up_for_as_long_as_a_measured_request_may_take() -> None:
    (schedule,) = drawn(rates(warmup=10.0, duration=20.0, timeout=30.0))
    arrivals = schedule.arrivals
    assert list(arrivals.due_s) == sorted(arrivals.due_s)
    assert 59 < arrivals.due_s[-1] < 60
    phases = [phase_due(arrivals, at) for at in arrivals.due_s]
    assert [phases.count(phase) / 100 for phase in (Phase.WARMUP, Phase.MEASURED, Phase.FILL)] == pytest.approx(
        [10, 20, 30], rel=0.2
    )
    assert phase_due(arrivals, 10.0) is Phase.MEASURED
    assert phase_due(arrivals, 30.0) is Phase.FILL


def test_a_goodput_search_can_come_to_every_place_that_its_halvings_lead_to() -> None:
    """Three halvings of [1, 16] by ratio: seven places, a factor of 16^(1/8) = sqrt(2) apart."""
    load = Goodput.model_validate({"kind": "goodput", "between": (1.0, 16.0), "rungs": 3, "duration": 60.0})
    root = 2**0.5
    assert rates_of(load) == pytest.approx([root, 2, 2 * root, 4, 4 * root, 8, 8 * root])


STUDY = f"""\
study: served
engine: {{kind: sim, preset: small}}
arms: {{"off": {{}}, "on": {{speculative_config: {{method: draft, num_speculative_tokens: 3}}}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}, {{tag: json, suite: {ROOT}/prompts/json.jsonl}}]
protocols:
  served: {{stop: natural, max_tokens: 32, load: {{kind: rates, rates: [1, 2], duration: 30, warmup: 5}}}}
prompts: 4
blocks: 2
"""


def open_cells(plan: Plan, **wanted: object) -> list[Cell]:
    cells = [cell for cell in plan.cells if cell.role is Role.OPEN]
    return [cell for cell in cells if all(getattr(cell, name) == value for name, value in wanted.items())]


def test_both_arms_get_the_same_instants_and_prompts() -> None:
    plan = make_plan(parse_study(STUDY, "served.yaml"))
    for block in (0, 1):
        off, on = (open_cells(plan, arm=arm, block=block) for arm in ("off", "on"))
        assert len(off) == 4
        assert [(c.tag, c.arrivals, c.prompt_ids) for c in off] == [(c.tag, c.arrivals, c.prompt_ids) for c in on]
    assert len({cell.key for cell in open_cells(plan)}) == 16


def test_another_block_is_another_draw_and_so_is_another_content() -> None:
    plan = make_plan(parse_study(STUDY, "served.yaml"))
    due = {
        cell.arrivals.due_s for cell in open_cells(plan, arm="off") if cell.arrivals and cell.arrivals.rate_per_s == 1
    }
    assert len(due) == 4


def test_the_plan_is_the_same_every_time() -> None:
    assert make_plan(parse_study(STUDY, "served.yaml")) == make_plan(parse_study(STUDY, "served.yaml"))
