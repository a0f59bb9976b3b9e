"""Mixed traffic on machines whose step time is known: who is slowed by whom, and who is not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import exp, log
from statistics import fmean

import numpy as np
import pytest

from specprof.analyse.evidence import Evidence
from specprof.analyse.mixed import _scatter
from specprof.analyse.results import MixFigures, MixVerdict, StudyFigures
from specprof.analyse.samples import samples
from specprof.analyse.study import analyse
from specprof.columns import cell_data
from specprof.engine.sim import Content, Drafter, Faults, ForeignTraffic, Hardware, Machine, Noise, Prefill, machine_of
from specprof.engine.sim import run_study as run_virtual
from specprof.publish.card import card
from specprof.records import CellRecord, Phase, Request, Role
from specprof.study.plan import make_plan
from specprof.study.reading import parse_study
from tests.running import ROOT

STUDY = """
study: mixed
engine: {kind: sim, preset: small}
arms: {"off": {}, "on": {speculative_config: {method: METHOD, num_speculative_tokens: 3}}}
workloads: [{tag: code, suite: prompts/code.jsonl}, {tag: zh-prose, suite: prompts/zh_prose.jsonl}]
protocols:
  forced: {stop: forced, output_tokens: 96}
  mixed: {stop: forced, output_tokens: 96, mix: [code, zh-prose]}
concurrency: [1, 8]
prompts: 24
blocks: 4
"""
SLOWED, NOT_SLOWED, UNDECIDED = MixVerdict.SLOWED, MixVerdict.NOT_SLOWED, MixVerdict.UNDECIDED


@dataclass(frozen=True)
class Measured:
    """A study on the virtual clock: the records, and what analysis says of them."""

    records: list[CellRecord]
    figures: StudyFigures

    def mix(self, tag: str, arm: str = "on") -> MixFigures:
        (found,) = (m for m in self.figures.mixes if (m.tag, m.arm) == (tag, arm))
        return found

    def cells(self, tag: str, arm: str) -> list[CellRecord]:
        """The cells of one tag at N = 8, by block; a mixed cell's tag is `code+zh-prose`."""
        roles = (Role.FIGURE, Role.MIXED)
        return [r for r in self.records if r.cell.role in roles and where(r) == (tag, arm, 8)]


def where(record: CellRecord) -> tuple[str, str, int]:
    return record.cell.tag, record.cell.arm, record.cell.concurrency


def measured(machine: Machine, method: str = "draft", tokens: int = 96, **changes: str) -> Measured:
    text = STUDY.replace("METHOD", method).replace("96", str(tokens))
    for key, value in changes.items():
        text, count = re.subn(f"(?m)^{key}: .*$", f"{key}: {value}", text)
        assert count == 1
    study = parse_study(text, "mixed")
    located = tuple(w.model_copy(update={"suite": ROOT / str(w.suite)}) for w in study.workloads)
    plan = make_plan(study.model_copy(update={"workloads": located}))
    records = list(run_virtual(machine, plan.launches, plan.prompts))
    return Measured(records, analyse("mixed", Evidence(map(cell_data, records)), {}))


CODE = Content((0.85, 0.8, 0.8), prompt_spread=0.2, eos_mean_tokens=4000)
PROSE = Content((0.35, 0.3, 0.3), prompt_spread=0.2, eos_mean_tokens=4000)


def machine(*, token_ms: float, code: Content = CODE, prose: Content = PROSE, needs_match: bool = False) -> Machine:
    """A step over 8 sequences and n drafted tokens takes 5 + 0.5 · 8 + token_ms · (8 + n) ms, times what the contents
    in it add; prompts cost nothing to read.
    """
    return replace(
        machine_of("small"),
        hardware=Hardware(fixed_s=0.005, per_sequence_s=0.0005, per_token_s=token_ms / 1e3),
        prefill=Prefill(speed_tok_s=1e9),
        drafters={"*": Drafter(needs_match=needs_match)},
        contents={"code": code, "zh-prose": prose},
        noise=Noise(launch_sigma=0.01, step_sigma=0.02),
    )


