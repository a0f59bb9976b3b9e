"""Sealed cells, each with its measured requests, every METHOD 1 quantity a column of them (`requests.Requests`).

Warm-ups and failed requests are records too; `requests` keeps the measured ones that ended as asked, `failures` those
that did not. What only filled a mixed batch, or came before or after the window of an open loop, is in `all_requests`
beside the measured ones.

A frame keeps what there is one of per request. What there is one of per chunk, token or step (`lists`), and the texts,
are read again where they are asked for: a study has a hundred times as many of them, and need not fit in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from specprof.analyse.requests import COLUMNS, NS, WRITTEN, Mask, Requests, numbers, written_text
from specprof.analyse.stats import Array
from specprof.columns import CellData, ragged
from specprof.ragged import Indices, Ragged
from specprof.records import Cell, Phase
from specprof.study.loops import Repetition, repetition


@dataclass(frozen=True)
class CellFrame:
    """One measured cell and its requests."""

    data: CellData

    @property
    def cell(self) -> Cell:
        """What was measured."""
        return self.data.cell

    @property
    def empty(self) -> bool:
        """Whether no measured request ended as asked."""
        return not self._shown.any()

    @cached_property
    def failures(self) -> tuple[str, ...]:
        """What went wrong with each request that failed and that the engine's own counters saw."""
        failed = self._read(["error"], self._fates.counted & ~self._fates.ended_well)
        return tuple(error or "no token arrived" for error in failed["error"].to_pylist())

    @cached_property
    def requests(self) -> Requests:
        """The measured requests that ended as asked."""
        return self._derived(self._shown)

    @cached_property
    def all_requests(self) -> Requests:
        """The same with those that only kept the load up: everything the engine's own counters saw."""
        rows = self._fates.counted & self._fates.ended_well
        return self.requests if rows.sum() == self._shown.sum() else self._derived(rows)

    @cached_property
    def tpot_s(self) -> float:
        """TPOT over all tokens of the cell, so that a text weighs as much as it wrote; NaN where nobody wrote on."""
        tokens = float(self.requests.later_tokens.sum())
        return float(self.requests.writing.sum()) / tokens if tokens else float("nan")

    @cached_property
    def wall_s(self) -> float:
        """Last `done` - first `sent` of the measured window, failed requests included."""
        if not self._fates.measured.any():
            return float("nan")
        times = self._read(["sent_ns", "done_ns"], self._fates.measured)
        return float((numbers(times, "done_ns").max() - numbers(times, "sent_ns").min()) / NS)

    @cached_property
    def throughput(self) -> float:
        """X: all output tokens over the wall, tok/s; NaN if nothing came."""
        tokens = float(self.requests.output_tokens.sum())
        return tokens / self.wall_s if tokens and self.wall_s > 0 else float("nan")

    @cached_property
    def last_of_prompts(self) -> Indices:
        """Rows of `requests`: of a prompt that was sent more than once that of the last. Shape (prompts,)."""
        rows = {name: row for row, name in enumerate(self.requests.prompt_id)}
        return np.array(sorted(rows.values()), dtype=np.int64)

    @property
    def gaps(self) -> Array:
        """Seconds between neighbouring chunks of one request, all requests together: per-step ITL."""
        arrived = self.lists("chunk_ns")
        return np.asarray(np.diff(arrived.values)[arrived.has_next] / NS, dtype=float)

    @cached_property
    def names_tokens(self) -> bool:
        """Whether the server streamed the ids of the tokens it wrote, so that a chunk is known by its tokens."""
        return bool(len(self.lists("token_ids").values))

    @cached_property
    def repetition(self) -> Repetition:
        """How much each of the texts repeats itself. Same order as `requests`, tokens as in `lists("token_ids")`."""
        return repetition(self.lists("token_ids"))

    def lists(self, column: str) -> Ragged:
        """A list column: one list per request of `requests` (missing lists are empty)."""
        return ragged(self._read([column], self._shown)[column])

    def texts(self) -> pa.ChunkedArray:
        """What each of `requests` wrote, reasoning and answer."""
        return written_text(self._read(WRITTEN, self._shown))

    @cached_property
    def _fates(self) -> _Fates:
        return _Fates.of(self.data.requests.select(["phase", "error", "chunk_tokens"]), self.cell)

    @property
    def _shown(self) -> Mask:
        return self._fates.measured & self._fates.ended_well

    def _read(self, columns: Sequence[str], rows: Mask) -> pa.Table:
        """Some rows of the cell: a slice where they are neighbours, as they are but for failures."""
        table = self.data.requests.select(columns)
        places = np.flatnonzero(rows)
        if len(places) and places[-1] - places[0] + 1 == len(places):
            return table.slice(int(places[0]), len(places))
        return table.filter(pa.array(rows))

    def _derived(self, rows: Mask) -> Requests:
        return Requests.of(self._read(COLUMNS, rows), speculates=bool(self.cell.speculative_config))


@dataclass(frozen=True, slots=True)
class _Fates:
    """What each request of a cell was sent for, and whether it ended as asked. Shapes: (rows of the cell,)."""

    measured: Mask
    counted: Mask  # between the two readings of the counters: all but a warm-up, which in an open loop comes after one
    ended_well: Mask

    @classmethod
    def of(cls, table: pa.Table, cell: Cell) -> _Fates:
        phase, num_chunks = table["phase"], ragged(table["chunk_tokens"]).lengths
        ended_well = table["error"].is_null().to_numpy() & (num_chunks > 0)
        measured, warmup = (pc.equal(phase, of.value).to_numpy() for of in (Phase.MEASURED, Phase.WARMUP))
        return cls(measured, ~warmup | (cell.arrivals is not None), ended_well)
