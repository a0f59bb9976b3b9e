"""Gates, METHOD 7: what makes a number unfit. Each gate looks at one cell and answers with evidence and a remedy.

`invalid` forbids a headline; `caution` must be read beside the number. Comparisons between cells (gates 6, 8 and 10)
are in `comparisons.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specprof.analyse.acceptance import acceptance_length, accepted_at
from specprof.analyse.frames import CellFrame
from specprof.analyse.results import GateFinding, Loops, Severity
from specprof.analyse.thresholds import (
    ADMISSION_STEPS,
    MAX_AL_GAP,
    MAX_CACHED_SHARE,
    MAX_CLIENT_CPU,
    MAX_COUNTER_GAP,
    MAX_LOOP_EFFECT,
    MAX_LOOP_LAG_S,
    MAX_PREFILL_SHARE,
    MAX_QUEUE_SHARE,
    MAX_RATE_INFLATION,
    MAX_TPOT_GAP,
    MIN_DECODE_SHARE,
    MIN_NATURAL_TOKENS,
    SUSPICIOUS_SURVIVAL,
)
from specprof.records import Role, Stop


def cell_gates(frame: CellFrame, loops: Loops | None) -> Iterator[GateFinding]:
    """Every gate one cell can fail by itself."""
    yield from failures(frame)
    if frame.requests.empty:
        return
    yield from queueing(frame)
    yield from short_stops(frame)
    yield from reading(frame)
    yield from rate_sum(frame)
    yield from prefix_cache(frame)
    yield from looping(frame, loops)
    yield from counters(frame)
    yield from lengths(frame)
    yield from client(frame)
    yield from impossible(frame)
    yield from inactive(frame)


def _invalid(gate: int, name: str, evidence: str, remedy: str) -> GateFinding:
    return GateFinding(gate, name, Severity.INVALID, evidence, remedy)


def _caution(gate: int, name: str, evidence: str, remedy: str) -> GateFinding:
    return GateFinding(gate, name, Severity.CAUTION, evidence, remedy)


def queueing(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 1: requests that waited at the server or in the client are not concurrency."""
    latency = float(frame.requests["e2el"].sum())
    told = frame.requests["queue_s"]
    share = float(told.sum()) / latency
    queued = share > MAX_QUEUE_SHARE and _beyond_admission(frame)
    if queued or (told.isna().all() and _mostly_waiting(frame)):
        running = max((g.num_requests_running or 0 for g in frame.data.gauges), default=0)
        evidence = f"{share:.0%} of the latency was spent waiting at the server" if share else "requests waited there"
        ran = f"; at most {running:.0f} ran" if running else ""
        remedy = f"Read this as N = {running:.0f}, or raise max_num_seqs." if running else "Raise max_num_seqs."
        yield _caution(1, "server queue", evidence + ran, remedy)
    held = float(frame.requests["client_queue"].sum()) / latency
    if held > MAX_QUEUE_SHARE:
        yield _caution(1, "client queue", f"{held:.1%} of the latency was spent in the client", "Use a faster client.")


def _beyond_admission(frame: CellFrame) -> bool:
    """Every request waits for the step in progress to end; only longer waits are a queue."""
    step_s = float(np.median(frame.gaps)) if len(frame.gaps) else 0.0
    return float(frame.requests["queue_s"].quantile(0.9)) > ADMISSION_STEPS * step_s


def _mostly_waiting(frame: CellFrame) -> bool:
    """A request seen waiting now and then is one being admitted; waiting in most readings is a queue."""
    waiting = [bool(gauge.num_requests_waiting) for gauge in frame.data.gauges]
    return sum(waiting) * 2 > len(waiting)


