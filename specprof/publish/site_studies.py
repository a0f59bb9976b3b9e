"""The studies of a published page: loaded from results folders or cards, each under a name and folder of its own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specprof.analyse.results import StudyFigures
from specprof.analyse.samples import Sample
from specprof.errors import InputError
from specprof.publish.card import card
from specprof.publish.card_reading import figures_of, read_card
from specprof.publish.context import Engine, engine_of
from specprof.publish.fitness import Fitness, assess, require_fit, require_publishable
from specprof.publish.numbers import one_line

_RESERVED = ("badges", "index.html")  # names the page's own folder has already
_LONGEST_NAME = 80


@dataclass(frozen=True, slots=True)
class Listed:
    """One study of the page. `samples` is None for a card from elsewhere, which has no records to report on."""

    source: Path
    label: str  # as readers see it: the study's name, numbered where two share it
    folder: str  # below the page's own; safe as a file name and in an address
    card: dict[str, Any]
    figures: StudyFigures
    fitness: Fitness
    samples: tuple[Sample, ...] | None

    @property
    def engine(self) -> Engine:
        """What was measured."""
        return engine_of(self.figures.environment)


def load(paths: Sequence[Path], only: Iterable[str] = ()) -> tuple[Listed, ...]:
    """Every study, held against what forbids publication.

    `only`: addresses of cells (`code/forced/ngram-k4/8`); all others are left out. A study of which nothing is fit
    stands, with gates and remedies, among what is not; raises InputError if that is true of all of them, for what is no
    study, for a study without a number, and for a cell of `only` that is unknown or unfit.
    """
    found = [_loaded(path) for path in _each_once(paths)]
    wanted = tuple(dict.fromkeys(only))
    _require_known(found, wanted)
    chosen = [_chosen(study, wanted) if wanted else study for study in found]
    if not wanted:
        _require_something(chosen)
    return _named_apart(study for study in chosen if study.fitness.fit or not wanted)


def listed(
    source: Path, made: dict[str, Any], figures: StudyFigures, samples: tuple[Sample, ...] | None = None
) -> Listed:
    """A study by its card and figures."""
    name = one_line(figures.study)
    return Listed(source, name, slug(name), made, figures, assess(figures), samples)


def slug(text: str) -> str:
    """A name that is safe as a file and in an address; what it leaves out still tells two names apart."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if plain == text and len(plain) <= _LONGEST_NAME:
        return plain
    return "-".join(part for part in (plain[:_LONGEST_NAME], hashlib.sha256(text.encode()).hexdigest()[:6]) if part)


def _each_once(paths: Sequence[Path]) -> list[Path]:
    return list({path.resolve(): path for path in paths}.values())


def _loaded(path: Path) -> Listed:
    if path.is_dir():
        return _measured(path)
    if path.suffix == ".json":
        made = read_card(path)
        return listed(path, made, figures_of(made))
    raise InputError(f"{path}: is neither a results folder nor a card.json. Give one, e.g. results/demo.")


def _measured(path: Path) -> Listed:
    """From the records, never from the card beside them: what is published is what was measured."""
    from specprof.decide.conclude import conclude
    from specprof.store import Store

    concluded = conclude(Store.existing(path))
    return listed(path, card(concluded.figures), concluded.figures, concluded.samples)


def _require_known(studies: Sequence[Listed], wanted: Sequence[str]) -> None:
    """Every address asked for is a cell of at least one study."""
    for cell in wanted:
        if not any(study.fitness.has(cell) for study in studies):
            raise InputError(studies[0].fitness.unknown_cell(cell))


def _chosen(study: Listed, wanted: Sequence[str]) -> Listed:
    fitness = study.fitness.of_cells(wanted)
    require_fit(fitness)
    return replace(study, fitness=fitness)


def _require_something(studies: Sequence[Listed]) -> None:
    """Every study holds numbers, and one at least something that may be quoted."""
    nothing_fit = [study for study in studies if not (study.fitness.fit or study.fitness.service)]
    for study in nothing_fit:
        if len(nothing_fit) == len(studies) or not study.fitness.unfit:
            require_publishable(study.fitness)


def _named_apart(studies: Iterable[Listed]) -> tuple[Listed, ...]:
    """Two studies of one name, the same on two machines say, as `demo` and `demo (2)`."""
    named: list[Listed] = []
    for study in studies:
        labels, folders = {other.label for other in named}, {*_RESERVED, *(other.folder for other in named)}
        number, label, folder = 1, study.label, study.folder
        while label in labels or folder in folders:
            number += 1
            label, folder = f"{study.label} ({number})", f"{study.folder}-{number}"
        named.append(replace(study, label=label, folder=folder))
    return tuple(named)
