"""`vllm bench serve --save-result`, with or without `--save-detailed`.

The file does not say whether outputs were forced (`--ignore-eos`), which prompts were used, nor how tokens were drawn;
`--metadata stop=forced content=code temperature=0` puts that in, and is read here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specprof.analyse.audit.claim import Aggregation, Claim, Note, claim_of
from specprof.analyse.audit.importers.document import Document
from specprof.analyse.audit.importers.parts import mean, nothing_completed, told_draft_tokens
from specprof.errors import InputError

TOOL = "vllm bench serve"
_MS = 1e-3


def is_vllm_serve(data: Document) -> bool:
    """Whether this is one result of `vllm bench serve`."""
    return {"duration", "total_output_tokens", "output_throughput"} <= data.data.keys() and "completed" in data.data


def read_vllm_serve(data: Document) -> Iterator[Claim]:
    """The one claim of a result."""
    completed = data.whole("completed")
    if not completed:
        raise nothing_completed(data)
    prompt_tokens = data.number("total_input_tokens")
    lengths = data.numbers("output_lens")
    fields = {
        "name": data.text("label") or data.name,
        "source": data.name,
        "tool": TOOL,
        "concurrency": _concurrency(data, completed),
        "num_requests": completed,
        "num_failed": data.whole("failed"),
        "request_rate": _request_rate(data),
        "prompt_tokens": prompt_tokens / completed if prompt_tokens else None,
        "output_tokens": data.number("total_output_tokens"),
        "shortest_output_tokens": min(lengths, default=None),
        "longest_output_tokens": max(lengths, default=None),
        "wall_s": data.number("duration"),
        "throughput_tok_s": data.number("output_throughput"),
        "tpot_s": data.number("mean_tpot_ms", scale=_MS),
        "itl_s": data.number("mean_itl_ms", scale=_MS),
        "ttft_s": data.number("mean_ttft_ms", scale=_MS),
        "latency_statistic": "mean",
        "sum_of_rates_tok_s": _sum_of_rates(data, completed),
        "stop": data.text("stop"),
        "content": data.text("content"),
        "temperature": _as_number(data, "temperature"),
        "speculation": _speculation(data),
        "aggregation": Aggregation.TOTAL_OVER_WALL,
        "model": data.text("model_id"),
        "notes": tuple(_notes(data)),
    }
    yield claim_of(fields, data.name)


def _concurrency(data: Document, completed: int) -> int | None:
    """`--max-concurrency`, or everything at once where neither it nor a rate was given."""
    capped = data.whole("max_concurrency")
    if capped is not None:
        return capped
    return completed + (data.whole("failed") or 0) if _request_rate(data) is None else None


def _request_rate(data: Document) -> float | None:
    """Requests per second, None for `inf`."""
    return None if data.data.get("request_rate") == "inf" else data.number("request_rate")


def _as_number(data: Document, key: str) -> float | None:
    """`--metadata` writes everything as text."""
    value = data.data.get(key)
    if not isinstance(value, str):
        return data.number(key)
    try:
        return float(value)
    except ValueError:
        raise InputError(f"{data.name}: {key}: is {value[:40]!r}, a number belongs there.") from None


def _sum_of_rates(data: Document, completed: int) -> float | None:
    """Mean decode speed times streams, from the per-request lists of `--save-detailed`."""
    lengths, first, whole = (data.numbers(key) for key in ("output_lens", "ttfts", "latencies"))
    if not lengths or len({len(lengths), len(first), len(whole)}) != 1:
        return None
    rates = [
        (n - 1) / (end - start) for n, start, end in zip(lengths, first, whole, strict=True) if n > 1 and end > start
    ]
    streams = min(data.whole("max_concurrency") or completed, completed)
    return mean(rates) * streams if rates else None


def _speculation(data: Document) -> dict[str, Any] | None:
    if "spec_decode_num_drafts" not in data:
        return None
    steps, drafted = data.whole("spec_decode_num_drafts"), data.whole("spec_decode_draft_tokens")
    percent = data.number("spec_decode_acceptance_rate")
    return {
        "draft_tokens": told_draft_tokens(steps, drafted),
        "acceptance_rate": percent / 100 if percent is not None else None,
        "acceptance_length": data.number("spec_decode_acceptance_length"),
        "survival": data.numbers("spec_decode_per_position_acceptance_rates"),
        "num_steps": steps,
        "num_drafted": drafted,
        "num_accepted": data.whole("spec_decode_accepted_tokens"),
    }


def _notes(data: Document) -> Iterator[Note]:
    if data.text("stop") is None or data.text("content") is None:
        yield Note(
            "the file records neither --ignore-eos nor the data set",
            "Run it with --metadata stop=forced|natural content=… so that the result says so itself.",
        )
    if "spec_decode_num_drafts" not in data:
        yield Note(
            "no acceptance counters: speculation was off, or the server's /metrics could not be read",
            "Say which of the two it was.",
        )
