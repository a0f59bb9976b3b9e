"""Sealed cells → frames: one row per measured request, every METHOD 1 quantity a column, computed on whole columns.

Warm-ups and failed requests are records too; `requests` keeps the measured ones that ended as asked, `failures` those
that did not. What only filled a mixed batch is in `all_requests` beside the measured ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from specprof.analyse.acceptance import engine_steps
from specprof.analyse.stats import Array
from specprof.columns import CellData
from specprof.records import Cell, Phase

NS = 1e9

_PLAIN = ["prompt_id", "stream", "text", "prompt_tokens", "cached_tokens", "finish_reason"]
_SERVER = ["queue_s", "time_to_first_token_s", "generation_s", "num_steps", "num_drafted", "num_accepted"]


@dataclass(frozen=True)
class CellFrame:
    """One measured cell, its requests as a frame with derived columns (seconds, tokens, tok/s)."""

    data: CellData

    @property
    def cell(self) -> Cell:
        """What was measured."""
        return self.data.cell

    @cached_property
    def _measured(self) -> pa.Table:
        table = self.data.requests
        return table.filter(pc.equal(table["phase"], Phase.MEASURED.value))

    @cached_property
    def table(self) -> pa.Table:
        """The Arrow rows behind `requests`, same order, list columns included."""
        return self._measured.filter(_ended_well(self._measured))

    @cached_property
    def _after_warmup(self) -> pa.Table:
        """Everything between the two readings of the counters: measured, and what kept a mixed batch full."""
        table = self.data.requests
        return table.filter(pc.not_equal(table["phase"], Phase.WARMUP.value))

    @cached_property
    def failures(self) -> pd.DataFrame:
        """Requests after the warm-up that failed: prompt_id, error."""
        failed = self._after_warmup.filter(pc.invert(_ended_well(self._after_warmup)))
        frame: pd.DataFrame = failed.select(["prompt_id", "error"]).to_pandas()
        return frame.fillna({"error": "no token arrived"})

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per measured request that ended as asked."""
        return self._derived(self.table)

    @cached_property
    def all_requests(self) -> pd.DataFrame:
        """The same with those that kept a mixed batch full: everything the engine's own counters saw."""
        table = self._after_warmup.filter(_ended_well(self._after_warmup))
        return self.requests if table.num_rows == self.table.num_rows else self._derived(table)

    def _derived(self, table: pa.Table) -> pd.DataFrame:
        return _derived(table, speculates=bool(self.cell.speculative_config))

    @cached_property
    def tpot_s(self) -> float:
        """TPOT over all tokens of the cell, so that a text weighs as much as it wrote; NaN where nobody wrote on."""
        tokens = float(self.requests["later_tokens"].sum())
        return float((self.requests["last"] - self.requests["first"]).sum()) / tokens if tokens else float("nan")

    @cached_property
    def wall_s(self) -> float:
        """Last `done` - first `sent` of the measured window, failed requests included."""
        if self._measured.num_rows == 0:
            return float("nan")
        return float((_column(self._measured, "done_ns").max() - _column(self._measured, "sent_ns").min()) / NS)

    @cached_property
    def throughput(self) -> float:
        """X: all output tokens over the wall, tok/s; NaN if nothing came."""
        tokens = float(self.requests["output_tokens"].sum())
        return tokens / self.wall_s if tokens and self.wall_s > 0 else float("nan")

    @cached_property
    def gaps(self) -> Array:
        """Seconds between neighbouring chunks of one request, all requests together: per-step ITL."""
        times = self.table["chunk_ns"].combine_chunks()
        if len(times) == 0:
            return np.empty(0)
        flat = times.flatten().to_numpy(zero_copy_only=False)
        starts = np.cumsum(_lengths(self.table["chunk_ns"]))[:-1].astype(int)
        gaps = np.diff(flat) / NS
        return np.asarray(np.delete(gaps, starts - 1), dtype=float)

    @cached_property
    def names_tokens(self) -> bool:
        """Whether the server streamed the ids of the tokens it wrote, so that a chunk is known by its tokens."""
        return any(len(ids) for ids in self.lists("token_ids"))

    def lists(self, column: str) -> list[NDArray[np.int64]]:
        """A list column as one numpy array per request (missing lists are empty)."""
        return [np.asarray(row if row is not None else [], dtype=np.int64) for row in self.table[column].to_pylist()]


