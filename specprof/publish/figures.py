"""The pictures of a study: what to do, gains, draft lengths, acceptance, throughput, the wall taken apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specprof.analyse.results import StudyFigures
from specprof.publish.context import SEPARATOR
from specprof.publish.decisions import choices
from specprof.publish.grid import Grid, Protocol
from specprof.publish.interference_text import by_newcomer, newcomer_words
from specprof.publish.ladders import Ladder, arm_places, ladders
from specprof.publish.numbers import one_line
from specprof.publish.pictures import (
    acceptance,
    decision_map,
    draft_length,
    frontier,
    gain_curve,
    gains,
    interference,
    load_curve,
    throughput,
    wall,
    waterfall,
)
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
        drawn += _of_service(figures)
        drawn += _of_newcomers(grid)
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
        ("frontier", _Part(), frontier.draw(grid, protocol)),
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
    "frontier": (frontier.TITLE, frontier.CAPTION),
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


FRONTIER_TITLE = frontier.TITLE
INTERFERENCE_TITLE = interference.TITLE
SERVICE_TITLES = (load_curve.TITLE, waterfall.TITLE, FRONTIER_TITLE)  # shown beside their tables


def _of_newcomers(grid: Grid) -> Iterator[Picture]:
    """One picture per newcomer and number of decoders."""
    for place, cells in enumerate(by_newcomer(grid.figures).values()):
        png = interference.draw(cells, grid.methods)
        if png is not None:
            context = SEPARATOR.join((one_line(cells[0].tag), *newcomer_words(cells)))
            alt = f"{interference.TITLE} ({context}). The same figures stand in the table."
            name = f"interference-{place + 1}" if place else "interference"
            yield Picture(name, interference.TITLE, context, interference.CAPTION, alt, place == 0, png)


def _of_service(figures: StudyFigures) -> Iterator[Picture]:
    """The load curve of every content and protocol, then the waterfall of every protocol."""
    found, places = ladders(figures), arm_places(figures)
    names: set[str] = set()
    for ladder in found:
        png = load_curve.draw(ladder, places)
        if png is not None:
            yield _service_picture("load-curve", [ladder], png, names)
    for protocol in dict.fromkeys(ladder.protocol for ladder in found):
        of = [ladder for ladder in found if ladder.protocol == protocol]
        png = waterfall.draw(of, places, [ladder.tag for ladder in of])
        if png is not None:
            yield _service_picture("waterfall", of, png, names)


def _service_picture(kind: str, found: Sequence[Ladder], png: bytes, names: set[str]) -> Picture:
    """A drawing of one ladder, or of all those of a protocol, under a file name that is in `names` from then on."""
    title, caption = {
        "load-curve": (load_curve.TITLE, load_curve.CAPTION),
        "waterfall": (waterfall.TITLE, waterfall.CAPTION),
    }[kind]
    first = not any(name.startswith(kind) for name in names)
    tags, words = [one_line(ladder.tag) for ladder in found], one_line(found[0].protocol.words)
    one = kind == "load-curve"
    context = f"{tags[0]} · {words}" if one else words
    parts = [kind] if first else [kind, *([_slug(found[0].tag)] if one else []), _slug(found[0].protocol.name)]
    name = "-".join(part for part in parts if part)
    if name in names:
        name = f"{name}-{len(names)}"
    names.add(name)
    alt = f"{title} ({context}) for {', '.join(tags)}. The same figures stand in the tables."
    return Picture(name, title, context, caption, alt, first, png)
