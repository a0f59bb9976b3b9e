"""Several workers as one client: one work split, one start, one set of records. Nothing they send is lost unseen.

The clocks of the workers are measured against ours before and after a cell, and every instant they report is put on
ours. A worker that is killed, or that does not answer, takes its part of the cell with it: the requests it was given
stand in the record as failed, with the reason, and the cell is invalid (gates 10 and 11). The next cell gets a new one.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol

from specprof.engine.access import Access
from specprof.errors import ClientError
from specprof.measure.alignment import Offset, measured_offset, throughout
from specprof.measure.beside import beside
from specprof.measure.client import Driven
from specprof.measure.reads import Reads
from specprof.measure.split import Share, Work, split
from specprof.measure.wire import RawStream
from specprof.measure.worker import Progress, Returned, streams_of
from specprof.records import LOST_WITH_WORKER, ClientLoad, Phase, WorkerLoad
from specprof.study.clients import Clients

LEAD_S = 0.2  # between telling the workers when to start, and starting
POLL_S = 0.1  # how often a worker is asked how far it is
SILENCE_S = 30.0  # a worker that does not answer for so long is lost
LOOKS = 10  # in which so long is waited: a pause of this process is one of them, however long it lasts
START_S = 120.0  # for a worker to be there: a cluster may have to bring a node up

_clock = time.perf_counter_ns
_NOTHING_YET = Progress(0, all_measured=False)


class WorkerLost(Exception):
    """A worker is gone or does not answer; the text says why."""


class Hand(Protocol):
    """A worker as seen from here: called by the names of `measure.worker.Worker`'s methods."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """What the method returns. Raises WorkerLost if the worker is gone, ClientError if the method failed."""

    def stop(self) -> None:
        """End it now, whatever it does."""


@contextmanager
def crew_of(clients: Clients, base_url: str, access: Access) -> Iterator[Crew | None]:
    """The workers that a study asks for, gone when the block ends; None where this process is the only client."""
    if clients.alone:
        yield None
    elif clients.backend == "ray":
        from specprof.measure.ray_crew import ray_crew

        with ray_crew(clients.workers, base_url, access) as workers:
            yield workers
    else:
        from specprof.measure.processes import process_crew

        with process_crew(clients.workers) as workers:
            yield workers


class Crew:
    """Workers that stay over the cells of a launch. `start` brings up one more."""

    def __init__(self, num_workers: int, start: Callable[[], Hand]) -> None:
        self._num, self._start = num_workers, start
        self._hands: list[Hand] = []

    @asynccontextmanager
    async def at(self, work: Work, base_url: str, access: Access) -> AsyncIterator[CrewClient]:
        """The workers with their shares of a work, connected. One that was lost is let go at the end.

        Raises ClientError where one cannot be there or cannot connect: nothing is measured yet.
        """
        shares, num_before = split(work, self._num), len(self._hands)
        try:
            while len(self._hands) < len(shares):
                self._hands.append(self._start())
            await self._require_all_there(num_before)
            members = [_Member(hand, share) for hand, share in zip(self._hands, shares, strict=False)]
            await asyncio.gather(*(member.prepare(base_url, access) for member in members))
            yield CrewClient(members)
        except BaseException:
            self.stop()  # whatever it was: nobody knows what they are busy with
            raise
        for member in members:
            if member.lost is not None:
                self._hands.remove(member.hand)
                member.hand.stop()

    def stop(self) -> None:
        """End all of them."""
        while self._hands:
            self._hands.pop().stop()

    async def _require_all_there(self, num_before: int) -> None:
        """Put another worker in the place of each that went away between two cells: of the first `num_before`."""
        try:
            async with asyncio.TaskGroup() as looks:  # the first that fails ends the others, lest they start more
                for place in range(len(self._hands)):
                    looks.create_task(self._require_there(place, is_new=place >= num_before))
        except ExceptionGroup as problems:
            raise problems.exceptions[0] from None

    async def _require_there(self, place: int, *, is_new: bool) -> None:
        if not is_new:  # one that was just started and does not come would not come a second time either
            with suppress(WorkerLost, TimeoutError):
                await asyncio.wait_for(self._hands[place].call("clock"), START_S)
                return
            self._hands[place].stop()
            self._hands[place] = self._start()
        try:
            await asyncio.wait_for(self._hands[place].call("clock"), START_S)
        except (WorkerLost, TimeoutError) as problem:
            why = str(problem) or f"it was not there after {START_S:g} s"
            raise ClientError(f"load.workers: a worker did not start: {why}.") from None


