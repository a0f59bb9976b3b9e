"""Simulated truth comes back through study file, plan and analysis: the seed's story, and planted effects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specprof.analyse.evidence import Evidence
from specprof.analyse.results import CellFigures, Figure, StudyFigures
from specprof.analyse.study import analyse
from specprof.columns import cell_data
from specprof.engine.sim import Content, Drafter, Hardware, Machine, Noise, Prefill, machine_of, run_study
from specprof.engine.sim.truth import acceptance_truth
from specprof.publish.card_reading import figures_of, read_card
from specprof.publish.report import write_report
from specprof.study.plan import make_plan
from specprof.study.reading import load_study, parse_study
from tests.running import ROOT

SEED = load_study(ROOT / "configs" / "seed-machine.yaml")

# What the article printed (tests/data/seed_claims.json), tok/s by content, protocol, arm and streams.
PRINTED = {
    ("zh-qa", "natural", "mtp-k4", 1): 60.3,
    ("zh-qa", "natural", "mtp-k4", 8): 171.2,
    ("zh-qa", "natural-queued", "mtp-k4", 16): 171.9,
    ("zh-prose", "forced", "mtp-k4", 8): 359.3,
    ("code", "forced", "mtp-k4", 8): 606.1,
    ("long-zh", "natural-long", "mtp-k4", 8): 72.03,
    ("code", "forced", "off", 1): 53.0,
    ("code", "forced", "off", 8): 199.8,
    ("zh-prose", "forced", "off", 1): 52.3,
    ("zh-prose", "forced", "off", 8): 228.3,
}


@pytest.fixture(scope="module")
def story() -> StudyFigures:
    """configs/seed-machine.yaml on the virtual clock."""
    plan = make_plan(SEED)
    assert SEED.engine.kind == "sim"
    machine = machine_of(SEED.engine.preset)
    records = run_study(machine, plan.launches, plan.prompts)
    facts = {
        "pipeline_parallel_size": machine.hardware.num_stages,
        "max_num_seqs": machine.scheduler.max_num_seqs,
        "extra": {"stage_shares": list(machine.hardware.stage_shares)},
    }
    environment = {"launches": {str(launch.index): facts for launch in plan.launches}}
    return analyse("seed-machine", Evidence(cell_data(record) for record in records), environment)


def cell(figures: StudyFigures, tag: str, protocol: str, arm: str, streams: int) -> CellFigures:
    (found,) = (c for c in figures.cells if (c.tag, c.protocol, c.arm, c.concurrency) == (tag, protocol, arm, streams))
    return found


@pytest.mark.parametrize("place", PRINTED, ids=lambda place: "-".join(map(str, place)))
def test_the_seed_s_throughputs_come_back_within_7_percent(
    story: StudyFigures, place: tuple[str, str, str, int]
) -> None:
    assert cell(story, *place).throughput_tok_s.value == pytest.approx(PRINTED[place], rel=0.07)


def test_the_seed_s_pipeline_has_bounds_without_a_value_and_its_report_is_written(
    story: StudyFigures, tmp_path: Path
) -> None:
    """N = 3 was not measured, so that nobody knows what three batches gave and what larger ones did."""
    write_report(story, tmp_path)
    assert (tmp_path / "report.html").is_file()
    told = figures_of(read_card(tmp_path / "card.json")).pipeline
    eight = [load for piped in told for load in piped.loads if load.concurrency == 8]
    assert {load.filling_gain for load in eight} == {Figure(None, 1.0, 3.0)}


def test_the_seed_s_rates_add_up_to_twice_the_aggregate(story: StudyFigures) -> None:
    queued = cell(story, "zh-prose", "forced-queued", "mtp-k4", 16)
    assert queued.sum_of_rates_tok_s.value is not None
    assert queued.throughput_tok_s.value is not None
    assert queued.sum_of_rates_tok_s.value / queued.throughput_tok_s.value == pytest.approx(2.0934, rel=0.07)
    assert {1, 4} <= {gate.gate for gate in queued.gates}


def test_the_two_cuts_multiply_to_the_whole_way(story: StudyFigures) -> None:
    (cut,) = (c for c in story.cuts if (c.tag, c.other_tag, c.arm, c.concurrency) == ("zh-qa", "code", "mtp-k4", 8))
    stop_rule, content, whole = cut.stop_rule.value, cut.content.value, cut.whole.value
    assert stop_rule is not None
    assert content is not None
    assert whole == pytest.approx(stop_rule * content)
    assert whole == pytest.approx(606.1 / 171.2, rel=0.1)


STUDY = """
study: planted
engine: {kind: sim, preset: small}
arms: {"off": {}, "on": {speculative_config: {method: draft, num_speculative_tokens: 3}}}
workloads: [{tag: code, suite: prompts/code.jsonl}, {tag: json, suite: prompts/json.jsonl}]
protocols: {forced: {stop: forced, output_tokens: 96}}
concurrency: [1, 4]
prompts: 24
blocks: 4
"""


def planted(json_step_time: float) -> tuple[Machine, StudyFigures]:
    """Two contents that differ in acceptance, and in the time of a step only if `json_step_time` is not 1."""
    contents = {
        "code": Content((0.6, 0.55, 0.5), prompt_spread=0.2, eos_mean_tokens=4000),
        "json": Content((0.85, 0.8, 0.8), prompt_spread=0.2, eos_mean_tokens=4000, step_time_factor=json_step_time),
    }
    machine = replace(machine_of("small"), contents=contents)
    return machine, measured(machine, STUDY)


def measured(machine: Machine, text: str) -> StudyFigures:
    """A study on the virtual clock of a machine."""
    study = parse_study(text, "planted")
    located = study.model_copy(
        update={"workloads": tuple(w.model_copy(update={"suite": ROOT / str(w.suite)}) for w in study.workloads)}
    )
    plan = make_plan(located)
    records = run_study(machine, plan.launches, plan.prompts)
    return analyse("planted", Evidence(cell_data(record) for record in records), {})


# A step takes T = 5 + 1·N + t·(tokens in it) ms, a draft d ms more; K = 3, and reading takes no time.
# Interaction = [T(8, off) / T(8, on)] / [T(1, off) / T(1, on)], less a percent or two that the tail of the loop takes:
# d = 1.773, t = 0:  (13 / 14.773) / (6 / 7.773)      = 1.14   drafting is paid once however many streams share it
# d = 0, t = 0.5:    (17 / 29)     / (6.5 / 8)        = 0.7215 verifying is paid by every stream
@pytest.mark.parametrize(("draft_ms", "token_ms", "interaction"), [(1.773, 0.0, 1.14), (0.0, 0.5, 0.7215)])
def test_a_planted_interaction_is_found(draft_ms: float, token_ms: float, interaction: float) -> None:
    machine = replace(
        machine_of("small"),
        hardware=Hardware(fixed_s=0.005, per_sequence_s=0.001, per_token_s=token_ms / 1e3),
        prefill=Prefill(speed_tok_s=1e7),
        drafters={"*": Drafter(fixed_s=draft_ms / 1e3)},
        contents={"code": Content((0.6, 0.6, 0.6), eos_mean_tokens=4000)},
        noise=Noise(launch_sigma=0.005, step_sigma=0.02),
    )
    text = STUDY.replace(", {tag: json, suite: prompts/json.jsonl}", "").replace("[1, 4]", "[1, 8]")
    found = measured(machine, text.replace("prompts: 24", "prompts: 80"))
    (gain,) = (g for g in found.gains if g.concurrency == 8)
    assert gain.interaction.value == pytest.approx(interaction, rel=0.03)
    assert gain.interaction.low is not None
    assert gain.interaction.high is not None
    assert gain.interaction.low > 1 if interaction > 1 else gain.interaction.high < 1
    assert not gain.multiply


def test_the_planted_acceptance_lies_in_its_interval() -> None:
    machine, found = planted(1.0)
    for tag in ("code", "json"):
        truth = acceptance_truth(machine.contents[tag], 3, 96)
        length = cell(found, tag, "forced", "on", 1).acceptance_length
        assert length is not None
        assert length.low is not None
        assert length.high is not None
        assert length.low <= truth.acceptance_length <= length.high


def test_a_content_that_acts_only_through_acceptance_is_judged_so() -> None:
    _, found = planted(1.0)
    assert {c.only_acceptance for c in found.contents if c.concurrency == 1} == {"pass"}


def test_a_content_with_slower_steps_is_not() -> None:
    """8% longer steps lie outside the ±5% that would be equivalent; drafting, as long for both, dilutes it when on."""
    _, found = planted(1.08)
    ratios = {c.arm: c for c in found.contents if c.concurrency == 1}
    assert {c.only_acceptance for c in ratios.values()} == {"fail"}
    off, on = ratios["off"].steps_per_s_ratio.value, ratios["on"].steps_per_s_ratio.value
    assert off == pytest.approx(1.08, rel=0.005)
    assert on is not None
    assert off is not None
    assert 1.05 < on < off
