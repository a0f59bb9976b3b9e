"""The same machine behind a socket: vLLM's shapes, and the virtual clock's numbers."""

from __future__ import annotations

import asyncio
import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sim_cells import MTP_4, acceptance_length, cell, suite

from specprof.engine.sim import Machine, VirtualEngine, machine_of
from specprof.engine.sim import engine as sim_engine
from specprof.engine.sim.server import SimServer, serve
from tests.measure.turns import A_FEW, Turns

CODE = "def f(x):\n    return x\n\nclass A:\n    import os\n# {}"


def with_server(
    test: Callable[[SimServer, aiohttp.ClientSession], Awaitable[None]],
    machine: Machine,
    config: Any = None,
    time_scale: float = 1.0,
) -> None:
    async def run() -> None:
        server = await serve(machine, speculative_config=config, time_scale=time_scale)
        try:
            async with aiohttp.ClientSession(server.base_url) as session:
                await test(server, session)
        finally:
            await server.close()

    asyncio.run(run())


def body(prompt: Any, tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "model": "sim-small",
        "prompt": prompt,
        "max_tokens": tokens,
        "min_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0.0,
        "return_token_ids": True,
        **more,
    }


STREAM = {"stream": True, "stream_options": {"include_usage": True}}


async def stream(session: aiohttp.ClientSession, path: str, payload: dict[str, Any]) -> tuple[list[Any], list[float]]:
    """All events but the last, `[DONE]`, with their arrival times."""
    events, times = [], []
    async with session.post(path, json=payload) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        async for line in response.content:
            if line.startswith(b"data: "):
                events.append(line[6:].strip())
                times.append(time.perf_counter())
    assert events[-1] == b"[DONE]"
    return [json.loads(event) for event in events[:-1]], times[:-1]


async def scrape(session: aiohttp.ClientSession) -> dict[str, float]:
    async with session.get("/metrics") as response:
        text = await response.text()
    return {
        s.name + "".join(v for k, v in s.labels.items() if k in ("position", "le", "source")): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_a_completion_stream_has_vllms_shape() -> None:
    async def check(server: SimServer, session: aiohttp.ClientSession) -> None:
        (*chunks, last), _ = await stream(session, "/v1/completions", body(CODE, 40, **STREAM))
        assert set(chunks[0]) == {"id", "object", "created", "model", "choices"}
        assert set(chunks[0]["choices"][0]) == {
            "index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids",
        }  # fmt: skip
        ids = [i for chunk in chunks for i in chunk["choices"][0]["token_ids"]]
        assert len(ids) == 40 and len(chunks[0]["choices"][0]["token_ids"]) == 1
        assert max(len(chunk["choices"][0]["token_ids"]) for chunk in chunks) <= 5
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 40
        assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        assert last["usage"]["prompt_tokens"] == len(chunks[0]["choices"][0]["prompt_token_ids"])
        told = last["metrics"]
        assert told["queue_time_ms"] >= 0 and told["time_to_first_token_ms"] > 0
        decoding = told["speculative_decoding"]
        assert len(chunks) == 1 + decoding["num_spec_steps"]
        assert decoding["num_draft_tokens"] == 4 * decoding["num_spec_steps"] == sum(decoding["per_step_drafted"])
        assert sum(decoding["per_step_accepted"]) == decoding["num_accepted_draft_tokens"]
        assert sum(decoding["acceptance_histogram"]) == decoding["num_spec_steps"]

    with_server(check, machine_of("small"), MTP_4)


def test_a_chat_says_the_same_streamed_or_whole() -> None:
    async def check(server: SimServer, session: aiohttp.ClientSession) -> None:
        chat = body(None, 30) | {"messages": [{"role": "user", "content": "写一篇关于河流的散文，三百字。"}]}
        (first, *chunks, last), _ = await stream(session, "/v1/chat/completions", chat | STREAM)
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""} and first["prompt_token_ids"]
        text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
        async with session.post("/v1/chat/completions", json=chat) as response:
            whole = await response.json()
        assert whole["object"] == "chat.completion" and first["object"] == "chat.completion.chunk"
        assert whole["choices"][0]["message"]["content"] == text
        assert whole["choices"][0]["token_ids"] == [i for c in chunks for i in c["choices"][0]["token_ids"]]
        assert whole["usage"] == last["usage"] and "speculative_decoding" not in whole["metrics"]
        assert all("\u4e00" <= c <= "\u9fff" for c in text)

    with_server(check, machine_of("small"))


