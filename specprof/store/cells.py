"""A measured cell as files, and back.

`sealed.json` holds the hashes of the three others: what was changed afterwards is refused. A field that was added over
time and is missing has its default; a field of a later time is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from specprof.columns import REQUEST_SCHEMA, SCORE_SCHEMA, CellData
from specprof.errors import StoreError, reason, shortened
from specprof.records import (
    Arrivals,
    CachePolicy,
    Cell,
    ClientLoad,
    Counters,
    GpuReading,
    HardwareReading,
    Interference,
    Role,
    Sampling,
    Stop,
    WorkerLoad,
)
from specprof.store.files import now, read_json, sha256
from specprof.store.kinds import require_kinds
from specprof.store.requests import RecentColumns, StoredRequests

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

REQUESTS, CELL, COUNTERS, SEAL = "requests.parquet", "cell.json", "counters.json", "sealed.json"

T = TypeVar("T", bound="DataclassInstance")
E = TypeVar("E", bound=StrEnum)


class _NotKnownHereError(Exception):
    """A record holds what only a newer specprof can have written."""


def cell_json(record: CellData) -> dict[str, Any]:
    """What was measured, on which launch, by how busy a client."""
    return {
        "cell": asdict(record.cell),
        "launch": record.launch,
        "client": record.client and _without_empty_workers(asdict(record.client)),
        "started_at": record.started_at,
        **({"hardware": [asdict(reading) for reading in record.hardware]} if record.hardware else {}),
    }


def counters_json(record: CellData) -> dict[str, Any]:
    """The server's counters before and after, and while the cell ran."""
    return {
        "before": record.before and asdict(record.before),
        "after": record.after and asdict(record.after),
        "gauges": [asdict(reading) for reading in record.gauges],
    }


def _without_empty_workers(told: dict[str, Any]) -> dict[str, Any]:
    """A cell that one client sent is stored as it was before there could be several."""
    return told if told["workers"] else {name: value for name, value in told.items() if name != "workers"}


def read_cell(folder: Path, recent: RecentColumns) -> CellData:
    """A sealed cell. StoreError if it is not as it was sealed, or if a newer specprof sealed it."""
    try:
        sealed = read_json(folder / SEAL)["sha256"]
        told, counters, _ = (_vouched(folder / name, sealed[name]) for name in (CELL, COUNTERS, REQUESTS))
        return _cell_data(
            json.loads(told), json.loads(counters), StoredRequests.of(folder / REQUESTS, sealed[REQUESTS], recent)
        )
    except _NotKnownHereError as problem:
        raise StoreError(
            f"{folder}: was measured by a newer specprof: it has {shortened(str(problem))}, which this one does not "
            "know. Use that one."
        ) from None
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError, pa.ArrowException) as problem:
        raise StoreError(
            f"{folder}: cannot be read ({reason(problem)}). Remove the folder to measure it again."
        ) from None


def _vouched(path: Path, digest: str) -> bytes:
    """The content of a file, which is what it was when its cell was sealed."""
    content = path.read_bytes()
    if sha256(content) != digest:
        raise StoreError(f"{path}: changed after it was sealed. Restore it, or remove the cell.")
    return content


def _cell_data(told: dict[str, Any], counters: dict[str, Any], requests: StoredRequests) -> CellData:
    newer = [name for name in requests.schema.names if name not in REQUEST_SCHEMA.names]
    if newer:
        raise _NotKnownHereError(f"requests.{newer[0]}")
    data = CellData(
        cell=_cell(told["cell"]),
        launch=told["launch"],
        requests=requests,
        before=_counters(counters["before"]),
        after=_counters(counters["after"]),
        gauges=tuple(_record(Counters, reading) for reading in counters["gauges"]),
        client=told["client"] and _client(told["client"]),
        started_at=told["started_at"],
        hardware=tuple(map(_hardware, told.get("hardware", ()))),
    )
    require_kinds({**told, **counters}, requests.schema)
    return data


def scores_told(launch: int, requests_sha256: str) -> dict[str, str]:
    """What a file of scores says of itself: when and on which launch they were made, of which requests."""
    return {"launch": str(launch), "scored_at": now(), "requests_sha256": requests_sha256}


def are_scores_of(path: Path, folder: Path) -> bool:
    """Whether scores are of the texts that a sealed cell holds now. Older ones do not name them: the times must do."""
    try:
        sealed = read_json(folder / SEAL)
        told = {name.decode(): value.decode() for name, value in (pq.read_schema(path).metadata or {}).items()}
        if "requests_sha256" in told:
            return bool(told["requests_sha256"] == sealed["sha256"][REQUESTS])
        return bool(told["scored_at"] >= sealed["sealed_at"])
    except (OSError, KeyError, TypeError, ValueError, pa.ArrowException) as problem:
        raise _no_scores(path, problem) from None


def read_scores(path: Path) -> pa.Table:
    """The scored texts of one cell."""
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        return table.select(SCORE_SCHEMA.names).cast(SCORE_SCHEMA)
    except (OSError, KeyError, ValueError, pa.ArrowException) as problem:
        raise _no_scores(path, problem) from None


def _no_scores(path: Path, problem: Exception) -> StoreError:
    return StoreError(f"{path}: cannot be read ({reason(problem)}). Remove the file to score the cell again.")


def _cell(told: dict[str, Any]) -> Cell:
    kinds = {"role": _known(Role, told["role"]), "stop": _known(Stop, told["stop"])}
    lists = {"prompt_ids": tuple(told["prompt_ids"]), "prompt_tags": tuple(told.get("prompt_tags", ()))}
    arrivals, interference = told.get("arrivals"), told.get("interference")
    if arrivals is not None:
        several = {name: tuple(arrivals[name]) for name in ("due_s", "output_tokens")}
        arrivals = _record(Arrivals, arrivals, **several)
    return _record(
        Cell,
        told,
        **kinds,
        **lists,
        sampling=_record(Sampling, told["sampling"]),
        cache=_known(CachePolicy, told.get("cache", CachePolicy.CONTROLLED)),
        arrivals=arrivals,
        interference=None if interference is None else _record(Interference, interference),
    )


def _counters(told: dict[str, Any] | None) -> Counters | None:
    if told is None:
        return None
    per_pos = told["num_accepted_tokens_per_pos"]
    return _record(Counters, told, num_accepted_tokens_per_pos=None if per_pos is None else tuple(per_pos))


def _client(told: dict[str, Any]) -> ClientLoad:
    return _record(ClientLoad, told, workers=tuple(_record(WorkerLoad, worker) for worker in told.get("workers", ())))


def _hardware(told: dict[str, Any]) -> HardwareReading:
    gpus = (_record(GpuReading, gpu, throttled=tuple(gpu["throttled"])) for gpu in told["gpus"])
    return _record(HardwareReading, told, gpus=tuple(gpus))


def _record(kind: type[T], told: Mapping[str, Any], **replaced: Any) -> T:
    """A record out of what JSON told of it, with some of its values `replaced` by what they stand for."""
    own = {field.name for field in fields(kind)}
    newer = [name for name in told if name not in own]
    if newer:
        raise _NotKnownHereError(f"{kind.__name__}.{newer[0]}")
    return kind(**{**told, **replaced})


def _known(kind: type[E], value: str) -> E:
    if value not in [member.value for member in kind]:
        raise _NotKnownHereError(f"{kind.__name__} {value!r}")
    return kind(value)
