"""The vocabulary: what one measurement is.

Everything here is a fact as it was seen, frozen. Whatever can be derived (TTFT, TPOT, acceptance) is a function in
`analyse`, never a stored field. Instants are nanoseconds of one monotonic clock (`time.perf_counter_ns`), METHOD 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Stop(StrEnum):
    """Who ends a text: the length asked for, or the writer."""

    FORCED = "forced"
    NATURAL = "natural"


class Role(StrEnum):
    """What a cell is measured for."""

    FIGURE = "figure"  # a number somebody may publish
    PREFILL = "prefill"  # how fast prompts are read: output of one token
    SENTINEL = "sentinel"  # the same small cell before and after, to see the machine drift
    MIXED = "mixed"  # several contents in one batch: what each does to the others, never a figure of a content


class Phase(StrEnum):
    """Which part of a cell a request belongs to. All are kept and marked; figures are made of measured ones alone."""

    WARMUP = "warmup"
    MEASURED = "measured"
    FILL = "fill"  # a prompt sent again to keep a mixed batch mixed while another content's are still measured


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Always sent explicitly: a server's defaults come from the model and hide in no result."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a suite. `text` is for completion, `messages` for chat; `schema` constrains the output if used."""

    id: str
    tag: str
    lang: str
    text: str
    messages: tuple[Mapping[str, str], ...] = ()
    schema: Mapping[str, Any] | None = None
    license: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing to measure: these prompts, this way, on this arm. Its `key` is the identity on disk (`study.plan`).

    A mixed cell holds several contents: `prompt_tags[i]` is the content of `prompt_ids[i]`, and `tag` all their names.
    """

    key: str
    role: Role
    block: int
    arm: str
    speculative_config: Mapping[str, Any] | None
    tag: str
    protocol: str
    stop: Stop
    max_tokens: int
    mask_eos: bool  # forced by min_tokens (end-of-sequence masked) rather than by ignore_eos alone
    concurrency: int
    prompt_ids: tuple[str, ...]
    num_warmup: int  # requests of `warmup_tokens` tokens sent before the measured ones
    warmup_tokens: int
    chat: bool
    guided: bool
    sampling: Sampling
    suite_hash: str
    engine_hash: str
    prompt_tags: tuple[str, ...] = ()  # empty: every prompt is of `tag`


@dataclass(frozen=True, slots=True)
class Launch:
    """One engine start and the cells measured on it, in order."""

    index: int
    block: int
    arm: str
    speculative_config: Mapping[str, Any] | None
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """What the engine itself says of one request, seconds; None where it does not say."""

    queue_s: float | None = None
    time_to_first_token_s: float | None = None  # from *scheduled*, so without the queue
    generation_s: float | None = None


@dataclass(frozen=True, slots=True)
class Speculation:
    """Verification steps of one request. A step counts only if it carried a draft."""

    num_steps: int
    num_drafted: int
    num_accepted: int
    accepted_per_step: tuple[int, ...] = ()
    drafted_per_step: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the client saw it.

    `chunk_ns[i]` is when chunk i arrived and `chunk_tokens[i] >= 1` how many output tokens it held (server token ids);
    `sum(chunk_tokens) == len(token_ids)`. `error` is None for a request that ended as asked.
    """

    prompt_id: str
    phase: Phase
    stream: int
    scheduled_ns: int
    sent_ns: int
    done_ns: int
    chunk_ns: tuple[int, ...]
    chunk_tokens: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    prompt_tokens: int
    cached_tokens: int | None
    finish_reason: str | None
    error: str | None = None
    server: ServerTimes | None = None
    speculation: Speculation | None = None


@dataclass(frozen=True, slots=True)
class Counters:
    """A reading of the server's `/metrics`: running totals, and gauges of the moment. None: not offered.

    The speculation counters are None with speculation off, which is how an inactive arm shows.
    """

    at_ns: int
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    num_preemptions: float | None = None
    prefix_cache_queries: float | None = None
    prefix_cache_hits: float | None = None
    num_drafts: float | None = None
    num_draft_tokens: float | None = None
    num_accepted_tokens: float | None = None
    num_accepted_tokens_per_pos: tuple[float, ...] | None = None
    num_engine_steps: float | None = None
    num_requests_finished: float | None = None
    num_requests_running: float | None = None
    num_requests_waiting: float | None = None
    kv_cache_usage: float | None = None


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """How busy the client itself was while it measured: the case for or against gate 11."""

    cpu_share: float  # CPU seconds of this process / wall
    loop_lag_p99_s: float  # how late the event loop woke from a timer


@dataclass(frozen=True, slots=True)
class CellRecord:
    """A measured cell: the plan's cell, the requests, the counters before and after, and the client's own load.

    `before` and `after` are read while the server is idle, after warm-up and after the last measured request;
    `gauges` while the cell runs (running and waiting requests). `launch` names the engine start it was measured on.
    """

    cell: Cell
    launch: int
    requests: tuple[Request, ...]
    before: Counters | None
    after: Counters | None
    gauges: tuple[Counters, ...]
    client: ClientLoad | None
    started_at: str  # wall-clock time, ISO 8601 UTC: for people, never for arithmetic


@dataclass(frozen=True, slots=True)
class TextScores:
    """How likely the target itself, speculation off, finds one sampled text (gate 8).

    Log probabilities are those of the bare model: temperature 1, before top-p, top-k and penalties. `logprobs[i]` is
    output token i's, `ranks[i] >= 1` its place among all tokens, `top_logprobs[i]` those of the most likely tokens
    there, falling. `error` says why a text could not be scored; its lists are then empty.
    """

    prompt_id: str
    logprobs: tuple[float, ...] = ()
    ranks: tuple[int, ...] = ()
    top_logprobs: tuple[tuple[float, ...], ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What was really measured: engine, versions, command line, hardware. `extra` holds whatever else it told."""

    kind: str
    name: str
    version: str
    model: str
    model_hash: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    model_runner: str | None = None
    torch_version: str | None = None
    device: str = "cpu"
    pipeline_parallel_size: int = 1
    max_num_seqs: int | None = None
    start_s: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def is_sampled(cell: Cell) -> bool:
    """Whether a figure rests on sampled texts, which gate 8 has scored. A sentinel's text is nobody's figure."""
    return cell.role is Role.FIGURE and cell.sampling.temperature > 0


def lanes(cell: Cell) -> tuple[tuple[str, ...], ...]:
    """The prompt ids of each content of a mixed cell, in the order the contents first appear."""
    found: dict[str, list[str]] = {}
    for name, tag in zip(cell.prompt_ids, cell.prompt_tags, strict=True):
        found.setdefault(tag, []).append(name)
    return tuple(map(tuple, found.values()))


SUFFIX_DEPTH = 24  # vLLM's own `suffix_decoding_max_tree_depth`, which is suffix decoding's K where none is given


def draft_length(speculative_config: Mapping[str, Any] | None) -> int:
    """K: the most tokens a step may draft; 0 without speculation and where the flags leave it to the draft model."""
    flags = speculative_config or {}
    if flags.get("num_speculative_tokens") is None and flags.get("method") == "suffix":
        return int(flags.get("suffix_decoding_max_tree_depth", SUFFIX_DEPTH))
    return int(flags.get("num_speculative_tokens") or 0)


def arm_in_words(speculative_config: Mapping[str, Any] | None) -> str:
    """`off`, or the method and its draft length: `ngram K=4`."""
    if not speculative_config:
        return "off"
    return f"{speculative_config.get('method', 'draft')} K={draft_length(speculative_config) or '?'}"
