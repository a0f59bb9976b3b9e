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

from specprof.analyse import ordering, stats
from specprof.analyse.evidence import Evidence, Series, alike, closed_loop, contrast, step_noise
from specprof.analyse.pairs import Gap
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
        seconds = float(requests.writing.sum())
        if tokens and steps and seconds:
            streams = min(frame.cell.concurrency, len(requests))
            share = frame.throughput * seconds / tokens / streams
            parts.append([log(tokens / steps), log(steps / seconds), log(share)])
    return Identity(*(float(part) for part in np.mean(parts, axis=0))) if parts else None


@dataclass(frozen=True, slots=True)
class _Log:
    """A logarithm in each block that has it, and `prompts`: the variance they bring to its mean, degrees of freedom."""

    by_block: Mapping[int, float]
    prompts: tuple[float, int]

    @property
    def mean(self) -> float:
        """Over blocks."""
        return float(np.mean(list(self.by_block.values())))


@dataclass(frozen=True, slots=True)
class _Content:
    """One content under a protocol, arm and N, as every pair that it is part of needs it: ln(X / N) and its causes."""

    cell: Cell
    total: _Log
    tokens_per_step: _Log
    steps_per_s: _Log
    decode_share: _Log

    @classmethod
    def of(cls, series: Series) -> _Content | None:
        """None without an identity."""
        found = {frame.cell.block: identity(Series((frame,))) for frame in series.frames}
        blocks = {block: causes for block, causes in found.items() if causes is not None}
        if not blocks:
            return None
        prompts = {
            "total": _of_throughput(series),
            "tokens_per_step": stats.variance_of_log_ratio(*_tokens_and_steps(series)),
            "steps_per_s": stats.variance_of_mean(np.array(list(log_steps_per_s(series).values()))),
            "decode_share": _of_loop(series, closed_loop(series, "writing")),
        }
        logs = {
            cause: _Log({block: getattr(causes, cause) for block, causes in blocks.items()}, variance)
            for cause, variance in prompts.items()
        }
        return cls(series.cell, **logs)


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
    total, by_tokens = _gap(a.total, b.total), _gap(a.tokens_per_step, b.tokens_per_step)
    outcome, steps_per_s_ratio = _equivalence(a.steps_per_s, b.steps_per_s)
    return ContentFigures(
        tag=a.cell.tag,
        other_tag=b.cell.tag,
        protocol=a.cell.protocol,
        arm=a.cell.arm,
        concurrency=a.cell.concurrency,
        throughput_ratio=total.ratio,
        tokens_per_step_ratio=by_tokens.ratio,
        steps_per_s_ratio=steps_per_s_ratio,
        decode_share_ratio=_gap(a.decode_share, b.decode_share).ratio,
        mediated_share=Figure(by_tokens.estimate / total.estimate if total.estimate else None),
        only_acceptance=outcome,
    )


def _gap(a: _Log, b: _Log) -> Gap:
    """a / b of two contents.

    No prompt is in both, so that what the prompts of each bring adds up. Launches the two share: one enters as the
    block's difference. With fewer than two shared blocks nothing tells how launches differ; one prompt of either
    content cannot show how another would.
    """
    launches = _differences(a, b)
    known = a.prompts[1] and b.prompts[1]
    error, degrees = stats.pooled_error([a.prompts, b.prompts, stats.variance_of_mean(launches)]) if known else (0.0, 0)
    return Gap(exp(b.mean), exp(a.mean), error, degrees)


def _differences(a: _Log, b: _Log) -> stats.Array:
    """a - b in every block that both have."""
    return np.array([a.by_block[block] - b.by_block[block] for block in a.by_block if block in b.by_block])


def _equivalence(a: _Log, b: _Log) -> tuple[str, Figure]:
    """Whether steps per second are the same, and their ratio with its 90% interval; undecided with one shared block."""
    gap = _gap(a, b)
    if not gap.degrees:
        return "undecided", gap.ratio
    outcome, reach = stats.equivalent(gap.estimate, gap.error, gap.degrees, margin=EQUIVALENCE_MARGIN)
    ratio = Figure(exp(gap.estimate), *(None if v is None else exp(v) for v in (reach.low, reach.high)))
    return (outcome if len(_differences(a, b)) > 1 else "undecided"), ratio


# -- what other prompts would have changed ----------------------------------------------------------------------------


def _of_throughput(series: Series) -> tuple[float, int]:
    """Variance of ln X. Blocks show by themselves what uneven steps do; of a single one it is added."""
    variance, degrees = _of_loop(series, series.loop)
    return variance + (step_noise(series) if len(series.frames) == 1 else 0.0), degrees


def _of_loop(series: Series, loop: ordering.Loop) -> tuple[float, int]:
    """Variance of ln(amount / wall), and of a single block what the order of its prompts did."""
    variance, degrees = ordering.prompt_variance([(loop, 1)])
    return variance + (ordering.order_variance([(loop, 1)]) if len(series.frames) == 1 else 0.0), degrees


def _tokens_and_steps(series: Series) -> tuple[stats.Array, stats.Array]:
    """Tokens and engine steps after the first chunk, prompt by prompt."""
    return series.sums("later_tokens"), series.prompts.sums(np.nan_to_num(series.column("engine_steps") - 1))


def log_steps_per_s(series: Series) -> dict[str, float]:
    """Mean ln(steps/s) over blocks, by prompt."""
    seconds, wrote_on = series.column("writing"), series.column("tpot") > 0
    rates = np.divide(series.column("engine_steps") - 1, seconds, out=np.zeros(len(seconds)), where=wrote_on)
    return series.prompts.mean_logs(rates)


# -- the two cuts -----------------------------------------------------------------------------------------------------


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
    natural, forced, other = (contrast([(series, 1)]) for series in (start, middle, end))
    x_start, x_middle, x_end = (_log_throughput(series) for series in (start, middle, end))
    return CutFigures(
        tag=start.cell.tag,
        other_tag=end.cell.tag,
        natural_protocol=start.cell.protocol,
        forced_protocol=middle.cell.protocol,
        other_protocol=end.cell.protocol,
        arm=start.cell.arm,
        concurrency=start.cell.concurrency,
        natural_tok_s=natural,
        forced_tok_s=forced,
        other_tok_s=other,
        stop_rule=contrast([(middle, 1), (start, -1)]),
        content=_gap(x_end, x_middle).ratio,
        whole=_gap(x_end, x_start).ratio,
    )


def _log_throughput(series: Series) -> _Log:
    return _Log(series.log_throughputs(), _of_throughput(series))
