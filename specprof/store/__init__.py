"""The disk: append, seal, read. Nothing sealed is ever rewritten, nothing unsealed is ever trusted.

    results/<study>/study.yaml            as run; `study.sha256` beside it is the hash of what it says, and the format
                    environment.json      the machine and specprof, at the first run
                    launches/<n>/         facts.json and engine.log of one engine start
                    cells/<key>/          cell.json, requests.parquet, counters.json, and last of all sealed.json
                    scores/<key>.parquet  a sampled cell's texts, scored by the target alone (gate 8)
                    quality/<key>.json    which of a cell's texts are good: made of sealed ones, so it may be made anew

`sealed.json` arrives by `os.replace` after everything else has reached the disk. A cell without it is measured again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specprof.columns import REQUEST_SCHEMA, CellData, cell_data, score_table
from specprof.errors import StoreError, reason
from specprof.records import CellRecord, EngineFacts, TextMarks, TextScores
from specprof.store import identity
from specprof.store.cells import (
    CELL,
    COUNTERS,
    REQUESTS,
    SEAL,
    are_scores_of,
    cell_json,
    counters_json,
    read_cell,
    read_scores,
    scores_told,
)
from specprof.store.explained import FILE as EXPLANATIONS
from specprof.store.files import (
    now,
    read_json,
    read_text,
    replacing,
    sha256,
    sync,
    sync_folder,
    write,
    write_json,
    writing,
)
from specprof.store.identity import Explain
from specprof.store.kinds import require_facts, require_machine
from specprof.store.lock import exclusive
from specprof.store.requests import RecentColumns

__all__ = ["DeclaredVerdict", "Store", "now"]

ENVIRONMENT, LAUNCHES, VERDICTS = "environment.json", "launches", "verdicts.json"
PLANNED = "planned_cells"  # in the environment
CARD = "card.json"  # what a report keeps of the study, in its folder
_MADE_OF_CELLS = ("scores", "quality", EXPLANATIONS)  # none of them is there before a cell is sealed


@dataclass(frozen=True, slots=True)
class DeclaredVerdict:
    """The digest of a verdict's definition, and whether it was first written down after measuring had begun."""

    digest: str
    post_hoc: bool


