"""The other clients of a cell, as one of them sees them: when do all begin, and are theirs still going on?"""

from __future__ import annotations

import asyncio


class Others:
    """Asked by a client whose own measured requests have ended, which until then only keeps the load up.

    `start_ns`: when all begin, by this process's clock. `was_asked` tells whoever looks from outside that this client
    has come so far.
    """

    def __init__(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self.was_asked = False
        self._ended = asyncio.Event()

    def end(self) -> None:
        """They have all ended."""
        self._ended.set()

    def have_ended(self) -> bool:
        """Whether they have all ended."""
        self.was_asked = True
        return self._ended.is_set()

    async def wait(self) -> None:
        """Until they have all ended."""
        self.was_asked = True
        await self._ended.wait()
