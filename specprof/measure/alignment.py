"""Two clocks that share no beginning: how much more one reads than the other, and how well that is known.

F. Cristian, Probabilistic clock synchronization (1989): a clock that is read between our asking and our hearing read
what it told at some instant between the two. Nothing is assumed of how the round trip is shared by its two ways.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

ROUNDS = 24  # the shortest of so many round trips bounds the offset best; on one machine it is a fraction of a ms

_clock = time.perf_counter_ns


@dataclass(frozen=True, slots=True)
class Offset:
    """The other clock reads `offset_ns` more than ours, which is wrong by `error_ns` at most."""

    offset_ns: int
    error_ns: int

    def there(self, ours_ns: int) -> int:
        """An instant of our clock, by the other."""
        return ours_ns + self.offset_ns

    def here(self, theirs_ns: int) -> int:
        """An instant of the other clock, by ours."""
        return theirs_ns - self.offset_ns


async def measured_offset(
    ask: Callable[[], Awaitable[int]], rounds: int = ROUNDS, clock: Callable[[], int] = _clock
) -> Offset:
    """Ask the other clock several times, nanoseconds; the shortest round trip counts."""
    best: Offset | None = None
    for _ in range(rounds):
        asked_ns = clock()
        theirs_ns = await ask()
        heard_ns = clock()
        if best is None or (heard_ns - asked_ns) < 2 * best.error_ns:
            best = _between(theirs_ns - heard_ns, theirs_ns - asked_ns)
    assert best is not None  # noqa: S101 - there is at least one round
    return best


def throughout(before: Offset, after: Offset) -> Offset:
    """What held from one measurement to the next, between which clocks of two machines drift apart."""
    return _between(
        min(before.offset_ns - before.error_ns, after.offset_ns - after.error_ns),
        max(before.offset_ns + before.error_ns, after.offset_ns + after.error_ns),
    )


def _between(low_ns: int, high_ns: int) -> Offset:
    """The middle of where it lies, and half the width, rounded up: both ends are inside."""
    return Offset((low_ns + high_ns) // 2, (high_ns - low_ns + 2) // 2)
