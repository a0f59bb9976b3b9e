"""Rebuilding a published number from its own parts, METHOD 3 [seed 000, chapter 2], by `analyse.wall`'s formulas."""

from __future__ import annotations

from specprof.analyse import wall
from specprof.analyse.acceptance import acceptance_length, acceptance_rate
from specprof.analyse.audit.claim import Claim, SpeculationClaim
from specprof.analyse.audit.findings import Rebuilt

PREFILL = "prefill speed"
TTFT = "TTFT"


def rebuild(claim: Claim) -> Rebuilt:
    """Everything that follows from what the claim states."""
    requests, streams = num_requests(claim), num_streams(claim)
    output = output_tokens(claim)
    wall_s = claim.wall_s or _over(output, claim.throughput_tok_s)
    throughput = wall.throughput(output, wall_s) if output and wall_s else claim.throughput_tok_s
    decode_speed = claim.decode_speed_tok_s or (1 / claim.tpot_s if claim.tpot_s else None)
    reading_s, reading_from = _reading(claim)
    per_stream = _longest_stream(claim)
    predicted = None
    if reading_s is not None and per_stream and decode_speed:
        predicted = wall.predicted_wall(reading_s, per_stream, decode_speed)
    predicted_throughput = wall.throughput(output, predicted) if output and predicted else None
    sum_of_rates = claim.sum_of_rates_tok_s
    return Rebuilt(
        num_streams=streams,
        num_requests=requests,
        output_tokens=output,
        mean_output_tokens=claim.output_tokens_per_request or _over(output, requests),
        wall_s=wall_s,
        throughput_tok_s=throughput,
        decode_speed_tok_s=decode_speed,
        reading_s=reading_s,
        reading_from=reading_from,
        prefill_share=wall.prefill_share(reading_s, wall_s) if reading_s is not None and wall_s else None,
        writing_s=wall_s - reading_s if reading_s is not None and wall_s and wall_s > reading_s else None,
        predicted_wall_s=predicted,
        predicted_throughput_tok_s=predicted_throughput,
        prediction_error=predicted_throughput / throughput - 1 if predicted_throughput and throughput else None,
        effective_concurrency=_effective_concurrency(throughput, decode_speed),
        rate_inflation=wall.rate_inflation(sum_of_rates, throughput) if sum_of_rates and throughput else None,
        acceptance_length=told_acceptance_length(claim.speculation),
        acceptance_rate=told_acceptance_rate(claim.speculation),
    )


def num_requests(claim: Claim) -> int | None:
    """Requests behind the number: as stated, else one per stream of the concurrency."""
    return claim.num_requests or claim.concurrency


def num_streams(claim: Claim) -> int | None:
    """Requests in flight at once: the concurrency, less what the cap or the number of requests takes from it."""
    limits = [n for n in (claim.concurrency, claim.cap, claim.num_requests) if n is not None]
    return min(limits) if claim.concurrency is not None else None


def output_tokens(claim: Claim) -> float | None:
    """Output tokens of all requests together: stated, from the mean, or from throughput · wall."""
    if claim.output_tokens is not None:
        return claim.output_tokens
    requests = num_requests(claim)
    if claim.output_tokens_per_request is not None and requests is not None:
        return claim.output_tokens_per_request * requests
    if claim.throughput_tok_s is not None and claim.wall_s is not None:
        return claim.throughput_tok_s * claim.wall_s
    return None


def told_acceptance_length(said: SpeculationClaim | None) -> float | None:
    """AL from raw counts where they are given, else as printed."""
    if said is None:
        return None
    if said.num_steps and said.num_accepted is not None:
        return acceptance_length(said.num_accepted, said.num_steps)
    return said.acceptance_length


def told_acceptance_rate(said: SpeculationClaim | None) -> float | None:
    """AR from raw counts where they are given, else as printed."""
    if said is None:
        return None
    if said.num_drafted and said.num_accepted is not None:
        return acceptance_rate(said.num_accepted, said.num_drafted)
    return said.acceptance_rate


def _over(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


def _reading(claim: Claim) -> tuple[float | None, str]:
    """Seconds of the wall before writing: all prompts at the prefill speed, else one TTFT per wave of requests."""
    requests, streams = num_requests(claim), num_streams(claim)
    if claim.prefill_speed_tok_s and claim.prompt_tokens and requests:
        return wall.prefill_time(requests * claim.prompt_tokens, claim.prefill_speed_tok_s), PREFILL
    if claim.ttft_s is not None and requests and streams:
        return claim.ttft_s * max(requests / streams, 1.0), TTFT
    return None, ""


def _longest_stream(claim: Claim) -> float | None:
    """Output tokens of the stream that writes longest: the longest answer, or an even share of reused streams."""
    requests, streams, output = num_requests(claim), num_streams(claim), output_tokens(claim)
    if not requests or not streams or not output:
        return None
    one_wave = requests <= streams
    return claim.longest_output_tokens if one_wave and claim.longest_output_tokens else output / streams


def _effective_concurrency(throughput: float | None, decode_speed: float | None) -> float | None:
    if throughput is None or decode_speed is None:
        return None
    return wall.effective_concurrency(throughput, 1 / decode_speed)
