"""Every fault of METHOD 7, planted in the simulator, and what the gates say of the study that has it.

Each study is measured twice on the virtual clock, with the fault and without it, on a machine as noisy as a real one.
What the faulty study is told beyond the clean one must be exactly the expected answers, with their severity and with
evidence that names the fault; and none of them may be in the clean study.

Two entries of the list are no faults. *Overshoot past EOS* (drafts accepted after the end are counted and not
delivered) and *phantom drafts* (a cached or new prompt adds a step that accepts nothing) are how vLLM counts
(seen with vLLM 0.32). Both bend the acceptance length, up and down, and leave tokens per engine step alone. So no
gate may answer; what is said of them is said by printing the two figures side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest

from benchmarks.false_alarms import Design, findings, records, suite_of, world
from specprof.analyse.evidence import Evidence
from specprof.analyse.results import CellFigures, GateFinding, Severity
from specprof.analyse.study import analyse
from specprof.columns import cell_data
from specprof.engine.sim import Faults, ForeignTraffic, Machine, Noise, Prefill, Scheduler
from specprof.records import Prompt, Sampling, Stop
from specprof.study.prompts import lint

INVALID, CAUTION = Severity.INVALID, Severity.CAUTION
SEED = 1
FORCED = Design(streams=(4,), stops=(Stop.FORCED,), blocks=1, prompts=16)
EIGHT = replace(FORCED, streams=(8,))
TWO_NS = replace(FORCED, streams=(1, 4))
NATURAL = replace(FORCED, stops=(Stop.NATURAL,))
SAMPLED = replace(NATURAL, prompts=48, sampling=Sampling(temperature=0.8, seed=3))

Answer = tuple[int, str, Severity]


def machine(contents: Mapping[str, Any] | None = None, **parts: Any) -> Machine:
    """The clean machine with some parts replaced; `contents`: parameters of the content `code`."""
    plain = world(SEED)
    code = replace(plain.contents["code"], **(contents or {}))
    return replace(plain, contents={**plain.contents, "code": code}, **parts)


def faulty(**faults: Any) -> Machine:
    return machine(faults=Faults(**faults))


@dataclass(frozen=True)
class Plant:
    """A study with a fault: where it is planted, and what has to be said."""

    name: str
    expected: Mapping[Answer, str]  # answer → words of its evidence
    machine: Machine = field(default_factory=lambda: world(SEED))
    design: Design = FORCED
    on_machine: Machine | None = None
    suite: Mapping[str, Prompt] | None = None


def copies() -> dict[str, Prompt]:
    """One prompt under many names."""
    text = next(iter(suite_of(SEED, FORCED).values())).text
    return {name: replace(prompt, text=text) for name, prompt in suite_of(SEED, FORCED).items()}


def random_tokens() -> dict[str, Prompt]:
    """Different prompts, all cut to the same length, as benchmark tools make them."""
    return {
        name: replace(prompt, text=prompt.text.ljust(140, "q")[:140]) for name, prompt in suite_of(SEED, FORCED).items()
    }


LOOPS = {"eos_mean_tokens": 20, "eos_sigma": 0.1, "loop_share": 0.6}
FAST = replace(world(SEED).hardware, fixed_s=0.001, per_sequence_s=0.0001, per_token_s=0.00002)

PLANTS = [
    Plant(
        "queueing at the cap",
        {(1, "server queue", CAUTION): "at most 2 ran"},  # gate 4 answers in both: without a cap, for the last wave
        machine(scheduler=Scheduler(max_num_seqs=2)),
        EIGHT,
    ),
    Plant(
        "a client that sends late",
        {(1, "client queue", CAUTION): "spent in the client"},
        faulty(client_late_s=0.02),
    ),
    Plant(
        "short natural stops",
        {(2, "short natural stops", CAUTION): "median output"},
        machine({"eos_mean_tokens": 60}),
        NATURAL,
    ),
    Plant("slow reading", {(3, "prefill", CAUTION): "was reading prompts"}, machine(prefill=Prefill(100.0)), TWO_NS),
    Plant(
        "cache hits",
        {(5, "prefix cache", INVALID): "of the prompt tokens came from the cache"},
        machine(scheduler=Scheduler(prefix_caching=True)),
    ),
    Plant(
        "drift",
        {
            (6, "drift", CAUTION): "% slower after launch",  # between the sentinels
            (6, "slowing down", CAUTION): "longer at the end of the cell",  # and inside a cell
        },
        machine(noise=Noise(launch_sigma=0.02, step_sigma=0.01, drift_per_minute=2.0)),
    ),
    Plant(
        "a machine that is still warming up",
        {(6, "warm-up", CAUTION): "longer than those at the end", (6, "drift", CAUTION): "% faster after launch"},
        machine(noise=Noise(launch_sigma=0.02, step_sigma=0.05, warmup_extra=1.5, warmup_tau_s=0.6)),
    ),
    Plant(
        "loops that inflate",
        {(7, "loops", INVALID): "prompts repeat themselves; tokens per step", (7, "loops", CAUTION): "repeat"},
        machine({**LOOPS, "loop_acceptance_factor": 1.3}),
    ),
    Plant(
        "loops that deflate",
        {(7, "loops", INVALID): "prompts repeat themselves; tokens per step", (7, "loops", CAUTION): "repeat"},
        machine({**LOOPS, "loop_acceptance_factor": 0.4}),
    ),
    Plant(
        "corrupted text at T = 0",
        {(8, "output changed", INVALID): "off/off control 0 of 16"},
        faulty(corrupt_greedy_share=0.6),
        TWO_NS,
    ),
    Plant(
        "foreign traffic",
        {(9, "foreign traffic", INVALID): "the requests sum to"},
        faulty(foreign=ForeignTraffic(rate_per_s=0.5, content="code")),
    ),
    Plant("preemptions", {(10, "preemptions", CAUTION): "were preempted"}, faulty(preemption_share=0.01)),
    Plant("texts cut short", {(10, "length", INVALID): "not the 128 tokens asked for"}, faulty(short_length_share=0.3)),
    Plant(
        "natural texts cut short",
        {(10, "length", INVALID): "were cut short of the 200 tokens allowed"},
        faulty(short_length_share=0.3),
        replace(NATURAL, natural_tokens=200),
    ),
    Plant(
        "length mismatch between sampled arms",
        {(10, "length mismatch", INVALID): "as long with speculation as without"},
        faulty(speculative_length_factor=0.7),
        SAMPLED,
    ),
    Plant(
        "an overloaded client",
        {(11, "client", CAUTION): "event loop late by 20.0 ms (p99), client CPU 95%"},
        faulty(client_cpu_share=0.95, client_loop_lag_p99_s=0.02),
    ),
    Plant("merged chunks", {(12, "merged chunks", CAUTION): "engine steps arrived as"}, faulty(merged_chunk_share=0.3)),
    Plant(
        "a speed-up above its cause: another machine for the other arm",
        {(12, "above its cause", INVALID): "× the tokens per step"},
        on_machine=machine(hardware=FAST),
    ),
    Plant(
        "filler that is guessed every time",
        {(12, "too good", INVALID): "draft position 1 was accepted in 100.0% of"},
        machine({"conditional_acceptance": (1.0, 0.8, 0.7, 0.6), "prompt_spread": 0.0}),
    ),
    Plant(
        "inactive speculation", {(13, "speculation inactive", INVALID): "no step"}, faulty(speculation_inactive=True)
    ),
    Plant(
        "copies of one prompt",
        {
            (14, "copied prompts", INVALID): "16 prompts were answered with 1 different text",
            (14, "prompts of one length", CAUTION): "all 16 prompts",
        },
        suite=copies(),
    ),
    Plant("random prompts", {(14, "prompts of one length", CAUTION): "40 tokens"}, suite=random_tokens()),
    Plant("overshoot past EOS", {}, faulty(overshoot_past_eos=True), NATURAL),
    Plant("phantom drafts", {}, faulty(phantom_drafts=1)),
]


def answers(found: Mapping[Any, tuple[GateFinding, ...]]) -> dict[Answer, list[GateFinding]]:
    told: dict[Answer, list[GateFinding]] = {}
    for finding in (gate for gates in found.values() for gate in gates):
        told.setdefault((finding.gate, finding.name, finding.severity), []).append(finding)
    return told


@cache
def clean(design: Design) -> dict[Answer, list[GateFinding]]:
    """What the same study is told without a fault."""
    return answers(findings(records(SEED, design, world(SEED))))


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_exactly_the_planted_fault_is_named(plant: Plant) -> None:
    told = answers(findings(records(SEED, plant.design, plant.machine, plant.suite, plant.on_machine)))
    sound = clean(plant.design)
    assert set(told) - set(sound) == set(plant.expected)
    assert not set(plant.expected) & set(sound)
    for answer, words in plant.expected.items():
        assert any(words in finding.evidence for finding in told[answer]), [f.evidence for f in told[answer]]
        assert all(finding.remedy for finding in told[answer])


def test_the_clean_studies_are_told_nothing_but_arithmetic() -> None:
    """Gate 4 adds up; everything else would be a suspicion without a reason."""
    for design in (FORCED, TWO_NS, NATURAL, SAMPLED):
        assert {gate for gate, _, _ in clean(design)} <= {4}


# -- where a fault shows, and where it must not ----------------------------------------------------------------------


def shown(plant_machine: Machine, design: Design) -> dict[str, CellFigures]:
    """The figures of a study of one cell per arm."""
    evidence = Evidence(cell_data(record) for record in records(SEED, design, plant_machine))
    return {cell.arm: cell for cell in analyse("planted", evidence, {}).cells}


@pytest.mark.parametrize(("factor", "inflates"), [(1.3, True), (0.4, False)])
def test_7_the_evidence_has_the_sign_of_the_loop(factor: float, inflates: bool) -> None:
    on = shown(machine({**LOOPS, "loop_acceptance_factor": factor}), FORCED)["on"]
    assert on.loops is not None
    whole, kept = on.loops.tokens_per_engine_step_all.value, on.loops.tokens_per_engine_step_unflagged.value
    assert whole is not None and kept is not None
    assert (whole > kept) is inflates


@pytest.mark.parametrize(
    "fault",
    [
        {"corrupt_greedy_share": 0.6},
        {"speculation_inactive": True},
        {"speculative_length_factor": 0.7},
    ],
)
def test_a_fault_of_speculation_is_not_held_against_the_off_arm(fault: dict[str, Any]) -> None:
    found = findings(records(SEED, TWO_NS, faulty(**fault)))
    assert all(gate.gate == 4 for key, gates in found.items() if key[2] == "off" for gate in gates)


def test_8_and_10_a_greedy_text_that_ends_earlier_is_another_text_too() -> None:
    """At T = 0 the arms must write the same: an earlier end changes a token, and gates 8 and 10 both see it.

    Shorter texts also leave other streams idle than the off arm's do, which gate 4 tells.
    """
    design = replace(NATURAL, streams=(1, 4))
    told = set(answers(findings(records(SEED, design, faulty(speculative_length_factor=0.7))))) - set(clean(design))
    idle = (4, "unexplained gain", CAUTION)
    found = {(gate, severity) for gate, name, severity in told if gate != 2 and (gate, name, severity) != idle}
    assert found == {(8, INVALID), (10, INVALID)}


def test_overshoot_and_phantoms_bend_acceptance_length_and_not_tokens_per_step() -> None:
    plain, past = (shown(m, NATURAL)["on"] for m in (world(SEED), faulty(overshoot_past_eos=True)))
    sound, phantom = (shown(m, FORCED)["on"] for m in (world(SEED), faulty(phantom_drafts=2)))

    def both(cell: CellFigures) -> tuple[float, float]:
        assert cell.acceptance_length is not None
        return cell.acceptance_length.value or 0.0, cell.tokens_per_engine_step.value or 0.0

    assert both(past)[0] > both(plain)[0]
    assert both(phantom)[0] < both(sound)[0]
    assert both(past)[1] == pytest.approx(both(plain)[1], rel=0.01)
    assert both(phantom)[1] == pytest.approx(both(sound)[1])


@pytest.mark.parametrize(("suite", "words"), [(copies(), "shares 100% of its text"), (random_tokens(), "repeats")])
def test_14_the_lint_names_such_prompts_before_anything_is_measured(suite: dict[str, Prompt], words: str) -> None:
    assert any(words in finding.problem for finding in lint(list(suite.values())))
