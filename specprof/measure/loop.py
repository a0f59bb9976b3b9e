"""The one loop: launches, cells, seal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from specprof.engine import endpoint
from specprof.engine.access import access_of
from specprof.engine.builtin import model_hash
from specprof.engine.protocol import Engine
from specprof.engine.start import start
from specprof.errors import EngineDied, EngineError, InputError
from specprof.measure import open_loop, wire
from specprof.measure.agenda import Agenda
from specprof.measure.attached import has_counters, refuses_connections, require_let_in_still, require_same_server
from specprof.measure.beside import beside
from specprof.measure.client import Client, one_client
from specprof.measure.clock import on_engine_clock, reading_on_engine_clock, time_scale
from specprof.measure.crew import Crew, crew_of
from specprof.measure.hardware import HardwareWatch, hardware_of, with_hardware
from specprof.measure.load import run
from specprof.measure.orders import asked_for, work_of
from specprof.measure.split import Work
from specprof.measure.wire import RawStream
from specprof.records import (
    CachePolicy,
    Cell,
    CellRecord,
    Counters,
    EngineFacts,
    Launch,
    Prompt,
    Role,
)
from specprof.store import Store, now
from specprof.study.config import Study
from specprof.study.plan import Plan

T = TypeVar("T")

WATCH_PERIOD_S = 0.25
GAUGE_PERIOD_S = 1.0
LAST_LOOKS = 8  # at an engine whose requests have failed, a period apart
SETTLE_S = 2.0  # counters reach /metrics a little after the last token; wait this long at most
_SETTLE_POLL_S = 0.05


class Observer(Protocol):
    """Is told what happens, as it happens. The terminal's progress display is one."""

    def launch(self, launch: Launch) -> None:
        """An engine is about to start."""

    def engine_says(self, text: str) -> None:
        """What the engine is busy with while it starts."""

    def cell(self, cell: Cell) -> None:
        """A cell is about to be measured."""

    def request_done(self) -> None:
        """One request of the present cell ended."""

    def sealed(self, cell: Cell) -> None:
        """A cell is on disk for good."""

    def remaining(self, at_most: int) -> None:
        """How many cells are left at most, told after a rung: a load curve ends once the engine has collapsed."""


def run_study(study: Study, plan: Plan, store: Store, observer: Observer) -> None:
    """Measure whatever of the plan is not sealed yet.

    Raises EngineError with cause and log path if an engine fails, ClientError if a worker that is to send requests
    cannot; what was sealed before stays sealed.
    """
    agenda = Agenda(study, plan, store)
    for launch in agenda.pending():
        observer.launch(launch)
        number, folder = store.new_launch()
        with start(study.engine, launch, folder, observer.engine_says) as engine:
            require_same_models(engine.facts(), store.facts())
            require_same_server(engine.facts(), store.facts())
            store.write_facts(number, with_hardware(engine.facts()))
            with crew_of(study.clients, engine.base_url, access_of(engine)) as workers:
                for cell in agenda.cells(launch):
                    observer.cell(cell)
                    store.seal(measure(cell, plan.prompts, engine, number, observer.request_done, workers))
                    observer.sealed(cell)
                    if cell.role is Role.OPEN:
                        observer.remaining(agenda.num_left())


def require_same_models(now_running: EngineFacts, earlier: Mapping[int, EngineFacts]) -> None:
    """A model that was exchanged under its name is another model: its cells must not stand beside the old one's.

    Raises InputError, before anything is measured, naming the launch that ran the other.
    """
    for number, facts in earlier.items():
        model = now_running.model
        if facts.model == model and not _is_same(model, facts.model_hash, now_running.model_hash):
            raise InputError(_exchanged("model", model, number))
        draft = now_running.extra.get("draft_model")
        same_name = draft is not None and facts.extra.get("draft_model") == draft
        hashes = (each.extra.get("draft_hash") for each in (facts, now_running))
        if same_name and not _is_same(str(draft), *hashes):
            raise InputError(_exchanged("draft", str(draft), number))


def _is_same(name: str, then: object, now: object) -> bool:
    """Whether two hashes are of one model. Older ones count a folder's hidden files, or know of no commit."""
    folder = Path(name).expanduser()
    return then in (now, f"hub:{name}") or (folder.is_dir() and then == model_hash(folder, hidden=True))


def _exchanged(what: str, name: str, launch: int) -> str:
    return (
        f"{what} {name}: its files are not those that launch {launch} of this study measured. Put them back, or give "
        "the study another name so that both keep their own results."
    )


def measure(
    cell: Cell,
    prompts: Mapping[str, Prompt],
    engine: Engine,
    launch: int,
    on_done: Callable[[], None] = lambda: None,
    workers: Crew | None = None,
) -> CellRecord:
    """Reset, warm up, drive. Raises EngineDied as soon as the engine is gone, however long its sockets stay open.

    `workers` send the requests; without any this process does.
    """
    started_at = now()
    client = _client(workers, engine, work_of(cell, prompts, engine))
    return run(unless_dead(engine, _measure(cell, client, engine, launch, started_at, on_done)))


