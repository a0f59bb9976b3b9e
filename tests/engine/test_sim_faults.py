"""Every planted fault shows where it should, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sim_cells import MTP_4, acceptance_length, cell, counted, measured, suite, wall_s

from specprof.engine.sim import Faults, ForeignTraffic, VirtualEngine, machine_of
from specprof.engine.sim.text import surprise_nats
from specprof.errors import EngineDied
from specprof.records import CellRecord, Stop

PROMPTS = suite("code", 16)


def run(
    config: Any = MTP_4, *, contents: Any = None, concurrency: int = 4, cell_options: Any = None, **faults: Any
) -> CellRecord:
    parameters: dict[str, Any] = {"faults": faults}
    if contents:
        parameters["contents"] = {"code": contents}
    engine = VirtualEngine(machine_of("small", parameters), config, timeout_s=50.0)
    return engine.measure(cell(PROMPTS, concurrency, **(cell_options or {})), PROMPTS)


def texts(record: CellRecord) -> dict[str, tuple[int, ...]]:
    return {r.prompt_id: r.token_ids for r in record.requests}


def distinct_share(ids: Sequence[int], gram: int = 4) -> float:
    grams = [tuple(ids[i : i + gram]) for i in range(len(ids) - gram + 1)]
    return len(set(grams)) / len(grams)


def test_foreign_traffic_is_in_the_counters_and_not_in_the_requests() -> None:
    foreign = {"rate_per_s": 20.0, "content": "code", "prompt_tokens": 30, "output_tokens": 40}
    record, clean = run(foreign=foreign), run()
    own = sum(len(r.token_ids) for r in record.requests)
    assert own == 16 * 128
    assert counted(record, "generation_tokens") > 1.05 * own
    assert wall_s(record) > wall_s(clean)
    assert texts(record) == texts(clean)


def test_merged_chunks_hold_more_than_a_step_can_give() -> None:
    record, clean = run(merged_chunk_share=0.5), run()
    assert max(max(r.chunk_tokens) for r in record.requests) > 5 >= max(max(r.chunk_tokens) for r in clean.requests)
    assert texts(record) == texts(clean)
    assert record.after == clean.after


def test_drafts_past_the_end_are_counted_only_when_asked() -> None:
    natural = {"stop": Stop.NATURAL, "tokens": 1000}

    def excess(record: CellRecord) -> int:
        """Tokens the counters imply beyond those delivered: one per prefill and per step, and the accepted drafts."""
        implied = len(record.requests) + counted(record, "num_drafts") + counted(record, "num_accepted_tokens")
        return round(implied) - sum(len(r.token_ids) for r in record.requests)

    # A clean step that ends a text on an accepted draft writes no token of its own, hence the small remainder.
    assert 0 <= excess(run(cell_options=natural)) <= 16
    assert excess(run(cell_options=natural, overshoot_past_eos=True)) > 16


def test_phantom_drafts_lower_acceptance_without_taking_time() -> None:
    record, clean = run(phantom_drafts=1), run()
    assert counted(record, "num_drafts") == counted(clean, "num_drafts") + 16
    assert counted(record, "num_accepted_tokens") == counted(clean, "num_accepted_tokens")
    assert acceptance_length(record) < acceptance_length(clean)
    assert wall_s(record) == wall_s(clean)
    speculation = record.requests[0].speculation
    assert speculation is not None and speculation.accepted_per_step[0] == 0


def test_preemptions_are_counted_and_cost_reading_again() -> None:
    record, clean = run(preemption_share=0.1), run()
    assert counted(record, "num_preemptions") > 0 == counted(clean, "num_preemptions")
    assert wall_s(record) > wall_s(clean)
    assert texts(record) == texts(clean)


def test_inactive_speculation_drafts_nothing_and_says_so_by_zeros() -> None:
    record = run(speculation_inactive=True)
    assert counted(record, "num_drafts") == 0
    assert record.requests[0].speculation is not None and record.requests[0].speculation.num_steps == 0
    off = run(None)
    assert off.requests[0].speculation is None and off.after is not None and off.after.num_drafts is None
    assert wall_s(record) == wall_s(off)


def test_greedy_corruption_changes_text_under_speculation_only() -> None:
    clean = texts(run(None))
    corrupted = texts(run(corrupt_greedy_share=0.5))
    changed = [prompt_id for prompt_id, ids in corrupted.items() if ids != clean[prompt_id]]
    assert 3 <= len(changed) <= 13
    assert texts(run(None, corrupt_greedy_share=0.5)) == clean


def test_sampled_corruption_is_a_tail_of_impossible_tokens() -> None:
    options = {"temperature": 0.8, "seed": 7}

    def surprises(record: CellRecord) -> list[float]:
        return [nats for r in record.requests for nats in surprise_nats(r.token_ids)]

    clean, off = surprises(run(cell_options=options)), surprises(run(None, cell_options=options))
    bad = surprises(run(cell_options=options, corrupt_sampled_share=0.005))
    for sample in (clean, off):
        assert sum(sample) / len(sample) == pytest.approx(1.5, rel=0.1)
        assert max(sample) < 14
    assert 30 < max(bad) < 50
    assert 2 <= sum(nats > 18.4 for nats in bad) <= 30
    assert sum(bad) / len(bad) == pytest.approx(1.7, abs=0.25)  # the mean hides it


def test_short_finishes_and_length_mismatch() -> None:
    short = run(short_length_share=0.5)
    lengths = {len(r.token_ids) for r in short.requests}
    assert lengths == {77, 128} and {r.finish_reason for r in short.requests} == {"length"}
    natural = {"stop": Stop.NATURAL, "tokens": 1000}
    on, off = (
        sum(len(r.token_ids) for r in run(c, cell_options=natural, speculative_length_factor=0.7).requests)
        for c in (MTP_4, None)
    )
    assert on / off == pytest.approx(0.7, abs=0.01)


def test_a_stalled_stream_times_out_with_what_it_had() -> None:
    record = run(stall_share=0.3)
    stalled = [r for r in record.requests if r.error]
    assert 1 <= len(stalled) <= 12
    for request in stalled:
        assert "timed out" in (request.error or "") and 0 < len(request.token_ids) < 128
        assert request.done_ns - request.sent_ns == pytest.approx(50e9)


def test_a_dead_engine_raises_as_the_real_loop_does() -> None:
    with pytest.raises(EngineDied, match="died"):
        run(death_at_s=0.3)


def test_loops_inflate_or_deflate_acceptance_and_repeat_the_text() -> None:
    loop = {"eos_mean_tokens": 30, "eos_sigma": 0.1, "loop_share": 1.0}
    plain = run(contents={"eos_mean_tokens": 30, "eos_sigma": 0.1})
    up = run(contents=loop | {"loop_acceptance_factor": 1.3})
    down = run(contents=loop | {"loop_acceptance_factor": 0.5})
    assert acceptance_length(down) < 0.9 * acceptance_length(plain)
    assert acceptance_length(up) > 1.05 * acceptance_length(plain)
    assert all(distinct_share(r.token_ids) < 0.5 for r in measured(up))
    assert all(distinct_share(r.token_ids) > 0.95 for r in measured(plain))
    assert len(up.requests[0].text) > 0


def test_client_load_is_what_the_faults_say() -> None:
    record = run(client_cpu_share=0.95, client_loop_lag_p99_s=0.02)
    assert record.client is not None
    assert (record.client.cpu_share, record.client.loop_lag_p99_s) == (0.95, 0.02)


def test_faults_are_off_unless_asked_for() -> None:
    faults = Faults()
    assert faults.foreign is None and faults.death_at_s is None and faults.merged_chunk_share == 0
    assert ForeignTraffic(1.0, "code").rate_per_s == 1.0
