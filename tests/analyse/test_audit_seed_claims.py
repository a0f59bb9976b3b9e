"""Every figure of seed 000 that an auditor can recompute, and every claim of it that an auditor must not let pass.

Inputs, expected values and tolerances are `tests/data/seed_claims.json`'s. The claims below are put the way their
author published them; no rule of the auditor knows these numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import inf, log
from pathlib import Path
from typing import Any

import pytest

from specprof.analyse import gains, wall
from specprof.analyse.audit import Audit, Claim, Finding, Kind, Status, audit, compare
from specprof.analyse.audit.claim import Factorial, Line, Says, SpeculationClaim
from specprof.analyse.audit.factorials import independent_prediction, interaction
from specprof.analyse.audit.lines import line_ratio
from specprof.analyse.audit.speculation import per_position_cap, shortest_draft
from specprof.analyse.results import Outcome
from specprof.analyse.stats import equivalent
from specprof.records import Stop

DATA = json.loads((Path(__file__).parents[1] / "data" / "seed_claims.json").read_text(encoding="utf-8"))
CLAIMS = {row["id"]: row for row in DATA["claims"]}
VECTORS = {row["id"]: row for row in DATA["verdict_vectors"]}
OBJECTED = {row["id"] for row in DATA["claims"] if row["verdict"] in ("flag", "fail")}
SEED_OF_SERVICE = {"003", "004"}  # their claims are rooflines and costs: tests/analyse of those floors

CODE = Factorial("code", 8, off_1=53.0, off_n=199.8, on_1=140.6, on_n=606.1, acceptance_rate=0.689)
PROSE = Factorial("zh-prose", 8, off_1=52.3, off_n=228.3, on_1=113.8, on_n=359.3, acceptance_rate=0.305)
# The seed's only repeat, of code at N = 1: throughput 140.55 and 133.27, decode speed 143.01 and 145.24 [chapter 6].
NOISE_OF_ONE = abs(log(140.55 / 133.27)) / 2**0.5
NOISE_OF_DECODING = abs(log(145.24 / 143.01)) / 2**0.5


def named(found: Audit, name: str, *kinds: Kind) -> list[Finding]:
    return [finding for finding in found.findings if finding.name == name and (not kinds or finding.kind in kinds)]


def _run(inputs: Mapping[str, Any]) -> Audit:
    return audit(Claim(concurrency=1, output_tokens=inputs["tok"], wall_s=inputs["wall_s"]))


def _streams(inputs: Mapping[str, Any], **said: Any) -> Audit:
    n, length = int(inputs.get("N", 1)), inputs["L"]
    return audit(Claim(concurrency=n, output_tokens_per_request=length, stop=Stop.FORCED, **said))


def _batching(inputs: Mapping[str, Any]) -> float:
    return gains.batching_gain(inputs["x8"], inputs["x1"])


def _prefill(inputs: Mapping[str, Any]) -> float | None:
    claim = Claim(concurrency=inputs["N"], prompt_tokens=inputs["L"], prefill_speed_tok_s=inputs["v"])
    return audit(claim).rebuilt.reading_s


def _predicted_throughput(inputs: Mapping[str, Any]) -> float | None:
    return _streams(inputs, ttft_s=inputs["ttft"], decode_speed_tok_s=inputs["r"]).rebuilt.predicted_throughput_tok_s


REBUILD: Mapping[str, Callable[[Mapping[str, Any]], float | None]] = {
    "tok/wall": lambda i: _run(i).rebuilt.throughput_tok_s,
    "X8/X1": _batching,
    "N*L/v": _prefill,
    "ttft+L/r": lambda i: _streams(i, ttft_s=i["ttft"], decode_speed_tok_s=i["r"]).rebuilt.predicted_wall_s,
    "N*L/wall": lambda i: _streams(i, wall_s=i["wall"]).rebuilt.throughput_tok_s,
    "L/(ttft+L/r)": _predicted_throughput,
    "N*L/(ttft+L/r)": _predicted_throughput,
    "ratio": lambda i: i["a"] / i["b"],
    "on/off": lambda i: gains.speculation_gain(i["on"], i["off"]),
    "ratio-1": lambda i: i["code"] / i["prose"] - 1,
    "sum/wall": lambda i: wall.rate_inflation(i["sum"], i["wall"]),
    "prefill+L/r": lambda i: wall.predicted_wall(i["prefill"], i["L"], i["r"]),
    "off1*batch_off*spec1": lambda i: i["v"][0] * i["v"][1] * i["v"][2],
    "ln(code/prose)": lambda i: log(i["code"] / i["prose"]),
    "1/(1-a)": lambda i: per_position_cap(i["a"]),
}


@pytest.mark.parametrize("row", [row for row in CLAIMS.values() if row["source"] == "000"], ids=lambda row: row["id"])
def test_every_figure_of_the_seed_comes_back(row: Mapping[str, Any]) -> None:
    assert REBUILD[row["formula"]](row["inputs"]) == pytest.approx(row["expected"], rel=row["rel_tol"])


def test_no_claim_to_object_to_is_forgotten() -> None:
    assert {"pred_prose_8", "add_72", "indep_code", "indep_prose", "gap_off_8", "alpha_cap_prose"} == OBJECTED
    assert all(row["source"] in {"000", *SEED_OF_SERVICE} for row in CLAIMS.values())


# -- flags and failures: the auditor must object ---------------------------------------------------------------------


def test_pred_prose_8_a_borrowed_ttft_leaves_time_unaccounted_for() -> None:
    row = CLAIMS["pred_prose_8"]["inputs"]
    found = _streams(row, ttft_s=row["ttft"], decode_speed_tok_s=row["r"], throughput_tok_s=359.3)
    (objection,) = named(found, "time missing", Kind.CAUTION)
    implied = 8 * 512 / 359.3 - 512 / 47.25  # wall less writing, what the note of the row calls 0.564 s
    assert implied == pytest.approx(0.564, abs=0.001)
    assert "564 ms" in objection.evidence
    assert found.rebuilt.prediction_error == pytest.approx(0.030, abs=0.001)


def test_the_606_run_adds_up_and_is_not_objected_to() -> None:
    claim = Claim(
        concurrency=8,
        output_tokens_per_request=512,
        wall_s=6.76,
        ttft_s=0.23,
        decode_speed_tok_s=79.45,
        stop=Stop.FORCED,
        max_tokens=512,
        content="code",
        speculation=SpeculationClaim("mtp"),
    )
    found = audit(claim)
    assert found.objections == ()
    assert found.rebuilt.prediction_error == pytest.approx(0.0128, abs=0.0005)  # METHOD 3's row: pred/meas-1=+1.28%


def long_prompts() -> Audit:
    return audit(
        Claim(
            concurrency=8,
            prompt_tokens=5634,
            throughput_tok_s=72.03,
            wall_s=17.77,
            prefill_speed_tok_s=3005,
            decode_speed_tok_s=47.25,
            stop=Stop.NATURAL,
        )
    )


def test_add_72_the_additive_model_is_an_upper_bound() -> None:
    found = long_prompts()
    row = CLAIMS["add_72"]
    assert found.rebuilt.predicted_wall_s == pytest.approx(row["expected"], rel=row["rel_tol"])
    (objection,) = named(found, "additive wall", Kind.CAUTION)
    assert "upper bound" in objection.evidence
    assert "17.77 s" in objection.evidence


@pytest.mark.parametrize(("row", "share"), [("prefill_171", 0.330), ("prefill_72", 0.844)])
def test_reading_shares_of_the_seed_and_the_caution_over_30_percent(row: str, share: float) -> None:
    inputs = CLAIMS[row]["inputs"]
    assert f"{share:.3f}" in CLAIMS[row]["note"]
    wall_s = {"prefill_171": 2.84, "prefill_72": 17.77}[row]
    claim = Claim(
        concurrency=inputs["N"],
        prompt_tokens=inputs["L"],
        prefill_speed_tok_s=inputs["v"],
        wall_s=wall_s,
        output_tokens=486,
    )
    found = audit(claim)
    assert found.rebuilt.prefill_share == pytest.approx(share, abs=0.0006)
    assert named(found, "prefill share", Kind.CAUTION)


@pytest.mark.parametrize(("table", "row", "factor"), [(CODE, "indep_code", 1.144), (PROSE, "indep_prose", 0.723)])
def test_independence_of_batching_and_speculation_is_contradicted(table: Factorial, row: str, factor: float) -> None:
    assert independent_prediction(table) == pytest.approx(CLAIMS[row]["expected"], rel=CLAIMS[row]["rel_tol"])
    assert interaction(table) == pytest.approx(factor, abs=0.0015)  # METHOD 4: 1.144 and 0.723
    said = audit(Claim(factorials=(table,), says=(Says.GAINS_ARE_INDEPENDENT,)))
    unsaid = audit(Claim(factorials=(table,)))
    assert named(said, "independent gains", Kind.IMPOSSIBLE)
    assert named(unsaid, "independent gains", Kind.CAUTION)


def test_independent_gains_are_let_pass() -> None:
    table = Factorial("code", 8, off_1=50.0, off_n=200.0, on_1=100.0, on_n=404.0)  # I = 1.01
    assert audit(Claim(factorials=(table,), says=(Says.GAINS_ARE_INDEPENDENT,))).objections == ()


@pytest.mark.parametrize("says", [(), (Says.GAINS_ARE_INDEPENDENT,)])
def test_an_interaction_that_the_noise_leaves_open_is_neither_let_pass_nor_refuted(says: tuple[Says, ...]) -> None:
    """I = (156 / 75) / (100 / 50) = 1.04, and four figures of 10% noise make its ln uncertain by 20%:
    90% of it is 1.04 · e^(±1.645 · 0.2) = 0.75 to 1.45. METHOD 4: multiply only if that lies inside ±5%.
    """
    table = Factorial("code", 8, off_1=50.0, off_n=100.0, on_1=75.0, on_n=156.0)
    found = audit(Claim(factorials=(table,), says=says, noise=0.10))
    assert not named(found, "interaction", Kind.REBUILT)
    assert not named(found, "independent gains", Kind.IMPOSSIBLE)
    (objection,) = named(found, "independent gains", Kind.CAUTION)
    assert "interaction 1.04× [0.75×, 1.45×]: with the stated noise it is undecided" in objection.evidence


def test_an_interaction_far_from_one_is_refuted_whatever_the_noise_stated() -> None:
    """I = 2: ln 2 - 1.645 · 0.2 = 0.36, beyond ln 1.05."""
    table = Factorial("code", 8, off_1=50.0, off_n=100.0, on_1=50.0, on_n=200.0)
    found = audit(Claim(factorials=(table,), says=(Says.GAINS_ARE_INDEPENDENT,), noise=0.10))
    (objection,) = named(found, "independent gains", Kind.IMPOSSIBLE)
    assert "interaction 2.00× [1.44×, 2.78×]" in objection.evidence


def test_an_interaction_that_little_noise_holds_within_five_percent_may_be_multiplied() -> None:
    """I = 1.01, four figures of 0.5%: 1.01 · e^(±1.645 · 0.01) = 0.99 to 1.03."""
    table = Factorial("code", 8, off_1=50.0, off_n=200.0, on_1=100.0, on_n=404.0)
    found = audit(Claim(factorials=(table,), says=(Says.GAINS_ARE_INDEPENDENT,), noise=0.005))
    (told,) = named(found, "interaction", Kind.REBUILT)
    assert "interaction 1.01× [0.99×, 1.03×], within ±5%" in told.evidence


def test_content_matters_without_speculation_at_eight_but_not_at_one() -> None:
    found = audit(Claim(factorials=(CODE, PROSE), says=(Says.CONTENT_NEEDS_SPECULATION,)))
    (objection,) = named(found, "content without speculation", Kind.IMPOSSIBLE)
    assert "N = 8" in objection.evidence
    assert "-0.133" in objection.evidence  # METHOD 10
    (passed,) = named(found, "content without speculation", Kind.REBUILT)
    assert "N = 1" in passed.evidence


def test_with_the_seed_s_noise_content_is_undecided_at_one_and_fails_at_eight() -> None:
    """The tost vectors: decode speeds at N = 1 (54.04, 52.66), throughput at N = 8, noise of the repeated speed."""
    one = Factorial("code", 8, off_1=54.04, off_n=199.8)
    other = Factorial("zh-prose", 8, off_1=52.66, off_n=228.3)
    found = audit(Claim(factorials=(one, other), says=(Says.CONTENT_NEEDS_SPECULATION,), noise=NOISE_OF_DECODING))
    (undecided,) = named(found, "content without speculation", Kind.CAUTION)
    (failed,) = named(found, "content without speculation", Kind.IMPOSSIBLE)
    assert "N = 1" in undecided.evidence
    assert "undecided" in undecided.evidence
    assert "N = 8" in failed.evidence


@pytest.mark.parametrize("row", ["tost_off_1", "tost_off_8"])
def test_the_equivalence_vectors(row: str) -> None:
    vector = VECTORS[row]
    assert vector["se"] == pytest.approx(2**0.5 * NOISE_OF_DECODING, abs=1e-5)
    assert vector["margin"] == pytest.approx(log(1 + gains.INTERACTION_MARGIN), abs=1e-5)
    outcome, interval = equivalent(vector["log_gap"], vector["se"], inf, margin=gains.INTERACTION_MARGIN)
    assert outcome == vector["verdict"]
    assert [interval.low, interval.high] == pytest.approx(vector["ci90"], abs=1e-4)


def test_an_acceptance_rate_that_cannot_be_a_per_position_probability() -> None:
    found = audit(Claim(factorials=(PROSE,)))
    at_one, at_eight = named(found, "acceptance rate")
    assert "1.44" in at_one.evidence  # METHOD 10: 1/(1-0.305) = 1.44 < 2.18
    assert "K ≥ 4" in at_one.evidence  # the row's note: K >= 4 needed at N = 1
    assert "1.57×" in at_eight.evidence
    assert shortest_draft(2.176, 0.305) == 4
    assert shortest_draft(2.176, 0.0) is None
    called = audit(Claim(factorials=(PROSE,), says=(Says.ACCEPTANCE_IS_PER_POSITION,)))
    assert {finding.kind for finding in named(called, "acceptance rate")} == {Kind.IMPOSSIBLE}


def test_the_same_rate_with_its_k_is_let_pass() -> None:
    said = SpeculationClaim("mtp", draft_tokens=4, acceptance_rate=0.305, speedup=2.176)  # 1 + 4 · 0.305 = 2.22
    assert not named(audit(Claim(speculation=said)), "acceptance rate", Kind.CAUTION, Kind.IMPOSSIBLE)
    too_short = SpeculationClaim("mtp", draft_tokens=3, acceptance_rate=0.305, speedup=2.176)  # 1.915
    assert named(audit(Claim(speculation=too_short)), "acceptance rate", Kind.IMPOSSIBLE)


def test_step_times_agree_at_eight_and_not_at_one() -> None:
    """METHOD 10: 49.6 and 49.4 ms at N = 8, 26.7 and 19.5 ms at N = 1, so other prompts."""
    (found,) = named(audit(Claim(factorials=(CODE, PROSE))), "step time")
    for told in ("K = 4", "49.6 ms", "49.4 ms", "26.7 ms", "19.5 ms", "prompts"):
        assert told in found.evidence + found.instead


# -- verdicts --------------------------------------------------------------------------------------------------------

LINES = {
    "v_2.84": Line(3.0, 171.2, 60.3, "natural", NOISE_OF_DECODING, NOISE_OF_ONE, says="fail"),
    "v_3.16": Line(3.0, 359.3, 113.8, "prose", NOISE_OF_DECODING, NOISE_OF_ONE, says="pass"),
    "v_4.31": Line(3.0, 606.1, 140.6, "code", NOISE_OF_DECODING, NOISE_OF_ONE, says="pass"),
}


@pytest.mark.parametrize("row", LINES)
def test_the_verdict_vectors(row: str) -> None:
    """σ ≈ 3.8% is the noise of the single stream, repeated once; eight streams have the decode speed's own 1.1%."""
    vector, line = VECTORS[row], LINES[row]
    assert abs(NOISE_OF_ONE - 0.038) < 0.0005
    ratio = line_ratio(line)
    assert ratio.value == pytest.approx(vector["ratio"], abs=0.001)
    assert [ratio.low, ratio.high] == pytest.approx(vector["ci95"], abs=0.0051)
    assert Outcome.of(ratio, vector["thr"]) == Outcome(vector["verdict"])


