"""guidellm's JSON report: one claim per benchmark in it.

Its names are not METHOD 1's: `inter_token_latency_ms` is TPOT, and `time_per_output_token_ms` is latency over all
tokens, the wait for the first one included. Only the former is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from specprof.analyse.audit.claim import Aggregation, Claim, claim_of
from specprof.analyse.audit.importers.document import Document
from specprof.analyse.audit.importers.parts import nothing_completed
from specprof.errors import InputError
from specprof.records import Stop

TOOL = "guidellm"
_MS = 1e-3


def is_guidellm(data: Document) -> bool:
    """Whether this is a report of `guidellm run`."""
    benchmarks = data.data.get("benchmarks")
    return isinstance(benchmarks, list) and ("metadata" in data or "config" in data or "args" in data)


def read_guidellm(data: Document) -> Iterator[Claim]:
    """Every benchmark of a report."""
    benchmarks = list(data.sections("benchmarks"))
    if not benchmarks:
        raise InputError(f"{data.name}: its list of benchmarks is empty, so there is no number to audit.")
    for benchmark in benchmarks:
        yield _claim(data, benchmark)


def _claim(report: Document, benchmark: Document) -> Claim:
    metrics = benchmark.section("metrics")
    totals = metrics.section("request_totals")
    completed = totals.whole("successful")
    if not completed:
        raise nothing_completed(report)
    strategy = benchmark.section("config", "strategy")
    output = _of_good(metrics, "output_token_count")
    body = _first_body(benchmark)
    concurrency = _concurrency(strategy, completed)
    fields = {
        "name": f"{report.name} {_strategy_name(strategy)}".strip(),
        "source": report.name,
        "tool": TOOL,
        "concurrency": concurrency,
        "num_requests": completed,
        "num_failed": totals.whole("errored"),
        "request_rate": strategy.number("rate"),
        "prompt_tokens": _of_good(metrics, "prompt_token_count").number("mean"),
        "output_tokens": output.number("total_sum"),
        "shortest_output_tokens": output.number("min"),
        "longest_output_tokens": output.number("max"),
        "max_tokens": body.whole("max_completion_tokens") or body.whole("max_tokens"),
        "wall_s": benchmark.number("duration"),
        "throughput_tok_s": _of_good(metrics, "output_tokens_per_second").number("mean"),
        "tpot_s": _of_good(metrics, "inter_token_latency_ms").number("mean", scale=_MS),
        "ttft_s": _of_good(metrics, "time_to_first_token_ms").number("mean", scale=_MS),
        "latency_statistic": "mean",
        "stop": _stop(body),
        "content": _content(report),
        "aggregation": Aggregation.TOTAL_OVER_WALL,
        "temperature": body.number("temperature"),
        "model": benchmark.section("config", "backend").text("model"),
    }
    return claim_of(fields, report.name)


def _of_good(metrics: Document, name: str) -> Document:
    """The statistics over successful requests; those of failed ones are kept apart by the tool."""
    return metrics.section(name, "successful")


def _concurrency(strategy: Document, completed: int) -> int | None:
    kind = strategy.text("type_")
    if kind == "synchronous":
        return 1
    streams = strategy.whole("streams") or strategy.whole("max_concurrency")
    return completed if streams is None and kind == "throughput" else streams


def _strategy_name(strategy: Document) -> str:
    kind, streams = strategy.text("type_"), strategy.whole("streams")
    return f"{kind}@{streams}" if kind and streams else kind or ""


def _first_body(benchmark: Document) -> Document:
    """What was sent: the body of the first successful request, which the report keeps as text."""
    empty = Document({}, benchmark.name)
    first = next(benchmark.section("requests").sections("successful"), empty)
    arguments = first.data.get("request_args")
    if not isinstance(arguments, str):
        return empty
    try:
        sent: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        return empty
    body = sent.get("body") if isinstance(sent, dict) else None
    return Document(body, benchmark.name, "request_args.body") if isinstance(body, Mapping) else empty


def _stop(body: Document) -> Stop | None:
    """Forced if the requests asked for it; natural if they are there to be read and did not."""
    if not body.data:
        return None
    return Stop.FORCED if body.data.get("ignore_eos") is True else Stop.NATURAL


def _content(report: Document) -> str | None:
    kinds = {dataset.text("kind") for dataset in report.section("config", "spec").sections("data")}
    return "synthetic prompts" if "synthetic_text" in kinds else None
