"""aiperf: `profile_export_aiperf.json` (the summary) and `profile_export.jsonl` (one record per request).

Its names are not METHOD 1's: `inter_token_latency` is TPOT, `inter_chunk_latency` is ITL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specprof.analyse.audit.claim import Aggregation, Claim, claim_of
from specprof.analyse.audit.importers.document import Document
from specprof.analyse.audit.importers.parts import (
    mean,
    most_at_once,
    nothing_completed,
    survival_of,
    told_draft_tokens,
)
from specprof.errors import InputError
from specprof.records import Stop

TOOL = "aiperf"
_NS = 1e-9
_TO_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "sec": 1.0, "s": 1.0}
MAX_DRAFT_TOKENS = 1000


def is_aiperf_summary(data: Document) -> bool:
    """Whether this is a summary export."""
    return "input_config" in data and ("aiperf_version" in data or "output_token_throughput" in data)


def is_aiperf_record(data: Document) -> bool:
    """Whether this is one line of the per-request export."""
    return isinstance(data.data.get("metadata"), Mapping) and isinstance(data.data.get("metrics"), Mapping)


def read_aiperf_summary(data: Document) -> Iterator[Claim]:
    """The one claim of a summary."""
    completed = _count(data, "completed_request_count") or _count(data, "request_count")
    if not completed:
        raise nothing_completed(data)
    load, extra = _load(data), data.section("input_config", "endpoint", "extra")
    concurrency = load.whole("concurrency")
    each = data.section("output_token_throughput_per_user").number("avg")
    streams = min(concurrency, completed) if concurrency else None
    fields = {
        "name": data.name,
        "source": data.name,
        "tool": TOOL,
        "concurrency": concurrency,
        "num_requests": completed,
        "num_failed": _count(data, "error_request_count"),
        "request_rate": load.number("rate") or load.number("request_rate"),
        "prompt_tokens": data.section("input_sequence_length").number("avg"),
        "output_tokens": _total(data, "total_output_tokens") or _total(data, "total_osl"),
        "shortest_output_tokens": data.section("output_sequence_length").number("min"),
        "longest_output_tokens": data.section("output_sequence_length").number("max"),
        "max_tokens": extra.whole("max_tokens") or extra.whole("max_completion_tokens"),
        "wall_s": _seconds(data, "benchmark_duration"),
        "throughput_tok_s": data.section("output_token_throughput").number("avg"),
        "tpot_s": _seconds(data, "inter_token_latency"),
        "itl_s": _seconds(data, "inter_chunk_latency"),
        "ttft_s": _seconds(data, "time_to_first_token"),
        "latency_statistic": "mean",
        "sum_of_rates_tok_s": each * streams if each and streams else None,
        "stop": Stop.FORCED if extra.data.get("ignore_eos") is True else Stop.NATURAL,
        "content": _content(data),
        "speculation": _speculation(data),
        "cached_tokens": _total(data, "total_usage_prompt_cache_read_tokens"),
        "aggregation": Aggregation.TOTAL_OVER_WALL,
        "temperature": extra.number("temperature"),
        "model": next((item.text("name") for item in data.section("input_config", "models").sections("items")), None),
    }
    yield claim_of(fields, data.name)


def read_aiperf_records(records: Sequence[Document]) -> Iterator[Claim]:
    """The one claim of a per-request export: everything is counted from the records themselves."""
    name = records[0].name
    measured = [r for r in records if _is_measured(r)]
    good = [r for r in measured if "error" not in r]
    spans = [(r, _instant(r, "request_start_ns"), _instant(r, "request_end_ns")) for r in good]
    timed = [(start, end) for _, start, end in spans if start is not None and end is not None and end > start]
    if not good or not timed:
        raise nothing_completed(records[0])
    streams = most_at_once(timed)
    rates = _values(good, "output_token_throughput_per_user")
    lengths = _values(good, "output_sequence_length")
    fields = {
        "name": name,
        "source": name,
        "tool": TOOL,
        "concurrency": streams,
        "num_requests": len(good),
        "num_failed": len(measured) - len(good),
        "prompt_tokens": _mean(_values(good, "input_sequence_length")),
        "output_tokens": sum(lengths) or None,
        "shortest_output_tokens": min(lengths, default=None),
        "longest_output_tokens": max(lengths, default=None),
        "wall_s": max(end for _, end in timed) - min(start for start, _ in timed),
        "tpot_s": _mean(_durations(good, "inter_token_latency")),
        "ttft_s": _mean(_durations(good, "time_to_first_token")),
        "latency_statistic": "mean",
        "sum_of_rates_tok_s": mean(rates) * streams if rates else None,
        "speculation": _speculation_of(good),
        "cached_tokens": sum(cached) if (cached := _values(good, "usage_prompt_cache_read_tokens")) else None,
        "aggregation": Aggregation.TOTAL_OVER_WALL,
    }
    yield claim_of(fields, name)


def _load(data: Document) -> Document:
    """The load of the profiling phase; older exports call it `loadgen`."""
    phases = list(data.section("input_config").sections("phases"))
    profiling = [phase for phase in phases if phase.text("kind") == "profiling"] or phases
    return profiling[0] if profiling else data.section("input_config", "loadgen")


def _content(data: Document) -> str | None:
    """Only that prompts were made up; a file's name says nothing about what is in it."""
    sets = list(data.section("input_config").sections("datasets"))
    return "synthetic prompts" if any(dataset.text("type") == "synthetic" for dataset in sets) else None