def short_stops(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 2: short natural answers measure how long the answers are."""
    if frame.cell.stop is not Stop.NATURAL:
        return
    tokens = float(frame.requests["output_tokens"].median())
    decode = float((frame.requests["last"] - frame.requests["first"]).sum() / frame.requests["e2el"].sum())
    if tokens < MIN_NATURAL_TOKENS or decode < MIN_DECODE_SHARE:
        yield _caution(
            2,
            "short natural stops",
            f"median output {tokens:.0f} tokens, {decode:.0%} of the time decoding: not a decode figure",
            f"Quote it as this workload's throughput; for decoding use the forced figure (≥ {MIN_NATURAL_TOKENS}).",
        )


def reading(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 3: a wall that was spent reading."""
    seconds = frame.requests["ttft"] - frame.requests["queue_s"].fillna(0.0)
    share = float(seconds.sum() / frame.requests["e2el"].sum())
    if share > MAX_PREFILL_SHARE:
        yield _caution(
            3, "prefill", f"{share:.0%} of the wall was reading prompts: this is not only decode", "Use longer outputs."
        )


def rate_sum(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 4: where adding up self-reported rates would have flattered."""
    if frame.cell.concurrency == 1:
        return
    inflation = _sum_of_rates(frame) / frame.throughput
    if inflation > MAX_RATE_INFLATION:
        yield _caution(
            4,
            "sum of rates",
            f"decode speeds add up to {inflation:.2f}× the aggregate",
            "Quote total output / wall, never the sum of per-request rates.",
        )


def _sum_of_rates(frame: CellFrame) -> float:
    streams = min(frame.cell.concurrency, len(frame.requests))
    return float(frame.requests["decode_speed"].mean()) * streams


def prefix_cache(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 5: cached prompt tokens were not read."""
    cached = frame.requests["cached_tokens"]
    if cached.isna().all():
        yield _caution(
            5,
            "prefix cache unknown",
            "the server does not report cached prompt tokens",
            "Start it with --enable-prompt-tokens-details to verify that the prefix cache is off.",
        )
        return
    share = float(cached.sum() / frame.requests["prompt_tokens"].sum())
    if share > MAX_CACHED_SHARE:
        yield _invalid(
            5, "prefix cache", f"{share:.1%} of the prompt tokens came from the cache", "Run with prefix caching off."
        )


def looping(frame: CellFrame, loops: Loops | None) -> Iterator[GateFinding]:
    """Gate 7: acceptance on repeated text, or past a text's own end, says nothing about the content."""
    if loops is None:
        return
    whole = loops.tokens_per_engine_step_all.value or 1.0
    kept = {
        "without looping windows": loops.tokens_per_engine_step_unflagged.value,
        "before the text's own end": loops.tokens_per_engine_step_before_eos.value,
    }
    drafts = bool(frame.cell.speculative_config)  # without, a step is one token whatever the text
    effects = {name: whole / value - 1 for name, value in kept.items() if value and drafts}
    nothing_left = drafts and loops.share_of_tokens_flagged >= 1.0
    name, effect = max(effects.items(), key=lambda item: abs(item[1]), default=("", 0.0))
    flagged = f"the texts of {len(loops.prompt_ids)} of {len(frame.cell.prompt_ids)} prompts repeat themselves"
    if abs(effect) > MAX_LOOP_EFFECT or nothing_left:
        shown = f"tokens per step {whole:.2f}, {kept[name]:.2f} {name}" if name else "no token is left without them"
        yield _invalid(
            7,
            "loops",
            f"{flagged}; {shown}",
            "Use the figure of the unflagged tokens, a repetition penalty (equal in all arms) or shorter outputs.",
        )
    elif loops.num_requests_flagged:
        yield _caution(
            7,
            "loops",
            f"{flagged} (tokens per step change by {effect:+.1%})",
            "Read the figure of the unflagged tokens.",
        )


def counters(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 9: the server's own totals must be the sum of what the client saw, or somebody else was there."""
    before, after, requests = frame.data.before, frame.data.after, frame.requests
    if before is None or after is None:
        yield _caution(9, "no counters", "the server offers no /metrics", "Foreign traffic cannot be ruled out.")
        return
    pairs = {
        "output tokens": ("output_tokens", before.generation_tokens, after.generation_tokens),
        "prompt tokens": ("prompt_tokens", before.prompt_tokens, after.prompt_tokens),
        "accepted tokens": ("num_accepted", before.num_accepted_tokens, after.num_accepted_tokens),
        "drafted tokens": ("num_drafted", before.num_draft_tokens, after.num_draft_tokens),
    }
    for what, (column, start, end) in pairs.items():
        if start is None or end is None or not frame.failures.empty or requests[column].isna().all():
            continue
        own, server = float(requests[column].sum()), end - start
        if abs(server - own) > MAX_COUNTER_GAP * max(server, own):
            yield _invalid(
                9,
                "foreign traffic",
                f"server counted {server:.0f} {what}, the requests sum to {own:.0f}",
                "Measure on a server that serves nobody else.",
            )
    yield from _counters_consistent(frame)


def _counters_consistent(frame: CellFrame) -> Iterator[GateFinding]:
    requests = frame.requests.dropna(subset=["num_steps"])
    wrong = []
    if (requests["num_accepted"] > requests["num_drafted"]).any():
        wrong.append("more tokens accepted than drafted")
    drafted = _draft_length(frame)
    steps, accepted = requests["num_steps"].sum(), requests["num_accepted"].sum()
    if drafted and steps and acceptance_length(accepted, steps) > drafted + 1:
        wrong.append(f"AL {acceptance_length(accepted, steps):.2f} above K + 1 = {drafted + 1}")
    per_step = frame.lists("accepted_per_step")
    told = any(len(row) for row in per_step)
    if told and sum(len(row) for row in per_step) != frame.requests["num_steps"].sum():
        wrong.append("the acceptance histogram does not sum to the steps")
    for problem in wrong:
        yield _invalid(9, "counters", problem, "Report it to the engine; these counters cannot be used.")


def lengths(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 10: forced texts have the length asked for, and nobody was preempted."""
    cell, requests = frame.cell, frame.requests
    if cell.stop is Stop.FORCED:
        short = int((requests["output_tokens"] != cell.max_tokens).sum())
        if short:
            yield _invalid(
                10,
                "length",
                f"{short} of {len(requests)} texts are not the {cell.max_tokens} tokens asked for",
                "Raise max_model_len, or ask for fewer tokens.",
            )
    before, after = frame.data.before, frame.data.after
    if before and after and before.num_preemptions is not None and after.num_preemptions is not None:
        preempted = after.num_preemptions - before.num_preemptions
        if preempted:
            yield _caution(
                10, "preemptions", f"{preempted:.0f} requests were preempted", "Give the KV cache more memory."
            )


def failures(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 10: requests that failed are not silently left out."""
    failed = frame.failures
    if failed.empty:
        return
    total = len(failed) + len(frame.requests)
    yield _invalid(
        10, "failed requests", f"{len(failed)} of {total} failed: {failed['error'].iloc[0]}", "Mend that, run again."
    )


def client(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 11: a busy client measures itself."""
    load = frame.data.client
    if load is not None and (load.loop_lag_p99_s > MAX_LOOP_LAG_S or load.cpu_share > MAX_CLIENT_CPU):
        yield _caution(
            11,
            "client",
            f"event loop late by {load.loop_lag_p99_s * 1e3:.1f} ms (p99), client CPU {load.cpu_share:.0%}",
            "Give the client a core of its own.",
        )


def impossible(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 12: values that contradict each other."""
    yield from _above_streams(frame)
    yield from _tpot_against_itl(frame)
    yield from _reported_al(frame)
    yield from _too_good(frame)


def _above_streams(frame: CellFrame) -> Iterator[GateFinding]:
    """N streams that did nothing but write could not have been faster. A first token counts, its wait does not."""
    writing = float((frame.requests["last"] - frame.requests["first"]).sum())
    streams = min(frame.cell.concurrency, len(frame.requests))
    bound = streams * float(frame.requests["output_tokens"].sum()) / writing if writing > 0 else float("inf")
    if frame.throughput > 1.05 * bound:
        yield _invalid(
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
    chunks = float(requests["num_chunks"].sum())
    accepted = requests["num_accepted"].fillna(0.0)
    past_the_end = len(requests) * _draft_length(frame)
    at_most = float((requests["output_tokens"] - accepted).sum()) + past_the_end
    steps = float(requests["engine_steps"].sum())
    if steps / chunks - 1 > MAX_TPOT_GAP:
        yield _caution(
            12,
            "merged chunks",
            f"{steps:.0f} engine steps arrived as {chunks:.0f} chunks",
            "Per-step ITL is not to be had here; TPOT, decode speed and throughput are not touched.",
        )
    elif chunks > at_most * (1 + MAX_TPOT_GAP):
        yield _invalid(
            12,
            "inconsistent",
            f"{chunks:.0f} chunks arrived, but the accepted tokens leave at most {at_most:.0f} engine steps",
            "Tokens or acceptance counts are lost; check the server's streaming.",
        )


def _draft_length(frame: CellFrame) -> int:
    """K of the cell's arm; 0 where it has none of its own (off, suffix)."""
    return int((frame.cell.speculative_config or {}).get("num_speculative_tokens") or 0)


def _reported_al(frame: CellFrame) -> Iterator[GateFinding]:
    before, after = frame.data.before, frame.data.after
    steps = frame.requests["num_steps"].sum()
    if not (before and after and steps) or after.num_drafts is None or after.num_accepted_tokens is None:
        return
    drafts = after.num_drafts - (before.num_drafts or 0)
    if not drafts:
        return
    server = acceptance_length(after.num_accepted_tokens - (before.num_accepted_tokens or 0), drafts)
    own = acceptance_length(frame.requests["num_accepted"].sum(), steps)
    if abs(server / own - 1) > MAX_AL_GAP:
        yield _invalid(
            12,
            "inconsistent",
            f"AL {server:.2f} by the server's counters, {own:.2f} by its requests",
            "Look for foreign traffic or drafts that no request owns.",
        )


def _too_good(frame: CellFrame) -> Iterator[GateFinding]:
    steps = np.concatenate([np.empty(0, dtype=np.int64), *frame.lists("accepted_per_step")])
    if len(steps) < 20:
        return
    share = accepted_at(steps, 1)[0] / len(steps)
    if share >= SUSPICIOUS_SURVIVAL:
        yield _invalid(
            12,
            "too good",
            f"draft position 1 was accepted in {share:.1%} of {len(steps)} steps",
            "Explain it before publishing: filler prompts, loops, or a draft that is the target itself.",
        )


def inactive(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 13: an arm with speculation that never drafted."""
    if not frame.cell.speculative_config or frame.cell.role is not Role.FIGURE:
        return
    after, before = frame.data.after, frame.data.before
    told = frame.requests["num_steps"].notna().any()
    counted = (after.num_drafts or 0) - ((before.num_drafts or 0) if before else 0) if after else 0
    if (told or after) and not frame.requests["num_steps"].sum() and not counted:
        yield _invalid(
            13,
            "speculation inactive",
            "no step carried a draft in an arm with speculation",
            "Check the speculative config and the engine's log; n-gram needs text that repeats.",
        )
