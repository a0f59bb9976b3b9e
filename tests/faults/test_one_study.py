"""One study, one folder, one run: who else is at it, what was changed, and what other versions of specprof left."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specprof.api.running import run
from specprof.errors import InputError, StoreError
from specprof.measure.agenda import require_same_cells
from specprof.records import CachePolicy
from specprof.store import Store
from specprof.study.changes import changes
from specprof.study.config import Study
from specprof.study.plan import make_plan
from specprof.study.reading import load_study, parse_study
from tests.factory import make_cell, make_record
from tests.running import ROOT

STUDY = f"""
study: one
engine: {{kind: sim, preset: small, time_scale: 50}}
arms: {{"off": {{}}, draft-k3: {{speculative_config: {{method: draft, num_speculative_tokens: 3}}}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: 16}}}}
concurrency: [1]
prompts: 2
"""
HASH = "a" * 64


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.create(tmp_path / "one", "study: one\n", HASH)
    made.seal(make_record())
    return made


# -- two runs ---------------------------------------------------------------------------------------------------------

HOLDER = """
import sys, pathlib, specprof.store
with specprof.store.Store(pathlib.Path(sys.argv[1])).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_run_is_told_the_process_and_host_of_the_first(store: Store) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, store.root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        with pytest.raises(StoreError) as refused, store.lock():
            pass
        first.kill()
    host = re.escape(socket.gethostname())
    assert re.search(rf"is measuring this study \(process {first.pid} on {host}, since 2\S+\)\.", str(refused.value))
    assert "Wait for it, or stop it" in str(refused.value)
    with store.lock():
        assert json.loads((store.root / ".lock").read_text())["pid"] == os.getpid(), "a killed run's is gone"
    assert (store.root / ".lock").read_text() == "", "results that are handed on name no host"


@pytest.mark.parametrize("written", ["", "{", "[]", '{"pid": "\\u001b[2J", "host": 1, "since": 2}', "\x00\xff"])
def test_a_lock_that_does_not_say_whose_it_is_holds_all_the_same(written: str, store: Store) -> None:
    with store.lock():
        (store.root / ".lock").write_text(written)
        with pytest.raises(StoreError, match=r"another run is measuring this study\. Wait"), store.lock():
            pass


# -- a study or a suite that was edited -------------------------------------------------------------------------------


def parsed(text: str) -> Study:
    return parse_study(text, "one.yaml")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("output_tokens: 16", "output_tokens: 48", ("protocols.forced.output_tokens: 16 → 48",)),
        ("concurrency: [1]", "concurrency: [1, 2]", ("concurrency: [1] → [1, 2]",)),
        ("num_speculative_tokens: 3", "num_speculative_tokens: 5", (
            "arms.draft-k3.speculative_config.num_speculative_tokens: 3 → 5",)),
        ('"off": {}, ', "", ("arms.off: {} → (not set)",)),
        ("prompts: 2", "prompts: 2\nseed: 7\nformat: chat", ('format: "completion" → "chat"', "seed: 0 → 7")),
        ("preset: small", "preset: small, parameters: {seed: 2}", ("engine.parameters.seed: (not set) → 2",)),
        ("prompts: 2", "prompts: 2\nblocks: 4  # and a comment", ()),
        ("study: one\nengine", "study: one\n\nengine", ()),
    ],
)  # fmt: skip
def test_what_was_changed_is_told_setting_by_setting(before: str, after: str, told: tuple[str, ...]) -> None:
    assert before in STUDY or before.startswith("study")
    edited = STUDY.replace(before, after)
    assert changes(STUDY, parsed(edited)) == told
    assert (parsed(STUDY).content_hash() == parsed(edited).content_hash()) == (not told)


def test_a_workload_that_was_put_in_between_changes_no_other() -> None:
    more = STUDY.replace("workloads: [", f"workloads: [{{tag: json, suite: {ROOT}/prompts/json.jsonl}}, ")
    (line,) = changes(STUDY, parsed(more))
    assert line.startswith('workloads.json: (not set) → {"tag": "json"')
    assert len(line) < 120, "a long value is cut"


def test_an_edited_study_is_refused_with_the_difference_and_what_to_do(tmp_path: Path) -> None:
    Store.create(tmp_path / "one", STUDY, parsed(STUDY).content_hash()).seal(make_record())
    config = tmp_path / "one.yaml"
    config.write_text(STUDY.replace("output_tokens: 16", "output_tokens: 48"))
    with pytest.raises(StoreError) as refused:
        run(config, tmp_path)
    assert str(refused.value) == (
        f"{tmp_path / 'one'}: holds another study of this name. What was changed since it was measured:\n"
        "  protocols.forced.output_tokens: 16 → 48\n"
        "Give the changed study a new name (study: …) to keep both, or undo the change to go on."
    )


def test_a_study_that_was_refused_before_anything_was_measured_can_be_mended_under_its_name(tmp_path: Path) -> None:
    config = tmp_path / "one.yaml"
    config.write_text(STUDY.replace("preset: small", "preset: smal"))
    with pytest.raises(InputError, match="no preset 'smal'"):
        run(config, tmp_path)
    config.write_text(STUDY)
    assert Store.existing(run(config, tmp_path)).sealed_keys() == {cell.key for cell in make_plan(parsed(STUDY)).cells}