class _Member:
    """A worker, what it was given, and what has become of it."""

    def __init__(self, hand: Hand, share: Share) -> None:
        self.hand, self.share = hand, share
        self.lost: str | None = None
        self.progress = _NOTHING_YET
        self._clock = Offset(0, 0)
        self._returned: Returned | None = None

    async def prepare(self, base_url: str, access: Access) -> None:
        """Hand over its work, and let it connect."""
        try:
            await asyncio.wait_for(self.hand.call("prepare", base_url, access, self.share.work), START_S)
        except (WorkerLost, TimeoutError) as problem:
            why = str(problem) or f"it did not answer for {START_S:g} s"
            raise ClientError(f"load.workers: {self._name} could not connect: {why}.") from None

    async def align(self) -> None:
        """Measure its clock against ours."""
        with self._minding_loss():
            self._clock = await measured_offset(lambda: self._answer("clock"))

    async def align_again(self) -> None:
        """The same after its work: what held from then until now. One that is gone by now has nothing left to lose."""
        with suppress(WorkerLost):
            self._clock = throughout(self._clock, await measured_offset(lambda: self._answer("clock")))

    async def warm_up(self) -> list[RawStream]:
        """Its warm-ups, by our clock; none if it is lost over them."""
        found: list[RawStream] = []
        with self._minding_loss():
            found.extend(self._on_our_clock(streams_of(await self._result("warm_up"))))
        return found

    async def drive(self, start_ns: int, told: Callable[[], None]) -> None:
        """Let it do its work from an instant of our clock on. `told` is called when it has said how far it is."""
        with self._minding_loss():
            self._returned = await self._result("drive", self._clock.there(start_ns), told=told)
            self.progress = Progress(self.share.work.num_counted, all_measured=True)
        told()

    async def finish(self) -> None:
        """Tell it that what is measured has ended everywhere."""
        with self._minding_loss():
            await self._answer("finish")

    def streams(self, start_ns: int) -> list[RawStream]:
        """What it sent, by our clock; if it is lost, the requests that it was given, failed."""
        with self._minding_loss():
            if self._returned is not None:
                return self._complete(self._on_our_clock(streams_of(self._returned)))
        return list(self._failed(start_ns))

    def load(self) -> WorkerLoad:
        """How busy it was, and its clock."""
        told = None if self.lost else self.client_load
        return WorkerLoad(
            worker=self.share.worker,
            cpu_share=told.cpu_share if told else 0.0,
            loop_lag_p99_s=told.loop_lag_p99_s if told else 0.0,
            num_requests=self.share.work.num_counted,
            num_reads=self._returned.num_reads if self._returned else 0,
            clock_offset_ns=self._clock.offset_ns,
            clock_error_ns=round(self._clock.error_ns * self.share.work.time_scale),
            lost=self.lost,
        )

    @property
    def client_load(self) -> ClientLoad | None:
        """What it says of itself."""
        return self._returned.load if self._returned else None

    @property
    def _name(self) -> str:
        return f"worker {self.share.worker + 1} of {self.share.num_workers}"

    @contextmanager
    def _minding_loss(self) -> Iterator[None]:
        """What goes wrong in the block is the end of this worker, and of nothing else."""
        try:
            yield
        except (WorkerLost, ClientError, ValueError) as problem:
            self.lost = self.lost or str(problem)

    async def _answer(self, method: str, *arguments: Any) -> Any:
        """What a method that takes no time returns; WorkerLost where no answer comes."""
        answer = asyncio.ensure_future(self.hand.call(method, *arguments))
        try:
            for _ in range(LOOKS):
                if (await asyncio.wait({answer}, timeout=SILENCE_S / LOOKS))[0]:
                    return answer.result()
        finally:
            answer.cancel()
        raise WorkerLost(f"it did not answer for {SILENCE_S:g} s")

    async def _result(self, method: str, *arguments: Any, told: Callable[[], None] = lambda: None) -> Returned:
        """What a method that takes its time returns, for as long as the worker answers beside it."""
        working = asyncio.ensure_future(self.hand.call(method, *arguments))
        try:
            while not (await asyncio.wait({working}, timeout=POLL_S))[0]:
                self.progress = await self._answer("progress")
                told()
            returned: Returned = working.result()
            return returned
        finally:
            working.cancel()

    def _on_our_clock(self, streams: list[RawStream]) -> list[RawStream]:
        """The streams with their instants by our clock, and numbered among all."""
        here = self._clock.here
        return [
            replace(
                raw,
                stream=self.share.stream(raw.stream),
                scheduled_ns=here(raw.scheduled_ns),
                sent_ns=here(raw.sent_ns),
                done_ns=here(raw.done_ns),
                reads=Reads((here(at_ns), data) for at_ns, data in raw.reads),
            )
            for raw in streams
        ]

    def _complete(self, streams: list[RawStream]) -> list[RawStream]:
        """The streams, if every request that counts is among them; ValueError if not."""
        given = Counter(order.prompt_id for order in self.share.work.orders if order.phase is not Phase.FILL)
        came = Counter(raw.prompt_id for raw in streams if raw.phase is not Phase.FILL)
        if came != given:
            raise ValueError(f"it sent back {came.total()} of {given.total()} requests")
        return streams

    def _failed(self, start_ns: int) -> Iterator[RawStream]:
        """One failed request for each that it was given, due when it was to be sent, ended when the loss was seen."""
        work, now_ns = self.share.work, _clock()
        error = f"{LOST_WITH_WORKER} {self.share.worker + 1} of {self.share.num_workers}: {self.lost}"
        due_s = work.arrivals.due_s if work.arrivals is not None else ()
        num_places = len(work.orders) if work.arrivals is not None else work.concurrency // self.share.width
        for lane, orders in enumerate(work.lanes):
            for place, order in enumerate(orders):
                if order.phase is Phase.FILL:
                    continue
                due_ns = start_ns + (round(due_s[place] * 1e9 / work.time_scale) if due_s else 0)
                stream = self.share.stream(place % num_places * self.share.width + lane)
                ended_ns = max(due_ns, now_ns)
                yield RawStream(order.prompt_id, order.phase, stream, due_ns, due_ns, ended_ns, error=error)


