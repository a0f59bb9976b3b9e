"""A signal ends a client's work between two turns of its loop: never inside a callback, where the loop would take what
it raises for a fault of the connection and go on.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator

import pytest

from specprof.measure.load import run

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NUMBERS = pytest.mark.parametrize("number", ALL)


@pytest.fixture(autouse=True)
def _as_in_the_command() -> Iterator[None]:
    before = {number: signal.signal(number, signal.default_int_handler) for number in ALL}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Interrupted(asyncio.Protocol):
    """A reader that is interrupted while it is given what arrived."""

    def __init__(self, number: int, times: int) -> None:
        self._number, self._times = number, times
        self.lost: list[Exception | None] = []

    def data_received(self, data: bytes) -> None:
        for _ in range(self._times):
            signal.raise_signal(self._number)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


@NUMBERS
@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_in_the_middle_of_a_read_ends_the_work_and_not_the_connection(number: int, times: int) -> None:
    ours, theirs = socket.socketpair()
    reader = Interrupted(number, times)
    tidied: list[bool] = []

    async def work() -> None:
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: reader, sock=ours)
        theirs.send(b"what arrives")
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 20)
        except asyncio.CancelledError:
            tidied.append(not reader.lost)
            raise
        finally:
            transport.close()

    with theirs, pytest.raises(KeyboardInterrupt):
        run(work())
    assert tidied == [True]


@NUMBERS
def test_a_signal_at_the_very_end_of_the_work_is_not_lost(number: int) -> None:
    async def work() -> str:
        signal.raise_signal(number)
        return "done"

    with pytest.raises(KeyboardInterrupt):
        run(work())


@NUMBERS
def test_whoever_handles_a_signal_himself_is_told_at_once_and_the_work_goes_on(number: int) -> None:
    came: list[int] = []
    signal.signal(number, lambda told, _frame: came.append(told))

    async def work() -> list[int]:
        signal.raise_signal(number)
        await asyncio.sleep(0)
        return list(came)

    assert run(work()) == [number]


@NUMBERS
def test_the_third_signal_waits_for_nothing_that_is_being_tidied_up(number: int) -> None:
    went_on: list[bool] = []

    async def work() -> None:
        try:
            signal.raise_signal(number)
            await asyncio.sleep(20)
        finally:
            signal.raise_signal(number)
            signal.raise_signal(number)
            went_on.append(True)

    with pytest.raises(KeyboardInterrupt):
        run(work())
    assert not went_on


def test_work_that_nobody_interrupts_gives_what_it_found() -> None:
    async def work() -> str:
        return "found"

    assert run(work()) == "found"
