"""The disk: nothing sealed is ever rewritten, nothing unsealed is ever trusted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprof import store as store_module
from specprof.columns import REQUEST_SCHEMA, cell_data, request_table, requests_of
from specprof.errors import StoreError
from specprof.records import (
    ClientLoad,
    Counters,
    EngineFacts,
    Phase,
    Request,
    ServerTimes,
    Speculation,
)
from specprof.store import DeclaredVerdict, Store
from specprof.store import files as store_files
from specprof.store import requests as requests_module
from tests.factory import NGRAM, make_cell, make_record, make_request, make_requests

HASH = "a" * 64
FILES = ["cell.json", "counters.json", "requests.parquet", "sealed.json"]


@pytest.fixture
def store(tmp_path) -> Store:
    return Store.create(tmp_path / "demo", "study: demo\n", HASH)


def full_record(**changes):
    """A record with something in every field."""
    cell = make_cell(arm="ngram-k4", speculative_config=NGRAM, **changes)
    return make_record(
        cell,
        [replace(r, text="中文 \U0001f600 text") for r in make_requests(cell)],
        gauges=(Counters(7, num_requests_running=4.0, num_accepted_tokens_per_pos=None),),
        client=ClientLoad(0.3, 0.001),
        counters={"num_accepted_tokens_per_pos": (9.0, 4.0)},
    )


def folder_of(store: Store, record) -> Path:
    return store.root / "cells" / record.cell.key


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# -- what goes in comes out -------------------------------------------------------------------------------------------


def test_a_sealed_cell_is_read_as_it_was_measured(store):
    record = full_record()
    store.seal(record)
    (read,) = store.cells()
    expected = cell_data(record)
    assert read.cell == record.cell
    assert tuple(requests_of(read.requests)) == record.requests
    assert (read.before, read.after, read.client) == (expected.before, expected.after, expected.client)
    assert (read.gauges, read.launch, read.started_at) == (expected.gauges, expected.launch, expected.started_at)


def test_a_cell_holds_four_files_and_the_seal_names_the_other_three(store):
    record = full_record()
    store.seal(record)
    assert sorted(path.name for path in folder_of(store, record).iterdir()) == FILES
    assert sorted(json.loads((folder_of(store, record) / "sealed.json").read_text())["sha256"]) == FILES[:3]


def test_cells_come_back_oldest_first(store):
    for launch, second in ((1, 0), (0, 9), (0, 3)):
        cell = make_cell(tag=f"t{launch}{second}")
        store.seal(make_record(cell, [make_request(start_s=second)], launch=launch))
    assert [data.cell.tag for data in store.cells()] == ["t03", "t09", "t10"]


COUNT = st.integers(0, 2**31 - 1)
COUNTS = st.lists(COUNT, max_size=5).map(tuple)
SECONDS = st.floats(0, 1e6)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
REQUESTS = st.builds(
    Request,
    prompt_id=TEXT,
    phase=st.sampled_from(Phase),
    stream=st.integers(0, 64),
    scheduled_ns=st.integers(0, 2**62),
    sent_ns=st.integers(0, 2**62),
    done_ns=st.integers(0, 2**62),
    chunk_ns=st.lists(st.integers(0, 2**62), max_size=5).map(tuple),
    chunk_tokens=COUNTS,
    token_ids=COUNTS,
    text=TEXT,
    prompt_tokens=COUNT,
    cached_tokens=st.none() | COUNT,
    finish_reason=st.none() | TEXT,
    error=st.none() | TEXT,
    server=st.none() | st.builds(ServerTimes, SECONDS, st.none() | SECONDS, st.none() | SECONDS),
    speculation=st.none() | st.builds(Speculation, COUNT, COUNT, COUNT, COUNTS, COUNTS),
    reasoning=st.none() | TEXT,
)


@settings(deadline=None)
@given(st.lists(REQUESTS, max_size=4))
def test_requests_survive_the_way_to_columns_and_back(requests):
    assert list(requests_of(request_table(requests))) == requests


@pytest.mark.parametrize("small_bytes", [0, requests_module.SMALL_BYTES])
def test_a_file_from_before_there_was_a_column_is_read_without_it(store, monkeypatch, small_bytes):
    monkeypatch.setattr(requests_module, "SMALL_BYTES", small_bytes)
    record = full_record()
    of_then = pa.schema([field for field in REQUEST_SCHEMA if field.name != "reasoning"])
    with monkeypatch.context() as then:
        then.setattr(store_module, "REQUEST_SCHEMA", of_then)
        store.seal(record)
    (read,) = store.cells()
    assert pq.read_schema(folder_of(store, record) / "requests.parquet").names == of_then.names
    assert read.requests.select(["text"])["text"].to_pylist() == [request.text for request in record.requests]
    assert read.requests.select(["reasoning"])["reasoning"].to_pylist() == [None] * len(record.requests)
    assert tuple(requests_of(read.requests)) == record.requests


@pytest.mark.parametrize("small_bytes", [0, requests_module.SMALL_BYTES])
def test_a_column_that_came_later_is_read_whatever_was_asked_before_it(store, monkeypatch, small_bytes):
    monkeypatch.setattr(requests_module, "SMALL_BYTES", small_bytes)
    cell = make_cell()
    store.seal(make_record(cell, [replace(request, reasoning="hm") for request in make_requests(cell)]))
    (read,) = store.cells()
    for asked in (["text"], ["reasoning"]):
        told = read.requests.select(asked)
    assert set(told["reasoning"].to_pylist()) == {"hm"}


# -- sealed is sealed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("small_bytes", "opened"), [(requests_module.SMALL_BYTES, 1), (0, 3)])
def test_a_small_file_is_opened_once_whatever_is_asked_of_it_later(store, monkeypatch, small_bytes, opened):
    reads, read = [], requests_module._read
    monkeypatch.setattr(requests_module, "SMALL_BYTES", small_bytes)
    monkeypatch.setattr(requests_module, "_read", lambda *asked: reads.append(asked) or read(*asked))
    store.seal(full_record())
    (cell,) = store.cells()  # which asks when it was sent
    assert cell.requests.select(["phase", "sent_ns"]).column_names == ["phase", "sent_ns"]
    assert cell.requests.select(["text", "phase"]).column_names == ["text", "phase"]
    assert len(reads) == opened


def test_a_sealed_cell_is_never_rewritten(store):
    record = full_record()
    store.seal(record)
    before = contents(folder_of(store, record))
    with pytest.raises(StoreError, match="is sealed already; sealed cells are never rewritten"):
        store.seal(replace(record, started_at="later"))
    assert contents(folder_of(store, record)) == before


def test_what_an_interrupted_attempt_left_is_not_read_and_makes_way(store):
    record = full_record()
    folder = folder_of(store, record)
    folder.mkdir(parents=True)
    (folder / "cell.json").write_text("half a cel")
    (folder / "leftover.tmp").write_text("x")
    assert list(store.cells()) == []
    assert not store.is_sealed(record.cell.key)
    store.seal(record)
    assert sorted(contents(folder)) == FILES
    assert len(list(store.cells())) == 1


class Killed(BaseException):
    """Stands for SIGKILL: nothing may catch it and tidy up."""


@pytest.mark.parametrize("survivors", range(5))
def test_killed_between_any_two_files_the_cell_is_measured_again_and_the_others_are_intact(
    store, survivors, monkeypatch
):
    """`survivors` steps go through before the kill: requests.parquet, its sync, cell.json, counters.json, the seal."""
    done = full_record(tag="done")
    store.seal(done)
    record, steps = full_record(), 0

    def dies(original):
        def step(*arguments, **options):
            nonlocal steps
            if steps == survivors:
                raise Killed
            steps += 1
            return original(*arguments, **options)

        return step

    with monkeypatch.context() as patch:
        for module, name in ((store_module.pq, "write_table"), (store_module, "write_json"), (store_module, "sync")):
            patch.setattr(module, name, dies(getattr(module, name)))
        with pytest.raises(Killed):
            store.seal(record)
    assert [data.cell.tag for data in store.cells()] == ["done"]
    store.seal(record)
    assert {data.cell.tag for data in store.cells()} == {"done", "code"}


def test_the_seal_arrives_last_and_at_once(store, monkeypatch):
    """Killed in the middle of the very last write there is a temporary file and no seal."""
    record = full_record()
    replaced = []

    def dies_at_the_seal(source, target):
        if target.name == "sealed.json":
            raise Killed
        replaced.append(target.name)
        source.rename(target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", dies_at_the_seal)
        with pytest.raises(Killed):
            store.seal(record)
    assert replaced == ["cell.json", "counters.json"]
    assert not store.is_sealed(record.cell.key)


@pytest.mark.parametrize("name", FILES[:3])
def test_a_file_changed_after_sealing_is_refused_and_named(store, name):
    record = full_record()
    store.seal(record)
    path = folder_of(store, record) / name
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(StoreError, match=rf"{name}: changed after it was sealed. Restore it, or remove the cell"):
        list(store.cells())


@pytest.mark.parametrize("seal", ["{}", '{"sha256": {}}', '{"sha256": []}', "[]", "not JSON", ""])
def test_a_broken_seal_vouches_for_nothing(store, seal):
    record = full_record()
    store.seal(record)
    (folder_of(store, record) / "sealed.json").write_text(seal)
    with pytest.raises(StoreError, match="cannot be read"):
        list(store.cells())


@pytest.mark.parametrize("name", FILES[:3])
def test_a_missing_file_is_refused(store, name):
    record = full_record()
    store.seal(record)
    (folder_of(store, record) / name).unlink()
    with pytest.raises(StoreError, match=r"cannot be read .*Remove the folder to measure it again"):
        list(store.cells())


# -- the right study --------------------------------------------------------------------------------------------------


def test_the_same_study_opens_the_same_folder(store):
    store.seal(full_record())
    again = Store.create(store.root, "study: demo\n", HASH)
    assert len(list(again.cells())) == 1


def test_another_study_of_the_same_name_is_refused_with_the_difference(store):
    store.seal(full_record())
    with pytest.raises(StoreError) as problem:
        Store.create(store.root, "study: demo\nprompts: 32\n", "b" * 64)
    assert "holds another study of this name. What was changed since it was measured:" in str(problem.value)
    assert "\n  +prompts: 32" in str(problem.value)
    assert "Give the changed study a new name (study: …) to keep both, or undo the change" in str(problem.value)
    assert store.study_text == "study: demo\n"


def test_a_study_of_which_nothing_was_measured_makes_way_for_the_one_it_was_changed_into(store):
    _, launch = store.new_launch()
    (launch / "engine.log").touch()
    store.write_environment({"hostname": "another"})
    store.declare_verdicts({"batching": "d1"})
    changed = Store.create(store.root, "study: demo\nprompts: 32\n", "b" * 64)
    assert (changed.study_text, changed.environment(), changed.verdicts()) == ("study: demo\nprompts: 32\n", {}, {})
    assert not launch.exists()
    changed.seal(full_record())
    with pytest.raises(StoreError, match="holds another study of this name"):
        Store.create(store.root, "study: demo\n", HASH)


def test_the_same_study_begins_afresh_as_well_until_something_is_measured(store):
    """Its server, its machine or its model's files may have been mended, which its hash does not know."""
    number, launch = store.new_launch()
    store.write_facts(number, EngineFacts("vllm", "vLLM", "1", "m", ""))
    store.write_environment({"hostname": "another"})
    again = Store.create(store.root, "study: demo\n", HASH)
    assert (again.facts(), again.environment(), launch.exists()) == ({}, {}, False)
    number, _ = again.new_launch()
    again.write_facts(number, EngineFacts("vllm", "vLLM", "1", "m", ""))
    again.seal(full_record())
    assert list(Store.create(store.root, "study: demo\n", HASH).facts()) == [number]


