"""What is worked out on whole columns equals the same worked out request by request, in plain Python."""

from __future__ import annotations

from collections import defaultdict
from math import isnan, log
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprof.analyse import ordering
from specprof.analyse.comparisons import Texts, divergence
from specprof.analyse.evidence import Series
from specprof.analyse.looping import loop_evidence
from specprof.analyse.prompts import Prompts
from specprof.records import Phase
from specprof.study.loops import looping_tokens
from tests.factory import NGRAM, make_cell, make_frame, make_request, ns

NAMES = st.sampled_from(["a", "b", "c", "d"])
MAYBE = st.none() | st.floats(0.001, 1000.0)


@settings(deadline=None)
@given(st.lists(st.tuples(NAMES, MAYBE), max_size=20))
def test_values_are_gathered_by_prompt_as_they_first_appear(requests):
    prompts = Prompts.of(np.array([name for name, _ in requests], dtype=object))
    values = np.array([np.nan if value is None else value for _, value in requests])
    sums, logs = defaultdict(float), defaultdict(list)
    for name, value in requests:
        sums[name] += value or 0.0
        if value is not None:
            logs[name].append(log(value))
    assert dict(zip(prompts.names, prompts.sums(np.nan_to_num(values)), strict=True)) == sums
    assert list(prompts.names) == list(sums)
    assert prompts.mean_logs(values) == pytest.approx({name: fmean(found) for name, found in logs.items()})
    assert list(prompts.mean_logs(values)) == list(logs)


TEXTS = st.dictionaries(NAMES, st.lists(st.integers(0, 2), max_size=5), max_size=4)


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_texts_diverge_where_one_by_one_they_do(mine, theirs):
    from specprof.ragged import Ragged

    def as_texts(texts):
        return Texts(np.array(list(texts), dtype=object), Ragged.of(texts.values()))

    found = divergence(as_texts(mine), as_texts(theirs))
    first = {}
    shared = [name for name in mine if name in theirs]
    for name in shared:
        unequal = [i for i, (a, b) in enumerate(zip(mine[name], theirs[name], strict=False)) if a != b]
        if unequal:
            first[name] = unequal[0]
        elif abs(len(mine[name]) - len(theirs[name])) > 1:
            first[name] = min(len(mine[name]), len(theirs[name]))
    assert (found.num_differ, found.num_compared) == (len(first), len(shared))
    if first:
        name = min(first, key=first.__getitem__)
        assert (found.first_prompt, found.first_position) == (name, first[name])


def requests_of_chunks(shapes):
    """Requests whose chunks hold so many tokens each; a text without chunks failed, one of even length loops."""
    for number, (name, chunks, phase) in enumerate(shapes):
        tokens = sum(chunks)
        ids = [(i % 2 if tokens % 2 == 0 else i) for i in range(tokens)]
        times = tuple(ns(number + 0.1 * (i + 1)) for i in range(len(chunks)))
        yield make_request(
            name,
            phase=phase,
            start_s=number,
            token_ids=ids,
            chunk_tokens=tuple(chunks),
            chunk_ns=times,
            done_ns=times[-1] if times else ns(number + 0.5),
            accepted=(1,),
            num_tokens=max(tokens, 1),
        )


