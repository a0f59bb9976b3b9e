"""A run that is stopped at any instant, by Ctrl-C, by SIGTERM or by kill -9, loses nothing sealed and doubles nothing.

Instants are drawn over the whole life of the command, from the interpreter's start to its end. `SPECPROF_INSTANTS` says
how many (`make faults`: 200); a few by default.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from specprof.store import Store
from specprof.study.plan import make_plan
from specprof.study.reading import load_study
from tests.running import ROOT, sealed, specprof, started, wait_until

INSTANTS = int(os.environ.get("SPECPROF_INSTANTS", "3"))
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
AGAIN_S = 0.05  # somebody impatient presses Ctrl-C twice: the second comes while the first is being tidied up
ENDS_S = 120.0  # by then whatever was stopped has ended, with all that it started
KEPT = "Sealed cells are kept; the same command goes on from there."
MARK = "SPECPROF_TEST_MARK"

# One launch of six cells, of which each takes a tenth of a second; every run that goes on is another launch.
STUDY = f"""
study: stopped
engine: {{kind: sim, preset: small, time_scale: 100}}
arms: {{"off": {{}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: 16}}}}
concurrency: [1, 2]
prompts: 2
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(MARK, str(tmp_path))  # is inherited by every process a run starts, wherever it moves to
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    return path


def ours(mark: str) -> list[psutil.Process]:
    """Every process that came from a run of this test, whoever its parent is now."""
    found = []
    for process in psutil.process_iter(["pid"]):
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def contents(results: Path) -> dict[str, dict[str, bytes]]:
    """Every file of every sealed cell."""
    return {
        key: {path.name: path.read_bytes() for path in (results / "cells" / key).iterdir()} for key in sealed(results)
    }


@dataclass(frozen=True)
class Stopped:
    """A run that was sent a signal: how it ended, what it said, and how many cells were sealed once it was sent."""

    number: signal.Signals
    twice: bool
    code: int
    output: str
    num_sealed: int


def stopped_after(seconds: float, number: signal.Signals, study: Path, results: Path, *, twice: bool) -> Stopped:
    """A run that is sent the signal so long after its start, unless it has ended by itself.

    Cells are counted after the signal has gone out, not before: what is still to be sealed then was so when it came.
    """
    with started("run", study, "--results", results, "--no-report") as run:
        time.sleep(seconds)
        run.process.send_signal(number)
        num_sealed = len(sealed(results / "stopped"))
        if twice:
            time.sleep(AGAIN_S)
            run.process.send_signal(number)
        output = run.ended(ENDS_S)
    return Stopped(number, twice, run.process.returncode, output, num_sealed)


def require_promised_end(run: Stopped, num_cells: int) -> None:
    """The exit codes of the documentation, and never a traceback of ours. No signal is lost while work is left.

    CPython itself ends by SIGINT, after all is tidied up, if the interrupt came while it ran code out of a string (an
    import of dataclasses): a shell and a container show 130 for that as well. A second signal may come when all is
    tidied up and said and only the interpreter is left: then it ends by that.
    """
    by_itself = {0} if run.num_sealed == num_cells else set()
    loading = "in main" not in run.output and "launch" not in run.output  # Python's own end: no command had begun
    untouched = {-run.number} if loading or run.num_sealed == num_cells else set()
    promised = {-signal.SIGKILL} if run.number is signal.SIGKILL else {130, -signal.SIGINT}
    late = {-run.number} if run.twice and KEPT in run.output else set()
    assert run.code in by_itself | untouched | promised | late, f"{run.number.name}: {run.code}\n{run.output}"
    if not loading:
        assert "Traceback" not in run.output and "Exception ignored" not in run.output, run.output
        assert KEPT in run.output or run.code not in {130, -signal.SIGINT} - untouched, run.output


@pytest.mark.timeout(3600)
def test_a_run_stopped_at_random_instants_is_finished_by_running_it_again(study: Path, tmp_path: Path) -> None:
    rng = random.Random(20260101)
    keys = {cell.key for cell in make_plan(load_study(study)).cells}
    began = time.monotonic()
    results = tmp_path / "whole"
    assert specprof("run", study, "--results", results, "--no-report").returncode == 0
    whole_s = time.monotonic() - began
    codes = Counter[str]()
    for instant in range(INSTANTS):
        if set(sealed(results / "stopped")) == keys:
            results = tmp_path / f"from-{instant}"
        before = contents(results / "stopped")
        number, twice = SIGNALS[instant % len(SIGNALS)], instant % 2 == 1
        run = stopped_after(rng.uniform(0, whole_s), number, study, results, twice=twice)
        require_promised_end(run, len(keys))
        wait_until(lambda: not ours(str(tmp_path)), ENDS_S)
        after = contents(results / "stopped")
        assert before.items() <= after.items(), f"{number.name} changed what was sealed"
        assert set(after) <= keys
        codes[f"{number.name} {run.code}"] += 1
    print(f"{INSTANTS} instants over {whole_s:.1f} s: {dict(codes)}")
    before = contents(results / "stopped")
    last = specprof("run", study, "--results", results, "--no-report")
    assert last.returncode == 0, last.stderr
    require_whole(results / "stopped", keys, before)


def require_whole(results: Path, keys: set[str], before: dict[str, Any]) -> None:
    """Every cell of the plan once, those that were sealed as they were, each from a launch that says what it ran."""
    store = Store.existing(results)
    cells = list(store.cells())
    assert sorted(data.cell.key for data in cells) == sorted(keys)
    assert before.items() <= contents(results).items()
    assert {data.launch for data in cells} <= set(store.facts())
    assert not list((results / "cells").rglob("*.tmp"))


SLOW_TO_LOAD = "import time; print('loading', flush=True); time.sleep(60)"


def test_an_interrupt_while_the_commands_are_loading_shows_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What every command imports first, put in the place of the library, takes as long as the test needs."""
    (tmp_path / "typer.py").write_text(SLOW_TO_LOAD)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    with started("plan", "study.yaml") as run:
        wait_until(lambda: "loading" in run.said())
        run.process.send_signal(signal.SIGINT)
        said = run.ended(ENDS_S)
    assert (said.strip(), run.process.returncode) == ("loading", 130)