def _client(workers: Crew | None, engine: Engine, work: Work) -> AbstractAsyncContextManager[Client]:
    if workers is not None:
        return workers.at(work, engine.base_url, access_of(engine))
    return one_client(engine.base_url, access_of(engine), work)


async def _measure(
    cell: Cell,
    connected: AbstractAsyncContextManager[Client],
    engine: Engine,
    launch: int,
    started_at: str,
    on_done: Callable[[], None],
) -> CellRecord:
    if cell.cache is CachePolicy.CONTROLLED:
        await asyncio.to_thread(endpoint.reset_prefix_cache, engine.base_url, access=access_of(engine))
    scale = time_scale(engine)
    async with connected as client:
        warm = await client.warm_up()
        before = await _settled(engine)
        gauges, machine = list[Counters](), HardwareWatch(hardware_of(engine.facts()))
        async with beside(_sample(engine, gauges), machine.run()):
            driven = await client.drive(on_done)
        after = await _settled(engine)
        streams = (*warm, *driven.streams)
        require_let_in_still(engine, streams)
        access = access_of(engine)
        requests = [wire.decode(stream, asked=_asked(cell, stream), access=access) for stream in streams]
        if any(request.error not in (None, open_loop.CANCELLED) for request in requests):
            await _outlives_its_failures(engine)
    return CellRecord(
        cell=cell,
        launch=launch,
        requests=tuple(on_engine_clock(request, scale) for request in requests),
        before=before and reading_on_engine_clock(before, scale),
        after=after and reading_on_engine_clock(after, scale),
        gauges=tuple(reading_on_engine_clock(reading, scale) for reading in gauges),
        client=driven.load,
        started_at=started_at,
        hardware=machine.readings(),
    )


def _asked(cell: Cell, raw: RawStream) -> int:
    """How many tokens a request was sent for. Of an open loop, `raw.stream` is its place in the schedule."""
    if cell.arrivals is None:
        return asked_for(cell, raw.prompt_id, raw.phase)
    return cell.arrivals.output_tokens[raw.stream] if cell.arrivals.output_tokens else cell.max_tokens


async def _settled(engine: Engine) -> Counters | None:
    """Counters of an idle server: read until two readings agree, since they trail the last token a little.

    None of a server that has no counters.
    """
    if not has_counters(engine):
        return None
    access = access_of(engine)
    reading = await asyncio.to_thread(endpoint.scrape, engine.base_url, access=access)
    for _ in range(int(SETTLE_S / _SETTLE_POLL_S)):
        await asyncio.sleep(_SETTLE_POLL_S)
        again = await asyncio.to_thread(endpoint.scrape, engine.base_url, access=access)
        if not again.num_requests_running and replace(again, at_ns=0) == replace(reading, at_ns=0):
            return again
        reading = again
    return reading


async def _sample(engine: Engine, gauges: list[Counters]) -> None:
    """Running and waiting requests while the cell runs: whether the server, not the client, held requests back.

    A server too busy to answer loses that reading, not the cell.
    """
    while has_counters(engine):
        await asyncio.sleep(GAUGE_PERIOD_S)
        with suppress(EngineError):
            gauges.append(await asyncio.to_thread(endpoint.scrape, engine.base_url, access=access_of(engine)))


async def unless_dead(engine: Engine, work: Awaitable[T]) -> T:
    """The result of `work`, or EngineDied the moment the engine is gone."""
    driving = asyncio.ensure_future(work)
    try:
        while not driving.done():
            await asyncio.wait({driving}, timeout=WATCH_PERIOD_S)
            _raise_if_dead(engine)
        return driving.result()
    except EngineDied:
        raise
    except Exception:
        await _outlives_its_failures(engine)
        raise
    finally:
        driving.cancel()


async def _outlives_its_failures(engine: Engine) -> None:
    """Return once an engine whose requests failed is seen to live on. EngineDied if it does not: a dying one fails
    requests first, and its sockets may go before its process does.

    Looks are counted, not seconds: however long this process was held up meanwhile, it has looked as often. The last
    word is the server's own: one that takes no connections is waited for, until it does or is known to be dead.
    """
    for _ in range(LAST_LOOKS):
        _raise_if_dead(engine)
        await asyncio.sleep(WATCH_PERIOD_S)
    while await asyncio.to_thread(refuses_connections, engine):
        _raise_if_dead(engine)
        await asyncio.sleep(WATCH_PERIOD_S)
    _raise_if_dead(engine)


def _raise_if_dead(engine: Engine) -> None:
    if (death := engine.death()) is not None:
        raise death
