"""Mixed traffic: how a study asks for it, what is planned, how it is driven, and that nothing else changed its name."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from specprof.columns import requests_of
from specprof.errors import InputError
from specprof.measure.load import FILL_ROUNDS, Order, connected, mixed_loop
from specprof.records import Cell, Phase, Role
from specprof.store import Store
from specprof.study.config import Study
from specprof.study.estimate import Rates, launch_seconds
from specprof.study.plan import Plan, cell_key, make_plan
from specprof.study.reading import parse_study
from tests.measure.sse import Vllm, serving
from tests.running import ROOT, figures, specprof

STUDY = """\
study: mixed
engine: {kind: sim, preset: small}
arms: {"off": {}, "on": {speculative_config: {method: draft, num_speculative_tokens: 3}}}
workloads: [{tag: code, suite: prompts/code.jsonl}, {tag: json, suite: prompts/json.jsonl}]
protocols:
  forced: {stop: forced, output_tokens: 32}
  mixed: {stop: forced, output_tokens: 32, mix: [code, json]}
concurrency: [1, 2, 4]
prompts: 4
"""
ALONE = "  mixed: {stop: forced, output_tokens: 32, mix: [code, json]}\n"


def changed(*pairs: tuple[str, str]) -> str:
    text = STUDY
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def planned(text: str) -> Plan:
    return make_plan(located(parse_study(text, "mixed.yaml")))


def located(study: Study) -> Study:
    """The suites found from the project's folder."""
    workloads = tuple(w.model_copy(update={"suite": ROOT / str(w.suite)}) for w in study.workloads)
    return study.model_copy(update={"workloads": workloads})


def mixed(plan: Plan) -> list[Cell]:
    return [cell for cell in plan.launches[0].cells if cell.role is Role.MIXED]


# -- the study file ---------------------------------------------------------------------------------------------------

