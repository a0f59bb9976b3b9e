"""Pipeline accounting: the simulator's stages come back, and the seed's gains are split as far as they can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import exp, log
from statistics import fmean
from typing import Any

import pytest

from specprof.analyse.evidence import Evidence
from specprof.analyse.pipeline import PipelineFigures, PipelineLoad, Round, Stages, fit_rounds, gain_bounds, stages_of
from specprof.analyse.results import Figure, GainFigures, StudyFigures
from specprof.analyse.study import analyse
from specprof.columns import cell_data
from specprof.engine.sim import Machine, machine_of, run_study
from specprof.records import Role
from specprof.study.plan import make_plan
from specprof.study.reading import parse_study
from tests.engine.sim_cells import throughput
from tests.factory import data, make_running_cell
from tests.running import ROOT

CLAIMS = {claim["id"]: claim for claim in data("seed_claims.json")["claims"]}
DRAFTS = 4
PRESETS = {"seed-machine": (8, (1, 2, 3, 6, 8)), "pcie-starved": (256, (1, 2, 3, 6, 24))}


def facts_of(machine: Machine, **changes: Any) -> Mapping[str, Any]:
    hardware, cap = machine.hardware, machine.scheduler.max_num_seqs
    told = {"pipeline_parallel_size": hardware.num_stages, "max_num_seqs": cap}
    return {**told, "extra": {"stage_shares": list(hardware.stage_shares)}, **changes}


def study_text(preset: str, streams: Sequence[int], blocks: int, tokens: int = 256) -> str:
    """One content on a preset of three stages, speculation off and on."""
    return f"""
study: piped
engine: {{kind: sim, preset: {preset}}}
arms: {{"off": {{}}, "on": {{speculative_config: {{method: mtp, num_speculative_tokens: {DRAFTS}}}}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: {tokens}}}}}
concurrency: {list(streams)}
prompts: 24
blocks: {blocks}
"""


@cache
def evidence_of(preset: str) -> Evidence:
    """The preset's streams, measured in two blocks on the virtual clock."""
    plan = make_plan(parse_study(study_text(preset, PRESETS[preset][1], blocks=2), "piped"))
    return Evidence(cell_data(record) for record in run_study(machine_of(preset), plan.launches, plan.prompts))


@cache
def measured(preset: str, **changes: Any) -> StudyFigures:
    """Its figures; `changes` are those of every launch's facts."""
    evidence = evidence_of(preset)
    launches = {str(frame.data.launch): facts_of(machine_of(preset), **changes) for frame in evidence.frames}
    return analyse("piped", evidence, {"launches": launches})


def of_arm(preset: str, arm: str) -> PipelineFigures:
    (found,) = (piped for piped in measured(preset).pipeline if piped.arm == arm)
    return found


def load_of(piped: PipelineFigures, concurrency: int) -> PipelineLoad:
    (found,) = (load for load in piped.loads if load.concurrency == concurrency)
    return found


def computing_s(machine: Machine, sequences: int, drafts: int = 0) -> float:
    """Model and drafter of one pass over so many sequences of code, as `sim.machine` describes them."""
    hardware, drafter = machine.hardware, machine.drafters["*"]
    model = hardware.fixed_s + sequences * (hardware.per_sequence_s + (1 + drafts) * hardware.per_token_s)
    drafting = drafter.fixed_s + drafter.per_draft_token_s * drafts if drafts else 0.0
    return model * machine.contents["code"].step_time_factor + drafting


def test_each_preset_has_three_stages_and_its_own_split() -> None:
    for preset in PRESETS:
        piped = of_arm(preset, "off")
        assert (piped.stages, piped.split_known) == (3, True)
        assert piped.slowest_share == pytest.approx(max(machine_of(preset).hardware.stage_shares))


@pytest.mark.parametrize("preset", PRESETS)
def test_the_hand_over_lies_in_its_interval(preset: str) -> None:
    found, truth = of_arm(preset, "off").hand_over_s, machine_of(preset).hardware.handover_s
    assert found is not None and found.low is not None and found.high is not None
    assert found.low <= truth <= found.high


