"""What the server says, in vLLM 0.32's words: field names, positions and absences copied from its response models.

Streams leave unset fields out; the last chunk of a stream carries usage and per-request metrics and no choices. Times
are what a client's clock shows: the engine's own seconds divided by the time scale.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from specprof.engine.sim.physics import World
from specprof.engine.sim.state import EngineRequest
from specprof.engine.sim.text import Tokenizer, likelihoods

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Head:
    """What every reply to one request repeats."""

    id: str
    created: int
    model: str
    chat: bool
    with_token_ids: bool

    def envelope(self, *, streamed: bool) -> Json:
        """The outer fields of a reply."""
        kind = "text_completion"
        if self.chat:
            kind = "chat.completion.chunk" if streamed else "chat.completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def event(payload: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def role_chunk(head: Head, prompt_ids: list[int]) -> Json:
    """The first chunk of a chat stream: the role, and no token yet."""
    chunk = head.envelope(streamed=True)
    chunk["choices"] = [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    if head.with_token_ids:
        chunk["prompt_token_ids"] = prompt_ids
    return chunk


def token_chunk(head: Head, text: str, ids: list[int], finish_reason: str | None, prompt_ids: list[int] | None) -> Json:
    """All tokens of one engine step. `prompt_ids` rides on the first chunk of a completion."""
    choice: Json = {"index": 0, "delta": {"content": text}} if head.chat else {"index": 0, "text": text}
    choice |= {"logprobs": None, "finish_reason": finish_reason}
    if not head.chat or finish_reason is not None:
        choice["stop_reason"] = None
    if not head.chat:
        choice["prompt_token_ids"] = prompt_ids if head.with_token_ids else None
    choice["token_ids"] = ids if head.with_token_ids else None
    return head.envelope(streamed=True) | {"choices": [choice]}


def usage_chunk(head: Head, sequence: EngineRequest, world: World, time_scale: float) -> Json:
    """The last chunk: no choices, the counts, and the engine's own account of the request."""
    return head.envelope(streamed=True) | {
        "choices": [],
        "usage": usage(sequence),
        "metrics": metrics(sequence, world, time_scale),
    }


def whole(
    head: Head,
    sequence: EngineRequest,
    world: World,
    time_scale: float,
    prompt_ids: list[int],
    prompt_logprobs: list[Json | None] | None,
) -> Json:
    """The reply to a request that is not streamed."""
    script = sequence.script
    text = world.writer.tokenizer.decode(script.token_ids)
    choice: Json = {"index": 0}
    choice |= {"message": {"role": "assistant", "content": text}} if head.chat else {"text": text}
    choice |= {"logprobs": None, "finish_reason": script.finish_reason, "stop_reason": None}
    choice["token_ids"] = script.token_ids if head.with_token_ids else None
    reply = head.envelope(streamed=False) | {"choices": [choice]}
    # Completions hang prompt data on the choice, chats on the reply.
    holder = reply if head.chat else choice
    holder["prompt_logprobs"] = prompt_logprobs
    holder["prompt_token_ids"] = prompt_ids if head.with_token_ids else None
    return reply | {"usage": usage(sequence), "metrics": metrics(sequence, world, time_scale)}


def usage(sequence: EngineRequest) -> Json:
    """Token counts; cached prompt tokens as with `--enable-prompt-tokens-details`."""
    num_prompt, num_output = sequence.ask.prompt_tokens, len(sequence.script.token_ids)
    return {
        "prompt_tokens": num_prompt,
        "total_tokens": num_prompt + num_output,
        "completion_tokens": num_output,
        "prompt_tokens_details": {"cached_tokens": sequence.cached_tokens},
    }


def metrics(sequence: EngineRequest, world: World, time_scale: float) -> Json:
    """Per-request metrics, as with `--enable-per-request-metrics --per-request-spec-decode-metrics detailed`."""
    queued_s, num_output = sequence.queued_s, len(sequence.script.token_ids)
    scheduled_s, first_s, last_s = sequence.scheduled_s, sequence.first_token_s, sequence.last_token_s
    if scheduled_s is None or first_s is None or last_s is None:
        return {}
    to_ms = 1000.0 / time_scale
    told: Json = {
        "time_to_first_token_ms": (first_s - scheduled_s) * to_ms,
        "generation_time_ms": (last_s - first_s) * to_ms,
        "queue_time_ms": (scheduled_s - queued_s) * to_ms,
    }
    if num_output > 1:
        told["mean_itl_ms"] = (last_s - first_s) / (num_output - 1) * to_ms
    if last_s > scheduled_s:
        told["tokens_per_second"] = num_output / (last_s - scheduled_s) * time_scale
    if world.writer.speculation is not None:
        told["speculative_decoding"] = _speculative_decoding(sequence, world, world.writer.speculation.num_tokens)
    return told


def _speculative_decoding(sequence: EngineRequest, world: World, num_spec_tokens: int) -> Json:
    drafted, accepted = world.verification(sequence)
    histogram = [0] * (num_spec_tokens + 1)
    for num_accepted in accepted:
        histogram[num_accepted] += 1
    num_steps, num_drafted, num_accepted = len(drafted), sum(drafted), sum(accepted)
    told: Json = {
        "mean_acceptance_length": 1.0 + num_accepted / num_steps if num_steps else 1.0,
        "draft_acceptance_rate": num_accepted / num_drafted if num_drafted else 0.0,
        "acceptance_histogram": histogram,
        "num_spec_steps": num_steps,
        "num_accepted_draft_tokens": num_accepted,
        "num_draft_tokens": num_drafted,
        "num_spec_tokens": num_spec_tokens,
    }
    if num_steps:
        told |= {"per_step_accepted": accepted, "per_step_drafted": drafted}
    return told


def prompt_logprobs(ids: list[int], tokenizer: Tokenizer, num_top: int = 0) -> list[Json | None]:
    """How likely the target finds each prompt token: the token itself, and the `num_top` most likely ones."""
    told: list[Json | None] = [None]
    for token_id, found in zip(ids[1:], likelihoods(ids, num_top), strict=True):
        listed = {token_id: (found.logprob, found.rank)}
        listed |= {rival: (logprob, rank) for rank, (rival, logprob) in enumerate(found.top, start=1)}
        told.append({str(name): _logprob(name, *line, tokenizer) for name, line in listed.items()})
    return told


def _logprob(token_id: int, logprob: float, rank: int, tokenizer: Tokenizer) -> Json:
    return {"logprob": logprob, "rank": rank, "decoded_token": tokenizer.decode([token_id])}


def tokenized(ids: list[int], max_model_len: int) -> Json:
    """What `/tokenize` answers."""
    return {"count": len(ids), "max_model_len": max_model_len, "tokens": ids, "token_strs": None}


def error(message: str, kind: str, code: int, param: str | None = None) -> Json:
    """vLLM's error body."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