# n-gram drafts: code always finds something to draft, prose in one step of twenty. K = 3, 8 streams, token_ms = 0.5:
# prose alone 9 + 0.5 · (8 + 1.2) = 13.6 ms a step, code alone 9 + 0.5 · (8 + 24) = 25 ms, and both together, four
# streams each, 9 + 0.5 · (8 + 12 + 0.6) = 19.3 ms. Without speculation 13 ms. Of about 30 steps that a text of code
# takes, one is gone before the next text joins: the mixed step is some 3% shorter than that.
PROSE_RATIO, CODE_RATIO = 13.6 / 19.3, 25 / 19.3
SELDOM = 0.05


@pytest.fixture(scope="module")
def burdened() -> Measured:
    """Drafting is dear, and only code drafts."""
    return measured(machine(token_ms=0.5, prose=replace(PROSE, match_share=SELDOM), needs_match=True), "ngram")


@pytest.fixture(scope="module")
def free() -> Measured:
    """The same, but verifying drafts costs nothing."""
    return measured(machine(token_ms=0.0, prose=replace(PROSE, match_share=SELDOM), needs_match=True), "ngram")


@pytest.fixture(scope="module")
def alike() -> Measured:
    """Both draft as much in every step; prose has seldom a draft accepted."""
    return measured(machine(token_ms=0.5))


def test_a_content_without_drafts_pays_for_those_of_the_other(burdened: Measured) -> None:
    prose = burdened.mix("zh-prose")
    assert prose.verdict is SLOWED
    assert prose.valid
    assert prose.decode_speed_ratio.value == pytest.approx(PROSE_RATIO, rel=0.04)
    assert prose.steps_per_s_ratio.value == pytest.approx(PROSE_RATIO, rel=0.04)
    assert prose.control_ratio is not None
    assert prose.control_ratio.value == pytest.approx(1, abs=0.02)
    assert prose.tested_ratio.value == pytest.approx(PROSE_RATIO, rel=0.04)


def test_the_content_whose_drafts_are_fewer_in_the_mix_gains_by_it(burdened: Measured) -> None:
    code = burdened.mix("code")
    assert code.verdict is NOT_SLOWED
    assert code.decode_speed_ratio.value == pytest.approx(CODE_RATIO, rel=0.02)


def test_speculation_gains_are_told_alone_and_in_the_mix(burdened: Measured) -> None:
    """On / off by decode speed: tokens per step × 13 ms / the time of a step with speculation."""
    for tag, alone_ms in (("zh-prose", 13.6), ("code", 25)):
        mix = burdened.mix(tag)
        per_step = tokens_per_step(burdened.cells(tag, "on"))
        assert mix.speculation_gain_alone is not None
        assert mix.speculation_gain_mixed is not None
        assert mix.speculation_gain_alone.value == pytest.approx(per_step * 13 / alone_ms, rel=0.03)
        assert mix.speculation_gain_mixed.value == pytest.approx(per_step * 13 / 19.3, rel=0.03)


def tokens_per_step(records: Iterable[CellRecord]) -> float:
    """Geometric mean over texts, each without its first chunk."""
    texts = [r.chunk_tokens[1:] for record in records for r in record.requests if r.phase is Phase.MEASURED]
    return exp(fmean(log(sum(chunks) / len(chunks)) for chunks in texts))


def test_nobody_is_slowed_where_drafts_cost_nothing(free: Measured) -> None:
    for tag in ("code", "zh-prose"):
        assert free.mix(tag).verdict is NOT_SLOWED
        assert free.mix(tag).decode_speed_ratio.value == pytest.approx(1, abs=0.02)


def test_low_acceptance_slows_nobody_where_both_draft_alike(alike: Measured) -> None:
    """Rejected drafts are verified in the same time as accepted ones."""
    assert alike.figures.mixes
    for mix in alike.figures.mixes:
        assert mix.verdict is NOT_SLOWED, mix
        assert mix.tested_ratio.value == pytest.approx(1, abs=0.02)


def test_a_slower_content_slows_the_other_with_speculation_off_and_is_not_blamed_on_it() -> None:
    """Steps of prose take 1.3 times as long whatever the arm: the batch takes 1.15, code alone 1."""
    slow_prose = measured(machine(token_ms=0.0, prose=replace(PROSE, step_time_factor=1.3)))
    off, on = slow_prose.mix("code", "off"), slow_prose.mix("code")
    assert off.verdict is SLOWED
    assert off.control_ratio is None
    assert off.decode_speed_ratio.value == pytest.approx(1 / 1.15, rel=0.02)
    assert on.decode_speed_ratio.value == pytest.approx(1 / 1.15, rel=0.02)
    assert on.control_ratio == off.decode_speed_ratio
    assert on.verdict is NOT_SLOWED
    assert on.tested_ratio.value == pytest.approx(1, abs=0.02)


