"""Gate 8, sampled: are the texts written under speculation texts that the target would have sampled (METHOD 7)?

Three questions, from the gross to the subtle:

(a) Is there a token that the target cannot have drawn? One is enough, so chance must be ruled out: a right sampler
    draws *some* token of probability below p among n with probability n * V * p at most, for any distribution over V
    tokens. (1e-8 alone is no such bound: on a 135M model at T = 0.8 a right sampler draws a token below it once in
    49,000.)
(b) Are there more tokens beyond 8 or 10 nats than in the off arm?
(c) Is the mean surprise another one? It misses real corruption, a few absurd tokens among thousands, and a benign
    change moves it too, so alone it is no more than a caution.

(b) and (c) pair the arms by prompt, over all N and blocks: the arm is what is on trial, and prompts are what varies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log

import numpy as np
import pyarrow as pa

from specprof.analyse import stats
from specprof.analyse.frames import CellFrame
from specprof.analyse.permutation import holm, sign_flip
from specprof.analyse.results import Figure, GateFinding, Severity
from specprof.analyse.stats import Array
from specprof.analyse.surprise import IMPOSSIBLE_NATS, TAIL_NATS, ScoredCell, scored_cell
from specprof.records import Cell, arm_in_words, is_sampled

FALSE_ALARM = 0.001  # of each of the three questions, over the whole study
LARGEST_VOCABULARY = 300_000  # V: no model in use has more
PER_TOKENS = 1024

Key = tuple[str, str, str, int]  # tag, protocol, arm, concurrency
Arm = tuple[str, str, str]  # tag, protocol, arm


@dataclass(frozen=True, slots=True)
class SurpriseFigures:
    """Gate 8 for sampled texts: what the target, speculation off, thinks of every token that was written (METHOD 7).

    Surprise is -ln of a token's probability when it was sampled, in nats, and always *at least* so much:
    `mean_slack_nats` is how much more its mean may be, None where the scores leave it open. `impossible` counts tokens
    below 1e-8 or outside top-k and top-p; None where penalty, mask or grammar keep the scores from telling. The
    p-values, adjusted for all comparisons of the study, are of this arm against the off arm over all N: None for the
    off arm itself, and where nothing could be compared.
    """

    tag: str
    protocol: str
    stop: str
    length: int
    arm: str
    method: str
    concurrency: int
    temperature: float
    num_texts: int
    num_unscored: int
    num_tokens: int
    impossible: int | None
    largest_nats: float
    beyond_8_per_1024: Figure
    beyond_10_per_1024: Figure
    mean_nats: Figure
    mean_slack_nats: float | None
    tail_p_value: float | None = None
    mean_p_value: float | None = None


@dataclass(frozen=True)
class Examination:
    """What gate 8 found in a study's sampled texts, and the cells that it could not look at."""

    figures: tuple[SurpriseFigures, ...] = ()
    findings: Mapping[Key, tuple[GateFinding, ...]] = field(default_factory=dict)
    unscored: tuple[Key, ...] = ()

    def findings_of(self, key: Key) -> tuple[GateFinding, ...]:
        """The findings of one content, protocol, arm and N."""
        return self.findings.get(key, ())


@dataclass(frozen=True)
class _Tokens:
    """Every scored token of some cells, by prompt."""

    cells: tuple[ScoredCell, ...]
    by_prompt: Mapping[str, Array]
    excluded: int

    @property
    def nats(self) -> Array:
        return np.concatenate([np.empty(0), *self.by_prompt.values()])

    @property
    def known(self) -> bool:
        return all(cell.known for cell in self.cells)

    @property
    def largest(self) -> float:
        return float(self.nats.max(initial=0.0))

    @property
    def impossible(self) -> int | None:
        return self.excluded + int((self.nats > IMPOSSIBLE_NATS).sum()) if self.known else None

    def beyond(self, nats: float) -> Array:
        """Tokens beyond so many nats per 1,024, prompt by prompt."""
        return np.array([PER_TOKENS * float((found > nats).mean()) for found in self.by_prompt.values()])

    def rate_beyond(self, nats: float) -> Figure:
        """The same over all tokens, prompts in its interval."""
        counts = np.array([PER_TOKENS * float((found > nats).sum()) for found in self.by_prompt.values()])
        return stats.ratio(counts, self._lengths)

    def mean(self) -> Figure:
        """Mean surprise, prompts in its interval."""
        return stats.ratio(np.array([float(found.sum()) for found in self.by_prompt.values()]), self._lengths)

    def beyond_chance(self, limit: float) -> bool:
        """Whether there is a token that no right sampler draws."""
        return self.known and (self.excluded > 0 or self.largest > limit)

    @property
    def _lengths(self) -> Array:
        return np.array([float(len(found)) for found in self.by_prompt.values()])


