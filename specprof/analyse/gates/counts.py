"""Gates 9, 12 and 13: counts and clocks that contradict each other, and speculation that never happened."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from specprof.analyse import distributions
from specprof.analyse.acceptance import acceptance_length, accepted_at
from specprof.analyse.frames import CellFrame
from specprof.analyse.gates.found import caution, invalid
from specprof.analyse.results import GateFinding
from specprof.analyse.thresholds import (
    MAX_AL_GAP,
    MAX_COUNTER_GAP,
    MAX_TPOT_GAP,
    STREAM_MARGIN,
    SUSPICIOUS_SURVIVAL,
    TOO_GOOD,
)
from specprof.records import Counters, Role, draft_length

NATURAL_SURVIVAL = 0.95  # the most that a first draft position can be expected to survive on natural text
SURE = 0.99


def counters(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 9: the server's own totals must be the sum of what the client saw, or somebody else was there."""
    before, after, requests = frame.data.before, frame.data.after, frame.all_requests
    if before is None or after is None:
        yield caution(9, "no counters", "the server offers no /metrics", "Foreign traffic cannot be ruled out.")
        return
    pairs = {
        "output tokens": ("output_tokens", before.generation_tokens, after.generation_tokens),
        "prompt tokens": ("prompt_tokens", before.prompt_tokens, after.prompt_tokens),
        "accepted tokens": ("num_accepted", before.num_accepted_tokens, after.num_accepted_tokens),
        "drafted tokens": ("num_drafted", before.num_draft_tokens, after.num_draft_tokens),
        "verification steps": ("num_steps", before.num_drafts, after.num_drafts),
    }
    for what, (column, start, end) in pairs.items():
        if start is None or end is None or frame.failures or np.isnan(own := getattr(requests, column)).all():
            continue
        seen, server = float(np.nansum(own)), end - start
        if abs(server - seen) > MAX_COUNTER_GAP * max(server, seen):
            yield invalid(
                9,
                "foreign traffic",
                f"server counted {server:.0f} {what}, the requests sum to {seen:.0f}",
                "Measure on a server that serves nobody else.",
            )
    yield from _crowded(frame)
    yield from consistent(frame)


def _crowded(frame: CellFrame) -> Iterator[GateFinding]:
    """More requests running than this client has streams. Seen once, it may be one request leaving as another comes."""
    running = [gauge.num_requests_running or 0.0 for gauge in frame.data.gauges]
    if sum(count > frame.cell.concurrency for count in running) > 1:
        yield invalid(
            9,
            "foreign traffic",
            f"up to {max(running):.0f} requests ran at once, the client sent at most {frame.cell.concurrency}",
            "Measure on a server that serves nobody else.",
        )


