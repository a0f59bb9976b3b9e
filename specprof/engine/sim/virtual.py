"""The machine on a virtual clock: whole cells measured in milliseconds, with no socket and no waiting.

What comes out is what the measuring wing writes of a real server, `records.CellRecord`, so analysis cannot tell the
difference and its claims can be held against a machine whose truth is known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import cycle
from math import inf
from typing import Protocol

from specprof.engine.sim.machine import Machine, Speculation
from specprof.engine.sim.physics import World
from specprof.engine.sim.state import EngineRequest
from specprof.engine.sim.text import classify, likelihoods
from specprof.engine.sim.writer import Ask
from specprof.errors import EngineDied
from specprof.records import (
    Cell,
    CellRecord,
    ClientLoad,
    Counters,
    Launch,
    Phase,
    Prompt,
    Request,
    ServerTimes,
    Stop,
    TextScores,
    lanes,
)
from specprof.records import Speculation as SpeculationRecord

_CLOCK_STARTS_NS = 1_000_000_000_000
"""Monotonic clocks do not start at zero; a reader that assumes so should fail here too."""

_GAUGE_PERIOD_S = 0.5
_BETWEEN_CELLS_S = 0.1
_STARTED_AT = "2000-01-01T00:00:00Z"  # a virtual cell has no wall-clock date; people must see that at once


@dataclass(frozen=True)
class OpenLoad:
    """Requests that arrive when they arrive: instants in seconds from the cell's start, at most `cap` out at once."""

    arrivals_s: Sequence[float]
    cap: int | None = None


@dataclass(slots=True)
class _Flight:
    """One request on its way, as the client sees it."""

    prompt: Prompt
    phase: Phase
    stream: int
    scheduled_s: float
    sent_s: float
    chunk_ns: list[int] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)


class _Arrivals(Protocol):
    """When requests leave the client."""

    def next_at(self) -> float:
        """When the next request leaves, as far as is known now; infinity when none will."""

    def take(self) -> _Flight:
        """The request that leaves at `next_at()`."""

    def done(self, flight: _Flight, at_s: float) -> None:
        """A request has come home."""


class _Closed:
    """`concurrency` streams; each takes the next prompt when it is done with its last, and sends it `late_s` later."""

    def __init__(
        self, prompts: Sequence[Prompt], phase: Phase, concurrency: int, start_s: float, late_s: float = 0.0
    ) -> None:
        self._pending = deque(prompts)
        self._phase = phase
        self._idle = [(start_s, stream) for stream in range(concurrency)]
        self._late_s = late_s

    def next_at(self) -> float:
        return self._idle[0][0] + self._late_s if self._pending and self._idle else inf

    def take(self) -> _Flight:
        due_s, stream = heappop(self._idle)
        return _Flight(self._pending.popleft(), self._phase, stream, due_s, due_s + self._late_s)

    def done(self, flight: _Flight, at_s: float) -> None:
        heappush(self._idle, (at_s, flight.stream))


class _Mixed:
    """Streams bound to one content each. A content that has run out sends its prompts again, to fill the batch, until
    every content's own are home.
    """

    def __init__(
        self, contents: Sequence[Sequence[Prompt]], concurrency: int, start_s: float, late_s: float = 0.0
    ) -> None:
        self._pending = [deque(content) for content in contents]
        self._filling = [cycle(content) for content in contents]
        self._num_open = sum(map(len, contents))
        self._idle = [(start_s, stream) for stream in range(concurrency)]
        self._late_s = late_s

    def next_at(self) -> float:
        return self._idle[0][0] + self._late_s if self._num_open and self._idle else inf

    def take(self) -> _Flight:
        due_s, stream = heappop(self._idle)
        content = stream % len(self._pending)
        pending, sent_s = self._pending[content], due_s + self._late_s
        if pending:
            return _Flight(pending.popleft(), Phase.MEASURED, stream, due_s, sent_s)
        return _Flight(next(self._filling[content]), Phase.FILL, stream, due_s, sent_s)

    def done(self, flight: _Flight, at_s: float) -> None:
        self._num_open -= flight.phase is Phase.MEASURED
        heappush(self._idle, (at_s, flight.stream))


