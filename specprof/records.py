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
    OPEN = "open"  # an open loop: requests arrive by the clock, whether or not earlier ones are done
    INTERFERENCE = "interference"  # steady decoders, and one long prompt that arrives among them


class Phase(StrEnum):
    """Which part of a cell a request belongs to. All are kept and marked; figures are made of measured ones alone."""

    WARMUP = "warmup"
    MEASURED = "measured"
    FILL = "fill"  # sent to keep the load what it was while others are still measured


class CachePolicy(StrEnum):
    """What the engine may keep of prompts it has read: nothing that a cell could profit from, or all of it."""

    CONTROLLED = "controlled"  # off, or emptied before every cell; gate 5 verifies that no prompt came from it
    REPLAY = "replay"  # on, and never emptied within a launch, as in service; its hit rate is a figure


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
class Arrivals:
    """When the requests of an open-loop cell are due: fixed before anything runs, and the same for every arm.

    `due_s[i]`, ascending, is when the cell's `prompt_ids[i]` is due, in seconds from the cell's start. What is due in
    the first `warmup_s` only settles the server; what is due in the `duration_s` after that is measured; what is due
    later keeps the load up until the last measured request has ended, and is not sent any more after that.
    """

    kind: str  # "poisson", "gamma", "constant" or "trace"
    rate_per_s: float  # offered: of a trace, its requests in the window / duration_s
    burstiness: float  # shape of the Gamma gaps: their coefficient of variation is 1/sqrt(burstiness); 1 is Poisson
    warmup_s: float
    duration_s: float
    timeout_s: float  # a request this long past its due time is given up: it has cost, and it counts as lost
    due_s: tuple[float, ...]
    max_concurrency: int | None = None  # back-pressure: so many requests are out at most, the rest wait in the client
    output_tokens: tuple[int, ...] = ()  # request i's own length (a trace's); empty: `Cell.max_tokens` for all


def phase_due(arrivals: Arrivals, due_s: float) -> Phase:
    """What a request that is due then is sent for."""
    if due_s < arrivals.warmup_s:
        return Phase.WARMUP
    return Phase.MEASURED if due_s < arrivals.warmup_s + arrivals.duration_s else Phase.FILL


@dataclass(frozen=True, slots=True)
class Interference:
    """Who disturbs the steady decoders of a cell, and when. The newcomer is the first of the cell's `prompt_ids`.

    It is sent once every decoder has been read from `after_tokens` times, each of which brings a token or more, and
    writes `newcomer_tokens` itself. `max_num_batched_tokens` is that of the cell's launch, which decides into how many
    engine steps the newcomer's prompt is cut.
    """

    newcomer_id: str
    after_tokens: int
    newcomer_tokens: int
    max_num_batched_tokens: int


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
    arrivals: Arrivals | None = None  # of an open-loop cell, whose `prompt_ids` may repeat; None: a closed loop
    interference: Interference | None = None  # of an interference cell; `concurrency` counts the newcomer in
    cache: CachePolicy = CachePolicy.CONTROLLED


@dataclass(frozen=True, slots=True)
class Launch:
    """One engine start and the cells measured on it, in order.

    `engine_args` are laid over the study's own for this launch alone, under the names of vLLM's flags.
    """

    index: int
    block: int
    arm: str
    speculative_config: Mapping[str, Any] | None
    cells: tuple[Cell, ...]
    engine_args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """What the engine itself says of one request, seconds; None where it does not say."""

    queue_s: float | None = None
    time_to_first_token_s: float | None = None  # from *scheduled*, so without the queue
    generation_s: float | None = None


@dataclass(frozen=True, slots=True)
class Speculation:
    """Verification steps of one request. A step counts only if it carried a draft.

    `num_steps` is 0 beside drafted tokens where the server counts tokens and not steps (llama.cpp).
    """

    num_steps: int
    num_drafted: int
    num_accepted: int
    accepted_per_step: tuple[int, ...] = ()
    drafted_per_step: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the client saw it.

    `chunk_ns[i]` is when chunk i arrived and `chunk_tokens[i] >= 1` how many output tokens it held (server token ids);
    `sum(chunk_tokens) == len(token_ids)`. Of a server that streams no ids `token_ids` is empty, and `chunk_tokens` is
    its own count of the text shared evenly among the chunks: what then is known of a single chunk is when it came.
    `prompt_tokens` is 0 where the server does not count them. `error` is None for a request that ended as asked.
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
    reasoning: str | None = None  # written before `text`, where the server tells it apart


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


TIMED_OUT = "timed out"  # how the error begins of a request that its client gave up
LOST_WITH_WORKER = "lost with worker"  # how the error begins of a request that went with its worker (`WorkerLoad.lost`)


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One of several clients of a cell: how busy it was, and how well its clock is known.

    Its clock read `clock_offset_ns` more than this process's, give or take `clock_error_ns` (an engine's time, as the
    requests' is); instants of its requests are kept by this process's clock. `lost` says why its requests never came
    back; they then stand in the record as failed.
    """

    worker: int  # from 0
    cpu_share: float
    loop_lag_p99_s: float
    num_requests: int  # that it was given, warm-ups apart
    num_reads: int  # of the sockets, each with a time of its own
    clock_offset_ns: int
    clock_error_ns: int
    lost: str | None = None


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """How busy the client itself was while it measured: the case for or against gate 11.

    Of several clients the busiest one's shares and lags; each by itself stands in `workers`.
    """

    cpu_share: float  # CPU seconds of this process / wall
    loop_lag_p99_s: float  # how late the event loop woke from a timer
    dispatch_lag_p99_s: float | None = None  # open loop: how late it sent what was due and what no cap held back
    dispatch_lag_max_s: float | None = None
    workers: tuple[WorkerLoad, ...] = ()  # empty: this process alone sent everything
    num_connects: int = 0  # requests that had to connect first: part of their client queue, and of no time from `sent`
    connect_max_s: float | None = None  # the longest of them took, by the clock of the client
    kernel_timed: float | None = None  # share of its reads with the kernel's time, others have its own; None: not noted


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment, as the driver tells; None where it does not. `throttled`: why its clock was held down."""

    index: int
    busy_percent: int | None = None
    memory_used_mib: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttled: tuple[str, ...] = ()
    power_w: float | None = None
    temperature_c: float | None = None
    pcie_generation: int | None = None  # in use, which an idle link lowers
    pcie_width: int | None = None


@dataclass(frozen=True, slots=True)
class HardwareReading:
    """The machine under an engine at one moment of a cell, by the client's clock."""

    at_ns: int
    gpus: tuple[GpuReading, ...] = ()
    cpu_mhz: float | None = None
    cpu_temperature_c: float | None = None


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
    hardware: tuple[HardwareReading, ...] = ()  # a few, while the cell ran; empty where nothing tells


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
class TextMarks:
    """Whether the texts of one cell are any good, row by row of its requests (`study.quality`).

    `good[i]` is None where request i was not judged; `why[i]` says why it is not good or was not judged. `checks` names
    the check of each content, and `digest` is the hash of what those checks were.
    """

    checks: Mapping[str, str]
    digest: str
    good: tuple[bool | None, ...]
    why: tuple[str, ...]


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
