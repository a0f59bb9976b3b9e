"""`load:`, `targets:` and `quality:` of a study file: what is taken, and what is said of what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from specprof.errors import InputError
from specprof.study.load import Command, Goodput, Rates, Targets
from specprof.study.plan import make_plan
from specprof.study.reading import parse_study
from specprof.study.smallest import smallest_grid
from tests.running import ROOT, specprof

STUDY = """\
study: served
engine: {kind: sim, preset: small}
arms: {"off": {}}
workloads:
  - {tag: code, suite: prompts/code.jsonl, targets: {ttft: 1.5, tpot: 0.08}, quality: code}
  - {tag: json, suite: prompts/json.jsonl}
protocols:
  served: {stop: natural, max_tokens: 96, load: {kind: rates, rates: [0.5, 1, 2], duration: 60, warmup: 15}}
  forced: {stop: forced, output_tokens: 32, concurrency: [1, 2]}
prompts: 4
"""
LOAD = "load: {kind: rates, rates: [0.5, 1, 2], duration: 60, warmup: 15}"
TARGETS = "targets: {ttft: 1.5, tpot: 0.08}"
VERDICT = """\
verdicts: [{name: v, metric: throughput, protocol: served, workload: code, arm: "off",
            numerator: {concurrency: 2}, denominator: {concurrency: 1}, at_least: 1.5}]
