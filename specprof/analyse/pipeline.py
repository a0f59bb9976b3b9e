"""Pipeline stages, METHOD 4 and 6: how full they were, what a hand-over costs, and what batching owes to each.

With P stages, N streams travel as M = min(N, P) batches of N / M sequences, and a stage works for one batch at a time.
A pass over b sequences computes for c(b) = a + d*b seconds, of which stage i does its share w_i, and is handed over P
times (from each stage to the next, and the tokens back to the first), h seconds each. A round, in which every stream
gets its next step, takes as long as the slower of two things (ceil(N / M) sequences make the largest batch):

    T(N) = max( c(ceil(N / M)) + P*h ,  max(w_i) * (M*a + N*d) )
                one batch's way through     the slowest stage's work for all of them

Where the second is the longer, times tell computing from handing over; where no N makes it so, they cannot, and h has
bounds and no value. Both come from one profile: every h that some a, d >= 0 make fit the measured rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import Any

import numpy as np

from specprof.analyse import distributions
from specprof.analyse.evidence import Evidence, Series, contrast, key_of
from specprof.analyse.results import CellFigures, Figure
from specprof.analyse.stats import CONFIDENCE, Array
from specprof.analyse.steady import relative_noise, step_means
from specprof.records import Role, Stop, arm_in_words

LAYER_SPLIT = "VLLM_PP_LAYER_PARTITION"
MODEL_ERROR = 0.005  # of a round: batches are taken to be even, and a pass to grow by the same for each sequence
WIDE = 0.25  # of a round: a hand-over known no better than this has bounds and no value
_NUM_TRIALS = 40  # hand-overs tried along the profile
_STARTS = (0.05, 0.5, 0.95)  # shares of computing that do not grow with the batch

Place = tuple[str, str, str]  # tag, protocol, arm


@dataclass(frozen=True, slots=True)
class Stages:
    """One launch's pipeline: each stage's share of the layers; `known` is False where they are taken to be even."""

    shares: tuple[float, ...]
    known: bool
    max_num_seqs: int | None = None

    @property
    def count(self) -> int:
        """P."""
        return len(self.shares)

    @property
    def slowest(self) -> float:
        """The largest share: a full pipeline is busy 1 / (P * this) of its time at most."""
        return max(self.shares)

    def batches(self, concurrency: int) -> int:
        """M: how many batches are under way at N streams, of which the server may let only some in."""
        return min(self.running(concurrency), self.count)

    def running(self, concurrency: int) -> int:
        """Streams that the server lets in."""
        return min(concurrency, self.max_num_seqs or concurrency)


@dataclass(frozen=True, slots=True)
class PipelineLoad:
    """One N. `filled_share` = M / P: what the number of streams allows; 1 - it is the bubble.

    `busy_share`: computing / (P * round), so hand-overs and uneven stages count as idle; None where it was not fitted.
    `batching_gain` X(N) / X(1) = `filling_gain` (more batches, up to N = P) * `sharing_gain` (larger ones beyond).
    Where N = P was not measured, or a gate forbids it, the two have bounds and no value: P batches do at most P times
    the work of one.
    """

    concurrency: int
    batches: int
    filled_share: float
    busy_share: Figure | None
    batching_gain: Figure
    filling_gain: Figure
    sharing_gain: Figure
    valid: bool


@dataclass(frozen=True, slots=True)
class PipelineFigures:
    """One content, protocol and arm over all its N, on a pipeline of `stages` stages.

    `hand_over_s`: per stage and pass, of the arm without speculation at every N that no gate forbids; bounds without a
    value where the times cannot tell it from computing, None where nothing was fitted. `split_known`: the layer split
    was stated, not taken as even.
    """

    tag: str
    protocol: str
    stop: str
    length: int
    arm: str
    method: str
    stages: int
    slowest_share: float
    split_known: bool
    hand_over_s: Figure | None
    loads: tuple[PipelineLoad, ...]


def pipeline_figures(
    evidence: Evidence, environment: Mapping[str, Any], shown: Sequence[CellFigures] = ()
) -> tuple[PipelineFigures, ...]:
    """Figures of every content, protocol and arm that was measured at one stream and at more, on P > 1 stages.

    `shown`: the cells whose gates say which figures are fit. A rehearsal is no pipeline and has none.
    """
    valid = {key_of(cell): cell.valid for cell in shown}
    by_place: dict[Place, dict[int, Series]] = defaultdict(dict)
    for (tag, protocol, arm, concurrency), series in evidence.series_of(Role.FIGURE):
        by_place[tag, protocol, arm][concurrency] = series
    found = []
    for place, by_load in by_place.items():
        stages = _stages_of_all(by_load.values(), environment)
        if stages is not None and 1 in by_load and len(by_load) > 1:
            fit = {n: valid.get((*place, n), True) for n in by_load}
            found.append(_figures(place, by_load, stages, fit))
    return tuple(found)


def stages_of(facts: Mapping[str, Any]) -> Stages | None:
    """The pipeline of one launch, from its engine facts; None for one stage, and for a rehearsal of several."""
    count = facts.get("pipeline_parallel_size") or 1
    extra = facts.get("extra") or {}
    if count < 2 or extra.get("rehearsal"):
        return None
    told = extra.get("stage_shares") or _layer_counts((facts.get("env") or {}).get(LAYER_SPLIT))
    known = told is not None and len(told) == count and min(told) > 0
    weights = tuple(map(float, told)) if told is not None and known else (1.0,) * count
    return Stages(tuple(weight / sum(weights) for weight in weights), known, facts.get("max_num_seqs"))


def gain_bounds(batching_gain: Figure, stages: int, filling_at_least: float = 1.0) -> tuple[Figure, Figure]:
    """What filling and sharing can each have given of a gain at N > P, where N = P was not measured.

    `filling_at_least`: the gain at the largest N <= P that was. P batches under way do at most P times the work of one,
    so sharing is at least the gain / P.
    """
    filling = Figure(None, filling_at_least, float(stages))
    if batching_gain.value is None:
        return filling, Figure(None)
    low = batching_gain.value if batching_gain.low is None else batching_gain.low
    high = batching_gain.value if batching_gain.high is None else batching_gain.high
    return filling, Figure(None, low / stages, high / filling_at_least)


def _stages_of_all(series: Iterable[Series], environment: Mapping[str, Any]) -> Stages | None:
    """The pipeline all these cells ran on; None where they had none, or not the same."""
    launches = environment.get("launches") or {}
    numbers = {str(frame.data.launch) for one in series for frame in one.frames}
    found = {stages_of(launches.get(number) or {}) for number in numbers}
    return found.pop() if len(found) == 1 else None


def _layer_counts(text: object) -> tuple[int, ...] | None:
    """`15,16,12` → (15, 16, 12)."""
    parts = str(text).split(",") if text else []
    return tuple(map(int, parts)) if parts and all(part.strip().isdigit() for part in parts) else None


def _figures(place: Place, by_load: Mapping[int, Series], stages: Stages, valid: Mapping[int, bool]) -> PipelineFigures:
    (tag, protocol, arm), cell = place, by_load[1].cell
    profile = None
    if cell.speculative_config is None and cell.stop is Stop.FORCED:
        fit = {n: series for n, series in by_load.items() if valid[n]}
        profile = fit_rounds(rounds(fit, stages), stages)
    return PipelineFigures(
        tag=tag,
        protocol=protocol,
        stop=cell.stop.value,
        length=cell.max_tokens,
        arm=arm,
        method=arm_in_words(cell.speculative_config),
        stages=stages.count,
        slowest_share=stages.slowest,
        split_known=stages.known,
        hand_over_s=profile.hand_over_s if profile is not None else None,
        loads=tuple(_load(n, by_load, stages, profile, valid) for n in sorted(by_load)),
    )


def _load(
    concurrency: int, by_load: Mapping[int, Series], stages: Stages, profile: Profile | None, valid: Mapping[int, bool]
) -> PipelineLoad:
    batches = stages.batches(concurrency)
    gain = contrast([(by_load[concurrency], 1), (by_load[1], -1)])
    fullest = max(n for n in by_load if n == 1 or (n <= stages.count and valid[n]))
    filling, sharing = _gain_parts(concurrency, fullest, by_load, stages.count, gain)
    return PipelineLoad(
        concurrency=concurrency,
        batches=batches,
        filled_share=batches / stages.count,
        busy_share=profile.busy_share(concurrency) if profile is not None else None,
        batching_gain=gain,
        filling_gain=filling,
        sharing_gain=sharing,
        valid=valid[concurrency] and valid[1],
    )


def _gain_parts(
    concurrency: int, fullest: int, by_load: Mapping[int, Series], stages: int, gain: Figure
) -> tuple[Figure, Figure]:
    """Filling and sharing of one N. `fullest`: the largest N <= P that no gate forbids."""
    one = Figure(1.0, 1.0, 1.0)
    if concurrency <= stages:
        return gain, one
    filling = contrast([(by_load[fullest], 1), (by_load[1], -1)])
    if fullest == stages:
        return filling, contrast([(by_load[concurrency], 1), (by_load[fullest], -1)])
    return gain_bounds(gain, stages, max(1.0, filling.low or filling.value or 1.0))


# -- rounds: computing and handing over ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Round:
    """One N: the mean time of a round, seconds, and the standard error of its logarithm."""

    concurrency: int
    seconds: float
    log_error: float


def rounds(by_load: Mapping[int, Series], stages: Stages) -> tuple[Round, ...]:
    """The measured rounds of one content and arm, in rising N; those the server held back are left out."""
    logs: dict[int, dict[int, float]] = {}
    noise: dict[int, float] = {}
    for n, series in sorted(by_load.items()):
        if stages.running(n) < n:
            continue
        steps = {frame.cell.block: step_means(frame) for frame in series.frames}
        told = {block: log(float(found.mean())) for block, found in steps.items() if len(found)}
        if told:
            logs[n] = told
            noise[n] = sqrt(sum(relative_noise(frame)[0] ** 2 for frame in series.frames)) / len(series.frames)
    between = _variance_between_blocks(logs)
    return tuple(
        Round(
            n,
            float(np.exp(np.mean(list(told.values())))),
            sqrt(max(noise[n] ** 2, between / len(told)) + MODEL_ERROR**2),
        )
        for n, told in logs.items()
    )


def _variance_between_blocks(logs: Mapping[int, Mapping[int, float]]) -> float:
    """Variance of ln T that is neither its N's nor its launch's own: a launch is faster or slower at every N alike."""
    blocks = sorted(set.intersection(*(set(told) for told in logs.values()))) if logs else []
    degrees = (len(blocks) - 1) * (len(logs) - 1)
    if degrees < 1:
        return 0.0
    table = np.array([[told[block] for block in blocks] for told in logs.values()])
    rest = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    return float((rest**2).sum()) / degrees


@dataclass(frozen=True, slots=True)
class Fit:
    """c(b) = `fixed_s` + `per_sequence_s` * b at one hand-over, and how badly it fits (chi-square)."""

    hand_over_s: float
    fixed_s: float
    per_sequence_s: float
    misfit: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Every hand-over that the rounds allow, best first."""

    fits: tuple[Fit, ...]
    measured: tuple[Round, ...]
    stages: Stages

    @property
    def hand_over_s(self) -> Figure:
        """95% of the profile; the value only where it is narrow enough to be one."""
        told = [fit.hand_over_s for fit in self.fits]
        return self._figure(self.fits[0].hand_over_s, told)

    def busy_share(self, concurrency: int) -> Figure | None:
        """Computing of all batches / (P * round); None for an N whose round was not measured."""
        seconds = next((seen.seconds for seen in self.measured if seen.concurrency == concurrency), None)
        if seconds is None:
            return None
        batches = self.stages.batches(concurrency)
        told = [
            (batches * fit.fixed_s + concurrency * fit.per_sequence_s) / (self.stages.count * seconds)
            for fit in self.fits
        ]
        return self._figure(told[0], told)

    def _figure(self, best: float, told: Sequence[float]) -> Figure:
        reach = max(fit.hand_over_s for fit in self.fits) - min(fit.hand_over_s for fit in self.fits)
        narrow = reach * self.stages.count <= WIDE * self.measured[0].seconds
        return Figure(best if narrow else None, min(told), max(told))


