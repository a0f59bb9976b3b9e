"""The requests and chunks of an open loop as columns: when each was due, what became of it, how long it took.

All instants are seconds from the beginning of the measured window. A latency counts from when its request was *due*;
the same counted from when it was sent stands beside it, and leaves out whatever a full client or a stalled server did
to requests that could not be sent yet (coordinated omission). A request that was lost is later than any other: its
latencies are infinite, not absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from specprof.analyse.requests import NS, Mask, Names, names, numbers, quotient
from specprof.analyse.stats import Array
from specprof.columns import ragged
from specprof.ragged import Indices
from specprof.records import TIMED_OUT, Cell, Phase

COLUMNS = ("prompt_id", "phase", "prompt_tokens", "queue_s", "scheduled_ns", "sent_ns", "done_ns", "error")


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class OpenRequests:
    """Every request of the cell, whatever its phase and fate, in the table's order. Shape of each: (requests,)."""

    tag: Names
    prompt_tokens: Array
    output_tokens: Indices
    queue_s: Array  # as the server says; NaN where it does not
    scheduled: Array
    sent: Array
    done: Array
    client_queue: Array
    ttft: Array
    ttft_sent: Array  # NaN where it was given up in the client
    tpot: Array  # NaN for a finished text of one chunk
    e2el: Array
    e2el_sent: Array
    measured: Mask  # due inside the window
    filled: Mask  # only kept the load up
    finished: Mask
    timed_out: Mask

    def __len__(self) -> int:
        return len(self.tag)

    @classmethod
    def of(cls, table: pa.Table, chunks: Chunks, cell: Cell, begins_ns: int) -> OpenRequests:
        """METHOD 1's latencies of the `COLUMNS` of a requests table. Lost: infinite."""
        scheduled, sent, done = (
            (table[name].to_numpy() - begins_ns) / NS for name in ("scheduled_ns", "sent_ns", "done_ns")
        )
        first, last, first_tokens = chunks.edges()
        output_tokens, came = chunks.sums(), np.isfinite(first)
        finished = table["error"].is_null().to_numpy() & (output_tokens > 0)
        gave_up = pc.fill_null(pc.starts_with(table["error"], TIMED_OUT), fill_value=False).to_numpy()
        was_sent = came | (done > sent)  # else it was given up in the client
        ttft, e2el = (np.where(ended, end, inf) for ended, end in ((came, first), (finished, done)))
        return cls(
            tag=_tags(table, cell),
            prompt_tokens=numbers(table, "prompt_tokens"),
            output_tokens=output_tokens,
            queue_s=numbers(table, "queue_s"),
            scheduled=scheduled,
            sent=sent,
            done=done,
            client_queue=sent - scheduled,
            ttft=ttft - scheduled,
            ttft_sent=np.where(was_sent, ttft - sent, np.nan),
            tpot=np.where(finished, quotient(last - first, output_tokens - first_tokens), inf),
            e2el=e2el - scheduled,
            e2el_sent=np.where(was_sent, e2el - sent, np.nan),
            measured=pc.equal(table["phase"], Phase.MEASURED.value).to_numpy(),
            filled=pc.equal(table["phase"], Phase.FILL.value).to_numpy(),
            finished=finished,
            timed_out=~finished & gave_up,
        )

    def each(self, by_tag: Mapping[str, float]) -> Array:
        """What holds for its content, for each of them."""
        return np.array([by_tag[tag] for tag in self.tag], dtype=float)


def _tags(table: pa.Table, cell: Cell) -> Names:
    if not cell.prompt_tags:
        return np.full(table.num_rows, cell.tag, dtype=object)
    tags = dict(zip(cell.prompt_ids, cell.prompt_tags, strict=True))
    return np.array([tags[name] for name in names(table, "prompt_id")], dtype=object)
