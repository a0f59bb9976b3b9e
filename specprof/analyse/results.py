"""What analysis says: the figures of a study, frozen, as tables, reports and cards read them.

The JSON form (`as_json`) is the public shape of `specprof report --format json` and the body of `card.json`. Every
figure carries its 95% interval; `low` and `high` are None where the measurement cannot give one. Names and units are
those of METHOD 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum, StrEnum
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specprof.analyse.cache import CacheFigures
    from specprof.analyse.frontier import FrontierFigures
    from specprof.analyse.guided import GuidedFigures
    from specprof.analyse.interference import InterferenceFigures
    from specprof.analyse.pipeline import PipelineFigures
    from specprof.analyse.prefill import PrefillFigures
    from specprof.analyse.quality import QualityFigures
    from specprof.analyse.sampled import SurpriseFigures
    from specprof.analyse.service_results import ServiceFigures


@dataclass(frozen=True, slots=True)
class Figure:
    """A value and its 95% interval."""

    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def half_width(self) -> float | None:
        """Half the interval as a share of the value (0.04 is ±4%), None without an interval."""
        if not self.value or self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2 / abs(self.value)

    def scaled(self, factor: float, divisor: float = 1.0) -> Figure:
        """Value and interval times a positive factor, over a positive divisor."""
        return Figure(*(None if v is None else v * factor / divisor for v in (self.value, self.low, self.high)))


NOTHING = Figure(None)


class Severity(StrEnum):
    """`invalid`: the cell is shown but never a headline. `caution`: read the evidence first."""

    INVALID = "invalid"
    CAUTION = "caution"


@dataclass(frozen=True, slots=True)
class GateFinding:
    """A gate that did not hold (METHOD 7): the evidence in one sentence, and what to do about it."""

    gate: int
    name: str
    severity: Severity
    evidence: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of one latency over the measured requests, seconds."""

    p50: Figure
    p90: Figure
    p95: Figure
    p99: Figure


@dataclass(frozen=True, slots=True)
class AcceptanceCounts:
    """The raw counts under every acceptance ratio: verification steps that had a draft, tokens drafted and accepted."""

    num_steps: int
    num_drafted: int
    num_accepted: int


@dataclass(frozen=True, slots=True)
class Loops:
    """Gate 7's evidence: text that repeats itself, and the same figures with and without it.

    `before_eos` uses only tokens before the text would have ended by itself; None where no text would have. All three
    per-step figures leave out each text's first step, so that they compare like with like.
    """

    num_requests_flagged: int
    share_of_tokens_flagged: float
    prompt_ids: tuple[str, ...]
    tokens_per_engine_step_unflagged: Figure
    tokens_per_engine_step_before_eos: Figure
    acceptance_length_unflagged: Figure
    decode_speed_unflagged_tok_s: Figure
    tokens_per_engine_step_all: Figure = Figure(None)


@dataclass(frozen=True, slots=True)
class CellFigures:
    """The figures of one content, protocol, arm and concurrency, over all blocks that measured it.

    Acceptance (METHOD 1) is None, not zero, where nothing was drafted: `survival[j-1]` is the share of steps in which
    draft position j was accepted, `conditional[j-1]` that share among the steps in which position j-1 was.
    The wall (METHOD 3): `predicted_wall_s` = total prompt tokens / prefill speed + output tokens per stream / decode
    speed; queue, prefill and decode share of the measured wall sum to about one.
    """

    tag: str
    protocol: str
    stop: str
    length: int  # tokens asked for (forced) or allowed (natural)
    arm: str
    method: str  # the arm in words: "off", "ngram K=4"
    concurrency: int
    num_requests: int
    num_launches: int
    prompt_tokens: Figure  # median
    output_tokens: Figure  # median
    throughput_tok_s: Figure
    decode_speed_tok_s: Figure
    ttft_s: Percentiles | None
    tpot_s: Percentiles | None
    itl_s: Percentiles | None  # per step, never per token
    e2el_s: Percentiles | None
    chars_per_s: Figure
    acceptance_length: Figure | None
    acceptance_length_request_mean: Figure | None
    acceptance_rate: Figure | None
    survival: tuple[Figure, ...]
    conditional: tuple[Figure, ...]
    acceptance_counts: AcceptanceCounts | None
    tokens_per_engine_step: Figure
    wall_s: Figure
    predicted_wall_s: Figure
    queue_share: Figure
    prefill_share: Figure
    decode_share: Figure
    prefill_speed_tok_s: Figure
    effective_concurrency: Figure
    predicted_throughput_tok_s: Figure
    prediction_error: Figure  # predicted / measured wall - 1
    sum_of_rates_tok_s: Figure
    loops: Loops | None
    gates: tuple[GateFinding, ...]
    num_prompts: int = 0  # distinct ones; 0 in a card made before they were counted

    @property
    def valid(self) -> bool:
        """Whether no gate forbids a headline."""
        return not any(gate.severity is Severity.INVALID for gate in self.gates)


