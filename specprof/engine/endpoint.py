"""The blocking HTTP side of a server: is it ready, what does it count, what is it made of.

Nothing here runs inside a measured request. Plain `http.client`, so no proxy setting can stand between us and the
server, and no redirection is followed, which could carry a token elsewhere.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from specprof.engine import names
from specprof.engine.access import OPEN, Access
from specprof.errors import EngineError, EngineStartError, InputError, reason
from specprof.records import Counters

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

TIMEOUT_S = 10.0
INFO_TIMEOUT_S = 120.0  # vLLM collects its whole environment for /server_info, which takes a busy machine a while
_POLL_S = 0.5
_NOT_OFFERED = (401, 403, 404, 405, 501)  # by the server, or by what stands before it

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

# What other engines call the same thing. Their counts of prompt tokens leave out cached ones, or do not say.
_NAMES_ELSEWHERE: Mapping[str, str] = {
    "sglang:generation_tokens_total": "vllm:generation_tokens_total",
    "sglang:num_running_reqs": "vllm:num_requests_running",
    "sglang:num_queue_reqs": "vllm:num_requests_waiting",
    "sglang:token_usage": "vllm:kv_cache_usage_perc",
    "llamacpp:tokens_predicted_total": "vllm:generation_tokens_total",
    "llamacpp:requests_processing": "vllm:num_requests_running",
    "llamacpp:requests_deferred": "vllm:num_requests_waiting",
    "llamacpp:spec_decode_num_drafts_total": "vllm:spec_decode_num_drafts_total",
    "llamacpp:spec_decode_num_draft_tokens_total": "vllm:spec_decode_num_draft_tokens_total",
    "llamacpp:spec_decode_num_accepted_tokens_total": "vllm:spec_decode_num_accepted_tokens_total",
    "llamacpp:spec_decode_num_accepted_tokens_per_pos_total": _PER_POSITION,
}
_WANTED = frozenset((*_SAMPLES.values(), _PER_POSITION, *_NAMES_ELSEWHERE))
_MOST_POSITIONS = 10_000  # of a draft; what claims more would fill the memory
_LARGEST_COUNT = 1e18  # beyond it a sum of counters may be infinite
_LARGEST_BYTES = 64 << 20  # of an answer; a /metrics of a hundred engines is a hundredth of it


def scrape(base_url: str, *, timeout_s: float = TIMEOUT_S, access: Access = OPEN) -> Counters:
    """Read `/metrics` once. Fields the server does not offer are None. EngineError if it cannot be read."""
    return parse_metrics(metrics_text(base_url, timeout_s=timeout_s, access=access), time.perf_counter_ns())


def metrics_text(base_url: str, *, timeout_s: float = TIMEOUT_S, access: Access = OPEN) -> str:
    """The whole `/metrics` page. EngineError if it cannot be read."""
    return _get(base_url, "/metrics", timeout_s, access).decode("utf-8", "replace")


def parse_metrics(text: str, at_ns: int) -> Counters:
    """Counters out of Prometheus text. Only the wanted lines are parsed: a whole page costs 20 ms of CPU."""
    totals: dict[str, float] = {}
    per_position: dict[int, float] = {}
    try:
        for name, labels, value in _samples(text):
            if name == _PER_POSITION:
                position = _position(labels["position"])
                per_position[position] = per_position.get(position, 0.0) + value
            else:
                totals[name] = totals.get(name, 0.0) + value
    except (ValueError, KeyError, IndexError, TypeError, OverflowError) as problem:
        cause = reason(problem) or type(problem).__name__
        raise EngineError("The server's /metrics cannot be read as Prometheus text.", cause=cause) from None
    survivors = tuple(per_position.get(i, 0.0) for i in range(max(per_position) + 1)) if per_position else None
    fields = {field: totals.get(name) for field, name in _SAMPLES.items()}
    return Counters(at_ns=at_ns, num_accepted_tokens_per_pos=survivors, **fields)


def _samples(text: str) -> Iterable[tuple[str, Mapping[str, str], float]]:
    from prometheus_client.parser import text_string_to_metric_families

    wanted = "".join(f"{line}\n" for line in text.splitlines() if line.partition("{")[0].split(" ")[0] in _WANTED)
    for family in text_string_to_metric_families(wanted):
        for sample in family.samples:
            value = float(sample.value)
            if not 0 <= value <= _LARGEST_COUNT:  # nor is NaN
                raise ValueError(f"{sample.name} is {value}")
            yield _NAMES_ELSEWHERE.get(sample.name, sample.name), sample.labels, value


def _position(label: str) -> int:
    """A place in a draft, from 0."""
    position = int(label)
    if not 0 <= position < _MOST_POSITIONS:
        raise ValueError(f"position {label[:20]} is none of a draft")
    return position


def reset_prefix_cache(base_url: str, *, timeout_s: float = TIMEOUT_S, access: Access = OPEN) -> bool | None:
    """Empty the prefix cache. False: the server refused (requests in flight). None: it offers no such call."""
    status, body = request("POST", base_url, "/reset_prefix_cache", timeout_s=timeout_s, access=access)
    if status in _NOT_OFFERED:
        return None
    answer = _json(body, "/reset_prefix_cache") if body.strip() else {"success": status == 200}
    return bool(isinstance(answer, dict) and answer.get("success"))


def server_info(base_url: str, *, timeout_s: float = INFO_TIMEOUT_S, access: Access = OPEN) -> Mapping[str, Any] | None:
    """The whole configuration as the server resolved it. None where it is not offered (it needs dev mode)."""
    status, body = request("GET", base_url, "/server_info?config_format=json", timeout_s=timeout_s, access=access)
    if status != 200:
        return None
    answer = _json(body, "/server_info")
    return answer if isinstance(answer, dict) else None


def models(base_url: str, *, timeout_s: float = TIMEOUT_S, access: Access = OPEN) -> tuple[str, ...]:
    """Names the server answers to."""
    answer = _json(_get(base_url, "/v1/models", timeout_s, access), "/v1/models")
    try:
        return tuple(str(model["id"]) for model in answer["data"])
    except (KeyError, TypeError):
        raise EngineError(f"{base_url}/v1/models lists no models.", cause="unexpected JSON") from None


def is_ready(base_url: str, *, timeout_s: float = 2.0) -> bool:
    """Whether `/health` answers 200 now."""
    try:
        return request("GET", base_url, "/health", timeout_s=timeout_s)[0] == 200
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


def section(answer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object that a server's answer holds there; empty where it holds none."""
    found = answer.get(key)
    return found if isinstance(found, Mapping) else {}


