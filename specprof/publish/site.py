"""A static page that lists studies: index.html, one folder per study, and a badge per gain. Works from a file.

    DIR/index.html            every number fit to be quoted, and apart from them every one that is not
        badges/*.svg          one per speculation and batching gain fit to be quoted
        <study>/              report.html, report.md, card.json, card.md, figures/ (of a card from elsewhere: the cards)

Studies and cards are untrusted text: the template engine escapes all of it, and the page's own policy allows no script
but the one it came with, and no network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from specprof.analyse.results import CellFigures
from specprof.analyse.service_results import RungFigures
from specprof.errors import InputError
from specprof.publish.badge import MARK, badge, badge_name
from specprof.publish.card_text import card_markdown, measured_on
from specprof.publish.context import SEPARATOR, gate_code
from specprof.publish.files import put
from specprof.publish.fitness import SPECULATION, Fit
from specprof.publish.grid import protocol_of
from specprof.publish.json_text import json_text
from specprof.publish.language import chinese, say
from specprof.publish.numbers import count, interval, number, one_line, seconds
from specprof.publish.paragraphs import verbatim
from specprof.publish.quoted import HeldBack, Quoted, held_back, quoted
from specprof.publish.report import write_report
from specprof.publish.service_card import ServiceNumber
from specprof.publish.site_studies import Listed, load, slug
from specprof.publish.web import csp_hash, packaged, page_environment

if TYPE_CHECKING:
    from jinja2 import Environment
    from rich.console import Console

_WITH_BADGE = (SPECULATION, "batching_gain")


@dataclass(frozen=True, slots=True)
class Badge:
    """A badge of the page: its address below it, what it says, and its text."""

    path: str
    context: str
    svg: str


@dataclass(frozen=True, slots=True)
class StudyEntry:
    """A study as the page shows it."""

    study: Listed
    rows: tuple[Quoted, ...]
    held: tuple[HeldBack, ...]
    badges: tuple[Badge, ...]
    pictures: tuple[str, ...]  # below figures/, without .png

    @property
    def service(self) -> tuple[ServiceNumber, ...]:
        """The numbers of its open loops, a row each."""
        return self.study.fitness.service

    @property
    def model(self) -> str:
        """The model's name; of a folder on somebody's machine, its last part alone."""
        model = self.study.engine.model
        return model.rstrip("/").rpartition("/")[2] if model.startswith(("/", "~", "file:")) else model

    @property
    def date(self) -> str:
        """The day of the first run."""
        return measured_on(self.study.figures)


def publish_command(paths: Sequence[Path], out: Path, only: Sequence[str], console: Console) -> None:
    """`specprof publish`: write the page and say what stands on it, and what does not and why."""
    studies = load(paths, only)
    page = publish(studies, out)
    for study in studies:
        fitness = study.fitness
        held = f"; {len(fitness.unfit)} not fit to be quoted ({'; '.join(fitness.reasons())})" if fitness.unfit else ""
        told = f"{study.label}: {len(fitness.fit) + len(fitness.service)} numbers fit to be quoted{held}"
        verbatim(told, console)
    verbatim(f"Page: {page}", console)


def publish(studies: Sequence[Listed], out: Path) -> Path:
    """Write the page of `studies` into `out`; returns its path. The same studies make the same files.

    Raises InputError where a folder cannot be written, or would overwrite a study.
    """
    _require_apart(studies, out)
    try:
        for study in studies:
            _write_study(study, out / study.folder)
        entries = [_entry(study, out / study.folder) for study in studies]
        _write_badges([badge_ for entry in entries for badge_ in entry.badges], out / "badges")
        put(out / "index.html", render(entries).encode())
    except OSError as problem:
        raise InputError(
            f"{out}: the page cannot be written ({problem.strerror}). Free space or choose another folder."
        ) from None
    return out / "index.html"


def render(entries: Sequence[StudyEntry]) -> str:
    """The page, in one file; pictures and badges lie beside it."""
    script, style = (packaged(f"report.{of}") + packaged(f"site.{of}") for of in ("js", "css"))
    return (
        _environment()
        .get_template("site.html.j2")
        .render(
            entries=entries,
            filters=_filters(entries),
            num_rows=sum(len(entry.rows) + len(entry.service) for entry in entries),
            num_service=sum(len(entry.service) for entry in entries),
            num_held=sum(len(held.numbers) for entry in entries for held in entry.held),
            script=script,
            style=style,
            script_hash=csp_hash(script),
            style_hash=csp_hash(style),
        )
    )


def _require_apart(studies: Sequence[Listed], out: Path) -> None:
    """A page never lies over the study it tells of."""
    within = next((place for place in (out, *out.absolute().parents) if (place / "study.sha256").exists()), None)
    if within is not None:
        raise InputError(f"--out {out}: lies in the results of a study, {within}. Choose another folder.")
    for study in studies:
        target = out / study.folder
        if (target / "study.sha256").exists() or (target / "card.json").resolve() == study.source.resolve():
            raise InputError(f"--out {out}: would write over the study in {target}. Choose another folder.")


def _write_study(study: Listed, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if study.samples is not None:
        write_report(study.figures, folder, study.samples)
        return
    put(folder / "card.json", json_text(study.card).encode())
    put(folder / "card.md", card_markdown(study.figures).encode())


def _entry(study: Listed, folder: Path) -> StudyEntry:
    pictures = sorted(path.stem for path in (folder / "figures").glob("*.png")) if study.samples is not None else []
    return StudyEntry(
        study, quoted(study.fitness.fit), held_back(study.fitness.unfit), tuple(_badges(study)), tuple(pictures)
    )


def _badges(study: Listed) -> Iterator[Badge]:
    gains = [fit for fit in study.fitness.fit if fit.number.metric in _WITH_BADGE]
    arms = {fit.number.cell.arm for fit in gains}
    for fit in gains:
        name = f"{study.folder}-{slug(badge_name(fit).replace('/', '-'))}"
        yield Badge(f"badges/{name}.svg", _context(study, fit), badge(fit, name_arm=len(arms) > 1))


def _context(study: Listed, fit: Fit) -> str:
    return SEPARATOR.join((study.label, one_line(fit.context)))


def _write_badges(badges: Sequence[Badge], folder: Path) -> None:
    """Today's badges; those of an earlier page that no longer hold are removed, other people's files are not."""
    folder.mkdir(parents=True, exist_ok=True)
    for made in badges:
        put(folder / Path(made.path).name, made.svg.encode())
    current = {Path(made.path).name for made in badges}
    for path in folder.glob("*.svg"):
        if path.name not in current and path.read_bytes().startswith(MARK.encode()):
            path.unlink()


def _filters(entries: Sequence[StudyEntry]) -> dict[str, list[str]]:
    """What each select offers, by its name in the page's address."""
    cells = [row.cell for entry in entries for row in entry.rows]
    rungs = [found.rung for entry in entries for found in entry.service]
    places: list[CellFigures | RungFigures] = [*cells, *rungs]
    found: dict[str, Iterable[str]] = {
        "study": (entry.study.label for entry in entries),
        "tag": (one_line(place.tag) for place in places),
        "protocol": (one_line(place.protocol) for place in places),
        "arm": (one_line(place.arm) for place in places),
        "n": map(str, sorted({cell.concurrency for cell in cells})),
    }
    return {name: list(dict.fromkeys(values)) for name, values in found.items()}


@cache
def _environment() -> Environment:
    environment = page_environment()
    environment.filters |= {
        "line": one_line,
        "number": number,
        "count": count,
        "interval": interval,
        "seconds": seconds,
        "gate_code": gate_code,
        "protocol": protocol_of,
    }
    environment.globals |= {"say": say, "chinese": chinese}
    return environment