# -- against the records themselves -----------------------------------------------------------------------------------


def chunk_times(request: Request) -> list[float]:
    return [at / 1e9 for at in request.chunk_ns]


def busy_until(record: CellRecord) -> float:
    """When the first stream had nothing more to send."""
    ends: dict[int, int] = {}
    for request in record.requests:
        if request.phase is not Phase.WARMUP:
            ends[request.stream] = max(ends.get(request.stream, 0), request.done_ns)
    assert len(ends) == record.cell.concurrency
    return min(ends.values()) / 1e9


def log_speeds(records: Iterable[CellRecord], tag: str) -> dict[tuple[int, str], float]:
    """ln(tokens per chunk of the whole text × chunks per second while all streams had work) by block and prompt."""
    found = {}
    for record in records:
        until = busy_until(record)
        for request in record.requests:
            times = [at for at in chunk_times(request) if at <= until]
            if request.phase is Phase.MEASURED and request.prompt_id.startswith(f"{tag}-") and len(times) > 8:
                per_step = sum(request.chunk_tokens[1:]) / (len(request.chunk_tokens) - 1)
                rate = (len(times) - 1) / (times[-1] - times[0])
                found[record.cell.block, request.prompt_id] = log(per_step * rate)
    return found


def mean_ratio(over: Mapping[tuple[int, str], float], under: Mapping[tuple[int, str], float]) -> float:
    """Geometric mean over prompts, then over blocks."""
    blocks = {block for block, _ in over}
    return exp(
        fmean(fmean(over[k] - under[k] for k in over if k in under and k[0] == block) for block in sorted(blocks))
    )


@pytest.mark.parametrize("tag", ["code", "zh-prose"])
@pytest.mark.parametrize("arm", ["off", "on"])
def test_the_decode_speed_ratio_is_that_of_the_records(burdened: Measured, tag: str, arm: str) -> None:
    mixed, alone = (log_speeds(burdened.cells(of, arm), tag) for of in ("code+zh-prose", tag))
    assert len(mixed) == 4 * 24
    assert burdened.mix(tag, arm).decode_speed_ratio.value == pytest.approx(mean_ratio(mixed, alone))


def test_acceptance_is_the_same_in_the_mix(burdened: Measured, alike: Measured) -> None:
    for found, tag in ((burdened, "code"), (alike, "code"), (alike, "zh-prose")):
        ratio = found.mix(tag).acceptance_length_ratio
        assert ratio is not None
        assert ratio.value == pytest.approx(1)
        assert ratio.low == pytest.approx(1)
        assert ratio.high == pytest.approx(1)
    assert alike.mix("code", "off").acceptance_length_ratio is None


