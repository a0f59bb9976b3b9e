"""Verdicts: a line drawn before the measurement, and three outcomes."""

from __future__ import annotations

from math import exp, log

import pytest

from specprof.analyse.evidence import Evidence
from specprof.analyse.results import Figure, Outcome
from specprof.decide.verdict import judge, needs
from specprof.store import DeclaredVerdict
from specprof.study.config import Study
from tests.factory import NGRAM, data, make_cell, make_data, make_requests, make_running_cell

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


def test_undecided_says_how_many_blocks_would_settle_it():
    """±10% over 4 blocks, 5% from the line: the interval must halve, which takes four times the blocks."""
    ratio = Figure(3 * exp(0.05), 3 * exp(-0.05), 3 * exp(0.15))
    assert "about blocks: 16 (now 4)" in needs(ratio, 3.0, 4)


def test_one_block_cannot_show_how_launches_vary():
    assert needs(Figure(3.1, 2.9, 3.3), 3.0, 1).startswith("blocks: 4")


def test_cells_that_were_not_measured_are_what_is_needed():
    assert needs(Figure(None), 3.0, 0) == "the cells it compares have not been measured"


def test_an_estimate_on_the_line_is_never_settled():
    assert needs(Figure(3.0, 2.9, 3.1), 3.0, 4).startswith("nothing will")


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
    (verdict,) = judge(study, evidence, declared or {})
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
