"""The one loop: launches, cells, seal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from specprof.engine import endpoint
from specprof.engine.protocol import Engine
from specprof.engine.start import start
from specprof.errors import EngineDied, EngineError, InputError
from specprof.measure import wire
from specprof.measure.clock import on_engine_clock, time_scale
from specprof.measure.load import ClientWatch, Order, closed_loop, connected, mixed_loop
from specprof.measure.wire import RawStream
from specprof.records import Cell, CellRecord, Counters, EngineFacts, Launch, Phase, Prompt, lanes
from specprof.store import Store, now
from specprof.study.config import Study
from specprof.study.plan import Plan

if TYPE_CHECKING:
    from aiohttp import ClientSession

T = TypeVar("T")

WATCH_PERIOD_S = 0.25
GAUGE_PERIOD_S = 1.0
SETTLE_S = 2.0  # counters reach /metrics a little after the last token; wait this long at most


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


def run_study(study: Study, plan: Plan, store: Store, observer: Observer) -> None:
    """Measure whatever of the plan is not sealed yet.

    Raises EngineError with cause and log path if an engine fails; what was sealed before stays sealed.
    """
    for launch in pending(plan, store):
        observer.launch(launch)
        number, folder = store.new_launch()
        with start(study.engine, launch, folder, observer.engine_says) as engine:
            require_same_models(engine.facts(), store.facts())
            store.write_facts(number, engine.facts())
            for cell in launch.cells:
                observer.cell(cell)
                store.seal(measure(cell, plan.prompts, engine, number, observer.request_done))
                observer.sealed(cell)


def require_same_models(now_running: EngineFacts, earlier: Mapping[int, EngineFacts]) -> None:
    """A model that was exchanged under its name is another model: its cells must not stand beside the old one's.

    Raises InputError, before anything is measured, naming the launch that ran the other.
    """
    for number, facts in earlier.items():
        if facts.model == now_running.model and facts.model_hash != now_running.model_hash:
            raise InputError(_exchanged("model", now_running.model, number))
        draft = now_running.extra.get("draft_model")
        same_name = draft is not None and facts.extra.get("draft_model") == draft
        if same_name and facts.extra.get("draft_hash") != now_running.extra.get("draft_hash"):
            raise InputError(_exchanged("draft", str(draft), number))


def _exchanged(what: str, name: str, launch: int) -> str:
    return (
        f"{what} {name}: its files are not those that launch {launch} of this study measured. Put them back, or give "
        "the study another name so that both keep their own results."
    )


def pending(plan: Plan, store: Store) -> Iterator[Launch]:
    """The launches that still have cells to measure, with those cells alone. No engine starts for nothing."""
    for launch in plan.launches:
        cells = tuple(cell for cell in launch.cells if not store.is_sealed(cell.key))
        if cells:
            yield replace(launch, cells=cells)


def measure(
    cell: Cell,
    prompts: Mapping[str, Prompt],
    engine: Engine,
    launch: int,
    on_done: Callable[[], None] = lambda: None,
) -> CellRecord:
    """Reset, warm up, drive. Raises EngineDied as soon as the engine is gone, however long its sockets stay open."""
    started_at = now()
    endpoint.reset_prefix_cache(engine.base_url)
    return asyncio.run(unless_dead(engine, _measure(cell, prompts, engine, launch, started_at, on_done)))


async def _measure(
    cell: Cell,
    prompts: Mapping[str, Prompt],
    engine: Engine,
    launch: int,
    started_at: str,
    on_done: Callable[[], None],
) -> CellRecord:
    warmups = _orders(cell, prompts, engine, Phase.WARMUP)
    measured = _orders(cell, prompts, engine, Phase.MEASURED)
    async with connected(engine.base_url, cell.concurrency) as session:
        warm = await closed_loop(session, wire.path_of(cell), warmups, cell.concurrency)
        before = await _settled(engine)
        watch, gauges = ClientWatch(), list[Counters]()
        background = [asyncio.create_task(watch.run()), asyncio.create_task(_sample(engine, gauges))]
        raw = await _drive(session, cell, measured, on_done)
        client = watch.load()
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        after = await _settled(engine)
        requests = [wire.decode(stream) for stream in (*warm, *raw)]
        if any(request.error for request in requests):
            await asyncio.sleep(SETTLE_S)  # a dying engine fails requests first: let its death be noticed, not sealed
    scale = time_scale(engine)
    return CellRecord(
        cell=cell,
        launch=launch,
        requests=tuple(on_engine_clock(request, scale) for request in requests),
        before=before,
        after=after,
        gauges=tuple(gauges),
        client=client,
        started_at=started_at,
    )


async def _drive(
    session: ClientSession, cell: Cell, orders: Sequence[Order], on_done: Callable[[], None]
) -> list[RawStream]:
    """The measured part: streams that take whatever comes next, or of a mixed cell, streams bound to one content."""
    path = wire.path_of(cell)
    if not cell.prompt_tags:
        return await closed_loop(session, path, orders, cell.concurrency, on_done)
    by_prompt = {order.prompt_id: order for order in orders}
    of_content = [[by_prompt[name] for name in lane] for lane in lanes(cell)]
    return await mixed_loop(session, path, of_content, cell.concurrency, on_done)


def _orders(cell: Cell, prompts: Mapping[str, Prompt], engine: Engine, phase: Phase) -> list[Order]:
    warmup = phase is Phase.WARMUP
    ids = cell.prompt_ids[: cell.num_warmup] if warmup else cell.prompt_ids
    tokens = min(cell.warmup_tokens, cell.max_tokens) if warmup else cell.max_tokens
    encoded = ((name, wire.encode(cell, prompts[name], engine.served_model, max_tokens=tokens)) for name in ids)
    return [Order(name, phase, body) for name, body in encoded]


async def _settled(engine: Engine) -> Counters:
    """Counters of an idle server: read until two readings agree, since they trail the last token a little."""
    reading = await asyncio.to_thread(endpoint.scrape, engine.base_url)
    for _ in range(int(SETTLE_S / 0.05)):
        await asyncio.sleep(0.05)
        again = await asyncio.to_thread(endpoint.scrape, engine.base_url)
        if not again.num_requests_running and replace(again, at_ns=0) == replace(reading, at_ns=0):
            return again
        reading = again
    return reading


async def _sample(engine: Engine, gauges: list[Counters]) -> None:
    """Running and waiting requests while the cell runs: whether the server, not the client, held requests back.

    A server too busy to answer loses that reading, not the cell.
    """
    while True:
        await asyncio.sleep(GAUGE_PERIOD_S)
        with suppress(EngineError):
            gauges.append(await asyncio.to_thread(endpoint.scrape, engine.base_url))


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
        for _ in range(int(SETTLE_S / WATCH_PERIOD_S)):  # sockets may go before the process does
            _raise_if_dead(engine)
            await asyncio.sleep(WATCH_PERIOD_S)
        raise
    finally:
        driving.cancel()


def _raise_if_dead(engine: Engine) -> None:
    if (death := engine.death()) is not None:
        raise death
