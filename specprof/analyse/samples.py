"""Texts to look at: numbers about content are believed sooner when the content can be read."""

from __future__ import annotations

from collections.abc import Iterator

from specprof.analyse.evidence import Evidence
from specprof.analyse.frames import CellFrame
from specprof.analyse.results import Sample
from specprof.records import Role
from specprof.study.loops import distinct_share, looping_tokens

MAX_CHARS = 1200


def samples(evidence: Evidence) -> tuple[Sample, ...]:
    """Per content: the text that repeats itself most, if any loops, and one that does not."""
    by_tag: dict[str, list[CellFrame]] = {}
    for frame in evidence.frames:
        if frame.cell.role is Role.FIGURE and not frame.requests.empty:
            by_tag.setdefault(frame.cell.tag, []).append(frame)
    return tuple(sample for frames in by_tag.values() for sample in _of_tag(frames))


def _of_tag(frames: list[CellFrame]) -> Iterator[Sample]:
    written = [
        (distinct_share(ids), bool(looping_tokens(ids).any()), frame, name, text)
        for frame in frames
        for name, text, ids in zip(
            frame.requests["prompt_id"], frame.requests["text"], frame.lists("token_ids"), strict=True
        )
    ]
    for flagged, best in ((True, min), (False, max)):
        candidates = [item for item in written if item[1] is flagged]
        if candidates:
            _, _, frame, name, text = best(candidates, key=lambda item: item[0])
            yield Sample(frame.cell.tag, str(name), frame.cell.arm, str(text)[:MAX_CHARS], flagged)
