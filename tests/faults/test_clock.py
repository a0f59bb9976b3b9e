"""A wall clock that jumps (NTP, a restored machine, a change of zone) moves no figure: it is for people alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from specprof.analyse.results import StudyFigures
from specprof.decide.conclude import conclude
from specprof.engine.sim import Noise, machine_of, run_study
from specprof.store import Store
from specprof.study.plan import make_plan
from specprof.study.reading import parse_study
from tests.running import ROOT

STUDY = f"""
study: clock
engine: {{kind: sim, preset: small}}
arms: {{"off": {{}}, draft-k3: {{speculative_config: {{method: draft, num_speculative_tokens: 3}}}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: 48}}}}
concurrency: [1, 4]
prompts: 8
blocks: 2
"""
STEADY = ("2026-01-01T00:00:00.000+00:00",) * 100
SET_BACK = tuple(f"{2099 - i}-12-31T23:59:59.000+00:00" for i in range(100))  # a year before every cell

# Who reads it: `now` for people, and the simulated server where vLLM stamps its answers. One alone reckons with it, to
# take it off the kernel's times, and sees when it was set (tests/measure/test_arrivals.py).
READ_IT = {"specprof/store/files.py", "specprof/engine/sim/server.py", "specprof/measure/arrivals.py"}
WALL_CLOCK = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "today"), ("date", "today")}
WALL_CLOCK |= {("datetime", "utcnow"), ("time", "localtime"), ("time", "gmtime")}


def figures(root: Path, started_at: tuple[str, ...]) -> StudyFigures:
    """The same study on the virtual clock, sealed in order by a machine whose wall clock said this.

    Its steps grow, so that a sentinel that is taken for the other one changes a figure.
    """
    study = parse_study(STUDY, "clock.yaml")
    plan = make_plan(study)
    machine = replace(machine_of("small"), noise=Noise(launch_sigma=0.02, step_sigma=0.01, drift_per_minute=2.0))
    store = Store.create(root, STUDY, study.content_hash())
    for record, at in zip(run_study(machine, plan.launches, plan.prompts), started_at, strict=False):
        store.seal(replace(record, started_at=at))
    return conclude(store).figures


def test_no_figure_moves_when_the_wall_clock_is_set_back(tmp_path: Path) -> None:
    steady, set_back = figures(tmp_path / "steady", STEADY), figures(tmp_path / "set-back", SET_BACK)
    assert steady == set_back
    drifts = [gate.evidence for cell in steady.cells for gate in cell.gates if (gate.gate, gate.name) == (6, "drift")]
    assert drifts and all("% slower after " in evidence for evidence in drifts), "the machine slowed down"


def test_nobody_reckons_with_the_wall_clock() -> None:
    found = {str(path.relative_to(ROOT)) for path in (ROOT / "specprof").rglob("*.py") if any(_reads_wall_clock(path))}
    assert found == READ_IT


def _reads_wall_clock(path: Path) -> Iterator[bool]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield (node.value.id, node.attr) in WALL_CLOCK
        elif isinstance(node, ast.ImportFrom):
            yield any((node.module, alias.name) in WALL_CLOCK for alias in node.names)
