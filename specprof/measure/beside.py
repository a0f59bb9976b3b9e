"""What goes on beside a measurement, and ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def beside(*watches: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run the watches while the block lasts, however it ends. One that fails costs what it would have seen, no more."""
    running = [asyncio.create_task(watch) for watch in watches]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