def consistent(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 9: counts of drafts that contradict each other, whoever else was there."""
    requests = frame.requests.where(np.isfinite(frame.requests.num_steps))
    wrong = []
    if (requests.num_accepted > requests.num_drafted).any():
        wrong.append("more tokens accepted than drafted")
    drafted = draft_length(frame.cell.speculative_config)
    steps, accepted = np.nansum(requests.num_steps), np.nansum(requests.num_accepted)
    if drafted and steps and acceptance_length(accepted, steps) > drafted + 1:
        wrong.append(f"AL {acceptance_length(accepted, steps):.2f} above K + 1 = {drafted + 1}")
    wrong += _histogram_problems(frame)
    for problem in wrong:
        yield invalid(9, "counters", problem, "Report it to the engine; these counters cannot be used.")


def _histogram_problems(frame: CellFrame) -> Iterator[str]:
    """Where the steps one by one, the totals of the requests and the server's counts per position part ways."""
    accepted, drafted = (frame.lists(name) for name in ("accepted_per_step", "drafted_per_step"))
    told = bool(len(accepted.values))
    requests = frame.requests
    if told and len(accepted.values) != np.nansum(requests.num_steps):
        yield "the acceptance histogram does not sum to the steps"
    elif told and int(accepted.values.sum(dtype=np.int64)) != np.nansum(requests.num_accepted):
        yield "the acceptance histogram does not sum to the accepted tokens"
    alike = np.flatnonzero(accepted.lengths == drafted.lengths)
    pairs = [steps.take(alike, steps.lengths[alike]).values for steps in (accepted, drafted)]
    if (pairs[0] > pairs[1]).any() and not (requests.num_accepted > requests.num_drafted).any():
        yield "a step accepted more tokens than it drafted"
    survivors, steps = _server_survivors(frame)
    if len(survivors) and (survivors[0] > steps or (np.diff(survivors) > 0).any()):
        yield "a later draft position was accepted more often than an earlier one"


def _server_survivors(frame: CellFrame) -> tuple[NDArray[np.float64], float]:
    """Steps that accepted position 1, 2, … by the server's counters, and all its drafted steps; empty if not told."""
    before, after = frame.data.before, frame.data.after
    if not (before and after) or after.num_accepted_tokens_per_pos is None or after.num_drafts is None:
        return np.empty(0), 0.0
    counted = (before.num_accepted_tokens_per_pos or (), after.num_accepted_tokens_per_pos)
    # a server may first tell a position when it first accepts it
    start, end = np.array(list(zip_longest(*counted, fillvalue=0.0)), dtype=np.float64).reshape(-1, 2).T
    return end - start, after.num_drafts - (before.num_drafts or 0.0)


def impossible(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 12: values that contradict each other."""
    yield from _above_streams(frame)
    yield from _tpot_against_itl(frame)
    yield from _reported_al(frame)
    yield from _too_good(frame)


def _above_streams(frame: CellFrame) -> Iterator[GateFinding]:
    """N streams that did nothing but write could not have been faster. A first token counts, its wait does not.

    An open loop has no N.
    """
    if frame.cell.arrivals is not None:
        return
    writing = float(frame.requests.writing.sum())
    streams = min(frame.cell.concurrency, len(frame.requests))
    bound = streams * float(frame.requests.output_tokens.sum()) / writing if writing > 0 else float("inf")
    if frame.throughput > STREAM_MARGIN * bound:
        yield invalid(
            12,
            "impossible",
            f"{frame.throughput:.1f} tok/s is above N / TPOT = {bound:.1f}",
            "Check the clock and the token counts.",
        )


def _tpot_against_itl(frame: CellFrame) -> Iterator[GateFinding]:
    """TPOT must be per-step ITL / tokens per step: the chunks that arrived must be the steps the counts speak of.

    Merged chunks (late reader, held-back bytes) break only the ITL. More chunks than steps is a fault, beyond the up to
    K accepted tokens per text that are counted past its end and never delivered.
    """
    requests = frame.requests
    chunks = float(requests.num_chunks.sum())
    past_the_end = len(requests) * draft_length(frame.cell.speculative_config)
    at_most = float(requests.output_tokens.sum() - np.nansum(requests.num_accepted)) + past_the_end
    steps = float(np.nansum(requests.engine_steps))
    if steps / chunks - 1 > MAX_TPOT_GAP:
        yield caution(
            12,
            "merged chunks",
            f"{steps:.0f} engine steps arrived as {chunks:.0f} chunks",
            "Per-step ITL is not to be had here; TPOT, decode speed and throughput are not touched.",
        )
    elif chunks > at_most * (1 + MAX_TPOT_GAP) and frame.names_tokens:  # else a step may come in several chunks
        yield invalid(
            12,
            "inconsistent",
            f"{chunks:.0f} chunks arrived, but the accepted tokens leave at most {at_most:.0f} engine steps",
            "Tokens or acceptance counts are lost; check the server's streaming.",
        )


def _reported_al(frame: CellFrame) -> Iterator[GateFinding]:
    """Of requests that were cut short nobody tells the counts: where these may be the difference, nothing is asked."""
    before, after = frame.data.before, frame.data.after
    steps = float(np.nansum(frame.all_requests.num_steps))
    if not (before and after and steps) or after.num_drafts is None or after.num_accepted_tokens is None:
        return
    drafts = after.num_drafts - (before.num_drafts or 0)
    if not drafts or (frame.failures and steps < (1 - MAX_AL_GAP) * drafts):
        return
    server = acceptance_length(after.num_accepted_tokens - (before.num_accepted_tokens or 0), drafts)
    own = acceptance_length(float(np.nansum(frame.all_requests.num_accepted)), steps)
    if abs(server / own - 1) > MAX_AL_GAP:
        yield invalid(
            12,
            "inconsistent",
            f"AL {server:.2f} by the server's counters, {own:.2f} by its requests",
            "Look for foreign traffic or drafts that no request owns.",
        )


def _too_good(frame: CellFrame) -> Iterator[GateFinding]:
    """A position that never fails. Survival falls with the position, so the first one speaks for all.

    A short cell of easy text may accept every draft by luck; it is told from a fault only where text that loses one
    draft in twenty would hardly ever do so.
    """
    accepted, steps = _first_position(frame)
    if not steps or accepted / steps < SUSPICIOUS_SURVIVAL:
        return
    by_luck = distributions.binom_sf(accepted - 1, steps, NATURAL_SURVIVAL)
    if by_luck < 1 - SURE:
        yield invalid(
            12,
            TOO_GOOD,
            f"draft position 1 was accepted in {accepted / steps:.1%} of {steps} steps",
            "Explain it before publishing: filler prompts, loops, or a draft that is the target itself.",
        )


def _first_position(frame: CellFrame) -> tuple[int, int]:
    """How many drafted steps accepted their first token, and how many there were: by request, else by the server."""
    steps = frame.lists("accepted_per_step").values
    if len(steps):
        return int(accepted_at(steps, 1)[0]), len(steps)
    survivors, drafts = _server_survivors(frame)
    return (int(survivors[0]), int(drafts)) if len(survivors) else (0, 0)


def inactive(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 13: an arm with speculation that never drafted."""
    if not frame.cell.speculative_config or frame.cell.role in (Role.PREFILL, Role.SENTINEL):
        return
    after, before = frame.data.after, frame.data.before
    steps, drafts = frame.requests.num_steps, frame.requests.num_drafted
    counted = (after.num_drafts or 0) - ((before.num_drafts or 0) if before else 0) if after else 0
    drafted = np.nansum(steps) or np.nansum(drafts) or counted
    if (np.isfinite(steps).any() or (after and _counts_drafts(after))) and not drafted:
        yield invalid(
            13,
            "speculation inactive",
            "no step carried a draft in an arm with speculation",
            "Check the speculative config and the engine's log; n-gram needs text that repeats.",
        )


def _counts_drafts(reading: Counters) -> bool:
    """Whether drafts would be among them. vLLM's lack them only without speculation; they alone count prompt tokens."""
    return reading.num_drafts is not None or reading.prompt_tokens is not None
