"""`load: {workers: 2}` through the command line: the study of one client within noise, and a worker killed in it."""

from __future__ import annotations

import json
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from specprof.analyse.results import CellFigures, Severity
from specprof.columns import requests_of
from specprof.decide.conclude import conclude
from specprof.engine import endpoint
from specprof.records import LOST_WITH_WORKER, Phase, Role
from specprof.store import Store
from tests.running import ROOT, Run, gone, sealed, specprof, started, wait_until

STUDY = """
study: {name}
engine: {{kind: sim, preset: small}}
arms: {{"off": {{}}}}
workloads: [{{tag: code, suite: {root}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: {tokens}}}}}
concurrency: [4]
prompts: 8
{load}
"""


def text(name: str, load: str = "", tokens: int = 48) -> str:
    return STUDY.format(name=name, root=ROOT, load=load, tokens=tokens)


def measured(folder: Path, name: str, load: str = "") -> Path:
    config = folder / f"{name}.yaml"
    config.write_text(text(name, load))
    run = specprof("run", config, "--results", folder, "--no-report")
    assert run.returncode == 0, run.stderr
    return folder / name


def test_two_workers_measure_what_one_client_does(tmp_path: Path) -> None:
    """The same requests with the same lengths, nothing lost, and figures whose intervals overlap.

    No interval knows of a machine that stands still in one of the two: they get three chances, a slow client none.
    """
    for chance in range(3):
        alone = measured(tmp_path, f"alone-{chance}")
        together = measured(tmp_path, f"together-{chance}", "load: {workers: 2}")
        _sends_the_same(alone, together)
        one, two = _figures(alone), _figures(together)
        pairs = (one.throughput_tok_s, two.throughput_tok_s), (one.decode_speed_tok_s, two.decode_speed_tok_s)
        if all(a.low <= b.high and b.low <= a.high for a, b in pairs):
            return
    pytest.fail(str(pairs))


def _sends_the_same(alone: Path, together: Path) -> None:
    def came(results: Path) -> Counter[tuple[str, str, str, int]]:
        return Counter(
            (cell.cell.protocol, request.prompt_id, request.phase.value, sum(request.chunk_tokens))
            for cell in Store.existing(results).cells()
            for request in requests_of(cell.requests)
        )

    assert came(together) == came(alone)
    for path in alone.glob("cells/*/cell.json"):
        assert "workers" not in json.loads(path.read_text())["client"], "stored as it was before there were several"
    for cell in Store.existing(together).cells():
        assert cell.client is not None
        wanted = min(2, cell.cell.concurrency)
        assert [load.lost for load in cell.client.workers] == [None] * wanted
        for load in cell.client.workers:
            assert abs(load.clock_offset_ns) <= load.clock_error_ns, "one machine, one monotonic clock"


def _figures(results: Path) -> CellFigures:
    (found,) = [cell for cell in conclude(Store.existing(results)).figures.cells if cell.protocol == "forced"]
    return found


def test_a_worker_killed_in_mid_cell_makes_the_cell_invalid_and_leaves_nobody_behind(tmp_path: Path) -> None:
    config, results = tmp_path / "killed.yaml", tmp_path / "killed"
    config.write_text(text("killed", "load: {workers: 2}", tokens=400))
    with started("run", config, "--results", tmp_path, "--no-report") as run:
        wait_until(lambda: len(sealed(results)) >= 1)  # the first sentinel; a long cell is next
        engine = _engine(run)
        before = endpoint.scrape(engine).generation_tokens or 0

        def is_in_mid_cell() -> bool:
            told = endpoint.scrape(engine)
            return told.num_requests_running == 4 and (told.generation_tokens or 0) > before + 200

        wait_until(is_in_mid_cell)
        family = run.family()
        victim = max(_workers(run), key=lambda process: process.pid)
        victim.send_signal(signal.SIGKILL)
        output = run.ended(120)
    assert run.process.returncode == 0, output
    assert gone(family)
    lost = [
        cell for cell in Store.existing(results).cells() if cell.client and any(w.lost for w in cell.client.workers)
    ]
    assert [cell.cell.role for cell in lost] == [Role.FIGURE]
    requests = [r for r in requests_of(lost[0].requests) if r.phase is Phase.MEASURED]
    assert Counter(r.prompt_id for r in requests) == Counter(lost[0].cell.prompt_ids), "never silently smaller"
    assert sum((r.error or "").startswith(LOST_WITH_WORKER) for r in requests) == 4
    gates = [gate for gate in _figures(results).gates if gate.name == "lost worker"]
    assert [(gate.gate, gate.severity) for gate in gates] == [(11, Severity.INVALID)]
    assert "killed by signal 9" in gates[0].evidence


def _named(run: Run, module: str) -> list[psutil.Process]:
    """The run's processes that are this module; one that ends meanwhile is none."""
    found = []
    for process in run.family():
        with suppress(psutil.Error):
            if module in process.cmdline():
                found.append(process)
    return found


def _workers(run: Run) -> list[psutil.Process]:
    return _named(run, "specprof.measure.worker")


def _engine(run: Run) -> str:
    """Where the run's simulated engine listens."""
    (engine,) = _named(run, "specprof.engine.sim.engine")
    (port,) = {c.laddr.port for c in engine.net_connections() if c.status == psutil.CONN_LISTEN}
    return f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("argument", ["doctor", "run"])
def test_ray_that_is_not_installed_is_told_before_anything_starts(
    argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an interpreter that finds no Ray, wherever one is installed."""
    config = tmp_path / "cluster.yaml"
    config.write_text(text("cluster", "load: {workers: 2, backend: ray}"))
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['ray'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    told = specprof(argument, config, *(() if argument == "doctor" else ("--results", tmp_path)))
    assert told.returncode == (3 if argument == "doctor" else 2)
    assert "pip install 'specprof[ray]'" in told.stdout + told.stderr
    assert not (tmp_path / "cluster").exists()