def fit_rounds(measured: Sequence[Round], stages: Stages) -> Profile | None:
    """The hand-overs that fit the rounds; None without a round of one stream and two others."""
    if len(measured) < 3 or measured[0].concurrency != 1:
        return None
    most = measured[0].seconds / stages.count
    coarse = [_fit(float(h), measured, stages) for h in np.linspace(0.0, most, _NUM_TRIALS)]
    allowed = _allowed(coarse, measured)
    step = most / (_NUM_TRIALS - 1)
    low = max(0.0, min(fit.hand_over_s for fit in allowed) - step)
    high = min(most, max(fit.hand_over_s for fit in allowed) + step)
    fine = [_fit(float(h), measured, stages) for h in np.linspace(low, high, _NUM_TRIALS)]
    return Profile(tuple(_allowed(fine, measured)), tuple(measured), stages)


def _allowed(fits: Sequence[Fit], measured: Sequence[Round]) -> list[Fit]:
    """Within 95% of the best one, best first. What even the best misses counts as scatter of the rounds."""
    ranked = sorted(fits, key=lambda fit: fit.misfit)
    degrees = len(measured) - 3
    scatter = max(1.0, ranked[0].misfit / degrees) if degrees > 0 else 1.0
    reach = distributions.chi2_ppf(CONFIDENCE, 1) * scatter
    return [fit for fit in ranked if fit.misfit <= ranked[0].misfit + reach]


