"""Verdicts: a line drawn before the measurement, and three outcomes."""

from __future__ import annotations

import re
from dataclasses import replace
from math import exp, log

import pytest

from specprof.analyse.evidence import Evidence, Variation
from specprof.analyse.results import Figure, Outcome
from specprof.analyse.study import analyse
from specprof.decide.looks import enough, settled
from specprof.decide.verdict import judge, needs
from specprof.store import DeclaredVerdict
from specprof.study.config import Study
from tests.factory import NGRAM, data, make_cell, make_data, make_request, make_requests, make_running_cell

VECTORS = [v for v in data("seed_claims.json")["verdict_vectors"] if "ratio" in v]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["id"])
def test_the_seed_s_verdicts(vector):
    assert Outcome.of(Figure(vector["ratio"], *vector["ci95"]), vector["thr"]) == vector["verdict"]


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [(3.0, 3.5, "pass"), (2.5, 2.99, "fail"), (2.5, 3.0, "undecided"), (None, None, "undecided")],
)
def test_an_interval_decides_only_when_it_is_wholly_on_one_side(low, high, outcome):
    assert Outcome.of(Figure(3.1, low, high), 3.0) is Outcome(outcome)


def around(distance, threshold=3.0, reach=0.2):
    """A ratio whose logarithm lies so far above the threshold's."""
    return Figure(*(threshold * exp(distance + of) for of in (0.0, -reach, reach)))


def test_undecided_says_how_many_blocks_would_settle_it():
    """Blocks whose logarithms scatter by 0.1, prompts that are alike: t(n-1) · 0.1 / sqrt(n) is 0.0514 for 17 blocks
    and 0.0497 for 18 (t = 2.120 and 2.110).
    """
    assert "about blocks: 18 (now 4)," in needs(around(0.05), 3.0, Variation(4, 16, 0.1**2 / 4))


def test_a_stricter_interval_takes_more_blocks():
    """At 99% t · 0.1 / sqrt(n) is 0.0503 for 30 blocks (t = 2.756) and 0.0494 for 31 (2.750)."""
    assert "about blocks: 31 (now 4)," in needs(around(0.05), 3.0, Variation(4, 16, 0.1**2 / 4), 0.99)


def test_where_prompts_alone_reach_the_line_no_number_of_blocks_is_promised():
    """Prompts whose means scatter by 0.2: t(n-1) · 0.2 / sqrt(n) is 0.107 for 16 of them, however often they are sent.
    0.04 takes 99 (t = 1.984: 0.0399), not 98 (1.985: 0.0401).
    """
    told = needs(around(0.04), 3.0, Variation(4, 16, 0.0, 0.2**2 / 16))
    assert told == (
        "about prompts: 99 (now 16), since blocks send the same ones again, if the estimate stays where it is"
    )


def test_where_launches_reach_the_line_as_well_both_are_asked_for():
    """Standard errors of 0.03 each, the line 0.05 away: either alone makes ±0.06 or more. Of both k times as many make
    t · sqrt(2 · 0.03² / k): 0.062 for k = 2 (t = 2.07, Satterthwaite), 0.0497 for 3 (2.03).
    """
    told = needs(around(0.05), 3.0, Variation(4, 16, 0.03**2, 0.03**2))
    assert told == "about prompts: 48 (now 16) and blocks: 12 (now 4), if the estimate stays where it is"


def test_more_launches_help_where_two_prompts_say_how_prompts_vary():
    """t(1) is 12.7, but launches that are known better bring it down while they are most of what varies."""
    assert needs(around(0.11), 3.0, Variation(4, 2, 0.03**2, 0.01**2)).startswith("about blocks: ")


@pytest.mark.parametrize("distance", [1e-4, 1e-12])
def test_nobody_is_told_to_measure_for_ever(distance):
    told = needs(around(distance), 3.0, Variation(4, 16, 0.05**2, 0.05**2))
    assert told == "more than 100 blocks of 1000 prompts: the estimate is all but the threshold"


