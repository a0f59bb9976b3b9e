"""A server, or the way to it, goes wrong around a cell: a clear end in bounded time; only whole cells are sealed."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from specprof.engine import endpoint, names
from specprof.engine.access import Access
from specprof.engine.attach import _watching
from specprof.engine.command import Command
from specprof.engine.process import guarded
from specprof.engine.served import look
from specprof.errors import EngineDied, EngineError, EngineStartError, InputError
from specprof.measure import loop
from specprof.records import Cell
from specprof.store import Store
from specprof.study.config import Study
from specprof.study.plan import Plan, make_plan
from specprof.study.reading import parse_study
from tests.factory import make_cell, make_prompt
from tests.faults.misbehaving import METRICS, WORDS, misbehaving, page
from tests.measure.doubles import FakeEngine, Journal
from tests.running import ROOT, specprof

CELL = make_cell(max_tokens=len(WORDS), concurrency=2)
PROMPTS = {name: make_prompt(name, text=name) for name in CELL.prompt_ids}
BROKEN = page(200, b"vllm:num_requests_running lots\n")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "WATCH_PERIOD_S", 0.05)
    monkeypatch.setattr(loop, "GAUGE_PERIOD_S", 0.01)


# -- its pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "cause"),
    [(BROKEN, "could not convert string to float"), (page(500), "HTTP 500"), (b"what?\r\n\r\n", "BadStatusLine")],
)
def test_counters_that_cannot_be_read_end_the_cell_unsealed(
    broken: bytes, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SETTLE_S", 0.1)
    with misbehaving(pages={"/metrics": broken}) as server, pytest.raises(EngineError, match=r"/metrics") as problem:
        loop.measure(CELL, PROMPTS, FakeEngine(server), launch=0)
    assert cause in problem.value.cause


def test_counters_that_cannot_be_read_while_a_cell_runs_cost_that_reading_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "SETTLE_S", 0.2)

    def break_and_mend() -> None:
        server.pages["/metrics"] = BROKEN
        time.sleep(0.05)  # on the loop, so that the next look is taken when it has come round again
        threading.Timer(0.05, server.pages.update, [{"/metrics": page(200, METRICS)}]).start()

    with misbehaving({name: (0.1, page(503)) for name in CELL.prompt_ids}) as server:
        record = loop.measure(CELL, PROMPTS, FakeEngine(server), launch=0, on_done=break_and_mend)
    assert record.before is not None and record.after is not None


# -- it is gone -------------------------------------------------------------------------------------------------------

STUDY = f"""
study: killed
engine: {{kind: sim, preset: small, time_scale: 20, parameters: {{prefill: {{speed_tok_s: SPEED}}}}}}
arms: {{"off": {{}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: 32}}}}
concurrency: [1]
prompts: 4
"""


class Killer(Journal):
    """Kills the engine, as the kernel does when memory runs out, when it is told of a cell or of a request's end."""

    def __init__(self, when: Callable[[Killer], bool], after_s: float = 0.0) -> None:
        super().__init__()
        self._when, self._after_s = when, after_s

    def cell(self, cell: Cell) -> None:
        super().cell(cell)
        self._kill()

    def request_done(self) -> None:
        super().request_done()
        self._kill()

    def _kill(self) -> None:
        if self._when(self):
            threading.Timer(self._after_s, _kill_engine).start() if self._after_s else _kill_engine()


def _kill_engine() -> None:
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process().children():
            if "specprof.engine.sim.engine" in child.cmdline():
                child.kill()
                while child.status() != psutil.STATUS_ZOMBIE:  # whoever started it asks how it ended
                    time.sleep(0.01)


def prepared(folder: Path, speed: float) -> tuple[Study, Plan, Store]:
    text = STUDY.replace("SPEED", str(speed))
    study = parse_study(text, "killed.yaml")
    return study, make_plan(study), Store.create(folder / "killed", text, study.content_hash())


