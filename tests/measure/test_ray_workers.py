"""Workers in actors of a local Ray cluster: the same as one client, and what a killed actor leaves."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from specprof.engine.access import Access
from specprof.measure import loop
from specprof.measure.alignment import ROUNDS
from specprof.measure.crew import Crew
from specprof.records import LOST_WITH_WORKER
from tests.factory import make_cell, make_prompt
from tests.measure.doubles import FakeEngine, at_work
from tests.measure.sse import Vllm, serving
from tests.running import wait_until

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


@pytest.mark.usefixtures("pair")
def test_an_interrupt_stays_ours_when_ray_connects() -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_two_actors_send_and_bring_back_what_one_client_does(engine: FakeEngine, pair: Crew) -> None:
    cell = make_cell(num_prompts=8, max_tokens=6, num_warmup=4, warmup_tokens=2)
    alone = loop.measure(cell, PROMPTS, engine, 0)
    began_ns = time.perf_counter_ns()
    together = loop.measure(cell, PROMPTS, engine, 0, workers=pair)
    took_ns = time.perf_counter_ns() - began_ns

    def came(record) -> Counter[tuple[str, str, tuple[int, ...], str | None]]:
        return Counter((r.prompt_id, r.phase.value, r.token_ids, r.error) for r in record.requests)

    assert came(together) == came(alone)
    assert {request.stream for request in together.requests} == {0, 1, 2, 3}
    for load in together.client.workers:
        assert load.lost is None
        # Half of the shortest round trip before and of that after the work: of each there were `ROUNDS`.
        assert 0 < load.clock_error_ns <= took_ns / 2 / ROUNDS
        assert abs(load.clock_offset_ns) <= load.clock_error_ns, "one machine, one monotonic clock"


def test_what_a_killed_actor_was_given_has_failed_and_says_so(engine: FakeEngine, pair: Crew) -> None:
    cell = make_cell(num_prompts=8, max_tokens=40)
    loop.measure(cell, PROMPTS, engine, 0, workers=pair)  # both are there
    wait_until(lambda: len(actors()) == 2)
    with at_work(engine, actors()[0].kill):
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
    lines = [command_line(process) for process in psutil.Process().children(recursive=True)]
    assert any(lines)
    assert TOKEN not in str(lines)


def actors() -> list[psutil.Process]:
    """Those that are called by nobody at the moment: at work, they are called otherwise."""
    return [one for one in psutil.Process().children(recursive=True) if command_line(one)[:1] == ["ray::Worker"]]


def command_line(process: psutil.Process) -> list[str]:
    """Empty if it is gone."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []
