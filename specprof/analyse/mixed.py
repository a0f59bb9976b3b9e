"""Mixed traffic: what sharing a batch with another content does to a content, each against itself alone (METHOD 2, 4).

An engine step verifies everybody's drafts together, so it takes as long for the content that drafted nothing as for the
one that filled it. Per request

    decode speed = tokens per step × steps per second

and of the two only the second can change: what is accepted is a matter of the text. So a content's tokens per step are
taken over its whole text, and its steps per second over the time in which all N streams of the cell had work: a cell of
one content drains at its end, and the fast steps of a half-empty batch would pass for what being alone is worth.
Requests that only filled the batch are in no figure.

Two contents also differ in the length of their prompts. What that does shows with speculation off, and is divided out
of an arm with speculation before the question is answered: slowed by more than 5%, not slowed, or undecided, by the 90%
interval of an equivalence test.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp, log

import numpy as np

from specprof.analyse import comparisons, gates, stats
from specprof.analyse.content import EQUIVALENCE_MARGIN
from specprof.analyse.evidence import Evidence, Key, Series, alike
from specprof.analyse.frames import CellFrame
from specprof.analyse.gates.found import LaunchFindings, each_once, on_launch
from specprof.analyse.requests import NS
from specprof.analyse.results import NOTHING, CellFigures, Figure, GateFinding, MixFigures, MixVerdict, Severity
from specprof.analyse.stats import Array
from specprof.records import Cell, Role, arm_in_words

MIN_STEPS = 8  # of a request at full load: a speed made of fewer is noise
NUM_STRETCHES = 8  # of a cell, whose scatter says how steady its pace was

ByBlock = Mapping[int, Mapping[str, float]]  # block → prompt id → ln of a quantity


@dataclass(frozen=True, slots=True)
class Pace:
    """One content in one series at full load: ln decode speed (tok/s) and ln steps per second, by block and prompt.

    `unrest`: variance that the cells' own unsteadiness gives the mean of either, and its degrees of freedom.
    """

    decode_speed: ByBlock
    steps_per_s: ByBlock
    unrest: tuple[float, int]


@dataclass(frozen=True, slots=True)
class LogRatio:
    """A mean over prompts and launches of a sum of logs, with its standard error and degrees of freedom (0: none)."""

    estimate: float
    error: float
    degrees: float
    num_prompts: int
    num_blocks: int

    @property
    def figure(self) -> Figure:
        """The ratio with its 95% interval."""
        return stats.around_log(self.estimate, self.error, self.degrees) if self.degrees else Figure(exp(self.estimate))


def mixed_effects(
    evidence: Evidence,
    shown: Mapping[Key, CellFigures],
    of_launch: LaunchFindings = (),
    limits: Mapping[int, gates.Limits] | None = None,
) -> Iterator[MixFigures]:
    """Every content of every mixed cell against itself alone, at the same N on the same arm.

    `shown`: the figures of the cells of one content, whose gates count for a mix of it; `of_launch`: gates 5 and 6;
    `limits`: of client and machine, by launch number.
    """
    mixes = _Mixes(evidence, shown, of_launch, limits or {})
    for key, series in evidence.series_of(Role.MIXED):
        for tag in dict.fromkeys(series.cell.prompt_tags):
            yield mixes.figures(key, tag)


class _Mixes:
    """The mixed series of a study, and how each content of one is found alone and without speculation."""

    def __init__(
        self,
        evidence: Evidence,
        shown: Mapping[Key, CellFigures],
        of_launch: LaunchFindings,
        limits: Mapping[int, gates.Limits],
    ) -> None:
        self._evidence, self._shown, self._of_launch, self._limits = evidence, shown, of_launch, limits
        self._paces: dict[tuple[Key, str], Pace] = {}

    def figures(self, key: Key, tag: str) -> MixFigures:
        """What the mix did to one of its contents."""
        cell = self._evidence.series[key].cell
        own, off = self._pair(key, tag), self._pair(self._without(key), tag)
        speculates = bool(cell.speculative_config)
        ratio = paired(own, "decode_speed")
        control = paired(off, "decode_speed") if speculates else None
        tested = paired([*own, *_turned(off)], "decode_speed") if control else ratio
        verdict, reach = slowed(tested)
        findings = self._findings(key)
        alone = self._alone(key, tag)
        return MixFigures(
            tag=tag,
            beside=tuple(other for other in dict.fromkeys(cell.prompt_tags) if other != tag),
            protocol=cell.protocol,
            stop=cell.stop.value,
            length=cell.max_tokens,
            alone_protocol=alone[1] if alone else "",
            arm=cell.arm,
            method=arm_in_words(cell.speculative_config),
            concurrency=cell.concurrency,
            num_prompts=ratio.num_prompts if ratio else 0,
            num_blocks=ratio.num_blocks if ratio else 0,
            decode_speed_alone_tok_s=_figure(paired(_only(own, -1), "decode_speed")),
            decode_speed_mixed_tok_s=_figure(paired(_only(own, 1), "decode_speed")),
            decode_speed_ratio=_figure(ratio),
            acceptance_length_ratio=self._acceptance_ratio(key, tag) if speculates else None,
            steps_per_s_ratio=_figure(paired(own, "steps_per_s")),
            control_ratio=_figure(control) if speculates else None,
            tested_ratio=reach,
            speculation_gain_alone=_figure(paired(_gain(own, off, -1), "decode_speed")) if speculates else None,
            speculation_gain_mixed=_figure(paired(_gain(own, off, 1), "decode_speed")) if speculates else None,
            verdict=verdict,
            gates=findings,
            valid=self._is_valid(key) and (not speculates or self._is_valid(self._without(key))),
        )

    def _without(self, key: Key) -> Key:
        tag, protocol, _, concurrency = key
        return tag, protocol, self._evidence.off_arm or "", concurrency

    def _alone(self, key: Key, tag: str) -> Key | None:
        """The content by itself: same arm and N, under a protocol with the same stop rule, length and sampling."""
        mixed = self._evidence.series.get(key)
        if mixed is None:
            return None
        own = ((k, s.cell) for k, s in self._evidence.series_of(Role.FIGURE) if k[0] == tag)
        return next((k for k, cell in own if _same_task(cell, mixed.cell)), None)

    def _pair(self, key: Key, tag: str) -> Terms:
        """The content in the mix over the content alone; empty where one of them was not measured."""
        alone = self._alone(key, tag)
        return [] if alone is None else [(self._pace(key, tag), 1), (self._pace(alone, tag), -1)]

    def _pace(self, key: Key, tag: str) -> Pace:
        if (key, tag) not in self._paces:
            self._paces[key, tag] = pace(self._evidence.series[key], tag)
        return self._paces[key, tag]

    def _acceptance_ratio(self, key: Key, tag: str) -> Figure:
        """Acceptance length in the mix over that alone, paired by prompt: 1 if acceptance is a matter of content."""
        alone = self._alone(key, tag)
        if alone is None:
            return NOTHING
        mixed, by_itself = (_acceptance_lengths(self._evidence.series[k]) for k in (key, alone))
        shared = [name for name in mixed if name in by_itself]
        return stats.log_mean(np.array([mixed[name] / by_itself[name] for name in shared]))

    def _findings(self, key: Key) -> tuple[GateFinding, ...]:
        """The gates of the mixed cells, each once."""
        off = self._evidence.series.get(self._without(key))
        found: list[GateFinding] = []
        for frame in (*self._evidence.series[key].frames, *self._evidence.failed(key)):
            at_most = self._limits.get(frame.data.launch, gates.UNLIMITED)
            found += [*gates.mixed_gates(frame, at_most), *comparisons.changed_output(frame, off.frames if off else ())]
            found += on_launch(frame.data.launch, self._of_launch)
        return each_once(found)

    def _is_valid(self, key: Key) -> bool:
        """Whether no gate forbids the mix, nor any of its contents alone: a looping text speaks for no content."""
        series = self._evidence.series.get(key)
        if series is None:
            return True
        alone = (self._alone(key, tag) for tag in dict.fromkeys(series.cell.prompt_tags))
        forbidden = any(gate.severity is Severity.INVALID for gate in self._findings(key))
        return not forbidden and all(self._shown[k].valid for k in alone if k is not None and k in self._shown)


# -- one content at full load ----------------------------------------------------------------------------------------


def pace(series: Series, tag: str) -> Pace:
    """How fast one content of a series was written while all of its streams had work."""
    speeds: dict[int, dict[str, float]] = {}
    steps: dict[int, dict[str, float]] = {}
    variances = []
    for frame in series.frames:
        window = full_load(frame)
        if window is None:
            continue
        rates, scatter = _rates(frame, tag, window)
        per_step = _tokens_per_step(frame)
        steps[frame.cell.block] = rates
        speeds[frame.cell.block] = {name: rate + per_step[name] for name, rate in rates.items() if name in per_step}
        variances.append(scatter)
    degrees = sum(d for _, d in variances)
    return Pace(speeds, steps, (float(np.mean([v for v, _ in variances])) if degrees else 0.0, degrees))


def full_load(frame: CellFrame) -> tuple[float, float] | None:
    """From when the last stream set out to when the first had no more to send, seconds of the client's clock.

    None if fewer than N streams ever had work. What filled a mixed batch counts as work.
    """
    requests = frame.all_requests
    begun, ended = requests.by_stream(np.minimum, requests.sent), requests.by_stream(np.maximum, requests.done)
    if len(begun) < frame.cell.concurrency:
        return None
    start, end = float(begun.max()), float(ended.min())
    return (start, end) if start < end else None


def _rates(frame: CellFrame, tag: str, window: tuple[float, float]) -> tuple[dict[str, float], tuple[float, int]]:
    """ln(steps per second) at full load by prompt, and how much the content's pace scattered."""
    own = _prompts_of(frame.cell, tag)
    rates: dict[str, float] = {}
    ends, durations = [np.empty(0)], [np.empty(0)]
    for name, arrived in zip(frame.requests.prompt_id, frame.lists("chunk_ns"), strict=True):
        at = arrived / NS
        inside = (at[:-1] >= window[0]) & (at[1:] <= window[1])
        gaps = np.diff(at)[inside]
        if name in own and len(gaps) >= MIN_STEPS and gaps.sum() > 0:
            rates[name] = log(len(gaps) / gaps.sum())
            ends.append(at[1:][inside])
            durations.append(gaps)
    return rates, _scatter(np.concatenate(ends), np.concatenate(durations))


