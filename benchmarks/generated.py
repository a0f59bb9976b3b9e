"""A study of any size, written in our own format: records that are plausible, made as columns and never measured.

Five contents × two arms × five loads × two blocks are 100 cells, and each holds a hundredth of the requests. A text is
100 tokens: 100 chunks with speculation off, about 38 with it on. As on a real engine the same prompt is answered alike
in every cell but for a few texts that rounding changed, and a few texts loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.cells import forced_cell
from specprof.columns import REQUEST_SCHEMA, CellData
from specprof.ragged import Ragged
from specprof.records import Cell, ClientLoad, Counters, EngineFacts, Phase
from specprof.store import Store
from specprof.study.reading import parse_study

TAGS = ("code", "json", "zh-prose", "en-prose", "zh-qa")
STREAMS = (1, 8, 32, 64, 128)
BLOCKS = 2
TOKENS = 100
DRAFT_TOKENS = 4
NUM_CELLS = len(TAGS) * len(STREAMS) * BLOCKS * 2
SPECULATION = {"method": "draft_model", "num_speculative_tokens": DRAFT_TOKENS}

_VOCABULARY = 150_000
_CHARS = 4  # of a token
_ACCEPTED = {"code": 0.80, "json": 0.85, "zh-prose": 0.55, "en-prose": 0.60, "zh-qa": 0.65}  # each draft token's chance
_LOOPING, _ROUNDED = 0.01, 0.03  # shares of the texts that loop, and that come out otherwise in another cell
_STARTS_NS = 10**12
_STUDY = f"""
study: generated
engine: {{kind: sim, preset: small}}
arms: {{"off": {{}}, draft-k4: {{speculative_config: {{method: draft_model, num_speculative_tokens: {DRAFT_TOKENS}}}}}}}
workloads: [{", ".join(f"{{tag: {tag}, suite: {tag}.jsonl}}" for tag in TAGS)}]
protocols: {{forced: {{stop: forced, output_tokens: {TOKENS}}}}}
concurrency: {list(STREAMS)}
blocks: {BLOCKS}
"""


@dataclass(frozen=True, slots=True)
class _Suite:
    """One content: how its prompts are answered. Shapes: (prompts, TOKENS) and (prompts,)."""

    tag: str
    tokens: NDArray[np.int32]
    text: pa.Array
    prompt_tokens: NDArray[np.int32]

    @property
    def names(self) -> NDArray[np.object_]:
        return np.array([f"{self.tag}-{i:06d}" for i in range(len(self.tokens))], dtype=object)


def write_study(root: Path, num_requests: int) -> None:
    """A results folder of so many requests, sealed as a run would have."""
    study = parse_study(_STUDY, "generated")
    store = Store.create(root, _STUDY, study.content_hash())
    per_cell = max(num_requests // NUM_CELLS, 1)
    suites = [_suite(tag, per_cell, seed) for seed, tag in enumerate(TAGS)]
    for block in range(BLOCKS):
        for arm in ("off", "draft-k4") if block % 2 == 0 else ("draft-k4", "off"):
            number, _ = store.new_launch()
            store.write_facts(number, EngineFacts("sim", "generated", "0", "generated", "0"))
            for data in _launch(suites, block, arm, number):
                store.seal_columns(data)


def _launch(suites: list[_Suite], block: int, arm: str, number: int) -> Iterator[CellData]:
    for place, suite in enumerate(suites):
        order = np.random.default_rng([block, place]).permutation(len(suite.tokens))
        for streams in STREAMS:
            rng = np.random.default_rng([block, place, streams, arm == "off"])
            yield _cell_data(suite, order, _cell(suite, order, block, arm, streams), number, rng)


def _suite(tag: str, count: int, seed: int) -> _Suite:
    rng = np.random.default_rng(seed)
    tokens = np.minimum(rng.zipf(1.2, (count, TOKENS)), _VOCABULARY - 1).astype(np.int32)
    looping = rng.random(count) < _LOOPING
    tokens[looping] = np.tile(tokens[looping, :10], (1, TOKENS // 10))
    letters = rng.integers(ord("a"), ord("z") + 1, count * TOKENS * _CHARS, dtype=np.uint8)
    offsets = np.arange(count + 1, dtype=np.int32) * TOKENS * _CHARS
    text = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters))
    return _Suite(tag, tokens, text, rng.integers(40, 400, count, dtype=np.int32))


def _cell(suite: _Suite, order: NDArray[np.int64], block: int, arm: str, streams: int) -> Cell:
    speculation = None if arm == "off" else SPECULATION
    return replace(
        forced_cell(arm, speculation, block, streams, suite.names[order], tokens=TOKENS),
        key=f"b{block}-{arm}-{suite.tag}-forced-n{streams}",
        tag=suite.tag,
        suite_hash=suite.tag,
        engine_hash="generated",
    )


def _cell_data(suite: _Suite, order: NDArray[np.int64], cell: Cell, launch: int, rng: np.random.Generator) -> CellData:
    accepted = _accepted(len(order), _ACCEPTED[suite.tag], rng) if cell.speculative_config else None
    columns = {**_texts(suite, order, rng), **_times(accepted, cell, rng), **_speculation(accepted, len(order))}
    table = pa.table({name: columns[name] for name in REQUEST_SCHEMA.names}).cast(REQUEST_SCHEMA)
    before, after = _counters(suite, accepted)
    return CellData(cell, launch, table, before, after, (), ClientLoad(0.1, 0.0005), _started_at(cell))


def _started_at(cell: Cell) -> str:
    return f"2026-01-{1 + cell.block:02d}T{TAGS.index(cell.tag):02d}:{STREAMS.index(cell.concurrency):02d}:00.000+00:00"


def _accepted(count: int, chance: float, rng: np.random.Generator) -> Ragged:
    """Accepted draft tokens of each verification step; the first token of a text comes without one."""
    drawn = (rng.random((count, TOKENS - 1, DRAFT_TOKENS)) < chance).cumprod(axis=2).sum(axis=2)
    written = np.cumsum(drawn + 1, axis=1)
    needed = (written < TOKENS - 1).sum(axis=1) + 1
    return Ragged.with_lengths(drawn[np.arange(TOKENS - 1) < needed[:, None]], needed)


def _texts(suite: _Suite, order: NDArray[np.int64], rng: np.random.Generator) -> dict[str, Any]:
    tokens = suite.tokens[order]
    rounded = np.flatnonzero(rng.random(len(order)) < _ROUNDED)
    tokens[rounded, TOKENS // 2 :] += 1
    return {
        "prompt_id": pa.array(suite.names[order]),
        "phase": pa.array([Phase.MEASURED.value] * len(order)),
        "token_ids": _lists(Ragged(tokens.ravel(), np.arange(len(order) + 1) * TOKENS)),
        "text": suite.text.take(pa.array(order)),
        "reasoning": pa.nulls(len(order), pa.string()),
        "prompt_tokens": suite.prompt_tokens[order],
        "cached_tokens": np.zeros(len(order), dtype=np.int32),
        "finish_reason": pa.array(["length"] * len(order)),
        "error": pa.nulls(len(order), pa.string()),
    }


def _times(accepted: Ragged | None, cell: Cell, rng: np.random.Generator) -> dict[str, Any]:
    """A closed loop: each stream takes the next prompt when it is done with its last."""
    count = len(cell.prompt_ids)
    chunks = _chunk_tokens(accepted, count)
    step_s = (0.010 + 0.0002 * cell.concurrency) * (1.0 if accepted is None else 1.3)
    gaps = step_s * rng.lognormal(0.0, 0.05, len(chunks.values))
    gaps[chunks.offsets[:-1]] = 0.02 + 0.005 * rng.random(count)  # until the first token
    since_sent = np.cumsum(gaps)
    since_sent -= np.repeat((since_sent - gaps)[chunks.offsets[:-1]], chunks.lengths)
    took = _ends(since_sent, chunks)
    sent = _starts(took, cell.concurrency)
    at = _STARTS_NS + np.round(1e9 * (since_sent + np.repeat(sent, chunks.lengths))).astype(np.int64)
    first = chunks.offsets[:-1]
    sent_ns = _STARTS_NS + np.round(1e9 * sent).astype(np.int64)
    return {
        "stream": (np.arange(count) % cell.concurrency).astype(np.int32),
        "scheduled_ns": sent_ns,
        "sent_ns": sent_ns,
        "done_ns": at[chunks.offsets[1:] - 1],
        "chunk_ns": _lists(Ragged(at, chunks.offsets)),
        "chunk_tokens": _lists(chunks),
        "queue_s": np.full(count, 0.0001),
        "time_to_first_token_s": since_sent[first],
        "generation_s": took - since_sent[first],
    }


def _ends(values: NDArray[np.float64], chunks: Ragged) -> NDArray[np.float64]:
    """The last of each request's values."""
    return values[chunks.offsets[1:] - 1]


