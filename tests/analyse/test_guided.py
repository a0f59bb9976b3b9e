"""Guided against free and the share of good texts: on machines whose truth is known, against textbook intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as distributions

from specprof.analyse.evidence import Evidence
from specprof.analyse.guided import GuidedFigures, guided_effects
from specprof.analyse.quality import QualityFigures, answer_quality, good_share, quality_notes
from specprof.analyse.results import Figure, StudyFigures
from specprof.analyse.study import analyse
from specprof.columns import cell_data
from specprof.engine.sim import Content, Drafter, Hardware, Machine, Noise, Prefill, machine_of
from specprof.engine.sim import run_study as run_virtual
from specprof.records import CellRecord, Phase, Role, Stop, TextMarks
from specprof.study.config import Study
from specprof.study.plan import make_plan
from specprof.study.reading import parse_study
from tests.factory import make_cell, make_data, make_request
from tests.running import ROOT

STUDY = f"""
study: guided
engine: {{kind: sim, preset: small}}
arms: {{"off": {{}}, "on": {{speculative_config: {{method: draft, num_speculative_tokens: 3}}}}}}
workloads: [{{tag: json, suite: {ROOT}/prompts/json.jsonl, quality: json}}]
protocols:
  free: {{stop: natural, max_tokens: 96}}
  guided: {{stop: natural, max_tokens: 96, guided: true}}
  shorter: {{stop: natural, max_tokens: 48}}
concurrency: [1, 4]
prompts: 24
blocks: 4
"""

# Conditional acceptance by position; AL = 1 + a + ab + abc.
FREE, GUIDED = (0.6, 0.5, 0.5), (0.9, 0.8, 0.8)
AL_FREE, AL_GUIDED = 1 + 0.6 + 0.6 * 0.5 + 0.6 * 0.25, 1 + 0.9 + 0.9 * 0.8 + 0.9 * 0.64
STEP_FREE_MS, STEP_GUIDED_MS = 10.0, 12.0  # the grammar's mask costs 2 ms a step


def machine(curve: tuple[float, ...], step_ms: float) -> Machine:
    """A machine whose step takes as long whatever is in it, and whose texts all run to their limit."""
    return replace(
        machine_of("small"),
        hardware=Hardware(fixed_s=step_ms / 1e3, per_sequence_s=0.0),
        prefill=Prefill(speed_tok_s=1e9),
        drafters={"*": Drafter()},
        contents={"json": Content(curve, prompt_spread=0.15, eos_mean_tokens=10_000)},
        noise=Noise(launch_sigma=0.01, step_sigma=0.02),
    )


@pytest.fixture(scope="module")
def records() -> list[CellRecord]:
    """Free cells of the one machine, guided cells of the other."""
    plan = make_plan(parse_study(STUDY, "guided"))
    free = run_virtual(machine(FREE, STEP_FREE_MS), plan.launches, plan.prompts)
    guided = run_virtual(machine(GUIDED, STEP_GUIDED_MS), plan.launches, plan.prompts)
    return [g if g.cell.guided else f for f, g in zip(free, guided, strict=True)]


def marked(records: list[CellRecord], good: Callable[[CellRecord, str], bool | None]) -> dict[str, TextMarks]:
    """Marks of every figure cell, measured rows by `good`."""
    found = {}
    for record in records:
        if record.cell.role is Role.FIGURE:
            rows = tuple(good(record, r.prompt_id) if r.phase is Phase.MEASURED else None for r in record.requests)
            found[record.cell.key] = TextMarks({"json": "json"}, "digest", rows, ("",) * len(rows))
    return found


def even(prompt_id: str) -> bool:
    return int(prompt_id.removeprefix("json-")) % 2 == 0


@pytest.fixture(scope="module")
def told(records: list[CellRecord]) -> tuple[StudyFigures, list[QualityFigures], list[GuidedFigures]]:
    evidence = Evidence(map(cell_data, records))
    figures = analyse("guided", evidence, {}, order=["json", "free", "guided", "shorter"])
    marks = marked(records, lambda record, name: record.cell.guided or even(name))
    quality = list(answer_quality(evidence, figures.cells, marks))
    return figures, quality, list(guided_effects(evidence, figures.cells, quality))


def pair(told: tuple[StudyFigures, list[QualityFigures], list[GuidedFigures]], arm: str, n: int) -> GuidedFigures:
    (found,) = (p for p in told[2] if (p.arm, p.concurrency) == (arm, n))
    return found


def holds(figure: Figure | None, truth: float) -> bool:
    assert figure is not None
    assert figure.low is not None
    assert figure.high is not None
    return figure.low <= truth <= figure.high


def test_each_guided_cell_has_its_free_one_beside_it(told) -> None:
    pairs = {(p.guided_protocol, p.free_protocol, p.arm, p.concurrency) for p in told[2]}
    assert pairs == {("guided", "free", arm, n) for arm in ("off", "on") for n in (1, 4)}
    assert {p.num_prompts for p in told[2]} == {24}


@pytest.mark.parametrize("n", [1, 4])
def test_acceptance_is_that_of_the_machines(told, n: int) -> None:
    on = pair(told, "on", n)
    assert on.acceptance_length_free is not None
    assert on.acceptance_length_guided is not None
    assert on.acceptance_length_ratio is not None
    assert on.acceptance_length_free.value == pytest.approx(AL_FREE, rel=0.05)
    assert on.acceptance_length_guided.value == pytest.approx(AL_GUIDED, rel=0.05)
    assert on.acceptance_length_ratio.value == pytest.approx(AL_GUIDED / AL_FREE, rel=0.05)
    quotient = (on.acceptance_length_guided.value or 0) / (on.acceptance_length_free.value or 1)
    assert on.acceptance_length_ratio.value == pytest.approx(quotient)
    assert holds(on.acceptance_length_ratio, AL_GUIDED / AL_FREE)
    off = pair(told, "off", n)
    assert (off.acceptance_length_free, off.acceptance_length_guided, off.acceptance_length_ratio) == (None, None, None)


@pytest.mark.parametrize("n", [1, 4])
def test_without_speculation_the_mask_is_all_that_differs(told, n: int) -> None:
    """Both write a token per step: decode speed and throughput fall by the step's own time."""
    off = pair(told, "off", n)
    truth = STEP_FREE_MS / STEP_GUIDED_MS
    assert off.decode_speed_ratio.value == pytest.approx(truth, rel=0.02)
    assert off.throughput_ratio.value == pytest.approx(truth, rel=0.03)
    assert holds(off.decode_speed_ratio, truth)
    assert off.speculation_gain_guided is None
    assert off.speculation_gain_ratio is None


