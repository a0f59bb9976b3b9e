"""The discrete-event model: who runs when, and for how long. Pure and seeded; no clock, no socket, no task of its own.

A driver owns the clock and asks two questions. `submit` puts a request in at an instant; `next_event_at` says when
something happens next; `advance` makes it happen and returns what clients receive at that instant. The virtual clock
jumps from event to event, the server sleeps until each: both see the same machine.

One *pass* is one engine step: some sequences (and some prompt text) travelling together through the pipeline stages.
Up to `min(running, stages)` passes are under way at once, each stage serving one pass at a time, first come first
served.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np

from specprof.engine.sim.chance import key
from specprof.engine.sim.machine import Machine, Speculation
from specprof.engine.sim.pace import Pace
from specprof.engine.sim.pass_time import decoding_s, reading_s
from specprof.engine.sim.state import Delta, EngineRequest, Totals
from specprof.engine.sim.text import block_hashes
from specprof.engine.sim.writer import Ask, Writer


class _Chunk(NamedTuple):
    """Prompt text of one sequence that one pass reads; `is_last` ends the prompt."""

    sequence: EngineRequest
    num_tokens: int
    is_last: bool


class _Pass(NamedTuple):
    """One engine step under way. Ordered by its end."""

    ends_at: float
    number: int
    decoding: list[EngineRequest]
    reading: list[_Chunk]


class World:
    """One launch of a machine on one arm."""

    def __init__(self, machine: Machine, speculation: Speculation | None, launch_index: int = 0) -> None:
        self.machine = machine
        self.writer = Writer(machine, speculation)
        self.now_s = 0.0
        self.dead = False
        num_drafts = speculation.num_tokens if speculation else 0
        self.totals = Totals(accepted_histogram=[0] * (num_drafts + 1))
        self.sequences: dict[int, EngineRequest] = {}
        self._waiting: deque[EngineRequest] = deque()
        self._reading: deque[EngineRequest] = deque()  # admitted, some of the prompt not yet in any pass
        self._ready: deque[EngineRequest] = deque()  # decoding, in no pass right now
        self._passes: list[_Pass] = []
        self._num_running = 0
        self._num_submitted = 0
        self._wake_at = inf
        self._stage_free_at = [0.0] * machine.hardware.num_stages
        self._cache: set[int] = set()
        self._pace = Pace(machine, launch_index)
        self._rng = np.random.default_rng(key(machine.seed, "world", launch_index))
        self._foreign_at = self._next_foreign_at(0.0)

    # -- what a driver may ask and do ----------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        """Requests admitted and not finished."""
        return self._num_running

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def kv_cache_usage(self) -> float:
        """Share of the KV cache that admitted requests hold."""
        held = sum(s.context_tokens for s in self.sequences.values() if s.scheduled_s is not None)
        return min(1.0, held / self.machine.scheduler.kv_capacity_tokens)

    def submit(self, ask: Ask, at_s: float, *, foreign: bool = False) -> int:
        """Queue a request at an instant not yet past; returns its number. Nothing runs before the next `advance`."""
        if at_s > self.next_event_at():
            raise ValueError(f"submit at {at_s} would overtake the event at {self.next_event_at()}: advance first")
        self.now_s = max(self.now_s, at_s)
        content = self.machine.contents[ask.tag]
        scheduler = self.machine.scheduler
        blocks: tuple[int, ...] = ()
        if scheduler.prefix_caching:
            blocks = block_hashes(ask.prompt, round(scheduler.cache_block_tokens * content.chars_per_token))
        sequence = EngineRequest(
            number=self._num_submitted,
            ask=ask,
            script=self.writer.script(ask),
            content_factor=content.step_time_factor,
            queued_s=self.now_s,
            foreign=foreign,
            blocks=blocks,
            unread_tokens=ask.prompt_tokens,
        )
        self._num_submitted += 1
        self.sequences[sequence.number] = sequence
        self._waiting.append(sequence)
        self._wake_at = min(self._wake_at, self.now_s + scheduler.gather_s)
        return sequence.number

    def next_event_at(self) -> float:
        """When something happens next, seconds since the launch; infinity when nothing will."""
        if self.dead:
            return inf
        soonest = self._passes[0].ends_at if self._passes else inf
        death = self.machine.faults.death_at_s
        return min(soonest, self._wake_at, self._foreign_at, inf if death is None else death)

    def advance(self) -> list[Delta]:
        """Make the next event happen; returns what clients receive at that instant (`now_s`)."""
        at = self.next_event_at()
        if at == inf:
            return []
        self.now_s = at
        if self.machine.faults.death_at_s is not None and at >= self.machine.faults.death_at_s:
            self.dead = True
            return []
        if at == self._foreign_at:
            self._submit_foreign(at)
        if at == self._wake_at:
            self._wake_at = inf
        deltas: list[Delta] = []
        while self._passes and self._passes[0].ends_at <= at:
            self._finish_pass(heappop(self._passes), deltas)
        self._start_passes()
        return deltas

    def verification(self, sequence: EngineRequest) -> tuple[list[int], list[int]]:
        """Drafted and accepted tokens of each step of a sequence that carried a draft, phantom steps first."""
        script = sequence.script
        num_phantoms = self.machine.faults.phantom_drafts if self.writer.num_draft_tokens else 0
        drafted = [self.writer.num_draft_tokens] * num_phantoms
        accepted = [0] * num_phantoms
        for step in range(sequence.next_step):
            if script.step_drafted[step]:
                drafted.append(script.step_drafted[step])
                accepted.append(script.step_accepted[step])
        return drafted, accepted

    def forget(self, number: int) -> None:
        """Drop a finished request's bookkeeping once the driver has read it."""
        self.sequences.pop(number, None)

    def cancel(self, number: int) -> None:
        """The client hung up: the request leaves the engine at its next scheduling."""
        sequence = self.sequences.pop(number, None)
        if sequence is None or sequence.finished:
            return
        self.totals.finished["abort"] += 1
        if sequence in self._waiting:
            self._waiting.remove(sequence)
            return
        self._num_running -= 1
        for queue in (self._reading, self._ready):
            if sequence in queue:
                queue.remove(sequence)

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prompt; refused, as vLLM does, while requests hold blocks."""
        if self._num_running:
            return False
        self._cache.clear()
        return True

    # -- scheduling ----------------------------------------------------------------------------------------------

    def _start_passes(self) -> None:
        """Fill the pipeline: up to min(running, stages) passes, each with its share of what is ready."""
        num_stages = self.machine.hardware.num_stages
        while len(self._passes) < num_stages:
            reading = self._take_prompts()
            num_batches = max(1, min(self._num_running, num_stages))
            num_open = max(1, num_batches - len(self._passes))
            # No pass takes more than its even share, or a crowded one would stay crowded for good.
            num_taken = min(_ceil_div(len(self._ready), num_open), _ceil_div(self._num_running, num_batches))
            decoding = [self._ready.popleft() for _ in range(num_taken)]
            if not decoding and not reading:
                return
            self._start(decoding, reading)

    def _take_prompts(self) -> list[_Chunk]:
        """Prompt text for the next pass: prompts begun before others, then the queue, as far as cap and budget go."""
        prefill = self.machine.prefill
        budget = prefill.budget_tokens
        taken: list[_Chunk] = []
        while budget > 0:
            if self._reading:
                source = self._reading
            elif self._waiting and self._num_running < self.machine.scheduler.max_num_seqs:
                source = self._waiting
            else:
                break
            sequence = source[0]
            num_tokens = sequence.unread_tokens
            if source is self._waiting:
                num_tokens -= self._num_cached(sequence)
            if num_tokens > budget:
                if not prefill.chunked and taken:
                    break
                num_tokens = budget if prefill.chunked else num_tokens
            source.popleft()
            if source is self._waiting:
                self._admit(sequence)
            sequence.unread_tokens -= num_tokens
            budget -= num_tokens
            taken.append(_Chunk(sequence, num_tokens, is_last=sequence.unread_tokens == 0))
            if sequence.unread_tokens:
                self._reading.appendleft(sequence)  # its next chunk may follow while this one is under way
        return taken

    def _admit(self, sequence: EngineRequest) -> None:
        self._num_running += 1
        num_cached = self._num_cached(sequence)
        sequence.context_tokens = sequence.unread_tokens
        sequence.unread_tokens -= num_cached
        if sequence.scheduled_s is not None:
            return  # back after a preemption: its queue time was told the first time
        sequence.scheduled_s = self.now_s
        sequence.cached_tokens = num_cached
        self.totals.queue_s += self.now_s - sequence.queued_s
        if self.machine.scheduler.prefix_caching:
            self.totals.prefix_cache_queries += sequence.ask.prompt_tokens
            self._cache.update(sequence.blocks)

    def _num_cached(self, sequence: EngineRequest) -> int:
        """Leading prompt tokens in the prefix cache; at least one token is always computed."""
        if sequence.scheduled_s is not None:
            return 0  # read again after a preemption: its own blocks are gone
        num_blocks = 0
        for block in sequence.blocks:
            if block not in self._cache:
                break
            num_blocks += 1
        return min(num_blocks * self.machine.scheduler.cache_block_tokens, sequence.unread_tokens - 1)

    # -- one pass ------------------------------------------------------------------------------------------------

    def _start(self, decoding: list[EngineRequest], reading: list[_Chunk]) -> None:
        """Send a pass into the pipeline and work out when it comes out."""
        hardware, free_at = self.machine.hardware, self._stage_free_at
        pace = self._pace.factor(self.now_s)
        at = self._pace.starts_at(self.now_s)
        if reading:
            num_tokens = sum(chunk.num_tokens for chunk in reading)
            at = max(at, *free_at) + reading_s(self.machine.prefill, len(reading), num_tokens) * pace
            free_at[:] = [at] * len(free_at)
        model_s, draft_s = decoding_s(hardware, self.writer, decoding)
        last = hardware.num_stages - 1
        if decoding:
            for stage, share in enumerate(hardware.stage_shares):
                work_s = share * model_s + (draft_s if stage == last else 0.0)
                at = max(at, free_at[stage]) + work_s * pace
                free_at[stage] = at
                if last:
                    at += hardware.handover_s
        self.totals.num_engine_steps += 1
        heappush(self._passes, _Pass(at, self.totals.num_engine_steps, decoding, reading))

    def _finish_pass(self, finished: _Pass, deltas: list[Delta]) -> None:
        """Hand out what a pass computed and put its sequences where they go next."""
        for sequence in finished.decoding:
            if sequence.number in self.sequences:  # else cancelled meanwhile
                self._finish_step(sequence, deltas)
        for sequence, num_tokens, is_last in finished.reading:
            self.totals.num_step_tokens += num_tokens
            if sequence.number not in self.sequences or not is_last:
                continue
            if sequence.next_step < 0:
                self._finish_prompt(sequence, deltas)
            else:
                self._ready.append(sequence)  # it was preempted and has been read again
        preemption_share = self.machine.faults.preemption_share
        if preemption_share and len(finished.decoding) > 1 and self._rng.random() < preemption_share:
            self._preempt()

    def _finish_prompt(self, sequence: EngineRequest, deltas: list[Delta]) -> None:
        """The prompt is read: its pass also wrote the first token."""
        totals = self.totals
        totals.num_prompts_read += 1
        totals.prompt_tokens += sequence.ask.prompt_tokens
        totals.prompt_tokens_cached += sequence.cached_tokens
        sequence.first_token_s = self.now_s
        sequence.next_step = 0
        if self.writer.num_draft_tokens:
            for _ in range(self.machine.faults.phantom_drafts):
                self._count_drafts(self.writer.num_draft_tokens, 0)
        totals.time_to_first_token_s += self.now_s - sequence.queued_s
        self._deliver(sequence, 1, deltas)

    def _finish_step(self, sequence: EngineRequest, deltas: list[Delta]) -> None:
        script, step = sequence.script, sequence.next_step
        if script.stalls_after_step == step:
            return  # it keeps its place and is never scheduled again
        drafted = script.step_drafted[step]
        if drafted:
            self._count_drafts(drafted, script.step_accepted[step])
        sequence.next_step = step + 1
        self._deliver(sequence, script.step_tokens[step], deltas)

    def _count_drafts(self, num_drafted: int, num_accepted: int) -> None:
        self.totals.num_drafts += 1
        self.totals.num_draft_tokens += num_drafted
        self.totals.accepted_histogram[num_accepted] += 1

    def _deliver(self, sequence: EngineRequest, num_tokens: int, deltas: list[Delta]) -> None:
        """Count tokens, send them on (or hold them back to merge with the next), and let the sequence go on or go."""
        self.totals.generation_tokens += num_tokens
        self.totals.num_step_tokens += num_tokens
        sequence.context_tokens += num_tokens
        sequence.num_held += num_tokens
        sequence.last_token_s = self.now_s
        finished = sequence.finished
        merged_share = self.machine.faults.merged_chunk_share
        if finished or not merged_share or self._rng.random() >= merged_share:
            sequence.num_delivered += sequence.num_held
            if not sequence.foreign:
                deltas.append(Delta(sequence.number, sequence.num_held, finished))
            sequence.num_held = 0
        if not finished:
            self._ready.append(sequence)
            return
        self._num_running -= 1
        self.totals.finished[sequence.script.finish_reason] += 1
        self.totals.decode_s += self.now_s - (sequence.first_token_s or self.now_s)
        if sequence.foreign:
            self.forget(sequence.number)

    # -- planted trouble -----------------------------------------------------------------------------------------

    def _preempt(self) -> None:
        """The sequence that was ready last loses its cache and goes back to the head of the queue."""
        if not self._ready:
            return
        victim = self._ready.pop()
        victim.unread_tokens = victim.context_tokens
        self._num_running -= 1
        self.totals.num_preemptions += 1
        self._waiting.appendleft(victim)

    def _next_foreign_at(self, after_s: float) -> float:
        foreign = self.machine.faults.foreign
        return inf if foreign is None else after_s + float(self._rng.exponential(1.0 / foreign.rate_per_s))

    def _submit_foreign(self, at_s: float) -> None:
        foreign = self.machine.faults.foreign
        if foreign is not None:
            ask = Ask(
                prompt=f"foreign {self._num_submitted}",
                tag=self.machine.content_of(foreign.content),
                prompt_tokens=foreign.prompt_tokens,
                max_tokens=foreign.output_tokens,
                ignore_eos=True,
            )
            self.submit(ask, at_s, foreign=True)
            self._foreign_at = self._next_foreign_at(at_s)


def _ceil_div(count: int, parts: int) -> int:
    return -(-count // parts)