def _chunk_tokens(accepted: Ragged | None, count: int) -> Ragged:
    """One token from the prompt, then those of each step, the last cut at the text's end."""
    if accepted is None:
        return Ragged(np.ones(count * TOKENS, dtype=np.int32), np.arange(count + 1) * TOKENS)
    firsts = accepted.offsets[:-1]
    tokens = np.insert(accepted.values + 1, firsts, 1)
    chunks = Ragged.with_lengths(tokens, accepted.lengths + 1)
    tokens[chunks.offsets[1:] - 1] -= chunks.sums() - TOKENS
    return chunks


def _starts(took: NDArray[np.float64], streams: int) -> NDArray[np.float64]:
    """When each request begins if request i belongs to stream i modulo the number of streams."""
    waves = -(-len(took) // streams)
    padded = np.zeros(waves * streams)
    padded[: len(took)] = took
    ends = np.cumsum(padded.reshape(waves, streams), axis=0)
    return (ends - padded.reshape(waves, streams)).ravel()[: len(took)]


def _speculation(accepted: Ragged | None, count: int) -> dict[str, Any]:
    if accepted is None:
        numbers = dict.fromkeys(("num_steps", "num_drafted", "num_accepted"), pa.nulls(count, pa.int32()))
        lists = dict.fromkeys(("accepted_per_step", "drafted_per_step"), pa.nulls(count, pa.list_(pa.int32())))
        return {**numbers, **lists}
    drafted = replace(accepted, values=np.full(len(accepted.values), DRAFT_TOKENS, dtype=np.int32))
    return {
        "num_steps": accepted.lengths,
        "num_drafted": drafted.sums(),
        "num_accepted": accepted.sums(),
        "accepted_per_step": _lists(accepted),
        "drafted_per_step": _lists(drafted),
    }


def _counters(suite: _Suite, accepted: Ragged | None) -> tuple[Counters, Counters]:
    counted: dict[str, float] = {
        "prompt_tokens": float(suite.prompt_tokens.sum()),
        "generation_tokens": float(len(suite.tokens) * TOKENS),
        "num_preemptions": 0.0,
    }
    if accepted is not None:
        counted["num_drafts"] = float(len(accepted.values))
        counted["num_draft_tokens"] = float(len(accepted.values) * DRAFT_TOKENS)
        counted["num_accepted_tokens"] = float(accepted.values.sum())
    return Counters(0, **dict.fromkeys(counted, 0.0)), Counters(0, **counted)


def _lists(lists: Ragged) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(lists.offsets.astype(np.int32)), pa.array(lists.values))
