"""A results folder from elsewhere: damaged or made up, it is told or refused, and nothing is written outside it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprof.columns import LATER_COLUMNS, REQUEST_SCHEMA
from specprof.decide.conclude import conclude
from specprof.publish.card import card
from specprof.publish.settings import settings as environment_lines
from specprof.store import Store
from tests.fuzz.conftest import fuzz
from tests.fuzz.hostile import any_bytes, as_json, mutated, or_refused

DEMO = Path(__file__).parents[2] / "results" / "demo"
BESIDE = ("study.yaml", "study.sha256", "environment.json", "verdicts.json", "launches")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo with four of its cells: off and on, one and eight streams of code."""
    root = tmp_path_factory.mktemp("fuzz") / "demo"
    root.mkdir()
    for name in BESIDE:
        source = DEMO / name
        if source.is_dir():
            shutil.copytree(source, root / name)
        else:
            shutil.copy(source, root / name)
    for sealed in DEMO.glob("cells/*-code-forced-n[18]-*/sealed.json"):
        shutil.copytree(sealed.parent, root / "cells" / sealed.parent.name)
    return root


@contextmanager
def holding(path: Path, content: bytes) -> Iterator[None]:
    """A file with another content for a while; of a sealed cell's file the seal vouches for it."""
    seal = path.parent / "sealed.json"
    before = {part: part.read_bytes() for part in (path, seal) if part.exists()}
    path.write_bytes(content)
    if seal.exists() and path != seal:
        told = json.loads(before[seal])
        told["sha256"][path.name] = hashlib.sha256(content).hexdigest()
        seal.write_text(json.dumps(told), encoding="utf-8")
    try:
        yield
    finally:
        for part, old in before.items():
            part.write_bytes(old)


def read(folder: Path) -> bool:
    """Whether everything a folder holds can be read."""
    store = or_refused(lambda: Store.existing(folder))
    if store is None:
        return False
    parts = (store.facts, store.environment, store.verdicts, store.marks, store.scores, lambda: store.study_text)
    told = [or_refused(part) for part in (*parts, lambda: list(store.cells()))]
    if isinstance(told[1], dict):
        environment_lines(told[1])
    return None not in told


def concluded(folder: Path) -> bool:
    """Whether a study is told: figures, and a card that is valid under its own schema."""
    return or_refused(lambda: card(conclude(Store.existing(folder)).figures)) is not None


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".log")


def test_the_folder_that_is_damaged_is_whole(folder: Path) -> None:
    assert len(list(folder.glob("cells/*"))) == 4
    assert read(folder) and concluded(folder)


@fuzz
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(data: st.DataObject, folder: Path) -> None:
    path = data.draw(st.sampled_from(files(folder)))
    with holding(path, data.draw(any_bytes(path.read_bytes()))):
        read(folder)


@fuzz
@given(data=st.data())
def test_anything_anywhere_in_a_file_is_read_or_refused(data: st.DataObject, folder: Path) -> None:
    path = data.draw(st.sampled_from([path for path in files(folder) if path.suffix == ".json"]))
    with holding(path, as_json(data.draw(mutated(json.loads(path.read_bytes())))).encode()):
        read(folder)


@settings(fuzz, max_examples=max(6, fuzz.max_examples // 10))
@given(data=st.data())
def test_what_can_be_read_of_a_made_up_file_can_be_told(data: st.DataObject, folder: Path) -> None:
    names = ("cell.json", "counters.json", "facts.json", "environment.json")
    path = data.draw(st.sampled_from([path for path in files(folder) if path.name in names]))
    with holding(path, as_json(data.draw(mutated(json.loads(path.read_bytes()), times=1))).encode()):
        concluded(folder)


def _table(folder: Path) -> tuple[Path, pa.Table]:
    path = next(folder.glob("cells/*on*/requests.parquet"), None) or next(folder.glob("cells/*/requests.parquet"))
    return path, pq.read_table(path)


@pytest.mark.parametrize("column", REQUEST_SCHEMA.names)
def test_a_column_that_is_missing_or_of_another_kind_is_refused(column: str, folder: Path) -> None:
    path, table = _table(folder)
    without = () if column in LATER_COLUMNS else (table.drop_columns([column]),)
    for other in (*without, _of_texts(table, column)):
        sink = pa.BufferOutputStream()
        pq.write_table(other, sink)
        with holding(path, sink.getvalue().to_pybytes()):
            assert not concluded(folder)


def _of_texts(table: pa.Table, column: str) -> pa.Table:
    kind = pa.binary() if REQUEST_SCHEMA.field(column).type == pa.string() else pa.string()
    others = [name for name in table.column_names if name != column]
    return table.select(others).append_column(column, pa.array(["x"] * table.num_rows, kind))