def test_one_prompt_cannot_show_how_prompts_vary():
    assert needs(Figure(3.1), 3.0, Variation(4, 1, 0.0, None)) == (
        "more prompts: at least 2, since 1 cannot show how prompts vary"
    )


def test_one_block_cannot_show_how_launches_vary():
    assert needs(Figure(3.1, 2.9, 3.3), 3.0, Variation(1)).startswith("blocks: 4")


def test_cells_that_were_not_measured_are_what_is_needed():
    assert needs(Figure(None), 3.0, Variation(0)) == "the cells it compares have not been measured"


def test_an_estimate_on_the_line_is_never_settled():
    assert needs(Figure(3.0, 2.9, 3.1), 3.0, Variation(4)).startswith("nothing will")


def study(**changes):
    """Eight-way batching of the off arm, over 3×, as a pipeline of three stages is said to give."""
    verdict = {
        "name": "eight-way batching",
        "metric": "throughput",
        "protocol": "forced",
        "workload": "code",
        "arm": "off",
        "numerator": {"concurrency": 8},
        "denominator": {"concurrency": 1},
        "at_least": 3.0,
        **changes,
    }
    return Study.model_validate(
        {
            "study": "demo",
            "engine": {"kind": "vllm", "model": "m"},
            "arms": {"off": {}, "on": {"speculative_config": dict(NGRAM)}},
            "workloads": [{"tag": "code", "suite": "code.jsonl"}],
            "protocols": {"forced": {"stop": "forced", "output_tokens": 64}},
            "concurrency": [1, 8],
            "blocks": 4,
            "verdicts": [verdict],
        }
    )


def evidence(*speeds):
    """Off at N = 1 and N = 8, one pair of throughputs per block."""
    return Evidence(
        make_running_cell(x, concurrency=n, num_prompts=8, block=block)
        for block, pair in enumerate(speeds)
        for n, x in zip((1, 8), pair, strict=True)
    )


def only(study, evidence, declared=None):
    (verdict,) = judge(study, evidence, declared or {}, analyse("demo", evidence, {}).cells)
    return verdict


def test_the_seed_s_code_batching_passes_over_four_steady_blocks():
    verdict = only(study(), evidence((53.0, 199.8), (53.4, 201.0), (52.7, 199.0), (53.1, 200.1)))
    assert verdict.outcome is Outcome.PASS
    assert verdict.ratio.value == pytest.approx(3.77, rel=0.005)
    assert verdict.needs == ""


def test_two_blocks_that_disagree_are_undecided_and_say_what_would_settle_it():
    verdict = only(study(), evidence((53.0, 199.8), (53.0, 140.0)))
    assert verdict.outcome is Outcome.UNDECIDED
    assert "blocks" in verdict.needs


def test_too_little_batching_fails():
    assert only(study(), evidence((53, 106), (53, 107), (53, 105), (53, 106))).outcome is Outcome.FAIL


def test_one_block_decides_nothing_however_clear_it_looks():
    verdict = only(study(), evidence((53.0, 400.0)))
    assert verdict.ratio.low is None or verdict.ratio.low > 3
    assert verdict.outcome is Outcome.UNDECIDED
    assert verdict.needs.startswith("blocks: 4")


def with_foreign_traffic(tokens_per_s, block):
    """Eight streams, during which the server wrote 9999 tokens and the client received 8 · 64: gate 9."""
    cell = make_cell(concurrency=8, num_prompts=8, block=block)
    latency = 8 * 64 / tokens_per_s
    requests = make_requests(cell, ttft_s=latency * 0.01, step_s=latency * 0.99 / 63)
    return make_data(cell, requests, counters={"generation_tokens": 9999.0})


