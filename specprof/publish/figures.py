"""The pictures of a study: what to do, gains, draft lengths, acceptance, throughput, the wall taken apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from specprof.analyse.interference import InterferenceFigures
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

FRONTIER_TITLE = frontier.TITLE
INTERFERENCE_TITLE = interference.TITLE
SERVICE_TITLES = (load_curve.TITLE, waterfall.TITLE, FRONTIER_TITLE)  # shown beside their tables

Draw = Callable[[], bytes | None]
Hand = Callable[[StudyFigures, Sequence[Draw]], Sequence[bytes | None]]  # draws them all, in their order

_TOLD = {  # kind, which is how its files are named → title and caption
    "decisions": (decision_map.TITLE, decision_map.CAPTION),
    "speculation-gain": (gain_curve.TITLE, gain_curve.CAPTION),
    "draft-length": (draft_length.TITLE, draft_length.CAPTION),
    "acceptance": (acceptance.TITLE, acceptance.CAPTION),
    "throughput": (throughput.TITLE, throughput.CAPTION),
    "gains": (gains.TITLE, gains.CAPTION),
    "wall": (wall.TITLE, wall.CAPTION),
    "frontier": (frontier.TITLE, frontier.CAPTION),
    "load-curve": (load_curve.TITLE, load_curve.CAPTION),
    "waterfall": (waterfall.TITLE, waterfall.CAPTION),
    "interference": (interference.TITLE, interference.CAPTION),
}


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


@dataclass(frozen=True, slots=True)
class Sketch:
    """A picture to be drawn: `draw` makes its PNG, or None if there is nothing to show; `described` adds the words."""

    draw: Draw
    described: Callable[[bytes], Picture]


def each_in_turn(_: StudyFigures, drawings: Sequence[Draw]) -> list[bytes | None]:
    """Draws them all here and now."""
    return [draw() for draw in drawings]


def draw(figures: StudyFigures, hand: Hand = each_in_turn) -> tuple[Picture, ...]:
    """Every picture the study has figures for, kind by kind, the first protocol and arm before the others."""
    planned = sketches(figures)
    with house_style():
        pngs = hand(figures, [sketch.draw for sketch in planned])
    drawn = [sketch.described(png) for sketch, png in zip(planned, pngs, strict=True) if png is not None]
    kinds = list(dict.fromkeys(picture.title for picture in drawn))
    ordered = sorted(drawn, key=lambda picture: (kinds.index(picture.title), not picture.first))
    return tuple(_named_apart(ordered))


def sketches(figures: StudyFigures) -> tuple[Sketch, ...]:
    """Every picture that the study may have, in an order that the figures alone decide."""
    grid = Grid(figures)
    of_protocols = (sketch for protocol in grid.protocols for sketch in _of_protocol(grid, protocol))
    return (*of_protocols, *_of_service(figures), *_of_newcomers(grid))


@dataclass(frozen=True, slots=True)
class _Part:
    """What of a protocol a picture shows: all of it, one arm, or arms that differ in draft length alone."""

    words: str = ""
    slug: str = ""  # none for the first of its kind


def _of_protocol(grid: Grid, protocol: Protocol) -> Iterator[Sketch]:
    families = draft_length.families(grid)
    arms = _parts(grid, grid.on_arms)
    lengths = _parts(grid, [family.name for family in families])
    drawings: list[tuple[str, _Part, Draw]] = [
        ("decisions", _Part(), lambda: decision_map.draw(grid, protocol, choices(grid, protocol))),
        ("speculation-gain", _Part(), partial(gain_curve.draw, grid, protocol)),
        *(
            ("draft-length", part, partial(draft_length.draw, grid, protocol, family))
            for part, family in zip(lengths.values(), families, strict=True)
        ),
        *(("acceptance", part, partial(acceptance.draw, grid, protocol, arm)) for arm, part in arms.items()),
        ("throughput", _Part(), partial(throughput.draw, grid, protocol)),
        *(("gains", part, partial(gains.draw, grid, protocol, arm)) for arm, part in arms.items()),
        ("wall", _Part(), partial(wall.draw, grid, protocol)),
        ("frontier", _Part(), partial(frontier.draw, grid, protocol)),
    ]
    for kind, part, draws in drawings:
        yield Sketch(draws, partial(_described, grid, protocol, part, kind))


def _parts(grid: Grid, arms: Sequence[str]) -> dict[str, _Part]:
    """The arms with their words, and a file name for all but the first."""
    return {
        arm: _Part(one_line(grid.methods[arm]), (_slug(arm) or f"arm-{grid.on_arms.index(arm)}") if place else "")
        for place, arm in enumerate(arms)
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


def _of_service(figures: StudyFigures) -> Iterator[Sketch]:
    """The load curve of every content and protocol, then the waterfall of every protocol."""
    found, places = ladders(figures), arm_places(figures)
    told: set[str] = set()

    def described(kind: str, of: Sequence[Ladder], png: bytes) -> Picture:
        first = kind not in told
        told.add(kind)
        return _service_picture(kind, of, png, first=first)

    for ladder in found:
        yield Sketch(partial(load_curve.draw, ladder, places), partial(described, "load-curve", [ladder]))
    for protocol in dict.fromkeys(ladder.protocol for ladder in found):
        of = [ladder for ladder in found if ladder.protocol == protocol]
        draws = partial(waterfall.draw, of, places, [ladder.tag for ladder in of])
        yield Sketch(draws, partial(described, "waterfall", of))


def _service_picture(kind: str, of: Sequence[Ladder], png: bytes, *, first: bool) -> Picture:
    """A drawing of one ladder, or of all those of a protocol."""
    title, caption = _TOLD[kind]
    own = [of[0].tag] if kind == "load-curve" else []
    context = SEPARATOR.join(map(one_line, (*own, of[0].protocol.words)))
    parts = [kind] if first else [kind, *map(_slug, (*own, of[0].protocol.name))]
    tags = ", ".join(one_line(ladder.tag) for ladder in of)
    alt = f"{title} ({context}) for {tags}. The same figures stand in the tables."
    return Picture("-".join(filter(None, parts)), title, context, caption, alt, first, png)


def _of_newcomers(grid: Grid) -> Iterator[Sketch]:
    """One picture per newcomer and number of decoders."""
    for place, cells in enumerate(by_newcomer(grid.figures).values()):
        yield Sketch(partial(interference.draw, cells, grid.methods), partial(_newcomers_picture, place, cells))


def _newcomers_picture(place: int, cells: Sequence[InterferenceFigures], png: bytes) -> Picture:
    title, caption = _TOLD["interference"]
    context = SEPARATOR.join((one_line(cells[0].tag), *newcomer_words(cells)))
    alt = f"{title} ({context}). The same figures stand in the table."
    name = f"interference-{place + 1}" if place else "interference"
    return Picture(name, title, context, caption, alt, place == 0, png)


def _named_apart(pictures: Iterable[Picture]) -> Iterator[Picture]:
    """Under file names no two of which are alike: those of arms `k=4` and `k-4` would be, so the second is numbered."""
    taken: set[str] = set()
    for picture in pictures:
        name, number = picture.name, 1
        while name in taken:
            number += 1
            name = f"{picture.name}-{number}"
        taken.add(name)
        yield replace(picture, name=name)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
