"""The machine on a virtual clock: whole cells measured in milliseconds, with no socket and no waiting.

What comes out is what the measuring wing writes of a real server, `records.CellRecord`, so analysis cannot tell the
difference and its claims can be held against a machine whose truth is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

from specprof.engine.sim.arrivals import Closed, Flight, Mixed, Open, Source
from specprof.engine.sim.machine import Machine, Speculation
from specprof.engine.sim.newcomer import Interfered
from specprof.engine.sim.physics import World
from specprof.engine.sim.presets import launched_with
from specprof.engine.sim.state import EngineRequest
from specprof.engine.sim.text import classify, likelihoods
from specprof.engine.sim.writer import Ask
from specprof.errors import EngineDied
from specprof.records import (
    TIMED_OUT,
    CachePolicy,
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
)
from specprof.records import Speculation as SpeculationRecord

_CLOCK_STARTS_NS = 1_000_000_000_000  # no monotonic clock starts at zero; a reader that assumes so should fail here too
_GAUGE_PERIOD_S = 0.5
_BETWEEN_CELLS_S = 0.1
_STARTED_AT = "2000-01-01T00:00:00Z"  # a virtual cell has no wall-clock date; people must see that at once
_NEVER_SENT = f"{TIMED_OUT} in the client: no slot became free"


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
        self.timeout_s = timeout_s  # of a closed loop's requests; those of an open one have their own
        self.world = World(machine, Speculation.from_config(speculative_config), launch_index)
        self._now_s = 0.0

    def measure(self, cell: Cell, suite: Mapping[str, Prompt]) -> CellRecord:
        """Drive one cell: reset, warm-ups, then its prompts in order; in an open loop where the cell has arrivals.

        Raises EngineDied, as the real loop does, if the machine was told to die.
        """
        if cell.cache is CachePolicy.CONTROLLED:
            self.world.reset_prefix_cache()
        prompts = [suite[prompt_id] for prompt_id in cell.prompt_ids]
        requests = self._drive(cell, self._closed(cell, prompts[: cell.num_warmup], Phase.WARMUP), [])
        source = self._source(cell, prompts)
        gauges: list[Counters] = []
        before = self.counters()
        requests += self._drive(cell, source, gauges)
        if isinstance(source, Open):
            requests += [self._never_sent(flight) for flight in source.lapsed]
        after = self.counters()
        self._pass_time(_BETWEEN_CELLS_S)
        return CellRecord(
            cell=cell,
            launch=self.launch_index,
            requests=tuple(requests),
            before=before,
            after=after,
            gauges=tuple(gauges),
            client=self._client(cell),
            started_at=_STARTED_AT,
        )

    def _source(self, cell: Cell, prompts: Sequence[Prompt]) -> Source:
        late_s = self.machine.faults.client_late_s
        if cell.arrivals is not None:
            return Open(cell, cell.arrivals, prompts, self._now_s, late_s)
        if cell.prompt_tags:
            return Mixed(cell, prompts, self._now_s, late_s, self.timeout_s)
        if cell.interference is not None:
            return Interfered(
                cell,
                cell.interference,
                prompts,
                start_s=self._now_s,
                late_s=late_s,
                patience_s=self.timeout_s,
                clock_starts_ns=_CLOCK_STARTS_NS,
            )
        return self._closed(cell, prompts, Phase.MEASURED)

    def _closed(self, cell: Cell, prompts: Sequence[Prompt], phase: Phase) -> Closed:
        return Closed(cell, prompts, phase, self._now_s, self.machine.faults.client_late_s, self.timeout_s)

    def _client(self, cell: Cell) -> ClientLoad:
        """What the virtual client says of itself: as late with what was due as its fault makes it."""
        faults = self.machine.faults
        late_s = faults.client_late_s if cell.arrivals is not None else None
        return ClientLoad(faults.client_cpu_share, faults.client_loop_lag_p99_s, late_s, late_s)

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

    def _drive(self, cell: Cell, source: Source, gauges: list[Counters]) -> list[Request]:
        """Run until every request is home; `gauges` receives a reading every half second."""
        world, latency_s = self.world, self.machine.latency_s
        flights: dict[int, Flight] = {}
        requests: list[Request] = []
        gauge_at = self._now_s + _GAUGE_PERIOD_S
        while True:
            arrives_at = source.next_at() + latency_s
            happens_at = world.next_event_at()
            gives_up_at = next(iter(flights.values())).gives_up_s if flights else inf
            at = min(arrives_at, happens_at, gives_up_at)
            if arrives_at == inf and not flights:
                return requests
            while gauge_at <= at:
                gauges.append(self.counters(gauge_at))
                gauge_at += _GAUGE_PERIOD_S
            if at == gives_up_at:
                number = next(iter(flights))
                self._land(flights.pop(number), world.sequences[number], at, source, requests, TIMED_OUT)
                world.cancel(number)
            elif arrives_at <= happens_at:
                flight = source.take()
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
                        self._land(flight, world.sequences[number], at + latency_s, source, requests)
                        world.forget(number)

    def _land(
        self,
        flight: Flight,
        sequence: EngineRequest,
        at_s: float,
        source: Source,
        requests: list[Request],
        error: str | None = None,
    ) -> None:
        """A request has come home: write its record, free its stream."""
        self._now_s = at_s
        source.done(flight, at_s)
        requests.append(self._record(flight, sequence, at_s, error))

    def _ask(self, cell: Cell, flight: Flight) -> Ask:
        """The request a client would send for this prompt in this cell."""
        text, tag = self._prompt(cell, flight.prompt)
        forced = cell.stop is Stop.FORCED
        return Ask(
            prompt=text,
            tag=tag,
            prompt_tokens=self.world.writer.tokenizer.count(text, tag),
            max_tokens=flight.max_tokens,
            min_tokens=flight.max_tokens if forced and cell.mask_eos else 0,
            ignore_eos=forced,
            temperature=cell.sampling.temperature,
            seed=cell.sampling.seed,
        )

    def _prompt(self, cell: Cell, prompt: Prompt) -> tuple[str, str]:
        """The words that are sent, and the content the machine takes them for."""
        text = prompt_text(prompt, chat=cell.chat)
        return text, self.machine.content_of(prompt.tag if prompt.tag in self.machine.contents else classify(text))

    def _record(self, flight: Flight, sequence: EngineRequest, at_s: float, error: str | None) -> Request:
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

    def _never_sent(self, flight: Flight) -> Request:
        """What is known of a request whose time ran out in the client."""
        at_ns = _ns(flight.gives_up_s)
        return Request(
            prompt_id=flight.prompt.id,
            phase=flight.phase,
            stream=flight.stream,
            scheduled_ns=_ns(flight.scheduled_s),
            sent_ns=at_ns,
            done_ns=at_ns,
            chunk_ns=(),
            chunk_tokens=(),
            token_ids=(),
            text="",
            prompt_tokens=0,
            cached_tokens=None,
            finish_reason=None,
            error=_NEVER_SENT,
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
        own = launched_with(machine, launch.engine_args)
        engine = VirtualEngine(own, launch.speculative_config, launch_index=launch.index)
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