def test_both_verdicts_near_three_are_undecided_and_the_third_stands() -> None:
    found = audit(Claim(lines=tuple(LINES.values())))
    natural, prose = named(found, "verdict", Kind.CAUTION)
    assert "undecided, not 'fail'" in natural.evidence
    assert "undecided, not 'pass'" in prose.evidence
    (code,) = named(found, "verdict", Kind.REBUILT)
    assert code.evidence.endswith("pass")


def test_without_noise_nothing_is_decided_and_a_wrong_verdict_is_impossible() -> None:
    (bare,) = named(audit(Claim(lines=(Line(3.0, 606.1, 140.6, says="pass"),))), "verdict")
    assert bare.kind is Kind.CAUTION
    (wrong,) = named(audit(Claim(noise=0.01, lines=(Line(3.0, 606.1, 140.6, says="fail"),))), "verdict")
    assert wrong.kind is Kind.IMPOSSIBLE


# -- the issue's own example, rates, several claims ------------------------------------------------------------------


def test_the_shown_example_says_what_it_must() -> None:
    claim = Claim(concurrency=8, prompt_tokens=352, output_tokens=486, wall_s=2.84, prefill_speed_tok_s=3005)
    found = audit(claim)
    told = " ".join(f"{finding.name} {finding.evidence} {finding.instead}" for finding in found.findings)
    for words in ("33% of the wall was reading", "about 61 tokens a request", "short natural stops likely"):
        assert words in told
    assert "not a decode figure" in told
    assert "throughput 171 tok/s" in told
    unstated = {finding.name for finding in found.of(Kind.UNSTATED)}
    assert {"stop rule", "content", "speculation", "prefix cache", "repeats", "temperature"} <= unstated
    assert [answer.status for answer in found.checklist] == [
        Status.SUSPICIOUS,
        Status.SUSPICIOUS,
        Status.NOT_STATED,
        Status.NOT_STATED,
        Status.ANSWERED,
    ]


