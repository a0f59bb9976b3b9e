"""Cells, suites and readings for the simulator's tests. Formulas here are written out by hand, from METHOD 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

from specprof.engine.sim import Content, Hardware, Machine, Prefill, Scheduler
from specprof.records import Arrivals, Cell, CellRecord, Phase, Prompt, Request, Role, Sampling, Stop

MTP_4: Mapping[str, Any] = {"method": "mtp", "num_speculative_tokens": 4}


def suite(tag: str, count: int, num_chars: int = 210) -> dict[str, Prompt]:
    """`count` different prompts of one length."""
    return {
        f"{tag}-{i}": Prompt(f"{tag}-{i}", tag, "", f"{tag} prompt number {i} ".ljust(num_chars, "."))
        for i in range(count)
    }


def cell(
    prompts: Mapping[str, Prompt],
    concurrency: int = 1,
    *,
    tokens: int = 128,
    stop: Stop = Stop.FORCED,
    mask_eos: bool = True,
    warmup: int = 0,
    temperature: float = 0.0,
    seed: int = 0,
) -> Cell:
    """A cell over a whole suite; what the driver does not read is left empty."""
    return Cell(
        key="",
        role=Role.FIGURE,
        block=0,
        arm="",
        speculative_config=None,
        tag=next(iter(prompts.values())).tag,
        protocol="",
        stop=stop,
        max_tokens=tokens,
        mask_eos=mask_eos,
        concurrency=concurrency,
        prompt_ids=tuple(prompts),
        num_warmup=warmup,
        warmup_tokens=8,
        chat=False,
        guided=False,
        sampling=Sampling(temperature=temperature, seed=seed),
        suite_hash="",
        engine_hash="",
    )


def plain(**changes: Any) -> Machine:
    """A machine of round numbers: 10 ms per step whatever the batch, 10 ms per prefill pass, one content."""
    machine = Machine(
        name="plain",
        hardware=Hardware(fixed_s=0.010, per_sequence_s=0.0),
        prefill=Prefill(speed_tok_s=1e15, fixed_s=0.010),
        scheduler=Scheduler(gather_s=0.0),
        contents={"code": Content((0.8, 0.7, 0.6, 0.5))},
        latency_s=0.0,
    )
    return replace(machine, **changes)


def measured(record: CellRecord) -> Sequence[Request]:
    return [request for request in record.requests if request.phase is Phase.MEASURED]


def wall_s(record: CellRecord) -> float:
    requests = measured(record)
    return (max(r.done_ns for r in requests) - min(r.sent_ns for r in requests)) / 1e9


def throughput(record: CellRecord) -> float:
    """tok/s: all output tokens over the wall."""
    return sum(len(r.token_ids) for r in measured(record)) / wall_s(record)


def ttft_s(request: Request) -> float:
    return (request.chunk_ns[0] - request.sent_ns) / 1e9


def decode_speed(request: Request) -> float:
    """tok/s after the first chunk."""
    return (len(request.token_ids) - request.chunk_tokens[0]) / ((request.chunk_ns[-1] - request.chunk_ns[0]) / 1e9)


def counted(record: CellRecord, name: str) -> float:
    """How much a server counter grew over the cell."""
    before, after = getattr(record.before, name), getattr(record.after, name)
    return float(after - before)


def acceptance_length(record: CellRecord) -> float:
    return 1.0 + counted(record, "num_accepted_tokens") / counted(record, "num_drafts")


def open_cell(
    prompts: Mapping[str, Prompt],
    due_s: Sequence[float],
    *,
    tokens: int = 128,
    warmup_s: float = 0.0,
    duration_s: float | None = None,
    timeout_s: float = 600.0,
    cap: int | None = None,
    output_tokens: Sequence[int] = (),
) -> Cell:
    """An open loop over a suite, prompts in turn; without a `duration_s` everybody is measured."""
    window_s = duration_s or max(due_s, default=0.0) + 1.0
    arrivals = Arrivals(
        kind="poisson",
        rate_per_s=len(due_s) / window_s,
        burstiness=1.0,
        warmup_s=warmup_s,
        duration_s=window_s,
        timeout_s=timeout_s,
        due_s=tuple(due_s),
        max_concurrency=cap,
        output_tokens=tuple(output_tokens),
    )
    names = tuple(islice(cycle(prompts), len(due_s)))
    closed = cell(prompts, cap or 0, tokens=tokens)
    return replace(closed, role=Role.OPEN, prompt_ids=names, arrivals=arrivals)
