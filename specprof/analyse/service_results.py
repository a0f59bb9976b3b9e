"""What analysis says of open loops: how good the service is at each offered rate, METHOD 8.

Latencies come in two kinds. *Schedule-relative* ones begin when a request was due, so that whatever a stalled server or
a full client queue delays is seen; they are what targets are held against. *Sent-relative* ones begin when the request
left the client. Tokens are counted where they arrive: `raw` is every token that arrived inside the measured window, and
what is effective is a part of exactly those.
"""

from __future__ import annotations

from dataclasses import dataclass

from specprof.analyse.results import NOTHING, Figure, GateFinding, Percentiles


@dataclass(frozen=True, slots=True)
class TargetFigures:
    """What a useful answer of a content had to keep; seconds, None where not asked. `quality` names the check.

    `by_content`: a trace of several contents, each with targets of its own, which stand in the study file.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2el_s: float | None = None
    quality: str = ""
    by_content: bool = False


@dataclass(frozen=True, slots=True)
class Fates:
    """How the measured requests of a rung ended; `good` to `timed_out` sum to `offered`.

    A request that missed its latency target is `late` whatever its quality; `bad` was on time and did not pass the
    check. Where no text of the rung was judged, none is bad, and what is effective is not known.
    """

    offered: int
    good: int
    late: int
    bad: int
    failed: int
    timed_out: int


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Output tok/s inside the window, each stage a part of the one before: raw → finished → on time → good."""

    raw_tok_s: Figure
    finished_tok_s: Figure
    on_time_tok_s: Figure
    effective_tok_s: Figure


@dataclass(frozen=True, slots=True)
class RungFigures:
    """One offered rate of one content, protocol and arm, over all blocks.

    Shares are over measured requests (`good_request_share`) and over tokens of the window (`good_token_share`): they
    are different numbers. `client_queue_s` is sent - due. Server queue and preemptions are the engine's own words,
    None where it does not say.
    """

    tag: str
    protocol: str
    stop: str
    length: int
    arm: str
    method: str
    arrivals: str  # "poisson", "gamma burstiness 0.25", "constant", "trace"
    rate_per_s: float
    max_concurrency: int | None
    duration_s: float
    num_launches: int
    prompt_tokens: Figure  # median
    output_tokens: Figure  # median
    targets: TargetFigures
    completed_per_s: Figure
    waterfall: Waterfall
    fates: Fates
    good_request_share: Figure
    good_token_share: Figure
    on_target_share: Figure  # requests that kept their latency targets, quality not asked: what goodput is made of
    ttft_s: Percentiles | None  # schedule-relative
    ttft_sent_s: Percentiles | None
    e2el_s: Percentiles | None  # schedule-relative
    e2el_sent_s: Percentiles | None
    tpot_s: Percentiles | None
    itl_s: Percentiles | None  # per step
    client_queue_s: Percentiles | None
    server_queue_s: Percentiles | None
    num_running: Figure  # requests in the engine, mean over the window
    num_waiting: Figure
    num_preemptions: float | None
    dispatch_lag_p99_s: float | None  # the client's own lateness
    acceptance_length: Figure | None
    collapsed: bool
    gates: tuple[GateFinding, ...]
    valid: bool
    tokens_per_engine_step: Figure = NOTHING


@dataclass(frozen=True, slots=True)
class GoodputFigures:
    """The largest rate at which at least `share` of the requests keep their latency targets (METHOD 8).

    `rate_per_s.value` is None where no rung kept them; `low` and `high` bound the rate from the rungs themselves and
    from how far each rung's share may be off. `high` is None where no measured rung missed: the goodput is at least
    `low` then. `knee_per_s` is the largest offered rate that the engine still completes; beyond it, queues grow.
    """

    tag: str
    protocol: str
    arm: str
    method: str
    share: float
    targets: TargetFigures
    rate_per_s: Figure
    effective_tok_s: Figure  # at the largest rung that kept the targets
    knee_per_s: float | None
    num_rungs: int
    sentence: str  # plain English, e.g. why a bound is missing
    valid: bool


@dataclass(frozen=True, slots=True)
class GoodputGain:
    """What speculation does to the goodput of a content: on / off, both arms given the same arrivals."""

    tag: str
    protocol: str
    arm: str
    method: str
    off: GoodputFigures
    on: GoodputFigures
    ratio: Figure
    outcome: str  # "raises", "lowers", "undecided"
    needs: str  # what would decide it, where undecided
    difference_per_s: Figure = NOTHING  # on - off, its ends from the same intervals as those of the ratio


@dataclass(frozen=True, slots=True)
class ServiceFigures:
    """Everything a study's open loops say."""

    rungs: tuple[RungFigures, ...] = ()
    goodputs: tuple[GoodputFigures, ...] = ()
    gains: tuple[GoodputGain, ...] = ()
    notes: tuple[str, ...] = ()
