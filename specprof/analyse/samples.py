"""Texts to look at: numbers about content are believed sooner when the content can be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from specprof.analyse.evidence import Evidence
from specprof.analyse.frames import CellFrame
from specprof.records import Role

MAX_CHARS = 1200


@dataclass(frozen=True, slots=True)
class Sample:
    """A text a model wrote, as the report shows it: untrusted, so whoever prints it escapes it."""

    tag: str
    prompt_id: str
    arm: str
    text: str
    flagged: bool


def samples(evidence: Evidence) -> tuple[Sample, ...]:
    """Per content: the text that repeats itself most, if any loops, and one that does not."""
    by_tag: dict[str, list[CellFrame]] = {}
    for frame in evidence.frames:
        if frame.cell.role is Role.FIGURE and not frame.empty:
            by_tag.setdefault(frame.cell.tag, []).append(frame)
    return tuple(sample for frames in by_tag.values() for sample in _of_tag(frames))


def _of_tag(frames: list[CellFrame]) -> Iterator[Sample]:
    for flagged in (True, False):
        found = [best for frame in frames if (best := _best(frame, flagged)) is not None]
        if found:
            _, frame, row = (min if flagged else max)(found, key=lambda best: best[0])
            yield _sample(frame, row, flagged)


def _best(frame: CellFrame, flagged: bool) -> tuple[float, CellFrame, int] | None:
    """Of a cell's texts that loop the one that repeats itself most, of the others the one that does so least."""
    share = frame.repetition.distinct_share
    rows = np.flatnonzero((frame.repetition.num_looping > 0) == flagged)
    if not len(rows):
        return None
    row = int(rows[share[rows].argmin() if flagged else share[rows].argmax()])
    return float(share[row]), frame, row


def _sample(frame: CellFrame, row: int, flagged: bool) -> Sample:
    name, text = frame.requests.prompt_id[row], frame.texts()[row].as_py()
    return Sample(frame.cell.tag, str(name), frame.cell.arm, str(text)[:MAX_CHARS], flagged)
