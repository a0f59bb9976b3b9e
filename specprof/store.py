"""The disk: append, seal, read. Nothing sealed is ever rewritten, nothing unsealed is ever trusted.

    results/<study>/study.yaml            as run; `study.sha256` beside it is the hash of what it says
                    environment.json      the machine and specprof, at the first run
                    launches/<n>/         facts.json and engine.log of one engine start
                    cells/<key>/          cell.json, requests.parquet, counters.json, and last of all sealed.json
                    scores/<key>.parquet  a sampled cell's texts, scored by the target alone (gate 8)
                    quality/<key>.json    which of a cell's texts are good: made of sealed ones, so it may be made anew

`sealed.json` arrives by `os.replace` after everything else has reached the disk. A cell without it is measured again.
"""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from specprof.columns import SCORE_SCHEMA, CellData, request_table, score_table
from specprof.errors import StoreError
from specprof.records import (
    Arrivals,
    CachePolicy,
    Cell,
    CellRecord,
    ClientLoad,
    Counters,
    EngineFacts,
    GpuReading,
    HardwareReading,
    Interference,
    Role,
    Sampling,
    Stop,
    TextMarks,
    TextScores,
)

FORMAT = 1  # of the folder; a reader refuses what it does not know


@dataclass(frozen=True, slots=True)
class DeclaredVerdict:
    """The digest of a verdict's definition, and whether it was first written down after measuring had begun."""

    digest: str
    post_hoc: bool


