"""Scores on disk: written once, after their cell, and read back only if nobody touched them."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from specprof.errors import StoreError
from specprof.records import TextScores
from specprof.store import Store
from tests.factory import make_cell, make_record

SCORES = (
    TextScores("code-000", (-0.5, -12.25), (1, 400), ((-0.5, -2.0), (-0.25, -3.0))),
    TextScores("code-001", error="too long"),
)


@pytest.fixture
def store(tmp_path) -> Store:
    made = Store.create(tmp_path / "demo", "study: demo\n", "a" * 64)
    made.seal(make_record())
    return made


KEY = make_cell().key


def test_what_goes_in_comes_out(store):
    assert not store.is_scored(KEY)
    store.seal_scores(KEY, 3, SCORES)
    assert store.is_scored(KEY)
    rows = store.scores()[KEY].to_pylist()
    assert [row["prompt_id"] for row in rows] == ["code-000", "code-001"]
    assert rows[0]["logprobs"] == [-0.5, -12.25]
    assert rows[0]["top_logprobs"] == [[-0.5, -2.0], [-0.25, -3.0]]
    assert (rows[1]["error"], rows[1]["logprobs"]) == ("too long", [])


def test_scores_are_written_once_and_after_their_cell(store):
    store.seal_scores(KEY, 0, SCORES)
    before = (store.root / "scores" / f"{KEY}.parquet").read_bytes()
    with pytest.raises(StoreError, match="scored already"):
        store.seal_scores(KEY, 0, SCORES[:1])
    with pytest.raises(StoreError, match="not sealed yet"):
        store.seal_scores("b9-other", 0, SCORES)
    assert (store.root / "scores" / f"{KEY}.parquet").read_bytes() == before


def measured_again(store: Store) -> None:
    """The cell is removed and measured anew: its key is the same and its texts are others."""
    shutil.rmtree(store.root / "cells" / KEY)
    store.seal(make_record(requests=[replace(request, text="other") for request in make_record().requests]))


def test_scores_of_texts_that_are_gone_are_nobodys_and_give_way(store):
    store.seal_scores(KEY, 0, SCORES)
    shutil.move(store.root / "cells" / KEY, store.root / "aside")
    assert not store.is_scored(KEY)
    assert store.scores() == {}
    shutil.move(store.root / "aside", store.root / "cells" / KEY)
    assert store.is_scored(KEY)
    measured_again(store)
    assert not store.is_scored(KEY)
    assert store.scores() == {}
    store.seal_scores(KEY, 1, SCORES[:1])
    assert store.is_scored(KEY)
    assert [row["prompt_id"] for row in store.scores()[KEY].to_pylist()] == ["code-000"]


def test_older_scores_are_of_the_texts_that_were_there_before_them(store):
    """A file from before scores named their requests tells only when they were made."""
    store.seal_scores(KEY, 0, SCORES)
    path = store.root / "scores" / f"{KEY}.parquet"
    table = pq.read_table(path)
    for scored_at, current in (("2000-01-01T00:00:00.000+00:00", False), ("2999-01-01T00:00:00.000+00:00", True)):
        pq.write_table(table.replace_schema_metadata({"launch": "0", "scored_at": scored_at}), path)
        assert store.is_scored(KEY) is current
        assert set(store.scores()) == ({KEY} if current else set())


@pytest.mark.parametrize("metadata", [None, {"launch": "0"}])
def test_scores_that_do_not_say_what_they_are_of_are_refused(store, metadata):
    store.seal_scores(KEY, 0, SCORES)
    path = store.root / "scores" / f"{KEY}.parquet"
    pq.write_table(pq.read_table(path).replace_schema_metadata(metadata), path)
    with pytest.raises(StoreError, match="Remove the file to score the cell again"):
        store.is_scored(KEY)


def test_an_interrupted_write_leaves_no_scores(store, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("specprof.store.pq.write_table", full)
    with pytest.raises(StoreError, match="No space left"):
        store.seal_scores(KEY, 0, SCORES)
    monkeypatch.undo()
    assert not store.is_scored(KEY)
    assert store.scores() == {}
    store.seal_scores(KEY, 0, SCORES)
    assert store.is_scored(KEY)


def test_a_temporary_file_is_nobodys_scores(store):
    (store.root / "scores").mkdir()
    (store.root / "scores" / f".{KEY}.parquet.tmp").write_bytes(b"half")
    (store.root / "scores" / ".other.parquet").write_bytes(b"half")
    assert store.scores() == {}


def test_scores_that_were_changed_are_refused_with_what_to_do(store):
    store.seal_scores(KEY, 0, SCORES)
    path = store.root / "scores" / f"{KEY}.parquet"
    content = bytearray(path.read_bytes())
    column = pq.read_metadata(path).row_group(0).column(0)
    first = column.dictionary_page_offset or column.data_page_offset
    content[first + column.total_compressed_size - 1] ^= 0xFF  # the end of a page, where its values are
    path.write_bytes(bytes(content))
    with pytest.raises(StoreError, match="Remove the file to score the cell again"):
        store.scores()


def test_one_cell_can_be_read_alone(store):
    assert store.cell(KEY).cell == make_cell()
    with pytest.raises(StoreError):
        store.cell("b9-other")
