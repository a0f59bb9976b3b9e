"""When requests leave the virtual client: closed loops, mixed ones, and open ones that go by the clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import cycle
from math import inf
from typing import Protocol

from specprof.records import Arrivals, Cell, Phase, Prompt, lanes, phase_due


@dataclass(slots=True)
class Flight:
    """One request on its way, as the client sees it."""

    prompt: Prompt
    phase: Phase
    stream: int
    scheduled_s: float
    sent_s: float
    max_tokens: int
    gives_up_s: float  # when the client loses patience
    chunk_ns: list[int] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)


class Source(Protocol):
    """When requests leave the client. Those it sends give up in the order in which they were sent."""

    def next_at(self) -> float:
        """When the next request leaves, as far as is known now; infinity when none will."""

    def take(self) -> Flight:
        """The request that leaves at `next_at()`."""

    def done(self, flight: Flight, at_s: float) -> None:
        """A request has come home."""


class Closed:
    """`concurrency` streams; each takes the next prompt when it is done with its last, and sends it `late_s` later."""

    def __init__(
        self, cell: Cell, prompts: Sequence[Prompt], phase: Phase, start_s: float, late_s: float, patience_s: float
    ) -> None:
        self._pending = deque(prompts)
        self._phase = phase
        self._max_tokens = min(cell.warmup_tokens, cell.max_tokens) if phase is Phase.WARMUP else cell.max_tokens
        self._idle = [(start_s, stream) for stream in range(cell.concurrency)]
        self._late_s, self._patience_s = late_s, patience_s

    def next_at(self) -> float:
        """When the stream that has been idle longest sends; infinity while all write, or no prompt is left."""
        return self._idle[0][0] + self._late_s if self._pending and self._idle else inf

    def take(self) -> Flight:
        """The next prompt, on that stream."""
        due_s, stream = heappop(self._idle)
        sent_s = due_s + self._late_s
        prompt = self._pending.popleft()
        return Flight(prompt, self._phase, stream, due_s, sent_s, self._max_tokens, sent_s + self._patience_s)

    def done(self, flight: Flight, at_s: float) -> None:
        """Its stream is idle from here on."""
        heappush(self._idle, (at_s, flight.stream))


class Mixed:
    """Streams bound to one content each. A content that has run out sends its prompts again, to fill the batch, until
    every content's own are home.
    """

    def __init__(self, cell: Cell, prompts: Sequence[Prompt], start_s: float, late_s: float, patience_s: float) -> None:
        by_id = {prompt.id: prompt for prompt in prompts}
        contents = [[by_id[name] for name in lane] for lane in lanes(cell)]
        self._pending = [deque(content) for content in contents]
        self._filling = [cycle(content) for content in contents]
        self._num_open = sum(map(len, contents))
        self._max_tokens = cell.max_tokens
        self._idle = [(start_s, stream) for stream in range(cell.concurrency)]
        self._late_s, self._patience_s = late_s, patience_s

    def next_at(self) -> float:
        """When the stream that has been idle longest sends; infinity once every content's own prompts are home."""
        return self._idle[0][0] + self._late_s if self._num_open and self._idle else inf

    def take(self) -> Flight:
        """The next prompt of that stream's content, or one of its earlier ones to fill the batch."""
        due_s, stream = heappop(self._idle)
        content = stream % len(self._pending)
        pending, sent_s = self._pending[content], due_s + self._late_s
        phase = Phase.MEASURED if pending else Phase.FILL
        prompt = pending.popleft() if pending else next(self._filling[content])
        return Flight(prompt, phase, stream, due_s, sent_s, self._max_tokens, sent_s + self._patience_s)

    def done(self, flight: Flight, at_s: float) -> None:
        """Its stream is idle from here on."""
        self._num_open -= flight.phase is Phase.MEASURED
        heappush(self._idle, (at_s, flight.stream))


class Open:
    """Requests leave when they are due, or as soon after as the client's cap lets them.

    `lapsed` holds those whose time ran out while the cap held them back: they were never sent.
    """

    def __init__(
        self, cell: Cell, arrivals: Arrivals, prompts: Sequence[Prompt], start_s: float, late_s: float
    ) -> None:
        lengths = arrivals.output_tokens or (cell.max_tokens,) * len(prompts)
        rows = enumerate(zip(arrivals.due_s, prompts, lengths, strict=True))
        self._due = deque(
            Flight(
                prompt=prompt,
                phase=phase_due(arrivals, due_s),
                stream=index,
                scheduled_s=start_s + due_s,
                sent_s=inf,
                max_tokens=length,
                gives_up_s=start_s + due_s + arrivals.timeout_s,
            )
            for index, (due_s, prompt, length) in rows
        )
        self._num_open = sum(flight.phase is Phase.MEASURED for flight in self._due)
        self._cap = arrivals.max_concurrency or len(self._due)
        self._num_out = 0
        self._slot_free_at = start_s
        self._late_s = late_s
        self.lapsed: list[Flight] = []

    def next_at(self) -> float:
        """When the next is due and a slot is free; infinity at the cap, or once nothing measured is out."""
        if not self._due or self._num_out == self._cap:
            return inf
        if self._due[0].phase is Phase.FILL and not self._num_open:
            return inf
        return max(self._due[0].scheduled_s, self._slot_free_at) + self._late_s

    def take(self) -> Flight:
        """The request that is due, on its way."""
        sent_s = self.next_at()
        flight = self._due.popleft()
        flight.sent_s = sent_s
        self._num_out += 1
        return flight

    def done(self, flight: Flight, at_s: float) -> None:
        """Its slot is free from here on."""
        self._num_open -= flight.phase is Phase.MEASURED
        if self._num_out == self._cap:
            self._slot_free_at = at_s
            self._drop_lapsed(at_s)
        self._num_out -= 1

    def _drop_lapsed(self, at_s: float) -> None:
        while self._due and self._due[0].gives_up_s <= at_s:
            flight = self._due.popleft()
            flight.sent_s = flight.gives_up_s
            self._num_open -= flight.phase is Phase.MEASURED
            self.lapsed.append(flight)