def test_a_sum_of_rates_is_not_an_aggregate() -> None:
    row = CLAIMS["sumrate_infl"]["inputs"]
    found = audit(Claim(concurrency=16, cap=8, throughput_tok_s=row["wall"], sum_of_rates_tok_s=row["sum"]))
    (objection,) = named(found, "rate inflation", Kind.CAUTION)
    assert "2.09×" in objection.evidence
    assert named(found, "concurrency", Kind.CAUTION)
    printed = audit(Claim(concurrency=16, throughput_tok_s=row["sum"], sum_of_rates_tok_s=row["sum"]))
    assert printed.checklist[-1].status is Status.SUSPICIOUS


def seed_runs() -> list[Audit]:
    common: dict[str, Any] = {"concurrency": 8, "speculation": SpeculationClaim("mtp"), "temperature": 0.0}
    claims = (
        Claim(name="qa", throughput_tok_s=171.2, stop=Stop.NATURAL, content="zh", **common),
        Claim(name="prose", throughput_tok_s=359.3, stop=Stop.FORCED, content="zh", **common),
        Claim(name="code", throughput_tok_s=606.1, stop=Stop.FORCED, content="code", **common),
    )
    return [audit(claim) for claim in claims]


def test_two_cuts_split_a_ratio_of_two_causes() -> None:
    found = {finding.name: finding for finding in compare(seed_runs())}
    assert found["stop-rule cut"].evidence.endswith("= 2.10×: only stop rule differs")  # METHOD 4: 2.10 · 1.69 = 3.54
    assert "1.69×" in found["content cut"].evidence
    mixed = found["mixed causes"]
    assert "3.54×" in mixed.evidence
    assert "stop rule 2.10×, then content 1.69×" in mixed.instead


def test_a_ratio_of_two_causes_without_a_middle_asks_for_one() -> None:
    short = audit(Claim(name="short", throughput_tok_s=606.1, stop=Stop.FORCED, prompt_tokens=30))
    long = audit(Claim(name="long", throughput_tok_s=72.03, stop=Stop.NATURAL, prompt_tokens=5634))
    (found,) = compare([short, long])
    assert "8.41×" in found.evidence
    assert "Change one at a time: stop rule, prompt length" in found.instead


def test_more_streams_without_more_throughput_point_at_a_cap() -> None:
    runs = [audit(Claim(concurrency=n, throughput_tok_s=x)) for n, x in ((8, 171.2), (16, 171.9))]
    (found,) = [finding for finding in compare(runs) if finding.kind is Kind.CAUTION]
    assert "cap" in found.evidence
