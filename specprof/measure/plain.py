"""An unencrypted TCP connection that knows when its bytes arrived (`measure.arrivals`).

The transports of event loops read with `recv`; the kernel's times come with `recvmsg` alone.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from specprof.measure.arrivals import CONTROL_BYTES, KernelClock, ask_for_times, num_out_of_order

READ_BYTES = 64 * 1024

_clock = time.perf_counter_ns


class Reader(Protocol):
    """Whom a connection belongs to."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It stands."""

    def take_in(self, at_ns: int, data: bytes) -> None:
        """Bytes, and when they arrived."""

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, and with what; None if either side closed it."""


R = TypeVar("R", bound=Reader)


async def plain_connection(
    family: int, address: tuple[Any, ...], kernel: KernelClock, new_reader: Callable[[], R]
) -> R:
    """Connect to an address, and hand the connection to whom it belongs to. Raises OSError."""
    connected = socket.socket(family, socket.SOCK_STREAM)
    try:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask_for_times(connected)
        await _connect(connected, address)
    except BaseException:
        connected.close()
        raise
    owner = new_reader()
    Plain(connected, kernel, owner)
    return owner


async def _connect(connected: socket.socket, address: tuple[Any, ...]) -> None:
    """To this very address: uvloop's `sock_connect` would ask a resolver for it, and lose the scope of an IPv6 one."""
    with suppress(BlockingIOError):
        connected.connect(address)
        return
    loop, is_decided = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(connected, is_decided.set)
    try:
        await is_decided.wait()
    finally:
        loop.remove_writer(connected)
    if problem := connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(problem, os.strerror(problem))


class Plain(asyncio.Transport):
    """A transport for one reader, which writes at once."""

    def __init__(self, connected: socket.socket, kernel: KernelClock, reader: Reader) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._socket, self._kernel, self._reader = connected, kernel, reader
        self._unsent = bytearray()
        self._last_ns = 0  # when the bytes of the last read arrived
        self._num_out_of_order = 0
        self._is_closing = False  # no more is read, what is unsent still leaves
        self._is_over = False  # the socket is closed
        ended = select.poll()
        ended.register(connected, getattr(select, "POLLRDHUP", 0))  # what broke is told unasked
        self._has_ended = ended.poll
        reader.connection_made(self)
        self._loop.add_reader(connected, self._read)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing: what the socket takes leaves at once, whatever the limits."""

    def is_closing(self) -> bool:
        """Whether nothing more can be sent."""
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        """Bytes that were written and have not left."""
        return len(self._unsent)

    def _read(self) -> None:
        """Take in one read, and of a connection that has ended all that is left.

        uvloop tells of one that broke but once, and watches it no more, be there bytes before the break or not.
        """
        try:
            while True:
                data, control, _, _ = self._socket.recvmsg(READ_BYTES, CONTROL_BYTES)
                if not data:
                    self._end(None)
                    return
                self._last_ns = self._kernel.arrived_ns(control, _clock(), self._last_ns, self._came_in_order)
                self._reader.take_in(self._last_ns, data)
                if self._is_closing or not self._has_ended(0):
                    return
        except (BlockingIOError, InterruptedError):
            return
        except OSError as problem:
            self._end(problem)
        except Exception as problem:  # uvloop would read on, and what was being taken in be a hole in the stream
            self._end(ConnectionAbortedError(f"it could not be read on ({type(problem).__name__})"))
            raise

    def _came_in_order(self) -> bool:
        """Whether no packet came before an earlier one since this was last asked."""
        before, self._num_out_of_order = self._num_out_of_order, num_out_of_order(self._socket)
        return self._num_out_of_order == before

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send now what the socket takes, and the rest as it takes it."""
        if self._is_closing:
            return
        if self._unsent:
            self._unsent += data
            return
        self._unsent += memoryview(data)[self._sent(data) :]
        if self._unsent and not self._is_over:
            self._loop.add_writer(self._socket, self._write_on)

    def _write_on(self) -> None:
        del self._unsent[: self._sent(self._unsent)]
        if not self._unsent and not self._is_over:
            self._loop.remove_writer(self._socket)
            if self._is_closing:
                self._end(None)

    def _sent(self, data: bytes | bytearray | memoryview) -> int:
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as problem:
            self._end(problem)
            return 0

    def close(self) -> None:
        """Read no more, and be gone when all is sent."""
        if self._is_closing:
            return
        self._is_closing = True
        self._loop.remove_reader(self._socket)
        if not self._unsent:
            self._end(None)

    def abort(self) -> None:
        """Be gone at once."""
        self._end(None)

    def _end(self, problem: OSError | None) -> None:
        if self._is_over:
            return
        self._is_closing = self._is_over = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._loop.call_soon(self._reader.connection_lost, problem)
