"""The requests of sealed cells, read from their files column by column as they are asked for.

A study may be larger than memory. What its analysis looks at again and again within one cell is kept a while
(`RecentColumns`); everything else is read anew, which is cheaper than holding it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from specprof.columns import LATER_COLUMNS
from specprof.errors import StoreError, reason

KEPT_BYTES = 256 * 2**20
SMALL_BYTES = 2**20


class RecentColumns:
    """The columns read last from any file, `max_bytes` of them at most; what nobody asked for longest goes first."""

    def __init__(self, max_bytes: int = KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[tuple[str, str], pa.ChunkedArray] = OrderedDict()
        self._num_bytes = 0

    def read(self, path: Path, digest: str, names: Sequence[str]) -> pa.Table:
        """Some columns of a file. Raises StoreError where it cannot be read any more.

        `digest`: the file's hash, since a cell that was removed and measured again has other requests in its place.
        """
        absent = [name for name in names if (digest, name) not in self._kept]
        for name, column in (_read(path, absent) if absent else {}).items():
            if (digest, name) not in self._kept:
                self._kept[digest, name] = column
                self._num_bytes += column.nbytes
        found = {name: self._kept[digest, name] for name in names}
        for name in names:
            self._kept.move_to_end((digest, name))
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= self._kept.popitem(last=False)[1].nbytes
        return pa.table(found)


@dataclass(frozen=True, slots=True)
class StoredRequests:
    """The requests of one sealed cell (`columns.RequestColumns`)."""

    path: Path
    digest: str
    schema: pa.Schema
    num_rows: int
    recent: RecentColumns

    @classmethod
    def of(cls, path: Path, digest: str, recent: RecentColumns) -> StoredRequests:
        """Raises OSError or an error of Arrow's for a file that holds no table."""
        with pq.ParquetFile(path) as file:
            return cls(path, digest, file.schema_arrow, file.metadata.num_rows, recent)

    def select(self, columns: Sequence[str]) -> pa.Table:
        """These columns, one row per request."""
        return self.recent.read(self.path, self.digest, columns)


def _read(path: Path, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
    """These columns, and of a small file all: opening it again for the next one costs more.

    A column that there was not yet when the file was written is empty.
    """
    try:
        with pq.ParquetFile(path) as file:
            table = file.read(columns=list(names) if path.stat().st_size > SMALL_BYTES else None)
            empty = pa.chunked_array([pa.nulls(file.metadata.num_rows, pa.string())])
            lacking = dict.fromkeys(set(LATER_COLUMNS).difference(file.schema_arrow.names), empty)
    except (OSError, pa.ArrowException) as problem:
        raise StoreError(
            f"{path}: cannot be read any more ({reason(problem)}). Restore it, or remove the cell."
        ) from None
    return {**lacking, **dict(zip(table.column_names, table.columns, strict=True))}
