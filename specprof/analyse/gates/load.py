"""Gates 1 to 5 and 11: what else than decoding at N streams a cell's wall was spent on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from specprof.analyse.frames import CellFrame
from specprof.analyse.gates.found import caution, invalid
from specprof.analyse.gates.workers import busiest_share
from specprof.analyse.results import GateFinding
from specprof.analyse.thresholds import (
    ADMISSION_STEPS,
    MAX_CACHED_SHARE,
    MAX_CLIENT_CPU,
    MAX_LOOP_LAG_S,
    MAX_PREFILL_SHARE,
    MAX_QUEUE_SHARE,
    MAX_RATE_INFLATION,
    MIN_DECODE_SHARE,
    MIN_NATURAL_TOKENS,
)
from specprof.records import CachePolicy, ClientLoad, Stop

MAX_OWN_TIMES = 0.01
MIN_HEADROOM = 10  # how many times its load a client should be able to take in (METHOD 7)


def queueing(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 1: requests that waited at the server or in the client are not concurrency."""
    latency = float(frame.requests.e2el.sum())
    told = frame.requests.queue_s
    share = float(np.nansum(told)) / latency
    queued = share > MAX_QUEUE_SHARE and _beyond_admission(frame)
    if queued or (np.isnan(told).all() and _mostly_waiting(frame)):
        running = max((g.num_requests_running or 0 for g in frame.data.gauges), default=0)
        evidence = f"{share:.0%} of the latency was spent waiting at the server" if share else "requests waited there"
        ran = f"; at most {running:.0f} ran" if running else ""
        remedy = f"Read this as N = {running:.0f}, or raise max_num_seqs." if running else "Raise max_num_seqs."
        yield caution(1, "server queue", evidence + ran, remedy)
    held = float(frame.requests.client_queue.sum()) / latency
    if held > MAX_QUEUE_SHARE:
        evidence = f"{held:.1%} of the latency was spent in the client{_connecting(frame)}"
        yield caution(1, "client queue", evidence, "Use a faster client.")


def _connecting(frame: CellFrame) -> str:
    """The part of a client's queue that no faster client would shorten."""
    load = frame.data.client
    if load is None or not load.num_connects or load.connect_max_s is None:
        return ""
    return f"; {load.num_connects} requests had to connect first, the longest took {load.connect_max_s * 1e3:.3g} ms"


def _beyond_admission(frame: CellFrame) -> bool:
    """Every request waits for the step in progress to end; only longer waits are a queue."""
    step_s = float(np.median(frame.gaps)) if len(frame.gaps) else 0.0
    return float(np.nanquantile(frame.requests.queue_s, 0.9)) > ADMISSION_STEPS * step_s


def _mostly_waiting(frame: CellFrame) -> bool:
    """A request seen waiting now and then is one being admitted; waiting in most readings is a queue."""
    waiting = [bool(gauge.num_requests_waiting) for gauge in frame.data.gauges]
    return sum(waiting) * 2 > len(waiting)


