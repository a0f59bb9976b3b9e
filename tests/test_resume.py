"""Nothing measured is ever lost: a run killed at any instant is finished by running it again."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from specprof.study.plan import make_plan
from specprof.study.reading import load_study
from tests.running import ROOT, gone, sealed, specprof, started, wait_until

STUDY = """
study: resumed
engine: {{kind: sim, preset: small}}
arms: {{"off": {{}}, draft-k3: {{speculative_config: {{method: draft, num_speculative_tokens: 3}}}}}}
workloads: [{{tag: code, suite: {root}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: 32}}}}
concurrency: [1, 2]
prompts: 4
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.format(root=ROOT))
    return path


def test_a_run_killed_mid_cell_is_finished_by_the_next(study: Path, tmp_path: Path) -> None:
    results = tmp_path / "resumed"
    with started("run", study, "--results", tmp_path, "--no-report") as first:
        wait_until(lambda: len(sealed(results)) >= 2)
        processes = first.family()
        first.kill()
        before = sealed(results)
        assert gone(processes), "the engine outlived a killed run"

    second = specprof("run", study, "--results", tmp_path, "--no-report")

    assert second.returncode == 0, second.stderr
    after = sealed(results)
    assert set(after) == {cell.key for cell in make_plan(load_study(study)).cells}
    assert before.items() <= after.items(), "a sealed cell was rewritten"
    assert "going on" in second.stdout


def test_a_finished_study_starts_no_engine(study: Path, tmp_path: Path) -> None:
    assert specprof("run", study, "--results", tmp_path, "--no-report").returncode == 0
    launches = sorted((tmp_path / "resumed" / "launches").iterdir())
    environment = tmp_path / "resumed" / "environment.json"
    told = json.loads(environment.read_text())
    environment.write_text(json.dumps({**told, "planned_cells": told["planned_cells"] + 8}))  # it had more blocks then
    again = specprof("run", study, "--results", tmp_path, "--no-report")
    assert again.returncode == 0
    assert "measured already" in again.stdout
    assert json.loads(environment.read_text()) == told
    assert sorted((tmp_path / "resumed" / "launches").iterdir()) == launches


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_keeps_what_it_has(study: Path, tmp_path: Path, stop: signal.Signals) -> None:
    with started("run", study, "--results", tmp_path, "--no-report") as run:
        wait_until(lambda: len(sealed(tmp_path / "resumed")) >= 1)
        processes = run.family()[1:]
        run.process.send_signal(stop)
        output = run.ended()
    assert run.process.returncode == 130, output
    assert "Sealed cells are kept" in output
    assert "Traceback" not in output
    assert gone(processes)
    num_sealed, planned = len(sealed(tmp_path / "resumed")), len(make_plan(load_study(study)).cells)
    assert 0 < num_sealed < planned
    report = specprof("report", tmp_path / "resumed")
    unfinished = f"Not finished: {num_sealed} of at most {planned} cells are measured."
    assert unfinished in " ".join(report.stdout.split())
    assert specprof("run", study, "--results", tmp_path, "--no-report").returncode == 0
    assert "Not finished" not in specprof("report", tmp_path / "resumed").stdout


def test_a_second_run_of_the_same_study_is_refused(study: Path, tmp_path: Path) -> None:
    """The first holds its lock for as long as it is there: it is stopped, so that it is, however slow the second."""
    with started("run", study, "--results", tmp_path, "--no-report") as first:
        wait_until((tmp_path / "resumed" / "launches").is_dir)
        first.process.send_signal(signal.SIGSTOP)
        assert first.process.poll() is None
        second = specprof("run", study, "--results", tmp_path, "--no-report")
    assert second.returncode == 2
    assert "another run is measuring this study" in second.stderr


def test_a_study_changed_half_way_is_refused_with_the_difference(study: Path, tmp_path: Path) -> None:
    assert specprof("run", study, "--results", tmp_path, "--no-report").returncode == 0
    study.write_text(study.read_text().replace("output_tokens: 32", "output_tokens: 48"))
    changed = specprof("run", study, "--results", tmp_path, "--no-report")
    assert changed.returncode == 2
    assert "protocols.forced.output_tokens: 32 → 48" in changed.stderr
    assert "Give the changed study a new name" in changed.stderr
