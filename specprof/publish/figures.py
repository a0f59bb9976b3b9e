"""The pictures of a study: what to do, gains, draft lengths, acceptance, throughput, the wall taken apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specprof.analyse.results import StudyFigures
from specprof.publish.decisions import choices
from specprof.publish.grid import Grid, Protocol
from specprof.publish.numbers import one_line
from specprof.publish.pictures import acceptance, decision_map, draft_length, gain_curve, gains, throughput, wall
from specprof.publish.pictures.style import house_style


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn figure with what a reader needs beside it."""

    name: str  # of the file, without .png
    title: str
    context: str
    caption: str
    alt: str
    first: bool  # of its kind: the others are more of the same under another protocol or arm
    png: bytes


def draw(figures: StudyFigures) -> tuple[Picture, ...]:
    """Every picture the study has figures for, kind by kind, the first protocol and arm before the others."""
    grid = Grid(figures)
    with house_style():
        drawn = [picture for protocol in grid.protocols for picture in _of_protocol(grid, protocol)]
    kinds = list(dict.fromkeys(picture.title for picture in drawn))
    return tuple(sorted(drawn, key=lambda picture: (kinds.index(picture.title), not picture.first)))


@dataclass(frozen=True, slots=True)
class _Part:
    """What of a protocol a picture shows: all of it, one arm, or arms that differ in draft length alone."""

    words: str = ""
    slug: str = ""  # none for the first of its kind


def _of_protocol(grid: Grid, protocol: Protocol) -> Iterator[Picture]:
    families = draft_length.families(grid)
    arms = _parts(grid, grid.on_arms)
    lengths = _parts(grid, [family.name for family in families])
    drawn: list[tuple[str, _Part, bytes | None]] = [
        ("decisions", _Part(), decision_map.draw(grid, protocol, choices(grid, protocol))),
        ("speculation-gain", _Part(), gain_curve.draw(grid, protocol)),
        *(
            ("draft-length", part, draft_length.draw(grid, protocol, family))
            for part, family in zip(lengths.values(), families, strict=True)
        ),
        *(("acceptance", part, acceptance.draw(grid, protocol, arm)) for arm, part in arms.items()),
        ("throughput", _Part(), throughput.draw(grid, protocol)),
        *(("gains", part, gains.draw(grid, protocol, arm)) for arm, part in arms.items()),
        ("wall", _Part(), wall.draw(grid, protocol)),
    ]
    for kind, part, png in drawn:
        if png is not None:
            yield _described(grid, protocol, part, kind, png)


def _parts(grid: Grid, arms: Sequence[str]) -> dict[str, _Part]:
    """The arms with their words, and a file name for all but the first."""
    return {
        arm: _Part(one_line(grid.methods[arm]), (_slug(arm) or f"arm-{grid.on_arms.index(arm)}") if place else "")
        for place, arm in enumerate(arms)
    }


_TOLD = {
    "decisions": (decision_map.TITLE, decision_map.CAPTION),
    "speculation-gain": (gain_curve.TITLE, gain_curve.CAPTION),
    "draft-length": (draft_length.TITLE, draft_length.CAPTION),
    "acceptance": (acceptance.TITLE, acceptance.CAPTION),
    "throughput": (throughput.TITLE, throughput.CAPTION),
    "gains": (gains.TITLE, gains.CAPTION),
    "wall": (wall.TITLE, wall.CAPTION),
}


def _described(grid: Grid, protocol: Protocol, part: _Part, kind: str, png: bytes) -> Picture:
    """A drawing with its words."""
    title, caption = _TOLD[kind]
    context = f"{protocol.words} · {part.words}" if part.words else protocol.words
    first = protocol == grid.protocols[0] and not part.slug
    alt = f"{title} ({context}) for {', '.join(map(one_line, grid.tags))}. The same figures stand in the tables."
    return Picture(_file_name(grid, protocol, part, kind), title, context, caption, alt, first, png)


def _file_name(grid: Grid, protocol: Protocol, part: _Part, kind: str) -> str:
    """`gains` for the first protocol and arm, else with what differs: `gains-natural-draft-k2`."""
    parts = [kind]
    if protocol != grid.protocols[0]:
        parts.append(_slug(protocol.name) or f"protocol-{grid.protocols.index(protocol)}")
    return "-".join([*parts, *([part.slug] if part.slug else [])])


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
