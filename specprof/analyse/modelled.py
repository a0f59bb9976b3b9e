"""What a study's measured cells say of the cells between them, METHOD 6: held-out error, crossover N* and K*.

One `ModelFigures` for each forced protocol. The model is first fitted on few cells (smallest and largest N, smallest
and largest K) and held against all others; what is shown afterwards is fitted on all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log

import numpy as np

from specprof.analyse.crossover import Where, fall_through_one
from specprof.analyse.observed import Seen, drafters, few_and_rest, observe
from specprof.analyse.results import Figure, GainFigures, StudyFigures
from specprof.analyse.steptime import (
    AcceptanceModel,
    Experts,
    OutsideFit,
    StepTimeModel,
    fit_acceptance,
    fit_acceptance_to_lengths,
    fit_step_time,
    tokens_per_engine_step,
)
from specprof.records import Stop


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A measured cell the model had not seen. `error` is predicted / measured - 1."""

    tag: str
    protocol: str
    arm: str
    concurrency: int
    measured_tok_s: float
    predicted_tok_s: float
    error: float


@dataclass(frozen=True, slots=True)
class Crossover:
    """N*: where the speculation gain S(N) of an arm falls through 1. Never extrapolated.

    `inside`: between two N of the study, `concurrency.value` streams. `above`: the gain is still at least 1 at the
    largest N; `below`: it is under 1 at the smallest; the value is None then, and low and high say what is known
    (`crossover.fall_through_one`). `modelled`: an N next to the crossing was not measured for this arm; the gain there
    is the model's. `span`: the fewest and most N of its curve, beyond which a bound lies that is None; empty where
    some gain has no interval, so that nothing is known of the bounds.
    """

    tag: str
    protocol: str
    arm: str
    concurrency: Figure
    where: Where
    modelled: bool = False
    span: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BestDraft:
    """K* of one drafter at one load: the K of largest X, off counted as K = 0 (`arm` is then the off arm).

    `modelled`: that K was not measured there; `arm` is the drafter's measured arm of the nearest K, and the interval of
    `throughput` (tok/s) is the model's held-out 90% error. `drafter`: whose K was chosen, named after its
    first arm. `offered`: the K of this drafter that were measured on this content, rising.
    """

    tag: str
    protocol: str
    concurrency: int
    arm: str
    draft_tokens: int
    throughput: Figure
    modelled: bool
    drafter: str = ""
    offered: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DrafterAcceptance:
    """The acceptance model of one drafter on one content, and the share of decoding steps that carry a draft."""

    tag: str
    drafter: str
    model: AcceptanceModel
    draft_share: float


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """What the model says of one forced protocol. `model` is None where the cells are too few (`notes` say why).

    `median_error` and `p90_error` are of |predicted / measured - 1| over `held_out`; None where nothing was held out.
    """

    protocol: str
    model: StepTimeModel | None
    acceptance: tuple[DrafterAcceptance, ...]
    held_out: tuple[HeldOut, ...]
    median_error: float | None
    p90_error: float | None
    crossovers: tuple[Crossover, ...]
    best: tuple[BestDraft, ...]
    notes: tuple[str, ...] = ()


def model_study(figures: StudyFigures, stages: int = 1, experts: Experts | None = None) -> tuple[ModelFigures, ...]:
    """The model of each forced protocol of a study, in the study's order.

    `stages`: pipeline stages P; `experts`: of a mixture-of-experts model, None for a dense one.
    """
    forced = dict.fromkeys(cell.protocol for cell in figures.cells if cell.stop == Stop.FORCED)
    return tuple(_model_protocol(figures, protocol, stages, experts) for protocol in forced)


def _model_protocol(figures: StudyFigures, protocol: str, stages: int, experts: Experts | None) -> ModelFigures:
    cells = [cell for cell in figures.cells if cell.protocol == protocol]
    drafter = drafters(dict.fromkeys(cell.arm for cell in figures.cells), figures.arms)
    seen = [one for cell in cells if (one := observe(cell, drafter[cell.arm])) is not None]
    few, rest = few_and_rest(seen)
    held_out = tuple(_held_out(_fit(few, stages, experts), rest)) if rest else ()
    errors = [abs(one.error) for one in held_out]
    p90 = float(np.quantile(errors, 0.9)) if errors else None
    several = len({(one.asked, one.cell.concurrency) for one in seen}) > 1
    fit = _fit(seen, stages, experts) if several else None
    gains = [gain for gain in figures.gains if gain.protocol == protocol]
    return ModelFigures(
        protocol=protocol,
        model=fit.step_time if fit else None,
        acceptance=tuple(fit.acceptance.values()) if fit else (),
        held_out=held_out,
        median_error=float(np.median(errors)) if errors else None,
        p90_error=p90,
        crossovers=tuple(_crossovers(seen, gains, fit, p90)),
        best=tuple(_best(seen, fit, p90)),
        notes=tuple(_notes(len(cells) - len(seen), seen, held_out)),
    )