def test_the_batch_holds_both_contents_for_as_long_as_anything_is_measured(burdened: Measured) -> None:
    """At every instant of a measured request's writing, 4 requests of each content are under way."""
    for record in burdened.cells("code+zh-prose", "on"):
        tags = dict(zip(record.cell.prompt_ids, record.cell.prompt_tags, strict=True))
        sent = [r for r in record.requests if r.phase is not Phase.WARMUP]
        begun = max(min(r.sent_ns for r in sent if r.stream == stream) for stream in range(8))
        ended = max(r.done_ns for r in sent if r.phase is Phase.MEASURED)
        assert any(r.phase is Phase.FILL for r in sent)
        assert sorted(r.prompt_id for r in sent if r.phase is Phase.MEASURED) == sorted(record.cell.prompt_ids)
        for at in range(begun + 1, ended, (ended - begun) // 50):
            under_way = [tags[r.prompt_id] for r in sent if r.sent_ns <= at < r.done_ns]
            assert (under_way.count("code"), under_way.count("zh-prose")) == (4, 4)


# -- what a mix is not ------------------------------------------------------------------------------------------------


def test_a_mix_is_in_no_figure_of_a_content(burdened: Measured) -> None:
    figures = burdened.figures
    assert {cell.tag for cell in figures.cells} == {"code", "zh-prose"}
    assert {cell.protocol for cell in figures.cells} == {"forced"}
    assert {gain.protocol for gain in figures.gains} == {"forced"}
    assert {pair.protocol for pair in figures.contents} == {"forced"}
    assert {found.tag for found in figures.prefill} == {"code", "zh-prose"}
    assert figures.cuts == ()
    told = card(figures)
    assert told["headlines"]
    assert {line["protocol"] for line in told["headlines"]} == {"forced"}
    assert {mix["tag"] for mix in told["mixes"]} == {"code", "zh-prose"}
    evidence = Evidence(map(cell_data, burdened.records))
    assert {sample.tag for sample in samples(evidence)} <= {"code", "zh-prose"}


def test_it_changes_no_other_figure(burdened: Measured) -> None:
    without = [record for record in burdened.records if record.cell.role is not Role.MIXED]
    alone = analyse("mixed", Evidence(map(cell_data, without)), {})
    assert alone == replace(burdened.figures, mixes=())


def test_no_gate_objects_to_a_sound_mix(burdened: Measured, alike: Measured) -> None:
    for mix in (*burdened.figures.mixes, *alike.figures.mixes):
        assert [gate for gate in mix.gates if gate.severity == "invalid"] == []
        assert not any(gate.gate == 9 for gate in mix.gates)
        assert mix.valid


def test_counters_are_held_against_what_filled_the_batch_too() -> None:
    """Somebody else's requests are not excused by the filling."""
    foreign = Faults(foreign=ForeignTraffic(rate_per_s=2.0, content="code"))
    found = measured(replace(machine(token_ms=0.0), faults=foreign), blocks="1")
    for mix in found.figures.mixes:
        assert (9, "foreign traffic") in {(gate.gate, gate.name) for gate in mix.gates}
        assert not mix.valid


def test_looping_text_speaks_for_no_content_in_a_mix_either() -> None:
    looping = replace(PROSE, eos_mean_tokens=20, loop_share=1.0, loop_period_tokens=6, loop_acceptance_factor=2.5)
    study = measured(machine(token_ms=0.0, prose=looping), tokens=200, blocks="1")
    (cell, *_) = (c for c in study.figures.cells if (c.tag, c.arm, c.concurrency) == ("zh-prose", "on", 8))
    assert not cell.valid
    assert not study.mix("code").valid
    assert study.mix("code", "off").valid


# -- what cannot be said ----------------------------------------------------------------------------------------------


def test_one_launch_tells_how_steady_it_ran_and_no_more() -> None:
    found = measured(machine(token_ms=0.5), blocks="1")
    mix = found.mix("code")
    assert mix.num_blocks == 1
    assert mix.tested_ratio.low is not None
    assert mix.tested_ratio.low < 1 < (mix.tested_ratio.high or 0)


def test_texts_too_short_to_tell_how_steady_a_launch_ran_decide_nothing() -> None:
    """Two texts of 40 tokens, a dozen steps each with drafts, are too few pieces of work to tell it by."""
    found = measured(machine(token_ms=0.5), tokens=40, blocks="1", prompts="2", concurrency="[1, 2]")
    code = found.mix("code")
    assert code.num_prompts == 2
    assert code.tested_ratio.value is not None
    assert code.tested_ratio.low is None
    assert code.verdict is UNDECIDED


def test_without_the_content_alone_nothing_is_decided(burdened: Measured) -> None:
    without = [r for r in burdened.records if (r.cell.tag, r.cell.role) != ("code", Role.FIGURE)]
    figures = analyse("mixed", Evidence(map(cell_data, without)), {})
    (code,) = (m for m in figures.mixes if (m.tag, m.arm) == ("code", "on"))
    assert code.verdict is UNDECIDED
    assert code.alone_protocol == ""
    assert code.decode_speed_ratio.value is None
    (prose,) = (m for m in figures.mixes if (m.tag, m.arm) == ("zh-prose", "on"))
    assert prose.verdict is SLOWED


def test_a_restless_machine_leaves_it_undecided() -> None:
    restless = replace(machine(token_ms=0.5), noise=Noise(launch_sigma=0.01, step_sigma=1.5))
    assert measured(restless, blocks="2", prompts="8").mix("code").verdict is UNDECIDED


def test_steps_that_were_read_all_at_once_are_no_evidence_of_scatter() -> None:
    """A client that was late stamps many steps with one instant; their gaps are zero, and so is what they tell."""
    at_once = np.zeros(1_000)
    assert _scatter(np.arange(1_000.0), at_once) == (0.0, 0)
    assert _scatter(np.arange(1_000.0), at_once + 0.05)[1] > 0
