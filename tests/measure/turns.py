"""Lateness, told apart from a machine that stood still: it is counted in turns of the loop that is late."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

A_FEW = 50  # on an idle machine some 50 ms; nothing that a test plants is as short, nothing that is right takes as long


class Turns:
    """When an event loop turned, once a millisecond. A loop that gets no processor does not turn either."""

    def __init__(self) -> None:
        self._at_ns: list[int] = []

    @asynccontextmanager
    async def noted(self) -> AsyncIterator[None]:
        """Note them while the block lasts, in the loop that runs it."""
        noting = asyncio.create_task(self._note())
        try:
            yield
        finally:
            noting.cancel()
            await asyncio.gather(noting, return_exceptions=True)

    async def _note(self) -> None:
        while True:
            self._at_ns.append(time.perf_counter_ns())
            await asyncio.sleep(0.001)

    def between(self, earlier_ns: float, later_ns: float) -> int:
        """How many there were after the earlier instant and until the later one."""
        return bisect_right(self._at_ns, later_ns) - bisect_right(self._at_ns, earlier_ns)