def _notes(num_left_out: int, seen: Sequence[Seen], held_out: Sequence[HeldOut]) -> Iterator[str]:
    if num_left_out:
        cells = "1 cell is" if num_left_out == 1 else f"{num_left_out} cells are"
        yield f"{cells} not in the model: gated, not run at their N, or silent on drafts."
    if len({(one.asked, one.cell.concurrency) for one in seen}) < 2:
        yield "There are too few cells to fit a model to: it takes two different N or K."
    elif not held_out:
        yield "No cell could be held out: the model's error is not known. A third N would show it."


# -- fit and prediction ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fit:
    """The model fitted to some cells: predicts any other inside their range."""

    step_time: StepTimeModel
    acceptance: Mapping[tuple[str, str], DrafterAcceptance]  # by tag and drafter
    seen: Sequence[Seen]

    def throughput(self, tag: str, drafter: str, asked: int, concurrency: int) -> float | None:
        """X of a content at K and N, tok/s; None outside the range fitted."""
        try:
            if not asked:
                return self.step_time.throughput_tok_s(concurrency)
            drafted, per_step = self._per_step(tag, drafter, asked)
            return self.step_time.throughput_tok_s(concurrency, per_step, drafted, drafter)
        except OutsideFit:
            return None

    def _per_step(self, tag: str, drafter: str, asked: int) -> tuple[float, float]:
        """Drafted and delivered tokens per engine step: counted where this K was measured at any N, else modelled."""
        counted = [
            one.as_observed for one in self.seen if (one.cell.tag, one.drafter, one.asked) == (tag, drafter, asked)
        ]
        if counted:
            return _mean(one.draft_tokens for one in counted), _mean(one.tokens_per_step for one in counted)
        found = self.acceptance.get((tag, drafter))
        if found is None:
            raise OutsideFit(f"nothing is known of how {drafter} guesses {tag}")
        per_step = tokens_per_engine_step(found.model.length(asked), found.draft_share, self._length(tag))
        return found.draft_share * asked, per_step

    def _length(self, tag: str) -> float:
        return _mean(one.cell.length for one in self.seen if one.cell.tag == tag)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _fit(seen: Sequence[Seen], stages: int, experts: Experts | None) -> _Fit:
    step_time = fit_step_time([one.as_observed for one in seen], stages=stages, experts=experts)
    groups: dict[tuple[str, str], list[Seen]] = defaultdict(list)
    for one in seen:
        if not one.is_off:
            groups[one.cell.tag, one.drafter].append(one)
    drafted = {key: group for key, group in groups.items() if any(one.draft_share > 0 for one in group)}
    return _Fit(step_time, {key: _acceptance(*key, group) for key, group in drafted.items()}, seen)


def _acceptance(tag: str, drafter: str, group: Sequence[Seen]) -> DrafterAcceptance:
    """From survival counts; from acceptance lengths where the server does not tell its steps one by one."""
    counts: list[tuple[list[float], float]] = []
    lengths: dict[int, list[float]] = defaultdict(list)
    for one in group:
        steps = one.cell.acceptance_counts.num_steps if one.cell.acceptance_counts else 0
        if one.cell.survival:
            counts.append(([(held.value or 0.0) * steps for held in one.cell.survival], steps))
        if one.cell.acceptance_length is not None and one.cell.acceptance_length.value:
            lengths[one.asked].append(one.cell.acceptance_length.value)
    by_length = {k: _mean(values) for k, values in lengths.items()}
    model = fit_acceptance(counts) if counts else fit_acceptance_to_lengths(by_length)
    return DrafterAcceptance(tag, drafter, model, _mean(one.draft_share for one in group))


def _held_out(fit: _Fit, rest: Sequence[Seen]) -> Iterator[HeldOut]:
    for one in rest:
        cell, measured = one.cell, one.as_observed.throughput_tok_s
        predicted = fit.throughput(cell.tag, one.drafter, one.asked, cell.concurrency)
        if predicted is not None:
            error = predicted / measured - 1
            yield HeldOut(cell.tag, cell.protocol, cell.arm, cell.concurrency, measured, predicted, error)


# -- crossover -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Gain:
    """S at one N, measured or the model's."""

    concurrency: int
    gain: Figure
    modelled: bool = False


def _crossovers(
    seen: Sequence[Seen], gains: Sequence[GainFigures], fit: _Fit | None, error: float | None
) -> Iterator[Crossover]:
    usable = {(one.cell.tag, one.cell.arm, one.cell.concurrency) for one in seen}
    off_streams: dict[str, set[int]] = defaultdict(set)
    for one in seen:
        if one.is_off:
            off_streams[one.cell.tag].add(one.cell.concurrency)
    arms = dict.fromkeys((one.cell.tag, one.cell.arm, one.drafter, one.asked) for one in seen if not one.is_off)
    for tag, arm, drafter, asked in arms:
        curve = {
            gain.concurrency: _Gain(gain.concurrency, gain.speculation_gain)
            for gain in gains
            if (gain.tag, gain.arm) == (tag, arm)
            and gain.speculation_gain.value
            and (tag, arm, gain.concurrency) in usable
            and gain.concurrency in off_streams[tag]
        }
        for n in off_streams[tag] - set(curve):
            told = _modelled_gain(fit, tag, drafter, asked, n, error)
            if told is not None:
                curve[n] = _Gain(n, told, modelled=True)
        if curve:
            yield _crossover(tag, seen[0].cell.protocol, arm, sorted(curve.values(), key=lambda one: one.concurrency))


def _modelled_gain(
    fit: _Fit | None, tag: str, drafter: str, asked: int, concurrency: int, error: float | None
) -> Figure | None:
    on = fit.throughput(tag, drafter, asked, concurrency) if fit else None
    off = fit.throughput(tag, "", 0, concurrency) if fit else None
    return _within(on / off, error) if on and off else None


def _within(predicted: float, error: float | None) -> Figure:
    """A prediction, and what the truth may be if predictions err by ±`error`."""
    if error is None:
        return Figure(predicted)
    return Figure(predicted, predicted / (1 + error), predicted / (1 - error) if error < 1 else None)


def _crossover(tag: str, protocol: str, arm: str, curve: Sequence[_Gain]) -> Crossover:
    fall = fall_through_one([one.concurrency for one in curve], [one.gain for one in curve])
    modelled = any(curve[place].modelled for place in fall.between)
    bounded = all(one.gain.low is not None and one.gain.high is not None for one in curve)
    span = (curve[0].concurrency, curve[-1].concurrency) if bounded else ()
    return Crossover(tag, protocol, arm, fall.concurrency, fall.where, modelled, span)


# -- the best K ------------------------------------------------------------------------------------------------------


def _best(seen: Sequence[Seen], fit: _Fit | None, error: float | None) -> Iterator[BestDraft]:
    """K* of every drafter at every content and N where off was measured too."""
    drafted = dict.fromkeys((one.cell.tag, one.drafter) for one in seen if not one.is_off)
    for off in seen:
        if not off.is_off:
            continue
        for tag, drafter in drafted:
            if tag == off.cell.tag:
                own = [one for one in seen if (one.cell.tag, one.drafter) == (tag, drafter)]
                best = max(_candidates(off, own, fit, error), key=lambda one: one.throughput.value or 0.0)
                yield replace(best, offered=tuple(sorted({one.asked for one in own})))


def _candidates(off: Seen, own: Sequence[Seen], fit: _Fit | None, error: float | None) -> Iterator[BestDraft]:
    """Off, the K measured at this N, and the model's K between the smallest and the largest of this drafter."""
    n, drafter = off.cell.concurrency, own[0].drafter
    here = {one.asked: one for one in own if one.cell.concurrency == n}
    for one in (off, *here.values()):
        yield _measured(one, drafter)
    for asked in range(min(one.asked for one in own), max(one.asked for one in own) + 1):
        predicted = _anchored(fit, off.cell.tag, drafter, asked, n, here) if fit and asked not in here else None
        if predicted is not None:
            arm = min(own, key=lambda one: abs(one.asked - asked)).cell.arm
            within = _within(predicted, error)
            yield BestDraft(off.cell.tag, off.cell.protocol, n, arm, asked, within, modelled=True, drafter=drafter)


def _measured(one: Seen, drafter: str) -> BestDraft:
    cell = one.cell
    return BestDraft(
        cell.tag,
        cell.protocol,
        cell.concurrency,
        cell.arm,
        one.asked,
        cell.throughput_tok_s,
        modelled=False,
        drafter=drafter,
    )


def _anchored(
    fit: _Fit, tag: str, drafter: str, asked: int, concurrency: int, here: Mapping[int, Seen]
) -> float | None:
    """The model's X at this K, passing through the measured cells of the neighbouring K at the same N.

    A cell the model has 3% too high would otherwise lose to its own neighbour's prediction.
    """
    predicted = fit.throughput(tag, drafter, asked, concurrency)
    misses = {}
    for k, one in here.items():
        told = fit.throughput(tag, drafter, k, concurrency)
        if told is not None:
            misses[k] = log(one.as_observed.throughput_tok_s / told)
    if predicted is None or not misses:
        return predicted
    known = sorted(misses)
    return predicted * exp(float(np.interp(asked, known, [misses[k] for k in known])))
