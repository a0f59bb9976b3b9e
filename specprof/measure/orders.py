"""A cell → what is to be sent for it: every request encoded before any clock starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import repeat

from specprof.engine.protocol import Engine
from specprof.measure import wire
from specprof.measure.attached import left_out
from specprof.measure.clock import time_scale
from specprof.measure.load import Order
from specprof.measure.split import Work
from specprof.records import Arrivals, Cell, Phase, Prompt, lanes, phase_due


def work_of(cell: Cell, prompts: Mapping[str, Prompt], engine: Engine) -> Work:
    """All that is sent for a cell on an engine that runs."""
    path, scale = wire.path_of(cell), time_scale(engine)
    if cell.arrivals is not None:  # its warm-up is the beginning of its own schedule
        orders = _scheduled(cell, cell.arrivals, prompts, engine)
        return Work(path, (), (orders,), cell.concurrency, arrivals=cell.arrivals, time_scale=scale)
    warmups = _in_turn(cell, cell.prompt_ids[: cell.num_warmup], Phase.WARMUP, prompts, engine)
    contents = lanes(cell) if cell.prompt_tags else (cell.prompt_ids,)
    measured = tuple(_in_turn(cell, names, Phase.MEASURED, prompts, engine) for names in contents)
    after_reads = None if cell.interference is None else cell.interference.after_tokens
    return Work(path, warmups, measured, cell.concurrency, after_reads=after_reads, time_scale=scale)


def asked_for(cell: Cell, prompt_id: str, phase: Phase) -> int:
    """Tokens to ask of a request of a closed loop: what a newcomer writes itself is another matter."""
    if phase is Phase.WARMUP:
        return min(cell.warmup_tokens, cell.max_tokens)
    met = cell.interference
    return met.newcomer_tokens if met is not None and prompt_id == met.newcomer_id else cell.max_tokens


def _in_turn(
    cell: Cell, names: Iterable[str], phase: Phase, prompts: Mapping[str, Prompt], engine: Engine
) -> tuple[Order, ...]:
    without = left_out(engine)
    return tuple(
        Order(
            name,
            phase,
            wire.encode(
                cell, prompts[name], engine.served_model, max_tokens=asked_for(cell, name, phase), without=without
            ),
        )
        for name in names
    )


def _scheduled(cell: Cell, arrivals: Arrivals, prompts: Mapping[str, Prompt], engine: Engine) -> tuple[Order, ...]:
    """One order per arrival. Prompts come again and again, so each is encoded once per length."""
    without = left_out(engine)

    @cache
    def encoded(name: str, max_tokens: int) -> bytes:
        return wire.encode(cell, prompts[name], engine.served_model, max_tokens=max_tokens, without=without)

    lengths = arrivals.output_tokens or repeat(cell.max_tokens, len(arrivals.due_s))
    return tuple(
        Order(name, phase_due(arrivals, due_s), encoded(name, max_tokens))
        for name, due_s, max_tokens in zip(cell.prompt_ids, arrivals.due_s, lengths, strict=True)
    )
