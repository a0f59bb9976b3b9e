"""A disk that takes no more, or nothing at all: said where, exit code 2, and every sealed cell stays what it was.

The first test runs out of space at every single write, sync and rename of the store in turn; the others are real: a
file size limit, a full file system, one that is mounted read-only.
"""

from __future__ import annotations

import errno
import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specprof import store as store_module
from specprof.columns import requests_of
from specprof.errors import StoreError
from specprof.records import EngineFacts, TextMarks, TextScores
from specprof.store import Store
from tests.factory import make_cell, make_record
from tests.running import ROOT, sealed

STUDY = f"""
study: full
engine: {{kind: sim, preset: small, time_scale: 50}}
arms: {{"off": {{}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: 64}}}}
concurrency: [1]
prompts: 8
"""
RECORDS = [make_record(make_cell(tag=tag)) for tag in ("first", "second")]
SCORES = (TextScores("code-000", (-0.5,), (1,), ((-0.5,),)),)
MARKS = TextMarks({"first": "json"}, "digest", (True,) * 4, ("",) * 4)


# -- at every place in turn -------------------------------------------------------------------------------------------


def run_session(root: Path) -> None:
    """Everything a run writes to its store; what is there already is left, as a run that goes on does."""
    store = Store.create(root, "study: demo\n", "a" * 64)
    with store.lock():
        store.keep_study("study: demo\n")
        store.declare_verdicts({"line": "digest"})
        store.write_environment({"cores": 2})
        number, _ = store.new_launch()
        store.write_facts(number, EngineFacts("sim", "simulated", "1", "m", "hash"))
        for record in RECORDS:
            if not store.is_sealed(record.cell.key):
                store.seal(record)
        key = RECORDS[0].cell.key
        if not store.is_scored(key):
            store.seal_scores(key, number, SCORES)
        if not store.is_judged(key, "digest"):
            store.seal_quality(key, MARKS)


class Disk:
    """Counts what is asked of it, and from the `full_at`-th time on takes nothing any more."""

    def __init__(self, full_at: int | None = None) -> None:
        self.asked = 0
        self._full_at = full_at

    def take(self) -> None:
        self.asked += 1
        if self._full_at is not None and self.asked > self._full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Handle:
    """An open file whose writes may get half through."""

    def __init__(self, handle: Any, disk: Disk) -> None:
        self._handle, self._disk = handle, disk

    def write(self, content: Any) -> None:
        try:
            self._disk.take()
        except OSError:
            self._handle.write(content[: len(content) // 2])
            self._handle.flush()
            raise
        self._handle.write(content)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


@contextmanager
def writing_to(disk: Disk) -> Iterator[None]:
    """Every file, folder, sync and rename goes to that disk while the block lasts; reading is free."""
    open_file, write_table = Path.open, store_module.pq.write_table

    def opened(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if mode.startswith("r"):
            return open_file(path, mode, *arguments, **options)
        disk.take()
        return Handle(open_file(path, mode, *arguments, **options), disk)

    def table_written(table: Any, where: Any, **options: Any) -> None:
        try:
            disk.take()
        except OSError:
            (where.write_bytes if isinstance(where, Path) else where.write)(b"PAR1 and then no space")
            raise
        write_table(table, where, **options)

    def asked_first(original: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*arguments: Any, **options: Any) -> Any:
            disk.take()
            return original(*arguments, **options)

        return asked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", opened)
        patch.setattr(store_module.pq, "write_table", table_written)
        for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "mkdir")):
            patch.setattr(owner, name, asked_first(getattr(owner, name)))
        yield


def kept(root: Path) -> dict[str, list[Any]]:
    """What the sealed cells hold, by content."""
    cells = Store.existing(root).cells() if (root / "study.sha256").is_file() else ()
    return {data.cell.tag: list(requests_of(data.requests)) for data in cells}


def test_a_disk_that_is_full_from_any_write_on_loses_nothing_sealed_and_the_next_run_goes_on(tmp_path: Path) -> None:
    whole = Disk()
    with writing_to(whole):
        run_session(tmp_path / "whole")
    expected = kept(tmp_path / "whole")
    assert set(expected) == {"first", "second"}
    assert whole.asked > 50
    for full_at in range(whole.asked):
        root = tmp_path / str(full_at)
        told = None
        with writing_to(Disk(full_at)):
            try:
                run_session(root)
            except StoreError as problem:
                told = str(problem)
        assert told is not None and "No space left on device" in told, f"full after {full_at} writes: {told}"
        assert "Sealed cells are safe" in told
        left = kept(root)
        assert left.items() <= expected.items(), f"full after {full_at} writes"
        run_session(root)
        assert kept(root) == expected
        assert set(Store(root).scores()) == set(Store(root).marks()) == {RECORDS[0].cell.key}


# -- for real ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    return path


def test_a_file_that_may_not_grow_ends_the_run_with_2_and_nothing_half_is_sealed(study: Path, tmp_path: Path) -> None:
    """The limit lets the study and its JSON files through, and stops at the first cell's requests."""
    limited = subprocess.run(
        [sys.executable, "-m", "specprof.cli", "run", study, "--results", tmp_path, "--no-report"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (6000, 6000)),
    )
    assert limited.returncode == 2, limited.stderr
    assert "cannot be written" in limited.stderr and "File too large" in limited.stderr
    assert "Traceback" not in limited.stderr
    assert sealed(tmp_path / "full") == {}


def in_own_mounts(script: str) -> subprocess.CompletedProcess[str]:
    """A shell script where it may mount what nobody else sees; skipped where that is not allowed."""
    mounts = ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",))]
    try:
        allowed = subprocess.run([*mounts, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if allowed.returncode:
        pytest.skip(f"file systems may not be mounted here: {allowed.stderr.decode().strip()}")
    return subprocess.run([*mounts, "sh", "-c", script], capture_output=True, text=True, timeout=300, check=False)


def test_a_full_file_system_and_a_read_only_one(study: Path, tmp_path: Path) -> None:
    """Full: 2, and the run goes on where there is room again. Read-only: read all the same, 2 for what must write."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = shlex.join([sys.executable, "-m", "specprof.cli"])
    run = f"{command} run {study} --results {disk} --no-report"
    done = in_own_mounts(f"""
        cd {ROOT}
        mount -t tmpfs -o size=64k tmpfs {disk}
        {run}; echo "full: $?"
        find {disk} -name sealed.json | wc -l
        mount -o remount,size=64m {disk}
        {run}; echo "room: $?"
        find {disk} -name sealed.json | wc -l
        mount -o remount,ro {disk}
        {command} report {disk}/full; echo "report: $?"
        {run}; echo "again: $?"
    """)
    told = done.stdout.splitlines()
    codes = {line.partition(":")[0]: line for line in told if line.partition(":")[2].strip().isdecimal()}
    assert list(codes.values()) == ["full: 2", "room: 0", "report: 2", "again: 2"], done.stdout + done.stderr
    before, after = (int(line) for line in told if line.strip().isdecimal())
    assert before < after == 4
    assert "No space left on device" in done.stderr and "Read-only file system" in done.stderr
    assert "Traceback" not in done.stderr
    assert "forced" in done.stdout, "the tables of the report are shown all the same"