def examine(frames: Sequence[CellFrame], scores: Mapping[str, pa.Table]) -> Examination:
    """Gate 8 over every sampled cell of a study. `scores`: scored texts by cell key."""
    sampled = [frame for frame in frames if is_sampled(frame.cell) and not frame.empty]
    scored = [scored_cell(frame, scores[frame.cell.key]) for frame in sampled if frame.cell.key in scores]
    without = {_key(frame.cell) for frame in sampled if frame.cell.key not in scores}
    series: dict[Key, list[ScoredCell]] = defaultdict(list)
    arms: dict[Arm, list[ScoredCell]] = defaultdict(list)
    for found in scored:
        series[_key(found.cell)].append(found)
        arms[_key(found.cell)[:3]].append(found)
    tokens = {key: _pooled(cells) for key, cells in sorted(series.items())}
    pooled = {arm: _pooled(cells) for arm, cells in arms.items()}
    tested = _tests(pooled)
    limit = log(sum(len(found.nats) for found in tokens.values()) * LARGEST_VOCABULARY / FALSE_ALARM) if tokens else 0.0
    figures = {key: _figures(key, found, tested.get(key[:3])) for key, found in tokens.items()}
    findings = {key: tuple(_findings(figures[key], found, _off(key, pooled), limit)) for key, found in tokens.items()}
    return Examination(tuple(figures.values()), findings, tuple(sorted(without)))


def _key(cell: Cell) -> Key:
    return cell.tag, cell.protocol, cell.arm, cell.concurrency


def _pooled(cells: Sequence[ScoredCell]) -> _Tokens:
    by_prompt: dict[str, list[Array]] = defaultdict(list)
    for cell in cells:
        for prompt, found in cell.texts:
            by_prompt[prompt].append(found.nats)
    excluded = sum(int(found.excluded.sum()) for cell in cells for _, found in cell.texts)
    return _Tokens(tuple(cells), {name: np.concatenate(parts) for name, parts in by_prompt.items()}, excluded)


def _speculates(tokens: _Tokens) -> bool:
    return bool(tokens.cells[0].cell.speculative_config)


def _off(key: Key | Arm, pooled: Mapping[Arm, _Tokens]) -> _Tokens | None:
    """The same content and protocol without speculation, over all N."""
    tag, protocol = key[:2]
    others = (found for arm, found in pooled.items() if arm[:2] == (tag, protocol) and not _speculates(found))
    return next(others, None)


# -- comparing the arms ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tested:
    """p-values of one arm against the off arm: more tokens in the tail (one-sided), another mean (two-sided)."""

    tail: float
    mean: float


def _tests(pooled: Mapping[Arm, _Tokens]) -> dict[Arm, _Tested]:
    """Every arm with speculation against the one without, p-values adjusted for all of the study's comparisons."""
    tails: dict[tuple[Arm, float], float] = {}
    means: dict[Arm, float] = {}
    for arm, on in pooled.items():
        off = _off(arm, pooled)
        if off is None or not _speculates(on):
            continue
        p_values = sign_flip(_differences(on, off))
        tails |= {(arm, nats): float(p) for nats, p in zip(TAIL_NATS, p_values[: len(TAIL_NATS)], strict=True)}
        means[arm] = min(1.0, 2 * float(min(p_values[-2:])))
    tails, means = holm(tails), holm(means)
    return {arm: _Tested(min(tails[arm, nats] for nats in TAIL_NATS), means[arm]) for arm in means}


def _differences(on: _Tokens, off: _Tokens) -> Array:
    """On - off, prompt by prompt: share beyond 8 and 10 nats, mean, and minus the mean for its other side."""
    shared = [name for name in on.by_prompt if name in off.by_prompt]
    mine, theirs = (replace(arm, by_prompt={name: arm.by_prompt[name] for name in shared}) for arm in (on, off))
    means = np.array([float(mine.by_prompt[name].mean() - theirs.by_prompt[name].mean()) for name in shared])
    tails = [mine.beyond(nats) - theirs.beyond(nats) for nats in TAIL_NATS]
    return np.column_stack([*tails, means, -means])