def _derived(table: pa.Table, *, speculates: bool) -> pd.DataFrame:
    """METHOD 1's quantities of every request, one row each. Engine steps are NaN where the server tells none of them.

    Tokens are those of the chunks: the server's ids, or its own count of the text (`records.Request`).
    """
    frame: pd.DataFrame = table.select(_PLAIN + _SERVER).to_pandas()
    scheduled, sent, done = (_column(table, name) / NS for name in ("scheduled_ns", "sent_ns", "done_ns"))
    first, last = _edges(table["chunk_ns"])
    first_tokens, _ = _edges(table["chunk_tokens"])
    frame["sent"], frame["first"], frame["last"], frame["done"] = sent, first / NS, last / NS, done
    frame["output_tokens"] = _sums(table["chunk_tokens"])
    frame["num_chunks"] = _lengths(table["chunk_ns"])
    frame["chars"] = pc.utf8_length(table["text"]).to_numpy(zero_copy_only=False).astype(float)
    frame["client_queue"] = sent - scheduled
    frame["ttft"] = frame["first"] - sent
    frame["e2el"] = done - sent
    frame["rate"] = frame["output_tokens"] / frame["e2el"]
    frame["later_tokens"] = frame["output_tokens"] - first_tokens  # those that TPOT is the mean of
    decoding = frame["last"] - frame["first"]
    frame["tpot"] = decoding / frame["later_tokens"].where(frame["later_tokens"] > 0)
    frame["decode_speed"] = 1 / frame["tpot"].where(frame["tpot"] > 0)
    accepted = frame["num_accepted"].to_numpy(dtype=float, na_value=np.nan)
    tokens, chunks = (frame[name].to_numpy(dtype=float) for name in ("output_tokens", "num_chunks"))
    if not speculates:
        accepted = np.nan_to_num(accepted)  # a step without a draft accepts nothing
    chunks = np.where(_lengths(table["token_ids"]) > 0, chunks, 0.0)  # of others nobody knows which steps they are
    accepted = np.where(np.isnan(accepted) & (chunks > 0), tokens - chunks, accepted)
    frame["engine_steps"] = engine_steps(tokens, accepted, chunks)
    return frame


def _ended_well(table: pa.Table) -> pa.Array:
    return pc.and_(pc.is_null(table["error"]), _has_tokens(table))


def _has_tokens(table: pa.Table) -> pa.Array:
    return pc.greater(pc.fill_null(pc.list_value_length(table["chunk_tokens"]), 0), 0)


def _column(table: pa.Table, name: str) -> Array:
    return np.asarray(table[name].to_numpy(zero_copy_only=False), dtype=float)


def _lengths(column: pa.ChunkedArray) -> Array:
    return np.asarray(pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False), dtype=float)


def _sums(column: pa.ChunkedArray) -> Array:
    """The sum of each list."""
    flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    up_to = np.concatenate([[0.0], np.cumsum(flat, dtype=float)])
    ends = np.cumsum(_lengths(column)).astype(int)
    return np.diff(up_to[np.concatenate([[0], ends])])


def _edges(column: pa.ChunkedArray) -> tuple[Array, Array]:
    """First and last entry of each list; the lists are not empty."""
    lists = column.combine_chunks()
    if len(lists) == 0:
        return np.empty(0), np.empty(0)
    flat = lists.flatten().to_numpy(zero_copy_only=False).astype(float)
    ends = np.cumsum(_lengths(column)).astype(int)
    starts = np.concatenate([[0], ends[:-1]])
    return flat[starts], flat[ends - 1]