def test_a_cell_that_a_gate_forbids_decides_nothing_and_the_gate_is_named():
    """The same throughputs as pass over four sound blocks."""
    sound = [(53.0, 199.8), (53.4, 201.0), (52.7, 199.0), (53.1, 200.1)]
    cells = [make_running_cell(x, concurrency=1, num_prompts=8, block=b) for b, (x, _) in enumerate(sound)]
    found = Evidence([*cells, *(with_foreign_traffic(x, b) for b, (_, x) in enumerate(sound))])
    verdict = only(study(), found)
    assert verdict.ratio.low > 3, "the ratio is shown"
    assert verdict.outcome is Outcome.UNDECIDED
    assert verdict.needs.startswith("cells that no gate forbids. Gate 9 (")
    assert "forbids off at N=8: " in verdict.needs
    assert not verdict.needs.endswith("."), "whoever prints it ends the sentence"
    figures = replace(analyse("demo", found, {}), verdicts=(verdict,))
    assert not enough(figures, 0.05), "blocks: auto took it as decided"
    assert not settled(figures, found, 1.03)


def test_only_blocks_that_measured_both_cells_count():
    """Eight streams in blocks 0 and 1, one stream in blocks 1 and 2: they stood side by side once."""
    cells = [make_running_cell(x, concurrency=n, num_prompts=8, block=b) for x, n, b in [
        (200, 8, 0), (200, 8, 1), (53, 1, 1), (53, 1, 2)]]  # fmt: skip
    verdict = only(study(), Evidence(cells))
    assert verdict.outcome is Outcome.UNDECIDED
    assert verdict.needs.startswith("blocks: 4, since 1 cannot")


@pytest.mark.parametrize("metric", ["throughput", "decode_speed"])
def test_one_prompt_decides_nothing_over_any_number_of_blocks(metric):
    """Every block sends the same prompt again, and nobody knows what another would have gained."""
    speeds = enumerate([(53, 80), (53.5, 81), (52.8, 79.5), (53.1, 80.4)])
    on = {"arm": "on", "speculative_config": NGRAM, "accepted": (0, 2, 1)}
    cells = [
        make_running_cell(x, concurrency=1, num_prompts=1, block=block, **flags)
        for block, pair in speeds
        for x, flags in zip(pair, ({}, on), strict=True)
    ]
    spec = study(
        metric=metric,
        arm="on",
        numerator={"concurrency": 1},
        denominator={"concurrency": 1, "arm": "off"},
        at_least=1.2,
    )
    verdict = only(spec, Evidence(cells))
    assert verdict.ratio.value > 1.4
    assert (verdict.ratio.low, verdict.outcome) == (None, Outcome.UNDECIDED)
    assert verdict.needs.startswith("more prompts: at least 2")


def test_a_cell_against_itself_needs_no_second_prompt():
    cells = [make_running_cell(x, concurrency=1, num_prompts=1, block=b) for b, x in enumerate((53.0, 53.4))]
    same = {"numerator": {"concurrency": 1}, "denominator": {"concurrency": 1}}
    assert only(study(**same), Evidence(cells)).ratio == Figure(1.0, 1.0, 1.0)


def gains_of_prompts(blocks, num_prompts):
    """One stream; ln of the gain 0.15 around ln(1.10), launches all but alike."""
    shares = [0.15 * (1 if i % 2 else -1) for i in range(num_prompts)]
    for block in range(blocks):
        for gains in ([0.0] * num_prompts, [log(1.10) + share for share in shares]):
            flags = {"arm": "on", "speculative_config": NGRAM} if any(gains) else {}
            cell = make_cell(num_prompts=num_prompts, concurrency=1, block=block, **flags)
            start, requests = 0.0, []
            for name, gain in zip(cell.prompt_ids, gains, strict=True):
                seconds, drafts = 3 * (1 + 0.001 * (block % 2)) / exp(gain), {"accepted": (0, 1, 1)} if flags else {}
                num_steps = len(make_request(name, **drafts).chunk_tokens) - 1
                step_s = (seconds - 0.001) / num_steps
                requests.append(make_request(name, start_s=start, ttft_s=0.001, step_s=step_s, **drafts))
                start += seconds
            yield make_data(cell, requests)


