"""What goes on beside a measurement ends with it, and takes nothing down with it."""

from __future__ import annotations

import asyncio

import pytest

from specprof.measure.beside import beside


class Watch:
    """Looks at something again and again."""

    def __init__(self) -> None:
        self.num_looks = 0

    async def run(self) -> None:
        while True:
            self.num_looks += 1
            await asyncio.sleep(0.001)


async def broken() -> None:
    raise OSError("planted")


def test_a_watch_ends_with_what_it_is_beside_however_that_ends() -> None:
    watch = Watch()

    async def fails() -> None:
        async with beside(watch.run()):
            await asyncio.sleep(0.02)
            raise RuntimeError("planted")

    async def measure() -> None:
        with pytest.raises(RuntimeError, match="planted"):
            await fails()
        seen = watch.num_looks
        assert seen > 1
        await asyncio.sleep(0.02)
        assert watch.num_looks == seen

    asyncio.run(measure())


def test_a_watch_that_fails_costs_neither_the_measurement_nor_the_other_watches() -> None:
    watch = Watch()

    async def measure() -> int:
        async with beside(broken(), watch.run()):
            await asyncio.sleep(0.02)
        return watch.num_looks

    assert asyncio.run(measure()) > 1
