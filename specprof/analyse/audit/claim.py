"""What somebody published: every fact a benchmark number can come with, and most of them missing.

The same frozen record takes command-line options, a published-claim YAML and the exports of other tools. Its fields are
pydantic-checked on the way in (`claim_of`), so no arithmetic meets a zero, an infinity or a word. Values that are merely
*impossible* (an acceptance rate of 3) are let in: saying so is the auditor's work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from specprof.errors import InputError
from specprof.records import Stop

Positive = Annotated[float, Field(ge=1e-9, le=1e15, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10**12)]
CountOrNone = Annotated[int, Field(ge=0, le=10**12)]
Text = Annotated[str, Field(max_length=300)]


class Aggregation(StrEnum):
    """How per-request numbers became one number."""

    TOTAL_OVER_WALL = "total / wall"
    SUM_OF_RATES = "sum of rates"


class Says(StrEnum):
    """Sentences a publication rests on, which its own numbers may contradict."""

    GAINS_ARE_INDEPENDENT = "gains are independent"
    CONTENT_NEEDS_SPECULATION = "content acts only through speculation"
    ACCEPTANCE_IS_PER_POSITION = "acceptance is per position"


@dataclass(frozen=True, slots=True)
class SpeculationClaim:
    """Speculation as told. `method` "off" is a statement too; None says only that it was on.

    `acceptance_rate` accepted / drafted; `acceptance_length` 1 + accepted / steps; `survival[j-1]` share of steps that
    accepted position j; `speedup` on / off, as printed.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    method: Text | None = None
    draft_tokens: Count | None = None
    acceptance_rate: NotNegative | None = None
    acceptance_length: NotNegative | None = None
    survival: tuple[NotNegative, ...] = ()
    num_steps: CountOrNone | None = None
    num_drafted: CountOrNone | None = None
    num_accepted: CountOrNone | None = None
    speedup: Positive | None = None

    @property
    def on(self) -> bool:
        """Whether anything was speculated."""
        return (self.method or "").lower() not in ("off", "none")


@dataclass(frozen=True, slots=True)
class Factorial:
    """One content with speculation off and on, at one stream and at N: four numbers of one metric, tok/s (METHOD 4)."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    content: Text
    concurrency: Count | None = None  # the N of off_n and on_n
    off_1: Positive | None = None
    off_n: Positive | None = None
    on_1: Positive | None = None
    on_n: Positive | None = None
    draft_tokens: Count | None = None
    acceptance_rate: NotNegative | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A threshold somebody drew and the ratio held against it. Noise: relative standard deviation of each figure."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    at_least: Positive
    numerator: Positive
    denominator: Positive
    name: Text = "threshold"
    numerator_noise: NotNegative | None = None
    denominator_noise: NotNegative | None = None
    says: Literal["pass", "fail", "undecided"] | None = None


@dataclass(frozen=True, slots=True)
class DraftLengths:
    """A published table over draft lengths K: TPOT (s) of each, beside TPOT without speculation; the rest as printed."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    draft_tokens: Annotated[tuple[Count, ...], Field(min_length=1)]
    tpot_s: tuple[Positive, ...]
    tpot_off_s: Positive
    acceptance_lengths: tuple[Positive, ...] = ()
    printed_speedups: tuple[Positive, ...] = ()
    name: Text = "draft lengths"

    def __post_init__(self) -> None:
        for name in ("tpot_s", "acceptance_lengths", "printed_speedups"):
            column = getattr(self, name)
            if column and len(column) != len(self.draft_tokens):
                raise ValueError(f"{name} has {len(column)} values, draft_tokens has {len(self.draft_tokens)}")


def _speculation_said(value: Any) -> Any:
    """`speculation: off` (which YAML reads as false), `on`, or a method alone, as the mapping they mean."""
    if value is False:
        return {"method": "off"}
    if value is True:
        return {}
    return {"method": value} if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Claim:
    """A published number and what was said about it. None: not stated.

    `prompt_tokens` and `output_tokens_per_request` are means per request, `output_tokens` is the sum of all requests.
    `tpot_s` is per token after the first, `itl_s` per chunk (METHOD 1); `latency_statistic` says which average both are.
    `noise` is the relative standard deviation of one figure.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: Text | None = None
    source: Text | None = None
    tool: Text | None = None
    concurrency: Count | None = None
    num_requests: Count | None = None
    num_failed: CountOrNone | None = None
    cap: Count | None = None
    request_rate: Positive | None = None
    prompt_tokens: Positive | None = None
    output_tokens: Positive | None = None
    output_tokens_per_request: Positive | None = None
    shortest_output_tokens: NotNegative | None = None
    longest_output_tokens: Positive | None = None
    max_tokens: Count | None = None
    wall_s: Positive | None = None
    throughput_tok_s: Positive | None = None
    decode_speed_tok_s: Positive | None = None
    tpot_s: Positive | None = None
    itl_s: Positive | None = None
    ttft_s: NotNegative | None = None
    latency_statistic: Literal["mean", "median"] | None = None
    prefill_speed_tok_s: Positive | None = None
    sum_of_rates_tok_s: Positive | None = None
    stop: Stop | None = None
    content: Text | None = None
    speculation: Annotated[SpeculationClaim | None, BeforeValidator(_speculation_said)] = None
    prefix_cache: bool | None = None
    cached_tokens: NotNegative | None = None
    aggregation: Aggregation | None = None
    temperature: NotNegative | None = None
    repeats: Count | None = None
    noise: NotNegative | None = None
    engine: Text | None = None
    model: Text | None = None
    hardware: Text | None = None
    says: tuple[Says, ...] = ()
    factorials: tuple[Factorial, ...] = ()
    lines: tuple[Line, ...] = ()
    draft_lengths: tuple[DraftLengths, ...] = ()
    notes: tuple[str, ...] = ()
