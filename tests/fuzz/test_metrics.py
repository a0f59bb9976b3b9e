"""A server's /metrics: any page gives counters that can be kept, or an EngineError that says what is wrong with it."""

from __future__ import annotations

from dataclasses import astuple
from math import isfinite

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specprof.engine.endpoint import parse_metrics
from specprof.errors import EngineError
from tests.fuzz.conftest import fuzz
from tests.fuzz.hostile import any_bytes, or_refused

PAGE = """\
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 41.0
vllm:generation_tokens_total{engine="0",model_name="m"} 5.0
vllm:num_requests_running{engine="0"} 0
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 3
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 2 1700000000000
vllm:kv_cache_usage_perc 0.25
vllm:iteration_tokens_total_count 7
"""
NAMES = (
    "vllm:prompt_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "llamacpp:tokens_predicted_total",
)
VALUES = ("1", "-1", "NaN", "+Inf", "1e309", "0x1", "", "1 2 3", "१", "9" * 400, '1 # {a="b"} 1')
_POSITIONS = ("0", "-1", "1000000000000", "x", '0",position="1', "9" * 5000)
LABELS = (
    *("", "{", "}", "{}", "{position=0}", '{a="\\"}', '{a="\n"}', '{a="\x1b[31m"}', '{"quoted"}'),
    *(f'{{position="{position}"}}' for position in _POSITIONS),
)


def parsed(page: str) -> None:
    counters = or_refused(lambda: parse_metrics(page, 7), EngineError)
    if counters is not None:
        told = [value for value in astuple(counters) if isinstance(value, float)]
        assert all(isfinite(value) and value >= 0 for value in told)


def test_the_page_that_is_mutated_is_read() -> None:
    counters = parse_metrics(PAGE, 7)
    assert (counters.prompt_tokens, counters.num_accepted_tokens_per_pos, counters.num_engine_steps) == (41, (3, 2), 7)


@fuzz
@given(any_bytes(PAGE.encode()))
@example(b"vllm:prompt_tokens_total{" * 500)
@example(b"vllm:prompt_tokens_total{" + b"x" * 100_000 + b"} 1\n")
def test_any_bytes_are_counters_or_a_clean_error(page: bytes) -> None:
    parsed(page.decode("utf-8", "replace"))


@fuzz
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(LABELS), st.sampled_from(VALUES)), max_size=5))
def test_any_labels_and_values_are_counters_or_a_clean_error(samples: list[tuple[str, str, str]]) -> None:
    parsed("".join(f"{name}{labels} {value}\n" for name, labels, value in samples))


@pytest.mark.parametrize("position", ["1000000000000", "-1"])
def test_a_position_that_no_draft_has_is_refused_and_fills_no_memory(position: str) -> None:
    with pytest.raises(EngineError, match="is none of a draft"):
        parse_metrics(f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}} 1\n', 7)
