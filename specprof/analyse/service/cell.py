"""One open-loop cell as columns: who was due when, what became of each, and which tokens came inside the window.

All instants are seconds from the beginning of the measured window. A latency counts from when its request was *due*;
the same counted from when it was sent stands beside it, and leaves out whatever a full client or a stalled server did
to requests that could not be sent yet (coordinated omission). A request that was lost is later than any other: its
latencies are infinite, not absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from specprof.analyse.frames import NS, CellFrame, Mask
from specprof.analyse.service.asked import Asked
from specprof.analyse.service.spread import NUM_BATCHES
from specprof.analyse.service_results import TargetFigures
from specprof.analyse.stats import Array
from specprof.columns import ragged
from specprof.errors import InputError
from specprof.ragged import Indices
from specprof.records import TIMED_OUT, Arrivals, Cell, Phase


@dataclass(frozen=True)
class OpenCell:
    """A measured open loop and what is asked of its answers. It holds one request at least."""

    frame: CellFrame
    asked: Asked

    @property
    def cell(self) -> Cell:
        """What was measured."""
        return self.frame.cell

    @property
    def arrivals(self) -> Arrivals:
        """Its schedule."""
        if self.cell.arrivals is None:
            raise ValueError(f"{self.cell.key}: is not an open loop")
        return self.cell.arrivals

    @property
    def batch_s(self) -> float:
        """How long one batch of the window is."""
        return self.arrivals.duration_s / NUM_BATCHES

    @cached_property
    def begins_ns(self) -> int:
        """The instant at which the window begins, by the client's clock."""
        first_due = int(pc.min(self._read("scheduled_ns")["scheduled_ns"]).as_py())
        return first_due + round((self.arrivals.warmup_s - self.arrivals.due_s[0]) * NS)

    def _read(self, *columns: str) -> pa.Table:
        return self.frame.data.requests.select(columns)

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per row of the requests table, whatever its phase and fate, in the table's order."""
        chunks = self._chunks
        frame: pd.DataFrame = self._read("prompt_id", "phase", "prompt_tokens", "queue_s").to_pandas()
        table = self._read("scheduled_ns", "sent_ns", "done_ns", "error")
        for name in ("scheduled", "sent", "done"):
            frame[name] = (table[f"{name}_ns"].to_numpy() - self.begins_ns) / NS
        frame["tag"] = self._tags(frame["prompt_id"])
        frame["output_tokens"] = chunks.sums()
        frame["finished"] = table["error"].is_null().to_numpy() & (frame["output_tokens"] > 0)
        gave_up = pc.fill_null(pc.starts_with(table["error"], TIMED_OUT), fill_value=False)
        frame["timed_out"] = ~frame["finished"] & gave_up.to_numpy()
        frame["client_queue"] = frame["sent"] - frame["scheduled"]
        return _with_latencies(frame, chunks)

    @cached_property
    def _chunks(self) -> Chunks:
        return Chunks.of(self._read("chunk_ns", "chunk_tokens"), self.begins_ns)

    def _tags(self, prompt_ids: pd.Series[str]) -> pd.Series[str]:
        if not self.cell.prompt_tags:
            return pd.Series(self.cell.tag, index=prompt_ids.index)
        return prompt_ids.map(dict(zip(self.cell.prompt_ids, self.cell.prompt_tags, strict=True)))

    # -- what was asked --------------------------------------------------------------------------------------------

    @cached_property
    def targets(self) -> dict[str, TargetFigures]:
        """What is asked of the answers, by content."""
        tags = dict.fromkeys(self.cell.prompt_tags or (self.cell.tag,))
        return {tag: self.asked.of(tag, self.cell.stop) for tag in tags}

    @cached_property
    def on_target(self) -> Mask:
        """Requests that ended well and kept their latency targets. Of a content without any, to end well is enough."""
        rows = self.requests
        kept: Mask = rows["finished"].to_numpy(dtype=bool)
        for column, limit in (("ttft", "ttft_s"), ("tpot", "tpot_s"), ("e2el", "e2el_s")):
            limits = rows["tag"].map({tag: _limit(asked, limit) for tag, asked in self.targets.items()})
            kept = kept & ~(rows[column] > limits).to_numpy(dtype=bool)  # a text of one chunk has no TPOT to miss
        return kept

    @cached_property
    def good(self) -> Mask:
        """Requests on target whose text passed the check of its content, where there is one.

        A text that was left unjudged has not passed. Where the whole cell was not judged, see `judged`.
        """
        checked = self._checked
        if not checked.any() or not self.judged:
            return self.on_target
        passed: Mask = self.on_target & (~checked | np.array([mark is True for mark in self._marks], dtype=bool))
        return passed

    @cached_property
    def judged(self) -> bool:
        """Whether nothing is missing to tell good texts from bad ones."""
        return not self._checked.any() or self.cell.key in self.asked.marks

    @property
    def num_unjudged(self) -> int:
        """Requests on target whose text no check could judge, in a cell that was judged."""
        if not self.judged or not self._checked.any():
            return 0
        return int(
            (self.on_target & self._checked & np.array([mark is None for mark in self._marks], dtype=bool)).sum()
        )

    @property
    def _checked(self) -> Mask:
        tags = self.requests["tag"]
        checked = {tag: bool(asked.quality) for tag, asked in self.targets.items()}
        return np.asarray(tags.map(checked), dtype=bool)

    @property
    def _marks(self) -> Sequence[bool | None]:
        marks = self.asked.marks[self.cell.key]
        if len(marks) != len(self.requests):
            raise InputError(
                f"cell {self.cell.key}: {len(marks)} quality marks for {len(self.requests)} requests. Judge it again."
            )
        return marks

    # -- what is counted, by batch -----------------------------------------------------------------------------------

    @cached_property
    def measured(self) -> Mask:
        """Requests that were due inside the window."""
        return np.asarray(self.requests["phase"] == Phase.MEASURED.value, dtype=bool)

    @cached_property
    def batch_due(self) -> Indices:
        """The batch in which each request was due; those outside the window count with its ends."""
        batches = np.floor(self.requests["scheduled"].to_numpy(dtype=float) / self.batch_s)
        return np.clip(batches, 0, NUM_BATCHES - 1).astype(np.int64)

    def due(self, among: Mask | None = None) -> Array:
        """Measured requests by the batch in which they were due, `among` those named. Shape (NUM_BATCHES,)."""
        chosen = self.measured if among is None else self.measured & among
        return np.bincount(self.batch_due[chosen], minlength=NUM_BATCHES).astype(float)

    def completed(self) -> Array:
        """Requests that ended well inside the window, whenever they were due, by batch."""
        return self.counted(self.requests.loc[self.requests["finished"], "done"].to_numpy(dtype=float))

    def tokens(self, of: Mask | None = None) -> Array:
        """Output tokens that arrived inside the window, by batch; `of` the requests named, of all where none are."""
        chunks = self._chunks
        chosen = slice(None) if of is None else of[chunks.owner]
        return self.counted(chunks.at[chosen], chunks.tokens[chosen])

    def num_with_tokens(self) -> int:
        """Requests of which tokens arrived inside the window."""
        chunks = self._chunks
        inside = (chunks.at >= 0) & (chunks.at < self.arrivals.duration_s)
        return len(np.unique(chunks.owner[inside]))

    def counted(self, at: Array, weights: Array | None = None) -> Array:
        """What happened at these instants inside the window, by batch: how often, or the sum of the weights."""
        inside = (at >= 0) & (at < self.arrivals.duration_s)
        place = np.minimum((at[inside] / self.batch_s).astype(np.int64), NUM_BATCHES - 1)
        of = None if weights is None else weights[inside]
        return np.bincount(place, weights=of, minlength=NUM_BATCHES).astype(float)

    def gaps(self) -> tuple[Array, Indices]:
        """Seconds between neighbouring chunks of a measured request (per-step ITL), and the batch each ended in."""
        chunks = self._chunks
        same = (chunks.owner[1:] == chunks.owner[:-1]) & self.measured[chunks.owner[1:]]
        ends = np.clip(chunks.at[1:][same] / self.batch_s, 0, NUM_BATCHES - 1)
        return np.diff(chunks.at)[same], ends.astype(np.int64)

    def gauges(self, name: str) -> tuple[Array, Array]:
        """Sum and number of a gauge's readings inside the window, by batch."""
        told = [(g.at_ns, getattr(g, name)) for g in self.frame.data.gauges if getattr(g, name) is not None]
        at = (np.array([at_ns for at_ns, _ in told], dtype=np.int64) - self.begins_ns) / NS
        return self.counted(at, np.array([value for _, value in told], dtype=float)), self.counted(at)