def test_a_study_file_changed_in_the_results_themselves_is_not_taken_for_what_was_measured(tmp_path: Path) -> None:
    edited = STUDY.replace("output_tokens: 16", "output_tokens: 48")
    store = Store.create(tmp_path / "one", STUDY, parsed(STUDY).content_hash())
    store.seal(make_record())
    (store.root / "study.yaml").write_text(edited)
    config = tmp_path / "one.yaml"
    config.write_text(edited)
    with pytest.raises(StoreError, match="what was measured there is another one"):
        run(config, tmp_path)


def test_a_suite_that_was_edited_is_refused_before_anything_is_measured_beside_the_old(tmp_path: Path) -> None:
    suite, config = tmp_path / "code.jsonl", tmp_path / "one.yaml"
    shutil.copy(ROOT / "prompts" / "code.jsonl", suite)
    config.write_text(STUDY.replace(f"{ROOT}/prompts/code.jsonl", str(suite)))
    study = load_study(config)
    store = Store.create(tmp_path / "one", config.read_text(), study.content_hash())
    first, *_ = make_plan(study).cells
    store.seal(make_record(first))
    require_same_cells(make_plan(study), store)
    suite.write_text(suite.read_text().replace('"prompt": "', '"prompt": "# '))
    with pytest.raises(StoreError, match=rf"the prompts of code changed since cell {first.key} was .*a new name"):
        run(config, tmp_path)
    assert not (store.root / "launches").exists(), "no engine was started"


# -- other versions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("2", "was written by a newer specprof (0.9.1), in format 2; this one reads format 1. Use that version."),
        (
            "0",
            (
                "was written by an older specprof (0.9.1), in format 0; this one reads format 1. Use that version, or "
                "measure anew into another folder (--results)."
            ),
        ),
    ],
)
def test_another_format_is_refused_by_name_whoever_asks(written: str, told: str, store: Store) -> None:
    store.write_environment({"specprof": "0.9.1"})
    (store.root / "study.sha256").write_text(f"{HASH} {written}\n")
    for act in (lambda: Store.existing(store.root), lambda: Store.create(store.root, "study: one\n", HASH)):
        with pytest.raises(StoreError) as refused:
            act()
        assert str(refused.value) == f"{store.root}: {told}"


@pytest.mark.parametrize("environment", [None, "{", "[]", "{}", '{"specprof": "\\u001b[31m"}', '{"specprof": 1}'])
def test_a_version_that_is_not_told_is_left_out(environment: str | None, store: Store) -> None:
    if environment is not None:
        (store.root / "environment.json").write_text(environment)
    (store.root / "study.sha256").write_text(f"{HASH} 2\n")
    with pytest.raises(StoreError, match=r"by a newer specprof, in format 2"):
        Store.existing(store.root)


def rewritten(store: Store, name: str, change: Callable[[Any], None]) -> None:
    """One of the cell's JSON files as another version would have sealed it."""
    (folder,) = (store.root / "cells").iterdir()
    told = json.loads((folder / name).read_text())
    change(told)
    (folder / name).write_text(json.dumps(told))
    resealed(folder)


def resealed(folder: Path) -> None:
    files = ("cell.json", "counters.json", "requests.parquet")
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}
    (folder / "sealed.json").write_text(json.dumps({"sealed_at": "", "sha256": digests}))


def test_cells_of_a_version_that_knew_less_are_read(store: Store) -> None:
    """What was added since: mixed cells, open loops, interference, cache policies, the client's lags, hardware."""

    def forget(told: Any) -> None:
        for name in ("prompt_tags", "arrivals", "interference", "cache"):
            del told["cell"][name]
        told["client"] = {"cpu_share": 0.5, "loop_lag_p99_s": 0.001}
        told.pop("hardware", None)

    rewritten(store, "cell.json", forget)
    (read,) = store.cells()
    assert read.cell == make_cell()
    assert read.cell.cache is CachePolicy.CONTROLLED
    assert read.client is not None and (read.client.cpu_share, read.client.dispatch_lag_p99_s) == (0.5, None)


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("cell.json", lambda told: told["cell"].update(kv_transfer="nixl"), "Cell.kv_transfer"),
        ("cell.json", lambda told: told["cell"].update(role="energy"), "Role 'energy'"),
        ("cell.json", lambda told: told["cell"]["sampling"].update(min_p=0.1), "Sampling.min_p"),
        ("counters.json", lambda told: told["after"].update(num_stalls=3.0), "Counters.num_stalls"),
    ],
)
def test_cells_of_a_version_that_knows_more_are_refused_by_name(
    name: str, change: Callable[[Any], None], what: str, store: Store
) -> None:
    rewritten(store, name, change)
    with pytest.raises(StoreError, match=rf"measured by a newer specprof: it has {re.escape(what)}, .* Use that one"):
        list(store.cells())


def test_requests_that_hold_a_column_nobody_knows_here_are_refused_by_name(store: Store) -> None:
    (folder,) = (store.root / "cells").iterdir()
    table = pq.read_table(folder / "requests.parquet")
    pq.write_table(table.append_column("energy_j", pa.nulls(table.num_rows)), folder / "requests.parquet")
    resealed(folder)
    with pytest.raises(StoreError, match=r"newer specprof: it has requests\.energy_j"):
        list(store.cells())
