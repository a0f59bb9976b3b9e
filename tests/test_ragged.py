"""Lists end to end in one array do what lists of lists do."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from specprof.columns import ragged
from specprof.ragged import Ragged

LISTS = st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6), max_size=8)
FULL = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=8)


def as_lists(found: Ragged) -> list[list[int]]:
    return [one.tolist() for one in found]


@given(LISTS)
def test_it_holds_the_lists_it_was_made_of(lists: list[list[int]]) -> None:
    found = Ragged.of(lists)
    assert as_lists(found) == lists == [found[i].tolist() for i in range(len(found))]
    assert found.lengths.tolist() == [len(one) for one in lists]
    assert found.owner.tolist() == [i for i, one in enumerate(lists) for _ in one]
    assert found.sums().tolist() == [sum(one) for one in lists]


@given(LISTS)
def test_neighbours_are_those_of_one_list_and_never_across_two(lists: list[list[int]]) -> None:
    found = Ragged.of(lists)
    differences = np.diff(found.values)[found.has_next].tolist()
    assert differences == [after - before for one in lists for before, after in pairwise(one)]


@given(FULL)
def test_the_edges_are_the_first_and_the_last_of_each_list(lists: list[list[int]]) -> None:
    first, last = Ragged.of(lists).edges()
    assert list(zip(first.tolist(), last.tolist(), strict=True)) == [(one[0], one[-1]) for one in lists]


@given(LISTS, st.integers(0, 8), st.integers(0, 8))
def test_a_slice_is_the_lists_between(lists: list[list[int]], start: int, stop: int) -> None:
    assert as_lists(Ragged.of(lists)[start:stop]) == lists[start:stop]


@given(FULL, st.data())
def test_beginnings_of_any_lists_in_any_order(lists: list[list[int]], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=12))
    lengths = [data.draw(st.integers(0, len(lists[row]))) for row in rows]
    found = Ragged.of(lists).take(np.array(rows, dtype=np.int64), np.array(lengths, dtype=np.int64))
    assert as_lists(found) == [lists[row][:length] for row, length in zip(rows, lengths, strict=True)]


@given(st.lists(st.none() | st.lists(st.integers(0, 2**40), max_size=5), max_size=8), st.integers(0, 4))
def test_a_list_column_is_read_with_missing_lists_empty(lists: list[list[int] | None], dropped: int) -> None:
    column = pa.chunked_array([pa.array(lists, pa.list_(pa.int64()))]).slice(dropped)  # an offset that is not 0
    assert as_lists(ragged(column)) == [one or [] for one in lists[dropped:]]


def test_no_list_at_all() -> None:
    nothing = Ragged.of([])
    assert (len(nothing), as_lists(nothing), nothing.sums().tolist(), nothing.owner.tolist()) == (0, [], [], [])
    assert as_lists(ragged(pa.chunked_array([], pa.list_(pa.int32())))) == []
