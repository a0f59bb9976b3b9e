"""Cells as a run would have sealed them, written by hand: sensible defaults, and every fault a keyword away."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from specprof.analyse.frames import CellFrame
from specprof.columns import CellData, cell_data
from specprof.records import (
    Cell,
    CellRecord,
    Counters,
    Phase,
    Prompt,
    Request,
    Role,
    Sampling,
    ServerTimes,
    Speculation,
    Stop,
)

DATA = Path(__file__).parent / "data"
CLOCK_STARTS_S = 5_000.0
NGRAM: Mapping[str, Any] = {"method": "ngram", "num_speculative_tokens": 4}


def data(name: str) -> Any:
    """One of the JSON files of `tests/data`."""
    return json.loads((DATA / name).read_text(encoding="utf-8"))


def make_prompt(
    name: str = "code-001", *, tag: str = "code", text: str = "def area(radius):", **changes: Any
) -> Prompt:
    """A prompt."""
    return Prompt(name, tag, "en", text, ({"role": "user", "content": text},), license="CC0-1.0", **changes)


def make_cell(**changes: Any) -> Cell:
    """A forced cell of 4 prompts × 64 tokens at N = 4 with speculation off."""
    names = tuple(f"code-{i:03d}" for i in range(changes.pop("num_prompts", 4)))
    plain = Cell(
        key="",
        role=Role.FIGURE,
        block=0,
        arm="off",
        speculative_config=None,
        tag="code",
        protocol="forced",
        stop=Stop.FORCED,
        max_tokens=64,
        mask_eos=False,
        concurrency=4,
        prompt_ids=names,
        num_warmup=0,
        warmup_tokens=8,
        chat=False,
        guided=False,
        sampling=Sampling(),
        suite_hash="suite",
        engine_hash="engine",
    )
    cell = replace(plain, **changes)
    key = f"b{cell.block}-{cell.arm}-{cell.tag}-{cell.protocol}-n{cell.concurrency}"
    return cell if cell.key else replace(cell, key=key)


def ns(seconds: float) -> int:
    """An instant of the client's clock."""
    return round((CLOCK_STARTS_S + seconds) * 1e9)


def make_request(
    name: str = "code-000",
    *,
    num_tokens: int = 64,
    accepted: Sequence[int] | None = None,
    draft_length: int = 4,
    start_s: float = 0.0,
    ttft_s: float = 0.1,
    step_s: float = 0.05,
    stream: int = 0,
    token_ids: Sequence[int] | None = None,
    **changes: Any,
) -> Request:
    """One request: a first token after `ttft_s`, then one chunk per step of `step_s` seconds.

    `accepted`: accepted draft tokens per verification step, repeated as long as needed; None without speculation. As in
    vLLM, tokens accepted past the end are counted and not delivered.
    """
    chunks, steps = [1], []
    pattern = cycle([0] if accepted is None else accepted)
    while (left := num_tokens - sum(chunks)) > 0:
        steps.append(next(pattern))
        chunks.append(min(steps[-1] + 1, left))
    times = tuple(ns(start_s + ttft_s + i * step_s) for i in range(len(chunks)))
    drafted = (draft_length,) * len(steps)
    speculation = Speculation(len(steps), sum(drafted), sum(steps), tuple(steps), drafted)
    ids = tuple(token_ids) if token_ids is not None else distinct_tokens(name, num_tokens)
    plain = Request(
        prompt_id=name,
        phase=Phase.MEASURED,
        stream=stream,
        scheduled_ns=ns(start_s),
        sent_ns=ns(start_s),
        done_ns=times[-1],
        chunk_ns=times,
        chunk_tokens=tuple(chunks),
        token_ids=ids,
        text="four" * num_tokens,
        prompt_tokens=20,
        cached_tokens=0,
        finish_reason="length",
        server=ServerTimes(0.0, ttft_s, times[-1] / 1e9 - times[0] / 1e9),
        speculation=speculation if accepted is not None else None,
    )
    return replace(plain, **changes)


def later(request: Request, seconds: float) -> Request:
    """The same request, some time later."""
    shift = round(seconds * 1e9)
    moved = {name: getattr(request, name) + shift for name in ("scheduled_ns", "sent_ns", "done_ns")}
    return replace(request, **moved, chunk_ns=tuple(at + shift for at in request.chunk_ns))