def _count(data: Document, key: str) -> int | None:
    return data.section(key).whole("avg")


def _total(data: Document, key: str) -> float | None:
    return data.section(key).number("avg")


def _seconds(data: Document, key: str) -> float | None:
    metric = data.section(key)
    return metric.number("avg", scale=_scale(metric))


def _scale(metric: Document) -> float:
    unit = metric.text("unit") or "ms"
    if unit not in _TO_SECONDS:
        raise InputError(
            f"{metric.name}: {metric.path}.unit: '{unit[:40]}' is no unit of time ({', '.join(_TO_SECONDS)})."
        )
    return _TO_SECONDS[unit]


def _speculation(data: Document) -> dict[str, Any] | None:
    steps, drafted = _count(data, "total_spec_decode_steps"), _count(data, "total_draft_tokens")
    if steps is None and drafted is None:
        return None
    histogram = _histogram(data.section("pooled_spec_decode_acceptance_histogram"))
    return {
        "draft_tokens": told_draft_tokens(steps, drafted),
        "acceptance_length": data.section("spec_decode_token_weighted_acceptance_length").number("avg"),
        "survival": survival_of(histogram),
        "num_steps": steps,
        "num_drafted": drafted,
        "num_accepted": _count(data, "total_accepted_draft_tokens"),
    }


def _speculation_of(records: Sequence[Document]) -> dict[str, Any] | None:
    told = [record.section("spec_decode_acceptance") for record in records if "spec_decode_acceptance" in record]
    if not told:
        return None
    steps, drafted, accepted = (
        sum(one.whole(key) or 0 for one in told)
        for key in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    )
    pooled: Counter[int] = Counter()
    for one in told:
        pooled.update({j: int(n) for j, n in _histogram(one.section("acceptance_histogram")).items()})
    return {
        "draft_tokens": told_draft_tokens(steps, drafted),
        "survival": survival_of(pooled),
        "num_steps": steps,
        "num_drafted": drafted,
        "num_accepted": accepted,
    }


def _histogram(data: Document) -> dict[int, float]:
    """{"0": 379, "1": 233, …} with numbers for keys."""
    found = {}
    for key in data.data:
        if not (key.isascii() and key.isdigit() and len(key) < 5 and int(key) <= MAX_DRAFT_TOKENS):
            raise InputError(f"{data.name}: {data.path}: '{key[:40]}' is no number of accepted tokens.")
        found[int(key)] = data.number(key) or 0.0
    return found


def _is_measured(record: Document) -> bool:
    metadata = record.section("metadata")
    return (metadata.text("benchmark_phase") or "profiling") == "profiling" and metadata.data.get(
        "was_cancelled"
    ) is not True


def _instant(record: Document, key: str) -> float | None:
    return record.section("metadata").number(key, scale=_NS)


def _values(records: Sequence[Document], metric: str) -> list[float]:
    found = (record.section("metrics", metric).number("value") for record in records)
    return [value for value in found if value is not None]


def _durations(records: Sequence[Document], metric: str) -> list[float]:
    metrics = [record.section("metrics", metric) for record in records if metric in record.section("metrics")]
    found = (one.number("value", scale=_scale(one)) for one in metrics)
    return [value for value in found if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None
