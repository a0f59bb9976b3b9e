"""The step-time and acceptance model, METHOD 6: few cells in, the map between them out.

    X(c, K, N) = N * tau_c(K) / T(N, K)
    T(N, K) = θ0 + θ1*U(n) + θ2*N*(K+1) + [K > 0] * (θ3 + θ4*K) + θ5*N,   n = N*(K+1) / min(N, P),   all θ >= 0
    tau_c(K) = 1 + Σ_j Π_{i<=j} min(1, α_c * ρ_c**(i-1))

c: content; K: draft tokens of a step; N: streams; P: pipeline stages. U is the number of experts that n tokens wake in
a mixture-of-experts model; a dense model has no θ1. θ5 is what a stream costs however many tokens it verifies: reading
its KV cache (context is the protocol's own, so it is part of the coefficient) and sampling. T is one round of all N
streams in seconds of the whole wall, reading included: N * tau / X. Off is K = 0, tau = 1.

A drafter that does not draft in every step (n-gram, suffix) enters with what an engine step really carries: K is the
mean number of drafted tokens per engine step, not the K it was asked for, and tau is tokens per engine step.

Acceptance is fitted to counters and step time to throughput; neither sees the other's data. The model answers only
inside the range it was fitted on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np
from scipy.optimize import minimize, nnls

from specprof.analyse.stats import Array

_SURE = 1e-12  # an acceptance of exactly 1 would make a single rejection impossible instead of unlikely
_SLACK = 1e-9  # of a range's ends: a mean of equal numbers may miss them by a rounding


class OutsideFit(ValueError):
    """A question about what the model was not fitted on."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured cell as the model sees it.

    `draft_tokens` (K) and `tokens_per_step` (tau) are per *engine step*; with speculation off they are 0 and 1.
    `drafter` names what drafts, since another drafter costs another time; empty with speculation off.
    """

    tag: str
    arm: str
    concurrency: int
    draft_tokens: float
    tokens_per_step: float
    throughput_tok_s: float
    drafter: str = ""

    @property
    def step_time_s(self) -> float:
        """T = N * tau / X, seconds."""
        return self.concurrency * self.tokens_per_step / self.throughput_tok_s


# -- acceptance ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AcceptanceModel:
    """How well one drafter guesses one content: position i holds with min(1, α * ρ**(i-1)) once the earlier ones did.

    `max_draft_tokens`: the last position that was drafted in what it was fitted on.
    """

    alpha: float
    rho: float
    max_draft_tokens: int

    def survival(self, draft_tokens: int) -> Array:
        """S_1 … S_K: share of drafted steps that accept each position. Raises OutsideFit beyond the last one fitted."""
        if not 0 <= draft_tokens <= self.max_draft_tokens:
            raise OutsideFit(f"K = {draft_tokens}: acceptance was fitted on positions 1 to {self.max_draft_tokens}")
        return _survival(self.alpha, self.rho, draft_tokens)

    def length(self, draft_tokens: int) -> float:
        """tau(K) = 1 + Σ S_j: tokens of a drafted step, the bonus token included."""
        return 1.0 + float(self.survival(draft_tokens).sum())


def _survival(alpha: float, rho: float, draft_tokens: int) -> Array:
    held: Array = np.cumprod(np.minimum(1.0, alpha * rho ** np.arange(draft_tokens, dtype=np.float64)))
    return held


def fit_acceptance(counts: Sequence[tuple[Sequence[float] | Array, float]]) -> AcceptanceModel:
    """α and ρ of greatest likelihood, from counters alone.

    `counts`: per measured cell, how many steps accepted position 1 … K, and how many steps had a draft. Given that
    position i - 1 held, position i is a coin: cells of different K pool position by position. With one position there
    is no slope to see and ρ is 1. Raises ValueError without any step.
    """
    tried, held = _pooled(counts)
    if not tried.sum():
        raise ValueError("no verification step had a draft: there is no acceptance to fit")
    longest, first = len(tried), float(held[0] / tried[0])
    positions = np.flatnonzero(tried)  # a position that no step came to says nothing
    tried, held = tried[positions], held[positions]
    if first == 0 or len(positions) == 1 or (held == tried).all():
        return AcceptanceModel(first, 1.0, longest)

    def unlikelihood(logs: Array) -> float:
        chance = np.clip(np.exp(np.minimum(0.0, logs[0] + logs[1] * positions)), _SURE, 1 - _SURE)
        return -float(np.sum(held * np.log(chance) + (tried - held) * np.log1p(-chance)))

    best = minimize(unlikelihood, [log(first), 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-9})
    return AcceptanceModel(exp(best.x[0]), exp(best.x[1]), longest)


def _pooled(counts: Sequence[tuple[Sequence[float] | Array, float]]) -> tuple[Array, Array]:
    """Steps in which each position was up to be judged (all before it held), and those in which it held too."""
    longest = max((len(accepted) for accepted, _ in counts), default=0)
    tried, held = np.zeros(longest), np.zeros(longest)
    for accepted, num_steps in counts:
        curve = np.asarray(accepted, dtype=np.float64)
        tried[: len(curve)] += np.concatenate([[num_steps], curve[:-1]])
        held[: len(curve)] += curve
    return tried, held


def fit_acceptance_to_lengths(lengths: Mapping[int, float]) -> AcceptanceModel:
    """α and ρ from acceptance lengths by K, where the server does not say which positions held.

    Least squares on ln tau(K). One K alone cannot tell α from ρ; ρ is 1 then.
    Raises ValueError for lengths outside [1, K + 1].
    """
    for k, length in lengths.items():
        if not 1 <= length <= k + 1:
            raise ValueError(f"K = {k}: an acceptance length of {length} lies outside 1 to {k + 1}")

    def misfit(parameters: Array) -> float:
        alpha, rho = np.exp(parameters[0]), np.exp(parameters[1]) if len(lengths) > 1 else 1.0
        told = (1 + _survival(alpha, rho, k).sum() for k in lengths)
        return sum(log(one / other) ** 2 for one, other in zip(told, lengths.values(), strict=True))

    start = [log(0.5), 0.0] if len(lengths) > 1 else [log(0.5)]
    best = minimize(misfit, start, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-15})
    alpha = exp(best.x[0])
    if len(lengths) == 1:
        return AcceptanceModel(min(alpha, 1.0), 1.0, max(lengths))  # any larger one fits as well
    return AcceptanceModel(alpha, exp(best.x[1]), max(lengths))


def tokens_per_engine_step(acceptance_length: float, draft_share: float, output_tokens: float) -> float:
    """tau over all engine steps of a text: the first only reads the prompt, of the others `draft_share` carry a draft.

    A text of L tokens takes 1 + (L - 1) / (1 + share * (AL - 1)) steps.
    """
    later = 1 + draft_share * (acceptance_length - 1)
    return output_tokens / (1 + (output_tokens - 1) / later)


# -- step time -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture-of-experts layer: `total` experts, `active` of them chosen by each token."""

    total: int
    active: int

    def __post_init__(self) -> None:
        if not 0 < self.active <= self.total:
            raise ValueError(f"{self.active} of {self.total} experts cannot be active")

    def awake(self, tokens: float) -> float:
        """U(t) = E * (1 - (1 - k/E)**t): distinct experts whose weights t tokens make a step read."""
        return self.total * (1 - float((1 - self.active / self.total) ** tokens))


