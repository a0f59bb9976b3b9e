"""Every figure of the seed articles, through the function that computes it today (`tests/data/seed_claims.json`)."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any

import pytest

from specprof.analyse import cost, gains
from specprof.analyse.acceptance import acceptance_length
from specprof.analyse.comparisons import above_cause
from specprof.analyse.content import content_effects
from specprof.analyse.evidence import Evidence, contrast
from specprof.analyse.wall import predicted_wall, prefill_time, rate_inflation, throughput
from tests.factory import data, make_running_cell

CLAIMS = {claim["id"]: claim for claim in data("seed_claims.json")["claims"]}

IN_TEST_ROOFLINE = {
    *("roof_B1", "roof_B8", "roof_B27", "roof_B58", "roof_slo20", "roof_cap"),
    *("prefill_32k", "prefill_128k", "chunk_max", "chunk_ttft"),
}


def content_ratio(code: float, prose: float) -> float:
    """X(code) / X(prose) of two measured cells."""
    cells = [make_running_cell(x, tag=tag) for tag, x in (("code", code), ("prose", prose))]
    (effect,) = content_effects(Evidence(cells))
    return effect.throughput_ratio.value or 0.0


def measured_ratio(a: float, b: float) -> float:
    """X(a) / X(b) of two measured cells, as a verdict takes it."""
    over, under = (Evidence([make_running_cell(x)]).series["code", "forced", "off", 4] for x in (a, b))
    return contrast([(over, 1), (under, -1)]).value or 0.0


def aggregate(N: int, L: int, wall_s: float) -> float:
    """N streams of L tokens over a wall."""
    return throughput(N * L, wall_s)


def predicted(L: int, ttft: float, r: float, N: int = 1) -> float:
    """Aggregate of N streams that each read for `ttft` seconds and write L tokens at r tok/s."""
    return aggregate(N, L, predicted_wall(ttft, L, r))


def geometric_cap(a: float) -> float:
    """Longest acceptance length if every position were accepted with chance a, however long the draft."""
    return acceptance_length(sum(a**j for j in range(1, 200)), 1)


def product(v: list[float]) -> float:
    """What independent gains would multiply to: the measurement that leaves no residual."""
    return 1 / (1 + gains.residual(1.0, *v))


def price(c: float, q: float) -> float:
    """Cost of a million effective tokens."""
    return cost.cost_per_million(c, cost.exact(q)).value or 0.0


def price_ratio(over: str, under: str) -> float:
    """One option's price over another's, both claims of the seed."""
    prices = (cost.exact(price(*CLAIMS[name]["inputs"].values())) for name in (over, under))
    return cost.ratio(*prices).value or 0.0


def break_even(cB: float, qA: float, cA: float) -> float:
    """Effective throughput at which B costs per token what A does."""
    return cost.break_even_throughput(cB, cA, cost.exact(qA)).value or 0.0


FORMULAS: dict[str, Callable[..., float]] = {
    **dict.fromkeys(("agg_n1", "agg_n8", "agg_n16"), throughput),
    **dict.fromkeys(("amp_nat", "amp_code", "amp_prose", "amp_off_code", "amp_off_prose"), gains.batching_gain),
    **dict.fromkeys(("prefill_171", "prefill_72"), lambda N, L, v: prefill_time(N * L, v)),
    **dict.fromkeys(("pred_wall_606", "add_72"), predicted_wall),
    **dict.fromkeys(("pred_agg_606", "meas_agg_606"), aggregate),
    **dict.fromkeys(("rep_n1_a", "rep_n1_b"), predicted),
    **dict.fromkeys(("split_stop", "split_content", "split_total", "ratio_606_72", "tok_ratio"), measured_ratio),
    **dict.fromkeys(("spec_code_1", "spec_code_8", "spec_prose_1", "spec_prose_8"), gains.speculation_gain),
    **dict.fromkeys(("gap_off_1", "gap_on_1"), lambda code, prose: content_ratio(code, prose) - 1),
    "gap_off_8": lambda code, prose: log(content_ratio(code, prose)),
    "sumrate_infl": rate_inflation,
    "pred_prose_8": lambda N, L, ttft, r: predicted(L, ttft, r, N),
    **dict.fromkeys(("indep_code", "indep_prose"), product),
    "alpha_cap_prose": geometric_cap,
    **dict.fromkeys(("cost_A", "cost_B"), price),
    "cost_rev": lambda: price_ratio("cost_B", "cost_A") - 1,
    "breakeven_q": break_even,
    "breakeven_share": lambda q, raw: cost.exact(q).scaled(1, raw).value or 0.0,
}


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_claim(name):
    claim: dict[str, Any] = CLAIMS[name]
    assert FORMULAS[name](*claim["inputs"].values()) == pytest.approx(claim["expected"], rel=claim["rel_tol"])


def test_every_claim_is_covered():
    assert set(FORMULAS) | IN_TEST_ROOFLINE == set(CLAIMS)


# -- the claims marked flag or fail: the analysis must object ---------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "measured", "interaction"), [("indep_code", 606.1, 1.144), ("indep_prose", 359.3, 0.723)]
)
def test_batching_and_speculation_are_not_independent(name, measured, interaction):
    left_over = gains.residual(measured, *CLAIMS[name]["inputs"]["v"])
    assert 1 + left_over == pytest.approx(interaction, rel=CLAIMS[name]["rel_tol"])
    assert abs(left_over) > gains.INTERACTION_MARGIN


def test_content_matters_without_speculation_at_eight_streams():
    speeds = CLAIMS["gap_off_8"]["inputs"]
    cells = [make_running_cell(x, tag=tag, block=block) for tag, x in speeds.items() for block in (0, 1)]
    (effect,) = content_effects(Evidence(cells))
    assert effect.only_acceptance == "fail"


@pytest.mark.parametrize("speed_up", [2.176, 1.574])
def test_30_5_percent_cannot_be_a_per_position_probability(speed_up):
    assert above_cause(speed_up, geometric_cap(0.305)) is not None


def test_the_additive_wall_is_an_upper_bound():
    assert predicted_wall(*CLAIMS["add_72"]["inputs"].values()) > 17.77  # measured


def test_the_prose_prediction_is_off_by_its_unprinted_ttft():
    """+3.0% with the code's TTFT; the 0.564 s that the note derives makes it meet the measured 359.3."""
    claim = CLAIMS["pred_prose_8"]["inputs"]
    assert predicted(**claim) / 359.3 - 1 == pytest.approx(0.030, abs=0.001)
    assert predicted(**{**claim, "ttft": 0.564}) == pytest.approx(359.3, rel=1e-3)
