"""Separating the gains, METHOD 4: the seed's table of eight throughputs, through the whole analysis."""

from __future__ import annotations

from math import exp, log

import pytest

from specprof.analyse import gains
from specprof.analyse.content import content_effects, identity, two_cuts
from specprof.analyse.evidence import Evidence, contrast
from specprof.analyse.results import Figure
from specprof.analyse.study import analyse
from specprof.records import Role, Stop
from tests.factory import (
    NGRAM,
    data,
    make_cell,
    make_data,
    make_request,
    make_requests,
    make_running_cell,
)

SEED = {  # aggregate tok/s of the forced 512-token runs [seed 000, chapter 4]: off N=1, off N=8, on N=1, on N=8
    "code": (53.0, 199.8, 140.6, 606.1),
    "zh-prose": (52.3, 228.3, 113.8, 359.3),
}
ON = {"arm": "mtp", "speculative_config": NGRAM, "accepted": (4, 0, 4)}
PIPELINES = data("public_tables.json")["pp_factorials"]


def factorial(tag, speeds, blocks=1):
    """Off and on, at one stream and at eight."""
    for block in range(blocks):
        for x, arm, n in zip(speeds, ({}, {}, ON, ON), (1, 8, 1, 8), strict=True):
            yield make_running_cell(x, tag=tag, concurrency=n, num_prompts=8, block=block, **arm)


def gains_of(tag, speeds):
    shown = analyse("seed", Evidence(factorial(tag, speeds)), {})
    return {gain.concurrency: gain for gain in shown.gains}


@pytest.mark.parametrize(
    ("tag", "batching", "batching_off", "speculation_1", "speculation_8", "interaction"),
    [("code", 4.311, 3.770, 2.653, 3.034, 1.144), ("zh-prose", 3.157, 4.365, 2.176, 1.574, 0.723)],
)
def test_the_seed_s_gains_and_their_interaction(tag, batching, batching_off, speculation_1, speculation_8, interaction):
    found = gains_of(tag, SEED[tag])
    assert found[8].batching_gain.value == pytest.approx(batching, rel=1e-3)
    assert found[8].batching_gain_off.value == pytest.approx(batching_off, rel=1e-3)
    assert found[1].speculation_gain.value == pytest.approx(speculation_1, rel=1e-3)
    assert found[8].speculation_gain.value == pytest.approx(speculation_8, rel=1e-3)
    assert found[8].interaction.value == pytest.approx(interaction, rel=1e-3)
    assert not found[8].multiply


@pytest.mark.parametrize(("on_8", "multiply"), [(405.0, True), (375.0, False), (430.0, False)])
def test_gains_may_be_multiplied_only_where_their_interaction_is_surely_near_one(on_8, multiply):
    """B(off) = 200 / 100 and B(on) = on_8 / 200: an interaction of 1.01, 0.94 and 1.08, in intervals of no width."""
    cells = factorial("code", (100.0, 200.0, 200.0, on_8), blocks=4)
    (found,) = [gain for gain in analyse("seed", Evidence(cells), {}).gains if gain.concurrency == 8]
    assert found.interaction.value == pytest.approx(on_8 / 400)
    assert found.multiply is multiply


@pytest.mark.parametrize(("off_1", "off_8", "on_1", "on_8"), [v for v in PIPELINES.values() if isinstance(v, list)])
def test_both_readings_of_the_interaction_agree_on_public_pipelines(off_1, off_8, on_1, on_8):
    by_batching = gains.interaction(gains.batching_gain(on_8, on_1), gains.batching_gain(off_8, off_1))
    by_speculation = gains.interaction(gains.speculation_gain(on_8, off_8), gains.speculation_gain(on_1, off_1))
    assert by_batching == pytest.approx(by_speculation)
    assert gains_of("code", (off_1, off_8, on_1, on_8))[8].interaction.value == pytest.approx(by_batching, rel=1e-6)


def test_a_cell_against_itself_gained_nothing_for_certain():
    found = gains_of("code", SEED["code"])[1]
    assert (found.batching_gain.low, found.batching_gain.value, found.batching_gain.high) == (1, 1, 1)
    assert (found.interaction.low, found.interaction.high) == (1, 1)


def test_without_one_stream_there_is_no_batching_gain_but_a_speculation_gain():
    cells = [cell for cell in factorial("code", SEED["code"]) if cell.cell.concurrency == 8]
    (gain,) = analyse("seed", Evidence(cells), {}).gains
    assert gain.batching_gain.value is None
    assert gain.interaction.value is None
    assert gain.speculation_gain.value == pytest.approx(3.034, rel=1e-3)


def test_a_gain_that_rests_on_an_invalid_cell_is_invalid():
    cells = list(factorial("code", SEED["code"]))
    broken = make_data(cells[0].cell, make_requests(cells[0].cell, num_tokens=60))  # N = 1, off: too short
    found = analyse("seed", Evidence([broken, *cells[1:]]), {}).gains
    assert [gain.valid for gain in found] == [False, False]
    assert all(gain.valid for gain in analyse("seed", Evidence(cells), {}).gains)