@dataclass(frozen=True, slots=True)
class DraftCost:
    """θ3 and θ4 of one drafter, seconds, and the range of K > 0 and N they were fitted on."""

    drafter: str
    fixed_s: float
    per_draft_token_s: float
    min_draft_tokens: float
    max_draft_tokens: float
    min_concurrency: int
    max_concurrency: int


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """T(N, K), fitted. Times in seconds: θ0 `fixed_s`, θ1 `per_expert_s`, θ2 `per_token_s`, θ5 `per_stream_s`.

    θ3 and θ4 are each drafter's own (`drafts`); the rest is the target's, and all drafters share it.
    """

    fixed_s: float
    per_expert_s: float
    per_token_s: float
    per_stream_s: float
    drafts: tuple[DraftCost, ...]
    min_concurrency: int
    max_concurrency: int
    stages: int = 1
    experts: Experts | None = None

    def step_time_s(self, concurrency: float, draft_tokens: float = 0.0, drafter: str = "") -> float:
        """Seconds of one round of N streams, K draft tokens each. Raises OutsideFit outside the range fitted."""
        _require(concurrency, "N", self.min_concurrency, self.max_concurrency)
        parts = _target_terms(concurrency, draft_tokens, self.stages, self.experts)
        theta = (self.fixed_s, self.per_expert_s, self.per_token_s, self.per_stream_s)
        total = float(np.dot(parts, theta))
        if draft_tokens == 0:
            return total
        cost = self._cost(drafter)
        _require(concurrency, f"N with {drafter or 'drafts'}", cost.min_concurrency, cost.max_concurrency)
        _require(draft_tokens, f"K of {drafter or 'drafts'}", cost.min_draft_tokens, cost.max_draft_tokens)
        return total + cost.fixed_s + cost.per_draft_token_s * draft_tokens

    def throughput_tok_s(
        self, concurrency: float, tokens_per_step: float = 1.0, draft_tokens: float = 0.0, drafter: str = ""
    ) -> float:
        """X = N * tau / T, tok/s. Raises OutsideFit outside the range fitted."""
        return concurrency * tokens_per_step / self.step_time_s(concurrency, draft_tokens, drafter)

    def _cost(self, drafter: str) -> DraftCost:
        for cost in self.drafts:
            if cost.drafter == drafter:
                return cost
        raise OutsideFit(f"drafter {drafter!r} was not among the cells fitted")


