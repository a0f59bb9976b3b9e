"""What content does to speed, and through which cause (METHOD 4): the per-request identity, TOST, and the two cuts.

    decode speed = tokens per step × steps per second          (per request, exact)
    ln X(a)/X(b) = Δln tokens per step + Δln steps per second + Δln decode share

"Content acts only through acceptance" is then a claim about one term: that steps per second do not differ. It is tested
for equivalence (90% interval inside ±5%), on and off, at every N, and never assumed. Two blocks and two prompts of each
content are the fewest that can decide it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from math import exp, log

import numpy as np

from specprof.analyse import stats
from specprof.analyse.evidence import Evidence, Series, alike
from specprof.analyse.results import ContentFigures, CutFigures, Figure
from specprof.records import Cell, Role, Stop

EQUIVALENCE_MARGIN = 0.05

_ASKED = ("arm", "concurrency", "sampling", "chat", "guided")  # what neither cut may change


@dataclass(frozen=True, slots=True)
class Identity:
    """The three causes of an aggregate throughput, as logs. They sum to ln(X / N) exactly."""

    tokens_per_step: float
    steps_per_s: float
    decode_share: float

    @property
    def total(self) -> float:
        """ln(X / N)."""
        return self.tokens_per_step + self.steps_per_s + self.decode_share


def identity(series: Series) -> Identity | None:
    """Causes of the series' throughput, averaged over blocks; None where nobody was seen to write on.

    Decode share is N_eff / N: how much of N was writing. Of a text that arrives in one piece (a proxy that holds its
    stream back) nothing tells how long it was written.
    """
    parts = []
    for frame in series.frames:
        requests = frame.requests
        tokens = float(requests.later_tokens.sum())
        steps = float(np.nansum(requests.engine_steps - 1))
        seconds = float((requests.last - requests.first).sum())
        if tokens and steps and seconds:
            streams = min(frame.cell.concurrency, len(requests))
            share = frame.throughput * seconds / tokens / streams
            parts.append([log(tokens / steps), log(steps / seconds), log(share)])
    return Identity(*(float(part) for part in np.mean(parts, axis=0))) if parts else None


@dataclass(frozen=True, slots=True)
class _Content:
    """One content under a protocol, arm and N, as every pair that it is part of needs it.

    Of ln(steps/s): `by_prompt` is the variance that prompts bring to its mean, with degrees of freedom; `by_block` what
    it is in each block that has an identity.
    """

    cell: Cell
    causes: Identity
    by_prompt: tuple[float, int]
    by_block: Mapping[int, float]

    @classmethod
    def of(cls, series: Series) -> _Content | None:
        """None without an identity."""
        causes = identity(series)
        if causes is None:
            return None
        blocks = {frame.cell.block: identity(Series((frame,))) for frame in series.frames}
        by_block = {block: found.steps_per_s for block, found in blocks.items() if found is not None}
        return cls(series.cell, causes, stats.variance_of_mean(_log_steps_per_s(series)), by_block)


def content_effects(evidence: Evidence) -> Iterator[ContentFigures]:
    """Every pair of contents under the same protocol, arm and N that have an identity."""
    groups: dict[tuple[str, str, int], list[_Content]] = {}
    for (_, protocol, arm, concurrency), series in evidence.series_of(Role.FIGURE):
        content = _Content.of(series)
        if content is not None:
            groups.setdefault((protocol, arm, concurrency), []).append(content)
    for members in groups.values():
        for a, b in combinations(members, 2):
            yield _effect(a, b)


def _effect(a: _Content, b: _Content) -> ContentFigures:
    total = a.causes.total - b.causes.total
    by_tokens = a.causes.tokens_per_step - b.causes.tokens_per_step
    outcome, steps_per_s_ratio = _equivalence(a, b)
    return ContentFigures(
        tag=a.cell.tag,
        other_tag=b.cell.tag,
        protocol=a.cell.protocol,
        arm=a.cell.arm,
        concurrency=a.cell.concurrency,
        throughput_ratio=Figure(exp(total)),
        tokens_per_step_ratio=Figure(exp(by_tokens)),
        steps_per_s_ratio=steps_per_s_ratio,
        decode_share_ratio=Figure(exp(a.causes.decode_share - b.causes.decode_share)),
        mediated_share=Figure(by_tokens / total if total else None),
        only_acceptance=outcome,
    )


def _equivalence(a: _Content, b: _Content) -> tuple[str, Figure]:
    """Whether steps per second are the same, and their ratio with its 90% interval.

    The prompts of each content vary, and launches, which the two share: a launch enters as the block's difference. With
    fewer than two shared blocks nothing tells how launches differ, so that it stays undecided, and the interval holds
    the prompts alone; one prompt of either content leaves none.
    """
    gap = a.causes.steps_per_s - b.causes.steps_per_s
    launches = stats.variance_of_mean(np.array([a.by_block[n] - b.by_block[n] for n in b.by_block if n in a.by_block]))
    if not a.by_prompt[1] or not b.by_prompt[1]:
        return "undecided", Figure(exp(gap))
    error, degrees = stats.pooled_error([a.by_prompt, b.by_prompt, launches])
    outcome, reach = stats.equivalent(gap, error, degrees, margin=EQUIVALENCE_MARGIN)
    ratio = Figure(exp(gap), *(None if v is None else exp(v) for v in (reach.low, reach.high)))
    return (outcome if launches[1] else "undecided"), ratio


def _log_steps_per_s(series: Series) -> stats.Array:
    """Mean ln(steps/s) over blocks, prompt by prompt."""
    seconds = series.column("last") - series.column("first")
    wrote_on = series.column("tpot") > 0
    rates = np.divide(series.column("engine_steps") - 1, seconds, out=np.zeros(len(seconds)), where=wrote_on)
    return np.array(list(series.prompts.mean_logs(rates).values()))


def two_cuts(evidence: Evidence) -> Iterator[CutFigures]:
    """Stop rule × content [seed 000, chapter 3]: from a natural figure to a forced one of the same prompts, then to
    another content that was forced the same way. Their product is the whole way.
    """
    figures = [series for _, series in evidence.series_of(Role.FIGURE) if series.log_throughputs()]
    natural, forced = ([s for s in figures if s.cell.stop is stop] for stop in (Stop.NATURAL, Stop.FORCED))
    for start, middle in product(natural, forced):
        if _stopped_otherwise(start.cell, middle.cell):
            for end in forced:
                if end.cell.tag != start.cell.tag and alike(middle.cell, end.cell, *_ASKED, "max_tokens", "mask_eos"):
                    yield _cut(start, middle, end)


def _stopped_otherwise(natural: Cell, forced: Cell) -> bool:
    """Whether two cells differ by the stop rule alone, of which it is part how an end is forbidden."""
    return alike(natural, forced, "tag", *_ASKED) and set(natural.prompt_ids) == set(forced.prompt_ids)


def _cut(start: Series, middle: Series, end: Series) -> CutFigures:
    x_start, x_middle, x_end = (exp(float(np.mean(list(s.log_throughputs().values())))) for s in (start, middle, end))
    return CutFigures(
        tag=start.cell.tag,
        other_tag=end.cell.tag,
        natural_protocol=start.cell.protocol,
        forced_protocol=middle.cell.protocol,
        other_protocol=end.cell.protocol,
        arm=start.cell.arm,
        concurrency=start.cell.concurrency,
        natural_tok_s=Figure(x_start),
        forced_tok_s=Figure(x_middle),
        other_tok_s=Figure(x_end),
        stop_rule=Figure(x_middle / x_start),
        content=Figure(x_end / x_middle),
        whole=Figure(x_end / x_start),
    )