@dataclass(frozen=True, slots=True)
class GainFigures:
    """What speculation and batching each gave, METHOD 4, for one content, protocol, arm and concurrency.

    `interaction` is batching_gain / batching_gain_off; only where its interval lies inside ±5% may the two gains be
    multiplied (`multiply`). `mediated_share` is Δln(tokens per engine step) / Δln X of on against off.
    `step_time_ratio` is on / off, the mean duration of an engine step; `residual` is gain / (product of factors) - 1.
    `num_blocks` and `num_prompts` are those that both cells of the speculation gain have, `launch_variance` and
    `prompt_variance` what others would bring to its logarithm (`evidence.Variation`; None: one prompt).
    """

    tag: str
    protocol: str
    arm: str
    method: str
    concurrency: int
    throughput_off_tok_s: Figure
    throughput_on_tok_s: Figure
    batching_gain: Figure
    batching_gain_off: Figure
    speculation_gain: Figure
    interaction: Figure
    step_time_ratio: Figure
    mediated_share: Figure
    residual: Figure
    multiply: bool
    valid: bool
    num_blocks: int
    num_prompts: int = 0
    launch_variance: float = 0.0
    prompt_variance: float | None = 0.0


@dataclass(frozen=True, slots=True)
class ContentFigures:
    """One content against another under the same protocol, arm and N, by the identity of METHOD 4 (a / b ratios).

    The three ratios multiply to `throughput_ratio`. `only_acceptance` is the equivalence test on steps per second:
    `pass` (content acts only through acceptance), `fail`, or `undecided`, as with one launch it always is; its ratio
    carries the 90% interval tested.
    """

    tag: str
    other_tag: str
    protocol: str
    arm: str
    concurrency: int
    throughput_ratio: Figure
    tokens_per_step_ratio: Figure
    steps_per_s_ratio: Figure
    decode_share_ratio: Figure
    mediated_share: Figure
    only_acceptance: str


@dataclass(frozen=True, slots=True)
class CutFigures:
    """The two cuts of seed 000: natural → forced on the same prompts, then a content forced alike; `whole` = both."""

    tag: str
    other_tag: str
    natural_protocol: str
    forced_protocol: str
    arm: str
    concurrency: int
    natural_tok_s: Figure
    forced_tok_s: Figure
    other_tok_s: Figure
    stop_rule: Figure
    content: Figure
    whole: Figure
    other_protocol: str = ""  # not told by cards made before it could be another than `forced_protocol`


class MixVerdict(StrEnum):
    """Whether sharing a batch costs a content more than 5% of its decode speed. Undecided is an answer."""

    SLOWED = "slowed"
    NOT_SLOWED = "not slowed"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class MixFigures:
    """One content in a batch it shares with others, against itself alone at the same N: never a headline.

    Ratios are mixed / alone, paired by prompt: decode speed = tokens per step × steps per second, of which a mix can
    change only the second (`acceptance_length_ratio` should be 1). `control_ratio` is the decode speed's with
    speculation off: what prompts of other lengths do. `verdict` rests on `tested_ratio`, the decode speed's ratio
    divided by the control's, with its 90% interval. `gates` are the mixed cell's own; `valid` also asks those of its
    contents alone, on both arms. Figures are None where alone or off was not measured.
    """

    tag: str
    beside: tuple[str, ...]  # the other contents of the batch
    protocol: str
    stop: str
    length: int
    alone_protocol: str  # empty where the content was not measured alone
    arm: str
    method: str
    concurrency: int  # of all contents together
    num_prompts: int
    num_blocks: int
    decode_speed_alone_tok_s: Figure
    decode_speed_mixed_tok_s: Figure
    decode_speed_ratio: Figure
    acceptance_length_ratio: Figure | None  # None for the off arm, as the next but one
    steps_per_s_ratio: Figure
    control_ratio: Figure | None
    tested_ratio: Figure
    speculation_gain_alone: Figure | None  # decode speed on / off
    speculation_gain_mixed: Figure | None
    verdict: MixVerdict
    gates: tuple[GateFinding, ...]
    valid: bool