def test_step_time_ratio_shows_a_draft_that_is_accepted_and_still_slow():
    """96% accepted at K = 1 makes 1.96 tokens a step; at half the speed a step takes 3.92 times as long."""
    assert gains.step_time_ratio(1.96, off=100, on=50) == pytest.approx(3.92)


def test_a_gain_wholly_by_acceptance_is_wholly_mediated():
    assert gains.mediated_share(2.0, 2.0) == pytest.approx(1)
    assert gains.mediated_share(2.0, 2.0**0.5) == pytest.approx(2)  # steps got slower
    assert gains.mediated_share(2.0, 1.0) != gains.mediated_share(2.0, 1.0)  # no change to account for


def test_the_residual_is_what_the_factors_leave_over():
    assert gains.residual(3.54, 2.10, 1.69) == pytest.approx(3.54 / 3.549 - 1)


def test_the_account_of_a_gain_closes():
    for gain in gains_of("code", SEED["code"]).values():
        assert abs(gain.residual.value) < 0.05


def test_an_impossible_gain_is_flagged_on_its_cell():
    """Three times the throughput from two tokens a step."""
    cells = [make_running_cell(50.0), make_running_cell(150.0, arm="mtp", speculative_config=NGRAM, accepted=(0, 2, 1))]
    shown = {cell.arm: cell for cell in analyse("seed", Evidence(cells), {}).cells}
    assert "above its cause" in [gate.name for gate in shown["mtp"].gates]
    assert not shown["mtp"].valid
    assert shown["off"].valid


def test_ratios_are_paired_by_block():
    """Block 1 is a slower machine for both arms; the ratio does not see it."""
    pairs = ((100.0, 200.0), (70.0, 140.0))
    cells = [
        make_running_cell(x, block=b, arm=a) for b, (off, on) in enumerate(pairs) for a, x in (("off", off), ("on", on))
    ]
    off, on = (Evidence(cells).series["code", "forced", arm, 4] for arm in ("off", "on"))
    figure = contrast([(on, 1), (off, -1)])
    assert figure.value == pytest.approx(2)
    assert (figure.low, figure.high) == pytest.approx((2, 2), rel=1e-3)


def test_a_missing_cell_has_no_ratio():
    (series,) = Evidence([make_running_cell(100.0)]).series.values()
    assert contrast([(series, 1), (None, -1)]).value is None


# -- content --------------------------------------------------------------------------------------------------------


def test_the_identity_is_exact():
    """ln X/N = ln tokens per step + ln steps per second + ln decode share."""
    (series,) = Evidence(
        [make_running_cell(313.0, accepted=(0, 2, 1), arm="on", speculative_config=NGRAM)]
    ).series.values()
    causes = identity(series)
    assert causes.total == pytest.approx(log(313.0 / 4))
    assert exp(causes.tokens_per_step) == pytest.approx(63 / 32)


def test_texts_that_arrive_in_one_piece_have_no_identity_and_break_nothing():
    """A proxy that holds the stream back: every chunk of a text comes at the same instant, after all was written."""
    cells = [
        make_data(cell, make_requests(cell, step_s=0.0))
        for tag in ("code", "prose")
        for arm in ({}, {"arm": "on", "speculative_config": NGRAM})
        for cell in [make_cell(tag=tag, **arm)]
    ]
    evidence = Evidence(cells)
    assert {identity(series) for series in evidence.series.values()} == {None}
    figures = analyse("held back", evidence, {})
    assert figures.contents == ()
    assert len(figures.cells) == 4
    assert not [gate for cell in figures.cells for gate in cell.gates if gate.name == "above its cause"]


def two_contents(num_prompts=(8, 8), blocks=((0, 1), (0, 1))):
    """Same step time, code accepts 3 of every step and prose 1, each in its own blocks."""
    for tag, accepted, number, own in zip(("code", "prose"), ((3,), (1,)), num_prompts, blocks, strict=True):
        for block in own:
            named = {"tag": tag, "num_prompts": number, "block": block, "max_tokens": 129}
            cell = make_cell(arm="on", speculative_config=NGRAM, **named)
            yield make_data(cell, make_requests(cell, accepted=accepted))


def test_a_content_effect_that_is_all_acceptance():
    """Twice the tokens per step, and nothing else."""
    (effect,) = content_effects(Evidence(two_contents()))
    assert effect.tokens_per_step_ratio.value == pytest.approx(2.0)
    assert effect.steps_per_s_ratio.value == pytest.approx(1.0)
    assert effect.only_acceptance == "pass"


