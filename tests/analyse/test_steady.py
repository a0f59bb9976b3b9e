"""Gate 6 and its rule: a warm-up is found, and noise is not taken for one."""

from __future__ import annotations

import numpy as np
import pytest

from specprof.analyse.comparisons import drift
from specprof.analyse.gates.pace import NUM_PIECES, equal_pieces, warm_up
from specprof.analyse.results import Severity
from specprof.analyse.steady import full_load_steps, ratio_interval, step_means, warmup_length
from specprof.records import Role
from tests.factory import later, make_cell, make_frame, make_request, make_requests, ns


def noisy(levels, sigma=0.01, seed=0):
    return np.array(levels) * np.exp(sigma * np.random.default_rng(seed).standard_normal(len(levels)))


def test_a_slower_beginning_is_cut_off():
    assert warmup_length(noisy([1.5] * 4 + [1.0] * 20)) == 4


def test_a_steady_sequence_is_kept_whole():
    assert warmup_length(np.ones(12)) == 0
    assert warmup_length(noisy([1.0] * 24)) == 0


def test_what_never_becomes_steady_has_no_length():
    assert warmup_length(noisy(np.linspace(1.0, 1.5, 24))) is None


def test_thirds_that_differ_by_more_than_two_percent_by_chance_do_not_count():
    """±5% pieces: the medians of two thirds lie 2% apart more often than not."""
    kept = [warmup_length(noisy([1.0] * 24, sigma=0.05, seed=seed)) == 0 for seed in range(300)]
    assert np.mean(kept) > 0.95


def test_thirds_that_differ_without_any_noise_do():
    assert warmup_length(np.array([1.0] * 6 + [1.0] * 6 + [1.03] * 6)) is None


# -- the pieces: steps at full load ---------------------------------------------------------------------------------


def timed_frame(steps, concurrency=1, **changes):
    """`concurrency` requests at once, each a chunk per step of the given durations."""
    times = tuple(ns(0.1 + at) for at in np.concatenate([[0.0], np.cumsum(steps)]))
    cell = make_cell(concurrency=concurrency, num_prompts=concurrency, max_tokens=len(times))
    plan = {"num_tokens": len(times), "chunk_tokens": (1,) * len(times), "chunk_ns": times, "done_ns": times[-1]}
    return make_frame(cell, [make_request(name, stream=i, **plan) for i, name in enumerate(cell.prompt_ids)], **changes)


def test_a_stream_that_writes_alone_is_not_full_load():
    cell = make_cell(concurrency=2, num_prompts=2)
    long, short = make_request("code-000", num_tokens=64), make_request("code-001", num_tokens=16, stream=1)
    steps = full_load_steps(make_frame(cell, [long, short]))
    assert len(steps) == 30  # 15 gaps of both; the 48 gaps of the one that goes on alone are left out
    assert step_means(make_frame(cell, [long, short])) == pytest.approx([0.05] * 15)


def test_steps_in_which_a_prompt_was_read_are_left_out():
    cell = make_cell(concurrency=2, num_prompts=3)
    requests = [make_request("code-000", num_tokens=64), make_request("code-001", num_tokens=16, stream=1)]
    requests.append(make_request("code-002", num_tokens=16, stream=1, start_s=requests[1].done_ns / 1e9 - 5000))
    steps = full_load_steps(make_frame(cell, requests))
    assert len(steps) == pytest.approx(4 * 15, abs=2)
    assert steps == pytest.approx(0.05)


def test_a_short_cell_says_nothing_about_its_pace():
    assert len(equal_pieces(timed_frame([0.05] * 90))) == 0
    assert len(equal_pieces(timed_frame([0.05] * 100))) == NUM_PIECES


def test_an_interval_of_a_ratio_holds_it():
    low, high = ratio_interval(noisy([2.0] * 100), noisy([1.0] * 100, seed=1), 0.95)
    assert low < 2.0 < high < 1.02 * low


# -- gate 6 in a cell -----------------------------------------------------------------------------------------------


def test_6_a_cell_that_began_slowly():
    (gate,) = warm_up(timed_frame(noisy([0.08] * 24 + [0.05] * 168), concurrency=4))
    assert (gate.gate, gate.name, gate.severity) == (6, "warm-up", Severity.CAUTION)
    assert "the first 12% of the steps took 60% longer" in gate.evidence
    assert "warmup_tokens" in gate.remedy


def test_6_a_cell_that_slowed_down():
    (gate,) = warm_up(timed_frame(noisy(np.linspace(0.05, 0.06, 192))))
    assert gate.name == "slowing down"
    assert "% longer at the end of the cell" in gate.evidence


def test_6_noise_is_no_warm_up():
    assert not [gate for seed in range(50) for gate in warm_up(timed_frame(noisy([0.05] * 96, sigma=0.1, seed=seed)))]


# -- gate 6 between sentinels ---------------------------------------------------------------------------------------


def sentinel(launch, at, step_s, sigma, seed):
    frame = timed_frame(noisy([step_s] * 31, sigma, seed), concurrency=4)
    cell = make_cell(role=Role.SENTINEL, protocol="sentinel", max_tokens=32)
    requests = make_requests(cell)
    times = frame.lists("chunk_ns")[0].tolist()
    plan = {"num_tokens": 32, "chunk_tokens": (1,) * 32, "chunk_ns": tuple(times), "done_ns": times[-1]}
    sent = [later(make_request(r.prompt_id, stream=r.stream, **plan), 60 * at) for r in requests]
    return make_frame(cell, sent, launch=launch)


def pairs(slower, sigma, launches):
    for launch in range(launches):
        yield sentinel(launch, 1, 0.05, sigma, seed=2 * launch)
        yield sentinel(launch, 9, 0.05 * slower, sigma, seed=2 * launch + 1)


def test_6_two_short_noisy_sentinels_may_lie_more_than_two_percent_apart():
    assert drift(list(pairs(1.0, sigma=0.1, launches=20))) == {}


def test_6_what_one_noisy_launch_cannot_show_all_of_them_can():
    assert drift(list(pairs(1.04, sigma=0.08, launches=1))) == {}
    found = drift(list(pairs(1.04, sigma=0.08, launches=8)))
    assert set(found) == set(range(8))
    assert found[0].evidence.startswith("over 8 launches the same small cell ran ")
    assert "% slower after a launch" in found[0].evidence