def _figures(key: Key, tokens: _Tokens, tested: _Tested | None) -> SurpriseFigures:
    tag, protocol, arm, concurrency = key
    cell = tokens.cells[0].cell
    slacks = [found.slack_nats for scored in tokens.cells for _, found in scored.texts]
    known_slacks = [slack for slack in slacks if slack is not None]
    beyond_8, beyond_10 = (tokens.rate_beyond(nats) for nats in TAIL_NATS)
    return SurpriseFigures(
        tag=tag,
        protocol=protocol,
        stop=cell.stop.value,
        length=cell.max_tokens,
        arm=arm,
        method=arm_in_words(cell.speculative_config),
        concurrency=concurrency,
        temperature=cell.sampling.temperature,
        num_texts=sum(len(scored.texts) for scored in tokens.cells),
        num_unscored=sum(scored.num_unscored for scored in tokens.cells),
        num_tokens=len(tokens.nats),
        impossible=tokens.impossible,
        largest_nats=tokens.largest,
        beyond_8_per_1024=beyond_8,
        beyond_10_per_1024=beyond_10,
        mean_nats=tokens.mean(),
        mean_slack_nats=float(np.concatenate(known_slacks).mean()) if known_slacks else None,
        tail_p_value=tested.tail if tested else None,
        mean_p_value=tested.mean if tested else None,
    )


# -- findings -------------------------------------------------------------------------------------------------------

_FAULT = "A fault, not a speed-up: leave speculation off when sampling on this engine, and report it."
_BOTH = "The engine samples what its own scores forbid, or scores another model: check dtype, chat template, sampling."
_READ = "Score more prompts (32 or more), so that chance and a fault can be told apart."


def _findings(figures: SurpriseFigures, tokens: _Tokens, off: _Tokens | None, limit: float) -> Iterator[GateFinding]:
    """At most one: the gravest that the evidence supports."""
    evidence = _evidence(figures, tokens, off)
    speculates, off_too = _speculates(tokens), off is not None and off.beyond_chance(limit)
    impossible = tokens.beyond_chance(limit)
    if _below(figures.tail_p_value) or (impossible and speculates and not off_too):
        yield GateFinding(8, "output changed", Severity.INVALID, evidence, _FAULT)
    elif impossible:
        yield GateFinding(8, "impossible tokens", Severity.CAUTION, f"{evidence}; without speculation too", _BOTH)
    elif _below(figures.mean_p_value):
        yield GateFinding(8, "output differs", Severity.CAUTION, evidence, _READ)
    elif speculates and tokens.impossible and off is not None and off.impossible == 0:
        rarity = "among so many tokens chance may draw one below 1e-8"
        yield GateFinding(8, "rare tokens", Severity.CAUTION, f"{evidence}; {rarity}", _READ)


def _below(p_value: float | None) -> bool:
    return p_value is not None and p_value < FALSE_ALARM


def _evidence(figures: SurpriseFigures, tokens: _Tokens, off: _Tokens | None) -> str:
    """What was seen in this cell, beside the off arm over all N."""

    def beside(text: str, other: str | None) -> str:
        return text if other is None or not _speculates(tokens) else f"{text} (off {other})"

    parts = [beside(f"largest surprise {tokens.largest:.1f} nats", f"{off.largest:.1f}" if off else None)]
    if tokens.known:
        parts.append(beside(f"impossible tokens {tokens.impossible}", f"{off.impossible}" if off else None))
    else:
        parts.append("impossible tokens unknown under this penalty, mask or grammar")
    for nats in reversed(TAIL_NATS):
        own, other = (_number(arm.rate_beyond(nats)) if arm else None for arm in (tokens, off))
        parts.append(beside(f"{own} per 1,024 tokens beyond {nats:.0f} nats", other))
    parts.append(beside(f"mean {_number(tokens.mean(), 2)}", _number(off.mean(), 2) if off else None))
    if figures.tail_p_value is not None and figures.mean_p_value is not None:
        parts.append(f"p {figures.tail_p_value:.1g} (tail) and {figures.mean_p_value:.1g} (mean) over all N")
    return f"sampled at T = {figures.temperature:g}: " + ", ".join(parts)


def _number(figure: Figure, digits: int = 1) -> str:
    return f"{figure.value or 0.0:.{digits}f}"