@pytest.mark.parametrize("n", [1, 4])
def test_with_speculation_acceptance_pays_for_the_mask(told, n: int) -> None:
    """decode speed = AL / step time; a step costs the same with a draft as without, so the gain is AL."""
    on = pair(told, "on", n)
    truth = AL_GUIDED / AL_FREE * STEP_FREE_MS / STEP_GUIDED_MS
    assert on.decode_speed_ratio.value == pytest.approx(truth, rel=0.05)
    assert holds(on.decode_speed_ratio, truth)
    if n == 1:
        assert on.speculation_gain_free is not None
        assert on.speculation_gain_guided is not None
        assert on.speculation_gain_ratio is not None
        assert on.speculation_gain_free.value == pytest.approx(AL_FREE, rel=0.06)
        assert on.speculation_gain_guided.value == pytest.approx(AL_GUIDED, rel=0.06)
        assert on.speculation_gain_ratio.value == pytest.approx(AL_GUIDED / AL_FREE, rel=0.06)


def test_validity_stands_beside_the_speed(records, told) -> None:
    sent = next(record.cell.prompt_ids for record in records if record.cell.role is Role.FIGURE)
    for found in told[2]:
        assert found.good_request_share_guided.value == 1.0
        assert found.good_request_share_free.value == pytest.approx(sum(map(even, sent)) / 24)


def test_only_what_differs_by_guidance_alone_is_a_pair(told) -> None:
    assert not any("shorter" in (p.free_protocol, p.guided_protocol) for p in told[2])


def test_another_sampling_is_no_pair() -> None:
    def cell(**changes):
        return make_cell(stop=Stop.NATURAL, num_prompts=2, concurrency=1, **changes)

    cells = [
        cell(key="free", protocol="free"),
        cell(key="guided", protocol="guided", guided=True),
        cell(key="other", protocol="other", guided=True, prompt_ids=("code-000",)),
    ]
    evidence = Evidence(
        make_data(c, [make_request(name, start_s=4.0 * i) for i, name in enumerate(c.prompt_ids)]) for c in cells
    )
    figures = analyse("x", evidence, {})
    (found,) = guided_effects(evidence, figures.cells, ())
    assert (found.guided_protocol, found.free_protocol) == ("guided", "free")
    assert found.good_request_share_free == Figure(None)
    assert found.decode_speed_ratio.value == pytest.approx(1.0)


