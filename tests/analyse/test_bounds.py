"""Bounds that the anchor does not reach: windows, experts, compressed keys, and how near a measured cell came."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specprof.analyse import roofline
from specprof.analyse.bound_shares import bound_shares
from specprof.analyse.bounds import Question, bounds, counts_of
from specprof.analyse.evidence import Evidence
from specprof.analyse.hardware import named, served_on
from specprof.analyse.roofline import ANCHOR, Experts, Hardware, ModelShape, Windowed
from specprof.analyse.study import analyse
from specprof.errors import InputError
from tests.factory import make_running_cell

UNIT = Hardware("unit", bandwidth=1e9, flops=1e12, memory=10e9, source="made up")
DENSE = ModelShape(weight_bytes=1e9, num_parameters=0.5e9, kv_bytes_per_token=1000, resident_bytes=1e9)


def test_a_window_caps_reading_capacity_and_arithmetic():
    """Two layers, one head of 10 wide; 100 tokens of window and 1,000 of context."""
    shape = ModelShape(
        weight_bytes=0,
        num_parameters=0,
        kv_bytes_per_token=0,
        num_heads=1,
        head_dim=10,
        windowed=(Windowed(window=100, num_layers=2, kv_bytes_per_token=80),),
    )
    assert roofline.reading_s(shape, UNIT, 1, 0, 1000) == pytest.approx(100 * 80 / 1e9)
    assert roofline.capacity(shape, UNIT, 1000) == int(10e9 // (100 * 80))
    assert roofline.arithmetic_s(shape, UNIT, 1, 0, 1000) == pytest.approx(4 * 10 * 2 * 100 / 1e12)
    # Of a prompt, the first 100 tokens see 100²/2 pairs, each of the next 900 sees 100.
    assert roofline.prefill_s(shape, UNIT, 1000) == pytest.approx(4 * 10 * 2 * (5000 + 90_000) / 1e12)


def test_chunks_add_up_to_the_whole_prompt():
    """Nobody decodes beside it and reading is free, so chunks, a last short one included, cost what the whole does."""
    fast = Hardware("fast", bandwidth=1e30, flops=1e12, memory=1e12, source="made up")
    shape = ModelShape(1e9, 1e9, 1000, attention_layers=4, num_heads=8, head_dim=64, windowed=(Windowed(300, 2, 500),))
    steps = list(roofline.chunk_steps_s(shape, fast, 1000, chunk=384, decoding=0, context=1))
    assert len(steps) == 3
    assert sum(steps) == pytest.approx(roofline.prefill_s(shape, fast, 1000))


def test_a_short_prompt_reads_the_weights_all_the_same():
    assert roofline.prefill_s(DENSE, UNIT, 1) == 1.0


def test_verifying_a_draft_wakes_more_experts():
    """2 of 8 experts a token: one token reads 1/4 of 8 GB, four read 1 - (3/4)⁴ = 175/256."""
    shape = ModelShape(0, 0, 0, experts=Experts(num_bytes=8e9, num_experts=8, per_token=2))
    assert roofline.tpot_s(shape, UNIT, 1, 0) == pytest.approx(2.0)
    assert roofline.verification_step_s(shape, UNIT, 1, 3, 0) == pytest.approx(8 * 175 / 256)


def test_the_ridge_with_experts_is_where_both_sides_meet():
    shape = ModelShape(1e9, 1e8, 0, experts=Experts(num_bytes=8e9, num_experts=8, per_token=2))
    ridge = roofline.ridge_tokens(shape, UNIT)
    assert shape.weights_read(ridge) / UNIT.bandwidth == pytest.approx(2 * 1e8 * ridge / UNIT.flops)


def test_compressed_keys_are_wider_to_decode_than_to_read():
    shape = ModelShape(0, 0, 0, attention_layers=1, num_heads=1, head_dim=160, decode_head_dim=544)
    assert roofline.arithmetic_s(shape, UNIT, 1, 0, 10) == pytest.approx(4 * 544 * 10 / 1e12)
    assert roofline.prefill_s(shape, UNIT, 10) == pytest.approx(2 * 160 * 100 / 1e12)


@pytest.mark.parametrize("within_s", [1.5, 1.001])
def test_the_largest_concurrency_is_the_last_that_keeps_the_target(within_s):
    most = roofline.largest_concurrency(DENSE, UNIT, 100, within_s)
    assert roofline.tpot_s(DENSE, UNIT, most, 100) <= within_s < roofline.tpot_s(DENSE, UNIT, most + 1, 100)


def test_arithmetic_bounds_a_large_batch():
    """1 FLOP a byte of bandwidth: 2,000 streams of a million-parameter model take 4e9 FLOP but read 1 MB."""
    small = ModelShape(1e6, 1e6, 0)
    even = Hardware("even", 1e9, 1e9, 1e9, "made up")
    assert roofline.tpot_s(small, even, 2000, 0) == 4.0


def test_eight_gpus_are_eight_times_one():
    together = named("h100").times(8)
    assert (together.name, together.bandwidth, together.memory) == ("8× H100 SXM", 8 * 3.35e12, 640e9)
    assert roofline.tpot_s(ANCHOR, together, 1, 4096) == pytest.approx(
        roofline.tpot_s(ANCHOR, named("h100"), 1, 4096) / 8
    )


@pytest.mark.parametrize(("asked", "row"), [("H100 SXM", "H100 SXM"), ("h100", "H100 SXM"), ("rtx-4090", "RTX 4090")])
def test_a_machine_is_named_by_what_only_it_has(asked, row):
    assert named(asked).name == row


@pytest.mark.parametrize(("asked", "why"), [("B300", "is not in"), ("100", "fits several"), ("", "is not in")])
def test_an_unknown_machine_is_refused_with_those_known(asked, why):
    with pytest.raises(InputError, match=why) as refused:
        named(asked)
    for known in ("A100 80GB SXM", "H100 SXM", "H200 SXM", "L40S", "RTX 4090", "MI300X"):
        assert known in str(refused.value)


def test_a_newcomer_takes_a_place_of_the_largest_batch_that_fits():
    told = bounds("x", ANCHOR, named("h100"), Question(concurrency=(1, 200)))
    assert told.capacity == 58
    assert told.prefill.decoding == 57
    assert [step.fits for step in told.steps] == [True, False]


@pytest.mark.parametrize(
    ("options", "named_option"),
    [
        ({"concurrency": ()}, "--concurrency"),
        ({"concurrency": (4, 0)}, "--concurrency"),
        ({"context": 0}, "--context"),
        ({"draft_tokens": 0}, "--draft-tokens"),
        ({"chunk_tokens": -1}, "--chunk"),
        ({"tpot_target_s": 0.0}, "--tpot-target"),
        ({"tpot_target_s": float("nan")}, "--tpot-target"),
    ],
)
def test_a_question_that_makes_no_sense_names_its_option(options, named_option):
    with pytest.raises(InputError, match=named_option):
        Question(**options)


def test_counts_of_a_list():
    assert counts_of("--concurrency", "1,8, 27 58") == (1, 8, 27, 58)
    with pytest.raises(InputError, match=r"--concurrency 1;8"):
        counts_of("--concurrency", "1;8")


# 50 GB of weights at 3.35 TB/s are read in 14.925 ms: 4 streams that gain a token a step write 268 tok/s at most.
BOUND = 4 / (50 / 3350)


def study(environment, throughput=0.5 * BOUND):
    return analyse("x", Evidence([make_running_cell(throughput)]), environment)


def ran_on(gpu, **extra):
    facts = {"model": "org/served", "device": "cuda", "extra": {"step_bytes": 50_000_000_000, **extra}}
    return {"gpus": [{"name": gpu}], "launches": {"0": facts}}


def test_a_cell_that_reached_half_its_bound():
    told = bound_shares(study(ran_on("NVIDIA H100 80GB HBM3")), None, None)
    (cell,) = told.cells
    assert cell.bound_tok_s == pytest.approx(BOUND)
    assert cell.share.value == pytest.approx(0.5, rel=0.01)
    assert "weights' bytes" in told.notes[0]


def test_a_stream_without_a_prompt_of_its_own_raises_no_bound():
    """Four prompts on eight streams are four that write, in each of two launches."""
    cells = [
        replace(make_running_cell(0.5 * BOUND, block=launch, concurrency=8, num_prompts=4), launch=launch)
        for launch in (0, 1)
    ]
    environment = ran_on("NVIDIA H100 80GB HBM3")
    environment["launches"]["1"] = environment["launches"]["0"]
    (cell,) = bound_shares(analyse("x", Evidence(cells), environment), None, None).cells
    assert cell.bound_tok_s == pytest.approx(BOUND)


def test_with_the_model_keys_and_values_count_in_the_middle_of_the_answer():
    figures = study(ran_on("NVIDIA H100 80GB HBM3"))
    (measured,) = figures.cells
    context = measured.prompt_tokens.value + 64 / 2
    shape = ModelShape(weight_bytes=50e9, num_parameters=25e9, kv_bytes_per_token=1e6)
    (cell,) = bound_shares(figures, shape, None).cells
    assert cell.context == context
    assert cell.bound_tok_s == pytest.approx(4 / ((50e9 + 4 * 1e6 * context) / 3.35e12))


def test_a_pipeline_works_on_several_batches():
    """Four streams on two stages are two batches of two, and each reads the weights and its own keys and values."""
    environment = ran_on("NVIDIA H100 80GB HBM3")
    environment["launches"]["0"]["pipeline_parallel_size"] = 2
    shape = ModelShape(weight_bytes=50e9, num_parameters=0, kv_bytes_per_token=1e8)
    (cell,) = bound_shares(study(environment), shape, None).cells
    assert cell.bound_tok_s == pytest.approx(4 / ((50e9 + 2 * 1e8 * cell.context) / 3.35e12))


def test_what_is_missing_is_said_with_what_to_give():
    told = bound_shares(study({"gpus": [{"name": "A card nobody listed"}], "launches": {}}), None, None)
    assert told.cells == ()
    model, machine = told.missing
    assert "--model" in model
    assert "A card nobody listed" in machine
    assert "--hardware (A100 80GB SXM" in machine


def test_a_given_machine_wins_over_the_studys():
    told = bound_shares(study(ran_on("A card nobody listed")), None, named("h100"))
    assert told.cells[0].bound_tok_s == pytest.approx(BOUND)


def test_a_cpu_engine_beside_a_gpu_was_not_served_by_it():
    environment = ran_on("NVIDIA H100 80GB HBM3")
    environment["launches"]["0"]["device"] = "cpu"
    assert served_on(environment, 0) is None