SHAPES = st.lists(
    st.tuples(NAMES, st.lists(st.integers(1, 40), max_size=5), st.sampled_from([Phase.MEASURED, Phase.WARMUP])),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(SHAPES)
def test_a_frame_of_any_requests_is_what_each_of_them_says(shapes):
    cell = make_cell(speculative_config=NGRAM, num_prompts=4)
    requests = list(requests_of_chunks(shapes))
    frame = make_frame(cell, requests)
    shown = [r for r in requests if r.phase is Phase.MEASURED and r.chunk_tokens]
    assert frame.empty == (not shown)
    assert frame.requests.prompt_id.tolist() == [r.prompt_id for r in shown]
    assert frame.requests.output_tokens.tolist() == [len(r.token_ids) for r in shown]
    assert frame.requests.num_chunks.tolist() == [len(r.chunk_ns) for r in shown]
    assert frame.gaps.tolist() == pytest.approx(
        [(b - a) / 1e9 for r in shown for a, b in zip(r.chunk_ns, r.chunk_ns[1:], strict=False)]
    )
    for measured, request in zip(frame.requests.tpot, shown, strict=True):
        later = len(request.token_ids) - request.chunk_tokens[0]
        tpot = (request.chunk_ns[-1] - request.chunk_ns[0]) / 1e9 / later if later else float("nan")
        assert measured == pytest.approx(tpot, nan_ok=True)
    assert [ids.tolist() for ids in frame.lists("token_ids")] == [list(r.token_ids) for r in shown]


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.dictionaries(NAMES, st.integers(1, 60), max_size=4))
def test_tokens_per_step_with_and_without_loops_are_those_counted_step_by_step(shapes, ends):
    cell = make_cell(speculative_config=NGRAM, num_prompts=4)
    requests = list(requests_of_chunks(shapes))
    shown = [r for r in requests if r.phase is Phase.MEASURED and r.chunk_tokens]
    counted = {name: defaultdict(lambda: [0, 0]) for name in ("all", "calm", "own")}
    flagged = ended = 0
    for request in shown:
        flags = looping_tokens(np.array(request.token_ids))
        flagged += bool(flags.any())
        end = ends.get(request.prompt_id, len(request.token_ids))
        ended += end < len(request.token_ids)
        place = request.chunk_tokens[0]
        for tokens in request.chunk_tokens[1:]:
            place += tokens
            kept = {"all": True, "calm": not flags[place - 1], "own": place - 1 < end}
            for name, counts in counted.items():
                counts[request.prompt_id][0] += tokens * kept[name]
                counts[request.prompt_id][1] += kept[name]

    def per_step(name):
        tokens, steps = np.array(list(counted[name].values()), dtype=float).reshape(-1, 2).sum(axis=0)
        return tokens / steps if steps else None

    found = loop_evidence(Series((make_frame(cell, requests),)), ends)
    if not shown:
        assert found is None
        return
    assert found.num_requests_flagged == flagged
    assert found.tokens_per_engine_step_all.value == pytest.approx(per_step("all"))
    assert found.tokens_per_engine_step_unflagged.value == pytest.approx(per_step("calm") if flagged else None)
    assert found.tokens_per_engine_step_before_eos.value == pytest.approx(per_step("own") if ended else None)


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 9.0), min_size=2, max_size=12), st.integers(2, 5), st.integers(0, 99))
def test_a_loop_ends_when_its_streams_do_whoever_takes_the_next_prompt(seconds, streams, seed):
    orders = np.random.default_rng(seed).permuted(np.tile(np.arange(len(seconds)), (3, 1)), axis=1)
    for wall, order in zip(ordering.walls(np.array(seconds), streams, orders), orders, strict=True):
        free_at = [0.0] * streams
        for prompt in order:
            free_at[free_at.index(min(free_at))] += seconds[prompt]
        assert wall == pytest.approx(max(free_at))


def test_a_prompt_that_failed_in_a_block_is_missing_there_and_counts_in_the_others():
    cell = make_cell(num_prompts=2)
    whole = [make_request(name, num_tokens=8) for name in cell.prompt_ids]
    failed = make_request(cell.prompt_ids[0], error="HTTP 500", token_ids=(), chunk_ns=(), chunk_tokens=())
    series = Series((make_frame(cell, whole), make_frame(make_cell(num_prompts=2, block=1), [failed, whole[1]])))
    assert series.by_prompt("output_tokens") == {"code-000": 8.0, "code-001": 16.0}
    assert isnan(series.column("num_accepted")[0])
    assert series.by_prompt("num_accepted") == {"code-000": 0.0, "code-001": 0.0}
