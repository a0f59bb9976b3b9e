"""Checks on one published run: what its parts say about the whole (METHOD 3 and the gates of METHOD 7 it touches)."""

from __future__ import annotations

from collections.abc import Iterator

from specprof.analyse.audit.claim import Aggregation, Claim
from specprof.analyse.audit.findings import Finding, Kind, Rebuilt
from specprof.analyse.audit.rebuild import PREFILL, TTFT
from specprof.analyse.audit.wording import change, figure, seconds, share, speed, times, tokens
from specprof.analyse.thresholds import (
    MAX_CACHED_SHARE,
    MAX_PREFILL_SHARE,
    MAX_RATE_INFLATION,
    MIN_NATURAL_TOKENS,
    STREAM_MARGIN,
)
from specprof.records import Stop

AGREEMENT = 0.02  # two tellings of one number may differ by this much (METHOD 7, gate 6)
BUSY_STREAMS = 0.85  # N_eff below this share of N is worth explaining
NOT_SATURATED = 0.05  # throughput within this share of the offered load follows the load
FILLER_WORDS = ("random", "filler", "synthetic", "dummy", "lorem", "hello")


def run_findings(claim: Claim, rebuilt: Rebuilt) -> Iterator[Finding]:
    """Everything one run can be asked without a second one."""
    yield from throughput(claim, rebuilt)
    yield from lengths(claim, rebuilt)
    yield from reading(claim, rebuilt)
    yield from predicted(claim, rebuilt)
    yield from offered_load(claim, rebuilt)
    yield from streams(claim, rebuilt)
    yield from rate_sum(claim, rebuilt)
    yield from cache(claim, rebuilt)
    yield from content(claim)
    yield from failures(claim, rebuilt)
    yield from repeats(claim)
    yield from notes(claim)


def throughput(claim: Claim, rebuilt: Rebuilt) -> Iterator[Finding]:
    """Total output over the wall, beside what was printed."""
    if rebuilt.output_tokens and rebuilt.wall_s and rebuilt.throughput_tok_s:
        parts = f"{figure(rebuilt.output_tokens)} output tokens in {seconds(rebuilt.wall_s)}"
        yield Finding(Kind.REBUILT, "throughput", f"{parts}: throughput {speed(rebuilt.throughput_tok_s)}")
    printed, made = claim.throughput_tok_s, rebuilt.throughput_tok_s
    if printed and made and abs(printed / made - 1) > AGREEMENT:
        yield Finding(
            Kind.IMPOSSIBLE,
            "throughput",
            f"{speed(printed)} is printed, but output tokens / wall is {speed(made)} ({change(printed / made - 1)})",
            f"Write {speed(made)}, or say which tokens and which time the other number counts.",
            gate=12,
        )


def lengths(claim: Claim, rebuilt: Rebuilt) -> Iterator[Finding]:
    """How long the answers are, and who ended them."""
    mean = rebuilt.mean_output_tokens
    if mean is None:
        return
    yield Finding(Kind.REBUILT, "output length", f"about {tokens(mean)} tokens a request")
    if claim.stop is not Stop.FORCED and mean < MIN_NATURAL_TOKENS:
        likely = "" if claim.stop is Stop.NATURAL else "short natural stops likely: "
        yield Finding(
            Kind.CAUTION,
            "short stops",
            f"{likely}about {tokens(mean)} tokens a request measure how long these answers are; not a decode figure",
            "Quote it as this workload's throughput only. For decoding, force the length on the same prompts "
            f"(ignore_eos, min_tokens = max_tokens, at least {MIN_NATURAL_TOKENS}).",
            gate=2,
        )
    cut = (
        claim.max_tokens is not None and claim.shortest_output_tokens == claim.longest_output_tokens == claim.max_tokens
    )
    if claim.stop is Stop.NATURAL and cut and (rebuilt.num_requests or 0) > 1:
        yield Finding(
            Kind.CAUTION,
            "cut at max_tokens",
            f"said to stop by themselves, yet every output has exactly max_tokens = {claim.max_tokens} tokens",
            "Call it a length limit, or raise max_tokens until texts end by themselves.",
            gate=10,
        )
    if claim.stop is Stop.FORCED and claim.max_tokens and abs(mean / claim.max_tokens - 1) > 0.001:
        yield Finding(
            Kind.IMPOSSIBLE,
            "output length",
            f"forced to {claim.max_tokens} tokens, but {figure(mean)} a request came out",
            "Check ignore_eos and the context limit; a forced run has one length.",
            gate=10,
        )
    if claim.max_tokens and mean > claim.max_tokens * 1.001:
        yield Finding(
            Kind.IMPOSSIBLE,
            "output length",
            f"{tokens(mean)} tokens a request are more than max_tokens = {claim.max_tokens}",
            "Count output tokens by the server's usage, of one choice per request.",
            gate=12,
        )