def test_the_number_of_prompts_that_is_asked_for_decides():
    """16 prompts know their mean to t₁₅ · 0.155 / 4 = ±0.083. All tokens over all seconds gain ln(1.10) less ln cosh
    0.15 = 0.011, so ln 1.04 is 0.0449 away, which 49 prompts of that scatter reach: t₄₈ · 0.155 / 7 = 0.0445. More than
    as many of the same kind put the line outside: 56 of them know their mean to 2.004 · 0.151 / 7.48 = ±0.041.
    """
    spec = study(arm="on", numerator={"concurrency": 1}, denominator={"concurrency": 1, "arm": "off"}, at_least=1.04)

    def judged(blocks, num_prompts):  # planted texts are alike, which a gate objects to; this is about the interval
        (verdict,) = judge(spec, Evidence(gains_of_prompts(blocks, num_prompts)), {}, ())
        return verdict

    few = judged(4, 16)
    asked = re.match(r"about prompts: (\d+) \(now 16\)", few.needs)
    assert (few.outcome, asked and int(asked[1])) == (Outcome.UNDECIDED, pytest.approx(49, abs=1))
    assert judged(12, 16).outcome is Outcome.UNDECIDED, "more blocks"
    assert judged(4, 56).outcome is Outcome.PASS, "more prompts"


def test_a_verdict_without_its_cells_is_undecided():
    verdict = only(study(), Evidence([]))
    assert verdict.outcome is Outcome.UNDECIDED
    assert verdict.needs == "the cells it compares have not been measured"


def test_alpha_is_the_width_of_the_interval():
    speeds = [(53, 150), (53, 170), (53, 160), (53, 165)]
    strict, loose = (only(study(alpha=alpha), evidence(*speeds)).ratio for alpha in (0.01, 0.20))
    assert strict.half_width > loose.half_width


def speed(block, tokens_per_s, **changes):
    cell = make_cell(block=block, **changes)
    steps = [1 / (tokens_per_s * (1 + 0.01 * i)) for i in range(4)]
    requests = make_requests(cell)
    return make_data(cell, [make_requests(cell, step_s=s)[i] for i, s in enumerate(steps)][: len(requests)])


def test_a_decode_speed_verdict_knows_how_launches_vary_too():
    """Twice as fast in one block and three times in the next: one block's prompts agree, the launches do not."""
    on = {"arm": "on", "speculative_config": NGRAM, "concurrency": 8}
    cells = [speed(b, 20.0, concurrency=8) for b in (0, 1)] + [speed(b, x, **on) for b, x in ((0, 40.0), (1, 60.0))]
    spec = study(
        metric="decode_speed",
        arm="on",
        numerator={"concurrency": 8},
        denominator={"concurrency": 8, "arm": "off"},
        at_least=2.0,
    )
    verdict = only(spec, Evidence(cells))
    tokens_per_step = 63 / 32
    assert log(verdict.ratio.value / tokens_per_step) == pytest.approx((log(2) + log(3)) / 2, rel=1e-3)
    assert verdict.ratio.low < 2 < verdict.ratio.high
    assert verdict.outcome is Outcome.UNDECIDED


def test_a_verdict_declared_before_the_measurement_is_not_post_hoc():
    drawn = study()
    declared = {"eight-way batching": DeclaredVerdict(drawn.verdicts[0].digest(), post_hoc=False)}
    assert not only(drawn, Evidence([]), declared).post_hoc


def test_a_verdict_that_was_moved_or_never_declared_is_post_hoc():
    declared = {"eight-way batching": DeclaredVerdict(study().verdicts[0].digest(), post_hoc=False)}
    assert only(study(at_least=2.5), Evidence([]), declared).post_hoc
    assert only(study(), Evidence([]), {}).post_hoc


def test_the_digest_is_of_what_the_line_says():
    assert study().verdicts[0].digest() == study().verdicts[0].digest()
    assert study(at_least=2.5).verdicts[0].digest() != study().verdicts[0].digest()