def _scatter(ends: Array, durations: Array) -> tuple[float, int]:
    """Variance of the mean ln step time of a cell, from that of its stretches: steps near in time are no separate
    evidence of how fast the machine was.
    """
    if len(durations) < NUM_STRETCHES * MIN_STEPS:
        return 0.0, 0
    in_time = durations[np.argsort(ends, kind="stable")]
    means = np.array([float(part.mean()) for part in np.array_split(in_time, NUM_STRETCHES)])
    if not means.all():  # a late client read several steps at once: their times tell nothing
        return 0.0, 0
    return stats.variance_of_mean(np.log(means))


def _prompts_of(cell: Cell, tag: str) -> frozenset[str]:
    if not cell.prompt_tags:
        return frozenset(cell.prompt_ids)
    return frozenset(name for name, of in zip(cell.prompt_ids, cell.prompt_tags, strict=True) if of == tag)


def _tokens_per_step(frame: CellFrame) -> dict[str, float]:
    """ln of tokens per step over the whole text, its first chunk left out, by prompt."""
    requests = frame.requests.where((frame.requests.num_chunks > 1) & (frame.requests.later_tokens > 0))
    per_step = np.log(requests.later_tokens / (requests.num_chunks - 1))
    return dict(zip(requests.prompt_id.tolist(), per_step.tolist(), strict=True))


def _acceptance_lengths(series: Series) -> dict[str, float]:
    """AL by prompt, where anything was drafted."""
    accepted, steps = series.by_prompt("num_accepted"), series.by_prompt("num_steps")
    return {name: 1 + accepted[name] / steps[name] for name in steps if steps[name]}


def _same_task(alone: Cell, mixed: Cell) -> bool:
    same = ("arm", "concurrency", "stop", "max_tokens", "mask_eos", "guided", "sampling", "chat")
    fills_its_streams = len(alone.prompt_ids) >= alone.concurrency
    return fills_its_streams and alike(alone, mixed, *same)


# -- comparing --------------------------------------------------------------------------------------------------------

Terms = list[tuple[Pace, int]]  # what is compared, with its sign


def paired(terms: Terms, quantity: str) -> LogRatio | None:
    """Sum of the terms' logs of `quantity`, prompt by prompt and launch by launch; None where they share none.

    Prompts and launches are both in the error. One launch cannot show how it differs from the next: then what is known
    is how steadily each of its cells ran. A single prompt, or cells too short to tell, leave no interval.
    """
    if not terms:
        return None
    sides: list[tuple[ByBlock, int]] = [(getattr(pace, quantity), sign) for pace, sign in terms]
    by_prompt: dict[str, list[float]] = defaultdict(list)
    per_block: list[float] = []
    for block in sorted(set.intersection(*(set(side) for side, _ in sides))):
        names = sorted(set.intersection(*(set(side[block]) for side, _ in sides)))
        sums = [sum(sign * side[block][name] for side, sign in sides) for name in names]
        for name, value in zip(names, sums, strict=True):
            by_prompt[name].append(value)
        per_block += [float(np.mean(sums))] if sums else []
    if not per_block:
        return None
    prompts = stats.variance_of_mean(np.array([np.mean(values) for values in by_prompt.values()]))
    launches = [stats.variance_of_mean(np.array(per_block))] if len(per_block) > 1 else [p.unrest for p, _ in terms]
    known = all(degrees for _, degrees in (prompts, *launches))
    error, degrees = stats.pooled_error([prompts, *launches]) if known else (0.0, 0.0)
    return LogRatio(float(np.mean(per_block)), error, degrees, len(by_prompt), len(per_block))


