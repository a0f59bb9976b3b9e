"""The blocking HTTP side of a vLLM-shaped server: is it ready, what does it count, what is it made of.

Nothing here runs inside a measured request. Plain `http.client`, so no proxy setting can stand between us and loopback.
"""

from __future__ import annotations

import http.client
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson

from specprof.errors import EngineError, EngineStartError
from specprof.records import Counters

TIMEOUT_S = 10.0
_POLL_S = 0.5

# Counters field → the sample it sums over its labels (engines, finish reasons). Names as vLLM 0.32.0 exports them.
_SAMPLES: Mapping[str, str] = {
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "num_preemptions": "vllm:num_preemptions_total",
    "prefix_cache_queries": "vllm:prefix_cache_queries_total",
    "prefix_cache_hits": "vllm:prefix_cache_hits_total",
    "num_drafts": "vllm:spec_decode_num_drafts_total",
    "num_draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "num_accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
    "num_engine_steps": "vllm:iteration_tokens_total_count",
    "num_requests_finished": "vllm:request_success_total",
    "num_requests_running": "vllm:num_requests_running",
    "num_requests_waiting": "vllm:num_requests_waiting",
    "kv_cache_usage": "vllm:kv_cache_usage_perc",
}
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_WANTED = frozenset((*_SAMPLES.values(), _PER_POSITION))


def scrape(base_url: str, *, timeout_s: float = TIMEOUT_S) -> Counters:
    """Read `/metrics` once. Fields the server does not offer are None. EngineError if it cannot be read."""
    return parse_metrics(_get(base_url, "/metrics", timeout_s).decode("utf-8", "replace"), time.perf_counter_ns())


def parse_metrics(text: str, at_ns: int) -> Counters:
    """Counters out of Prometheus text. Only the wanted lines are parsed: a whole page costs 20 ms of CPU."""
    totals: dict[str, float] = {}
    per_position: dict[int, float] = {}
    try:
        for name, labels, value in _samples(text):
            if name == _PER_POSITION:
                position = int(labels["position"])
                per_position[position] = per_position.get(position, 0.0) + value
            else:
                totals[name] = totals.get(name, 0.0) + value
    except (ValueError, KeyError, IndexError, TypeError) as problem:
        cause = " ".join(str(problem).split()) or type(problem).__name__
        raise EngineError("The server's /metrics cannot be read as Prometheus text.", cause=cause) from None
    survivors = tuple(per_position.get(i, 0.0) for i in range(max(per_position) + 1)) if per_position else None
    fields = {field: totals.get(name) for field, name in _SAMPLES.items()}
    return Counters(at_ns=at_ns, num_accepted_tokens_per_pos=survivors, **fields)


def _samples(text: str) -> Iterable[tuple[str, Mapping[str, str], float]]:
    from prometheus_client.parser import text_string_to_metric_families

    wanted = "".join(f"{line}\n" for line in text.splitlines() if line.partition("{")[0].split(" ")[0] in _WANTED)
    for family in text_string_to_metric_families(wanted):
        for sample in family.samples:
            if not math.isfinite(sample.value) or sample.value < 0:
                raise ValueError(f"{sample.name} is {sample.value}")
            yield sample.name, sample.labels, float(sample.value)


def reset_prefix_cache(base_url: str, *, timeout_s: float = TIMEOUT_S) -> bool | None:
    """Empty the prefix cache. False: the server refused (requests in flight). None: it offers no such call."""
    status, body = _request("POST", base_url, "/reset_prefix_cache", timeout_s)
    if status in (404, 405):
        return None
    answer = _json(body, "/reset_prefix_cache") if body.strip() else {"success": status == 200}
    return bool(isinstance(answer, dict) and answer.get("success"))


def server_info(base_url: str, *, timeout_s: float = TIMEOUT_S) -> Mapping[str, Any] | None:
    """The whole configuration as the server resolved it. None where it is not offered (it needs dev mode)."""
    status, body = _request("GET", base_url, "/server_info?config_format=json", timeout_s)
    if status != 200:
        return None
    answer = _json(body, "/server_info")
    return answer if isinstance(answer, dict) else None


def models(base_url: str, *, timeout_s: float = TIMEOUT_S) -> tuple[str, ...]:
    """Names the server answers to."""
    answer = _json(_get(base_url, "/v1/models", timeout_s), "/v1/models")
    try:
        return tuple(str(model["id"]) for model in answer["data"])
    except (KeyError, TypeError):
        raise EngineError(f"{base_url}/v1/models lists no models.", cause="unexpected JSON") from None


def is_ready(base_url: str, *, timeout_s: float = 2.0) -> bool:
    """Whether `/health` answers 200 now."""
    try:
        return _request("GET", base_url, "/health", timeout_s)[0] == 200
    except EngineError:
        return False


def wait_ready(base_url: str, *, timeout_s: float, on_wait: Callable[[float], None] | None = None) -> float:
    """Block until ready and return the seconds it took. `on_wait(elapsed_s)` is called between looks and may raise.

    EngineStartError when `timeout_s` has passed.
    """
    began = time.monotonic()
    while not is_ready(base_url):
        elapsed_s = time.monotonic() - began
        if elapsed_s > timeout_s:
            raise EngineStartError(f"{base_url} was not ready after {timeout_s:.0f} s.", cause="start-up time-out")
        if on_wait is not None:
            on_wait(elapsed_s)
        time.sleep(_POLL_S)
    return time.monotonic() - began


def _get(base_url: str, path: str, timeout_s: float) -> bytes:
    status, body = _request("GET", base_url, path, timeout_s)
    if status != 200:
        raise EngineError(f"{base_url}{path} cannot be read.", cause=f"HTTP {status}")
    return body


def _request(method: str, base_url: str, path: str, timeout_s: float) -> tuple[int, bytes]:
    url = urlsplit(base_url)
    secure = url.scheme == "https"
    connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = connect(url.hostname or "", url.port, timeout=timeout_s)
    try:
        connection.request(method, url.path.rstrip("/") + path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as problem:
        cause = f"{type(problem).__name__}: {problem}".rstrip(": ")
        raise EngineError(f"{base_url}{path} does not answer.", cause=cause) from None
    finally:
        connection.close()


def _json(body: bytes, path: str) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        raise EngineError(f"The server's {path} is not JSON.", cause=str(problem)) from None
