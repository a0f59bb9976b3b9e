"""A simulated engine may run on a clock that is faster than ours; its records are kept in its own time."""

from __future__ import annotations

from dataclasses import replace

from specprof.engine.protocol import Engine
from specprof.records import Counters, Request


def time_scale(engine: Engine) -> float:
    """How many engine seconds pass in one of ours: 1.0 for every real engine."""
    return float(engine.facts().extra.get("time_scale", 1.0))


def on_engine_clock(request: Request, scale: float) -> Request:
    """The request with every instant and duration in engine time."""
    if scale == 1.0:
        return request

    def at(instant_ns: int) -> int:
        return int(instant_ns * scale)

    def lasting(duration_s: float | None) -> float | None:
        return None if duration_s is None else duration_s * scale

    server = request.server and replace(
        request.server,
        queue_s=lasting(request.server.queue_s),
        time_to_first_token_s=lasting(request.server.time_to_first_token_s),
        generation_s=lasting(request.server.generation_s),
    )
    return replace(
        request,
        scheduled_ns=at(request.scheduled_ns),
        sent_ns=at(request.sent_ns),
        done_ns=at(request.done_ns),
        chunk_ns=tuple(map(at, request.chunk_ns)),
        server=server,
    )


def reading_on_engine_clock(reading: Counters, scale: float) -> Counters:
    """The reading with its instant in engine time, as the requests around it have theirs."""
    return reading if scale == 1.0 else replace(reading, at_ns=int(reading.at_ns * scale))
