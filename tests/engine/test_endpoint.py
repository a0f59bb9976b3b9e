"""Reading a vLLM-shaped server over HTTP, and never a traceback when it misbehaves."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specprof.engine import endpoint
from specprof.errors import EngineError, EngineStartError

METRICS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 5.0
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 3.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 7.0
vllm:iteration_tokens_total_count{engine="0"} 839.0
vllm:request_success_total{engine="0",finished_reason="stop"} 2.0
vllm:request_success_total{engine="0",finished_reason="length"} 46.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
http_requests_total{handler="/v1/completions"} 3.0
"""


@contextmanager
def serving(answers: dict[str, tuple[int, bytes]]) -> Iterator[str]:
    """A server that answers each path with a status and a body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, b""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_counters_sum_over_labels_and_ignore_created() -> None:
    counters = endpoint.parse_metrics(METRICS, at_ns=5)
    assert counters.at_ns == 5
    assert counters.num_drafts == 15
    assert counters.num_accepted_tokens_per_pos == (12, 4)
    assert counters.num_engine_steps == 839
    assert counters.num_requests_finished == 48
    assert counters.kv_cache_usage == 0.25
    assert counters.prompt_tokens is None


def test_speculation_counters_are_none_when_it_is_off() -> None:
    counters = endpoint.parse_metrics("vllm:generation_tokens_total 3\n", at_ns=0)
    assert counters.num_drafts is None
    assert counters.num_accepted_tokens_per_pos is None
    assert counters.generation_tokens == 3


@pytest.mark.parametrize(
    "text",
    [
        "vllm:num_requests_running NaN\n",
        "vllm:num_requests_running -1\n",
        "vllm:num_requests_running lots\n",
        "vllm:num_requests_running{engine=\n",
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="x"} 1\n',
        "vllm:spec_decode_num_accepted_tokens_per_pos_total 1\n",
    ],
)
def test_malformed_metrics_are_an_engine_error(text: str) -> None:
    with pytest.raises(EngineError, match="/metrics"):
        endpoint.parse_metrics(text, at_ns=0)


@given(st.text() | st.builds("vllm:num_requests_running{}".format, st.text()))
def test_no_text_ends_in_a_traceback(text: str) -> None:
    with contextlib.suppress(EngineError):
        endpoint.parse_metrics(text, at_ns=0)


def test_scrape_needs_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with serving({"/metrics": (200, METRICS.encode())}) as url:
        assert endpoint.scrape(url).num_drafts == 15


def test_nobody_listening_is_an_engine_error() -> None:
    with pytest.raises(EngineError, match="does not answer"):
        endpoint.scrape("http://127.0.0.1:9")


@contextmanager
def sending(*parts: bytes, pause_s: float = 0.0) -> Iterator[str]:
    """A server that sends these bytes, pausing between them, to the first who asks, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def send() -> None:
            accepted, _ = listening.accept()
            with accepted, contextlib.suppress(OSError):
                accepted.recv(65536)
                for part in parts:
                    accepted.sendall(part)
                    time.sleep(pause_s)

        thread = threading.Thread(target=send)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


PAGE = b"vllm:generation_tokens_total 123456.0\n"


def head(*fields: str) -> bytes:
    return "\r\n".join(("HTTP/1.1 200 OK", *fields, "", "")).encode()


@pytest.mark.parametrize("cut", [0, PAGE.index(b"3456"), len(PAGE) - 1])
@pytest.mark.parametrize("end", [(), ("Connection: close",)])
def test_a_page_that_breaks_off_is_not_read_as_whole(cut: int, end: tuple[str, ...]) -> None:
    said = head(f"Content-Length: {len(PAGE)}", *end)
    with sending(said + PAGE) as url:
        assert endpoint.scrape(url).generation_tokens == 123456
    with sending(said + PAGE[:cut]) as url, pytest.raises(EngineError, match="IncompleteRead"):
        endpoint.scrape(url)


def test_a_page_without_a_length_ends_with_its_connection() -> None:
    with sending(head("Connection: close"), PAGE) as url:
        assert endpoint.scrape(url).generation_tokens == 123456


@pytest.mark.parametrize("said", [head("Content-Length: 1000"), b"HTTP/1.1 200 OK\r\nX-Slow: "])
def test_the_time_out_is_for_the_whole_answer_however_slowly_it_comes(said: bytes) -> None:
    """Twenty parts, 0.2 s apart, take 4 s, and no wait for the next one is longer than the 0.5 s allowed."""
    began_s = time.monotonic()
    with sending(said, *[b"#"] * 20, pause_s=0.2) as url:
        with pytest.raises(EngineError, match=r"does not answer(.|\n)*timed out"):
            endpoint.scrape(url, timeout_s=0.5)
        assert time.monotonic() - began_s < 3.9


def test_models_and_server_info() -> None:
    answers = {
        "/v1/models": (200, json.dumps({"data": [{"id": "m"}, {"id": "n"}]}).encode()),
        "/server_info?config_format=json": (200, b'{"vllm_config": {}}'),
    }
    with serving(answers) as url:
        assert endpoint.models(url) == ("m", "n")
        assert endpoint.server_info(url) == {"vllm_config": {}}
    with serving({"/v1/models": (200, b"<html>")}) as url:
        with pytest.raises(EngineError):
            endpoint.models(url)
        assert endpoint.server_info(url) is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((200, b'{"success": true}'), True),
        ((200, b'{"success": false}'), False),
        ((200, b""), True),
        ((404, b""), None),
    ],
)
def test_prefix_cache_reset_says_whether_it_worked(answer: tuple[int, bytes], expected: bool | None) -> None:
    with serving({"/reset_prefix_cache": answer}) as url:
        assert endpoint.reset_prefix_cache(url) is expected


def test_waiting_ends_with_health_or_with_the_clock() -> None:
    with serving({"/health": (200, b"")}) as url:
        assert endpoint.wait_ready(url, timeout_s=60) < 60
    with serving({"/health": (503, b"")}) as url, pytest.raises(EngineStartError):
        endpoint.wait_ready(url, timeout_s=0.1)