@pytest.mark.parametrize(
    ("speed", "killer", "num_sealed"),
    [
        pytest.param(1e6, Killer(lambda seen: len(seen.cells) == 3), 2, id="between cells"),
        pytest.param(1e6, Killer(lambda seen: seen.requests == 2), 0, id="in the middle"),
        pytest.param(0.1, Killer(lambda seen: True, after_s=0.6), 0, id="before the first token"),
    ],
)
def test_an_engine_that_is_killed_is_named_with_its_log_and_only_whole_cells_are_kept(
    speed: float, killer: Killer, num_sealed: int, tmp_path: Path
) -> None:
    study, plan, store = prepared(tmp_path, speed)
    began = time.monotonic()
    with pytest.raises(EngineDied) as death:
        loop.run_study(study, plan, store, killer)
    assert time.monotonic() - began < 30
    assert "exited with code -9" in str(death.value)
    assert death.value.log is not None and death.value.log.is_file()
    kept = {data.cell.key: data.started_at for data in store.cells()}
    assert list(kept) == killer.sealed_keys == [cell.key for cell in plan.cells][:num_sealed]
    if num_sealed:
        loop.run_study(study, plan, store, Journal())
        after = {data.cell.key: data.started_at for data in store.cells()}
        assert set(after) == {cell.key for cell in plan.cells}
        assert kept.items() <= after.items()


# -- the way to it ----------------------------------------------------------------------------------------------------


@pytest.fixture
def hanging_resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Names are not resolved before the test ends; numbers need no resolver."""
    over, resolve = threading.Event(), socket.getaddrinfo

    def hangs(host: Any, *arguments: Any, **options: Any) -> Any:
        if host == "server.invalid":
            over.wait(60)
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    monkeypatch.setattr(names, "RESOLVE_S", 0.2)
    yield
    over.set()


@pytest.mark.usefixtures("hanging_resolver")
def test_a_name_whose_resolver_hangs_is_given_up_in_bounded_time_and_named() -> None:
    began = time.monotonic()
    with pytest.raises(EngineStartError, match=r"No server answers at http://server.invalid:8000") as problem:
        look("http://server.invalid:8000", Access())
    assert "the name 'server.invalid' was not resolved within 0.2 s" in problem.value.cause
    with pytest.raises(EngineError, match="does not answer"):
        endpoint.scrape("https://server.invalid")
    assert time.monotonic() - began < 5


@pytest.mark.usefixtures("hanging_resolver")
def test_a_resolver_that_hangs_while_a_server_is_watched_is_no_death_and_ends_with_it() -> None:
    began = time.monotonic()
    with _watching("http://server.invalid:8000") as watch:
        time.sleep(0.8)
        assert watch.death is None
    assert time.monotonic() - began < 5


def test_nobody_waits_long_for_a_resolver() -> None:
    assert names.RESOLVE_S <= 10


def test_a_name_that_does_not_exist_says_so() -> None:
    with pytest.raises(EngineError) as problem:
        endpoint.scrape("http://no-such-host.invalid")
    assert "gaierror" in problem.value.cause


def test_a_server_that_leads_elsewhere_is_refused_with_what_to_write() -> None:
    moved = {"/health": page(308, Location="https://example.invalid/health")}
    with misbehaving(pages=moved) as server, pytest.raises(InputError, match=r"leads elsewhere \(HTTP 308\).*arms"):
        look(server.base_url, Access())


# -- ports ------------------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        told = specprof("sim", "--port", str(port))
    assert told.returncode == 2
    assert f"--port {port}: 127.0.0.1 cannot be listened on there" in told.stderr
    assert "choose another" in told.stderr and "Traceback" not in told.stderr


SERVER = "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); print('up'); s.accept()"


def test_an_engine_whose_port_another_program_took_is_not_mistaken_for_that_program(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = Command((sys.executable, "-c", SERVER, str(port)), {})
    with (
        guarded(command, tmp_path / "log", what="test", grace_s=0.5) as process,
        socket.create_server(("127.0.0.1", 0)) as ours,
    ):
        deadline = time.monotonic() + 10
        while not process.listens_on(port):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert not process.listens_on(ours.getsockname()[1])
