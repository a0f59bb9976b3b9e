"""The Prometheus page of a running world, under vLLM's metric names. Times are what a client's clock shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from specprof.engine.sim.physics import World
from specprof.engine.sim.state import Totals


def metrics_page(world: World, model: str, time_scale: float, created_s: float) -> str:
    """The whole page: gauges of the moment, totals since the launch."""
    page = _Page({"engine": "0", "model_name": model}, created_s)
    page.gauge("num_requests_running", "Number of requests in model execution batches.", world.num_running)
    page.gauge("num_requests_waiting", "Number of requests waiting to be processed.", world.num_waiting)
    page.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", world.kv_cache_usage)
    _tokens(page, world.totals)
    _times(page, world.totals, time_scale)
    if world.writer.speculation is not None:
        _speculation(page, world.totals)
    return page.text()


def _tokens(page: _Page, totals: Totals) -> None:
    cached = totals.prompt_tokens_cached
    page.counter(
        "prefix_cache_queries",
        "Prefix cache queries, in terms of number of queried tokens.",
        totals.prefix_cache_queries,
    )
    page.counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", cached)
    page.counter("num_preemptions", "Cumulative number of preemption from the engine.", totals.num_preemptions)
    page.counter("prompt_tokens", "Number of prefill tokens processed.", totals.prompt_tokens)
    sources = {
        "local_compute": totals.prompt_tokens - cached,
        "local_cache_hit": cached,
        "external_kv_transfer": 0,
    }
    page.counters("prompt_tokens_by_source", "Number of prompt tokens by source.", "source", sources)
    page.counter("prompt_tokens_cached", "Number of cached prompt tokens (local + external).", cached)
    page.counter("generation_tokens", "Number of generation tokens processed.", totals.generation_tokens)
    page.counters("request_success", "Count of successfully processed requests.", "finished_reason", totals.finished)
    page.histogram(
        "iteration_tokens_total",
        "Histogram of number of tokens per engine_step.",
        totals.num_engine_steps,
        totals.num_step_tokens,
    )


def _times(page: _Page, totals: Totals, time_scale: float) -> None:
    num_read, num_finished = totals.num_prompts_read, totals.finished["stop"] + totals.finished["length"]
    page.histogram(
        "time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        num_read,
        totals.time_to_first_token_s / time_scale,
    )
    page.histogram(
        "request_queue_time_seconds",
        "Histogram of time spent in WAITING phase for request.",
        num_read,
        totals.queue_s / time_scale,
    )
    page.histogram(
        "request_decode_time_seconds",
        "Histogram of time spent in DECODE phase for request.",
        num_finished,
        totals.decode_s / time_scale,
    )


def _speculation(page: _Page, totals: Totals) -> None:
    per_position = totals.num_accepted_tokens_per_pos
    page.counter("spec_decode_num_drafts", "Number of spec decoding drafts.", totals.num_drafts)
    page.counter("spec_decode_num_draft_tokens", "Number of draft tokens.", totals.num_draft_tokens)
    page.counter("spec_decode_num_accepted_tokens", "Number of accepted tokens.", sum(per_position))
    page.counters(
        "spec_decode_num_accepted_tokens_per_pos",
        "Accepted tokens per draft position.",
        "position",
        {str(position): count for position, count in enumerate(per_position)},
    )


class _Page:
    """Lines of the text exposition format, as the Prometheus client writes them."""

    def __init__(self, labels: Mapping[str, str], created_s: float) -> None:
        self._labels = labels
        self._created_s = created_s
        self._lines: list[str] = []

    def gauge(self, name: str, what: str, value: float) -> None:
        self._head(name, what, "gauge")
        self._sample(name, value)

    def counter(self, name: str, what: str, value: float) -> None:
        self._counter_family(name, what, [({}, value)])

    def counters(self, name: str, what: str, label: str, values: Mapping[str, float]) -> None:
        self._counter_family(name, what, [({label: key}, value) for key, value in values.items()])

    def histogram(self, name: str, what: str, count: int, total: float) -> None:
        """Count and sum, with the one bucket every histogram has: the model keeps no finer record."""
        self._head(name, what, "histogram")
        self._sample(f"{name}_bucket", count, {"le": "+Inf"})
        self._sample(f"{name}_count", count)
        self._sample(f"{name}_sum", total)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _counter_family(self, name: str, what: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> None:
        samples = list(samples)
        self._head(f"{name}_total", what, "counter")
        for labels, value in samples:
            self._sample(f"{name}_total", value, labels)
        self._head(f"{name}_created", what, "gauge")
        for labels, _ in samples:
            self._sample(f"{name}_created", self._created_s, labels)

    def _head(self, name: str, what: str, kind: str) -> None:
        self._lines += [f"# HELP vllm:{name} {what}", f"# TYPE vllm:{name} {kind}"]

    def _sample(self, name: str, value: float, more: Mapping[str, str] | None = None) -> None:
        labels = ",".join(f'{key}="{text}"' for key, text in {**self._labels, **(more or {})}.items())
        self._lines.append(f"vllm:{name}{{{labels}}} {float(value)}")