def distinct_tokens(name: str, count: int) -> tuple[int, ...]:
    """Token ids that never repeat, the same for the same prompt."""
    return tuple(range(1000 * (1 + sum(name.encode()) % 50), 1000 * (1 + sum(name.encode()) % 50) + count))


def looping_tokens(count: int, period: int = 6) -> tuple[int, ...]:
    """A text that goes round in circles."""
    return tuple(islice(cycle(range(100, 100 + period)), count))


def make_requests(cell: Cell, **changes: Any) -> list[Request]:
    """A closed loop over the cell's prompts: each stream sends its next when its last is done. An arm with speculation
    accepts one token per step on average (AL = 2) unless `accepted` says otherwise.
    """
    if cell.speculative_config:
        changes.setdefault("accepted", (0, 2, 1))
    changes.setdefault("num_tokens", cell.max_tokens)
    free_at = [0.0] * cell.concurrency
    requests = []
    for name in cell.prompt_ids:
        stream = min(range(cell.concurrency), key=free_at.__getitem__)
        requests.append(make_request(name, start_s=free_at[stream], stream=stream, **changes))
        free_at[stream] = requests[-1].done_ns / 1e9 - CLOCK_STARTS_S
    return requests


def make_counters(requests: Sequence[Request], **changes: Any) -> Counters:
    """What a server that served exactly these requests says, having started from zero."""
    told = [r.speculation for r in requests if r.speculation is not None]
    speculation = {
        "num_drafts": float(sum(s.num_steps for s in told)),
        "num_draft_tokens": float(sum(s.num_drafted for s in told)),
        "num_accepted_tokens": float(sum(s.num_accepted for s in told)),
    }
    plain = Counters(
        at_ns=0,
        prompt_tokens=float(sum(r.prompt_tokens for r in requests)),
        generation_tokens=float(sum(len(r.token_ids) for r in requests)),
        num_preemptions=0.0,
        **(speculation if told else {}),
    )
    return replace(plain, **changes)


def zero_counters(after: Counters) -> Counters:
    """The reading before: the same counters offered, all at zero."""
    offered = {name: getattr(after, name) for name in Counters.__dataclass_fields__ if name != "at_ns"}
    return Counters(at_ns=0, **{name: 0.0 for name, value in offered.items() if isinstance(value, float)})


def make_record(cell: Cell | None = None, requests: Sequence[Request] | None = None, **changes: Any) -> CellRecord:
    """A measured cell whose counters agree with its requests. `counters` replaces fields of the reading after."""
    cell = cell or make_cell()
    requests = tuple(requests if requests is not None else make_requests(cell))
    after = make_counters([r for r in requests if r.phase is Phase.MEASURED], **changes.pop("counters", {}))
    plain = CellRecord(cell, 0, requests, zero_counters(after), after, (), None, "2026-01-01T00:00:00.000+00:00")
    return replace(plain, **changes)


def make_data(cell: Cell | None = None, requests: Sequence[Request] | None = None, **changes: Any) -> CellData:
    """The same as a reader of the store sees it."""
    return cell_data(make_record(cell, requests, **changes))


def make_frame(cell: Cell | None = None, requests: Sequence[Request] | None = None, **changes: Any) -> CellFrame:
    """The same as a frame."""
    return CellFrame(make_data(cell, requests, **changes))


def make_running_cell(throughput: float, **changes: Any) -> CellData:
    """A cell whose aggregate throughput is exactly as given: N streams without a pause, 1% of their time reading."""
    accepted = changes.pop("accepted", None)
    cell = make_cell(**{"num_prompts": changes.get("concurrency", 4), **changes})
    plan = make_request(num_tokens=cell.max_tokens, accepted=accepted)
    steps = len(plan.chunk_tokens) - 1
    latency_s = min(cell.concurrency, len(cell.prompt_ids)) * cell.max_tokens / throughput
    timing = {"ttft_s": latency_s * 0.01, "step_s": latency_s * 0.99 / steps}
    return make_data(cell, make_requests(cell, accepted=accepted, **timing))


def packed(codec: str, content: bytes) -> bytes:
    """Bytes as a file with the ending of that codec holds them: `gzip`, `bz2`, `zstd`."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(content)
    return bytes(sink.getvalue().to_pybytes())
