"""How many answers of a closed loop are any good, by requests and by tokens: two different numbers (METHOD 8).

Marks are made once, beside the measurement (`measure.quality`); here they are counted. A failed request has cost, and
its text is nobody's: it counts as not good. Texts that no check could judge are in no share, and are counted aside.

A greedy model answers one prompt alike in every block, so what is independent is the prompt. An interval is Wilson's
(1927), with the number of prompts for n: of n prompts of unequal weight, Kish's effective number (1965). Prompts that
are good in one block and bad in another vary less than that allows for, never more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import sqrt

import numpy as np

from specprof.analyse import distributions, stats
from specprof.analyse.evidence import Evidence, key_of
from specprof.analyse.frames import CellFrame
from specprof.analyse.results import CellFigures, Figure, GateFinding
from specprof.analyse.stats import Array
from specprof.columns import ragged
from specprof.records import Phase, Role, TextMarks
from specprof.study.config import Study
from specprof.study.quality import can_judge, cannot_judge, checks_of

Marks = Mapping[str, TextMarks]  # by cell key


@dataclass(frozen=True, slots=True)
class QualityFigures:
    """The answers of one content, protocol, arm and N, over all blocks. The four counts sum to `num_requests`.

    `good_request_share` and `good_token_share` are of all that were judged or failed; None where nothing was.
    `good_tok_s` is tokens of good answers / wall, without an interval; what nobody could judge is not in it. Gates are
    those of the cell.
    """

    tag: str
    protocol: str
    stop: str
    length: int
    arm: str
    method: str
    concurrency: int
    check: str
    num_requests: int
    num_good: int
    num_bad: int
    num_failed: int
    num_unjudged: int
    good_request_share: Figure
    good_token_share: Figure
    good_tok_s: Figure
    gates: tuple[GateFinding, ...]
    valid: bool


@dataclass(slots=True)
class _Tally:
    """What became of one cell series' answers; the weights by prompt."""

    fates: Counter[str] = field(default_factory=Counter)
    requests: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))  # good, all
    tokens: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))

    def add(self, prompt_id: str, fate: str, num_tokens: int) -> None:
        """Count one measured request."""
        self.fates[fate] += 1
        if fate != "unjudged":
            for sums, weight in ((self.requests[prompt_id], 1), (self.tokens[prompt_id], num_tokens)):
                sums[0] += weight * (fate == "good")
                sums[1] += weight


def answer_quality(evidence: Evidence, shown: Iterable[CellFigures], marks: Marks) -> Iterator[QualityFigures]:
    """The quality of every shown cell whose texts are judged, in the order shown."""
    for cell in shown:
        key = key_of(cell)
        frames = (*evidence.series[key].frames, *evidence.failed(key))
        judged = [(frame, marks[frame.cell.key]) for frame in frames if frame.cell.key in marks]
        if judged:
            yield _figures(cell, judged)


def _figures(cell: CellFigures, judged: Iterable[tuple[CellFrame, TextMarks]]) -> QualityFigures:
    tally, checks = _Tally(), dict[str, None]()
    wall_s = 0.0
    for frame, found in judged:
        wall_s += frame.wall_s
        checks |= dict.fromkeys(found.checks.values())
        for prompt_id, fate, num_tokens in _fates(frame, found):
            tally.add(prompt_id, fate, num_tokens)
    good_tokens, all_tokens = _columns(tally.tokens)
    return QualityFigures(
        tag=cell.tag,
        protocol=cell.protocol,
        stop=cell.stop,
        length=cell.length,
        arm=cell.arm,
        method=cell.method,
        concurrency=cell.concurrency,
        check=", ".join(checks),
        num_requests=tally.fates.total(),
        num_good=tally.fates["good"],
        num_bad=tally.fates["bad"],
        num_failed=tally.fates["failed"],
        num_unjudged=tally.fates["unjudged"],
        good_request_share=good_share(*_columns(tally.requests)),
        good_token_share=good_share(good_tokens, all_tokens),
        good_tok_s=stats.point(float(good_tokens.sum()) / wall_s if all_tokens.sum() and wall_s > 0 else None),
        gates=cell.gates,
        valid=cell.valid,
    )


def _fates(frame: CellFrame, marks: TextMarks) -> Iterator[tuple[str, str, int]]:
    """Prompt, fate and output tokens of each measured request. Rows of the marks are those of the cell."""
    rows = frame.data.requests
    columns = rows.select(["prompt_id", "phase", "error"]).to_pydict()
    lengths = ragged(rows.select(["chunk_tokens"])["chunk_tokens"]).sums().tolist()
    for name, phase, error, length, good in zip(*columns.values(), lengths, marks.good, strict=True):
        if phase != Phase.MEASURED.value:
            continue
        if error is not None or not length:
            yield name, "failed", length
        else:
            yield name, "unjudged" if good is None else "good" if good else "bad", length


def _columns(sums: Mapping[str, list[float]]) -> tuple[Array, Array]:
    table = np.array(list(sums.values()), dtype=float).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def good_share(good: Array, whole: Array) -> Figure:
    """Σ good / Σ whole over prompts, with Wilson's interval at their effective number; None of nothing."""
    total = float(whole.sum())
    if total <= 0:
        return Figure(None)
    share, number = float(good.sum()) / total, total**2 / float((whole**2).sum())
    z = distributions.norm_ppf(0.5 + stats.CONFIDENCE / 2)
    centre, stretch = share + z**2 / (2 * number), 1 + z**2 / number
    reach = z * sqrt(share * (1 - share) / number + z**2 / (4 * number**2))
    return Figure(share, max(0.0, (centre - reach) / stretch), min(1.0, (centre + reach) / stretch))


def quality_notes(study: Study, evidence: Evidence, marks: Marks) -> Iterator[str]:
    """What the study wants judged and is not: texts that are cut, and cells that no run has judged yet."""
    checks = checks_of(study)
    waiting = 0
    told: dict[str, None] = {}
    for frame in evidence.frames:
        cell = frame.cell
        asked = {tag: checks[tag] for tag in (set(cell.prompt_tags) or {cell.tag}) if tag in checks}
        if cell.role not in (Role.FIGURE, Role.OPEN) or not asked:
            continue
        told |= {
            cannot_judge(tag, cell.protocol, check): None
            for tag, check in asked.items()
            if not can_judge(check, cell.stop)
        }
        waiting += cell.key not in marks and any(can_judge(check, cell.stop) for check in asked.values())
    yield from told
    if waiting:
        yield f"The texts of {waiting} cells are not judged yet: 'specprof run' does so when everything is measured."
