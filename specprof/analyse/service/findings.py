"""The gates of a rung, METHOD 7: what makes the figures of an open loop unfit.

That requests queue, come late or are given up is what an open loop measures; it is no gate. These are: a client that
did not keep to the schedule, prompts that were not read or that nobody wrote, drafts that were not made, too good or
miscounted, texts that loop or that speculation changed, other people's traffic, and windows that hold too little.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from specprof.analyse import gates
from specprof.analyse.comparisons import changed_output
from specprof.analyse.frames import CellFrame
from specprof.analyse.gates.found import LaunchFindings, caution, each_once, invalid, on_launch
from specprof.analyse.gates.texts import looping
from specprof.analyse.looping import loop_evidence
from specprof.analyse.results import GateFinding
from specprof.analyse.service.cell import OpenCell
from specprof.analyse.service.rung import Rung, collapsed, dispatch_lag
from specprof.analyse.thresholds import MAX_COUNTER_GAP
from specprof.records import Stop

MAX_DISPATCH_LAG = 0.05  # of the time to the first token, as asked or else as measured
RUINOUS_DISPATCH_LAG = 0.20
MIN_REQUESTS = 50  # of fewer, a share of 90% is known to no better than a tenth
MIN_WINDOW_E2ELS = 10  # so that each batch of the window is longer than a request


def rung_gates(
    rung: Rung,
    of_launch: LaunchFindings = (),
    limits: Mapping[int, gates.Limits] | None = None,
    off: Sequence[CellFrame] = (),
) -> tuple[GateFinding, ...]:
    """Every gate that a rung fails, each answer once, that of the first cell to give it.

    `off`: the cells of the same content and protocol with speculation off, at every rate and in every launch.
    """
    return each_once(_all(rung, of_launch, limits or {}, off))


def _all(
    rung: Rung, of_launch: LaunchFindings, limits: Mapping[int, gates.Limits], off: Sequence[CellFrame]
) -> Iterator[GateFinding]:
    yield from _late_client(rung)
    yield from _small_window(rung)
    yield from _looping(rung)
    for cell in rung.cells:
        launch = cell.frame.data.launch
        yield from _failed(cell)
        yield from _foreign(cell)
        yield from _lengths(cell)
        yield from gates.open_gates(cell.frame, limits.get(launch, gates.UNLIMITED))
        yield from _changed_output(cell, off)
        yield from on_launch(launch, of_launch)


def _late_client(rung: Rung) -> Iterator[GateFinding]:
    """Gate 11: a client that sends late shifts the very instants that latencies begin at."""
    lag, first_token = dispatch_lag(rung), _first_token_s(rung)
    if lag is None or not first_token or lag <= MAX_DISPATCH_LAG * first_token:
        return
    found = invalid if lag > RUINOUS_DISPATCH_LAG * first_token else caution
    yield found(
        11,
        "client",
        f"requests left up to {lag * 1e3:.1f} ms (p99) after they were due, {lag / first_token:.0%} of a first "
        f"token's {first_token * 1e3:.0f} ms",
        "Give the client a core of its own, or lower the rate.",
    )


def _first_token_s(rung: Rung) -> float | None:
    """The TTFT that is asked for, or the median of those that came."""
    if rung.targets.ttft_s is not None:
        return rung.targets.ttft_s
    times = rung.pooled("ttft_sent")
    came = times[np.isfinite(times)]
    return float(np.median(came)) if len(came) else None


def _small_window(rung: Rung) -> Iterator[GateFinding]:
    """Gate 6: what too few requests, or a window too short to be a steady state, can tell."""
    if rung.num_offered < MIN_REQUESTS:
        yield caution(
            6,
            "few requests",
            f"{rung.num_offered} requests were due inside the window",
            f"Measure longer, or in more blocks: below {MIN_REQUESTS} requests a share of 90% is hardly known.",
        )
    if collapsed(rung):
        return  # its requests are long because they queue, and no window would be long enough
    times = rung.pooled("e2el")
    ended = times[np.isfinite(times)]
    typical_s = float(np.median(ended)) if len(ended) else rung.arrivals.timeout_s
    if rung.arrivals.duration_s < MIN_WINDOW_E2ELS * typical_s:
        yield caution(
            6,
            "short window",
            f"the window of {rung.arrivals.duration_s:g} s is {rung.arrivals.duration_s / typical_s:.1f} times as long "
            f"as a request ({typical_s:.3g} s)",
            f"Measure at least {MIN_WINDOW_E2ELS} times as long as a request takes, with a warm-up of several.",
        )


def _looping(rung: Rung) -> Iterator[GateFinding]:
    """Gate 7. Where a text of an open loop would have ended is not known, and no figure without loops is shown."""
    loops = loop_evidence(rung.series, {})
    for found in looping(rung.cell, len(rung.series.prompts.names), loops):
        yield replace(found, remedy="Use a repetition penalty (equal in all arms) or shorter outputs.")


def _changed_output(cell: OpenCell, off: Sequence[CellFrame]) -> Iterator[GateFinding]:
    """Gate 8, greedy, prompt by prompt: the off arm at the same rate, and the off arm with itself at other rates.

    Requests of a trace that share a prompt are asked for different lengths, and cannot stand for each other.
    """
    if not cell.arrivals.output_tokens:
        yield from changed_output(cell.frame, off)


def _failed(cell: OpenCell) -> Iterator[GateFinding]:
    """Gate 10: requests the engine failed. Those that were given up are late, and counted as such; those that kept the
    load up are cancelled when it is no longer needed.
    """
    rows = cell.requests
    failed = ~rows.finished & ~rows.timed_out & ~rows.filled
    if not failed.any():
        return
    num_asked = int((~rows.filled).sum())
    errors = cell.frame.data.requests.select(["error"])["error"]
    error = errors[int(failed.argmax())].as_py() or "no token arrived"
    found = invalid if failed.sum() == num_asked else caution
    yield found(
        10,
        "failed requests",
        f"{failed.sum()} of {num_asked} failed: {error}",
        "They count as lost. If the load did not cause it, mend that, remove the cell's folder and run again.",
    )


def _foreign(cell: OpenCell) -> Iterator[GateFinding]:
    """Gate 9: the server wrote more or less than the requests received. What one that was cut short missed of its text
    may have been written, and counts for neither side.
    """
    before, after = cell.frame.data.before, cell.frame.data.after
    if before is None or after is None:
        yield caution(9, "no counters", "the server offers no /metrics", "Foreign traffic cannot be ruled out.")
        return
    if after.generation_tokens is None:
        return
    rows, longest = cell.requests, max(cell.arrivals.output_tokens, default=cell.cell.max_tokens)
    own = float(rows.output_tokens.sum())
    unseen = float((longest - rows.output_tokens[~rows.finished]).sum())
    server = after.generation_tokens - (before.generation_tokens or 0.0)
    if max(server - own - unseen, own - server) > MAX_COUNTER_GAP * max(server, own):
        yield invalid(
            9,
            "foreign traffic",
            f"server counted {server:.0f} output tokens, the requests sum to {own:.0f}",
            "Measure on a server that serves nobody else.",
        )


def _lengths(cell: OpenCell) -> Iterator[GateFinding]:
    """Gate 10: forced texts have the length that was asked for. A trace asks each for its own, and takes what comes."""
    if cell.cell.stop is not Stop.FORCED or cell.arrivals.output_tokens:
        return
    lengths = cell.requests.output_tokens[cell.requests.finished]
    short = int((lengths != cell.cell.max_tokens).sum())
    if short:
        yield invalid(
            10,
            "length",
            f"{short} of {len(lengths)} texts are not the {cell.cell.max_tokens} tokens asked for",
            "Raise max_model_len, or ask for fewer tokens.",
        )
