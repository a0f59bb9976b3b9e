"""Policy: on only where it surely pays, off only where it surely does not, and nothing beyond what was measured."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import pytest

from benchmarks.false_alarms import Design, records
from specprof.analyse.evidence import Evidence
from specprof.analyse.modelled import Crossover, ModelFigures
from specprof.analyse.results import Figure, GateFinding, MixFigures, MixVerdict, Severity
from specprof.analyse.study import analyse
from specprof.columns import cell_data
from specprof.decide.policy import Decision, choices, choose, protocol_named
from specprof.decide.ranges import MIXED_NOT_MEASURED, Basis, load_ranges, make_policy, mixed_caveats
from specprof.engine.sim import Content, Drafter, Hardware, Machine, Noise, Prefill, Scheduler
from specprof.errors import InputError
from specprof.records import Stop
from tests.decide.policies import LOOP, MARGIN, candidate, figures_of, measured, off, on, study, undecided

SLOW = GateFinding(6, "slowing down", Severity.CAUTION, "steps took 8% longer at the end", "Let it cool.")


# -- one load --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "decision"),
    [
        (1.031, 1.20, "on"),  # wholly above 1 + margin
        (1.03, 1.20, "undecided"),  # "exceeds" is more than touches
        (0.99, 1.20, "undecided"),
        (0.99, 1.03, "undecided"),
        (0.99, 1.029, "off"),  # it may gain, but less than the margin
        (0.80, 0.90, "off"),
    ],
)
def test_the_whole_interval_decides(low, high, decision):
    assert choose(4, [candidate(low, high)], MARGIN).decision is Decision(decision)


def test_off_says_whether_it_would_lose_or_only_gain_too_little():
    assert "lose" in choose(4, [candidate(0.80, 0.90)], MARGIN).reason
    assert "less than the margin of +3.0%" in choose(4, [candidate(0.99, 1.02)], MARGIN).reason


def test_undecided_says_what_would_settle_it():
    """Half-width ln(1.2 / 0.9) / 2 = 0.14384 = t₃ · s / 2, so s = 0.0904; distance ln(1.05 / 1.03) = 0.01923, which
    t · s / √n comes under for 88 blocks (t = 1.9876: 0.01915), not for 87 (1.9879: 0.01927).
    """
    choice = choose(4, [candidate(0.90, 1.20, blocks=4)], MARGIN)
    assert "about blocks: 88 (now 4)" in choice.reason


def test_the_fastest_arm_is_the_one_that_is_judged():
    slow, fast = candidate(1.10, 1.20, arm="k2", speed=110), candidate(0.98, 1.40, arm="k4", speed=120)
    choice = choose(4, [slow, fast], MARGIN)
    assert choice.best is fast
    assert choice.decision is Decision.UNDECIDED


def test_off_needs_every_arm_to_fall_short():
    """The fastest arm is surely no gain; a slower one was measured so badly that it may be."""
    narrow, wide = candidate(0.98, 1.02, arm="k2", speed=100), candidate(0.80, 1.15, arm="k4", speed=97)
    assert choose(4, [narrow, wide], MARGIN).decision is Decision.UNDECIDED
    assert choose(4, [narrow], MARGIN).decision is Decision.OFF


def test_a_gate_that_forbids_the_figure_leaves_it_undecided_with_its_remedy():
    choice = choose(4, [candidate(1.5, 1.6, gates=[LOOP])], MARGIN)
    assert choice.decision is Decision.UNDECIDED
    assert "gate 7 (loop)" in choice.reason and LOOP.remedy in choice.reason


def test_a_forbidden_arm_leaves_the_decision_to_the_others():
    bad, good = candidate(2.0, 2.2, arm="k4", speed=200, gates=[LOOP]), candidate(1.2, 1.3, arm="k2", speed=120)
    choice = choose(4, [bad, good], MARGIN)
    assert (choice.decision, choice.best) == (Decision.ON, good)
    (part,) = load_ranges("code", [choice], {})
    assert any("ngram K=4 was left out, gate 7" in caveat for caveat in part.caveats)


def test_a_caution_decides_but_is_told():
    (part,) = load_ranges("code", [choose(4, [candidate(1.2, 1.3, gates=[SLOW])], MARGIN)], {})
    assert part.decision is Decision.ON
    assert part.caveats == ("at 4 streams: gate 6 (slowing down): steps took 8% longer at the end",)


def test_one_block_decides_as_a_first_look_only():
    (first,) = load_ranges("code", [choose(1, [candidate(1.2, 1.3, blocks=1)], MARGIN)], {})
    (second,) = load_ranges("code", [choose(1, [candidate(1.2, 1.3, blocks=2)], MARGIN)], {})
    assert (first.decision, first.first_look) == (Decision.ON, True)
    assert not second.first_look


def test_a_gain_without_an_interval_is_undecided():
    bare = replace(candidate(1.2, 1.3), gain=Figure(1.25))
    assert choose(4, [bare], MARGIN).decision is Decision.UNDECIDED
    assert choose(4, [], MARGIN).decision is Decision.UNDECIDED


# -- load ranges -----------------------------------------------------------------------------------------------------


def spans(parts):
    return [(part.low, part.high, part.decision.value, part.num_speculative_tokens) for part in parts]


def test_neighbours_decided_alike_are_one_range_and_the_step_between_others_is_undecided():
    parts = load_ranges("code", [on(1), on(2), off(4), off(8)], {})
    assert spans(parts) == [(1, 2, "on", 4), (3, 3, "undecided", 0), (4, 8, "off", 0)]
    assert parts[1].basis is Basis.NONE
    assert "was not measured" in parts[1].reason


def test_what_lies_beside_an_undecided_load_is_undecided_with_it():
    assert spans(load_ranges("code", [on(2), undecided(4), off(8)], {})) == [
        (2, 2, "on", 4),
        (3, 7, "undecided", 0),
        (8, 8, "off", 0),
    ]


def test_another_draft_length_is_another_range():
    assert spans(load_ranges("code", [on(1, "k4"), on(2, "k2"), on(4, "k2")], {})) == [(1, 1, "on", 4), (2, 4, "on", 2)]


def test_the_expected_gain_is_that_of_the_load_which_speaks_least_for_the_decision():
    (part,) = load_ranges("code", [on(1, gain=1.6), on(2, gain=1.3)], {})
    assert part.expected_gain.value == pytest.approx(1.3)
    assert part.expected_at == 2


def crossover(low, high, where="inside"):
    return Crossover("code", "forced", "k4", Figure((low + high) / 2, low, high), where)


def test_a_crossover_settles_the_loads_that_lie_wholly_beyond_it():
    """The gain is under 1 from 4.4 at the latest: 5, 6, 7 are off, 3 and 4 stay open. It never switches 3 on."""
    parts = load_ranges("code", [on(1), on(2), off(8)], {("code", "k4"): crossover(3.6, 4.4)})
    assert spans(parts) == [(1, 2, "on", 4), (3, 4, "undecided", 0), (5, 8, "off", 0)]
    assert parts[2].basis is Basis.MODELLED
    assert any(c.startswith("5–7 streams: modelled, not measured") for c in parts[2].caveats)


def test_a_crossover_settles_nothing_beside_an_undecided_load_or_for_another_arm():
    falls = crossover(3.6, 4.4)
    assert spans(load_ranges("code", [on(2), undecided(8)], {("code", "k4"): falls}))[1][:3] == (3, 8, "undecided")
    assert spans(load_ranges("code", [on(2), off(8)], {("code", "k2"): falls}))[1] == (3, 7, "undecided", 0)


# -- from measured cells ---------------------------------------------------------------------------------------------


def decided(cells, **changes):
    """The choice at the one load of `code`, without a margin."""
    figures, evidence = figures_of(cells)
    (choice,) = choices(study(**changes), figures, evidence, "forced", 0.0)["code"]
    return choice


def around(gain: float, spread: float) -> list[float]:
    """Four blocks of throughput whose ln gain over 100 tok/s is ln `gain` ± `spread`."""
    return [100 * gain * exp(sign * spread) for sign in (1, -1, 1, -1)]


def test_the_best_of_several_arms_is_not_read_by_its_own_interval():
    """ln gains m ± d over four blocks have a standard error of d / √3. At d = 0.02 and t(3 degrees) the half-width is
    3.182 · 0.01155 = 0.0367 for one arm at 95%, and 4.177 · 0.01155 = 0.0482 for each of two: m = 0.0425 lies between.
    """
    best, other = around(exp(0.0425), 0.02), around(exp(0.03), 0.02)
    alone = decided(measured({"off": [100] * 4, "k4": best}))
    of_two = decided(measured({"off": [100] * 4, "k4": best, "k2": other}))
    assert alone.decision is Decision.ON
    assert alone.best.gain.low == pytest.approx(exp(0.0425 - 0.0367), rel=2e-3)
    assert of_two.best.arm == "k4"
    assert of_two.best.gain.low == pytest.approx(exp(0.0425 - 0.0482), rel=2e-3)
    assert of_two.decision is Decision.UNDECIDED


def test_arms_that_cannot_be_told_apart_are_named():
    same = decided(measured({"off": [100] * 4, "k4": around(1.52, 0.02), "k2": around(1.50, -0.02)}))
    apart = decided(measured({"off": [100] * 4, "k4": around(1.52, 0.002), "k2": around(1.30, 0.002)}))
    assert [other.method for other in same.tied] == ["ngram K=2"]
    assert apart.tied == ()


def test_planned_looks_widen_the_interval():
    """blocks: auto looks up to three times, at 97.8% each (Pocock); so the same cells say less."""
    cells = measured({"off": [100] * 4, "k4": around(1.2, 0.02)})
    once, planned = decided(cells).best.gain, decided(cells, blocks="auto").best.gain
    assert planned.low < once.low


def test_the_default_protocol_is_the_first_forced_one():
    assert protocol_named(study(), None) == "forced"
    assert protocol_named(study(), "natural") == "natural"
    with pytest.raises(InputError, match="--protocol nope: is not in this study; it has natural, forced"):
        protocol_named(study(), "nope")


def test_a_protocol_that_mixes_contents_cannot_decide_about_one():
    alone = {"stop": "forced", "output_tokens": 64}
    both = study(
        ("code", "json"), protocols={"mixed": {**alone, "mix": ["code", "json"]}, "alone": alone}, concurrency=[8]
    )
    assert protocol_named(both, None) == "alone"
    with pytest.raises(InputError, match="--protocol mixed: mixes contents, and a policy needs each alone: alone"):
        protocol_named(both, "mixed")


SERVED = {"stop": "natural", "max_tokens": 64, "load": {"kind": "rates", "rates": [1, 2], "duration": 30}}


def test_an_open_loop_decides_nothing_since_its_throughput_is_what_was_asked_of_it():
    closed = {"stop": "natural", "max_tokens": 64}
    both = study(protocols={"served": {"stop": "forced", "output_tokens": 64, "load": SERVED["load"]}, "plain": closed})
    assert protocol_named(both, None) == "plain"  # the forced one is open
    with pytest.raises(InputError) as refused:
        protocol_named(both, "served")
    assert str(refused.value) == (
        "--protocol served: is an open loop, whose throughput is what was asked of it; a policy needs a closed one: "
        "plain."
    )


def test_a_load_for_the_whole_study_leaves_the_protocols_with_streams_of_their_own_to_decide():
    natural = {"stop": "natural", "max_tokens": 64}
    protocols = {"served": natural, "closed": {**natural, "concurrency": [1, 8]}}
    assert protocol_named(study(protocols=protocols, load=SERVED["load"]), None) == "closed"


@pytest.mark.parametrize("name", [None, "served"])
def test_a_study_of_open_loops_alone_says_that_it_has_no_closed_one(name):
    with pytest.raises(InputError) as refused:
        protocol_named(study(protocols={"served": SERVED, "again": SERVED}), name)
    assert "no protocol of this study is a closed loop" in str(refused.value)
    assert "Add one with a concurrency:" in str(refused.value)


def mix(**changes) -> MixFigures:
    """Code in a batch with prose."""
    speeds = {name: Figure(50.0) for name in ("decode_speed_alone_tok_s", "decode_speed_mixed_tok_s")}
    ratios = {name: Figure(0.9) for name in ("decode_speed_ratio", "steps_per_s_ratio")}
    plain = MixFigures(
        tag="code",
        beside=("zh-prose",),
        protocol="mixed",
        stop="forced",
        length=64,
        alone_protocol="forced",
        arm="k4",
        method="ngram K=4",
        concurrency=8,
        num_prompts=16,
        num_blocks=4,
        **speeds,
        **ratios,
        acceptance_length_ratio=Figure(1.0),
        control_ratio=Figure(1.0),
        tested_ratio=Figure(0.88, 0.85, 0.91),
        speculation_gain_alone=Figure(1.5),
        speculation_gain_mixed=Figure(1.31, 1.24, 1.38),
        verdict=MixVerdict.SLOWED,
        gates=(),
        valid=True,
    )
    return replace(plain, **changes)


def test_what_a_shared_batch_does_is_told_in_place_of_the_warning():
    figures, _ = figures_of(measured({"off": [100], "k4": [150]}))
    assert mixed_caveats(figures) == (MIXED_NOT_MEASURED,)
    assert mixed_caveats(replace(figures, mixes=(mix(arm="off"),))) == (MIXED_NOT_MEASURED,)
    (told,) = mixed_caveats(replace(figures, mixes=(mix(), mix(arm="off"))))
    assert "code beside zh-prose at N=8, ngram K=4: slowed, 0.88× [0.85, 0.91] of its decode speed alone" in told
    assert "1.31× [1.24, 1.38] as fast" in told
    (unfit,) = mixed_caveats(replace(figures, mixes=(mix(valid=False),)))
    assert "a gate forbids" in unfit


def test_without_a_baseline_there_is_nothing_to_decide_by():
    figures, evidence = figures_of(measured({"k4": [100, 101]}))
    without = study().model_copy(update={"arms": {"k4": study().arms["k4"]}})
    with pytest.raises(InputError, match=r'without speculation.*Measure an arm "off"'):
        make_policy(without, figures, evidence, margin=MARGIN)


def test_a_baseline_that_is_only_not_measured_yet_is_not_asked_for_once_more():
    """Of a run that was interrupted: the arm is in the study, and no cell of it in the folder."""
    figures, evidence = figures_of(measured({"k4": [100, 101]}))
    with pytest.raises(InputError) as refused:
        make_policy(study(), figures, evidence, margin=MARGIN)
    assert str(refused.value) == (
        "study: arm 'off' is not measured yet under protocol 'forced', and every gain is held against it. Go on with "
        "'specprof run CONFIG', or name a protocol that is measured with --protocol."
    )


def test_a_content_that_was_not_measured_has_no_range():
    figures, evidence = figures_of(measured({"off": [100] * 4, "k4": around(1.5, 0.01)}))
    made = make_policy(study(("code", "json")), figures, evidence, margin=MARGIN)
    assert [(tag.tag, len(tag.ranges)) for tag in made.tags] == [("code", 1), ("json", 0)]


def test_the_models_of_the_protocol_settle_loads_between_measured_ones():
    cells = [
        *measured({"off": [100] * 4, "k4": around(1.5, 0.01)}, concurrency=2),
        *measured({"off": [200] * 4, "k4": [0.8 * 200 * x / 100 for x in around(1.0, 0.01)]}, concurrency=4),
    ]
    figures, evidence = figures_of(cells)

    def model(protocol):
        return ModelFigures(protocol, None, (), (), None, None, (crossover(2.4, 2.9),), ())

    def parts(protocol):
        made = make_policy(study(), figures, evidence, margin=MARGIN, models=[model(protocol)])
        return spans(made.tags[0].ranges)

    assert parts("natural") == [(2, 2, "on", 4), (3, 3, "undecided", 0), (4, 4, "off", 0)]
    assert parts("forced") == [(2, 2, "on", 4), (3, 4, "off", 0)]


# -- a simulated machine whose truth is known ------------------------------------------------------------------------


def machine(**changes) -> Machine:
    """A pass takes 20 ms and 4 ms per token in it; K = 4 makes that five tokens a sequence instead of one.

    Off: 24 ms at N = 1, 28 at 2, 84 at 16. On: 40, 60 and 340 ms. So on needs 1.67, 2.14 and 4.05 tokens a step to
    break even. Code gets 1 + .85 + .85·.80 + … = 3.4 of them, prose 1.3: code gains about 2 and 1.6 and loses at 16,
    prose always loses.
    """
    plain = Machine(
        name="policy",
        hardware=Hardware(fixed_s=0.020, per_sequence_s=0.0, per_token_s=0.004),
        prefill=Prefill(speed_tok_s=20_000, fixed_s=0.001),
        scheduler=Scheduler(gather_s=0.0),
        drafters={"*": Drafter()},
        contents={
            "code": Content((0.85, 0.80, 0.78, 0.75), prompt_spread=0.2),
            "zh-prose": Content((0.25, 0.20, 0.20, 0.20), prompt_spread=0.2),
        },
        noise=Noise(launch_sigma=0.01, step_sigma=0.03),
    )
    return replace(plain, **changes)


def simulated(seed: int, blocks: int = 4, **changes):
    design = Design(tags=("code", "zh-prose"), streams=(1, 2, 16), stops=(Stop.FORCED,), blocks=blocks, prompts=16)
    evidence = Evidence(cell_data(record) for record in records(seed, design, replace(machine(**changes), seed=seed)))
    spec = study(design.tags, {"on": {"method": "draft", "num_speculative_tokens": 4}}, blocks=blocks)
    return make_policy(spec, analyse("study", evidence, {}), evidence, margin=MARGIN)


def test_a_simulated_machine_gets_the_policy_it_was_built_for():
    made = simulated(seed=3)
    code, prose = made.tags
    assert spans(code.ranges) == [(1, 2, "on", 4), (3, 15, "undecided", 0), (16, 16, "off", 0)]
    assert spans(prose.ranges) == [(1, 16, "off", 0)]
    assert code.ranges[0].expected_gain.value == pytest.approx(3.4 / (60 / 28), rel=0.1)
    assert MIXED_NOT_MEASURED in made.caveats
    assert any("beyond 16 streams" in caveat for caveat in made.caveats)
    assert not any("first look" in caveat for caveat in made.caveats)


def test_launches_that_differ_by_a_third_decide_nothing():
    made = simulated(seed=5, blocks=2, noise=Noise(launch_sigma=0.33, step_sigma=0.03))
    found = {choice.decision for tag in made.tags for choice in tag.choices}
    assert found == {Decision.UNDECIDED}


def test_one_block_is_a_first_look_and_says_so():
    made = simulated(seed=3, blocks=1)
    assert all(part.first_look for tag in made.tags for part in tag.ranges if part.evidence)
    (caveat,) = (caveat for caveat in made.caveats if "a first look" in caveat)
    assert caveat.endswith("Decisions marked (first look) rest on it."), "as the table marks them"
