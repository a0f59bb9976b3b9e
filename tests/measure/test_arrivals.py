"""When bytes arrived: the kernel's word on the client's clock, and what becomes of it when the time of day is set."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time

import pytest

from specprof.measure import arrivals
from specprof.measure.arrivals import TOLERANCE_NS, KernelClock
from specprof.measure.load import connected, run, send
from specprof.measure.plain import plain_connection
from specprof.measure.wire import RawStream
from specprof.records import Phase
from tests.measure.scripted import scripted

DAY_NS = 1_800_000_000 * 10**9  # of the time of day, when the client's clock began
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux notes when the bytes of a connection arrive")


class Clocks:
    """The client's clock and the time of day, as a test sets them. A look at either takes `look_ns`."""

    def __init__(self, monkeypatch):
        self.now_ns, self.day_ns, self.look_ns = 10**9, DAY_NS, 40
        monkeypatch.setattr(arrivals, "_clock", self.clock)
        monkeypatch.setattr(arrivals, "_time_of_day", self.time_of_day)

    def clock(self):
        self.now_ns += self.look_ns
        return self.now_ns

    def time_of_day(self):
        return self.clock() + self.day_ns

    def noted(self, at_ns):
        """What the kernel hands over with bytes that arrived at that instant of the client's clock."""
        return [(socket.SOL_SOCKET, 64, struct.pack("=qq", *divmod(at_ns + self.day_ns, 10**9)))]


def test_bytes_came_when_the_kernel_says_however_late_they_are_read(monkeypatch):
    clocks = Clocks(monkeypatch)
    kernel = KernelClock()
    came_ns = clocks.now_ns + 7_000
    noted = clocks.noted(came_ns)
    clocks.now_ns += 3 * 10**9  # the process was elsewhere
    assert kernel.arrived_ns(noted, clocks.clock(), 0) == pytest.approx(came_ns, abs=100)
    assert kernel.told_share == 1.0


def test_bytes_of_which_the_kernel_says_nothing_came_when_they_were_read(monkeypatch):
    clocks = Clocks(monkeypatch)
    kernel = KernelClock()
    read_ns = clocks.clock()
    assert kernel.arrived_ns([], read_ns, 0) == read_ns
    kernel.arrived_ns(clocks.noted(clocks.now_ns), clocks.clock(), 0)
    assert kernel.told_share == 0.5


@pytest.mark.parametrize("came_after_ns", [-1, 60_000])
def test_no_time_is_taken_that_cannot_be(monkeypatch, came_after_ns):
    """Before what it follows, which came at the very time; after it was read, 50 µs later."""
    clocks = Clocks(monkeypatch)
    kernel = KernelClock()
    before_ns = clocks.now_ns
    noted = clocks.noted(before_ns + came_after_ns)
    clocks.now_ns += 50_000
    read_ns = clocks.clock()
    assert kernel.arrived_ns(noted, read_ns, before_ns + 10) == read_ns


@pytest.mark.parametrize("step_ns", [5_000_000, -5_000_000, 3600 * 10**9, -3600 * 10**9])
@pytest.mark.parametrize("set_when", ["before it came", "before it was read"])
def test_a_time_of_day_that_is_set_moves_no_arrival(monkeypatch, step_ns, set_when):
    clocks = Clocks(monkeypatch)
    kernel = KernelClock()
    came_ns = clocks.now_ns
    if set_when == "before it came":
        clocks.day_ns += step_ns
        noted = clocks.noted(came_ns)
    else:
        noted = clocks.noted(came_ns)
        clocks.day_ns += step_ns
    clocks.now_ns += 200_000
    read_ns = clocks.clock()
    assert kernel.arrived_ns(noted, read_ns, 0) == read_ns
    came_ns = clocks.now_ns
    noted = clocks.noted(came_ns)  # the next one: its new relation to our clock is known
    clocks.now_ns += 200_000
    assert kernel.arrived_ns(noted, clocks.clock(), read_ns) == pytest.approx(came_ns, abs=100)


def test_a_process_held_up_between_its_two_clocks_believes_the_kernel_all_the_same(monkeypatch):
    clocks = Clocks(monkeypatch)
    kernel = KernelClock()
    came_ns = clocks.now_ns
    noted = clocks.noted(came_ns)
    read_ns = clocks.clock()
    clocks.now_ns += 10 * TOLERANCE_NS
    assert kernel.arrived_ns(noted, read_ns, 0) == pytest.approx(came_ns, abs=100)


@LINUX
def test_what_came_while_the_client_was_elsewhere_has_the_time_at_which_it_came():
    """Over a real socket: the loop is blocked for 0.2 s, and the bytes come at its beginning."""

    class Noting:
        def __init__(self):
            self.taken = []

        def connection_made(self, transport):
            self.transport = transport

        def connection_lost(self, exc):
            pass

        def take_in(self, at_ns, data):
            self.taken.append((at_ns, data))

    async def drive(listening):
        reader = await plain_connection(socket.AF_INET, listening.getsockname(), KernelClock(), Noting)
        there, _ = listening.accept()
        with there:
            for _ in range(200):  # the kernel begins to note times a moment after it was first asked to
                there.send(b"x")
                await asyncio.sleep(0.005)
            reader.taken.clear()
            sent_ns = time.perf_counter_ns()
            there.send(b"y")
            was_sent_ns = time.perf_counter_ns()
            time.sleep(0.2)  # noqa: ASYNC251 - the client is meant to be elsewhere
            while not reader.taken:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.001)
            reader.transport.abort()
        ((at_ns, data),) = reader.taken
        assert data == b"y"
        assert sent_ns - TOLERANCE_NS <= at_ns <= was_sent_ns + TOLERANCE_NS

    with socket.create_server(("127.0.0.1", 0)) as listening:
        run(drive(listening))


@LINUX
def test_a_session_says_what_share_of_its_reads_the_kernel_timed():
    event = b"data: {}\n\n"
    chunk = b"%x\r\n%b\r\n" % (len(event), event)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = (head, *[part for _ in range(100) for part in (0.002, chunk)], b"0\r\n\r\n")

    async def drive(server):
        async with connected(server.base_url, 1) as session:
            raw = RawStream("p", Phase.MEASURED, 0, 0)
            await send(session, "/", b"", raw)
            return raw, session.kernel_timed

    with scripted(answer) as server:
        raw, share = run(drive(server))
    assert raw.error is None
    assert share > 0.5