def _fit(hand_over_s: float, measured: Sequence[Round], stages: Stages) -> Fit:
    """The best a, d >= 0 at one hand-over."""
    from scipy.optimize import least_squares  # takes long to load, and only pipelines need it

    streams = np.array([seen.concurrency for seen in measured], dtype=np.float64)
    batches = np.array([stages.batches(seen.concurrency) for seen in measured], dtype=np.float64)
    largest = np.array([ceil(n / m) for n, m in zip(streams, batches, strict=True)], dtype=np.float64)
    logs = np.array([log(seen.seconds) for seen in measured])
    errors = np.array([seen.log_error for seen in measured])

    def misses(theta: Array) -> Array:
        a, d = theta
        way = a + d * largest + stages.count * hand_over_s
        work = stages.slowest * (batches * a + streams * d)
        told: Array = (np.log(np.maximum(np.maximum(way, work), 1e-12)) - logs) / errors
        return told

    computing = max(measured[0].seconds - stages.count * hand_over_s, 1e-9)
    tried = [
        least_squares(misses, [share * computing, (1 - share) * computing], bounds=(0.0, np.inf), x_scale=computing)
        for share in _STARTS
    ]
    best = min(tried, key=lambda found: float(found.cost))
    return Fit(hand_over_s, float(best.x[0]), float(best.x[1]), 2 * float(best.cost))
