"""What the model keeps: the requests inside the engine, what it counts, and what leaves it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from specprof.engine.sim.writer import Ask, Script


class Delta(NamedTuple):
    """Tokens of one request that leave the engine at one instant."""

    request: int
    num_tokens: int
    finished: bool


@dataclass(slots=True, eq=False)
class EngineRequest:
    """One request inside the engine. Its times are None until they happen; a driver reads them at the end."""

    number: int
    ask: Ask
    script: Script
    content_factor: float
    queued_s: float
    foreign: bool
    blocks: tuple[int, ...]
    unread_tokens: int = 0  # prompt still to be prefilled
    cached_tokens: int = 0
    context_tokens: int = 0
    num_delivered: int = 0
    num_held: int = 0  # tokens computed but not yet sent: the merged-chunk fault
    next_step: int = -1  # -1: the prefill's own token is still to come
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None

    @property
    def finished(self) -> bool:
        """Every token of the script is computed."""
        return self.next_step == len(self.script.step_tokens)


@dataclass(slots=True)
class Totals:
    """Running totals since the launch, as `/metrics` counts them."""

    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0
    num_prompts_read: int = 0
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    accepted_histogram: list[int] = field(default_factory=list)  # [j]: steps that accepted exactly j drafts
    num_engine_steps: int = 0
    num_step_tokens: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})
    queue_s: float = 0.0
    time_to_first_token_s: float = 0.0
    decode_s: float = 0.0

    @property
    def num_accepted_tokens_per_pos(self) -> tuple[int, ...]:
        """[j]: steps that accepted at least j+1 drafts."""
        return tuple(sum(self.accepted_histogram[j:]) for j in range(1, len(self.accepted_histogram)))
