"""What METHOD 1 says of each request, as columns: seconds, tokens and tok/s, one value a request.

Arrays, so that nobody needs pandas to analyse a study; notebooks get frames of the same columns (`api.frames`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from specprof.analyse.acceptance import engine_steps
from specprof.analyse.stats import Array
from specprof.columns import ragged

NS = 1e9

Mask = NDArray[np.bool_]
Names = NDArray[np.object_]

WRITTEN = ("reasoning", "text")
COLUMNS = (
    *("prompt_id", "stream", "prompt_tokens", "cached_tokens", "finish_reason", *WRITTEN),
    *("scheduled_ns", "sent_ns", "done_ns", "chunk_ns", "chunk_tokens", "token_ids"),
    *("queue_s", "time_to_first_token_s", "generation_s", "num_steps", "num_drafted", "num_accepted"),
)


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests that ended as asked. Shape of each column: (requests,). What nobody told is NaN.

    Instants (`sent`, `first`, `last`, `done`) are seconds of the client's clock, `first` and `last` those of chunks.
    `queue_s`, `time_to_first_token_s` and `generation_s` are what the server says.
    """

    prompt_id: Names
    stream: NDArray[np.int64]
    finish_reason: Names
    prompt_tokens: Array
    cached_tokens: Array
    output_tokens: Array
    later_tokens: Array  # those after the first chunk, which TPOT is the mean of
    num_chunks: Array
    chars: Array
    sent: Array
    first: Array
    last: Array
    done: Array
    client_queue: Array
    ttft: Array
    tpot: Array  # NaN for a text of one chunk
    e2el: Array
    rate: Array
    decode_speed: Array
    engine_steps: Array
    num_steps: Array
    num_drafted: Array
    num_accepted: Array
    queue_s: Array
    time_to_first_token_s: Array
    generation_s: Array

    def __len__(self) -> int:
        return len(self.prompt_id)

    @property
    def writing(self) -> Array:
        """Seconds from the first chunk to the last."""
        return self.last - self.first

    def where(self, rows: Mask) -> Requests:
        """Those of them. `rows`: shape (requests,)."""
        return Requests(**{name: values[rows] for name, values in self.columns().items()})

    def of_prompts(self, names: Collection[str]) -> Mask:
        """Which of them were sent one of these prompts."""
        wanted = frozenset(names)
        return np.array([name in wanted for name in self.prompt_id], dtype=bool)

    def by_stream(self, fold: np.ufunc, values: Array) -> Array:
        """Values folded over the requests of each stream: added up, or the earliest or latest. Shape (streams,)."""
        order = np.argsort(self.stream, kind="stable")
        _, begins = np.unique(self.stream[order], return_index=True)
        return np.asarray(fold.reduceat(values[order], begins), dtype=float)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Every column by its name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of(cls, table: pa.Table, *, speculates: bool) -> Requests:
        """From the `COLUMNS` of a requests table. Engine steps are NaN where the server tells none of them.

        Tokens are those of the chunks: the server's ids, or its own count of the text (`records.Request`).
        """
        scheduled, sent, done = (numbers(table, name) / NS for name in ("scheduled_ns", "sent_ns", "done_ns"))
        arrived, written = ragged(table["chunk_ns"]), ragged(table["chunk_tokens"])
        first, last = (edge.astype(float) / NS for edge in arrived.edges())
        tokens, chunks = written.sums().astype(float), arrived.lengths.astype(float)
        later = tokens - written.edges()[0].astype(float)
        tpot = quotient(last - first, later)
        accepted = numbers(table, "num_accepted")
        named = ragged(table["token_ids"]).lengths > 0
        return cls(
            prompt_id=names(table, "prompt_id"),
            stream=table["stream"].to_numpy().astype(np.int64),
            finish_reason=names(table, "finish_reason"),
            prompt_tokens=numbers(table, "prompt_tokens"),
            cached_tokens=numbers(table, "cached_tokens"),
            output_tokens=tokens,
            later_tokens=later,
            num_chunks=chunks,
            chars=pc.utf8_length(written_text(table)).to_numpy(zero_copy_only=False).astype(float),
            sent=sent,
            first=first,
            last=last,
            done=done,
            client_queue=sent - scheduled,
            ttft=first - sent,
            tpot=tpot,
            e2el=done - sent,
            rate=quotient(tokens, done - sent),
            decode_speed=quotient(np.ones_like(tpot), tpot),
            engine_steps=_engine_steps(tokens, np.where(named, chunks, 0.0), accepted, speculates=speculates),
            num_steps=numbers(table, "num_steps"),
            num_drafted=numbers(table, "num_drafted"),
            num_accepted=accepted,
            queue_s=numbers(table, "queue_s"),
            time_to_first_token_s=numbers(table, "time_to_first_token_s"),
            generation_s=numbers(table, "generation_s"),
        )


def numbers(table: pa.Table, name: str) -> Array:
    """A column of numbers; NaN where there is none."""
    return np.asarray(table[name].to_numpy(zero_copy_only=False), dtype=float)


def written_text(table: pa.Table) -> pa.ChunkedArray:
    """What the model wrote: the answer, and before it what the server tells apart as reasoning (`WRITTEN`)."""
    reasoning, answer = (table[name] for name in WRITTEN)
    if reasoning.null_count == table.num_rows:
        return answer
    return pc.binary_join_element_wise(pc.fill_null(reasoning, ""), answer, "")


def names(table: pa.Table, name: str) -> Names:
    """A column of text; None where there is none."""
    return np.asarray(table[name].to_numpy(zero_copy_only=False), dtype=object)


def quotient(values: Array, by: Array) -> Array:
    """Values over what is positive; NaN where it is not."""
    return np.asarray(values / np.where(by > 0, by, np.nan), dtype=float)


def _engine_steps(tokens: Array, chunks: Array, accepted: Array, *, speculates: bool) -> Array:
    """`chunks`: those of which it is known which steps they are, 0 where nobody knows."""
    if not speculates:
        accepted = np.nan_to_num(accepted)  # a step without a draft accepts nothing
    accepted = np.where(np.isnan(accepted) & (chunks > 0), tokens - chunks, accepted)
    return engine_steps(tokens, accepted, chunks)
