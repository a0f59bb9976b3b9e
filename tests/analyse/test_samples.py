"""Texts to look at: per content the worst loop, if any, and the text that repeats itself least."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from specprof.analyse.evidence import Evidence
from specprof.analyse.samples import MAX_CHARS, samples
from specprof.ragged import Ragged
from specprof.records import Role
from specprof.study.loops import repetition
from tests.factory import NGRAM, looping_tokens, make_cell, make_data, make_request

TOKENS = 200


def half_looping(length: int) -> tuple[int, ...]:
    """`length` tokens of a loop of six; what comes before them is new."""
    return (*range(5000, 5000 + TOKENS - length), *looping_tokens(length))


def cell_of(texts, **changes):
    """One cell whose prompts `p0`, `p1`, … wrote the given token ids."""
    numbers = count()
    requests = [make_request(f"p{next(numbers)}", token_ids=ids, num_tokens=len(ids), text=f"{ids}") for ids in texts]
    return make_data(make_cell(prompt_ids=tuple(r.prompt_id for r in requests), **changes), requests)


def shown(*cells):
    return [(sample.tag, sample.prompt_id, sample.arm, sample.flagged) for sample in samples(Evidence(cells))]


def test_the_worst_loop_comes_first_and_the_text_that_repeats_least_after_it():
    slightly = (*range(100), *range(100, 160), *range(100, 140))  # 40 of its 200 tokens stand there twice
    texts = [half_looping(160), tuple(range(TOKENS)), looping_tokens(TOKENS), slightly]
    shares = repetition(Ragged.of(texts)).distinct_share
    assert np.argsort(shares).tolist() == [2, 0, 3, 1]  # what the comments above say
    assert shown(cell_of(texts)) == [("code", "p2", "off", True), ("code", "p1", "off", False)]


def test_where_nothing_loops_there_is_nothing_to_warn_of():
    assert shown(cell_of([tuple(range(TOKENS))])) == [("code", "p0", "off", False)]


def test_where_everything_loops_no_text_is_shown_as_sound():
    assert shown(cell_of([half_looping(150), half_looping(190)])) == [("code", "p1", "off", True)]


def test_each_content_is_shown_by_itself_whatever_the_arm():
    on = {"arm": "on", "speculative_config": NGRAM}
    plain = tuple(range(TOKENS))
    found = shown(
        cell_of([plain]), cell_of([looping_tokens(TOKENS)], **on), cell_of([plain], tag="json", concurrency=1)
    )
    assert found == [("code", "p0", "on", True), ("code", "p0", "off", False), ("json", "p0", "off", False)]


@pytest.mark.parametrize("role", [Role.PREFILL, Role.SENTINEL])
def test_only_texts_behind_a_figure_are_shown(role):
    assert shown(cell_of([tuple(range(TOKENS))], role=role)) == []


def test_a_cell_whose_requests_all_failed_has_no_text():
    cell = make_cell(num_prompts=1)
    failed = make_request(cell.prompt_ids[0], error="HTTP 503")
    assert shown(make_data(cell, [failed])) == []


def test_a_long_text_is_cut():
    ids = tuple(range(TOKENS))
    cell = make_cell(num_prompts=1)
    request = make_request(cell.prompt_ids[0], token_ids=ids, num_tokens=TOKENS, text="春" * 5000)
    (sample,) = samples(Evidence([make_data(cell, [request])]))
    assert sample.text == "春" * MAX_CHARS
