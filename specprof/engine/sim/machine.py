"""What a simulated machine is made of: the known truth, frozen.

Every number here is a fact a test may hold the rest of specprof to. Times are seconds of the machine's own clock,
lengths are tokens, shares lie in 0..1. Nothing in this file computes: what the parts do together is `physics.World`,
what a single request writes is `writer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from specprof.engine.sim.chance import MAX_WIDTH
from specprof.errors import InputError, shortened

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Hardware:
    """How long one forward pass takes.

    A pass over `b` sequences with `n` tokens between them (drafts included) and `c` tokens of context costs `fixed_s
    + per_sequence_s * b + per_token_s * n + per_context_token_s * c`, spread over the pipeline stages by
    `stage_shares`. Each stage but the first waits for its input, so one pass also costs one hand-over per stage; a
    single-stage machine hands nothing over.
    """

    fixed_s: float
    per_sequence_s: float
    per_token_s: float = 0.0
    per_context_token_s: float = 0.0
    stage_shares: tuple[float, ...] = (1.0,)
    handover_s: float = 0.0

    def __post_init__(self) -> None:
        if abs(sum(self.stage_shares) - 1.0) > 1e-9:
            raise ValueError(f"stage_shares must sum to 1, not {sum(self.stage_shares)}: {self.stage_shares}")

    @property
    def num_stages(self) -> int:
        """P: how many pipeline stages a pass travels through."""
        return len(self.stage_shares)


@dataclass(frozen=True, slots=True)
class Prefill:
    """How fast prompts are read: `tokens / speed_tok_s`, plus a fixed cost per pass and per prompt.

    A prefill keeps every pipeline stage busy (its chunks fill the pipe by themselves), so the speed holds for one
    long prompt and for many short ones alike.
    """

    speed_tok_s: float
    fixed_s: float = 0.0
    per_prompt_s: float = 0.0
    chunked: bool = False
    budget_tokens: int = 8192  # most prompt tokens of one pass; a whole (unchunked) prompt may exceed it, alone


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Who is let in: FIFO, at most `max_num_seqs` at once. `gather_s` is how long an idle engine takes to notice."""

    max_num_seqs: int = 256
    gather_s: float = 0.001
    prefix_caching: bool = False
    cache_block_tokens: int = 16
    max_model_len: int = 262_144
    kv_capacity_tokens: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Drafter:
    """What drafting costs (on the last stage) and how good this drafter is beside the contents' own curves."""

    fixed_s: float = 0.0
    per_draft_token_s: float = 0.0
    per_sequence_draft_token_s: float = 0.0
    acceptance_shift: float = 0.0  # added to the log-odds of every acceptance
    needs_match: bool = False  # n-gram: a step without a match carries no draft at all (see Content.match_share)


@dataclass(frozen=True, slots=True)
class Content:
    """What prompts of one tag make the machine write, and how easily that is guessed.

    `conditional_acceptance[j]` is the chance that draft position j+1 is accepted given that all before it were; the
    last entry holds for every later position. A prompt shifts all its log-odds by a normal draw of `prompt_spread`,
    and writing on shifts them by `drift_per_100_tokens`.
    """

    conditional_acceptance: tuple[float, ...]
    prompt_spread: float = 0.0
    drift_per_100_tokens: float = 0.0
    match_share: float = 1.0
    eos_mean_tokens: float = 200.0
    eos_sigma: float = 0.3  # of the log of the length
    chars_per_token: float = 4.0
    step_time_factor: float = 1.0  # > 1: this content is slower to compute, whatever the drafter does
    loop_share: float = 0.0  # prompts whose text repeats itself when it is forced past its natural end
    loop_period_tokens: int = 12
    loop_acceptance_factor: float = 1.0  # acceptance inside the loop: up for n-gram drafts, down for EAGLE-like ones

    def acceptance_at(self, num_positions: int) -> tuple[float, ...]:
        """The conditional curve of the first `num_positions` draft positions."""
        curve = self.conditional_acceptance
        return tuple(curve[min(j, len(curve) - 1)] for j in range(num_positions))


@dataclass(frozen=True, slots=True)
class Noise:
    """What does not repeat: per launch, per step, and over the life of a launch."""

    launch_sigma: float = 0.0  # of the log of every step time of one launch
    step_sigma: float = 0.0  # of the log of a single step time
    drift_per_minute: float = 0.0  # share by which steps grow (or shrink) each minute
    warmup_extra: float = 0.0  # share by which the very first step is slower
    warmup_tau_s: float = 2.0  # how fast that wears off


@dataclass(frozen=True, slots=True)
class ForeignTraffic:
    """Somebody else's requests on the same server: Poisson arrivals; our client never sees them, the counters do."""

    rate_per_s: float
    content: str
    prompt_tokens: int = 100
    output_tokens: int = 50


