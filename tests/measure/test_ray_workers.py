"""Workers in actors of a local Ray cluster: the same as one client, and what a killed actor leaves."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from specprof.engine.access import Access
from specprof.measure import loop
from specprof.measure.crew import Crew
from specprof.records import LOST_WITH_WORKER
from tests.factory import make_cell, make_prompt
from tests.measure.doubles import FakeEngine
from tests.measure.sse import Vllm, serving

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'specprof[ray]'")

ACCESS = Access(token_env="SPECPROF_RAY_TOKEN")
TOKEN = "sk-a-token-that-no-log-may-hold"
PROMPTS = {name: make_prompt(name) for name in make_cell(num_prompts=8).prompt_ids}


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with serving(Vllm(step_s=0.005)) as vllm:
        guarded = FakeEngine(vllm)
        guarded.access = ACCESS  # type: ignore[attr-defined]
        yield guarded


@pytest.fixture(scope="module")
def pair() -> Iterator[Crew]:
    """Two actors on a cluster of this machine, started once, before there is a token in the environment."""
    from specprof.measure.ray_crew import ray_crew

    with ray_crew(2, "http://127.0.0.1:1", ACCESS) as workers:
        yield workers


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(str(ACCESS.token_env), TOKEN)


def test_two_actors_send_and_bring_back_what_one_client_does(engine: FakeEngine, pair: Crew) -> None:
    cell = make_cell(num_prompts=8, max_tokens=6, num_warmup=4, warmup_tokens=2)
    alone = loop.measure(cell, PROMPTS, engine, 0)
    together = loop.measure(cell, PROMPTS, engine, 0, workers=pair)

    def came(record) -> Counter[tuple[str, str, tuple[int, ...], str | None]]:
        return Counter((r.prompt_id, r.phase.value, r.token_ids, r.error) for r in record.requests)

    assert came(together) == came(alone)
    assert {request.stream for request in together.requests} == {0, 1, 2, 3}
    for load in together.client.workers:
        assert load.lost is None
        assert 0 < load.clock_error_ns < 50_000_000
        assert abs(load.clock_offset_ns) <= load.clock_error_ns, "one machine, one monotonic clock"


def test_what_a_killed_actor_was_given_has_failed_and_says_so(engine: FakeEngine, pair: Crew) -> None:
    engine.vllm.step_s = 0.02
    cell = make_cell(num_prompts=8, max_tokens=40)
    victims = [process for process in psutil.Process().children(recursive=True) if _is_actor(process)]
    assert len(victims) == 2
    threading.Timer(0.7, lambda: os.kill(victims[0].pid, signal.SIGKILL)).start()
    record = loop.measure(cell, PROMPTS, engine, 0, workers=pair)
    assert Counter(r.prompt_id for r in record.requests) == Counter(cell.prompt_ids), "never silently smaller"
    lost = [request for request in record.requests if request.error is not None]
    assert len(lost) == 4
    assert all(request.error.startswith(LOST_WITH_WORKER) for request in lost)
    assert [load.lost is not None for load in record.client.workers].count(True) == 1
    after = loop.measure(cell, PROMPTS, engine, 0, workers=pair)
    assert {request.error for request in after.requests} == {None}, "the next cell has a new worker"


def test_a_bearer_token_reaches_the_actors_and_no_log_or_command_line(engine: FakeEngine, pair: Crew) -> None:
    """They were started without it: a client that has none refuses to connect (`engine.access`)."""
    record = loop.measure(make_cell(num_prompts=8, max_tokens=2), PROMPTS, engine, 0, workers=pair)
    assert {request.error for request in record.requests} == {None}
    logs = [path for path in Path("/tmp/ray/session_latest/logs").rglob("*") if path.is_file()]
    assert logs
    assert not [path for path in logs if TOKEN.encode() in path.read_bytes()]
    lines = [process.cmdline() for process in psutil.Process().children(recursive=True) if process.is_running()]
    assert lines
    assert TOKEN not in str(lines)


def _is_actor(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[:1] == ["ray::Worker"]
    except psutil.Error:
        return False