class Store:
    """One study's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def create(cls, root: Path, study_text: str, study_hash: str) -> Store:
        """Open the folder for measuring, making it if need be. Refuses a folder that holds another study."""
        store = cls(root)
        written = root / "study.sha256"
        with _writing(root):
            if written.exists():
                store._require_same_study(study_text, study_hash)
                return store
            root.mkdir(parents=True, exist_ok=True)
            _write(root / "study.yaml", study_text.encode())
            _write(written, f"{study_hash} {FORMAT}\n".encode())
        return store

    @classmethod
    def existing(cls, root: Path) -> Store:
        """Open a folder of results for reading."""
        if not (root / "study.sha256").is_file():
            raise StoreError(f"{root}: is not a results folder. Give one that 'specprof run' made, e.g. results/demo.")
        store = cls(root)
        store._require_known_format()
        return store

    def _require_known_format(self) -> None:
        words = (self.root / "study.sha256").read_text().split()
        if len(words) != 2 or words[1] != str(FORMAT):
            found = words[1] if len(words) == 2 else "none"
            raise StoreError(
                f"{self.root}: format {found}, this specprof reads {FORMAT}. Use the version that wrote it."
            )

    def _require_same_study(self, study_text: str, study_hash: str) -> None:
        self._require_known_format()
        if (self.root / "study.sha256").read_text().split()[0] == study_hash:
            return
        changes = difflib.unified_diff(
            self.study_text.splitlines(), study_text.splitlines(), "as measured", "now", lineterm="", n=0
        )
        raise StoreError(
            f"{self.root}: holds another study of this name. Give the changed study a new name, or undo:\n"
            + "\n".join(changes)
        )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held while a run writes; a second run on the same study is refused."""
        with _writing(self.root):
            handle = (self.root / ".lock").open("w")
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StoreError(
                    f"{self.root}: another run is measuring this study. Wait for it, or stop it."
                ) from None
            yield

    def keep_study(self, study_text: str) -> None:
        """Keep the file as it is run now: more blocks or another verdict are the same study. Call it under the lock."""
        with _writing(self.root):
            _write(self.root / "study.yaml", study_text.encode())

    def declare_verdicts(self, digests: Mapping[str, str]) -> None:
        """Write down what each verdict says, by name, before anything is measured.

        A verdict whose definition changed since is refused; one first declared beside sealed cells stays post hoc.
        """
        declared = self.verdicts()
        post_hoc = any((self.root / "cells").glob("*/sealed.json"))
        for name, digest in digests.items():
            if name in declared and declared[name].digest != digest:
                raise StoreError(
                    f"{self.root}: verdict '{name}' was declared before the measurement and has changed since. "
                    "Restore it, or give the new line another name; it will be marked post hoc."
                )
            declared.setdefault(name, DeclaredVerdict(digest, post_hoc))
        if declared:
            _write_json(self.root / "verdicts.json", {name: asdict(line) for name, line in declared.items()})

    def verdicts(self) -> dict[str, DeclaredVerdict]:
        """Declared verdicts by name."""
        path = self.root / "verdicts.json"
        return {name: DeclaredVerdict(**line) for name, line in _read_json(path).items()} if path.is_file() else {}

    # -- writing ------------------------------------------------------------------------------------------------

    def is_sealed(self, key: str) -> bool:
        """Whether a cell is measured for good."""
        return (self.root / "cells" / key / "sealed.json").is_file()

    def seal(self, record: CellRecord) -> None:
        """Put a measured cell on disk for good."""
        key = record.cell.key
        if self.is_sealed(key):
            raise StoreError(f"{self.root}: cell {key} is sealed already; sealed cells are never rewritten.")
        folder = self.root / "cells" / key
        with _writing(folder):
            shutil.rmtree(folder, ignore_errors=True)  # what an interrupted attempt left
            folder.mkdir(parents=True)
            cell = {
                "cell": asdict(record.cell),
                "launch": record.launch,
                "client": record.client and asdict(record.client),
                "started_at": record.started_at,
                **({"hardware": [asdict(reading) for reading in record.hardware]} if record.hardware else {}),
            }
            counters = {
                "before": record.before and asdict(record.before),
                "after": record.after and asdict(record.after),
                "gauges": [asdict(reading) for reading in record.gauges],
            }
            pq.write_table(request_table(record.requests), folder / "requests.parquet", compression="zstd")
            _write_json(folder / "cell.json", cell)
            _write_json(folder / "counters.json", counters)
            _sync(folder / "requests.parquet")
            files = {path.name: _sha256(path) for path in sorted(folder.iterdir())}
            _write_json(folder / "sealed.json", {"sealed_at": now(), "sha256": files})

    def is_scored(self, key: str) -> bool:
        """Whether a cell's texts are scored for good."""
        return self._scores(key).is_file()

    def seal_scores(self, key: str, launch: int, scores: Sequence[TextScores]) -> None:
        """Put the scores of a sealed cell's texts on disk for good, with the launch they were made on."""
        if not self.is_sealed(key) or self.is_scored(key):
            why = "is scored already" if self.is_scored(key) else "is not sealed yet"
            raise StoreError(f"{self.root}: cell {key} {why}; scores are written once, after their cell.")
        path = self._scores(key)
        temporary = path.with_name(f".{path.name}.tmp")
        table = score_table(scores).replace_schema_metadata({"launch": str(launch), "scored_at": now()})
        with _writing(path):
            path.parent.mkdir(exist_ok=True)
            pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
            _sync(temporary)
            temporary.replace(path)

    def _scores(self, key: str) -> Path:
        return self.root / "scores" / f"{key}.parquet"

    def is_judged(self, key: str, digest: str) -> bool:
        """Whether the texts a cell holds now are judged by the checks of this digest."""
        path = self._quality(key)
        return path.is_file() and (found := self._marks(path)) is not None and found.digest == digest

    def seal_quality(self, key: str, marks: TextMarks) -> None:
        """Put the marks of a sealed cell's texts on disk, in the place of what other checks said of them."""
        path = self._quality(key)
        told = {**asdict(marks), "judged_at": now(), "requests_sha256": self._sealed(key)["requests.parquet"]}
        with _writing(path):
            path.parent.mkdir(exist_ok=True)
        _write_json(path, told)

    def _quality(self, key: str) -> Path:
        return self.root / "quality" / f"{key}.json"

    def _sealed(self, key: str) -> Any:
        """The hashes of a sealed cell's files, by name."""
        return _read_json(self.root / "cells" / key / "sealed.json")["sha256"]

    def new_launch(self) -> tuple[int, Path]:
        """A number and folder for one engine start. A resumed launch is another start, with a number of its own."""
        launches = self.root / "launches"
        with _writing(launches):
            launches.mkdir(exist_ok=True)
            number = max((int(p.name) for p in launches.iterdir() if p.name.isdigit()), default=-1) + 1
            folder = launches / str(number)
            folder.mkdir()
        return number, folder

    def write_facts(self, launch: int, facts: EngineFacts) -> None:
        """What the engine of one launch really was."""
        _write_json(self.root / "launches" / str(launch) / "facts.json", asdict(facts))

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """The machine and specprof itself; the first run's is kept."""
        if not (self.root / "environment.json").exists():
            _write_json(self.root / "environment.json", environment)

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def study_text(self) -> str:
        """The study file as it was run."""
        return (self.root / "study.yaml").read_text(encoding="utf-8")

    def environment(self) -> dict[str, Any]:
        """What `write_environment` kept; empty if nothing was run."""
        path = self.root / "environment.json"
        return dict(_read_json(path)) if path.is_file() else {}

    def facts(self) -> dict[int, EngineFacts]:
        """Engine facts by launch number."""
        found = {}
        for path in (self.root / "launches").glob("*/facts.json"):
            told = _read_json(path)
            try:
                found[int(path.parent.name)] = EngineFacts(**{**told, "argv": tuple(told["argv"])})
            except (KeyError, TypeError, ValueError) as problem:
                raise StoreError(f"{path}: holds no engine facts ({problem}). Restore it, or remove it.") from None
        return dict(sorted(found.items()))

    def cells(self) -> Iterator[CellData]:
        """Every sealed cell, oldest first."""
        folders = [path.parent for path in (self.root / "cells").glob("*/sealed.json")]
        read = [self._read(folder) for folder in folders]
        yield from sorted(read, key=lambda data: (data.launch, data.started_at))

    def cell(self, key: str) -> CellData:
        """One sealed cell."""
        return self._read(self.root / "cells" / key)

    def scores(self) -> dict[str, pa.Table]:
        """The scored texts of every scored cell, by the cell's key."""
        return {path.stem: _read_scores(path) for path in sorted((self.root / "scores").glob("[!.]*.parquet"))}

    def marks(self) -> dict[str, TextMarks]:
        """The judged texts of every judged cell, by the cell's key. Marks of texts measured since are nobody's."""
        read = {path.stem: self._marks(path) for path in sorted((self.root / "quality").glob("[!.]*.json"))}
        return {key: found for key, found in read.items() if found is not None}

    def _marks(self, path: Path) -> TextMarks | None:
        """None where the texts that were judged are not those the cell holds now."""
        told = _read_json(path)
        try:
            if not self.is_sealed(path.stem) or told["requests_sha256"] != self._sealed(path.stem)["requests.parquet"]:
                return None
            good, why = tuple(told["good"]), tuple(told["why"])
            rows = pq.read_metadata(self.root / "cells" / path.stem / "requests.parquet").num_rows
            if not len(good) == len(why) == rows or not set(map(type, good)) <= {bool, type(None)}:
                raise ValueError("not one mark for each request")
            return TextMarks(dict(told["checks"]), told["digest"], good, why)
        except (OSError, KeyError, TypeError, ValueError, pa.ArrowException) as problem:
            raise StoreError(f"{path}: holds no marks ({problem}). Remove it to judge the cell again.") from None

    def _read(self, folder: Path) -> CellData:
        try:
            sealed = _read_json(folder / "sealed.json")["sha256"]
            for name in ("cell.json", "counters.json", "requests.parquet"):
                if _sha256(folder / name) != sealed[name]:
                    raise StoreError(f"{folder / name}: changed after it was sealed. Restore it, or remove the cell.")
            told, counters = _read_json(folder / "cell.json"), _read_json(folder / "counters.json")
            return CellData(
                cell=_cell(told["cell"]),
                launch=told["launch"],
                requests=pq.read_table(folder / "requests.parquet"),
                before=_counters(counters["before"]),
                after=_counters(counters["after"]),
                gauges=tuple(Counters(**reading) for reading in counters["gauges"]),
                client=told["client"] and ClientLoad(**told["client"]),
                started_at=told["started_at"],
                hardware=tuple(map(_hardware, told.get("hardware", ()))),
            )
        except (OSError, KeyError, TypeError, ValueError, pa.ArrowException) as problem:
            raise StoreError(f"{folder}: cannot be read ({problem}). Remove the folder to measure it again.") from None