def reading(claim: Claim, rebuilt: Rebuilt) -> Iterator[Finding]:
    """Which part of the wall was spent before anything was written."""
    if rebuilt.reading_s is None or rebuilt.wall_s is None or rebuilt.prefill_share is None:
        return
    by_speed = rebuilt.reading_from == PREFILL
    part, whole = rebuilt.prefill_share, seconds(rebuilt.wall_s)
    if by_speed and claim.prompt_tokens and claim.prefill_speed_tok_s:
        prompts = f"{rebuilt.num_requests} × {figure(claim.prompt_tokens)} prompt tokens"
        made = f"{prompts} / {speed(claim.prefill_speed_tok_s)} = {rebuilt.reading_s:.2f} s"
        yield Finding(Kind.REBUILT, "prefill share", f"{made} of {whole}: {share(part)} of the wall was reading")
    else:
        made = f"{seconds(rebuilt.reading_s)} of {whole} passed before the first token"
        yield Finding(Kind.REBUILT, "prefill share", f"{made}: {share(part)} of the wall was reading or waiting")
    if part > 1 + AGREEMENT:
        yield Finding(
            Kind.IMPOSSIBLE,
            "prefill share",
            f"reading alone ({seconds(rebuilt.reading_s)}) takes longer than the whole wall ({whole})",
            "Some prompt tokens were not read (prefix cache), or the prefill speed is another shape's: measure it with "
            "as many prompts of this length at once, cache off.",
            gate=12 if by_speed else None,
        )
    elif part > MAX_PREFILL_SHARE:
        yield Finding(
            Kind.CAUTION,
            "prefill share",
            f"{share(part)} of the wall was {'reading' if by_speed else 'reading or waiting'}: this is not only decode",
            "Give prompt length and prefill share beside the number; for decoding use short prompts and long outputs.",
            gate=3,
        )


def predicted(claim: Claim, rebuilt: Rebuilt) -> Iterator[Finding]:
    """The additive wall beside the measured one: an upper bound on the wall, so a lower bound on throughput."""
    model, measured, error = rebuilt.predicted_wall_s, rebuilt.wall_s, rebuilt.prediction_error
    if model is None or measured is None or error is None:
        return
    against = f"reading, then writing: {seconds(model)} predicted, {seconds(measured)} measured"
    bound = "an upper bound, since later prompts may be read while earlier requests write"
    rate = f"predicted {speed(rebuilt.predicted_throughput_tok_s or 0.0)}, {change(error)}"
    yield Finding(Kind.REBUILT, "wall", f"{against} ({rate}); {bound}")
    if error > AGREEMENT:
        yield Finding(
            Kind.CAUTION,
            "time missing",
            f"{seconds(measured - model)} of the wall is neither reading nor writing as stated: "
            + _where_it_went(claim, rebuilt),
            "Give this run's own TTFT and decode speed (not another run's), the queueing time and the longest output.",
        )
    elif error < -AGREEMENT and rebuilt.num_streams == 1:
        yield Finding(
            Kind.CAUTION,
            "parts exceed the wall",
            f"{seconds(model)} of reading and writing in {seconds(measured)}, with no second request to overlap",
            "Take prefill, decode speed and wall from the same requests, all as means or all as medians.",
            gate=12,
        )
    elif error < -AGREEMENT:
        yield Finding(
            Kind.CAUTION,
            "additive wall",
            f"{seconds(model)} predicted against {seconds(measured)}: the additive model is an upper bound; "
            "decoding overlapped other requests' prefill",
            "Do not use the sum as an estimate of the wall here; give measured queue, prefill and decode shares.",
        )


def _where_it_went(claim: Claim, rebuilt: Rebuilt) -> str:
    """What the TTFT would have to be for the wall of a single wave of requests to add up."""
    model, measured = rebuilt.predicted_wall_s, rebuilt.wall_s
    if rebuilt.reading_from != TTFT or claim.ttft_s is None or model is None or measured is None:
        return "queueing, or streams that ended early"
    if (rebuilt.num_requests or 0) > (rebuilt.num_streams or 0):
        return "waiting, or streams with nothing left to write while the last ones went on"
    implied = seconds(measured - model + claim.ttft_s)
    return f"a TTFT of {implied} would account for it, {seconds(claim.ttft_s)} is stated"


def offered_load(claim: Claim, rebuilt: Rebuilt) -> Iterator[Finding]:
    """At a finite arrival rate a machine that keeps up writes what it is asked for, and no more [seed 004]."""
    mean, made = rebuilt.mean_output_tokens, rebuilt.throughput_tok_s
    if claim.request_rate is None or mean is None or made is None:
        return
    offered = claim.request_rate * mean
    if made > (1 - NOT_SATURATED) * offered:
        yield Finding(
            Kind.CAUTION,
            "offered load",
            f"{figure(claim.request_rate)} requests/s × {tokens(mean)} tokens ask for {speed(offered)}; {speed(made)} "
            "came: the load set this number, not the machine",
            "Quote it with its latencies, or raise the rate until throughput stops following it.",
        )


