"""The newcomer among decoders, over a real socket: when it is sent, and what a whole cell of it records."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from specprof.engine.start import start
from specprof.measure.interference import interference_loop
from specprof.measure.load import Order, connected
from specprof.measure.loop import measure
from specprof.measure.wire import decode
from specprof.records import Interference, Launch, Phase, Prompt, Request, Role
from specprof.study.engines import SimEngine
from tests.factory import make_cell, make_prompt
from tests.measure.sse import Vllm, serving

AFTER, DECODERS = 5, 3


def order(name: str, max_tokens: int) -> Order:
    return Order(name, Phase.MEASURED, json.dumps({"max_tokens": max_tokens}).encode())


def drive(vllm: Vllm, *, decoder_tokens: int = 40) -> tuple[list[Request], list[str]]:
    """The newcomer and three decoders; and what was counted done."""
    done: list[str] = []

    async def run() -> list[Request]:
        decoders = [order(f"d{i}", decoder_tokens) for i in range(DECODERS)]
        async with connected(vllm.base_url, DECODERS + 1) as session:
            streams = await interference_loop(
                session, "/v1/completions", order("new", 2), decoders, AFTER, lambda: done.append("one")
            )
        return [decode(stream) for stream in streams]

    return asyncio.run(run()), done


def test_the_newcomer_comes_once_every_decoder_was_read_from_often_enough() -> None:
    """The decoders write on until the newcomer is there: had it waited for their end, it would not have come."""
    vllm = Vllm(may_end=lambda body: len(vllm.asked) > DECODERS)
    with serving(vllm):
        requests, done = drive(vllm, decoder_tokens=2 * AFTER)
    *decoders, newcomer = requests
    assert [r.prompt_id for r in requests] == ["d0", "d1", "d2", "new"]
    assert [r.error for r in requests] == [None] * 4
    assert len(done) == 4
    slowest = max(r.chunk_ns[AFTER - 1] for r in decoders)
    assert newcomer.sent_ns >= slowest
    assert newcomer.sent_ns < min(r.done_ns for r in decoders), "it came among decoders that were still writing"
    assert newcomer.scheduled_ns <= newcomer.sent_ns
    assert len({r.stream for r in requests}) == 4


@pytest.mark.parametrize("fault", [{"hang_up_after": 2}, {"status": 503}])
def test_decoders_that_fail_keep_nobody_waiting(fault: dict[str, int]) -> None:
    with serving(Vllm(**fault)) as vllm:
        requests, done = drive(vllm)
    assert len(requests) == len(done) == DECODERS + 1
    assert all(r.error for r in requests)


def test_decoders_shorter_than_the_wait_keep_nobody_waiting() -> None:
    with serving(Vllm()) as vllm:
        requests, _ = drive(vllm, decoder_tokens=AFTER - 2)
    *decoders, newcomer = requests
    assert newcomer.error is None
    assert newcomer.sent_ns >= max(r.done_ns for r in decoders)


def test_no_request_of_it_pays_for_a_connect() -> None:
    with serving(Vllm(step_s=0.01)) as vllm:
        drive(vllm)
    assert len(vllm.connections) <= DECODERS + 1


@pytest.mark.parametrize(("size", "num_passes"), [(4096, 1), (500, 4)])
def test_a_cell_on_the_simulated_server_holds_the_newcomer_among_its_decoders(
    tmp_path: Path, size: int, num_passes: int
) -> None:
    """The server reads whole or in chunks because its launch says so; the client does the same in both.

    A pass that reads costs 50 ms beside what 2,000 tokens at 20,000 tok/s take together, 0.1 s, and the decoders' step
    in it less than 6 ms, so the time to the first token, as the server itself counts it, tells how many there were.
    """
    prompts: dict[str, Prompt] = {f"code-{i:03d}": make_prompt(f"code-{i:03d}", text=f"def f{i}():") for i in range(2)}
    prompts["long"] = make_prompt("long", text="x = 1; " * 1_000)  # 7,000 characters at 3.5 a token
    cell = make_cell(
        role=Role.INTERFERENCE,
        protocol="interference",
        prompt_ids=("long", "code-000", "code-001"),
        concurrency=3,
        num_warmup=3,
        max_tokens=60,
        interference=Interference("long", AFTER, 8, size),
    )
    launch = Launch(0, 0, "off", None, (cell,), {"max_num_batched_tokens": size})
    spec = SimEngine(kind="sim", preset="small", parameters={"prefill": {"fixed_s": 0.05}})
    with start(spec, launch, tmp_path, lambda _: None) as engine:
        record = measure(cell, prompts, engine, 0)
    measured = {r.prompt_id: r for r in record.requests if r.phase is Phase.MEASURED}
    assert {r.error for r in record.requests} == {None}
    assert {name: len(r.token_ids) for name, r in measured.items()} == {"long": 8, "code-000": 60, "code-001": 60}
    assert measured["long"].prompt_tokens == 2_000
    assert sum(r.phase is Phase.WARMUP for r in record.requests) == 3
    decoders = [measured["code-000"], measured["code-001"]]
    assert measured["long"].sent_ns >= max(r.chunk_ns[AFTER - 1] for r in decoders)
    told = measured["long"].server
    assert told is not None
    assert told.time_to_first_token_s is not None
    assert round((told.time_to_first_token_s - 0.1) / 0.05) == num_passes