@dataclass(frozen=True, slots=True)
class Faults:
    """What can be wrong with a measurement, each off unless asked for."""

    foreign: ForeignTraffic | None = None
    merged_chunk_share: float = 0.0  # steps whose tokens reach the client together with the next step's
    overshoot_past_eos: bool = False  # drafts accepted after the end of the text are still counted
    phantom_drafts: int = 0  # extra 0-of-K verification steps counted per request
    preemption_share: float = 0.0  # passes that throw one of their sequences out, to be read again
    speculation_inactive: bool = False  # the arm says "on", no step ever drafts
    corrupt_greedy_share: float = 0.0  # prompts whose T = 0 text changes under speculation
    corrupt_sampled_share: float = 0.0  # T > 0 tokens under speculation that the target would never write
    short_length_share: float = 0.0  # requests that end with `length` at 60% of what was asked
    speculative_length_factor: float = 1.0  # natural texts come out longer or shorter under speculation
    stall_share: float = 0.0  # requests that go silent half-way and never end
    freeze_at_s: float | None = None  # this long after its launch the engine starts no step, for `freeze_s`
    freeze_s: float = 0.0
    death_at_s: float | None = None  # the engine dies this long after its launch
    death_is_silent: bool = False  # ... and the front end keeps its sockets open, as vLLM does
    client_late_s: float = 0.0  # how long the virtual client sits on a request that is due
    client_cpu_share: float = 0.03  # what the virtual client reports about itself
    client_loop_lag_p99_s: float = 0.0004


@dataclass(frozen=True, slots=True)
class Machine:
    """A whole machine. `seed` names the world: another seed is another set of texts, prompts' luck and noise."""

    name: str
    hardware: Hardware
    prefill: Prefill
    contents: Mapping[str, Content]
    scheduler: Scheduler = field(default_factory=Scheduler)
    drafters: Mapping[str, Drafter] = field(default_factory=lambda: {"*": Drafter()})  # by method; "*" is any other
    noise: Noise = field(default_factory=Noise)
    faults: Faults = field(default_factory=Faults)
    latency_s: float = 0.0002  # one way between client and server, on the virtual clock only
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "contents", _frozen(self.contents))
        object.__setattr__(self, "drafters", _frozen(self.drafters))

    def __reduce__(self) -> tuple[object, ...]:
        """Mapping proxies do not pickle, and a machine has to reach the server's process."""
        state = {name: getattr(self, name) for name in self.__dataclass_fields__}
        state["contents"], state["drafters"] = dict(self.contents), dict(self.drafters)
        return (_machine_from, (state,))

    def content_of(self, tag: str) -> str:
        """The tag of this machine that `tag` behaves as: itself, its short form, its language's prose, or the first."""
        candidates = (tag, *_STAND_INS.get(tag, ()))
        return next((known for known in candidates if known in self.contents), next(iter(self.contents)))


@dataclass(frozen=True, slots=True)
class Speculation:
    """One arm's speculation: the method's name and K, the draft tokens of each step."""

    method: str
    num_tokens: int

    @classmethod
    def from_config(cls, config: Mapping[str, object] | None) -> Speculation | None:
        """Read a vLLM `speculative_config`; none, or a K of 0, is off. InputError for a K it cannot draft, or no K."""
        if not config or config.get("num_speculative_tokens") == 0:
            return None
        if "num_speculative_tokens" not in config:
            raise InputError(
                f"speculative_config {shortened(repr(dict(config)))}: has no num_speculative_tokens, and the simulated "
                "engine knows no draft that brings its own. Write how many tokens a step drafts."
            )
        length = config["num_speculative_tokens"]
        if type(length) is not int or not 0 < length <= MAX_WIDTH:
            raise InputError(
                f"num_speculative_tokens {shortened(repr(length))}: the simulated engine drafts 1 to {MAX_WIDTH} "
                "tokens a step. Write a whole number of them, such as 4."
            )
        return cls(str(config.get("method", "*")), length)


_STAND_INS: Mapping[str, tuple[str, ...]] = {
    "zh-qa": ("zh-prose", "long-zh"),
    "long-zh": ("zh-prose", "zh-qa"),
    "zh-prose": ("zh-qa", "long-zh"),
    "long-code": ("code",),
    "code": ("long-code",),
    "json": ("code",),
    "en-prose": ("zh-prose",),
}


def _frozen(mapping: Mapping[str, _Value]) -> Mapping[str, _Value]:
    return MappingProxyType(dict(mapping))


def _machine_from(state: Mapping[str, object]) -> Machine:
    return Machine(**state)  # type: ignore[arg-type]