def _read_scores(path: Path) -> pa.Table:
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        return table.select(SCORE_SCHEMA.names).cast(SCORE_SCHEMA)
    except (OSError, KeyError, ValueError, pa.ArrowException) as problem:
        raise StoreError(f"{path}: cannot be read ({problem}). Remove the file to score the cell again.") from None


def now() -> str:
    """Wall-clock time for people, ISO 8601 UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _cell(told: dict[str, Any]) -> Cell:
    enums = {"role": Role(told["role"]), "stop": Stop(told["stop"]), "sampling": Sampling(**told["sampling"])}
    enums["cache"] = CachePolicy(told.get("cache", CachePolicy.CONTROLLED))
    lists = {"prompt_ids": tuple(told["prompt_ids"]), "prompt_tags": tuple(told.get("prompt_tags", ()))}
    arrivals = told.get("arrivals")
    if arrivals is not None:
        arrivals = Arrivals(
            **{**arrivals, "due_s": tuple(arrivals["due_s"]), "output_tokens": tuple(arrivals["output_tokens"])}
        )
    told_interference = told.get("interference")
    interference = None if told_interference is None else Interference(**told_interference)
    return Cell(**{**told, **enums, **lists, "arrivals": arrivals, "interference": interference})


def _counters(told: dict[str, Any] | None) -> Counters | None:
    if told is None:
        return None
    per_pos = told["num_accepted_tokens_per_pos"]
    return Counters(**{**told, "num_accepted_tokens_per_pos": None if per_pos is None else tuple(per_pos)})


def _hardware(told: dict[str, Any]) -> HardwareReading:
    gpus = (GpuReading(**{**gpu, "throttled": tuple(gpu["throttled"])}) for gpu in told["gpus"])
    return HardwareReading(**{**told, "gpus": tuple(gpus)})


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _sync(path: Path) -> None:
    with path.open("rb") as handle:
        os.fsync(handle.fileno())


def _write(path: Path, content: bytes) -> None:
    """All or nothing: a reader sees the old file or the new one, whatever happens in between."""
    temporary = path.with_name(f".{path.name}.tmp")
    with _writing(path):
        with temporary.open("wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)


def _write_json(path: Path, value: Any) -> None:
    _write(path, json.dumps(value, ensure_ascii=False, indent=1, default=str).encode())


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise StoreError(f"{path}: cannot be read ({problem}). Restore it, or remove it.") from None


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    """A disk that will not take what is written: say where, and that nothing sealed is lost."""
    try:
        yield
    except OSError as problem:
        raise StoreError(
            f"{place}: cannot be written ({problem.strerror}). "
            "Sealed cells are safe; free space or choose another folder with --results, then run again."
        ) from None