"""


def changed(old: str, new: str) -> str:
    assert STUDY.count(old) == 1, old
    return STUDY.replace(old, new)


def test_a_load_is_read_as_written() -> None:
    study = parse_study(STUDY, "served.yaml")
    load = study.load_of("served")
    assert isinstance(load, Rates)
    assert (load.rates, load.duration, load.warmup, load.arrivals) == ((0.5, 1, 2), 60, 15, "poisson")
    assert (load.timeout, load.max_concurrency) == (120, None)
    assert study.load_of("forced") is None
    assert study.workloads[0].targets == Targets(ttft=1.5, tpot=0.08)
    assert study.workloads[0].quality == "code"


def test_the_study_s_load_is_for_every_protocol_that_names_no_streams_of_its_own() -> None:
    study = parse_study(changed(f", {LOAD}", "") + f"{LOAD}\n", "served.yaml")
    assert isinstance(study.load_of("served"), Rates)
    assert study.load_of("forced") is None


def test_a_goodput_search_and_a_command_of_one_s_own() -> None:
    text = changed(LOAD, "load: {kind: goodput, between: [0.5, 4], duration: 60}").replace(
        "quality: code", "quality: {command: [python3, check.py]}"
    )
    study = parse_study(text, "served.yaml")
    load = study.load_of("served")
    assert isinstance(load, Goodput)
    assert (load.between, load.rungs, load.share) == ((0.5, 4), 5, 0.90)  # METHOD 8: at least 90%
    assert study.workloads[0].quality == Command(command=("python3", "check.py"))


WHERE = "served.yaml:8: protocols.served.load"
BOTH_LOOPS = (
    "protocols.served: load: lets requests arrive by the clock, while concurrency: and mix: hold a number of streams; "
    "keep one of them (load.max_concurrency caps an open loop)"
)
REFUSALS = {
    "an unknown kind": (LOAD, "load: {kind: rate, rates: [1], duration: 60}", f"{WHERE}: kind must be one of rates, "),
    "no kind": (LOAD, "load: {rates: [1], duration: 60}", f"{WHERE}: kind must be one of rates, goodput, trace."),
    "a number for a load": (LOAD, "load: 5", f"{WHERE}: "),
    "a mistyped key": (
        "duration: 60",
        "duraton: 60",
        "served.yaml:8: unknown key 'protocols.served.load.duraton'. Did you mean 'duration'?",
    ),
    "a key of another kind": (
        "warmup: 15",
        "between: [1, 2]",
        "served.yaml:8: unknown key 'protocols.served.load.between'.",
    ),
    "no duration": ("duration: 60, ", "", "served.yaml:8: 'protocols.served.load.duration' is missing. Add it."),
    "falling rates": (
        "[0.5, 1, 2]",
        "[2, 1]",
        f"{WHERE}.rates: must rise, each rate once; the curve is climbed from the smallest",
    ),
    "a rate twice": ("[0.5, 1, 2]", "[1, 1]", f"{WHERE}.rates: must rise, each rate once"),
    "a rate of nothing": ("[0.5, 1, 2]", "[0, 1]", f"{WHERE}.rates.0: Input should be greater than 0 (it says 0)"),
    "a rate without end": ("[0.5, 1, 2]", "[.inf]", f"{WHERE}.rates.0: Input should be a finite number"),
    "no rates": ("[0.5, 1, 2]", "[]", f"{WHERE}.rates: "),
    "a warm-up in the past": ("warmup: 15", "warmup: -1", f"{WHERE}.warmup: Input should be greater than or equal"),
    "burstiness of a poisson": (
        "warmup: 15",
        "burstiness: 0.25",
        f"{WHERE}: burstiness: belongs to arrivals: gamma; arrivals are poisson",
    ),
    "unknown arrivals": (
        "warmup: 15",
        "arrivals: uniform",
        f"{WHERE}.arrivals: Input should be 'poisson', 'gamma' or 'constant' (it says 'uniform')",
    ),
    "ends of a goodput the wrong way": (
        LOAD,
        "load: {kind: goodput, between: [4, 1], duration: 60}",
        f"{WHERE}.between: must be [smallest rate, largest rate]",
    ),
    "a share of more than all": (
        LOAD,
        "load: {kind: goodput, between: [1, 4], duration: 60, share: 90}",
        f"{WHERE}.share: Input should be less than 1 (it says 90",
    ),
    "streams beside it": (
        LOAD,
        f"{LOAD}, concurrency: [1]",
        BOTH_LOOPS,
    ),
    "a mix beside it": (LOAD, f"{LOAD}, mix: [code, json]", "protocols.served: load: lets requests arrive by"),
    "a verdict on it": (
        "prompts: 4\n",
        f"prompts: 4\n{VERDICT}",
        "verdicts 'v' protocol: 'served' is an open loop, whose throughput is what was asked of it; a verdict speaks",
    ),
    "targets that ask nothing": (
        TARGETS,
        "targets: {}",
        "served.yaml:5: workloads.0.targets: name at least one of ttft, tpot and e2el, in seconds",
    ),
    "a mistyped target": (
        TARGETS,
        "targets: {ttfb: 1}",
        "served.yaml:5: unknown key 'workloads.0.targets.ttfb'. Did you mean 'ttft'?",
    ),
    "a target of no time": (TARGETS, "targets: {ttft: 0}", "workloads.0.targets.ttft: Input should be greater than 0"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_measured_is_refused_with_what_where_and_what_instead(name: str) -> None:
    old, new, message = REFUSALS[name]
    with pytest.raises(InputError) as problem:
        parse_study(changed(old, new), "served.yaml")
    assert message in str(problem.value)
    assert str(problem.value).startswith("served.yaml:")


def test_a_protocol_may_be_called_load() -> None:
    with pytest.raises(InputError, match=r"served\.yaml:8: protocols\.load\.max_tokens: Input should be"):
        parse_study(
            changed("served: {stop: natural, max_tokens: 96", "load: {stop: natural, max_tokens: no"), "served.yaml"
        )


def test_a_rate_too_low_for_its_window_is_refused_before_anything_runs() -> None:
    text = changed("[0.5, 1, 2]", "[0.0001, 1]").replace("suite: prompts", f"suite: {ROOT}/prompts")
    with pytest.raises(
        InputError, match=r"protocols\.served\.load: at 0\.0001 req/s no request is due .* 60 s .*Raise"
    ):
        make_plan(parse_study(text, "served.yaml"))


# -- what a plan says of it -------------------------------------------------------------------------------------------


def told(tmp_path: Path, text: str, *more: str) -> str:
    path = tmp_path / "served.yaml"
    path.write_text(text.replace("suite: prompts", f"suite: {ROOT}/prompts"), encoding="utf-8")
    done = specprof("plan", path, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_plan_says_each_open_loop_in_words_and_how_many_cells_at_most(tmp_path: Path) -> None:
    said = told(tmp_path, STUDY)
    words = (
        "served: natural, at most 96 tokens · code, json · open loop, Poisson, 0.5, 1, 2 req/s, 60 s each after 15 s"
    )
    assert words in said
    # two contents: three rungs each; forced at N = 1 and 2 each, and their prefill; a sentinel before and after
    assert "1 launches, up to 16 cells" in said


def test_a_goodput_search_counts_the_rungs_it_visits(tmp_path: Path) -> None:
    load = "load: {kind: goodput, between: [0.5, 4], rungs: 4, duration: 60, max_concurrency: 8}"
    said = told(tmp_path, changed(LOAD, load))
    assert "1 launches, 18 cells" in said  # 4 rungs of each content, of the 15 it may come to
    assert (
        "open loop, Poisson, 4 rungs between 0.5 and 4 req/s to find where 90% are on target, 60 s each after 10 s, "
        "at most 8 at once" in said
    )


def test_a_policy_is_decided_in_closed_loops() -> None:
    text = changed("stop: natural, max_tokens: 96", "stop: forced, output_tokens: 96").replace(
        'arms: {"off": {}}', 'arms: {"off": {}, "on": {speculative_config: {method: draft, num_speculative_tokens: 3}}}'
    )
    assert list(smallest_grid(parse_study(text, "served.yaml")).study.protocols) == ["forced"]