def test_given_text_is_scored_under_the_target() -> None:
    async def check(server: SimServer, session: aiohttp.ClientSession) -> None:
        async with session.post("/v1/completions", json=body(CODE, 200)) as response:
            choice = (await response.json())["choices"][0]
        ids = choice["prompt_token_ids"] + choice["token_ids"] + [900_123]
        async with session.post("/v1/completions", json=body(ids, 1, prompt_logprobs=0)) as response:
            scored = (await response.json())["choices"][0]["prompt_logprobs"]
        assert scored[0] is None and [next(iter(s)) for s in scored[1:]] == [str(i) for i in ids[1:]]
        nats = [-next(iter(s.values()))["logprob"] for s in scored[1:]]
        assert sum(nats[:-1]) / len(nats[:-1]) == pytest.approx(1.5, rel=0.25) and nats[-1] > 30

    with_server(check, machine_of("small"))


def test_tokenize_gives_the_ids_that_a_prompt_is_read_as() -> None:
    async def check(server: SimServer, session: aiohttp.ClientSession) -> None:
        async with session.post("/v1/completions", json=body(CODE, 1)) as response:
            read = (await response.json())["choices"][0]["prompt_token_ids"]
        for payload in ({"prompt": CODE}, {"messages": [{"role": "user", "content": CODE}]}):
            async with session.post("/tokenize", json={"model": "sim-small", **payload}) as response:
                told = await response.json()
            assert (told["tokens"], told["count"]) == (read, len(read))
        for payload in ({"prompt": [1, 2]}, {"messages": []}):
            async with session.post("/tokenize", json=payload) as response:
                assert response.status == 400

    with_server(check, machine_of("small"))


def test_top_logprobs_are_one_distribution_with_the_token_itself() -> None:
    async def check(server: SimServer, session: aiohttp.ClientSession) -> None:
        ids = [*range(1000, 1060), 900_123]
        async with session.post("/v1/completions", json=body(ids, 1, prompt_logprobs=20)) as response:
            scored = (await response.json())["choices"][0]["prompt_logprobs"]
        for token_id, place in zip(ids[1:], scored[1:], strict=True):
            own = place[str(token_id)]
            ranked = sorted(place.values(), key=lambda entry: entry["rank"])
            assert [entry["rank"] for entry in ranked[:20]] == list(range(1, 21))
            assert len(place) == (20 if own["rank"] <= 20 else 21)
            logprobs = [entry["logprob"] for entry in ranked]
            assert logprobs == sorted(logprobs, reverse=True)
            assert sum(math.exp(logprob) for logprob in logprobs) < 1 + 1e-9

    with_server(check, machine_of("small"))


def test_socket_and_virtual_clock_agree() -> None:
    machine = machine_of("small")
    prompts = {name: replace(prompt, text=CODE.format(name)) for name, prompt in suite("code", 8).items()}
    virtual = VirtualEngine(machine, MTP_4).measure(cell(prompts, 4, tokens=96), prompts)

    async def check(server: SimServer, session: aiohttp.ClientSession) -> None:
        queue = list(prompts.values())
        outputs: dict[str, list[int]] = {}

        async def one_stream() -> None:
            while queue:
                prompt = queue.pop(0)
                chunks, _ = await stream(session, "/v1/completions", body(prompt.text, 96, **STREAM))
                outputs[prompt.id] = [i for c in chunks[:-1] for i in c["choices"][0]["token_ids"]]

        await asyncio.gather(*(one_stream() for _ in range(4)))
        assert outputs == {r.prompt_id: list(r.token_ids) for r in virtual.requests}
        totals = await scrape(session)
        assert totals["vllm:generation_tokens_total"] == 8 * 96
        drafts = totals["vllm:spec_decode_num_drafts_total"]
        assert 1 + totals["vllm:spec_decode_num_accepted_tokens_total"] / drafts == acceptance_length(virtual)
        positions = [totals[f"vllm:spec_decode_num_accepted_tokens_per_pos_total{j}"] for j in range(4)]
        assert sum(positions) == totals["vllm:spec_decode_num_accepted_tokens_total"]
        assert totals["vllm:num_requests_running"] == totals["vllm:num_requests_waiting"] == 0
        assert totals["vllm:iteration_tokens_total_count"] == server.world.totals.num_engine_steps

    with_server(check, machine, MTP_4)


def test_times_over_a_socket_are_those_of_the_virtual_clock_and_the_socket_keeps_them() -> None:
    """One request after the other. What the server says of each is exact, and its last token comes then and no earlier.

    How much later it comes is counted in turns of the loop, which server and client share here.
    """
    machine = machine_of("small")
    prompts = {name: replace(prompt, text=CODE.format(name)) for name, prompt in suite("code", 4).items()}
    virtual = VirtualEngine(machine, MTP_4).measure(cell(prompts, 1, tokens=96), prompts)
    turns = Turns()

    async def check(server: SimServer, session: aiohttp.ClientSession) -> None:
        for expected in virtual.requests:
            text = prompts[expected.prompt_id].text
            told = await on_time(session, body(text, 96, **STREAM), turns)
            assert expected.server is not None
            assert expected.server.time_to_first_token_s is not None and expected.server.generation_s is not None
            assert told["time_to_first_token_ms"] == pytest.approx(1e3 * expected.server.time_to_first_token_s)
            assert told["generation_time_ms"] == pytest.approx(1e3 * expected.server.generation_s)

    async def watched(server: SimServer, session: aiohttp.ClientSession) -> None:
        async with turns.noted():
            await check(server, session)

    with_server(watched, machine, MTP_4)


