"""Public tables replayed: whose K is best, whose printed speed-ups are wrong, whose counters agree with themselves.

Every number is from `tests/data/public_tables.json`, which names its sources.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specprof.analyse import gains
from specprof.analyse.audit import Audit, Claim, Kind, audit
from specprof.analyse.audit.claim import DraftLengths, Factorial, SpeculationClaim
from specprof.analyse.audit.factorials import (
    batching_off,
    batching_on,
    interaction,
    speculation_at_n,
    speculation_at_one,
)
from specprof.analyse.audit.tables import best_draft_length, speedups, step_costs, wrong_speedups

DATA = json.loads((Path(__file__).parents[1] / "data" / "public_tables.json").read_text(encoding="utf-8"))
ISSUE = DATA["vllm_issue_20780"]


def draft_lengths(name: str) -> DraftLengths:
    table = ISSUE[name]
    return DraftLengths(
        draft_tokens=tuple(ISSUE["K"]),
        tpot_s=tuple(ms / 1000 for ms in table["TPOT_ms"]),
        tpot_off_s=ISSUE["tpot_vanilla_ms"] / 1000,
        acceptance_lengths=tuple(table["AL"]),
        printed_speedups=tuple(table.get("printed_speedup", ())),
        name=name,
    )


def kinds(found: Audit, name: str) -> set[Kind]:
    return {finding.kind for finding in found.findings if finding.name == name}


@pytest.mark.parametrize("name", ["E1", "E3"])
def test_best_draft_length(name: str) -> None:
    assert best_draft_length(draft_lengths(name)) == ISSUE["expect"][f"K*_{name}"]


def test_printed_speedups_that_are_not_tpot_ratios_are_flagged() -> None:
    table = draft_lengths("E1")
    assert list(wrong_speedups(table)) == ISSUE["expect"]["audit_bad_rows_E1"]
    found = audit(Claim(draft_lengths=(table, draft_lengths("E3"))))
    flagged = [finding.evidence for finding in found.of(Kind.IMPOSSIBLE)]
    assert [f"K = {k}" in text for k, text in zip((4, 5, 6), flagged, strict=True)] == [True] * 3
    assert found.of(Kind.UNSTATED) == ()  # a table is not a run: nobody asks it for its prompt length


def test_speed_peaks_before_acceptance_length_does_and_steps_grow_dearer() -> None:
    table = draft_lengths("E1")
    (told,) = [finding for finding in audit(Claim(draft_lengths=(table,))).findings if finding.name == "draft length"]
    assert "K = 7, speed does not" in told.evidence
    costs = step_costs(table)
    assert costs == sorted(costs)
    assert costs[1] == pytest.approx(2.29 / (7.07 / 4.29), rel=1e-9)


def test_no_draft_length_is_best_where_none_pays() -> None:
    assert best_draft_length(DraftLengths((1, 2), (0.02, 0.03), 0.01)) == 0


def test_a_speedup_above_the_acceptance_length_is_impossible() -> None:
    table = DraftLengths((2,), (0.003,), 0.009, acceptance_lengths=(2.0,))
    assert speedups(table) == pytest.approx((3.0,))
    assert kinds(audit(Claim(draft_lengths=(table,))), "speed-up") == {Kind.IMPOSSIBLE}


def counters(row: dict[str, Any]) -> SpeculationClaim:
    return SpeculationClaim(
        method="suffix",
        draft_tokens=row["draft_tokens"] // row["drafts"],
        acceptance_length=row["AL"],
        survival=tuple(row["survival"]),
        num_steps=row["drafts"],
        num_drafted=row["draft_tokens"],
        num_accepted=row["accepted"],
    )


@pytest.mark.parametrize(("name", "length"), [("SpecBench_K10", 3.358), ("MTBench_K10", 3.64)])
def test_counters_of_pr_26498_give_the_printed_acceptance_length(name: str, length: float) -> None:
    said = counters(DATA["vllm_pr_26498"][name])
    found = audit(Claim(speculation=said))
    assert said.draft_tokens == 10
    assert found.rebuilt.acceptance_length == pytest.approx(length, abs=0.002)  # METHOD 1: 3.358
    assert kinds(found, "survival") == {Kind.REBUILT}
    assert found.objections == ()


def test_acceptance_rate_of_pr_26498() -> None:
    found = audit(Claim(speculation=counters(DATA["vllm_pr_26498"]["SpecBench_K10"])))
    assert found.rebuilt.acceptance_rate == pytest.approx(0.2358, abs=5e-5)  # METHOD 1


def test_survival_that_does_not_sum_to_the_acceptance_length_is_impossible() -> None:
    row = {
        **DATA["vllm_pr_26498"]["SpecBench_K10"],
        "survival": [0.71, 0.5, 0.36, 0.26, 0.18, 0.13, 0.1, 0.07, 0.04, 0.3],
    }
    assert Kind.IMPOSSIBLE in kinds(audit(Claim(speculation=counters(row))), "survival")


def pr_48892(name: str) -> Audit:
    row = DATA["vllm_pr_48892"]["GSM8K_c64"][name]
    said = SpeculationClaim(
        "mtp", draft_tokens=int(name[3:]), acceptance_length=row["AL"], survival=tuple(row.get("survival", ()))
    )
    return audit(
        Claim(
            concurrency=64,
            throughput_tok_s=row["tok_s"],
            tpot_s=row["tpot_ms"] / 1000,
            itl_s=row["itl_ms"] / 1000,
            content="gsm8k",
            speculation=said,
        )
    )


def test_pr_48892_survival_sums_to_its_acceptance_length() -> None:
    assert kinds(pr_48892("MTP8"), "survival") == {Kind.REBUILT}


@pytest.mark.parametrize(("name", "per_chunk"), [("MTP1", 22.4 / 37.18), ("MTP8", 159.6 / 27.48)])
def test_pr_48892_itl_is_not_tpot_times_acceptance_length(name: str, per_chunk: float) -> None:
    """TPOT must be ITL / tokens per step: 0.60 tokens in a chunk (AL 1.84), and 5.81 (AL 4.4), are neither."""
    (objection,) = [finding for finding in pr_48892(name).findings if finding.name == "step interval"]
    assert objection.kind is Kind.CAUTION  # whether these are means is not said
    assert f"{per_chunk:.3g}" in objection.evidence


@pytest.mark.parametrize(("name", "n_eff"), [("MTP1", 61.2), ("MTP8", 59.0)])
def test_pr_48892_throughput_and_tpot_agree_on_the_streams(name: str, n_eff: float) -> None:
    """1646.15 · 0.03718 and 2148.42 · 0.02748, of 64."""
    assert pr_48892(name).rebuilt.effective_concurrency == pytest.approx(n_eff, abs=0.1)


FACTORIALS = {name: row for name, row in DATA["pp_factorials"].items() if isinstance(row, list)}


@pytest.mark.parametrize("name", FACTORIALS)
def test_pipeline_factorials(name: str) -> None:
    off_1, off_n, on_1, on_n = FACTORIALS[name]
    table = Factorial(name, 8, off_1, off_n, on_1, on_n)
    assert batching_off(table) == pytest.approx(off_n / off_1)
    assert batching_on(table) == pytest.approx(on_n / on_1)
    assert speculation_at_one(table) == pytest.approx(on_1 / off_1)
    assert speculation_at_n(table) == pytest.approx(on_n / off_n)
    between = interaction(table)
    assert between == pytest.approx((on_n * off_1) / (off_n * on_1))
    assert between is not None
    multiplies = abs(between - 1) <= gains.INTERACTION_MARGIN
    assert kinds(audit(Claim(factorials=(table,))), "independent gains") == (set() if multiplies else {Kind.CAUTION})


def test_the_two_pipelines_differ_in_whether_their_gains_multiply() -> None:
    """1.234 (speculation loses at both, less so at 8) and 0.988."""
    found = [interaction(Factorial(name, 8, *row)) for name, row in FACTORIALS.items()]
    assert found == pytest.approx([1.2340, 0.9884], abs=0.0005)