def test_a_slow_stage_tells_the_hand_over_and_pcie_alone_only_bounds_it() -> None:
    seed, starved = of_arm("seed-machine", "off").hand_over_s, of_arm("pcie-starved", "off").hand_over_s
    assert seed is not None and seed.value == pytest.approx(machine_of("seed-machine").hardware.handover_s, rel=0.15)
    assert starved is not None and starved.value is None
    assert starved.low is not None and starved.low > 0


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("concurrency", [1, 3, 6])
def test_filled_and_computing_shares_come_back(preset: str, concurrency: int) -> None:
    """Filled: min(N, 3) / 3. Computing: that many passes of the simulator's own cost, over three stages' round."""
    machine = machine_of(preset)
    load = load_of(of_arm(preset, "off"), concurrency)
    batches = min(concurrency, 3)
    assert (load.batches, load.filled_share) == (batches, batches / 3)
    size = concurrency // batches
    way = computing_s(machine, size) + 3 * machine.hardware.handover_s
    slowest = batches * max(machine.hardware.stage_shares) * computing_s(machine, size)
    truth = batches * computing_s(machine, size) / (3 * max(way, slowest))
    busy = load.busy_share
    assert busy is not None and busy.low is not None and busy.high is not None
    assert busy.low - 0.005 <= truth <= busy.high + 0.005


@pytest.mark.parametrize("preset", PRESETS)
def test_filling_and_larger_batches_multiply_to_the_batching_gain(preset: str) -> None:
    """Up to three streams nothing but the pipeline fills; beyond, the product of the two parts is the whole gain."""
    for arm in ("off", "on"):
        for load in of_arm(preset, arm).loads:
            filling, sharing, whole = load.filling_gain.value, load.sharing_gain.value, load.batching_gain.value
            assert filling is not None and sharing is not None and whole is not None
            assert filling * sharing == pytest.approx(whole, rel=1e-9)
            assert sharing == 1.0 or load.concurrency > 3
            assert filling <= 3.02


@pytest.mark.parametrize("preset", PRESETS)
def test_the_interaction_lies_in_its_interval(preset: str) -> None:
    """Its truth: what the same study gives on average in six other worlds, by the simulator's own throughputs."""
    plan = make_plan(parse_study(study_text(preset, (1, 3), blocks=1), "piped"))
    logs = []
    for seed in range(1, 7):
        records = run_study(replace(machine_of(preset), seed=seed), plan.launches, plan.prompts)
        x = {(r.cell.arm, r.cell.concurrency): throughput(r) for r in records if r.cell.role is Role.FIGURE}
        logs.append(log(x["on", 3] / x["on", 1] / (x["off", 3] / x["off", 1])))
    found = gain_at(measured(preset), 3).interaction
    assert found.low is not None and found.high is not None
    assert found.low <= exp(fmean(logs)) <= found.high


@pytest.mark.parametrize("preset", PRESETS)
def test_the_interaction_is_what_the_stages_make_it(preset: str) -> None:
    """At three streams a round is the longer of one pass's way and the slowest stage's work (the last one also drafts):
    I = [T_on(1) / T_on(3)] / [T_off(1) / T_off(3)]. Texts are long, so that reading counts for little, and every draft
    is accepted, so that they keep step and no stream is left to write alone.
    """
    sure = replace(machine_of(preset).contents["code"], conditional_acceptance=(0.9999,) * DRAFTS, prompt_spread=0.0)
    machine = replace(machine_of(preset), contents={"code": sure})
    shares, drafter = machine.hardware.stage_shares, machine.drafters["*"]
    drafting = drafter.fixed_s + drafter.per_draft_token_s * DRAFTS

    def round_s(streams: int, drafts: int) -> float:
        model = computing_s(machine, 1, drafts) - (drafting if drafts else 0.0)
        stages = [share * model for share in shares]
        stages[-1] += drafting if drafts else 0.0
        return max(sum(stages) + 3 * machine.hardware.handover_s, streams * max(stages))

    truth = (round_s(1, DRAFTS) / round_s(3, DRAFTS)) / (round_s(1, 0) / round_s(3, 0))
    plan = make_plan(parse_study(study_text(preset, (1, 3), blocks=2, tokens=2048), "piped"))
    evidence = Evidence(cell_data(record) for record in run_study(machine, plan.launches, plan.prompts))
    assert gain_at(analyse("piped", evidence, {}), 3).interaction.value == pytest.approx(truth, rel=0.03)


def gain_at(figures: StudyFigures, concurrency: int) -> GainFigures:
    (found,) = (gain for gain in figures.gains if gain.concurrency == concurrency)
    return found


# What the seed guessed (chapter 4: 3.77 is more than 3, so weights must be shared as well) follows from its numbers:
# three stages give three times at most.
@pytest.mark.parametrize(
    ("claim", "at_least"),
    [("amp_off_code", 199.8 / 53.0 / 3), ("amp_off_prose", 228.3 / 52.3 / 3), ("amp_code", 606.1 / 140.6 / 3)],
)
def test_more_than_three_on_three_cards_must_come_from_larger_batches(claim: str, at_least: float) -> None:
    told = CLAIMS[claim]["inputs"]
    filling, sharing = gain_bounds(Figure(told["x8"] / told["x1"]), 3)
    assert (filling.low, filling.high) == (1.0, 3.0)
    assert sharing.low == pytest.approx(at_least)
    assert sharing.low is not None and sharing.low > 1
    assert sharing.value is None