# -- quality ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("good", "n"), [(0, 8), (3, 8), (8, 8), (40, 80), (1, 1)])
def test_the_share_of_equal_prompts_has_wilsons_interval(good: int, n: int) -> None:
    expected = distributions.binomtest(good, n).proportion_ci(method="wilson")
    found = good_share(np.array([1.0] * good + [0.0] * (n - good)), np.ones(n))
    assert found.value == pytest.approx(good / n)
    assert found.low == pytest.approx(expected.low, abs=1e-12)
    assert found.high == pytest.approx(expected.high, abs=1e-12)


def test_blocks_of_the_same_prompts_are_no_more_evidence() -> None:
    """Four blocks in which every prompt does the same: 8 prompts, not 32 requests."""
    once = good_share(np.array([1.0, 1, 1, 0, 0, 0, 0, 0]), np.ones(8))
    four_times = good_share(np.array([4.0, 4, 4, 0, 0, 0, 0, 0]), np.full(8, 4.0))
    assert four_times == once


def test_prompts_of_unequal_weight_count_as_kish_has_it() -> None:
    """Weights 300, 100, 100: n = 500² / (90,000 + 10,000 + 10,000) = 2.27."""
    found = good_share(np.array([300.0, 0.0, 0.0]), np.array([300.0, 100.0, 100.0]))
    n, z, p = 25 / 11, 1.959963984540054, 0.6
    reach = z * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5
    assert found.value == pytest.approx(p)
    assert found.low == pytest.approx((p + z**2 / (2 * n) - reach) / (1 + z**2 / n))
    assert found.high == pytest.approx((p + z**2 / (2 * n) + reach) / (1 + z**2 / n))


def test_nothing_judged_is_no_share() -> None:
    assert good_share(np.empty(0), np.empty(0)) == Figure(None)


def test_shares_by_requests_and_by_tokens_are_different_numbers() -> None:
    """Good 60 tokens, bad 20, failed 20 (its tokens never arrived), and one that nobody could judge."""
    cell = make_cell(stop=Stop.NATURAL, num_prompts=4, concurrency=4)
    requests = [
        make_request(cell.prompt_ids[0], num_tokens=60, stream=0),
        make_request(cell.prompt_ids[1], num_tokens=20, stream=1),
        make_request(cell.prompt_ids[2], num_tokens=20, stream=2, error="timed out"),
        make_request(cell.prompt_ids[3], num_tokens=90, stream=3),
    ]
    evidence = Evidence([make_data(cell, requests)])
    figures = analyse("x", evidence, {})
    marks = {cell.key: TextMarks({"code": "code"}, "", (True, False, None, None), ("", "bad", "failed", "Go"))}
    (found,) = answer_quality(evidence, figures.cells, marks)
    assert (found.num_requests, found.num_good, found.num_bad, found.num_failed, found.num_unjudged) == (4, 1, 1, 1, 1)
    assert found.check == "code"
    assert found.good_request_share.value == pytest.approx(1 / 3)
    assert found.good_token_share.value == pytest.approx(60 / 100)
    assert found.good_tok_s.value == pytest.approx(60 / (figures.cells[0].wall_s.value or 0)), "METHOD 8: tokens / time"
    assert found.good_tok_s.low is None


def test_cells_without_marks_have_no_quality(records: list[CellRecord], told) -> None:
    evidence = Evidence(map(cell_data, records))
    assert list(answer_quality(evidence, told[0].cells, {})) == []
    assert all(p.good_request_share_free == Figure(None) for p in guided_effects(evidence, told[0].cells, ()))


def test_notes_tell_what_was_asked_for_and_is_not_judged(records: list[CellRecord]) -> None:
    study: Study = parse_study(STUDY, "guided")
    evidence = Evidence(map(cell_data, records))
    num_cells = sum(record.cell.role is Role.FIGURE for record in records)
    (note,) = quality_notes(study, evidence, {})
    assert note.startswith(f"The texts of {num_cells} cells are not judged yet")
    marks = marked(records, lambda *_: True)
    assert list(quality_notes(study, evidence, marks)) == []
    forced = Evidence([make_data(make_cell(tag="json", protocol="forced"))])
    (note,) = quality_notes(study, forced, {})
    assert note.startswith("json, forced: texts are not judged by 'json', since a forced text is cut")
    assert list(quality_notes(study, Evidence([make_data(make_cell(tag="code"))]), {})) == []
