"""One open-loop cell: who was due when, who was answered as asked, and what came inside the window, batch by batch.

All instants are seconds from the beginning of the measured window (`service.requests`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from operator import attrgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from specprof.analyse.frames import CellFrame
from specprof.analyse.requests import NS, Mask
from specprof.analyse.service.asked import Asked
from specprof.analyse.service.requests import COLUMNS, Chunks, OpenRequests
from specprof.analyse.service.spread import NUM_BATCHES
from specprof.analyse.service_results import TargetFigures
from specprof.analyse.stats import Array
from specprof.errors import InputError
from specprof.ragged import Indices
from specprof.records import Arrivals, Cell


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
    def requests(self) -> OpenRequests:
        """Every request, whatever its phase and fate, in the table's order."""
        return OpenRequests.of(self._read(*COLUMNS), self._chunks, self.cell, self.begins_ns)

    @cached_property
    def _chunks(self) -> Chunks:
        return Chunks.of(self._read("chunk_ns", "chunk_tokens"), self.begins_ns)

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
        kept = rows.finished
        for took, limit in ((rows.ttft, "ttft_s"), (rows.tpot, "tpot_s"), (rows.e2el, "e2el_s")):
            limits = rows.each({tag: _limit(asked, limit) for tag, asked in self.targets.items()})
            kept = kept & ~(took > limits)  # a text of one chunk has no TPOT to miss
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
        return self.requests.each({tag: bool(asked.quality) for tag, asked in self.targets.items()}) > 0

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
    def batch_due(self) -> Indices:
        """The batch in which each request was due; those outside the window count with its ends."""
        batches = np.floor(self.requests.scheduled / self.batch_s)
        return np.clip(batches, 0, NUM_BATCHES - 1).astype(np.int64)

    def due(self, among: Mask | None = None) -> Array:
        """Measured requests by the batch in which they were due, `among` those named. Shape (NUM_BATCHES,)."""
        measured = self.requests.measured
        chosen = measured if among is None else measured & among
        return np.bincount(self.batch_due[chosen], minlength=NUM_BATCHES).astype(float)

    def completed(self) -> Array:
        """Requests that ended well inside the window, whenever they were due, by batch."""
        return self.counted(self.requests.done[self.requests.finished])

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
        same = (chunks.owner[1:] == chunks.owner[:-1]) & self.requests.measured[chunks.owner[1:]]
        ends = np.clip(chunks.at[1:][same] / self.batch_s, 0, NUM_BATCHES - 1)
        return np.diff(chunks.at)[same], ends.astype(np.int64)

    def gauges(self, name: str) -> tuple[Array, Array]:
        """Sum and number of a gauge's readings inside the window, by batch."""
        readings = self.frame.data.gauges
        values = np.array(list(map(attrgetter(name), readings)), dtype=float)  # NaN: not told
        at = (np.array([reading.at_ns for reading in readings], dtype=np.int64) - self.begins_ns) / NS
        told = np.isfinite(values)
        return self.counted(at[told], values[told]), self.counted(at[told])


def open_cells(frames: Sequence[CellFrame], asked: Asked) -> Iterator[OpenCell]:
    """The open loops among these cells in which anybody was due."""
    for frame in frames:
        if frame.cell.arrivals is not None and frame.data.requests.num_rows:
            yield OpenCell(frame, asked)


def _limit(asked: TargetFigures, name: str) -> float:
    limit: float | None = getattr(asked, name)
    return inf if limit is None else limit