@dataclass(frozen=True)
class Chunks:
    """Every chunk of a cell: when it arrived (`at`), how many tokens it held, and the row of its request (`owner`)."""

    at: Array
    tokens: Array
    owner: Indices
    lengths: Indices  # chunks of each request

    @classmethod
    def of(cls, table: pa.Table, begins_ns: int) -> Chunks:
        """The chunks of a requests table, request by request."""
        arrived, tokens = ragged(table["chunk_ns"]), ragged(table["chunk_tokens"])
        at = (arrived.values - begins_ns) / NS
        return cls(at, tokens.values.astype(float), arrived.owner, arrived.lengths)

    def sums(self) -> Indices:
        """Tokens of each request."""
        return np.bincount(self.owner, weights=self.tokens, minlength=len(self.lengths)).astype(np.int64)

    def edges(self) -> Iterator[Array]:
        """When each request's first and last chunk arrived, and the tokens of its first; NaN where none came."""
        some, ends = self.lengths > 0, np.cumsum(self.lengths)
        for values, places in ((self.at, ends - self.lengths), (self.at, ends - 1), (self.tokens, ends - self.lengths)):
            column = np.full(len(some), np.nan)
            column[some] = values[places[some]]
            yield column


def open_cells(frames: Sequence[CellFrame], asked: Asked) -> Iterator[OpenCell]:
    """The open loops among these cells in which anybody was due."""
    for frame in frames:
        if frame.cell.arrivals is not None and frame.data.requests.num_rows:
            yield OpenCell(frame, asked)


def _with_latencies(frame: pd.DataFrame, chunks: Chunks) -> pd.DataFrame:
    """METHOD 1's latencies, from when a request was due and (`_sent`) from when it was sent. Lost: infinite."""
    first, last, first_tokens = chunks.edges()
    came, finished = np.isfinite(first), frame["finished"].to_numpy(dtype=bool)
    was_sent = came | (frame["done"] > frame["sent"]).to_numpy(dtype=bool)  # else it was given up in the client
    done = frame["done"].to_numpy(dtype=float)
    for start, suffix, known in (("scheduled", "", np.full(len(frame), True)), ("sent", "_sent", was_sent)):
        since = frame[start].to_numpy(dtype=float)
        for name, end, ended in (("ttft", first, came), ("e2el", done, finished)):
            frame[f"{name}{suffix}"] = np.where(known, np.where(ended, end - since, inf), np.nan)
    later = frame["output_tokens"] - first_tokens
    frame["tpot"] = (last - first) / later.where(later > 0)
    return frame


def _limit(asked: TargetFigures, name: str) -> float:
    limit: float | None = getattr(asked, name)
    return inf if limit is None else limit