def request(
    method: str,
    base_url: str,
    path: str,
    *,
    timeout_s: float = TIMEOUT_S,
    access: Access = OPEN,
    body: bytes | None = None,
) -> tuple[int, bytes]:
    """Status and body of one request. `body` is JSON. `timeout_s` is for the whole of it, however slowly it comes.

    EngineError if nobody answers, or breaks off; InputError if the server's certificate is not to be trusted.
    """
    url = urlsplit(base_url)
    headers = dict(access.headers())
    if body is not None:
        headers["Content-Type"] = "application/json"
    deadline_s = time.monotonic() + timeout_s
    connection = http.client.HTTPConnection(url.netloc)
    try:
        with _connected(base_url, timeout_s, access) as opened:
            connection.sock = _Until(opened, deadline_s)
            connection.request(method, url.path.rstrip("/") + path, body=body, headers=headers)
            answer = connection.getresponse()
            told = answer.read(_LARGEST_BYTES + 1)
            if answer.length and len(told) <= _LARGEST_BYTES:
                raise http.client.IncompleteRead(told, answer.length)
    except ssl.SSLCertVerificationError as problem:
        raise InputError(
            f"{base_url}: its certificate is not trusted ({problem.verify_message}). If it is signed by your own "
            "authority, name that authority's certificate as engine.ca_file; certificates are always verified."
        ) from None
    except (OSError, UnicodeError, http.client.HTTPException) as problem:
        cause = f"{type(problem).__name__}: {problem}".rstrip(": ")
        raise EngineError(f"{base_url}{path} does not answer.", cause=cause) from None
    finally:
        connection.close()
    if len(told) > _LARGEST_BYTES:
        raise EngineError(f"{base_url}{path} cannot be read.", cause=f"more than {_LARGEST_BYTES >> 20} MiB of answer")
    return answer.status, access.scrubbed(told)


class _Until:
    """A socket that sends and receives until a deadline, however many times it is asked to. Whoever opened it ends it.

    A socket's own time-out is for one wait, and a server that drips makes many.
    """

    def __init__(self, opened: socket.socket, deadline_s: float) -> None:
        self._opened, self._deadline_s = opened, deadline_s

    def timed(self) -> socket.socket:
        """The socket, with what is left of the time as its time-out. TimeoutError once nothing is."""
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._opened.settimeout(left_s)
        return self._opened

    def sendall(self, data: bytes) -> None:
        self.timed().sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Received(self))

    def close(self) -> None:
        """Nothing: http.client closes a connection that ends with its answer before the answer is read."""


class _Received(io.RawIOBase):
    """What comes through such a socket."""

    def __init__(self, until: _Until) -> None:
        self._until = until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        return self._until.timed().recv_into(buffer)


def _get(base_url: str, path: str, timeout_s: float, access: Access) -> bytes:
    status, body = request("GET", base_url, path, timeout_s=timeout_s, access=access)
    if status != 200:
        raise EngineError(f"{base_url}{path} cannot be read.", cause=f"HTTP {status}")
    return body


def _connected(base_url: str, timeout_s: float, access: Access) -> socket.socket:
    tls = access.tls() if urlsplit(base_url).scheme == "https" else None
    host, port = names.place_of(base_url)
    connection = names.connect(host, port, timeout_s)
    return connection if tls is None else tls.wrap_socket(connection, server_hostname=host)


def _json(body: bytes, path: str) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        raise EngineError(f"The server's {path} is not JSON.", cause=str(problem)) from None
