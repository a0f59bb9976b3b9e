"""Interference held against machines whose truth is known, and against the timeline of the seed article."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import ceil, exp, log
from statistics import mean, stdev
from typing import Any

import pytest

from specprof.analyse import roofline
from specprof.analyse.evidence import Evidence
from specprof.analyse.gates.found import caution
from specprof.analyse.interference import CHUNKED, UNREAD, WHOLE, InterferenceFigures, interference
from specprof.columns import CellData, cell_data
from specprof.engine.sim.machine import Content, Drafter, Hardware, Machine, Prefill, Scheduler
from specprof.engine.sim.virtual import run_study
from specprof.records import Cell, Interference, Launch, Phase, Role
from tests.analyse.test_roofline import ANCHOR, H100
from tests.factory import NGRAM, data, make_cell, make_data, make_prompt, make_request, ns

CLAIMS = {claim["id"]: claim for claim in data("seed_claims.json")["claims"]}
STEP_S, PREFILL_S, SPEED = 0.010, 0.002, 10_000.0  # of a decoding pass; of any prefill pass; prompt tokens per second
PROMPT_TOKENS, WHOLE_SIZE, CHUNK = 3_000, 8_192, 400
DECODERS, AFTER, LATENCY_S = 4, 16, 0.0002

SUITE = {f"code-{i:03d}": make_prompt(f"code-{i:03d}", text=f"def f{i}():") for i in range(DECODERS)}
SUITE["long"] = make_prompt("long", text="abcd" * PROMPT_TOKENS)  # four characters a token


def machine(**changes: Any) -> Machine:
    """Round numbers: a decoding pass takes 10 ms whatever the batch, and nothing is left to chance."""
    plain = Machine(
        name="plain",
        hardware=Hardware(fixed_s=STEP_S, per_sequence_s=0.0),
        prefill=Prefill(speed_tok_s=SPEED, fixed_s=PREFILL_S),
        scheduler=Scheduler(gather_s=0.0),
        contents={"code": Content((0.8, 0.7, 0.6, 0.5), chars_per_token=4.0)},
        drafters={"*": Drafter(fixed_s=0.004)},
        latency_s=LATENCY_S,
    )
    return replace(plain, **changes)


def cell_of(size: int, **changes: Any) -> Cell:
    plain = make_cell(
        role=Role.INTERFERENCE,
        protocol="interference",
        prompt_ids=("long", *(name for name in SUITE if name != "long")),
        concurrency=DECODERS + 1,
        max_tokens=160,
        interference=Interference("long", AFTER, 8, size),
    )
    return replace(plain, **changes)


def launches(blocks: int = 1, arms: Mapping[str, Any] | None = None, **changes: Any) -> list[Launch]:
    found: list[Launch] = []
    for block in range(blocks):
        for size in (WHOLE_SIZE, CHUNK):
            for arm, config in (arms or {"off": None}).items():
                cell = cell_of(size, block=block, arm=arm, speculative_config=config, **changes)
                cell = replace(cell, key=f"b{block}-{arm}-{size}")
                found.append(Launch(len(found), block, arm, config, (cell,), {"max_num_batched_tokens": size}))
    return found


def measured(of: Machine, plan: Iterable[Launch]) -> list[CellData]:
    return [cell_data(record) for record in run_study(of, plan, SUITE)]


def figures(cells: Sequence[CellData]) -> dict[tuple[str, int], InterferenceFigures]:
    return {(met.arm, met.max_num_batched_tokens): met for met in interference(Evidence(cells))}


# -- the truth of a machine -------------------------------------------------------------------------------------------


def test_read_whole_the_stall_is_the_reading_and_a_step() -> None:
    met = figures(measured(machine(), launches()))["off", WHOLE_SIZE]
    reading_s = PREFILL_S + PROMPT_TOKENS / SPEED
    assert met.reading == WHOLE
    assert met.prompt_tokens == PROMPT_TOKENS
    assert met.baseline_itl_p50_s.value == pytest.approx(STEP_S, rel=1e-6)
    assert met.longest_stall_s.value == pytest.approx(reading_s + STEP_S, rel=1e-6)
    assert met.reading_itl_p99_s.value == pytest.approx(reading_s + STEP_S, rel=1e-6)
    assert met.steps_while_reading.value == 1 + 1  # the one under way, and the one that reads
    # Sent the moment a step's chunks arrive, when the engine has begun the next one: that is waited for, then comes the
    # one that reads. Both instants are the client's, one trip late each.
    assert met.ttft_s.value == pytest.approx(STEP_S + reading_s + STEP_S, abs=2e-6)
    assert met.newcomer_share.value == pytest.approx(reading_s / (reading_s + STEP_S), rel=1e-6)
    assert met.gates == ()


def test_read_in_chunks_no_step_is_longer_than_a_chunk_and_the_newcomer_waits_for_all() -> None:
    met = figures(measured(machine(), launches()))["off", CHUNK]
    num_chunks = ceil(PROMPT_TOKENS / CHUNK)
    chunk_step_s = PREFILL_S + CHUNK / SPEED + STEP_S
    total_s = num_chunks * (PREFILL_S + STEP_S) + PROMPT_TOKENS / SPEED
    assert met.reading == CHUNKED
    assert met.longest_stall_s.value == pytest.approx(chunk_step_s, rel=1e-6)
    assert met.reading_itl_p50_s.value == pytest.approx(chunk_step_s, rel=1e-6)
    assert met.steps_while_reading.value == pytest.approx(1 + num_chunks)
    assert met.ttft_s.value == pytest.approx(STEP_S + total_s, abs=2e-6)
    assert met.baseline_itl_p99_s.value == pytest.approx(STEP_S, rel=1e-6)


def test_chunked_against_whole_is_less_stall_for_a_later_first_token() -> None:
    found = figures(measured(machine(), launches()))
    whole, chunked = found["off", WHOLE_SIZE], found["off", CHUNK]
    assert whole.against_whole is None
    assert chunked.against_whole is not None
    for name, time in (("longest_stall", "longest_stall_s"), ("ttft", "ttft_s")):
        ratio = getattr(chunked, time).value / getattr(whole, time).value
        assert getattr(chunked.against_whole, name).value == pytest.approx(ratio)
    assert chunked.against_whole.longest_stall.value < 0.2 < 1 < chunked.against_whole.ttft.value


def test_a_step_with_drafts_is_longer_by_the_drafting_and_so_is_the_stall() -> None:
    found = figures(measured(machine(), launches(arms={"off": None, "on": dict(NGRAM)}, max_tokens=400)))
    on, off = found["on", WHOLE_SIZE], found["off", WHOLE_SIZE]
    drafting_s = 0.004
    assert on.baseline_itl_p50_s.value == pytest.approx(STEP_S + drafting_s, rel=1e-6)
    assert on.longest_stall_s.value == pytest.approx((off.longest_stall_s.value or 0) + drafting_s, rel=1e-6)
    assert on.against_off is not None
    assert off.against_off is None
    expected = (on.longest_stall_s.value or 0) / (off.longest_stall_s.value or 1)
    assert on.against_off.longest_stall.value == pytest.approx(expected)


def test_intervals_are_over_blocks_and_one_block_has_none() -> None:
    uneven = machine(noise=replace(machine().noise, launch_sigma=0.05))
    one, three = (figures(measured(uneven, launches(blocks)))["off", WHOLE_SIZE] for blocks in (1, 3))
    assert (one.num_blocks, three.num_blocks) == (1, 3)
    assert one.longest_stall_s.low is None
    stall = three.longest_stall_s
    assert stall.low is not None
    assert stall.high is not None
    assert stall.low < (stall.value or 0) < stall.high


@pytest.mark.parametrize("slower", [1.05, 2.0])
def test_the_newcomer_s_share_varies_with_the_launches(slower: float) -> None:
    """Of the whole stall it is what a step is not; two launches, of which the second reads the prompt more slowly.

    Where they tell next to nothing, a share still is no less than none.
    """
    speeds = SPEED, SPEED / slower
    of_block = [machine(prefill=Prefill(speed_tok_s=speed, fixed_s=PREFILL_S)) for speed in speeds]
    plan = launches(blocks=2)
    cells = [cell for n, of in enumerate(of_block) for cell in measured(of, [one for one in plan if one.block == n])]
    found = figures(cells)["off", WHOLE_SIZE].newcomer_share
    logs = [log(STEP_S / (STEP_S + PREFILL_S + PROMPT_TOKENS / speed)) for speed in speeds]
    reach = 12.7062 * stdev(logs) / 2**0.5  # Student's t with one degree of freedom
    ends = (1 - exp(mean(logs) + reach), 1 - exp(mean(logs) - reach))
    assert found.value == pytest.approx(1 - exp(mean(logs)), rel=1e-4)
    assert (found.low, found.high) == pytest.approx((max(ends[0], 0), ends[1]), rel=1e-3)


def test_off_comes_first_and_whole_before_chunked() -> None:
    found = interference(Evidence(measured(machine(), launches(arms={"on": dict(NGRAM), "off": None}))))
    assert [(met.max_num_batched_tokens, met.arm) for met in found] == [
        (WHOLE_SIZE, "off"), (WHOLE_SIZE, "on"), (CHUNK, "off"), (CHUNK, "on"),
    ]  # fmt: skip


def test_the_timeline_is_what_the_client_saw_from_when_the_newcomer_was_sent() -> None:
    (cell,) = [c for c in measured(machine(), launches()) if c.cell.interference.max_num_batched_tokens == WHOLE_SIZE]
    timeline = figures([cell])["off", WHOLE_SIZE].timeline
    assert timeline is not None
    assert len(timeline.chunks_s) == DECODERS
    assert all(len(chunks) == 160 for chunks in timeline.chunks_s)
    for chunks in timeline.chunks_s:
        assert sum(at <= 0 for at in chunks) == AFTER


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_what_is_true_of_a_launch_is_true_of_its_long_prompt() -> None:
    """Gate 6 between the sentinels of a launch speaks of everything between them; launch 0 reads whole, 1 in chunks."""
    drifted = caution(6, "drift", "the same small cell ran 9.0% faster after launch 1 than before it", "Let it settle.")
    found = interference(Evidence(measured(machine(), launches())), None, ({1: drifted},))
    assert [drifted in met.gates for met in found] == [False, True]


def gates_of(met: InterferenceFigures) -> dict[str, str]:
    return {gate.name: gate.severity.value for gate in met.gates}


def test_decoders_that_end_before_the_newcomer_is_read_are_told_of() -> None:
    found = figures(measured(machine(), launches(max_tokens=AFTER + 3)))
    assert gates_of(found["off", CHUNK]) == {"decoders ended early": "invalid"}
    assert not found["off", CHUNK].valid
    assert found["off", WHOLE_SIZE].valid


def test_a_newcomer_that_was_not_let_in_is_told_of() -> None:
    full = machine(scheduler=Scheduler(max_num_seqs=DECODERS, gather_s=0.0))
    found = figures(measured(full, launches()))["off", WHOLE_SIZE]
    assert gates_of(found)["server queue"] == "caution"


def test_a_newcomer_that_failed_leaves_no_figure_but_a_gate() -> None:
    cell = cell_of(WHOLE_SIZE)
    requests = [make_request(name, num_tokens=160, stream=i) for i, name in enumerate(cell.prompt_ids[1:])]
    failed = make_request("long", num_tokens=8, stream=DECODERS, error="HTTP 400: too long", token_ids=())
    met = figures([make_data(cell, [*requests, failed])])["off", WHOLE_SIZE]
    assert met.reading == UNREAD
    assert met.longest_stall_s.value is None
    assert gates_of(met)["failed requests"] == "invalid"


def test_a_newcomer_read_from_the_cache_is_told_of() -> None:
    cached = machine(scheduler=Scheduler(gather_s=0.0, prefix_caching=True))
    plan = [replace(launch, cells=tuple(replace(c, num_warmup=5) for c in launch.cells)) for launch in launches()]
    assert gates_of(figures(measured(cached, plan))["off", WHOLE_SIZE])["prefix cache"] == "invalid"


# -- seed 003: 57 decoders, and 32,768 tokens arrive ------------------------------------------------------------------


def seed_cell(steps_s: Sequence[float], size: int) -> CellData:
    """57 decoders whose steps are those of the article while the newcomer is read, and 25 ms before and after."""
    step_s = roofline.tpot_s(ANCHOR, H100, 57, 4096)
    before, after = [step_s] * 20, [step_s] * 20
    ends = list(accumulate([*before, *steps_s, *after]))
    sent_s = ends[len(before) - 1]
    times = tuple(ns(at) for at in ends)
    names = [f"code-{i:03d}" for i in range(57)]
    plain = {"num_tokens": len(times), "chunk_ns": times, "done_ns": times[-1], "chunk_tokens": (1,) * len(times)}
    requests = [make_request(name, stream=i, **plain) for i, name in enumerate(names)]
    newcomer = make_request("long", num_tokens=8, start_s=sent_s, ttft_s=sum(steps_s), stream=57, prompt_tokens=32_768)
    cell = cell_of(size, prompt_ids=("long", *names), concurrency=58, max_tokens=len(times), key=f"seed-{size}")
    return make_data(cell, [*requests, newcomer])


def test_the_seed_s_three_lanes() -> None:
    """Whole: a token waits 1.91 s. In chunks of 512: no step beyond 36 ms, and a first token after 2.11 s."""
    chunks = list(roofline.chunk_steps_s(ANCHOR, H100, 32_768, chunk=512, decoding=57, context=4096))
    found = figures([seed_cell([roofline.prefill_s(ANCHOR, H100, 32_768)], 40_000), seed_cell(chunks, 512)])
    whole, chunked = found["off", 40_000], found["off", 512]

    def claim(name: str) -> Any:
        return pytest.approx(CLAIMS[name]["expected"], rel=CLAIMS[name]["rel_tol"])

    assert whole.longest_stall_s.value == claim("prefill_32k")
    assert whole.ttft_s.value == claim("prefill_32k")
    assert chunked.longest_stall_s.value == claim("chunk_max")
    assert chunked.ttft_s.value == claim("chunk_ttft")
    assert (whole.reading, chunked.reading) == (WHOLE, CHUNKED)
    assert chunked.steps_while_reading.value == pytest.approx(64)


def test_a_stall_is_a_bump_in_the_median_and_plain_in_the_longest_gap() -> None:
    """The article's warning: the mean hardly moves, whoever waits."""
    whole = figures([seed_cell([roofline.prefill_s(ANCHOR, H100, 32_768)], 40_000)])["off", 40_000]
    timeline = whole.timeline
    assert timeline is not None
    gaps = sorted(b - a for row in timeline.chunks_s for a, b in pairwise(row))
    assert gaps[len(gaps) // 2] == pytest.approx(whole.baseline_itl_p50_s.value, rel=1e-3)
    assert (whole.longest_stall_s.value or 0) > 70 * (whole.baseline_itl_p50_s.value or 0)


def test_warm_ups_of_the_newcomer_are_not_the_newcomer() -> None:
    plan = [replace(launch, cells=tuple(replace(c, num_warmup=5) for c in launch.cells)) for launch in launches()]
    cells = measured(machine(), plan)
    assert all(sum(p == Phase.WARMUP.value for p in c.requests["phase"].to_pylist()) == 5 for c in cells)
    cold = figures(measured(machine(), launches()))["off", CHUNK]
    warm = figures(cells)["off", CHUNK]
    assert warm.longest_stall_s.value == pytest.approx(cold.longest_stall_s.value)
    assert warm.ttft_s.value == pytest.approx(cold.ttft_s.value)