def streams(claim: Claim, rebuilt: Rebuilt) -> Iterator[Finding]:
    """How many requests were really writing."""
    n = rebuilt.num_streams
    if claim.concurrency and n and n < claim.concurrency:
        why = f"the server admits {claim.cap}" if claim.cap == n else f"there were only {n} requests"
        yield Finding(
            Kind.CAUTION,
            "concurrency",
            f"{claim.concurrency} requests at once, but {why}: the rest waited",
            f"Call it N = {n}, and print the queueing time.",
            gate=1,
        )
    writing, made, each = rebuilt.effective_concurrency, rebuilt.throughput_tok_s, rebuilt.decode_speed_tok_s
    if writing is None or made is None or each is None:
        return
    beside = f" of {n}" if n else ""
    yield Finding(
        Kind.REBUILT,
        "effective concurrency",
        f"{speed(made)} / {speed(each)} a stream: {writing:.1f}{beside} streams wrote",
    )
    if n and writing > STREAM_MARGIN * n:
        yield Finding(
            Kind.IMPOSSIBLE,
            "effective concurrency",
            f"{speed(made)} is above N / TPOT = {speed(n * each)}: {n} streams at {speed(each)} cannot write it",
            "Check the clock, the token counts, and that both figures are of the same run.",
            gate=12,
        )
    elif n and writing < BUSY_STREAMS * n:
        yield Finding(
            Kind.CAUTION,
            "effective concurrency",
            f"on average only {writing:.1f} of {n} streams were writing; the rest queued, read or had ended",
            "Print it beside N.",
            gate=1,
        )


def rate_sum(claim: Claim, rebuilt: Rebuilt) -> Iterator[Finding]:
    """Self-reported rates added up are not an aggregate."""
    if claim.aggregation is Aggregation.SUM_OF_RATES:
        yield Finding(
            Kind.CAUTION,
            "sum of rates",
            "the aggregate is the sum of per-request speeds, which leaves out every request's waiting",
            "Write total output tokens / wall.",
            gate=4,
        )
    total, made, inflation = claim.sum_of_rates_tok_s, rebuilt.throughput_tok_s, rebuilt.rate_inflation
    if total is None or made is None or inflation is None:
        return
    evidence = f"per-request speeds add up to {speed(total)}, output / wall is {speed(made)}: {times(inflation)}"
    yield Finding(Kind.REBUILT, "rate inflation", evidence)
    if inflation > MAX_RATE_INFLATION:
        instead = f"Write {speed(made)}. Time in a queue is in no request's own speed, but it is in the wall."
        yield Finding(Kind.CAUTION, "rate inflation", evidence, instead, gate=4)
    elif inflation * STREAM_MARGIN < 1:
        yield Finding(
            Kind.IMPOSSIBLE,
            "rate inflation",
            f"{evidence}; streams cannot write more than their own speeds add up to",
            "Check that both are of the same run and count the same tokens.",
            gate=12,
        )


def cache(claim: Claim, rebuilt: Rebuilt) -> Iterator[Finding]:
    """Prompt tokens that came from a cache were not read."""
    if claim.cached_tokens is None or claim.prompt_tokens is None or not rebuilt.num_requests:
        return
    part = claim.cached_tokens / (claim.prompt_tokens * rebuilt.num_requests)
    if part > 1 + AGREEMENT:
        evidence = f"{figure(claim.cached_tokens)} cached tokens are {times(part)} the prompt tokens"
        yield Finding(Kind.IMPOSSIBLE, "prefix cache", evidence, "Count both over the same requests.", gate=12)
    elif part > MAX_CACHED_SHARE:
        evidence = f"{share(part)} of the prompt tokens came from the prefix cache"
        yield Finding(
            Kind.CAUTION, "prefix cache", evidence, "Print the hit rate, or measure with the cache off.", gate=5
        )


def content(claim: Claim) -> Iterator[Finding]:
    """Random or filler prompts make acceptance meaningless."""
    told = (claim.content or "").lower()
    if any(word in told for word in FILLER_WORDS):
        yield Finding(
            Kind.CAUTION,
            "filler prompts",
            f"the content is '{claim.content}': acceptance, expert routing and stops on it are nobody's workload",
            "Use natural prompts of a named kind.",
            gate=14,
        )


def failures(claim: Claim, rebuilt: Rebuilt) -> Iterator[Finding]:
    """Failed requests cost time and wrote nothing."""
    if claim.num_failed:
        total = claim.num_failed + (rebuilt.num_requests or 0)
        evidence = f"{claim.num_failed} of {total} requests failed"
        yield Finding(Kind.CAUTION, "failed requests", evidence, "Mend that and measure again.", gate=10)


def repeats(claim: Claim) -> Iterator[Finding]:
    """A single run has no interval."""
    if claim.repeats == 1 and claim.noise is None:
        evidence = "measured once: nothing says how far a second run would be"
        yield Finding(
            Kind.CAUTION, "repeats", evidence, "Repeat it over at least 4 engine launches and give the interval."
        )


def notes(claim: Claim) -> Iterator[Finding]:
    """What the reader of a tool's export has to know about the tool."""
    for note in claim.notes:
        yield Finding(Kind.CAUTION, claim.tool or "note", note.evidence, note.instead)