def test_a_scaled_clock_divides_what_client_and_server_see_alike() -> None:
    turns = Turns()

    async def check(server: SimServer, session: aiohttp.ClientSession) -> None:
        async with turns.noted():
            told = await on_time(session, body(CODE, 101, **STREAM), turns)
        # 100 steps of 5 ms, four times faster.
        assert told["generation_time_ms"] == pytest.approx(125, rel=0.001)

    with_server(check, machine_of("small"), time_scale=4.0)


async def on_time(session: aiohttp.ClientSession, payload: dict[str, Any], turns: Turns) -> dict[str, float]:
    """What the server says of a request; it must have taken so long for the client too, and no more than that."""
    began_s = time.perf_counter()
    events, times_s = await stream(session, "/v1/completions", payload)
    told: dict[str, float] = events[-1]["metrics"]
    names = ("queue_time_ms", "time_to_first_token_ms", "generation_time_ms")
    due_s = began_s + sum(told[name] for name in names) / 1e3
    assert times_s[-1] >= due_s
    assert turns.between(due_s * 1e9, times_s[-1] * 1e9) <= A_FEW
    return told


def test_refusals_are_vllms() -> None:
    async def check(server: SimServer, session: aiohttp.ClientSession) -> None:
        for payload, status, says in (
            (body(CODE, 4) | {"model": "other"}, 404, "does not exist"),
            (body(CODE, 4, n=2), 400, "n=1"),
            (body("", 4), 400, "prompt"),
            (body(CODE, 10**9), 400, "maximum context length"),
            (body(CODE, 4, stream=True, prompt_logprobs=0), 400, "prompt_logprobs"),
            (body(CODE, 4, min_p=0.1), 400, "speculative"),
        ):
            async with session.post("/v1/completions", json=payload) as response:
                assert response.status == status
                error = (await response.json())["error"]
                assert says in error["message"] and error["code"] == status

    with_server(check, machine_of("small"), MTP_4)


def test_the_rest_of_the_server() -> None:
    async def check(server: SimServer, session: aiohttp.ClientSession) -> None:
        async def read(path: str) -> Any:
            async with session.get(path) as response:
                assert response.status == 200
                return await response.json(content_type=None) if path != "/health" else None

        await read("/health")
        assert (await read("/v1/models"))["data"][0]["id"] == server.served_model == "sim-small"
        assert (await read("/version"))["version"].startswith("0.32.0")
        config = (await read("/server_info?config_format=json"))["vllm_config"]
        assert config["speculative_config"] is None and config["parallel_config"]["pipeline_parallel_size"] == 1
        async with session.post("/reset_prefix_cache") as response:
            assert await response.json() == {"success": True}
        assert not any("spec_decode" in name for name in await scrape(session))

    with_server(check, machine_of("small"))


def test_a_client_that_hangs_up_frees_its_place() -> None:
    async def check(server: SimServer, session: aiohttp.ClientSession) -> None:
        async with session.post("/v1/completions", json=body(CODE, 5000, **STREAM)) as response:
            await response.content.readline()
            response.close()
        finished = server.world.totals.finished
        async with asyncio.timeout(60):
            while server.world.num_running or not finished["abort"]:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        assert sum(finished.values()) == 1, "it did not end by itself"

    with_server(check, machine_of("small", {"hardware": {"fixed_s": 1.0}}))


def test_the_adapter_runs_a_child_and_leaves_nothing(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    machine = machine_of("small")
    with sim_engine.start(machine, speculative_config=MTP_4, launch_index=1, time_scale=2.0, log=log) as engine:
        with urllib.request.urlopen(f"{engine.base_url}/health") as response:
            assert response.status == 200
        facts = engine.facts()
        assert (facts.kind, facts.extra["time_scale"], facts.model) == ("sim", 2.0, engine.served_model)
        assert engine.death() is None
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{engine.base_url}/health", timeout=60)


def test_a_planted_death_is_noticed_with_its_cause(tmp_path: Path) -> None:
    machine = machine_of("small", {"faults": {"death_at_s": 3.0}})  # not before it has said where it listens
    with sim_engine.start(machine, speculative_config=None, launch_index=0, log=tmp_path / "engine.log") as engine:
        deadline = time.monotonic() + 120
        while engine.death() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        death = engine.death()
        assert death is not None and "EngineDeadError" in death.cause and death.log == tmp_path / "engine.log"
