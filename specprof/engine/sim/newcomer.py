"""Steady decoders and one long prompt that arrives among them, as the virtual client sends them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

from specprof.engine.sim.arrivals import Flight
from specprof.records import Cell, Interference, Phase, Prompt


class Interfered:
    """All decoders at once; the newcomer once each was heard from `after_tokens` times, or has come home before.

    A `Source`. `prompts` are the cell's, the newcomer first; chunks are dated in nanoseconds from `clock_starts_ns`.
    """

    def __init__(
        self,
        cell: Cell,
        interference: Interference,
        prompts: Sequence[Prompt],
        *,
        start_s: float,
        late_s: float,
        patience_s: float,
        clock_starts_ns: int,
    ) -> None:
        newcomer, *decoders = prompts
        self._pending = deque(decoders)
        self._newcomer: Prompt | None = newcomer
        self._sent: list[Flight] = []
        self._home_at: dict[int, float] = {}
        self._cell, self._interference = cell, interference
        self._start_s, self._late_s, self._patience_s = start_s, late_s, patience_s
        self._clock_starts_ns = clock_starts_ns

    def next_at(self) -> float:
        """Decoders leave at the start, the newcomer once the slowest of them was heard from often enough."""
        if self._pending:
            return self._start_s + self._late_s
        if self._newcomer is None:
            return inf
        return max(map(self._heard_at, self._sent)) + self._late_s

    def take(self) -> Flight:
        """The next decoder, or last of all the newcomer."""
        sent_s = self.next_at()
        if self._pending:
            prompt, max_tokens = self._pending.popleft(), self._cell.max_tokens
        else:
            assert self._newcomer is not None  # noqa: S101 - `next_at` was infinite without it
            prompt, max_tokens = self._newcomer, self._interference.newcomer_tokens
            self._newcomer = None
        flight = Flight(
            prompt=prompt,
            phase=Phase.MEASURED,
            stream=len(self._sent),
            scheduled_s=sent_s - self._late_s,
            sent_s=sent_s,
            max_tokens=max_tokens,
            gives_up_s=sent_s + self._patience_s,
        )
        self._sent.append(flight)
        return flight

    def done(self, flight: Flight, at_s: float) -> None:
        """It has come home, and is waited for no longer."""
        self._home_at[flight.stream] = at_s

    def _heard_at(self, flight: Flight) -> float:
        """When the client had heard from a decoder often enough; infinity while it has not."""
        wanted = self._interference.after_tokens
        if len(flight.chunk_ns) < wanted:
            return self._home_at.get(flight.stream, inf)
        return (flight.chunk_ns[wanted - 1] - self._clock_starts_ns) / 1e9