def test_a_gain_of_less_than_three_needs_no_larger_batches() -> None:
    """The seed's 2.84 of short natural answers."""
    told = CLAIMS["amp_nat"]["inputs"]
    _, sharing = gain_bounds(Figure(told["x8"] / told["x1"]), 3)
    assert sharing.low is not None and sharing.low < 1


def test_where_n_equals_stages_was_not_measured_the_parts_have_bounds() -> None:
    figures = measured("seed-machine", pipeline_parallel_size=4)
    load = load_of(next(p for p in figures.pipeline if p.arm == "off"), 8)
    three = load_of(of_arm("seed-machine", "off"), 3).batching_gain
    assert load.filling_gain.value is None and load.filling_gain.high == 4.0
    assert load.filling_gain.low == pytest.approx(three.low)
    assert load.sharing_gain.value is None


PACES = {1: 50.0, 2: 95.0, 3: 300.0, 6: 210.0, 8: 220.0}  # 6x at three streams is more than three stages can give


def piped_without(*forbidden: int) -> PipelineFigures:
    """Three stages, speculation off; a stranger wrote 10,000 tokens at the N that gate 9 then forbids."""
    cells = [make_running_cell(pace, concurrency=n, num_prompts=2 * n) for n, pace in PACES.items()]
    told = [
        replace(cell, after=replace(cell.after, generation_tokens=cell.after.generation_tokens + 10_000))
        if cell.after is not None and cell.after.generation_tokens and cell.cell.concurrency in forbidden
        else cell
        for cell in cells
    ]
    (found,) = analyse("piped", Evidence(told), {"launches": {"0": {"pipeline_parallel_size": 3}}}).pipeline
    return found


def test_an_n_that_a_gate_forbids_fills_no_stages_of_another_n() -> None:
    """N = 2 is the fullest fit one: it gives 95 / 50 at least, three stages 3 at most, so larger batches 4.4 / 3."""
    piped = piped_without(3)
    assert {load.concurrency: load.valid for load in piped.loads} == {1: True, 2: True, 3: False, 6: True, 8: True}
    eight = load_of(piped, 8)
    assert eight.filling_gain == Figure(None, pytest.approx(95 / 50, rel=1e-3), 3.0)
    assert eight.sharing_gain.value is None
    assert eight.sharing_gain.low == pytest.approx(220 / 50 / 3, rel=1e-3)
    alone = load_of(piped_without(2, 3), 8)
    assert alone.filling_gain == Figure(None, 1.0, 3.0)


def test_an_n_that_a_gate_forbids_says_nothing_of_a_hand_over() -> None:
    """What is left is fitted as if it had never been measured; with two N left, or without one stream, nothing is."""
    piped = piped_without(3)
    assert load_of(piped, 3).busy_share is None
    assert load_of(piped, 8).busy_share is not None
    assert piped.hand_over_s is not None
    assert piped_without(2, 3, 6).hand_over_s is None
    assert piped_without(1).hand_over_s is None
    assert not any(load.valid for load in piped_without(1).loads)


@pytest.mark.parametrize(
    "facts",
    [
        {"pipeline_parallel_size": 1},
        {},
        {"pipeline_parallel_size": 3, "extra": {"rehearsal": "rehearsal: not a pipeline figure"}},
    ],
)
def test_one_stage_or_a_rehearsal_is_no_pipeline(facts: dict[str, Any]) -> None:
    assert stages_of(facts) is None


def test_the_layer_split_is_read_from_the_engine_s_environment() -> None:
    told = stages_of({"pipeline_parallel_size": 3, "env": {"VLLM_PP_LAYER_PARTITION": "15,16,12"}})
    assert told is not None and told.known
    assert told.slowest == pytest.approx(16 / 43)
    even = stages_of({"pipeline_parallel_size": 3, "env": {"VLLM_PP_LAYER_PARTITION": "15,16"}})
    assert even is not None and not even.known
    assert even.shares == pytest.approx((1 / 3,) * 3)


def test_two_rounds_say_nothing_of_a_hand_over() -> None:
    stages = Stages((0.5, 0.5), known=True)
    assert fit_rounds([Round(1, 0.02, 0.01), Round(2, 0.02, 0.01)], stages) is None


def test_a_study_on_one_stage_has_no_pipeline_figures() -> None:
    assert measured("seed-machine", pipeline_parallel_size=1).pipeline == ()