MIX = "mix: [code, json]"
REFUSALS = {
    "one content": ((MIX, "mix: [code]"), "protocols.mixed: mix: takes at least two workload tags"),
    "an unknown tag": (
        (MIX, "mix: [code, jason]"),
        "protocols.mixed.mix: 'jason' is not in this study; it has code, json",
    ),
    "twice the same": ((MIX, "mix: [code, code]"), "protocols.mixed.mix: 'code' stands twice; once is enough"),
    "workloads beside it": (
        (MIX, "mix: [code, json], workloads: [code]"),
        "protocols.mixed: mix: names the workloads itself; leave workloads: out",
    ),
    "one stream": (
        (MIX, "mix: [code, json], concurrency: [1]"),
        "protocols.mixed: N = 1 is not measured: 2 contents share the streams evenly; use a multiple of 2",
    ),
    "an odd share": (
        (MIX, "mix: [code, json], concurrency: [4, 3]"),
        "protocols.mixed: N = 3 is not measured: 2 contents share the streams evenly; use a multiple of 2",
    ),
    "nothing to compare with": (
        ("forced: {stop: forced, output_tokens: 32}", "forced: {stop: forced, output_tokens: 64}"),
        "protocols.mixed: N = 1 is not measured",
    ),
    "not the same sampling": (
        ("forced: {stop: forced, output_tokens: 32}", "forced: {stop: forced, output_tokens: 32, sampling: {seed: 7}}"),
        "protocols.mixed: N = 1 is not measured",
    ),
    "only one content alone": (
        ("forced: {stop: forced, output_tokens: 32}", "forced: {stop: forced, output_tokens: 32, workloads: [code]}"),
        "protocols.mixed: N = 1 is not measured",
    ),
    "an N nobody measures alone": (
        (MIX, "mix: [code, json], concurrency: [8]"),
        "N = 8 is not measured: code is not measured alone there; add a protocol that does",
    ),
    "a tag that reads like the mix": (
        ("{tag: json, suite: prompts/json.jsonl}]", "{tag: json, suite: a}, {tag: code+json, suite: b}]"),
        "workloads: tag 'code+json' is what protocols.mixed calls its mix; rename",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_could_answer_nothing_is_refused(name: str) -> None:
    change, message = REFUSALS[name]
    with pytest.raises(InputError) as problem:
        parse_study(changed(change), "mixed.yaml")
    assert str(problem.value).startswith("mixed.yaml:")
    assert message in str(problem.value)


def test_the_line_named_is_that_of_the_protocol() -> None:
    with pytest.raises(InputError, match=r"mixed\.yaml:7: protocols\.mixed: mix: takes at least two"):
        parse_study(changed((MIX, "mix: [code]")), "mixed.yaml")


def test_a_mistyped_mix_is_told_what_it_is_near() -> None:
    with pytest.raises(InputError, match=r"unknown key 'protocols\.mixed\.mixx'\. Did you mean 'mix'\?"):
        parse_study(changed((MIX, "mixx: [code, json]")), "mixed.yaml")


def test_a_verdict_speaks_of_one_content() -> None:
    verdict = """\
verdicts: [{name: v, metric: throughput, protocol: mixed, workload: code, arm: "on",
            numerator: {concurrency: 4}, denominator: {concurrency: 2}, at_least: 1.5}]
"""
    with pytest.raises(InputError, match="verdicts 'v' protocol: 'mixed' mixes contents; a verdict speaks of one"):
        parse_study(STUDY + verdict, "mixed.yaml")


# -- the plan ---------------------------------------------------------------------------------------------------------


def test_contents_take_turns_and_every_prompt_keeps_its_tag() -> None:
    for cell in mixed(planned(STUDY)):
        assert cell.tag == "code+json"
        assert cell.prompt_tags == ("code", "json") * 4
        assert [name.split("-")[0] for name in cell.prompt_ids] == list(cell.prompt_tags)
        assert len(set(cell.prompt_ids)) == 8
        assert (cell.protocol, cell.max_tokens, cell.stop.value) == ("mixed", 32, "forced")


def test_the_contents_alone_are_the_same_prompts_in_the_same_order() -> None:
    cells = planned(STUDY).launches[0].cells
    (mix,) = (c for c in cells if c.role is Role.MIXED and c.concurrency == 2)
    for tag in ("code", "json"):
        (alone,) = (c for c in cells if (c.tag, c.protocol, c.concurrency) == (tag, "forced", 2))
        assert alone.prompt_ids == tuple(p for p, t in zip(mix.prompt_ids, mix.prompt_tags, strict=True) if t == tag)


def test_one_stream_is_left_out_with_a_note() -> None:
    plan = planned(STUDY)
    assert sorted(cell.concurrency for cell in mixed(plan)) == [2, 4]
    (note,) = plan.notes
    assert note.startswith("protocols.mixed: N = 1 is not measured: 2 contents share the streams evenly")


def test_more_streams_than_a_content_has_prompts_are_left_out_with_a_note() -> None:
    """Alone it could not fill them, so there would be nothing to compare with."""
    plan = planned(changed(("concurrency: [1, 2, 4]", "concurrency: [2, 8]")))
    assert [cell.concurrency for cell in mixed(plan)] == [2]
    assert plan.notes == (
        "protocols.mixed: N = 8 is not measured: code alone would not fill 8 streams; raise prompts: to 8 at least.",
    )


def test_contents_of_unequal_number_take_turns_while_they_last() -> None:
    short = json_ids(3)
    plan = planned(
        changed(
            ("suite: prompts/json.jsonl}", f"suite: prompts/json.jsonl, ids: {json.dumps(short)}}}"),
            ("concurrency: [1, 2, 4]", "concurrency: [2]"),
        )
    )
    (cell,) = mixed(plan)
    assert cell.prompt_tags == ("code", "json") * 3 + ("code",)


def json_ids(count: int) -> list[str]:
    lines = (ROOT / "prompts" / "json.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["id"] for line in lines[:count]]


def test_a_plan_counts_the_mixed_cells_and_their_time() -> None:
    with_mix, without = planned(STUDY).launches[0], planned(changed((ALONE, ""))).launches[0]
    assert len(with_mix.cells) - len(without.cells) == 2
    rates = Rates(decode=10.0, prefill=1e9)
    # 8 texts of 32 tokens at 10 tok/s on 2 streams (2^0.9 times as fast) and on 4; 0.5 s and a warm-up of 8 tokens each
    added = sum(8 * 32 / (10 * n**0.9) + 0.5 + 0.8 for n in (2, 4))
    assert launch_seconds(with_mix, rates) - launch_seconds(without, rates) == pytest.approx(added, rel=1e-4)


def test_specprof_plan_says_what_is_mixed_and_what_is_not(tmp_path: Path) -> None:
    told = specprof("plan", written(tmp_path, STUDY))
    assert told.returncode == 0, told.stderr
    assert "mixed: forced 32 tokens · code+json · N = 2, 4 · 8 prompts each" in told.stdout
    assert "protocols.mixed: N = 1 is not measured" in told.stdout


# -- identity: what was measured before mixes could be written keeps its name -----------------------------------------


def test_the_committed_study_is_still_the_same_study() -> None:
    store = Store.existing(ROOT / "results" / "demo")
    study = parse_study(store.study_text, "demo")
    assert study.content_hash() == (store.root / "study.sha256").read_text().split()[0]


def test_the_committed_cells_keep_their_keys() -> None:
    cells = [data.cell for data in Store.existing(ROOT / "results" / "demo").cells()]
    assert cells
    assert [cell_key(cell) for cell in cells] == [cell.key for cell in cells]


def test_a_mix_adds_cells_and_renames_none() -> None:
    with_mix, without = (planned(text) for text in (STUDY, changed((ALONE, ""))))
    old = {cell.key for cell in without.cells}
    assert old < {cell.key for cell in with_mix.cells}
    assert {cell.role for cell in with_mix.cells if cell.key not in old} == {Role.MIXED}


def test_another_mix_is_another_study() -> None:
    one, other = (parse_study(changed((MIX, mix)), "mixed.yaml") for mix in (MIX, "mix: [json, code]"))
    assert one.content_hash() != other.content_hash()


# -- driving it -------------------------------------------------------------------------------------------------------


def lane(name: str, count: int, tokens: int) -> list[Order]:
    body = json.dumps({"max_tokens": tokens}).encode()
    return [Order(f"{name}-{i}", Phase.MEASURED, body) for i in range(count)]


def drive(vllm: Vllm, lanes: list[list[Order]], concurrency: int, done: list[int]) -> list[Any]:
    import asyncio

    def noted() -> None:
        done.append(time.perf_counter_ns())

    async def run() -> list[Any]:
        async with connected(vllm.base_url, concurrency) as session:
            return await mixed_loop(session, "/v1/completions", lanes, concurrency, noted)

    return asyncio.run(run())


def test_streams_keep_to_their_content_and_the_faster_one_fills_until_the_slower_is_done() -> None:
    done: list[int] = []
    with serving(Vllm(step_s=0.01)) as vllm:
        raw = drive(vllm, [lane("quick", 3, 2), lane("slow", 3, 20)], 4, done)
    assert {(r.stream % 2, r.prompt_id.split("-")[0]) for r in raw} == {(0, "quick"), (1, "slow")}
    measured = [r for r in raw if r.phase is Phase.MEASURED]
    assert sorted(r.prompt_id for r in measured) == [f"{name}-{i}" for name in ("quick", "slow") for i in range(3)]
    assert len(done) == 6
    last = max(r.done_ns for r in measured)
    for stream in range(4):  # at work until the last measured text is done
        assert max(r.done_ns for r in raw if r.stream == stream) >= last
    filling = [r for r in raw if r.phase is Phase.FILL]
    assert {r.prompt_id.split("-")[0] for r in filling} >= {"quick"}
    # The last text's end is known to the loop a moment after its last bytes came: by then others may have gone out.
    assert all(r.scheduled_ns < done[-1] for r in filling)


def test_an_engine_that_refuses_one_content_is_not_asked_for_ever() -> None:
    done: list[int] = []
    with serving(Vllm(status=503)) as vllm:
        raw = drive(vllm, [lane("a", 2, 4), lane("b", 2, 4)], 2, done)
    assert len(done) == 4
    assert len(raw) <= 4 * (1 + FILL_ROUNDS)


# -- over a socket, through study file, plan, store and report --------------------------------------------------------


def written(folder: Path, text: str) -> Path:
    path = folder / "mixed.yaml"
    path.write_text(text.replace("suite: prompts", f"suite: {ROOT}/prompts"), encoding="utf-8")
    return path


def test_a_mixed_study_runs_resumes_and_reports(tmp_path: Path) -> None:
    text = changed(
        ("concurrency: [1, 2, 4]", "concurrency: [1, 4]"),
        ("preset: small}", "preset: small, time_scale: 4}"),
        ("prompts: 4", "prompts: 16"),
    ).replace("tokens: 32", "tokens: 64")
    path = written(tmp_path, text)
    run = specprof("run", path, "--results", tmp_path)
    assert run.returncode == 0, run.stderr
    assert "Mixed traffic" in run.stdout
    folder = tmp_path / "mixed"
    cells = [data for data in Store.existing(folder).cells() if data.cell.role is Role.MIXED]
    assert {data.cell.arm for data in cells} == {"off", "on"}
    for data in cells:
        assert data.cell.prompt_tags == ("code", "json") * 16
        phases = [r.phase for r in requests_of(data.requests)]
        assert phases.count(Phase.MEASURED) == 32
        assert all(r.error is None for r in requests_of(data.requests))
    told = figures(folder)
    assert {(m["tag"], m["arm"], m["concurrency"]) for m in told["mixes"]} == {
        (tag, arm, 4) for tag in ("code", "json") for arm in ("off", "on")
    }
    for mix in told["mixes"]:
        # Alone, the last four may end before a text is eight steps long; a machine that stands still costs four more.
        assert mix["num_prompts"] >= 4
        assert mix["decode_speed_ratio"]["value"] > 0
        if mix["arm"] == "on":  # the same greedy text is guessed as well beside other texts
            assert mix["acceptance_length_ratio"]["value"] == pytest.approx(1)
        assert not [gate for gate in mix["gates"] if gate["gate"] in (9, 10, 12, 13)]
    assert {cell["tag"] for cell in told["cells"]} == {"code", "json"}
    for name in ("report.html", "report.md"):
        assert "code beside json" in (folder / name).read_text(encoding="utf-8")
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    assert {line["protocol"] for line in card["headlines"]} <= {"forced"}
    again = specprof("run", path, "--results", tmp_path, "--no-report")
    assert "all" in again.stdout
    assert "measured already" in again.stdout
