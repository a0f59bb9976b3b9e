"""The wall audit, METHOD 3 [seed 000, chapter 2]: what a cell's wall time was spent on.

    wall ≈ all prompt tokens / prefill speed + output tokens per stream / decode speed

An upper bound where later prefills overlap earlier decodes.
"""

from __future__ import annotations


def prefill_time(prompt_tokens: float, prefill_speed: float) -> float:
    """Seconds to read `prompt_tokens` tokens (all requests together) at `prefill_speed` tokens/s."""
    return prompt_tokens / prefill_speed


def predicted_wall(prefill_s: float, output_tokens_per_stream: float, decode_speed: float) -> float:
    """Seconds: the reading, then the longest stream's writing at `decode_speed` tokens/s."""
    return prefill_s + output_tokens_per_stream / decode_speed


def throughput(output_tokens: float, wall_s: float) -> float:
    """Aggregate throughput X, tok/s: all output tokens over the wall. The only aggregate."""
    return output_tokens / wall_s


def prefill_share(prefill_s: float, wall_s: float) -> float:
    """Share of the wall that was reading; over 0.30 the figure is not only about decoding."""
    return prefill_s / wall_s


def rate_inflation(sum_of_rates: float, aggregate: float) -> float:
    """How many times the sum of self-reported decode speeds exceeds the aggregate it is mistaken for."""
    return sum_of_rates / aggregate


def effective_concurrency(aggregate: float, tpot_s: float) -> float:
    """N_eff = X · TPOT: how many streams were really writing."""
    return aggregate * tpot_s