def short_stops(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 2: short natural answers measure how long the answers are."""
    if frame.cell.stop is not Stop.NATURAL:
        return
    tokens = float(np.median(frame.requests.output_tokens))
    decode = float(frame.requests.writing.sum() / frame.requests.e2el.sum())
    if tokens < MIN_NATURAL_TOKENS or decode < MIN_DECODE_SHARE:
        yield caution(
            2,
            "short natural stops",
            f"median output {tokens:.0f} tokens, {decode:.0%} of the time decoding: not a decode figure",
            f"Quote it as this workload's throughput; for decoding use the forced figure (≥ {MIN_NATURAL_TOKENS}).",
        )


def reading(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 3: a wall that was spent reading."""
    seconds = frame.requests.ttft - np.nan_to_num(frame.requests.queue_s)
    share = float(seconds.sum() / frame.requests.e2el.sum())
    if share > MAX_PREFILL_SHARE:
        yield caution(
            3, "prefill", f"{share:.0%} of the wall was reading prompts: this is not only decode", "Use longer outputs."
        )


def rate_sum(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 4: where adding up self-reported rates would have flattered."""
    if frame.cell.concurrency == 1:
        return
    inflation = _sum_of_rates(frame) / frame.throughput
    if inflation > MAX_RATE_INFLATION:
        streams, writing = frame.cell.concurrency, frame.throughput * frame.tpot_s
        yield caution(
            4,
            "sum of rates",
            f"decode speeds add up to {inflation:.2f}× the aggregate: on average {writing:.1f} of {streams} wrote",
            "Quote total output / wall, never the sum of per-request rates; more prompts per stream shorten the tail.",
        )


def _sum_of_rates(frame: CellFrame) -> float:
    streams = min(frame.cell.concurrency, len(frame.requests))
    speeds = frame.requests.decode_speed[np.isfinite(frame.requests.decode_speed)]
    return float(speeds.mean()) * streams if len(speeds) else float("nan")


def prefix_cache(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 5: cached prompt tokens were not read. Where traffic is replayed that is what is measured."""
    if frame.cell.cache is CachePolicy.REPLAY:
        return
    cached = frame.requests.cached_tokens
    if np.isnan(cached).all():
        yield caution(
            5,
            "prefix cache unknown",
            "the server does not report cached prompt tokens",
            "Start it with --enable-prompt-tokens-details to verify that the prefix cache is off.",
        )
        return
    share = float(np.nansum(cached) / frame.requests.prompt_tokens.sum())
    if share > MAX_CACHED_SHARE:
        yield invalid(
            5, "prefix cache", f"{share:.1%} of the prompt tokens came from the cache", "Run with prefix caching off."
        )


def client(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 11: a busy client measures itself."""
    load = frame.data.client
    if load is not None and (load.loop_lag_p99_s > MAX_LOOP_LAG_S or load.cpu_share > MAX_CLIENT_CPU):
        yield caution(
            11,
            "client",
            f"event loop late by {load.loop_lag_p99_s * 1e3:.1f} ms (p99), client CPU {load.cpu_share:.0%}"
            f"{_whose(load)}{_timed(load)}",
            "Give the client a core of its own.",
        )


def _timed(load: ClientLoad) -> str:
    """Of times that the kernel noted only those are late that share a read with later ones."""
    own = 1.0 - load.kernel_timed if load.kernel_timed is not None else 0.0
    return f"; {own:.0%} of its reads have the client's own time, which is as late" if own > MAX_OWN_TIMES else ""


def client_ceiling(frame: CellFrame, ceiling: float | None) -> Iterator[GateFinding]:
    """Gate 11: a client near what it can do at most, chunks/s, puts its own pace into every time it takes.

    Of several workers each is held to what one process can take in, so the busiest one decides.
    """
    requests = frame.all_requests  # what kept a mixed batch full came in over the same client
    seconds = float(requests.done.max() - requests.sent.min())
    if ceiling is None or not seconds > 0:
        return
    chunks_per_s = float(requests.num_chunks.sum()) / seconds * busiest_share(frame.data.client)
    if chunks_per_s * MIN_HEADROOM > ceiling:
        yield caution(
            11,
            "client ceiling",
            f"{chunks_per_s:,.0f} chunks/s arrived{_whose(frame.data.client)}, "
            f"and the client could take in only {ceiling / chunks_per_s:.1f}× this load "
            f"({ceiling:,.0f} chunks/s from a server that costs nothing)",
            "Give the client a faster core of its own, or send fewer streams from one client.",
        )


def _whose(load: ClientLoad | None) -> str:
    num = len(load.workers) if load is not None else 0
    return f" at the busiest of {num} workers" if num > 1 else ""


def ceiling_of(environment: Mapping[str, Any], launch: int) -> float | None:
    """Chunks/s that a study's client could take in, by the clock of one launch; None where nobody measured it.

    A simulated engine may run faster than the client's clock (`time_scale`): its seconds are then shorter ones.
    """
    ceiling = environment.get("client_ceiling_chunks_per_s")
    if not isinstance(ceiling, int | float) or ceiling <= 0:
        return None
    facts = environment.get("launches", {}).get(str(launch), {})
    return float(ceiling) / float(facts.get("extra", {}).get("time_scale", 1.0))
