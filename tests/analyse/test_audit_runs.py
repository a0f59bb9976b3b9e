"""Single rules of the auditor: what a run's own parts contradict."""

from __future__ import annotations

from typing import Any

import pytest

from specprof.analyse.audit import Audit, Claim, Kind, Status, audit, claim_of
from specprof.analyse.audit.claim import Aggregation, SpeculationClaim
from specprof.errors import InputError
from specprof.records import Stop


def objection(found: Audit, name: str) -> Kind | None:
    return next((finding.kind for finding in found.objections if finding.name == name), None)


IMPOSSIBLE: dict[str, tuple[str, dict[str, Any]]] = {
    "another throughput is printed": ("throughput", {"output_tokens": 100, "wall_s": 1, "throughput_tok_s": 110}),
    "more than N streams can write": (
        "effective concurrency",
        {"concurrency": 8, "throughput_tok_s": 900, "decode_speed_tok_s": 100},
    ),
    "reading takes longer than everything": (
        "prefill share",
        {"concurrency": 8, "prompt_tokens": 1000, "prefill_speed_tok_s": 1000, "wall_s": 5, "output_tokens": 99},
    ),
    "rates that add up to less": ("rate inflation", {"throughput_tok_s": 200, "sum_of_rates_tok_s": 150}),
    "more cached than there was": (
        "prefix cache",
        {"concurrency": 2, "prompt_tokens": 100, "cached_tokens": 300, "throughput_tok_s": 1},
    ),
    "longer than allowed": ("output length", {"concurrency": 1, "output_tokens": 300, "max_tokens": 256}),
    "forced, but not that long": (
        "output length",
        {"concurrency": 2, "output_tokens": 900, "max_tokens": 512, "stop": Stop.FORCED},
    ),
}
SPECULATION: dict[str, tuple[str, Kind, dict[str, Any]]] = {
    "per cent": ("acceptance rate", Kind.IMPOSSIBLE, {"acceptance_rate": 30.5}),
    "above K + 1": ("acceptance length", Kind.IMPOSSIBLE, {"acceptance_length": 3.2, "draft_tokens": 2}),
    "below one": ("acceptance length", Kind.IMPOSSIBLE, {"acceptance_length": 0.8}),
    "above 1 + K · AR": (
        "acceptance length",
        Kind.IMPOSSIBLE,
        {"acceptance_length": 3.0, "draft_tokens": 4, "acceptance_rate": 0.3},
    ),
    "drafts shorter than K": (
        "draft length",
        Kind.CAUTION,
        {"acceptance_length": 1.5, "draft_tokens": 4, "acceptance_rate": 0.5},
    ),
    "more accepted than drafted": ("acceptance counts", Kind.IMPOSSIBLE, {"num_accepted": 9, "num_drafted": 8}),
    "more drafted than steps allow": (
        "acceptance counts",
        Kind.IMPOSSIBLE,
        {"num_steps": 10, "num_drafted": 50, "draft_tokens": 4},
    ),
    "another AL is printed": (
        "acceptance length",
        Kind.IMPOSSIBLE,
        {"num_steps": 100, "num_accepted": 100, "acceptance_length": 2.5},
    ),
    "nothing drafted": ("speculation inactive", Kind.IMPOSSIBLE, {"num_steps": 0}),
    "survival rises": ("survival", Kind.IMPOSSIBLE, {"survival": (0.5, 0.6)}),
    "survival above one": ("survival", Kind.IMPOSSIBLE, {"survival": (1.5,)}),
    "too good": ("too good", Kind.CAUTION, {"survival": (0.9995, 0.99)}),
    "faster than its tokens": ("speed-up", Kind.IMPOSSIBLE, {"acceptance_length": 2.0, "speedup": 2.5}),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_cannot_be_true_is_said(case: str) -> None:
    name, fields = IMPOSSIBLE[case]
    assert objection(audit(claim_of(fields, "test")), name) is Kind.IMPOSSIBLE


@pytest.mark.parametrize("case", SPECULATION)
def test_what_acceptance_contradicts_is_said(case: str) -> None:
    name, kind, fields = SPECULATION[case]
    assert objection(audit(Claim(speculation=SpeculationClaim("mtp", **fields))), name) is kind


CAUTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "cap": ("concurrency", {"concurrency": 16, "cap": 8, "throughput_tok_s": 1}),
    "few requests": ("concurrency", {"concurrency": 16, "num_requests": 8, "throughput_tok_s": 1}),
    "idle streams": (
        "effective concurrency",
        {"concurrency": 8, "throughput_tok_s": 171.2, "decode_speed_tok_s": 40.95},
    ),
    "cached": ("prefix cache", {"concurrency": 2, "prompt_tokens": 100, "cached_tokens": 20, "wall_s": 1}),
    "filler": ("filler prompts", {"content": "random tokens", "wall_s": 1}),
    "failed": ("failed requests", {"concurrency": 2, "num_failed": 1}),
    "once": ("repeats", {"repeats": 1, "wall_s": 1}),
    "sum": ("sum of rates", {"aggregation": Aggregation.SUM_OF_RATES, "throughput_tok_s": 1}),
    "offered": ("offered load", {"request_rate": 2, "output_tokens_per_request": 100, "throughput_tok_s": 196}),
    "cut": (
        "cut at max_tokens",
        {
            "concurrency": 8,
            "output_tokens_per_request": 256,
            "shortest_output_tokens": 256,
            "longest_output_tokens": 256,
            "max_tokens": 256,
            "stop": Stop.NATURAL,
        },
    ),
    "one request, nothing to overlap": (
        "parts exceed the wall",
        {"concurrency": 1, "output_tokens": 200, "wall_s": 1.5, "ttft_s": 0.5, "decode_speed_tok_s": 150},
    ),
}