@pytest.mark.parametrize("blocks", [((0,), (0,)), ((0,), (1,)), ((0, 1), (1, 2))], ids=["one", "none", "one of three"])
def test_without_two_blocks_that_both_contents_have_it_stays_open_whether_acceptance_is_all(blocks):
    """Nothing tells how launches differ. The prompts alone, all alike here, leave an interval of no width."""
    (effect,) = content_effects(Evidence(two_contents(blocks=blocks)))
    assert effect.only_acceptance == "undecided"
    ratio = effect.steps_per_s_ratio
    assert (ratio.low, ratio.high) == (pytest.approx(ratio.value), pytest.approx(ratio.value))


@pytest.mark.parametrize("num_prompts", [(1, 8), (8, 1), (1, 1)])
def test_one_prompt_of_a_content_cannot_tell_whether_acceptance_is_all(num_prompts):
    (effect,) = content_effects(Evidence(two_contents(num_prompts)))
    assert effect.only_acceptance == "undecided"
    assert effect.steps_per_s_ratio == Figure(pytest.approx(1.0))


def test_a_content_effect_on_the_steps_themselves_is_found():
    """[seed 000, METHOD 10] with speculation off, prose at N = 8 was 14% faster than code: not only acceptance."""
    cells = [
        make_running_cell(x, tag=tag, concurrency=8, num_prompts=8, block=block)
        for tag, x in (("code", 199.8), ("prose", 228.3))
        for block in (0, 1)
    ]
    (effect,) = content_effects(Evidence(cells))
    assert log(effect.throughput_ratio.value) == pytest.approx(-0.1333, rel=0.01)
    assert effect.only_acceptance == "fail"


def test_the_two_cuts_of_the_seed():
    """171.2 → 359.3 → 606.1: the stop rule gave 2.10, the content 1.69, together 3.54."""
    natural = {"protocol": "natural", "stop": Stop.NATURAL}
    cells = [
        make_running_cell(171.2, tag="prose", **natural),
        make_running_cell(359.3, tag="prose"),
        make_running_cell(606.1, tag="code"),
    ]
    (cut,) = two_cuts(Evidence(cells))
    assert (cut.tag, cut.other_tag) == ("prose", "code")
    assert cut.stop_rule.value == pytest.approx(2.10, abs=0.005)
    assert cut.content.value == pytest.approx(1.69, abs=0.005)
    assert cut.whole.value == pytest.approx(3.54, abs=0.005)


# -- a whole study --------------------------------------------------------------------------------------------------


def test_a_cell_in_which_everything_failed_is_told_and_breaks_nothing():
    cell = make_cell(tag="json")
    failed = [
        make_request(n, error="HTTP 500: boom", token_ids=(), chunk_ns=(), chunk_tokens=()) for n in cell.prompt_ids
    ]
    shown = analyse("demo", Evidence([make_running_cell(100.0), make_data(cell, failed)]), {})
    assert [c.tag for c in shown.cells] == ["code"]
    assert "json, forced, off, N = 4: no figure, every request failed (HTTP 500: boom)." in shown.notes


def test_one_failed_block_is_a_gate_on_the_figure_of_the_others():
    good, bad = make_running_cell(100.0), make_cell(block=1)
    failed = [
        make_request(n, error="HTTP 500: boom", token_ids=(), chunk_ns=(), chunk_tokens=()) for n in bad.prompt_ids
    ]
    (shown,) = analyse("demo", Evidence([good, make_data(bad, failed)]), {}).cells
    assert not shown.valid
    assert shown.throughput_tok_s.value == pytest.approx(100.0)


def test_a_study_says_how_many_launches_its_intervals_know():
    one = analyse("demo", Evidence([make_running_cell(100.0)]), {}).notes
    two = analyse("demo", Evidence([make_running_cell(100.0, block=b) for b in range(2)]), {}).notes
    four = analyse("demo", Evidence([make_running_cell(100.0, block=b) for b in range(4)]), {}).notes
    assert "One launch per arm" in one[0]
    assert "2 launches per arm" in two[0]
    assert four == ()


def test_a_resumed_block_is_still_one_block():
    cells = [make_running_cell(100.0), make_data(make_cell(tag="json"), launch=1)]
    assert "One launch per arm" in analyse("demo", Evidence(cells), {}).notes[0]


def test_prefill_speed_is_measured_in_both_shapes():
    """4 prompts of 20 tokens read in 0.1 s at once: 800 tok/s; one of 5,600 in 2 s: 2,800 tok/s."""
    short = make_cell(role=Role.PREFILL, protocol="prefill", max_tokens=1)
    long = make_cell(
        role=Role.PREFILL, protocol="prefill-long", max_tokens=1, tag="long-code", concurrency=1, num_prompts=1
    )
    cells = [make_data(short), make_data(long, make_requests(long, ttft_s=2.0, prompt_tokens=5600))]
    prefill = analyse("demo", Evidence(cells), {}).prefill
    shown = {p.shape: p.speed_tok_s.value for p in prefill}
    assert shown == pytest.approx({"one long prompt alone": 2800, "short prompts at once": 800})
    assert all(p.valid and not p.gates for p in prefill)
