"""Records as columns: one Arrow row per request, so that a million of them are read and reckoned as a few arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from specprof.ragged import Ragged
from specprof.records import (
    Cell,
    CellRecord,
    ClientLoad,
    Counters,
    HardwareReading,
    Phase,
    Request,
    ServerTimes,
    Speculation,
    TextScores,
)

REQUEST_SCHEMA = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("phase", pa.string()),
        ("stream", pa.int32()),
        ("scheduled_ns", pa.int64()),
        ("sent_ns", pa.int64()),
        ("done_ns", pa.int64()),
        ("chunk_ns", pa.list_(pa.int64())),
        ("chunk_tokens", pa.list_(pa.int32())),
        ("token_ids", pa.list_(pa.int32())),
        ("text", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("cached_tokens", pa.int32()),
        ("finish_reason", pa.string()),
        ("error", pa.string()),
        ("queue_s", pa.float64()),
        ("time_to_first_token_s", pa.float64()),
        ("generation_s", pa.float64()),
        ("num_steps", pa.int32()),
        ("num_drafted", pa.int32()),
        ("num_accepted", pa.int32()),
        ("accepted_per_step", pa.list_(pa.int32())),
        ("drafted_per_step", pa.list_(pa.int32())),
        ("reasoning", pa.string()),
    ]
)
LATER_COLUMNS = ("reasoning",)  # of text; a file from before there was one lacks it

SCORE_SCHEMA = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("logprobs", pa.list_(pa.float32())),
        ("ranks", pa.list_(pa.int32())),
        ("top_logprobs", pa.list_(pa.list_(pa.float32()))),
        ("error", pa.string()),
    ]
)

_NO_TIMES = ServerTimes()
_OF_SERVER = tuple(ServerTimes.__dataclass_fields__)
_OF_SPECULATION = tuple(Speculation.__dataclass_fields__)
_OF_REQUEST = tuple(name for name in REQUEST_SCHEMA.names if name in Request.__dataclass_fields__ and name != "phase")


class RequestColumns(Protocol):
    """The requests of a cell, one row each, read by column: an Arrow table, or a file with one (`store.requests`)."""

    @property
    def num_rows(self) -> int:
        """How many requests there are, whatever they were sent for."""

    def select(self, columns: Sequence[str]) -> pa.Table:
        """These columns of `REQUEST_SCHEMA`."""


@dataclass(frozen=True, slots=True)
class CellData:
    """A sealed cell as analysis reads it: the record, with its requests as columns."""

    cell: Cell
    launch: int
    requests: RequestColumns
    before: Counters | None
    after: Counters | None
    gauges: tuple[Counters, ...]
    client: ClientLoad | None
    started_at: str
    hardware: tuple[HardwareReading, ...] = ()


def cell_data(record: CellRecord) -> CellData:
    """The same view of a record that never saw a disk (simulated studies)."""
    return CellData(
        record.cell,
        record.launch,
        request_table(record.requests),
        record.before,
        record.after,
        record.gauges,
        record.client,
        record.started_at,
        record.hardware,
    )


def request_table(requests: Sequence[Request]) -> pa.Table:
    """Requests as columns; list columns hold one entry per chunk, token or verification step."""
    server = [request.server or _NO_TIMES for request in requests]
    columns: dict[str, list[Any]] = {
        **{name: [getattr(request, name) for request in requests] for name in _OF_REQUEST},
        **{name: [getattr(times, name) for times in server] for name in _OF_SERVER},
        **{
            name: [None if request.speculation is None else getattr(request.speculation, name) for request in requests]
            for name in _OF_SPECULATION
        },
        "phase": [request.phase.value for request in requests],
    }
    return pa.Table.from_pydict(columns, schema=REQUEST_SCHEMA)


def requests_of(columns: RequestColumns) -> Iterator[Request]:
    """The way back from `request_table`."""
    for row in columns.select(REQUEST_SCHEMA.names).to_pylist():
        server = ServerTimes(**{name: row.pop(name) for name in _OF_SERVER})
        steps = {name: row.pop(name) for name in _OF_SPECULATION}
        speculation = None
        if steps["num_steps"] is not None:
            per_step: dict[str, Any] = {
                name: tuple(steps.pop(name)) for name in ("accepted_per_step", "drafted_per_step")
            }
            speculation = Speculation(**steps, **per_step)
        lists = {name: tuple(row.pop(name)) for name in ("chunk_ns", "chunk_tokens", "token_ids")}
        told = server if server != _NO_TIMES else None
        yield Request(**{**row, **lists, "phase": Phase(row["phase"])}, server=told, speculation=speculation)


def ragged(column: pa.ChunkedArray) -> Ragged:
    """A list column without a copy of what it holds; missing lists are empty."""
    lists = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    values = lists.flatten().to_numpy(zero_copy_only=False)
    if not lists.null_count:
        offsets = lists.offsets.to_numpy()
        return Ragged(values, offsets.astype(np.int64) - offsets[0])
    return Ragged.with_lengths(values, pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False))


def score_table(scores: Sequence[TextScores]) -> pa.Table:
    """Scored texts as columns, one row per text."""
    columns = {name: [getattr(text, name) for text in scores] for name in SCORE_SCHEMA.names}
    return pa.Table.from_pydict(columns, schema=SCORE_SCHEMA)
