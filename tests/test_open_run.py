"""`specprof run` of open loops, end to end over a socket: what is climbed, when it stops, and how it resumes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specprof.columns import requests_of
from specprof.records import Cell, Phase, Request, Role
from specprof.store import Store
from specprof.study.load import Goodput
from specprof.study.schedule import rates_of
from tests.running import ROOT, sealed, specprof, started, wait_until

# The small machine, one request at a time. A step takes 4.5 + 0.4 + 0.1 ms, so 32 tokens take 0.16 s and a little more
# for reading: about 6 requests per second is all it can do. A machine that stands still for two of its seconds costs
# six of the engine's: targets and time-outs are longer, the rates that it can do bring no more than a few requests
# meanwhile, and the others are so far beyond it that nothing else could be the reason.
STUDY = f"""\
study: served
engine: {{kind: sim, preset: small, parameters: {{scheduler: {{max_num_seqs: 1}}}}, time_scale: 3}}
arms: {{"off": {{}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl, targets: {{ttft: 8}}}}]
protocols:
  served:
    stop: forced
    output_tokens: 32
    load: LOAD
prompts: 4
"""
CURVE = "{kind: rates, rates: [1, 2, 40, 50, 60], duration: 4, warmup: 1, timeout: 9}"
SEARCH = "{kind: goodput, between: [1, 1024], rungs: 3, arrivals: constant, duration: 6, warmup: 2, timeout: 12}"


def written(folder: Path, load: str) -> Path:
    path = folder / "served.yaml"
    path.write_text(STUDY.replace("LOAD", load), encoding="utf-8")
    return path


def rungs(results: Path) -> dict[float, tuple[Cell, list[Request]]]:
    """Measured rungs by rate, in the order they were measured."""
    found = {}
    for data in Store.existing(results).cells():
        if data.cell.role is Role.OPEN and data.cell.arrivals is not None:
            found[data.cell.arrivals.rate_per_s] = (data.cell, list(requests_of(data.requests)))
    return found


def test_a_curve_is_measured_until_the_engine_collapses(tmp_path: Path) -> None:
    path = written(tmp_path, CURVE)
    run = specprof("run", path, "--results", tmp_path, "--no-report")
    assert run.returncode == 0, run.stderr
    measured = rungs(tmp_path / "served")
    assert list(measured) == [1, 2, 40], "40 per second are almost seven times what it can do"
    for rate, (cell, requests) in measured.items():
        assert cell.arrivals is not None
        start_ns = requests[0].scheduled_ns - cell.arrivals.due_s[0] * 1e9
        due = [(r.scheduled_ns - start_ns) / 1e9 for r in requests]
        assert due == pytest.approx(cell.arrivals.due_s[: len(requests)], abs=1e-6), "in the engine's own seconds"
        lost = [r for r in requests if r.phase is Phase.MEASURED and r.error is not None]
        assert bool(lost) == (rate == 40)
        assert all(r.error is not None and r.error.startswith("timed out") for r in lost)

    again = specprof("run", path, "--results", tmp_path, "--no-report")
    assert re.search(r"all \d+ cells are measured already", again.stdout), again.stdout + again.stderr
    assert len(list((tmp_path / "served" / "launches").iterdir())) == 1, "an engine was started for nothing"


def test_a_killed_climb_goes_on_where_it_was(tmp_path: Path) -> None:
    path, results = written(tmp_path, CURVE), tmp_path / "served"

    def rungs_sealed() -> int:
        return sum("-served-r" in key for key in sealed(results))

    with started("run", path, "--results", tmp_path, "--no-report") as first:
        wait_until(lambda: rungs_sealed() >= 1)
        first.kill()
    before = sealed(results)
    second = specprof("run", path, "--results", tmp_path, "--no-report")
    assert second.returncode == 0, second.stderr
    assert "of up to 7 cells are measured; going on" in second.stdout  # five rungs, a sentinel before and after
    assert before.items() <= sealed(results).items()
    assert list(rungs(results)) == [1, 2, 40]


def test_a_search_visits_its_rungs_and_no_others(tmp_path: Path) -> None:
    """Between 1 and 1,024: 32 is in the middle, which it cannot do; then sqrt(32), which it can; then one between."""
    path = written(tmp_path, SEARCH)
    run = specprof("run", path, "--results", tmp_path, "--no-report")
    assert run.returncode == 0, run.stderr
    load = Goodput(kind="goodput", between=(1, 1024), rungs=3, duration=4)
    assert len(rates_of(load)) == 7
    assert list(rungs(tmp_path / "served")) == pytest.approx([32.0, 32**0.5, 32**0.75])
    again = specprof("run", path, "--results", tmp_path, "--no-report")
    assert "measured already" in again.stdout
