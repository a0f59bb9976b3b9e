"""How long one pass computes, in the seconds of an unhurried machine: the truth that every measurement looks for."""

from __future__ import annotations

from collections.abc import Sequence

from specprof.engine.sim.machine import Hardware, Prefill
from specprof.engine.sim.state import EngineRequest
from specprof.engine.sim.writer import Writer


def reading_s(prefill: Prefill, num_prompts: int, num_tokens: int) -> float:
    """Seconds to read `num_tokens` tokens of `num_prompts` prompts in one pass."""
    return prefill.fixed_s + prefill.per_prompt_s * num_prompts + num_tokens / prefill.speed_tok_s


def decoding_s(hardware: Hardware, writer: Writer, decoding: Sequence[EngineRequest]) -> tuple[float, float]:
    """Seconds of the model, over all its stages, and of the drafter, for one step of these sequences."""
    if not decoding:
        return 0.0, 0.0
    num_drafted = num_context = 0
    factor = 0.0
    for sequence in decoding:
        num_drafted += sequence.script.step_drafted[sequence.next_step]
        num_context += sequence.context_tokens
        factor += sequence.content_factor
    num_sequences = len(decoding)
    model_s = (
        hardware.fixed_s
        + hardware.per_sequence_s * num_sequences
        + hardware.per_token_s * (num_sequences + num_drafted)
        + hardware.per_context_token_s * num_context
    ) * (factor / num_sequences)
    return model_s, _drafting_s(writer, num_drafted) if num_drafted else 0.0


def _drafting_s(writer: Writer, num_drafted: int) -> float:
    drafter = writer.drafter
    return (
        drafter.fixed_s
        + drafter.per_draft_token_s * writer.num_draft_tokens
        + drafter.per_sequence_draft_token_s * num_drafted
    )
