"""What somebody published: every fact a benchmark number can come with, and most of them missing.

The same frozen record takes command-line options, a published-claim YAML and the exports of other tools. Its fields are
checked by pydantic on the way in (`claim_of`), so no arithmetic meets a zero, an infinity or a word. Values that are
merely *impossible* (an acceptance rate of 3) are let in: saying so is the auditor's work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from specprof.errors import InputError
from specprof.records import Stop

Positive = Annotated[float, Field(ge=1e-9, le=1e15, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
Noise = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]  # relative: 0.04 is 4%
Count = Annotated[int, Field(ge=1, le=10**12)]
CountOrZero = Annotated[int, Field(ge=0, le=10**12)]
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
    num_steps: CountOrZero | None = None
    num_drafted: CountOrZero | None = None
    num_accepted: CountOrZero | None = None
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
    numerator_noise: Noise | None = None
    denominator_noise: Noise | None = None
    says: Literal["pass", "fail", "undecided"] | None = None


@dataclass(frozen=True, slots=True)
class DraftLengths:
    """A published table over draft lengths K: TPOT (s) of each and without speculation; the rest as printed."""

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


@dataclass(frozen=True, slots=True)
class Note:
    """What a reader must know about the tool or text the claim comes from, and what to do about it."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    evidence: str
    instead: str = ""


def _speculation_said(value: Any) -> Any:
    """`speculation: off` (which YAML reads as false), `on`, or a method alone, as the mapping they mean."""
    if value is False:
        return {"method": "off"}
    if value is True:
        return {}
    if isinstance(value, Mapping) and value.get("method") is False:
        return {**value, "method": "off"}
    return {"method": value} if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Claim:
    """A published number and what was said about it. None: not stated.

    `prompt_tokens` and `output_tokens_per_request` are means per request, `output_tokens` is the sum of all requests.
    `tpot_s` is per token after the first, `itl_s` per chunk (METHOD 1); `latency_statistic`: which average both are.
    `noise` is the relative standard deviation of one figure.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    # what is being audited
    name: Text | None = None
    source: Text | None = None
    tool: Text | None = None
    # the load
    concurrency: Count | None = None
    num_requests: Count | None = None
    num_failed: CountOrZero | None = None
    cap: Count | None = None
    request_rate: Positive | None = None
    # the lengths, tokens
    prompt_tokens: Positive | None = None
    output_tokens: Positive | None = None
    output_tokens_per_request: Positive | None = None
    shortest_output_tokens: NotNegative | None = None
    longest_output_tokens: Positive | None = None
    max_tokens: Count | None = None
    # the numbers
    wall_s: Positive | None = None
    throughput_tok_s: Positive | None = None
    decode_speed_tok_s: Positive | None = None
    tpot_s: Positive | None = None
    itl_s: Positive | None = None
    ttft_s: NotNegative | None = None
    latency_statistic: Literal["mean", "median"] | None = None
    prefill_speed_tok_s: Positive | None = None
    sum_of_rates_tok_s: Positive | None = None
    # the conditions
    stop: Stop | None = None
    content: Text | None = None
    speculation: Annotated[SpeculationClaim | None, BeforeValidator(_speculation_said)] = None
    prefix_cache: bool | None = None
    cached_tokens: NotNegative | None = None
    aggregation: Aggregation | None = None
    temperature: NotNegative | None = None
    repeats: Count | None = None
    noise: Noise | None = None
    engine: Text | None = None
    model: Text | None = None
    hardware: Text | None = None
    # what is concluded from them
    says: tuple[Says, ...] = ()
    factorials: tuple[Factorial, ...] = ()
    lines: tuple[Line, ...] = ()
    draft_lengths: tuple[DraftLengths, ...] = ()
    notes: tuple[Note, ...] = ()


CLAIM = TypeAdapter(Claim)


def claim_of(fields: Mapping[str, Any], where: str) -> Claim:
    """A claim from fields that come from outside; None means not stated. `where` stands in the error.

    Raises InputError naming the field and what is wrong with it.
    """
    try:
        return CLAIM.validate_python({key: value for key, value in fields.items() if value is not None})
    except ValidationError as problem:
        raise InputError("\n".join(f"{where}: {in_words(error)}" for error in problem.errors())) from None


def in_words(error: Mapping[str, Any]) -> str:
    """One pydantic error as `key: what is wrong (it says …)`."""
    key = ".".join(str(part) for part in error["loc"])
    return f"{key}: {error['msg'].removeprefix('Value error, ')}{_shown(error.get('input'))}"


def _shown(given: Any) -> str:
    """A short scalar as it was given; lists and mappings may be of any size, and are not shown."""
    if isinstance(given, str | float) or (isinstance(given, int) and given.bit_length() < 64):
        return f" (it says {given!r})" if len(repr(given)) <= 80 else ""
    return ""
