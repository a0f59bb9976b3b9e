"""The step-time and acceptance model on planted numbers and on a public table: what went in comes back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprof.analyse.steptime import (
    AcceptanceModel,
    Experts,
    Observation,
    fit_acceptance,
    fit_acceptance_to_lengths,
    fit_step_time,
    tokens_per_engine_step,
)
from tests.running import ROOT

TABLE: dict[str, Any] = json.loads((ROOT / "tests/data/public_tables.json").read_text())["vllm_issue_20780"]


# -- acceptance ------------------------------------------------------------------------------------------------------


def counts(alpha: float, rho: float, positions: int, steps: float) -> tuple[list[float], float]:
    """The counters a server would show if position i held in exactly its share of the cases."""
    chances = [min(1.0, alpha * rho**i) for i in range(positions)]
    return [steps * float(held) for held in np.cumprod(chances)], steps


@settings(deadline=None)
@given(alpha=st.floats(0.1, 0.95), rho=st.floats(0.7, 1.05))
def test_planted_alpha_and_rho_come_back_from_counters(alpha: float, rho: float) -> None:
    found = fit_acceptance([counts(alpha, rho, 3, 1000.0), counts(alpha, rho, 7, 4000.0)])
    assert (found.alpha, found.rho) == pytest.approx((alpha, rho), rel=0.01)
    survived, steps = counts(alpha, rho, 7, 1.0)
    assert list(found.survival(7)) == pytest.approx(survived, abs=0.002 * steps)


def test_a_cell_with_more_steps_weighs_more() -> None:
    # one position: the most likely α is the pooled share, (90 + 100) / (100 + 1000)
    found = fit_acceptance([([90.0], 100.0), ([100.0], 1000.0)])
    assert found.alpha == pytest.approx(190 / 1100)
    assert found.rho == 1.0


def test_acceptance_at_its_ends() -> None:
    assert fit_acceptance([([50.0, 50.0, 50.0], 50.0)]).length(3) == 4.0, "the target drafts for itself"
    assert fit_acceptance([([0.0, 0.0], 50.0)]).length(2) == 1.0, "a draft of random weights"
    with pytest.raises(ValueError, match="no verification step"):
        fit_acceptance([([], 0.0)])


def test_nothing_accepted_at_the_second_position() -> None:
    found = fit_acceptance([([40.0, 0.0], 100.0)])
    assert found.length(2) == pytest.approx(1.4, abs=1e-3)


def test_acceptance_is_not_asked_beyond_the_positions_seen() -> None:
    # S = 0.8, 0.8 * 0.72, so tau(2) = 1 + 0.8 + 0.576
    model = AcceptanceModel(alpha=0.8, rho=0.9, max_draft_tokens=2)
    assert model.length(2) == pytest.approx(2.376)
    with pytest.raises(ValueError, match="K = 3"):
        model.length(3)


def test_lengths_alone_give_the_same_curve() -> None:
    true = AcceptanceModel(alpha=0.75, rho=0.9, max_draft_tokens=7)
    found = fit_acceptance_to_lengths({k: true.length(k) for k in (1, 3, 7)})
    assert found.length(5) == pytest.approx(true.length(5), rel=1e-3)
    with pytest.raises(ValueError, match="outside 1 to 3"):
        fit_acceptance_to_lengths({2: 3.5})


def test_lengths_of_a_draft_whose_first_guesses_never_fail_give_the_curve_they_came_from() -> None:
    """α = 1.2 and ρ = 0.8: positions hold with min(1, 1.2 * 0.8**(i-1)), that is 1, 0.96, 0.768, …"""
    true = AcceptanceModel(alpha=1.2, rho=0.8, max_draft_tokens=7)
    found = fit_acceptance_to_lengths({k: true.length(k) for k in (1, 3, 7)})
    assert found.length(3) == pytest.approx(1 + 1 + 0.96 + 0.96 * 0.768, rel=1e-3)
    assert found.length(5) == pytest.approx(true.length(5), rel=1e-3)


def test_one_length_of_a_draft_that_never_fails_is_an_acceptance_of_one() -> None:
    found = fit_acceptance_to_lengths({4: 5.0})
    assert (found.alpha, found.rho) == (pytest.approx(1.0, abs=1e-6), 1.0)


def test_tokens_per_engine_step_counts_the_step_that_reads() -> None:
    # 13 tokens: one from the prompt, 12 more in 4 steps of 3
    assert tokens_per_engine_step(3.0, 1.0, 13) == pytest.approx(13 / 5)
    # half of the steps carry no draft: 12 tokens in 6 steps of 2 on average
    assert tokens_per_engine_step(3.0, 0.5, 13) == pytest.approx(13 / 7)


# -- step time -------------------------------------------------------------------------------------------------------

EIGHT = ((1, 0), (8, 0), (32, 0), (1, 3), (8, 3), (1, 7), (8, 7), (32, 7))  # METHOD 6
ALL = tuple((n, k) for n in (1, 2, 4, 8, 16, 32) for k in (0, 1, 3, 5, 7))


def planted_time(n: float, k: float, stages: int, experts: Experts | None) -> float:
    """Seconds of a step, written down from METHOD 6 anew: 10 ms fixed, drafts 2 ms and 0.5 ms a token."""
    awake = 0.0
    if experts is not None:
        tokens = n * (k + 1) / min(n, stages)
        awake = experts.total * (1 - (1 - experts.active / experts.total) ** tokens)
    return 0.010 + 0.0001 * awake + 0.0002 * n * (k + 1) + 0.0003 * n + (0.002 + 0.0005 * k if k else 0.0)


def observed(n: int, k: int, tau: float, stages: int, experts: Experts | None) -> Observation:
    throughput = n * tau / planted_time(n, k, stages, experts)
    return Observation("code", f"k{k}", n, float(k), tau, throughput, "draft" if k else "")


@pytest.mark.parametrize(("stages", "experts"), [(1, None), (1, Experts(64, 6)), (3, Experts(64, 6))])
def test_eight_cells_give_the_whole_map(stages: int, experts: Experts | None) -> None:
    model = fit_step_time(
        [observed(n, k, 1 + 0.4 * k, stages, experts) for n, k in EIGHT], stages=stages, experts=experts
    )
    inside = [(n, k) for n, k in ALL if k == 0 or 3 <= k <= 7]
    found = [model.step_time_s(n, k, "draft") for n, k in inside]
    assert found == pytest.approx([planted_time(n, k, stages, experts) for n, k in inside], rel=1e-6)
    assert model.throughput_tok_s(16, 3.0, 5, "draft") == pytest.approx(
        16 * 3.0 / planted_time(16, 5, stages, experts), rel=1e-6
    )


def test_no_cost_is_negative() -> None:
    # a drafted step measured faster than a plain one would ask for a negative draft cost
    cells = [Observation("code", "off", n, 0.0, 1.0, n / 0.010) for n in (1, 8)]
    cells += [Observation("code", "on", n, 4.0, 1.0, n / 0.009, "draft") for n in (1, 8)]
    model = fit_step_time(cells)
    assert min(model.fixed_s, model.per_token_s, model.per_stream_s) >= 0
    assert all(min(cost.fixed_s, cost.per_draft_token_s) >= 0 for cost in model.drafts)


def test_every_drafter_has_its_own_cost() -> None:
    cells = [Observation("code", "off", n, 0.0, 1.0, n / 0.010) for n in (1, 8)]
    for drafter, extra in (("slow", 0.006), ("quick", 0.001)):
        cells += [Observation("code", drafter, n, 3.0, 2.0, n * 2.0 / (0.010 + extra), drafter) for n in (1, 8)]
    model = fit_step_time(cells)
    assert model.step_time_s(4, 3, "slow") == pytest.approx(0.016, rel=1e-6)
    assert model.step_time_s(4, 3, "quick") == pytest.approx(0.011, rel=1e-6)


@pytest.mark.parametrize(
    ("n", "k", "drafter", "what"),
    [
        (33, 0, "", "N = 33"),
        (0.5, 0, "", "N = 0.5"),
        (32, 8, "draft", "K of draft = 8"),
        (8, 2, "draft", "K of draft = 2"),
        (8, 3, "other", "'other' was not among"),
    ],
)
def test_the_model_does_not_extrapolate(n: float, k: float, drafter: str, what: str) -> None:
    model = fit_step_time([observed(n, k, 1 + 0.4 * k, 1, None) for n, k in EIGHT])
    with pytest.raises(ValueError, match=what):
        model.step_time_s(n, k, drafter)


def test_drafts_measured_at_few_streams_say_nothing_of_many() -> None:
    model = fit_step_time([observed(n, k, 1 + 0.4 * k, 1, None) for n, k in ((1, 0), (32, 0), (1, 3), (8, 3))])
    assert model.step_time_s(32) > 0
    with pytest.raises(ValueError, match="N with draft = 32"):
        model.step_time_s(32, 3, "draft")


def test_the_number_of_experts_awake() -> None:
    # two tokens that choose 1 of 4 each: 4 * (1 - (3/4)**2) = 1.75 experts
    assert Experts(4, 1).awake(2) == pytest.approx(1.75)
    with pytest.raises(ValueError, match="5 of 4"):
        Experts(4, 5)


# -- the public table ------------------------------------------------------------------------------------------------


def public(drafter: str, few: tuple[int, ...]) -> list[Observation]:
    """The table's rows at one stream, off and some K: X = 1 / TPOT."""
    off = Observation("mt-bench", "off", 1, 0.0, 1.0, 1e3 / TABLE["tpot_vanilla_ms"])
    rows = zip(TABLE["K"], TABLE[drafter]["AL"], TABLE[drafter]["TPOT_ms"], strict=True)
    on = [Observation("mt-bench", f"k{k}", 1, float(k), al, 1e3 / tpot, drafter) for k, al, tpot in rows if k in few]
    return [off, *on]


@pytest.mark.parametrize(("drafter", "best"), [("E1", 3), ("E3", 4)])
@pytest.mark.parametrize("few", [(2, 7), (2, 5, 7), tuple(TABLE["K"])])
def test_k_star_of_vllm_issue_20780(drafter: str, best: int, few: tuple[int, ...]) -> None:
    measured = {row.draft_tokens: row.throughput_tok_s for row in public(drafter, tuple(TABLE["K"]))}
    assert max(measured, key=measured.__getitem__) == best == TABLE["expect"][f"K*_{drafter}"]

    rows = public(drafter, few)
    model = fit_step_time(rows)
    acceptance = fit_acceptance_to_lengths({int(row.draft_tokens): row.tokens_per_step for row in rows[1:]})
    told = {k: model.throughput_tok_s(1, acceptance.length(k), k, drafter) for k in TABLE["K"]}
    assert max(told, key=told.__getitem__) == best
    assert told == pytest.approx({k: measured[k] for k in TABLE["K"]}, rel=0.05)
