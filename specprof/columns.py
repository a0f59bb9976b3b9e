"""Records as columns: one Arrow row per request, so that a million of them are read and reckoned as a few arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

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
    ]
)

SCORE_SCHEMA = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("logprobs", pa.list_(pa.float32())),
        ("ranks", pa.list_(pa.int32())),
        ("top_logprobs", pa.list_(pa.list_(pa.float32()))),
        ("error", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class CellData:
    """A sealed cell as analysis reads it: the record, with its requests as an Arrow table, one row per request."""

    cell: Cell
    launch: int
    requests: pa.Table
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
    flat = []
    for request in requests:
        row = {name: getattr(request, name) for name in REQUEST_SCHEMA.names if hasattr(request, name)}
        row["phase"] = request.phase.value
        server, speculation = request.server or ServerTimes(), request.speculation
        row |= {name: getattr(server, name) for name in ("queue_s", "time_to_first_token_s", "generation_s")}
        if speculation is not None:
            row |= asdict(speculation)
        flat.append(row)
    return pa.Table.from_pylist(flat, schema=REQUEST_SCHEMA)


def requests_of(table: pa.Table) -> Iterator[Request]:
    """The way back from `request_table`."""
    for row in table.to_pylist():
        server = ServerTimes(row.pop("queue_s"), row.pop("time_to_first_token_s"), row.pop("generation_s"))
        steps = {name: row.pop(name) for name in Speculation.__dataclass_fields__}
        speculation = None
        if steps["num_steps"] is not None:
            per_step: dict[str, Any] = {
                name: tuple(steps.pop(name)) for name in ("accepted_per_step", "drafted_per_step")
            }
            speculation = Speculation(**steps, **per_step)
        lists = {name: tuple(row.pop(name)) for name in ("chunk_ns", "chunk_tokens", "token_ids")}
        told = server if server != ServerTimes() else None
        yield Request(**{**row, **lists, "phase": Phase(row["phase"])}, server=told, speculation=speculation)


def score_table(scores: Sequence[TextScores]) -> pa.Table:
    """Scored texts as columns, one row per text."""
    columns = {name: [getattr(text, name) for text in scores] for name in SCORE_SCHEMA.names}
    return pa.Table.from_pydict(columns, schema=SCORE_SCHEMA)
