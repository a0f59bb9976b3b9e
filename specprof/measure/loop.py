"""The one loop: launches, cells, seal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import cache
from itertools import repeat
from typing import TYPE_CHECKING, Protocol, TypeVar

from specprof.engine import endpoint
from specprof.engine.access import access_of
from specprof.engine.protocol import Engine
from specprof.engine.start import start
from specprof.errors import EngineDied, EngineError, InputError
from specprof.measure import open_loop, wire
from specprof.measure.agenda import Agenda
from specprof.measure.attached import has_counters, left_out, require_let_in_still, require_same_server
from specprof.measure.clock import on_engine_clock, reading_on_engine_clock, time_scale
from specprof.measure.hardware import HardwareWatch, hardware_of, with_hardware
from specprof.measure.interference import interference_loop
from specprof.measure.load import ClientWatch, Order, closed_loop, connected, mixed_loop
from specprof.measure.wire import RawStream
from specprof.records import (
    Arrivals,
    CachePolicy,
    Cell,
    CellRecord,
    Counters,
    EngineFacts,
    Launch,
    Phase,
    Prompt,
    Request,
    Role,
    lanes,
    phase_due,
)
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

    def remaining(self, at_most: int) -> None:
        """How many cells are left at most, told after a rung: a load curve ends once the engine has collapsed."""


def run_study(study: Study, plan: Plan, store: Store, observer: Observer) -> None:
    """Measure whatever of the plan is not sealed yet.

    Raises EngineError with cause and log path if an engine fails; what was sealed before stays sealed.
    """
    agenda = Agenda(study, plan, store)
    for launch in agenda.pending():
        observer.launch(launch)
        number, folder = store.new_launch()
        with start(study.engine, launch, folder, observer.engine_says) as engine:
            require_same_models(engine.facts(), store.facts())
            require_same_server(engine.facts(), store.facts())
            store.write_facts(number, with_hardware(engine.facts()))
            for cell in agenda.cells(launch):
                observer.cell(cell)
                store.seal(measure(cell, plan.prompts, engine, number, observer.request_done))
                observer.sealed(cell)
                if cell.role is Role.OPEN:
                    observer.remaining(agenda.num_left())


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


def measure(
    cell: Cell,
    prompts: Mapping[str, Prompt],
    engine: Engine,
    launch: int,
    on_done: Callable[[], None] = lambda: None,
) -> CellRecord:
    """Reset, warm up, drive. Raises EngineDied as soon as the engine is gone, however long its sockets stay open."""
    started_at = now()
    if cell.cache is CachePolicy.CONTROLLED:
        endpoint.reset_prefix_cache(engine.base_url, access=access_of(engine))
    return asyncio.run(unless_dead(engine, _measure(cell, prompts, engine, launch, started_at, on_done)))


async def _measure(
    cell: Cell,
    prompts: Mapping[str, Prompt],
    engine: Engine,
    launch: int,
    started_at: str,
    on_done: Callable[[], None],
) -> CellRecord:
    scale = time_scale(engine)
    warmups = _orders(cell, prompts, engine, Phase.WARMUP)
    measured = _orders(cell, prompts, engine, Phase.MEASURED)
    async with _connected(engine, cell) as session:
        warm = await closed_loop(session, wire.path_of(cell), warmups, cell.concurrency)
        before = await _settled(engine)
        watch, gauges = ClientWatch(), list[Counters]()
        machine = HardwareWatch(hardware_of(engine.facts()))
        background = [asyncio.create_task(run) for run in (watch.run(), _sample(engine, gauges), machine.run())]
        raw, dispatch_lags_s = await _drive(session, cell, measured, scale, on_done)
        client = watch.load(dispatch_lags_s)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        after = await _settled(engine)
        require_let_in_still(engine, (*warm, *raw))
        requests = [_decoded(cell, stream, engine) for stream in (*warm, *raw)]
        if any(request.error not in (None, open_loop.CANCELLED) for request in requests):
            await asyncio.sleep(SETTLE_S)  # a dying engine fails requests first: let its death be noticed, not sealed
    return CellRecord(
        cell=cell,
        launch=launch,
        requests=tuple(on_engine_clock(request, scale) for request in requests),
        before=before and reading_on_engine_clock(before, scale),
        after=after and reading_on_engine_clock(after, scale),
        gauges=tuple(reading_on_engine_clock(reading, scale) for reading in gauges),
        client=client,
        started_at=started_at,
        hardware=machine.readings(),
    )


def _connected(engine: Engine, cell: Cell) -> AbstractAsyncContextManager[ClientSession]:
    if cell.arrivals is None:
        return connected(engine.base_url, cell.concurrency, access=access_of(engine))
    num = open_loop.num_connections(cell.arrivals)
    return connected(engine.base_url, num, idle_s=open_loop.IDLE_S, access=access_of(engine))


async def _drive(
    session: ClientSession, cell: Cell, orders: Sequence[Order], scale: float, on_done: Callable[[], None]
) -> tuple[Sequence[RawStream], Sequence[float]]:
    """The measured part, and of an open loop how late requests were sent.

    A closed loop's streams take whatever comes next, or of a mixed cell, are bound to one content.
    """
    path = wire.path_of(cell)
    if cell.arrivals is not None:
        run = await open_loop.open_loop(session, path, orders, cell.arrivals, on_done, time_scale=scale)
        return run.streams, run.dispatch_lags_s
    if cell.interference is not None:
        newcomer, *decoders = orders
        after_reads = cell.interference.after_tokens
        return await interference_loop(session, path, newcomer, decoders, after_reads, on_done), ()
    if not cell.prompt_tags:
        return await closed_loop(session, path, orders, cell.concurrency, on_done), ()
    by_prompt = {order.prompt_id: order for order in orders}
    of_content = [[by_prompt[name] for name in lane] for lane in lanes(cell)]
    return await mixed_loop(session, path, of_content, cell.concurrency, on_done), ()


def _orders(cell: Cell, prompts: Mapping[str, Prompt], engine: Engine, phase: Phase) -> list[Order]:
    if cell.arrivals is not None:  # its warm-up is the beginning of its own schedule
        return [] if phase is Phase.WARMUP else _scheduled_orders(cell, cell.arrivals, prompts, engine)
    without = left_out(engine)
    warmup = phase is Phase.WARMUP
    ids = cell.prompt_ids[: cell.num_warmup] if warmup else cell.prompt_ids
    encoded = (
        (name, wire.encode(cell, prompts[name], engine.served_model, max_tokens=length, without=without))
        for name, length in ((name, _length(cell, name, phase)) for name in ids)
    )
    return [Order(name, phase, body) for name, body in encoded]


def _length(cell: Cell, prompt_id: str, phase: Phase) -> int:
    """Tokens to ask of a request of a closed loop: what a newcomer writes itself is another matter."""
    if phase is Phase.WARMUP:
        return min(cell.warmup_tokens, cell.max_tokens)
    met = cell.interference
    return met.newcomer_tokens if met is not None and prompt_id == met.newcomer_id else cell.max_tokens


def _decoded(cell: Cell, raw: RawStream, engine: Engine) -> Request:
    """What a stream said. What a server says of a request that it refused may repeat the token, and is kept without."""
    if raw.status != 200 and raw.reads:
        raw.reads = [(raw.reads[-1][0], access_of(engine).scrubbed(b"".join(data for _, data in raw.reads)))]
    return wire.decode(raw, asked=_asked(cell, raw))


def _asked(cell: Cell, raw: RawStream) -> int:
    """How many tokens a request was sent for. Of an open loop, `raw.stream` is its place in the schedule."""
    if cell.arrivals is None:
        return _length(cell, raw.prompt_id, raw.phase)
    return cell.arrivals.output_tokens[raw.stream] if cell.arrivals.output_tokens else cell.max_tokens


def _scheduled_orders(cell: Cell, arrivals: Arrivals, prompts: Mapping[str, Prompt], engine: Engine) -> list[Order]:
    """One order per arrival. Prompts come again and again, so each is encoded once per length."""
    without = left_out(engine)

    @cache
    def encoded(name: str, max_tokens: int) -> bytes:
        return wire.encode(cell, prompts[name], engine.served_model, max_tokens=max_tokens, without=without)

    lengths = arrivals.output_tokens or repeat(cell.max_tokens, len(arrivals.due_s))
    return [
        Order(name, phase_due(arrivals, due_s), encoded(name, max_tokens))
        for name, due_s, max_tokens in zip(cell.prompt_ids, arrivals.due_s, lengths, strict=True)
    ]


async def _settled(engine: Engine) -> Counters | None:
    """Counters of an idle server: read until two readings agree, since they trail the last token a little.

    None of a server that has no counters.
    """
    if not has_counters(engine):
        return None
    access = access_of(engine)
    reading = await asyncio.to_thread(endpoint.scrape, engine.base_url, access=access)
    for _ in range(int(SETTLE_S / 0.05)):
        await asyncio.sleep(0.05)
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
        for _ in range(int(SETTLE_S / WATCH_PERIOD_S)):  # sockets may go before the process does
            _raise_if_dead(engine)
            await asyncio.sleep(WATCH_PERIOD_S)
        raise
    finally:
        driving.cancel()


def _raise_if_dead(engine: Engine) -> None:
    if (death := engine.death()) is not None:
        raise death
