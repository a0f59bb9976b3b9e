"""A server, or the way to it, goes wrong around a cell: a clear end in bounded time; only whole cells are sealed."""

from __future__ import annotations

import itertools
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from specprof.engine import attach, endpoint, names
from specprof.engine.access import Access
from specprof.engine.command import Command
from specprof.engine.process import guarded
from specprof.engine.served import look
from specprof.errors import EngineDied, EngineError, EngineStartError, InputError
from specprof.measure import load, loop
from specprof.measure.load import Order, closed_loop, connected, run, send
from specprof.measure.wire import RawStream
from specprof.records import Cell, Phase
from specprof.store import Store
from specprof.study.config import Study
from specprof.study.plan import Plan, make_plan
from specprof.study.reading import parse_study
from tests.factory import make_cell, make_prompt
from tests.faults.misbehaving import METRICS, WELL, WORDS, After, misbehaving, page
from tests.measure.doubles import FakeEngine, Journal
from tests.measure.scripted import scripted
from tests.running import ROOT, specprof, started, wait_until

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


def test_counters_that_cannot_be_read_while_a_cell_runs_cost_that_reading_alone() -> None:
    """From the first answer on the next look at them fails. The other answers wait for two more looks, of which the
    first has come back by then.
    """
    looks, enough = itertools.count(1), threading.Event()

    def metrics() -> bytes:
        number = next(looks)
        if number == 3:
            enough.set()
        return BROKEN if number == 1 else page(200, METRICS)

    _, *others = CELL.prompt_ids
    with misbehaving({name: After(enough, WELL) for name in others}) as server:

        def from_now_on() -> None:
            server.pages["/metrics"] = metrics

        record = loop.measure(CELL, PROMPTS, FakeEngine(server), launch=0, on_done=from_now_on)
    assert {request.error for request in record.requests} == {None}
    assert record.before is not None and record.after is not None
    assert record.gauges


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
    """Kills the engine once, as the kernel does when memory runs out, when it is told of a cell or of a request's end.

    With `after_s` it does so later, while what it was told of goes on.
    """

    def __init__(self, when: Callable[[Killer], bool], after_s: float = 0.0) -> None:
        super().__init__()
        self._when, self._after_s = when, after_s
        self._has_begun = False

    def cell(self, cell: Cell) -> None:
        super().cell(cell)
        self._look()

    def request_done(self) -> None:
        super().request_done()
        self._look()

    def _look(self) -> None:
        if self._has_begun or not self._when(self):
            return
        self._has_begun = True
        if self._after_s:
            threading.Timer(self._after_s, _kill_engine).start()
        else:
            _kill_engine()


def _kill_engine() -> None:
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # one that is dead has no command line
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
    assert time.monotonic() - began < load.SILENCE_S / 2, "nobody waited until its streams had been silent for too long"
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

HANGS_S = 60.0


@pytest.fixture
def hanging_resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names are not resolved before the test ends, or a minute has passed; numbers need no resolver. What was asked."""
    over, resolve, asked = threading.Event(), socket.getaddrinfo, list[str]()

    def hangs(host: Any, *arguments: Any, **options: Any) -> Any:
        if host == "server.invalid":
            asked.append(host)
            over.wait(HANGS_S)
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    monkeypatch.setattr(names, "RESOLVE_S", 0.2)
    yield asked
    over.set()


@pytest.mark.usefixtures("hanging_resolver")
def test_a_name_whose_resolver_hangs_is_given_up_in_bounded_time_and_named() -> None:
    began = time.monotonic()
    with pytest.raises(EngineStartError, match=r"No server answers at http://server.invalid:8000") as problem:
        look("http://server.invalid:8000", Access())
    assert "the name 'server.invalid' was not resolved within 0.2 s" in problem.value.cause
    with pytest.raises(EngineError, match="does not answer"):
        endpoint.scrape("https://server.invalid")
    assert time.monotonic() - began < HANGS_S / 2


def test_a_resolver_that_hangs_while_a_server_is_watched_is_no_death_and_ends_with_it(
    hanging_resolver: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a name is asked for once more, every earlier knock has been given up."""
    monkeypatch.setattr(attach, "WATCH_S", 0.05)
    began = time.monotonic()
    with attach._watching("http://server.invalid:8000") as watch:
        wait_until(lambda: len(hanging_resolver) > 2 * attach._REFUSALS)
        assert watch.death is None
    assert time.monotonic() - began < HANGS_S / 2


