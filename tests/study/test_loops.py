"""Degenerate loops: what counts as one, and which tokens are marked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specprof.ragged import Ragged
from specprof.study.loops import (
    GRAM_TOKENS,
    MIN_DISTINCT_SHARE,
    WINDOW_TOKENS,
    looping_tokens,
    repetition,
)


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


def distinct_share(tokens: np.ndarray) -> float:
    return float(repetition(Ragged.of([tokens])).distinct_share[0])


def by_hand(tokens: list[int]) -> list[bool]:
    """METHOD 7.7 word by word: a 128-token window is a loop if under 35% of its 4-grams are different ones."""
    flagged = [False] * len(tokens)
    window = min(WINDOW_TOKENS, len(tokens))
    for start in range(len(tokens) - window + 1):
        piece = tokens[start : start + window]
        grams = [tuple(piece[i : i + GRAM_TOKENS]) for i in range(len(piece) - GRAM_TOKENS + 1)]
        if len(set(grams)) / len(grams) < MIN_DISTINCT_SHARE:
            flagged[start : start + window] = [True] * window
    return flagged


def test_the_method_s_constants():
    assert (WINDOW_TOKENS, GRAM_TOKENS, MIN_DISTINCT_SHARE) == (128, 4, 0.35)


def test_text_that_never_repeats_is_wholly_distinct():
    assert distinct_share(np.arange(200)) == 1.0
    assert not looping_tokens(np.arange(200)).any()


def test_a_clause_that_repeats_is_a_loop():
    clause = ids(*list(range(6)) * 20)  # 120 tokens: 6 different 4-grams out of 117
    assert distinct_share(clause) == pytest.approx(6 / 117)
    assert looping_tokens(clause).all()


def test_a_loop_is_marked_and_what_stands_well_before_it_is_not():
    tokens = np.concatenate([np.arange(300), np.tile(np.arange(1000, 1004), 50)])
    flags = looping_tokens(tokens)
    # The first window under 35% holds 44 new 4-grams of 125 at most: 40 of the text, 4 of the loop. So nothing before
    # token 300 - 44 can be marked, and everything from the loop's start is.
    assert not flags[: 300 - 44].any()
    assert flags[300:].all()


def test_a_text_too_short_to_judge_is_left_alone():
    assert distinct_share(ids(*[7] * 31)) == 1.0
    assert not looping_tokens(ids(*[7] * 31)).any()
    assert looping_tokens(ids(*[7] * 32)).all()


def test_no_tokens_no_loops():
    assert looping_tokens(ids()).tolist() == []


@given(st.lists(st.integers(0, 3), min_size=32, max_size=300))
def test_marks_exactly_what_the_definition_says(tokens):
    assert looping_tokens(ids(*tokens)).tolist() == by_hand(tokens)