def _require(value: float, name: str, low: float, high: float) -> None:
    """Refuse to extrapolate."""
    if not low * (1 - _SLACK) <= value <= high * (1 + _SLACK):
        raise OutsideFit(f"{name} = {value:g} lies outside {low:g} to {high:g}, where the model was fitted")


def fit_step_time(
    observations: Sequence[Observation], *, stages: int = 1, experts: Experts | None = None
) -> StepTimeModel:
    """θ >= 0 by least squares on relative errors: every row divided by its own T.

    Terms that the cells cannot tell apart (θ3 and θ4 at a single K, θ0 and θ5 at a single N) share what they cost
    together, which is all that a question inside the fitted range needs. Raises ValueError without a cell.
    """
    if not observations:
        raise ValueError("there is no cell to fit a step time to")
    drafters = sorted({seen.drafter for seen in observations if seen.draft_tokens > 0})
    rows = np.array([_terms(seen, drafters, stages, experts) for seen in observations])
    times = np.array([seen.step_time_s for seen in observations])
    theta, _ = nnls(rows / times[:, None], np.ones(len(times)))
    fixed, per_expert, per_token, per_stream = (float(value) for value in theta[:_NUM_TARGET_TERMS])
    drafting = theta[_NUM_TARGET_TERMS:].reshape(-1, 2)
    streams = [seen.concurrency for seen in observations]
    return StepTimeModel(
        fixed_s=fixed,
        per_expert_s=per_expert,
        per_token_s=per_token,
        per_stream_s=per_stream,
        drafts=tuple(_draft_cost(name, cost, observations) for name, cost in zip(drafters, drafting, strict=True)),
        min_concurrency=min(streams),
        max_concurrency=max(streams),
        stages=stages,
        experts=experts,
    )


def _draft_cost(drafter: str, cost: Array, observations: Sequence[Observation]) -> DraftCost:
    mine = [seen for seen in observations if seen.draft_tokens > 0 and seen.drafter == drafter]
    lengths, streams = [seen.draft_tokens for seen in mine], [seen.concurrency for seen in mine]
    return DraftCost(drafter, float(cost[0]), float(cost[1]), min(lengths), max(lengths), min(streams), max(streams))


_NUM_TARGET_TERMS = 4


def _target_terms(
    concurrency: float, draft_tokens: float, stages: int, experts: Experts | None
) -> tuple[float, float, float, float]:
    """What θ0, θ1, θ2 and θ5 are multiplied with."""
    tokens = concurrency * (draft_tokens + 1)
    awake = experts.awake(tokens / min(concurrency, stages)) if experts else 0.0
    return 1.0, awake, tokens, concurrency


def _terms(seen: Observation, drafters: Sequence[str], stages: int, experts: Experts | None) -> list[float]:
    """The target's terms, then those of θ3 and θ4 of each drafter."""
    row = [*_target_terms(seen.concurrency, seen.draft_tokens, stages, experts)]
    for drafter in drafters:
        mine = seen.draft_tokens > 0 and seen.drafter == drafter
        row += [1.0, seen.draft_tokens] if mine else [0.0, 0.0]
    return row
