"""The frames of a study, for notebooks: one row per cell, per gain and per request, each column documented here.

The only module that needs pandas, which comes with `specprof[notebook]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from specprof.analyse.frames import CellFrame
from specprof.analyse.results import CellFigures, Figure, GainFigures, Percentiles
from specprof.errors import InputError

try:
    import pandas as pd
except ModuleNotFoundError as missing:
    if missing.name != "pandas":
        raise
    raise InputError("Frames need pandas, which is not installed: pip install 'specprof[notebook]'.") from missing

_PERCENTILES = ("p50", "p90", "p95", "p99")

# Of every figure `x` a frame has `x`, `x_low` and `x_high` (its 95% interval, NaN where the measurement gives none), of
# every latency `x` the same for `x_p50`, `x_p90`, `x_p95` and `x_p99`. What was not measured is NaN.
CELL_COLUMNS: Mapping[str, str] = {
    "tag": "content",
    "protocol": "name of the protocol",
    "stop": "forced or natural",
    "length": "tokens asked for (forced) or allowed (natural)",
    "arm": "name of the arm",
    "method": "the arm in words",
    "concurrency": "streams, N",
    "num_requests": "measured requests that ended as asked, all blocks together",
    "num_launches": "engine launches that measured the cell",
    "num_prompts": "distinct prompts that were answered",
    "prompt_tokens": "median, tokens",
    "output_tokens": "median, tokens",
    "throughput_tok_s": "X: all output tokens / wall, tok/s",
    "decode_speed_tok_s": "1 / TPOT, median of requests, tok/s",
    "ttft_s": "time to first token, seconds",
    "tpot_s": "time per output token after the first chunk, seconds",
    "itl_s": "gap between chunks, per step and not per token, seconds",
    "e2el_s": "from sent to done, seconds",
    "chars_per_s": "characters per second, all streams together",
    "acceptance_length": "1 + accepted / steps that had a draft, tokens",
    "acceptance_length_request_mean": "the same, the mean over requests",
    "acceptance_rate": "accepted / drafted, 0 to 1",
    "tokens_per_engine_step": "delivered tokens / all engine steps, per stream",
    "wall_s": "first sent to last done, mean of blocks, seconds",
    "predicted_wall_s": "the same by METHOD 3's formula, seconds",
    "queue_share": "share of the wall spent waiting, 0 to 1",
    "prefill_share": "share of the wall spent reading, 0 to 1",
    "decode_share": "share of the wall spent writing, 0 to 1",
    "prefill_speed_tok_s": "prompt tokens read per second at this N, tok/s",
    "effective_concurrency": "X × TPOT: streams that were really writing",
    "predicted_throughput_tok_s": "X by METHOD 3's formula, tok/s",
    "prediction_error": "predicted / measured wall - 1",
    "sum_of_rates_tok_s": "per-request speeds added up: flatters, tok/s",
    "gates": "numbers of the gates that did not hold, as a tuple",
    "valid": "whether no gate forbids a headline",
}

GAIN_COLUMNS: Mapping[str, str] = {
    "tag": "content",
    "protocol": "name of the protocol",
    "arm": "name of the arm",
    "method": "the arm in words",
    "concurrency": "streams, N",
    "throughput_off_tok_s": "X without speculation at this N, tok/s",
    "throughput_on_tok_s": "X of the arm at this N, tok/s",
    "batching_gain": "X at N streams / X at one, this arm",
    "batching_gain_off": "the same without speculation",
    "speculation_gain": "X with / X without speculation, same N",
    "interaction": "batching_gain / batching_gain_off",
    "step_time_ratio": "mean duration of an engine step, on / off",
    "mediated_share": "share of the gain that went through tokens per step",
    "residual": "gain / (tokens per step × steps per second × share of its time that a request was written) - 1",
    "multiply": "whether the two gains may be multiplied",
    "valid": "whether no gate forbids a headline",
    "num_blocks": "blocks that measured both arms",
    "num_prompts": "prompts that both arms answered",
    "launch_variance": "variance that other launches would bring to ln speculation_gain",
    "prompt_variance": "variance that other prompts would bring to ln speculation_gain; NaN of one prompt",
}

# Ours: the analysis's own name, and what it is. Instants count from the first request of the cell.
_REQUEST: Mapping[str, tuple[str, str]] = {
    "prompt_id": ("prompt_id", "which prompt of the suite"),
    "stream": ("stream", "which stream sent it; of an open loop its place in the schedule"),
    "prompt_tokens": ("prompt_tokens", "tokens"),
    "cached_tokens": ("cached_tokens", "prompt tokens found in the prefix cache"),
    "output_tokens": ("output_tokens", "tokens"),
    "num_chunks": ("num_chunks", "chunks received"),
    "chars": ("chars", "characters of the text"),
    "sent_s": ("sent", "when it was sent, seconds"),
    "first_s": ("first", "when its first chunk came, seconds"),
    "last_s": ("last", "when its last chunk came, seconds"),
    "done_s": ("done", "when the stream ended, seconds"),
    "client_queue_s": ("client_queue", "scheduled to sent, seconds"),
    "ttft_s": ("ttft", "sent to first chunk, seconds"),
    "tpot_s": ("tpot", "first to last chunk / tokens after the first chunk, seconds; NaN for a single chunk"),
    "e2el_s": ("e2el", "sent to done, seconds"),
    "rate_tok_s": ("rate", "output tokens / e2el, tok/s"),
    "decode_speed_tok_s": ("decode_speed", "1 / tpot, tok/s"),
    "engine_steps": ("engine_steps", "decode steps of the engine; NaN where the server tells none"),
    "num_steps": ("num_steps", "steps that had a draft"),
    "num_drafted": ("num_drafted", "tokens drafted"),
    "num_accepted": ("num_accepted", "drafted tokens accepted"),
    "server_queue_s": ("queue_s", "waiting, as the server says, seconds"),
    "server_ttft_s": ("time_to_first_token_s", "time to first token, as the server says, seconds"),
    "server_generation_s": ("generation_s", "first token to last, as the server says, seconds"),
    "finish_reason": ("finish_reason", "length or stop"),
    "text": ("text", "what the model wrote, reasoning and answer: untrusted"),
}
_INSTANTS = ["sent_s", "first_s", "last_s", "done_s"]
_COUNTS = ("prompt_tokens", "cached_tokens", "num_steps", "num_drafted", "num_accepted")  # whole, where all are told

REQUEST_COLUMNS: Mapping[str, str] = {
    "cell": "key of the cell: the folder's name below cells/",
    "role": "what the cell is for: figure, prefill, sentinel, mixed, open or interference",
    "launch": "number of the engine launch",
    "block": "number of the block",
    "tag": "content",
    "protocol": "name of the protocol",
    "arm": "name of the arm",
    "concurrency": "streams, N",
    "offered_per_s": "requests offered per second; NaN in a closed loop",
    **{ours: meaning for ours, (_, meaning) in _REQUEST.items()},
}


def cells(figures: Sequence[CellFigures]) -> pd.DataFrame:
    """One row per content, protocol, arm and N of a closed loop, all blocks together; see `CELL_COLUMNS`."""
    rows = [{**_columns(cell), "gates": _gates(cell), "valid": cell.valid} for cell in figures]
    return _frame(rows, CellFigures, CELL_COLUMNS)


def gains(figures: Sequence[GainFigures]) -> pd.DataFrame:
    """One row per content, protocol, arm with speculation and N; see `GAIN_COLUMNS`."""
    return _frame([_columns(gain) for gain in figures], GainFigures, GAIN_COLUMNS)


def requests(measured: Iterable[CellFrame]) -> pd.DataFrame:
    """One row per measured request that ended as asked, of every cell; see `REQUEST_COLUMNS`."""
    frames = [_requests(frame) for frame in measured if not frame.empty]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(REQUEST_COLUMNS))


def _columns(figures: Any) -> dict[str, Any]:
    """A row of a frame: every field of `figures` that is a figure or a plain value."""
    row: dict[str, Any] = {}
    for field in fields(figures):
        value = getattr(figures, field.name)
        if isinstance(value, Percentiles):
            for name in _PERCENTILES:
                row |= _interval(f"{field.name}_{name}", getattr(value, name))
        elif isinstance(value, Figure):
            row |= _interval(field.name, value)
        else:
            row[field.name] = value
    return row


def _interval(name: str, figure: Figure) -> dict[str, float | None]:
    return {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}


def _frame(rows: Sequence[Mapping[str, Any]], kind: type, documented: Iterable[str]) -> pd.DataFrame:
    """Rows of `kind` as a frame, its columns in the order they are documented; figures are floats, absent ones NaN."""
    types = {field.name: str(field.type) for field in fields(kind)}
    names: list[str] = []
    floats: list[str] = []
    for name in documented:
        if types.get(name, "").startswith(("Figure", "Percentiles")):
            latency = types[name].startswith("Percentiles")
            values = [f"{name}_{percentile}" for percentile in _PERCENTILES] if latency else [name]
            with_ends = [f"{value}{end}" for value in values for end in ("", "_low", "_high")]
            names += with_ends
            floats += with_ends
        else:
            names.append(name)
    return pd.DataFrame(rows, columns=names).astype(dict.fromkeys(floats, float))


def _gates(cell: CellFigures) -> tuple[int, ...]:
    return tuple(sorted({finding.gate for finding in cell.gates}))


def _requests(frame: CellFrame) -> pd.DataFrame:
    cell = frame.cell
    columns = {**frame.requests.columns(), "text": frame.texts().to_pylist()}
    renamed = pd.DataFrame({ours: columns[theirs] for ours, (theirs, _) in _REQUEST.items()})
    renamed[_INSTANTS] -= renamed["sent_s"].min()
    renamed = renamed.astype({name: int for name in _COUNTS if renamed[name].notna().all()})
    known = {
        "cell": cell.key,
        "role": cell.role.value,
        "launch": frame.data.launch,
        "block": cell.block,
        "tag": cell.tag,
        "protocol": cell.protocol,
        "arm": cell.arm,
        "concurrency": cell.concurrency,
        "offered_per_s": float("nan") if cell.arrivals is None else cell.arrivals.rate_per_s,
    }
    return renamed.assign(**known)[list(REQUEST_COLUMNS)]
