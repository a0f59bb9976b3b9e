"""The pictures of a study: acceptance, throughput, the gains split, the wall taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass

from specprof.analyse.results import StudyFigures
from specprof.publish.grid import Grid, Protocol
from specprof.publish.numbers import one_line
from specprof.publish.pictures import acceptance, gains, throughput, wall
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


def _of_protocol(grid: Grid, protocol: Protocol) -> list[Picture]:
    told = [_described(grid, protocol, arm, "acceptance", acceptance.draw(grid, protocol, arm)) for arm in grid.on_arms]
    told.append(_described(grid, protocol, None, "throughput", throughput.draw(grid, protocol)))
    told += [_described(grid, protocol, arm, "gains", gains.draw(grid, protocol, arm)) for arm in grid.on_arms]
    told.append(_described(grid, protocol, None, "wall", wall.draw(grid, protocol)))
    return [picture for picture in told if picture is not None]


_TOLD = {
    "acceptance": (acceptance.TITLE, acceptance.CAPTION),
    "throughput": (throughput.TITLE, throughput.CAPTION),
    "gains": (gains.TITLE, gains.CAPTION),
    "wall": (wall.TITLE, wall.CAPTION),
}


def _described(grid: Grid, protocol: Protocol, arm: str | None, kind: str, png: bytes | None) -> Picture | None:
    """A drawing with its words; None where there was nothing to draw."""
    if png is None:
        return None
    title, caption = _TOLD[kind]
    context = protocol.words if arm is None else f"{protocol.words} · {one_line(grid.methods[arm])}"
    first = protocol == grid.protocols[0] and arm in (None, *grid.on_arms[:1])
    alt = f"{title} ({context}) for {', '.join(map(one_line, grid.tags))}. The same figures stand in the tables."
    return Picture(_file_name(grid, protocol, arm, kind), title, context, caption, alt, first, png)


def _file_name(grid: Grid, protocol: Protocol, arm: str | None, kind: str) -> str:
    """`gains` for the first protocol and arm, else with what differs: `gains-natural-draft-k2`."""
    parts = [kind]
    if protocol != grid.protocols[0]:
        parts.append(_slug(protocol.name) or f"protocol-{grid.protocols.index(protocol)}")
    if arm is not None and arm != grid.on_arms[0]:
        parts.append(_slug(arm) or f"arm-{grid.on_arms.index(arm)}")
    return "-".join(parts)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