class Outcome(StrEnum):
    """Undecided is an answer."""

    PASS = "pass"  # noqa: S105 - no secret
    FAIL = "fail"
    UNDECIDED = "undecided"

    @classmethod
    def of(cls, ratio: Figure, threshold: float) -> Outcome:
        """Pass: the whole interval is beyond the threshold. Fail: the whole of it falls short. Otherwise undecided."""
        if ratio.low is None or ratio.high is None:
            return cls.UNDECIDED
        if ratio.low >= threshold:
            return cls.PASS
        return cls.FAIL if ratio.high < threshold else cls.UNDECIDED


@dataclass(frozen=True, slots=True)
class VerdictFigures:
    """A line drawn before the measurement, and what the evidence says of it. `needs`: what would decide it."""

    name: str
    metric: str
    tag: str
    protocol: str
    outcome: Outcome
    ratio: Figure
    threshold: float
    hash: str
    post_hoc: bool
    needs: str


@dataclass(frozen=True, slots=True)
class TriedArm:
    """An arm that a policy weighed at one load. `gain`: its interval holds together with those of the others.

    `fit`: no gate forbids it to decide. `tied`: nothing shows that the arm that was taken is faster.
    """

    arm: str
    gain: Figure
    fit: bool
    tied: bool


@dataclass(frozen=True, slots=True)
class DecisionFigures:
    """Whether one content gets speculation at one load, and from which arm (`decide.policy`).

    `decision`: `on`, `off`, `undecided` or `not fit`. `gain`: X(arm) / X(off), its interval (at `confidence`) wide
    enough to hold for all arms together; `tried` are all of them. `first_look`: one launch per arm, which cannot show
    how another would differ.
    """

    tag: str
    protocol: str
    concurrency: int
    decision: str
    arm: str
    method: str
    gain: Figure
    first_look: bool
    reason: str
    confidence: float = 0.95
    tried: tuple[TriedArm, ...] = ()


@dataclass(frozen=True, slots=True)
class StudyFigures:
    """Everything a study has to say."""

    study: str
    environment: Mapping[str, Any]
    cells: tuple[CellFigures, ...]
    gains: tuple[GainFigures, ...]
    prefill: tuple[PrefillFigures, ...]
    verdicts: tuple[VerdictFigures, ...]
    notes: tuple[str, ...] = ()
    contents: tuple[ContentFigures, ...] = ()
    cuts: tuple[CutFigures, ...] = ()
    surprise: tuple[SurpriseFigures, ...] = ()
    arms: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)  # speculative flags, None: without
    mixes: tuple[MixFigures, ...] = ()
    decisions: tuple[DecisionFigures, ...] = ()
    frontiers: tuple[FrontierFigures, ...] = ()  # where the study names a TPOT target
    service: ServiceFigures | None = None  # where it holds open loops
    cache: CacheFigures | None = None  # where it replays traffic with a warm prefix cache
    quality: tuple[QualityFigures, ...] = ()  # where texts of closed loops are judged
    guided: tuple[GuidedFigures, ...] = ()  # where protocols differ by `guided` alone
    interference: tuple[InterferenceFigures, ...] = ()  # where long prompts came among steady decoders
    pipeline: tuple[PipelineFigures, ...] = ()  # where the engine has several pipeline stages

    @property
    def tags(self) -> tuple[str, ...]:
        """Content tags in the order the study names them."""
        return tuple(dict.fromkeys(cell.tag for cell in self.cells))


def as_json(value: Any) -> Any:
    """Plain JSON of any of the above, keys in the order they are declared; floats kept to 6 significant digits."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if isfinite(value) else None  # NaN and infinity have no place in JSON
    return value