def sealed_elsewhere(store: Store, of_cells: bool) -> None:
    """A sealed study whose cells, or whose one cell, lie on a disk that is not mounted just now."""
    store.declare_verdicts({"batching": "d1"})
    store.new_launch()
    store.seal(full_record())
    (folder,) = (store.root / "cells").iterdir()
    place = folder.parent if of_cells else folder
    shutil.rmtree(place)
    place.symlink_to(store.root.parent / "unmounted" / place.name)


@pytest.mark.parametrize("of_cells", [True, False])
@pytest.mark.parametrize("study_hash", [HASH, "b" * 64])
def test_cells_that_cannot_be_seen_just_now_are_not_taken_for_none(store, of_cells, study_hash):
    sealed_elsewhere(store, of_cells)
    before = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    acts = (
        store.sealed_keys,
        lambda: Store.create(store.root, "study: demo\nprompts: 32\n", study_hash),
        lambda: store.declare_verdicts({"batching": "d2"}),
    )
    for act in acts:
        with pytest.raises(StoreError, match=r"cells: cannot be looked at \(.*Mount its disk again or restore its"):
            act()
    assert {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()} == before
    assert (store.root / "launches" / "0").is_dir()


def test_cells_that_nobody_may_look_at_are_not_taken_for_none(store, monkeypatch):
    """Tests may run as root, whom permissions do not stop."""
    store.seal(full_record())

    def refuses(path: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuses)
    with pytest.raises(StoreError, match=r"cells: cannot be looked at \(.*Permission denied"):
        Store.create(store.root, "study: demo\nprompts: 32\n", "b" * 64)