class Store:
    """One study's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._recent = RecentColumns()

    @classmethod
    def create(cls, root: Path, study_text: str, study_hash: str, explain: Explain = lambda _: ()) -> Store:
        """Open the folder for measuring, making it if need be. Refuses a folder in which another study was measured.

        Until a cell is sealed each start begins afresh: the study was refused, or its engine did not start, and it was
        mended, or its engine was, which the study need not say.
        `explain`: what a study file as it was measured differs in; lines of the file where it finds nothing to say.
        """
        store = cls(root)
        with writing(root):
            if identity.is_written(root):
                identity.require_known_format(root)
                if store._is_measured():
                    identity.require_same_study(root, study_text, study_hash, explain)
                    return store
                store._forget_study()
            root.mkdir(parents=True, exist_ok=True)
            write(root / "study.yaml", study_text.encode())
            identity.write_identity(root, study_hash)
        return store

    @classmethod
    @contextmanager
    def held(cls, root: Path, study_text: str, study_hash: str, explain: Explain = lambda _: ()) -> Iterator[Store]:
        """`create`, for one run alone while the block lasts; a second run on the same study is refused."""
        with writing(root):
            root.mkdir(parents=True, exist_ok=True)
        with cls(root).lock():
            yield cls.create(root, study_text, study_hash, explain)

    def _forget_study(self) -> None:
        """Drop what a study that sealed nothing said of itself and of its engines. OSError where something stays."""
        launches = self.root / LAUNCHES
        if launches.is_symlink():
            launches.unlink()
        with suppress(FileNotFoundError):
            shutil.rmtree(launches)
        for name in (ENVIRONMENT, VERDICTS):
            (self.root / name).unlink(missing_ok=True)

    def _is_measured(self) -> bool:
        """Whether a cell is sealed, or was: what is made of sealed cells outlives a folder that was taken away."""
        if self.sealed_keys() or any(os.path.lexists(self.root / name) for name in _MADE_OF_CELLS):
            return True
        card = self.root / CARD  # a study of which nothing is measured can be reported too, and its card has no cells
        told = read_json(card) if os.path.lexists(card) else {"cells": []}
        return not isinstance(told, dict) or told.get("cells") != []

    @classmethod
    def existing(cls, root: Path) -> Store:
        """Open a folder of results for reading."""
        if not identity.is_written(root):
            raise StoreError(f"{root}: is not a results folder. Give one that 'specprof run' made, e.g. results/demo.")
        identity.require_known_format(root)
        return cls(root)

    def lock(self) -> AbstractContextManager[None]:
        """Held while a run writes; a second run on the same study is refused."""
        return exclusive(self.root)

    def keep_study(self, study_text: str) -> None:
        """Keep the file as it is run now: more blocks or another verdict are the same study. Call it under the lock."""
        write(self.root / "study.yaml", study_text.encode())

    def declare_verdicts(self, digests: Mapping[str, str]) -> None:
        """Write down what each verdict says, by name, before anything is measured.

        Once a cell is sealed, a verdict whose definition changed is refused, and a new one stays post hoc.
        """
        post_hoc = self._is_measured()
        declared = self.verdicts() if post_hoc else {}
        for name, digest in digests.items():
            if name in declared and declared[name].digest != digest:
                raise StoreError(
                    f"{self.root}: verdict '{name}' was declared before the measurement and has changed since. "
                    "Restore it, or give the new line another name; it will be marked post hoc."
                )
            declared.setdefault(name, DeclaredVerdict(digest, post_hoc))
        if declared or (self.root / VERDICTS).is_file():
            write_json(self.root / VERDICTS, {name: asdict(line) for name, line in declared.items()})

    def verdicts(self) -> dict[str, DeclaredVerdict]:
        """Declared verdicts by name."""
        path = self.root / VERDICTS
        if not path.is_file():
            return {}
        try:
            return {name: DeclaredVerdict(**line) for name, line in read_json(path).items()}
        except (AttributeError, TypeError) as problem:
            raise StoreError(f"{path}: holds no declared verdicts ({reason(problem)}). Restore it.") from None

    # -- writing ------------------------------------------------------------------------------------------------

    def is_sealed(self, key: str) -> bool:
        """Whether a cell is measured for good."""
        return (self._cell(key) / SEAL).is_file()

    def sealed_keys(self) -> frozenset[str]:
        """The keys of every cell that is measured for good. StoreError where that cannot be seen."""
        cells = self.root / "cells"
        try:
            return frozenset(folder.name for folder in cells.iterdir() if _is_there(folder / SEAL))
        except OSError as problem:
            if isinstance(problem, FileNotFoundError) and not cells.is_symlink() and not cells.exists():
                return frozenset()
            raise StoreError(
                f"{cells}: cannot be looked at ({reason(problem)}), so nobody can tell what is measured. Mount its "
                "disk again or restore its permissions, then give the same command again."
            ) from None

    def seal(self, record: CellRecord) -> None:
        """Put a measured cell on disk for good."""
        self.seal_columns(cell_data(record))

    def seal_columns(self, record: CellData) -> None:
        """The same of a cell whose requests are columns already."""
        key = record.cell.key
        if self.is_sealed(key):
            raise StoreError(f"{self.root}: cell {key} is sealed already; sealed cells are never rewritten.")
        folder = self._cell(key)
        with writing(folder):
            shutil.rmtree(folder, ignore_errors=True)  # what an interrupted attempt left
            folder.mkdir(parents=True)
            pq.write_table(record.requests.select(REQUEST_SCHEMA.names), folder / REQUESTS, compression="zstd")
            sync(folder / REQUESTS)
            write_json(folder / CELL, cell_json(record))
            write_json(folder / COUNTERS, counters_json(record))
            files = {name: sha256((folder / name).read_bytes()) for name in (CELL, COUNTERS, REQUESTS)}
            write_json(folder / SEAL, {"sealed_at": now(), "sha256": files})
            sync_folder(folder.parent)

    def _cell(self, key: str) -> Path:
        return self.root / "cells" / key

    def is_scored(self, key: str) -> bool:
        """Whether the texts a cell holds now are scored for good."""
        path = self._scores(key)
        return path.is_file() and self.is_sealed(key) and are_scores_of(path, self._cell(key))

    def seal_scores(self, key: str, launch: int, scores: Sequence[TextScores]) -> None:
        """Put the scores of a sealed cell's texts on disk for good, with the launch they were made on.

        Scores of texts that the cell held before give way.
        """
        if not self.is_sealed(key) or self.is_scored(key):
            why = "is scored already" if self.is_scored(key) else "is not sealed yet"
            raise StoreError(f"{self.root}: cell {key} {why}; scores are written once, after their cell.")
        path = self._scores(key)
        table = score_table(scores).replace_schema_metadata(scores_told(launch, self._hashes(key)[REQUESTS]))
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            with replacing(path) as handle:
                pq.write_table(table, handle, compression="zstd", write_page_checksum=True)

    def _scores(self, key: str) -> Path:
        return self.root / "scores" / f"{key}.parquet"

    def is_judged(self, key: str, digest: str) -> bool:
        """Whether the texts a cell holds now are judged by the checks of this digest."""
        path = self._quality(key)
        return path.is_file() and (found := self._marks(path)) is not None and found.digest == digest

    def seal_quality(self, key: str, marks: TextMarks) -> None:
        """Put the marks of a sealed cell's texts on disk, in the place of what other checks said of them."""
        path = self._quality(key)
        told = {**asdict(marks), "judged_at": now(), "requests_sha256": self._hashes(key)[REQUESTS]}
        with writing(path):
            path.parent.mkdir(exist_ok=True)
        write_json(path, told)

    def _quality(self, key: str) -> Path:
        return self.root / "quality" / f"{key}.json"

    def _hashes(self, key: str) -> Any:
        """The hashes of a sealed cell's files, by name."""
        return read_json(self._cell(key) / SEAL)["sha256"]

    def new_launch(self) -> tuple[int, Path]:
        """A number and folder for one engine start. A resumed launch is another start, with a number of its own."""
        launches = self.root / LAUNCHES
        with writing(launches):
            launches.mkdir(exist_ok=True)
            number = max((int(p.name) for p in launches.iterdir() if p.name.isdecimal()), default=-1) + 1
            folder = launches / str(number)
            folder.mkdir()
        return number, folder

    def write_facts(self, launch: int, facts: EngineFacts) -> None:
        """What the engine of one launch really was."""
        write_json(self.root / LAUNCHES / str(launch) / "facts.json", asdict(facts))

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """The machine and specprof itself; the first run's is kept."""
        if not (self.root / ENVIRONMENT).exists():
            write_json(self.root / ENVIRONMENT, environment)

    def complete_environment(self, found: Mapping[str, Any]) -> None:
        """Fill in what the first run could not tell yet; what it told stays."""
        told = self.environment()
        missing = {name: value for name, value in found.items() if told.get(name) is None}
        write_json(self.root / ENVIRONMENT, {**told, **missing})

    def plan_for(self, num_cells: int) -> None:
        """Keep how many cells there will be at most, so that a report of fewer says so."""
        write_json(self.root / ENVIRONMENT, {**self.environment(), PLANNED: num_cells})

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def study_text(self) -> str:
        """The study file as it was run."""
        return read_text(self.root / "study.yaml")

    def environment(self) -> dict[str, Any]:
        """What `write_environment` kept; empty if nothing was run."""
        path = self.root / ENVIRONMENT
        told = read_json(path) if path.is_file() else {}
        if not isinstance(told, dict):
            raise StoreError(f"{path}: holds no environment. Restore it, or remove it.")
        try:
            require_machine(told)
        except ValueError as problem:
            raise StoreError(f"{path}: holds no environment ({reason(problem)}). Restore it, or remove it.") from None
        return told

    def facts(self) -> dict[int, EngineFacts]:
        """Engine facts by launch number."""
        found = {}
        for path in (self.root / LAUNCHES).glob("*/facts.json"):
            told = read_json(path)
            try:
                require_facts(told)
                found[int(path.parent.name)] = EngineFacts(**{**told, "argv": tuple(told["argv"])})
            except (KeyError, TypeError, ValueError) as problem:
                raise StoreError(
                    f"{path}: holds no engine facts ({reason(problem)}). Restore it, or remove it."
                ) from None
        return dict(sorted(found.items()))

    def any_facts(self) -> EngineFacts | None:
        """Those of the first launch that has any, for what no launch of a study differs in."""
        return next(iter(self.facts().values()), None)

    def cells(self) -> Iterator[CellData]:
        """Every sealed cell, in the order they were measured."""
        yield from sorted((self.cell(key) for key in self.sealed_keys()), key=_when)

    def cell(self, key: str) -> CellData:
        """One sealed cell."""
        return read_cell(self._cell(key), self._recent)

    def num_requests(self, key: str) -> int:
        """How many requests a sealed cell has, as the end of their file tells."""
        path = self._cell(key) / REQUESTS
        try:
            return int(pq.read_metadata(path).num_rows)
        except (OSError, pa.ArrowException) as problem:
            raise StoreError(
                f"{path}: cannot be read ({reason(problem)}). Remove the cell's folder to measure it again."
            ) from None

    def scores(self) -> dict[str, pa.Table]:
        """The scored texts of every scored cell, by the cell's key. Scores of texts measured since are nobody's."""
        found = sorted((self.root / "scores").glob("[!.]*.parquet"))
        return {path.stem: read_scores(path) for path in found if self.is_scored(path.stem)}

    def marks(self) -> dict[str, TextMarks]:
        """The judged texts of every judged cell, by the cell's key. Marks of texts measured since are nobody's."""
        read = {path.stem: self._marks(path) for path in sorted((self.root / "quality").glob("[!.]*.json"))}
        return {key: found for key, found in read.items() if found is not None}

    def _marks(self, path: Path) -> TextMarks | None:
        """None where the texts that were judged are not those the cell holds now."""
        told = read_json(path)
        try:
            if not self.is_sealed(path.stem) or told["requests_sha256"] != self._hashes(path.stem)[REQUESTS]:
                return None
            good, why = tuple(told["good"]), tuple(told["why"])
            rows = self.num_requests(path.stem)
            if not len(good) == len(why) == rows or not set(map(type, good)) <= {bool, type(None)}:
                raise ValueError("not one mark for each request")
            return TextMarks(dict(told["checks"]), told["digest"], good, why)
        except (OSError, KeyError, TypeError, ValueError) as problem:
            raise StoreError(
                f"{path}: holds no marks ({reason(problem)}). Remove it to judge the cell again."
            ) from None


def _is_there(path: Path) -> bool:
    """Whether a file is there. OSError where that cannot be seen, as behind a link into a place that is away."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink() or path.parent.is_symlink():
            raise
        return False
    return True


def _when(data: CellData) -> tuple[int, int, str]:
    """When a cell was measured: on which launch, and by the clock that never jumps, which one launch shares."""
    first_ns = pc.min(data.requests.select(["scheduled_ns"])["scheduled_ns"]).as_py() if data.requests.num_rows else 0
    return data.launch, first_ns, data.cell.key