class CrewClient:
    """The workers of one cell, as one client (`measure.client.Client`)."""

    def __init__(self, members: Sequence[_Member]) -> None:
        self._members = members

    async def warm_up(self) -> Sequence[RawStream]:
        """Every worker sends its share of the warm-ups, on its own connections."""
        await self._align()
        return _in_order_of_sending(await asyncio.gather(*(member.warm_up() for member in self._present())))

    async def drive(self, on_done: Callable[[], None]) -> Driven:
        """Start all at one instant, wait until the last is done, and put together what they bring."""
        await self._align()
        start_ns = _clock() + round(LEAD_S * 1e9)
        ended_everywhere = asyncio.Event()
        num_told = 0

        def told() -> None:
            nonlocal num_told
            num_done = sum(member.progress.num_done for member in self._members)
            for _ in range(num_told, num_done):
                on_done()
            num_told = max(num_told, num_done)
            if all(member.progress.all_measured for member in self._present()):
                ended_everywhere.set()

        async with beside(self._finish(ended_everywhere)):
            await asyncio.gather(*(member.drive(start_ns, told) for member in self._present()))
        for member in self._present():
            await member.align_again()
        streams = _in_order_of_sending([member.streams(start_ns) for member in self._members])
        return Driven(streams, self._load())

    def _present(self) -> list[_Member]:
        return [member for member in self._members if member.lost is None]

    async def _align(self) -> None:
        for member in self._present():  # one by one: a round trip that waits for another's would be a longer one
            await member.align()

    async def _finish(self, ended_everywhere: asyncio.Event) -> None:
        await ended_everywhere.wait()
        await asyncio.gather(*(member.finish() for member in self._present()))

    def _load(self) -> ClientLoad:
        """The busiest worker's shares and lags, and every worker's own."""
        told = [member.client_load for member in self._present()]
        loads = [load for load in told if load is not None]
        return ClientLoad(
            cpu_share=max((load.cpu_share for load in loads), default=0.0),
            loop_lag_p99_s=max((load.loop_lag_p99_s for load in loads), default=0.0),
            dispatch_lag_p99_s=_largest(load.dispatch_lag_p99_s for load in loads),
            dispatch_lag_max_s=_largest(load.dispatch_lag_max_s for load in loads),
            workers=tuple(member.load() for member in self._members),
            num_connects=sum(load.num_connects for load in loads),
            connect_max_s=_largest(load.connect_max_s for load in loads),
            kernel_timed=min((load.kernel_timed for load in loads if load.kernel_timed is not None), default=None),
        )


def _largest(values: Iterator[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _in_order_of_sending(parts: Sequence[Sequence[RawStream]]) -> list[RawStream]:
    return sorted((raw for part in parts for raw in part), key=lambda raw: (raw.scheduled_ns, raw.stream))
