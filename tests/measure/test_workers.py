"""Several workers against a real local server: the same as one client, clocks on ours, and what a lost one leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import psutil
import pytest

from specprof.engine.access import OPEN
from specprof.errors import ClientError
from specprof.measure import crew, loop, processes
from specprof.measure.crew import Crew, WorkerLost
from specprof.measure.processes import ProcessHand, process_crew
from specprof.measure.wire import RawStream
from specprof.measure.worker import Returned, Worker, streams_of
from specprof.records import LOST_WITH_WORKER, CellRecord, Phase, Role
from tests.engine.sim_cells import open_cell
from tests.factory import make_cell, make_prompt
from tests.measure.doubles import FakeEngine, at_work
from tests.measure.sse import Vllm, serving
from tests.running import wait_gone, wait_until

PROMPTS = {name: make_prompt(name) for name in make_cell(num_prompts=12).prompt_ids}


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with serving(Vllm(step_s=0.005)) as vllm:
        yield FakeEngine(vllm)


@pytest.fixture(scope="module")
def pair() -> Iterator[Crew]:
    """Two worker processes, started once."""
    with process_crew(2) as workers:
        yield workers


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SETTLE_S", 0.3)
    monkeypatch.setattr(loop, "GAUGE_PERIOD_S", 0.05)


def closed(**changes: Any):
    return make_cell(**{"num_prompts": 12, "max_tokens": 6, "num_warmup": 4, "warmup_tokens": 2, **changes})


def measured(record: CellRecord):
    return [request for request in record.requests if request.phase is Phase.MEASURED]


# -- the same as one client -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cell",
    [
        closed(),
        closed(concurrency=3),
        closed(
            role=Role.MIXED,
            tag="code+json",
            prompt_tags=("code", "json") * 6,
            concurrency=4,
            num_warmup=0,
            warmup_tokens=0,
        ),
        open_cell(
            PROMPTS, [0.02 * i for i in range(20)], tokens=4, warmup_s=0.1, duration_s=0.2, output_tokens=[3, 4] * 10
        ),
    ],
    ids=["closed", "closed, three streams", "mixed", "open"],
)
def test_two_workers_send_and_bring_back_what_one_client_does(cell, engine: FakeEngine, pair: Crew) -> None:
    alone = loop.measure(cell, PROMPTS, engine, 0)
    asked = len(engine.vllm.asked)
    together = loop.measure(cell, PROMPTS, engine, 0, workers=pair)

    def sent(record: CellRecord) -> Counter[tuple[str, str, tuple[int, ...]]]:
        kept = (request for request in record.requests if request.phase is not Phase.FILL)
        return Counter((request.prompt_id, request.phase.value, request.token_ids) for request in kept)

    assert sent(together) == sent(alone)
    assert {request.error for request in measured(together)} == {None}
    assert len(engine.vllm.asked) - asked == len(together.requests), "what was asked and what came back"
    if cell.arrivals is None:  # of an open loop, what only kept the load up is cut off at the end
        counted = together.after.generation_tokens - together.before.generation_tokens  # type: ignore[union-attr,operator]
        came = [request for request in together.requests if request.phase is not Phase.WARMUP]
        assert counted == sum(len(request.token_ids) for request in came)
    assert [load.worker for load in together.client.workers] == [0, 1]  # type: ignore[union-attr]
    if sys.platform == "linux":
        assert alone.client.kernel_timed > 0.5 and together.client.kernel_timed > 0.5  # type: ignore[union-attr,operator]
    assert all(load.lost is None and load.num_reads > 0 for load in together.client.workers)  # type: ignore[union-attr]


def test_streams_are_as_many_as_asked_for_and_numbered_among_all(engine: FakeEngine, pair: Crew) -> None:
    engine.vllm.gather = 5
    record = loop.measure(closed(concurrency=5, num_warmup=0), PROMPTS, engine, 0, workers=pair)
    assert engine.vllm.most_running == 5
    assert {request.stream for request in measured(record)} == set(range(5))
    for stream in range(5):  # a stream is one request after the other
        own = sorted((r.sent_ns, r.done_ns) for r in measured(record) if r.stream == stream)
        assert all(done <= sent for (_, done), (sent, _) in pairwise(own))


def test_an_open_loop_keeps_one_schedule(engine: FakeEngine, pair: Crew) -> None:
    due_s = [0.031 * i for i in range(16)]
    record = loop.measure(open_cell(PROMPTS, due_s, tokens=2), PROMPTS, engine, 0, workers=pair)
    requests = measured(record)
    assert [request.stream for request in requests] == list(range(16))
    assert [request.prompt_id for request in requests] == list(record.cell.prompt_ids)
    error_s = sum(load.clock_error_ns for load in record.client.workers) / 1e9  # type: ignore[union-attr]
    began_s = requests[0].scheduled_ns / 1e9
    for request, due in zip(requests, due_s, strict=True):
        assert request.scheduled_ns / 1e9 - began_s == pytest.approx(due, abs=error_s)


def test_a_cap_is_shared_out(engine: FakeEngine, pair: Crew) -> None:
    engine.vllm.gather = 3
    cell = open_cell(PROMPTS, [0.001 * i for i in range(12)], tokens=6, cap=3)
    record = loop.measure(cell, PROMPTS, engine, 0, workers=pair)
    assert engine.vllm.most_running == 3
    assert len(measured(record)) == 12


def test_the_load_is_kept_up_until_what_every_worker_measures_has_ended(engine: FakeEngine, pair: Crew) -> None:
    """Each worker measures one request. Worker 1's ends when 30 were asked, of which 20 at most are its own.

    So worker 2 must go on sending what keeps the load up, though its own measured request ended long before.
    """
    engine.vllm.may_end = lambda body: body["max_tokens"] != 120 or len(engine.vllm.asked) >= 30
    lengths = [120, 2, *[2] * 38]
    due_s = [0.0, 0.01, *(0.2 + 0.02 * i for i in range(38))]
    cell = open_cell(PROMPTS, due_s, tokens=120, duration_s=0.1, output_tokens=lengths)
    record = loop.measure(cell, PROMPTS, engine, 0, workers=pair)
    assert [request.error for request in measured(record)] == [None, None]
    fill = [request for request in record.requests if request.phase is Phase.FILL]
    assert {request.stream % 2 for request in fill} == {0, 1}
    last_ns = max(request.done_ns for request in measured(record))
    error_ns = sum(load.clock_error_ns for load in record.client.workers)  # type: ignore[union-attr]
    assert sum(request.sent_ns <= last_ns + error_ns for request in fill) >= 28


# -- clocks -----------------------------------------------------------------------------------------------------------


class Elsewhere:
    """A worker in this process, whose clock reads `ahead_ns` more and whose ways there and back differ."""

    def __init__(self, ahead_ns: int, there_s: float = 0.004, back_s: float = 0.001) -> None:
        self._ahead_ns, self._there_s, self._back_s = ahead_ns, there_s, back_s
        self._worker = Worker()

    async def call(self, method: str, *arguments: Any) -> Any:
        await asyncio.sleep(self._there_s)
        if method == "drive":
            arguments = (arguments[0] - self._ahead_ns,)
        found = await getattr(self._worker, method)(*arguments)
        await asyncio.sleep(self._back_s)
        if method == "clock":
            return found + self._ahead_ns
        return self._by_its_clock(found) if isinstance(found, Returned) else found

    def _by_its_clock(self, returned: Returned) -> Returned:
        import pickle

        def ahead(raw: RawStream) -> RawStream:
            there = [(at_ns + self._ahead_ns, data) for at_ns, data in raw.reads]
            return replace(
                raw,
                scheduled_ns=raw.scheduled_ns + self._ahead_ns,
                sent_ns=raw.sent_ns + self._ahead_ns,
                done_ns=raw.done_ns + self._ahead_ns,
                reads=type(raw.reads)(there),
            )

        return replace(returned, streams=pickle.dumps([ahead(raw) for raw in streams_of(returned)]))

    def stop(self) -> None:
        pass


@pytest.mark.parametrize("ahead_ns", [7_000_000_000, -3_600_000_000_000])
def test_a_planted_offset_is_found_within_the_error_that_is_told(ahead_ns: int, engine: FakeEngine) -> None:
    offsets = iter([ahead_ns, ahead_ns // 2])
    workers = Crew(2, lambda: Elsewhere(next(offsets)))
    began_ns = time.perf_counter_ns()
    record = loop.measure(closed(num_warmup=0), PROMPTS, engine, 0, workers=workers)
    ended_ns = time.perf_counter_ns()
    first, second = record.client.workers  # type: ignore[union-attr]
    for load, truth_ns in ((first, ahead_ns), (second, ahead_ns // 2)):
        assert abs(load.clock_offset_ns - truth_ns) <= load.clock_error_ns
        assert load.clock_error_ns >= 1_500_000, "the ways differ by 3 ms: no honest error is below half of that"
    error_ns = max(first.clock_error_ns, second.clock_error_ns)
    for request in measured(record):  # on our clock, all of it
        instants = (request.scheduled_ns, request.sent_ns, *request.chunk_ns, request.done_ns)
        assert list(instants) == sorted(instants)
        assert began_ns - error_ns <= instants[0] <= instants[-1] <= ended_ns + error_ns


# -- losing one -------------------------------------------------------------------------------------------------------


def hands(workers: Crew) -> list[ProcessHand]:
    return [hand for hand in workers._hands if isinstance(hand, ProcessHand)]


@pytest.mark.parametrize("concurrency", [4, 0], ids=["closed", "open"])
def test_what_a_killed_worker_was_given_has_failed_and_says_so(concurrency: int, engine: FakeEngine) -> None:
    engine.vllm.step_s = 0.02
    cell = closed(max_tokens=30, num_warmup=0)
    if not concurrency:
        cell = open_cell(PROMPTS, [0.05 * i for i in range(12)], tokens=30)
    with process_crew(2) as workers:
        loop.measure(closed(num_prompts=2, max_tokens=1), PROMPTS, engine, 0, workers=workers)  # both are there
        victim = hands(workers)[1]
        with at_work(engine, lambda: os.kill(victim.pid, signal.SIGKILL)):
            record = loop.measure(cell, PROMPTS, engine, 0, workers=workers)
        assert Counter(r.prompt_id for r in measured(record)) == Counter(cell.prompt_ids), "never silently smaller"
        lost = [request for request in measured(record) if request.error is not None]
        assert [request.stream % 2 for request in lost] == [1] * 6
        error = f"{LOST_WITH_WORKER} 2 of 2: its process was killed by signal 9"
        assert {request.error for request in lost} == {error}
        assert [load.lost for load in record.client.workers] == [None, "its process was killed by signal 9"]  # type: ignore[union-attr]
        assert record.client.workers[1].num_requests == 6  # type: ignore[union-attr]
        after = loop.measure(closed(), PROMPTS, engine, 0, workers=workers)
        assert {request.error for request in after.requests} == {None}, "the next cell has a new worker"
        pids = [hand.pid for hand in hands(workers)]
        assert victim.pid not in pids
    assert not any(map(psutil.pid_exists, pids))


def test_a_worker_that_stops_answering_is_lost_and_ended(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "SILENCE_S", 5.0)  # longer than a busy machine keeps the other from answering
    engine.vllm.step_s = 0.02
    with process_crew(2) as workers:
        loop.measure(closed(num_prompts=2, max_tokens=1), PROMPTS, engine, 0, workers=workers)
        victim = hands(workers)[0]
        with at_work(engine, lambda: os.kill(victim.pid, signal.SIGSTOP)):
            record = loop.measure(closed(max_tokens=30, num_warmup=0), PROMPTS, engine, 0, workers=workers)
        assert record.client.workers[0].lost == "it did not answer for 5 s"  # type: ignore[union-attr]
        assert sum(request.error is None for request in measured(record)) == 6
    assert not psutil.pid_exists(victim.pid)


class Paused(ProcessHand):
    """A worker that we ask how far it is just before this process stands still for longer than an answer may take."""

    async def call(self, method: str, *arguments: Any) -> Any:
        if method == "progress" and not self.asked:
            asyncio.get_running_loop().call_soon(time.sleep, 2 * crew.SILENCE_S)
            self.asked = True
        return await super().call(method, *arguments)

    asked = False


def test_a_pause_of_this_process_loses_no_worker(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "SILENCE_S", 3.0)
    workers = Crew(2, Paused)
    try:
        loop.measure(closed(num_prompts=2, max_tokens=1), PROMPTS, engine, 0, workers=workers)
        with at_work(engine, lambda: wait_until(lambda: any(hand.asked for hand in workers._hands))):
            record = loop.measure(closed(num_warmup=0), PROMPTS, engine, 0, workers=workers)
    finally:
        workers.stop()
    assert [load.lost for load in record.client.workers] == [None, None]  # type: ignore[union-attr]
    assert {request.error for request in record.requests} == {None}


def test_a_worker_that_went_away_between_two_cells_is_replaced(engine: FakeEngine) -> None:
    with process_crew(2) as workers:
        loop.measure(closed(), PROMPTS, engine, 0, workers=workers)
        victim = hands(workers)[0]
        os.kill(victim.pid, signal.SIGKILL)
        assert wait_gone([victim.pid], 60)
        record = loop.measure(closed(), PROMPTS, engine, 0, workers=workers)
    assert {request.error for request in record.requests} == {None}


def test_a_worker_that_cannot_be_let_in_ends_the_run_with_its_reason(engine: FakeEngine, pair: Crew) -> None:
    from specprof.engine.access import Access

    async def connect() -> None:
        async with pair.at(work, engine.base_url, Access(token_env="SPECPROF_NO_SUCH_TOKEN")):
            pass

    work = loop.work_of(closed(), PROMPTS, engine)
    with pytest.raises(ClientError, match="SPECPROF_NO_SUCH_TOKEN is not set"):
        asyncio.run(connect())


def test_a_worker_that_cannot_start_ends_the_run_with_its_last_words(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with process_crew(1) as workers, pytest.raises(ClientError, match="exited with code 1"):
        asyncio.run(_enter(workers.at(loop.work_of(closed(), PROMPTS, engine), engine.base_url, OPEN)))


class Gone:
    """A worker that is found to be gone when it is asked for, or not before something has happened."""

    def __init__(self, happened: asyncio.Event | None) -> None:
        self._happened = happened
        self.is_stopped = False

    async def call(self, method: str, *arguments: Any) -> Any:
        if self._happened is not None:
            await self._happened.wait()
        raise WorkerLost("planted")

    def stop(self) -> None:
        self.is_stopped = True


def test_a_worker_that_was_just_started_and_is_not_there_is_not_waited_for_twice(engine: FakeEngine) -> None:
    """A cluster that cannot place it would not place another: that much longer the run would wait for its reason."""
    started: list[Gone] = []

    def start() -> Gone:
        started.append(Gone(None))
        return started[-1]

    work = loop.work_of(closed(), PROMPTS, engine)
    with pytest.raises(ClientError, match="a worker did not start: planted"):
        asyncio.run(_enter(Crew(1, start).at(work, engine.base_url, OPEN)))
    assert [worker.is_stopped for worker in started] == [True]


def test_where_one_cannot_start_none_is_started_any_more_and_none_is_left(engine: FakeEngine) -> None:
    started: list[Gone] = []

    def start() -> Gone:
        started.append(Gone(None))
        return started[-1]

    async def enter() -> None:
        has_ended = asyncio.Event()
        workers = Crew(2, start)
        workers._hands = [Gone(None), Gone(has_ended)]  # of the cell before, and both are gone
        before = list(workers._hands)
        with pytest.raises(ClientError, match="a worker did not start: planted"):
            await _enter(workers.at(work, engine.base_url, OPEN))
        has_ended.set()  # only now the second would be found to be gone
        for _ in range(100):
            await asyncio.sleep(0)
        assert all(worker.is_stopped for worker in (*before, *started))

    work = loop.work_of(closed(), PROMPTS, engine)
    asyncio.run(enter())
    assert len(started) == 1, "one in the place of the first"


async def _enter(context: Any) -> None:
    async with context:
        pass


def test_a_worker_that_does_not_read_what_is_written_to_it_is_ended_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "_PATIENCE_S", 0.2)
    hand = ProcessHand()

    async def give_too_much() -> None:
        await hand.call("clock")  # it is there
        os.kill(hand.pid, signal.SIGSTOP)
        giving = asyncio.ensure_future(hand.call("prepare", "http://127.0.0.1:1", None, b"x" * 2**20))
        await asyncio.sleep(0.2)
        await asyncio.wait_for(asyncio.to_thread(hand.stop), 30)
        with pytest.raises(WorkerLost):
            await giving

    asyncio.run(give_too_much())
    assert not psutil.pid_exists(hand.pid)