def slowed(ratio: LogRatio | None) -> tuple[MixVerdict, Figure]:
    """The answer, and the tested ratio with its 90% interval. Faster than alone by whatever much is not slowed."""
    if ratio is None or not ratio.degrees:
        return MixVerdict.UNDECIDED, Figure(exp(ratio.estimate)) if ratio else NOTHING
    _, reach = stats.equivalent(ratio.estimate, ratio.error, ratio.degrees, margin=EQUIVALENCE_MARGIN)
    low, high = reach.low or 0.0, reach.high or 0.0
    limit = -log(1 + EQUIVALENCE_MARGIN)
    verdict = MixVerdict.SLOWED if high < limit else MixVerdict.NOT_SLOWED if low > limit else MixVerdict.UNDECIDED
    return verdict, Figure(exp(ratio.estimate), exp(low), exp(high))


def _figure(ratio: LogRatio | None) -> Figure:
    return ratio.figure if ratio is not None else NOTHING


def _turned(terms: Terms) -> Terms:
    return [(pace, -sign) for pace, sign in terms]


def _only(terms: Terms, sign: int) -> Terms:
    """One side of a comparison, as itself: 1 in the mix, -1 alone."""
    return [(pace, 1) for pace, of in terms if of == sign]


def _gain(on: Terms, off: Terms, sign: int) -> Terms:
    """With speculation over without, on one side: 1 in the mix, -1 alone."""
    with_drafts, without = _only(on, sign), _only(off, sign)
    return [*with_drafts, *_turned(without)] if with_drafts and without else []
