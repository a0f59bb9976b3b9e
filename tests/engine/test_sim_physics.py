"""The model against expectations worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean, stdev

import pytest
from sim_cells import (
    MTP_4,
    acceptance_length,
    cell,
    counted,
    decode_speed,
    measured,
    open_cell,
    plain,
    suite,
    throughput,
    ttft_s,
    wall_s,
)

from specprof.engine.sim import (
    Content,
    Drafter,
    Hardware,
    Noise,
    Prefill,
    Scheduler,
    VirtualEngine,
    machine_of,
)
from specprof.engine.sim.truth import acceptance_truth
from specprof.records import Phase, Stop

ONE = suite("code", 1)
EIGHT = suite("code", 8)
MANY = suite("code", 64)


# -- time --------------------------------------------------------------------------------------------------------------


def test_one_request_takes_its_prefill_and_its_steps() -> None:
    record = VirtualEngine(plain()).measure(cell(ONE, tokens=11), ONE)
    # 10 ms of prefill give the first token, ten steps of 10 ms the others.
    assert wall_s(record) == pytest.approx(0.110)
    assert ttft_s(record.requests[0]) == pytest.approx(0.010)


@pytest.mark.parametrize("concurrency", [1, 2, 8])
def test_a_step_costs_fixed_plus_sequences_plus_tokens(concurrency: int) -> None:
    machine = plain(hardware=Hardware(fixed_s=0.004, per_sequence_s=0.002, per_token_s=0.001))
    record = VirtualEngine(machine).measure(cell(suite("code", concurrency), concurrency, tokens=101), EIGHT)
    step_s = 0.004 + 0.002 * concurrency + 0.001 * concurrency
    assert wall_s(record) == pytest.approx(0.010 + 100 * step_s)


def test_context_makes_steps_longer() -> None:
    machine = plain(hardware=Hardware(fixed_s=0.010, per_sequence_s=0.0, per_context_token_s=1e-5))
    record = VirtualEngine(machine).measure(cell(ONE, tokens=3), ONE)
    num_prompt = record.requests[0].prompt_tokens
    assert wall_s(record) == pytest.approx(0.010 + 2 * 0.010 + 1e-5 * ((num_prompt + 1) + (num_prompt + 2)))


def test_speculative_step_pays_for_drafts_and_their_verification() -> None:
    machine = plain(
        hardware=Hardware(fixed_s=0.004, per_sequence_s=0.001, per_token_s=0.001),
        drafters={"mtp": Drafter(fixed_s=0.002, per_draft_token_s=0.0005)},
    )
    record = VirtualEngine(machine, MTP_4).measure(cell(ONE, tokens=200), ONE)
    step_s = 0.004 + 0.001 + 0.001 * 5 + 0.002 + 0.0005 * 4
    assert record.requests[0].speculation is not None
    assert wall_s(record) == pytest.approx(0.010 + record.requests[0].speculation.num_steps * step_s)


def test_a_pipeline_is_filled_by_as_many_streams_as_it_has_stages() -> None:
    machine = plain(hardware=Hardware(fixed_s=0.030, per_sequence_s=0.0, stage_shares=(1 / 3, 1 / 3, 1 / 3)))
    speeds = {}
    for concurrency in (1, 2, 3):
        record = VirtualEngine(machine).measure(cell(suite("code", concurrency), concurrency, tokens=401), MANY)
        speeds[concurrency] = throughput(record)
    assert speeds[1] == pytest.approx(1 / 0.030, rel=0.01)
    assert speeds[2] / speeds[1] == pytest.approx(2, rel=0.01)
    assert speeds[3] / speeds[1] == pytest.approx(3, rel=0.01)


def test_hand_over_is_paid_once_per_stage_by_one_stream_and_hidden_by_many() -> None:
    hardware = Hardware(fixed_s=0.030, per_sequence_s=0.0, stage_shares=(0.4, 0.3, 0.3), handover_s=0.002)
    alone = VirtualEngine(plain(hardware=hardware)).measure(cell(ONE, tokens=101), ONE)
    assert wall_s(alone) == pytest.approx(0.010 + 100 * (0.030 + 3 * 0.002))
    three = suite("code", 3)
    full = VirtualEngine(plain(hardware=hardware)).measure(cell(three, 3, tokens=401), three)
    # Each of three passes comes round when the slowest stage has served all, or when it has been through itself.
    round_s = max(3 * 0.4 * 0.030, 0.030 + 3 * 0.002)
    assert throughput(full) == pytest.approx(3 / round_s, rel=0.01)


def test_whole_prefill_stalls_decoders_and_chunks_stall_them_less() -> None:
    prompts = {**suite("code", 1, 35), **{k: v for k, v in suite("code", 3, 35_000).items() if k == "code-2"}}
    longest_gap_s = {}
    for chunked in (False, True):
        machine = plain(prefill=Prefill(speed_tok_s=10_000, chunked=chunked, budget_tokens=1000))
        record = VirtualEngine(machine).measure(cell(prompts, 2, tokens=150), prompts)
        first = next(r for r in record.requests if r.prompt_id == "code-0")
        longest_gap_s[chunked] = max(b - a for a, b in zip(first.chunk_ns, first.chunk_ns[1:], strict=False)) / 1e9
    num_tokens = round(35_000 / 4.0)
    assert longest_gap_s[False] == pytest.approx(num_tokens / 10_000 + 0.010, rel=0.02)
    assert longest_gap_s[True] == pytest.approx(0.1 + 0.010, rel=0.02)


def test_the_cap_makes_the_rest_wait_in_order() -> None:
    machine = plain(scheduler=Scheduler(max_num_seqs=2, gather_s=0.0))
    record = VirtualEngine(machine).measure(cell(suite("code", 6), 6, tokens=11), EIGHT)
    waits = {r.prompt_id: r.server.queue_s for r in record.requests if r.server is not None}
    # Two at a time, 0.11 s each pair.
    assert [waits[f"code-{i}"] for i in range(6)] == pytest.approx([0, 0, 0.11, 0.11, 0.22, 0.22])
    assert max(g.num_requests_waiting or 0 for g in record.gauges or (record.before,) if g) <= 4


def test_mean_wait_of_a_deterministic_server_under_poisson_arrivals() -> None:
    # M/D/1: service 0.11 s, 60% load: mean wait = rho * D / (2 * (1 - rho)) = 0.0825 s.
    import random

    random_ = random.Random(1)
    arrivals, now = [], 0.0
    for _ in range(6_000):
        now += random_.expovariate(0.6 / 0.11)
        arrivals.append(now)
    engine = VirtualEngine(machine_of("queue"))
    record = engine.measure(open_cell(ONE, arrivals, tokens=10), ONE)
    assert mean(r.server.queue_s or 0 for r in record.requests if r.server) == pytest.approx(0.0825, rel=0.1)


def test_a_client_cap_delays_sending_not_scheduling() -> None:
    record = VirtualEngine(plain()).measure(open_cell(ONE, [0.0, 0.0, 0.0], tokens=11, cap=1), ONE)
    delays = sorted((r.sent_ns - r.scheduled_ns) / 1e9 for r in record.requests)
    assert delays == pytest.approx([0.0, 0.110, 0.220])


def test_noise_is_per_launch_and_per_step_and_warm_up_wears_off() -> None:
    machine = plain(noise=Noise(launch_sigma=0.05, step_sigma=0.02))
    walls = [wall_s(VirtualEngine(machine, launch_index=i).measure(cell(ONE), ONE)) for i in range(40)]
    assert stdev(walls) / mean(walls) == pytest.approx(0.05, rel=0.35)
    warm = VirtualEngine(plain(noise=Noise(warmup_extra=1.0, warmup_tau_s=0.5)))
    first, second = (wall_s(warm.measure(cell(ONE), ONE)) for _ in range(2))
    assert first > 1.2 * second
    drift = VirtualEngine(plain(noise=Noise(drift_per_minute=1.0)))
    walls = [wall_s(drift.measure(cell(ONE), ONE)) for _ in range(5)]
    assert walls == sorted(walls) and walls[-1] > 1.05 * walls[0]


# -- acceptance --------------------------------------------------------------------------------------------------------


def test_acceptance_comes_from_the_survival_curve() -> None:
    record = VirtualEngine(plain(), MTP_4).measure(cell(MANY, 8, tokens=512), MANY)
    survival = (0.8, 0.8 * 0.7, 0.8 * 0.7 * 0.6, 0.8 * 0.7 * 0.6 * 0.5)
    assert acceptance_length(record) == pytest.approx(1 + sum(survival), rel=0.015)
    assert record.before is not None and record.after is not None
    per_position = record.after.num_accepted_tokens_per_pos
    assert per_position is not None
    assert [n / counted(record, "num_drafts") for n in per_position] == pytest.approx(list(survival), abs=0.015)


def test_prompt_spread_and_drift_match_the_stated_truth() -> None:
    content = Content((0.8, 0.7, 0.6, 0.5), prompt_spread=0.6, drift_per_100_tokens=0.2)
    prompts = suite("code", 600)
    record = VirtualEngine(plain(contents={"code": content}), MTP_4).measure(cell(prompts, 32, tokens=256), prompts)
    truth = acceptance_truth(content, 4, 256)
    assert acceptance_length(record) == pytest.approx(truth.acceptance_length, rel=0.02)
    of_prompts = [1 + r.speculation.num_accepted / r.speculation.num_steps for r in record.requests if r.speculation]
    assert mean(of_prompts) == pytest.approx(truth.mean_of_prompts, rel=0.02)
    # Without spread and drift the truth is the curve itself.
    flat = acceptance_truth(Content((0.5, 0.5)), 2, 100)
    assert flat.acceptance_length == pytest.approx(1 + 0.5 + 0.25)
    assert flat.survival == pytest.approx((0.5, 0.25))


def test_n_gram_steps_without_a_match_carry_no_draft() -> None:
    machine = plain(
        contents={"code": Content((0.8, 0.7), match_share=0.5)}, drafters={"ngram": Drafter(needs_match=True)}
    )
    config = {"method": "ngram", "num_speculative_tokens": 2}
    record = VirtualEngine(machine, config).measure(cell(MANY, 1, tokens=256), MANY)
    # Every second step drafts: AL looks at those alone, tokens per engine step at all.
    assert acceptance_length(record) == pytest.approx(1 + 0.8 + 0.56, rel=0.03)
    steps = counted(record, "num_engine_steps") - len(MANY)
    assert counted(record, "num_drafts") / steps == pytest.approx(0.5, abs=0.02)


def test_a_drafter_that_is_the_target_is_always_right_and_a_useless_one_never() -> None:
    for chance, expected in ((1.0, 4.0), (0.0, 1.0)):
        machine = plain(contents={"code": Content((chance,))})
        config = {"method": "draft_model", "num_speculative_tokens": 3}
        record = VirtualEngine(machine, config).measure(cell(ONE, tokens=97), ONE)
        assert acceptance_length(record) == expected


# -- text --------------------------------------------------------------------------------------------------------------


def texts(record: object) -> dict[str, tuple[int, ...]]:
    return {r.prompt_id: r.token_ids for r in measured(record)}  # type: ignore[arg-type]


def test_greedy_text_depends_on_the_prompt_alone() -> None:
    machine = machine_of("small", {"noise": {"step_sigma": 0.1}})
    prompts = suite("code", 16)
    runs = [
        VirtualEngine(machine, config, launch_index=n).measure(cell(prompts, n), prompts)
        for config in (None, MTP_4, {"method": "ngram", "num_speculative_tokens": 2})
        for n in (1, 8)
    ]
    assert all(texts(run) == texts(runs[0]) for run in runs)
    assert len(set(texts(runs[0]).values())) == 16
    # The luck of a prompt is its own too: same acceptance at every N.
    assert [r.speculation for r in sorted(runs[2].requests, key=lambda r: r.prompt_id)] == [
        r.speculation for r in sorted(runs[3].requests, key=lambda r: r.prompt_id)
    ]


def test_sampled_text_depends_on_seed_and_arm_and_repeats() -> None:
    machine = machine_of("small")
    prompts = suite("code", 4)

    def sampled(config: object, seed: int) -> dict[str, tuple[int, ...]]:
        engine = VirtualEngine(machine, config)  # type: ignore[arg-type]
        return texts(engine.measure(cell(prompts, 2, temperature=0.8, seed=seed), prompts))

    assert sampled(None, 1) == sampled(None, 1)
    assert sampled(None, 1) != sampled(None, 2)
    assert sampled(None, 1) != sampled(MTP_4, 1)


def test_the_same_seed_gives_the_same_record_and_another_another() -> None:
    machine = machine_of("cpu-like")
    prompts = suite("code", 6)
    records = [
        VirtualEngine(replace(machine, seed=seed), MTP_4, launch_index=3).measure(cell(prompts, 4, warmup=2), prompts)
        for seed in (0, 0, 1)
    ]
    assert records[0] == records[1]
    assert records[0].requests != records[2].requests


def test_natural_text_is_the_beginning_of_the_forced_one() -> None:
    machine = machine_of("small")
    prompts = suite("code", 32)
    natural = VirtualEngine(machine).measure(cell(prompts, 8, tokens=500, stop=Stop.NATURAL), prompts)
    forced = VirtualEngine(machine).measure(cell(prompts, 8, tokens=500, mask_eos=True), prompts)
    shown = VirtualEngine(machine).measure(cell(prompts, 8, tokens=500, mask_eos=False), prompts)
    lengths = [len(r.token_ids) for r in natural.requests]
    assert mean(lengths) == pytest.approx(180, rel=0.15)
    assert {r.finish_reason for r in natural.requests} == {"stop"}
    assert {r.finish_reason for r in forced.requests} == {"length"}
    for prompt_id, ids in texts(natural).items():
        assert texts(forced)[prompt_id][: len(ids) - 1] == ids[:-1]
        assert 1 not in texts(forced)[prompt_id]  # masked: the end-of-sequence token never appears
        assert texts(shown)[prompt_id][len(ids) - 1] == 1  # not masked: it does, and writing goes on


def test_characters_per_token_are_the_contents_own() -> None:
    machine = machine_of("small")
    for tag, expected in (("code", 3.5), ("zh-prose", 1.5)):
        prompts = suite(tag, 8)
        record = VirtualEngine(machine).measure(cell(prompts, 8, tokens=256), prompts)
        chars, tokens = (
            sum(len(x) for x in xs) for xs in zip(*((r.text, r.token_ids) for r in record.requests), strict=True)
        )
        assert chars / tokens == pytest.approx(expected, rel=0.02)


# -- books -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["small", "cpu-like", "pcie-starved", "seed-machine"])
def test_counters_are_the_sum_of_the_requests(preset: str) -> None:
    prompts = suite("code", 12)
    record = VirtualEngine(machine_of(preset), MTP_4).measure(cell(prompts, 5, tokens=64, warmup=3), prompts)
    requests = measured(record)
    assert sum(r.phase is Phase.WARMUP for r in record.requests) == 3
    assert counted(record, "generation_tokens") == sum(len(r.token_ids) for r in requests) == 12 * 64
    assert counted(record, "prompt_tokens") == sum(r.prompt_tokens for r in requests)
    assert counted(record, "num_drafts") == sum(r.speculation.num_steps for r in requests if r.speculation)
    assert counted(record, "num_draft_tokens") == sum(r.speculation.num_drafted for r in requests if r.speculation)
    assert counted(record, "num_accepted_tokens") == sum(r.speculation.num_accepted for r in requests if r.speculation)
    assert counted(record, "num_requests_finished") == 12
    for request in requests:
        assert sum(request.chunk_tokens) == len(request.token_ids)
        assert max(request.chunk_tokens) <= 5
        assert request.chunk_ns == tuple(sorted(request.chunk_ns))
        assert request.sent_ns < request.chunk_ns[0] and request.chunk_ns[-1] <= request.done_ns


def test_the_prefix_cache_shortens_reading_and_is_counted() -> None:
    machine = plain(prefill=Prefill(speed_tok_s=10_000), scheduler=Scheduler(gather_s=0.0, prefix_caching=True))
    prompts = suite("code", 1, 6400)  # 1600 tokens, 100 blocks
    engine = VirtualEngine(machine)
    twice = {**prompts, "again": replace(prompts["code-0"], id="again")}
    record = engine.measure(cell(twice, 1, tokens=2), twice)
    cold, warm = record.requests
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 1599)
    assert ttft_s(cold) == pytest.approx(0.160) and ttft_s(warm) == pytest.approx(0.0001)
    assert counted(record, "prefix_cache_hits") == 1599


def test_decode_speed_is_what_small_promises() -> None:
    record = VirtualEngine(machine_of("small")).measure(cell(ONE), ONE)
    assert decode_speed(record.requests[0]) == pytest.approx(200, rel=0.001)