def answers_of(base_url: str, num_requests: int, warm: int, idle_s: float = 300.0) -> list[RawStream]:
    """So many requests, two at a time; a connection that was idle for `idle_s` is not used again."""
    orders = [Order(str(number), Phase.MEASURED, b"") for number in range(num_requests)]

    async def drive() -> list[RawStream]:
        async with connected(base_url, warm, idle_s=idle_s) as session:
            return await closed_loop(session, "/", orders, 2)

    return run(drive())


@pytest.mark.usefixtures("hanging_resolver")
def test_a_resolver_that_hangs_during_a_run_fails_its_requests_in_bounded_time_and_says_why() -> None:
    began = time.monotonic()
    streams = answers_of("http://server.invalid:8000", 4, warm=2)
    assert time.monotonic() - began < HANGS_S / 2
    error = "connection failed: TimeoutError: the name 'server.invalid' was not resolved within 0.2 s"
    assert [raw.error for raw in streams] == [error] * 4


def test_a_name_is_resolved_before_anything_is_measured_and_never_while_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo
    asked: list[str] = []

    def once(host: Any, *arguments: Any, **options: Any) -> Any:
        if host != "server.invalid":
            return resolve(host, *arguments, **options)
        asked.append(host)
        if len(asked) > 1:
            raise socket.gaierror("asked again")
        return resolve("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", once)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    with scripted((answer,)) as server:
        address = server.base_url.replace("127.0.0.1", "server.invalid")
        streams = answers_of(address, 6, warm=2, idle_s=0.0)
        assert server.num_connections > 2, "connections were opened while it was measured"
    assert [(raw.error, raw.reads.body()) for raw in streams] == [(None, b"ok")] * 6
    assert asked == ["server.invalid"]


def test_a_name_that_leads_nowhere_any_more_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has moved: the address that was known takes no connection."""
    resolve, moved = socket.getaddrinfo, [False]

    def elsewhere(host: Any, *arguments: Any, **options: Any) -> Any:
        number = host if host != "server.invalid" else "127.0.0.1" if moved[0] else "127.0.0.2"
        return resolve(number, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", elsewhere)
    with scripted((b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",)) as server:
        port = urlsplit(server.base_url).port

        async def drive() -> list[RawStream]:
            streams = [RawStream(name, Phase.MEASURED, 0, 0) for name in ("before", "after")]
            async with connected(f"http://server.invalid:{port}", 0) as session:
                await send(session, "/", b"", streams[0])
                moved[0] = True
                await send(session, "/", b"", streams[1])
            return streams

        before, after = run(drive())
    assert before.error is not None and before.error.startswith("connection failed: ConnectionRefusedError")
    assert after.error is None


def test_nobody_waits_long_for_a_resolver() -> None:
    assert names.RESOLVE_S <= 10


def test_a_name_that_does_not_exist_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def knows_no_such_name(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", knows_no_such_name)
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


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--port", "70000", "'--port': Input should be less than or equal to 65535"),
        ("--host", "nosuchhost.invalid", "--host nosuchhost.invalid: is no address of this machine"),
        ("--host", "192.0.2.1", "--host 192.0.2.1: is no address of this machine"),  # RFC 5737: nobody's
        ("--host", "a..b", "--host a..b: is no address of this machine"),
        ("--time-scale", "0", "--time-scale 0: must be more than 0"),
        ("--time-scale", "nan", "--time-scale nan: must be more than 0"),
        ("--speculation", "[1]", "--speculation: is no JSON object. Write for example"),
        ("--speculation", '{"num_speculative_tokens": "x"}', "num_speculative_tokens 'x': the simulated engine drafts"),
        ("--speculation", '{"num_speculative_tokens": 65}', "num_speculative_tokens 65: the simulated engine drafts"),
    ],
)
def test_what_no_simulated_server_can_be_is_refused_before_it_announces_itself(
    option: str, value: str, says: str
) -> None:
    told = specprof("sim", "--port", "0", option, value, timeout_s=60)
    assert told.returncode == 2
    assert says in told.stderr
    assert "Traceback" not in told.stderr and "listens on" not in told.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_simulated_server_that_is_told_to_stop_has_done_what_was_asked(number: signal.Signals) -> None:
    with started("sim", "--port", "0") as run:
        run.address()
        run.process.send_signal(number)
        run.ended()
    assert run.process.returncode == 0


SERVER = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); s.accept()"


def test_an_engine_whose_port_another_program_took_is_not_mistaken_for_that_program(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        guarded(Command((sys.executable, "-c", SERVER), {}), log, what="test", grace_s=0.5) as process,
        socket.create_server(("127.0.0.1", 0)) as ours,
    ):
        wait_until(lambda: log.read_text().endswith("\n"))
        assert process.listens_on(int(log.read_text()))
        assert not process.listens_on(ours.getsockname()[1])