class _Open:
    """Requests leave at their instants, or as soon after as the client's cap lets them."""

    def __init__(self, prompts: Sequence[Prompt], load: OpenLoad, start_s: float) -> None:
        self._prompts = prompts
        self._due = deque(start_s + arrival_s for arrival_s in sorted(load.arrivals_s))
        self._cap = load.cap or len(self._due) + 1
        self._num_taken = self._num_out = 0
        self._slot_free_at = start_s

    def next_at(self) -> float:
        if not self._due or self._num_out == self._cap:
            return inf
        return max(self._due[0], self._slot_free_at)

    def take(self) -> _Flight:
        sent_s, index = self.next_at(), self._num_taken
        prompt = self._prompts[index % len(self._prompts)]
        self._num_taken += 1
        self._num_out += 1
        return _Flight(prompt, Phase.MEASURED, index, self._due.popleft(), sent_s)

    def done(self, flight: _Flight, at_s: float) -> None:
        if self._num_out == self._cap:
            self._slot_free_at = at_s
        self._num_out -= 1


class VirtualEngine:
    """One launch of `machine`: its clock, warmth, cache and counters go on from cell to cell."""

    def __init__(
        self,
        machine: Machine,
        speculative_config: Mapping[str, object] | None = None,
        *,
        launch_index: int = 0,
        timeout_s: float = 600.0,
    ) -> None:
        self.machine = machine
        self.launch_index = launch_index
        self.timeout_s = timeout_s
        self.world = World(machine, Speculation.from_config(speculative_config), launch_index)
        self._now_s = 0.0

    def measure(self, cell: Cell, suite: Mapping[str, Prompt], load: OpenLoad | None = None) -> CellRecord:
        """Drive one cell: reset, warm-ups, then its prompts in order; a closed loop unless arrival instants are given.

        Raises EngineDied, as the real loop does, if the machine was told to die.
        """
        self.world.reset_prefix_cache()
        prompts = [suite[prompt_id] for prompt_id in cell.prompt_ids]
        warmups = prompts[: cell.num_warmup]
        late_s = self.machine.faults.client_late_s
        requests = self._drive(cell, _Closed(warmups, Phase.WARMUP, cell.concurrency, self._now_s, late_s), [])
        arrivals: _Arrivals = _Closed(prompts, Phase.MEASURED, cell.concurrency, self._now_s, late_s)
        if cell.prompt_tags:
            contents = [[suite[prompt_id] for prompt_id in lane] for lane in lanes(cell)]
            arrivals = _Mixed(contents, cell.concurrency, self._now_s, late_s)
        if load is not None:
            arrivals = _Open(prompts, load, self._now_s)
        gauges: list[Counters] = []
        before = self.counters()
        requests += self._drive(cell, arrivals, gauges)
        after = self.counters()
        self._pass_time(_BETWEEN_CELLS_S)
        faults = self.machine.faults
        return CellRecord(
            cell=cell,
            launch=self.launch_index,
            requests=tuple(requests),
            before=before,
            after=after,
            gauges=tuple(gauges),
            client=ClientLoad(cpu_share=faults.client_cpu_share, loop_lag_p99_s=faults.client_loop_lag_p99_s),
            started_at=_STARTED_AT,
        )

    def score(self, record: CellRecord, suite: Mapping[str, Prompt], num_top: int = 20) -> tuple[TextScores, ...]:
        """The measured texts of a cell as the target finds them: what a scoring pass over a socket writes down."""
        texts = (request for request in record.requests if request.phase is Phase.MEASURED)
        return tuple(self._score(request, suite[request.prompt_id], record.cell, num_top) for request in texts)

    def _score(self, request: Request, prompt: Prompt, cell: Cell, num_top: int) -> TextScores:
        text, tag = self._prompt(cell, prompt)
        before = self.world.writer.tokenizer.encode(text, tag)[-1:]  # a token's luck hangs on the one before it alone
        found = likelihoods([*before, *request.token_ids], num_top)
        return TextScores(
            prompt_id=prompt.id,
            logprobs=tuple(token.logprob for token in found),
            ranks=tuple(token.rank for token in found),
            top_logprobs=tuple(tuple(logprob for _, logprob in token.top) for token in found),
        )

    def counters(self, at_s: float | None = None) -> Counters:
        """What `/metrics` says now (`at_s` dates the reading; the client's present by default)."""
        world, totals = self.world, self.world.totals
        speculates = world.writer.speculation is not None
        per_position = totals.num_accepted_tokens_per_pos
        return Counters(
            at_ns=_ns(self._now_s if at_s is None else at_s),
            prompt_tokens=float(totals.prompt_tokens),
            generation_tokens=float(totals.generation_tokens),
            num_preemptions=float(totals.num_preemptions),
            prefix_cache_queries=float(totals.prefix_cache_queries),
            prefix_cache_hits=float(totals.prompt_tokens_cached),
            num_drafts=float(totals.num_drafts) if speculates else None,
            num_draft_tokens=float(totals.num_draft_tokens) if speculates else None,
            num_accepted_tokens=float(sum(per_position)) if speculates else None,
            num_accepted_tokens_per_pos=tuple(map(float, per_position)) if speculates else None,
            num_engine_steps=float(totals.num_engine_steps),
            num_requests_finished=float(totals.finished["stop"] + totals.finished["length"]),
            num_requests_running=float(world.num_running),
            num_requests_waiting=float(world.num_waiting),
            kv_cache_usage=world.kv_cache_usage,
        )

    def _drive(self, cell: Cell, arrivals: _Arrivals, gauges: list[Counters]) -> list[Request]:
        """Run until every request is home; `gauges` receives a reading every half second."""
        world, latency_s = self.world, self.machine.latency_s
        flights: dict[int, _Flight] = {}
        requests: list[Request] = []
        gauge_at = self._now_s + _GAUGE_PERIOD_S
        while True:
            arrives_at = arrivals.next_at() + latency_s
            happens_at = world.next_event_at()
            gives_up_at = next(iter(flights.values())).sent_s + self.timeout_s if flights else inf
            at = min(arrives_at, happens_at, gives_up_at)
            if arrives_at == inf and not flights:
                return requests
            while gauge_at <= at:
                gauges.append(self.counters(gauge_at))
                gauge_at += _GAUGE_PERIOD_S
            if at == gives_up_at:
                number = next(iter(flights))
                self._land(cell, flights.pop(number), world.sequences[number], at, arrivals, requests, "timed out")
                world.cancel(number)
            elif arrives_at <= happens_at:
                flight = arrivals.take()
                flights[world.submit(self._ask(cell, flight), arrives_at)] = flight
            else:
                deltas = world.advance()
                if world.dead:
                    raise EngineDied(
                        "The simulated engine died mid-cell.", cause=f"told to, at {at:.3f} s of its life."
                    )
                seen_ns = _ns(at + latency_s)
                for number, num_tokens, finished in deltas:
                    flight = flights[number]
                    flight.chunk_ns.append(seen_ns)
                    flight.chunk_tokens.append(num_tokens)
                    if finished:
                        del flights[number]
                        self._land(cell, flight, world.sequences[number], at + latency_s, arrivals, requests)
                        world.forget(number)

    def _land(
        self,
        cell: Cell,
        flight: _Flight,
        sequence: EngineRequest,
        at_s: float,
        arrivals: _Arrivals,
        requests: list[Request],
        error: str | None = None,
    ) -> None:
        """A request has come home: write its record, free its stream."""
        self._now_s = at_s
        arrivals.done(flight, at_s)
        requests.append(self._record(flight, sequence, at_s, error))

    def _ask(self, cell: Cell, flight: _Flight) -> Ask:
        """The request a client would send for this prompt in this cell."""
        prompt = flight.prompt
        warm = flight.phase is Phase.WARMUP
        max_tokens = min(cell.warmup_tokens, cell.max_tokens) if warm else cell.max_tokens
        text, tag = self._prompt(cell, prompt)
        forced = cell.stop is Stop.FORCED
        return Ask(
            prompt=text,
            tag=tag,
            prompt_tokens=self.world.writer.tokenizer.count(text, tag),
            max_tokens=max_tokens,
            min_tokens=max_tokens if forced and cell.mask_eos else 0,
            ignore_eos=forced,
            temperature=cell.sampling.temperature,
            seed=cell.sampling.seed,
        )

    def _prompt(self, cell: Cell, prompt: Prompt) -> tuple[str, str]:
        """The words that are sent, and the content the machine takes them for."""
        text = prompt_text(prompt, chat=cell.chat)
        return text, self.machine.content_of(prompt.tag if prompt.tag in self.machine.contents else classify(text))

    def _record(self, flight: _Flight, sequence: EngineRequest, at_s: float, error: str | None) -> Request:
        script = sequence.script
        token_ids = script.token_ids[: sequence.num_delivered]
        return Request(
            prompt_id=flight.prompt.id,
            phase=flight.phase,
            stream=flight.stream,
            scheduled_ns=_ns(flight.scheduled_s),
            sent_ns=_ns(flight.sent_s),
            done_ns=_ns(at_s),
            chunk_ns=tuple(flight.chunk_ns),
            chunk_tokens=tuple(flight.chunk_tokens),
            token_ids=tuple(token_ids),
            text=self.world.writer.tokenizer.decode(token_ids),
            prompt_tokens=sequence.ask.prompt_tokens,
            cached_tokens=sequence.cached_tokens,
            finish_reason=None if error else script.finish_reason,
            error=error,
            server=None if error else server_times(sequence),
            speculation=None if error else self._speculation(sequence),
        )

    def _speculation(self, sequence: EngineRequest) -> SpeculationRecord | None:
        if self.world.writer.speculation is None:
            return None
        drafted, accepted = self.world.verification(sequence)
        return SpeculationRecord(
            num_steps=len(drafted),
            num_drafted=sum(drafted),
            num_accepted=sum(accepted),
            accepted_per_step=tuple(accepted),
            drafted_per_step=tuple(drafted),
        )

    def _pass_time(self, seconds: float) -> None:
        """Let an idle client wait; other people's traffic goes on meanwhile."""
        self._now_s += seconds
        while self.world.next_event_at() < self._now_s:
            self.world.advance()


def run_study(machine: Machine, launches: Iterable[Launch], suite: Mapping[str, Prompt]) -> Iterator[CellRecord]:
    """Every cell of every launch, in order, each launch a fresh engine."""
    for launch in launches:
        engine = VirtualEngine(machine, launch.speculative_config, launch_index=launch.index)
        for cell in launch.cells:
            yield engine.measure(cell, suite)


def prompt_text(prompt: Prompt, *, chat: bool) -> str:
    """The words that reach the engine, the same whichever clock it runs on."""
    return (
        "\n".join(str(message["content"]) for message in prompt.messages) if chat and prompt.messages else prompt.text
    )


def server_times(sequence: EngineRequest) -> ServerTimes:
    """What vLLM's per-request metrics say of a finished request."""
    scheduled_s, first_s, last_s = sequence.scheduled_s, sequence.first_token_s, sequence.last_token_s
    if scheduled_s is None or first_s is None or last_s is None:
        return ServerTimes()
    return ServerTimes(
        queue_s=scheduled_s - sequence.queued_s,
        time_to_first_token_s=first_s - scheduled_s,
        generation_s=last_s - first_s,
    )


def _ns(at_s: float) -> int:
    return _CLOCK_STARTS_NS + round(at_s * 1e9)