@pytest.mark.parametrize("case", CAUTIONS)
def test_what_misleads_is_said(case: str) -> None:
    name, fields = CAUTIONS[case]
    assert objection(audit(claim_of(fields, "test")), name) is Kind.CAUTION


def test_a_saturated_machine_is_not_told_that_the_load_was_small() -> None:
    found = audit(Claim(request_rate=10, output_tokens_per_request=100, throughput_tok_s=600))
    assert objection(found, "offered load") is None


def test_a_fully_stated_forced_run_meets_no_objection_and_answers_every_question() -> None:
    """512 tokens at 100 tok/s after 0.1 s: 5.22 s, 8 · 512 / 5.22 = 784.7 tok/s; AL 2.5 = 1 + 0.8 + 0.5 + 0.2."""
    found = audit(
        Claim(
            concurrency=8,
            cap=32,
            prompt_tokens=30,
            output_tokens=4096,
            wall_s=5.22,
            throughput_tok_s=784.7,
            ttft_s=0.1,
            tpot_s=0.01,
            itl_s=0.025,
            stop=Stop.FORCED,
            max_tokens=512,
            content="code",
            speculation=SpeculationClaim("mtp", 3, 0.5, 2.5, (0.8, 0.5, 0.2)),
            prefix_cache=False,
            aggregation=Aggregation.TOTAL_OVER_WALL,
            temperature=0.0,
            repeats=4,
            engine="vLLM 0.32.0",
            model="m",
        )
    )
    assert found.objections == ()
    assert found.of(Kind.UNSTATED) == ()
    assert {answer.status for answer in found.checklist} == {Status.ANSWERED}


def test_nothing_stated_is_everything_unstated() -> None:
    found = audit(Claim())
    assert found.objections == ()
    assert {answer.status for answer in found.checklist} == {Status.NOT_STATED}
    assert len(found.of(Kind.UNSTATED)) >= 12


def test_several_waves_of_requests_count_their_reading_each() -> None:
    """24 requests over 8 streams: three times 0.3 s to the first token, then 3 · 128 tokens at 64 tok/s: 6.9 s."""
    found = audit(
        Claim(concurrency=8, num_requests=24, output_tokens=3072, ttft_s=0.3, decode_speed_tok_s=64, wall_s=7.0)
    )
    assert found.rebuilt.predicted_wall_s == pytest.approx(0.9 + 384 / 64)


def test_an_equal_length_everywhere_answers_for_the_stop_rule() -> None:
    found = audit(Claim(concurrency=8, shortest_output_tokens=128, longest_output_tokens=128, num_requests=24))
    assert found.checklist[0].status is Status.ANSWERED


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"wall_s": 0}, "wall_s"),
        ({"wall_s": -1.0}, "wall_s"),
        ({"throughput_tok_s": float("inf")}, "throughput_tok_s"),
        ({"concurrency": 2.5}, "concurrency"),
        ({"stop": "whenever"}, "stop"),
        ({"aggregation": "median"}, "aggregation"),
    ],
)
def test_fields_that_no_arithmetic_survives_are_refused_by_name(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=f"specprof audit: {told}") as refused:
        claim_of(fields, "specprof audit")
    assert refused.value.exit_code == 2