def test_a_stray_file_among_the_cells_is_no_cell(store):
    store.seal(full_record())
    keys = store.sealed_keys()
    (store.root / "cells" / ".DS_Store").touch()
    assert store.sealed_keys() == keys != frozenset()


@pytest.mark.parametrize("made", ["scores", "quality", "explained.json", "card.json"])  # the card tells one cell
def test_a_study_whose_cells_were_taken_away_does_not_make_way_for_another(store, made):
    store.declare_verdicts({"batching": "d1"})
    (store.root / made).write_text('{"cells": [{}]}')
    with pytest.raises(StoreError, match="holds another study of this name"):
        Store.create(store.root, "study: demo\nprompts: 32\n", "b" * 64)
    with pytest.raises(StoreError, match="verdict 'batching' was declared before the measurement"):
        store.declare_verdicts({"batching": "d2"})


def test_a_report_on_nothing_is_no_measurement(store):
    (store.root / "card.json").write_text('{"cells": []}')
    Store.create(store.root, "study: demo\nprompts: 32\n", "b" * 64)
    assert store.study_text == "study: demo\nprompts: 32\n"


def test_a_study_that_cannot_be_forgotten_whole_is_not_begun_anew(store, monkeypatch):
    store.new_launch()

    def refuses(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(store_module.shutil, "rmtree", lambda path, ignore_errors=False: ignore_errors or refuses(path))
        with pytest.raises(StoreError, match=r"cannot be written \(Permission denied\)"):
            Store.create(store.root, "study: demo\nprompts: 32\n", "b" * 64)
    assert store.study_text == "study: demo\n"


def test_launches_that_lie_elsewhere_are_forgotten_with_the_study_and_stay_there(store, tmp_path):
    (tmp_path / "elsewhere" / "0").mkdir(parents=True)
    (store.root / "launches").symlink_to(tmp_path / "elsewhere")
    Store.create(store.root, "study: demo\nprompts: 32\n", "b" * 64)
    assert not (store.root / "launches").is_symlink()
    assert (tmp_path / "elsewhere" / "0").is_dir()


def test_more_blocks_of_the_same_study_are_written_down(store):
    store.seal(full_record())
    again = Store.create(store.root, "study: demo\nblocks: 8\n", HASH)
    again.keep_study("study: demo\nblocks: 8\n")
    assert store.study_text == "study: demo\nblocks: 8\n"


def test_a_folder_that_is_no_study_is_not_read(tmp_path):
    with pytest.raises(StoreError, match=r"is not a results folder\. Give one that 'specprof run' made"):
        Store.existing(tmp_path)


def test_a_name_that_no_folder_can_have_is_no_study(tmp_path):
    """A name holds 255 bytes at most, and a Chinese character takes three."""
    with pytest.raises(StoreError, match=r"is not a results folder\. Give one that 'specprof run' made"):
        Store.existing(tmp_path / ("研" * 86))


@pytest.mark.parametrize("written", [f"{HASH}\n", "", f"{HASH} one\n", f"{HASH} 1 2\n"])
def test_a_folder_that_names_no_format_is_not_guessed_at(store, written):
    (store.root / "study.sha256").write_text(written)
    with pytest.raises(StoreError, match=r"study\.sha256: names no hash and format\. Restore it"):
        Store.existing(store.root)


# -- verdicts ---------------------------------------------------------------------------------------------------------


def test_verdicts_are_written_down_before_the_measurement(store):
    store.declare_verdicts({"batching": "d1"})
    store.seal(full_record())
    store.declare_verdicts({"batching": "d1", "second thought": "d2"})
    assert store.verdicts() == {
        "batching": DeclaredVerdict("d1", post_hoc=False),
        "second thought": DeclaredVerdict("d2", post_hoc=True),
    }


def test_a_line_that_was_taken_back_before_the_measurement_is_post_hoc_when_it_returns(store):
    store.declare_verdicts({"batching": "d1"})
    store.declare_verdicts({})
    store.seal(full_record())
    store.declare_verdicts({"batching": "d1"})
    assert store.verdicts() == {"batching": DeclaredVerdict("d1", post_hoc=True)}


def test_a_line_that_was_moved_is_refused_once_a_cell_is_measured(store):
    store.declare_verdicts({"batching": "d1"})
    store.declare_verdicts({"batching": "d2"})
    store.seal(full_record())
    with pytest.raises(StoreError, match="verdict 'batching' was declared before the measurement and has changed"):
        store.declare_verdicts({"batching": "d3"})
    assert store.verdicts() == {"batching": DeclaredVerdict("d2", post_hoc=False)}


# -- one run at a time, on a disk that takes it -----------------------------------------------------------------------


def test_a_second_run_on_the_same_study_is_refused(store):
    with store.lock(), pytest.raises(StoreError, match="another run is measuring this study"), store.lock():
        pass
    with store.lock():  # and the first one's end frees it
        pass


def test_a_killed_run_holds_no_lock(store):
    script = (
        "import os, signal, pathlib, specprof.store as s\n"
        f"with s.Store(pathlib.Path({str(store.root)!r})).lock(): os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    with store.lock():
        pass


@contextmanager
def read_only(monkeypatch) -> Iterator[None]:
    """A disk that takes nothing; tests may run as root, whom permissions do not stop."""

    def refuses(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        for name in ("open", "mkdir"):
            patch.setattr(Path, name, refuses)
        patch.setattr("os.open", refuses)
        patch.setattr(store_module.pq, "write_table", refuses)
        yield


@pytest.mark.parametrize("act", ["create", "lock", "seal", "new_launch", "write_facts", "write_environment", "declare"])
def test_a_read_only_disk_is_a_message_not_a_traceback(act, tmp_path, monkeypatch):
    store = Store(tmp_path / "demo")
    acts = {
        "create": lambda: Store.create(store.root, "study: demo", HASH),
        "lock": lambda: store.lock().__enter__(),
        "seal": lambda: store.seal(full_record()),
        "new_launch": store.new_launch,
        "write_facts": lambda: store.write_facts(0, EngineFacts("vllm", "vLLM", "1", "m", "")),
        "write_environment": lambda: store.write_environment({}),
        "declare": lambda: store.declare_verdicts({"batching": "d1"}),
    }
    with read_only(monkeypatch), pytest.raises(StoreError, match=r"cannot be written \(Read-only file system\)"):
        acts[act]()


def test_a_results_folder_that_is_a_file(tmp_path):
    (tmp_path / "demo").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        Store.create(tmp_path / "demo", "study: demo", HASH)


def test_a_sealed_study_can_be_read_from_a_read_only_disk(store, monkeypatch):
    store.seal(full_record())
    with monkeypatch.context() as patch:
        for module in (store_module, store_files):
            patch.setattr(module, "write", lambda *_: pytest.fail("reading must not write"))
        assert len(list(Store.existing(store.root).cells())) == 1


# -- launches ---------------------------------------------------------------------------------------------------------


def test_every_engine_start_has_a_number_of_its_own(store):
    assert [store.new_launch()[0] for _ in range(3)] == [0, 1, 2]
    assert Store(store.root).new_launch() == (3, store.root / "launches" / "3")


def test_facts_of_a_launch_come_back(store):
    facts = EngineFacts("vllm", "vLLM", "0.32.0", "m", "sha", argv=("python", "-m", "vllm"), env={"A": "1"})
    number, _ = store.new_launch()
    store.write_facts(number, facts)
    assert store.facts() == {0: facts}


_NAMED = '"kind": "sim", "name": "", "version": "", "model": "", "model_hash": "", "argv": []'


@pytest.mark.parametrize(
    "told",
    [
        *("{", "[]", "{}", '{"argv": [], "colour": "red"}'),
        *(
            f'{{{_NAMED}, "{name}": {value}}}'
            for name, value in (("max_num_seqs", '"8"'), ("env", "[]"), ("extra", "true"))
        ),
        *(
            f'{{{_NAMED}, "extra": {{"{name}": {value}}}}}'
            for name, value in (("time_scale", "0"), ("hardware", '{"gpus": 5}'), ("tensor_parallel_size", '"2"'))
        ),
    ],
)
def test_broken_facts_are_named(store, told):
    _, folder = store.new_launch()
    (folder / "facts.json").write_text(told)
    with pytest.raises(StoreError, match=r"launches/0/facts\.json"):
        store.facts()


def test_facts_of_the_right_kinds_are_read(store):
    _, folder = store.new_launch()
    extra = '{"time_scale": 4, "hardware": {"driver": "1", "gpus": [{"index": 0, "uuid": "x"}]}, "colour": "red"}'
    (folder / "facts.json").write_text(f'{{{_NAMED}, "extra": {extra}}}')
    assert store.facts()[0].extra["colour"] == "red"


def test_an_environment_of_another_kind_is_named(store):
    store.write_environment({"gpus": 5})
    with pytest.raises(StoreError, match=r"environment\.json.*environment\.gpus"):
        store.environment()


def test_the_first_run_s_environment_is_kept(store):
    assert store.environment() == {}
    store.write_environment({"cores": 2})
    store.write_environment({"cores": 64})
    assert store.environment() == {"cores": 2}
