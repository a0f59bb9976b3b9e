"""When bytes arrived: the kernel's word on the client's clock, and what becomes of it when the time of day is set."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time

import pytest

from specprof.measure import arrivals, plain
from specprof.measure.arrivals import LATE_NS, TOLERANCE_NS, KernelClock, num_out_of_order
from specprof.measure.load import connected, run, send
from specprof.measure.plain import plain_connection
from specprof.measure.wire import RawStream
from specprof.records import Phase
from tests.measure.scripted import scripted

DAY_NS = 1_800_000_000 * 10**9  # of the time of day, when the client's clock began
LOOK_NS = 40
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux notes when the bytes of a connection arrive")


class Clocks:
    """The client's clock and the time of day, as a test sets them. A look at either takes `LOOK_NS`, or what `held_ns`
    says of the next ones.
    """

    def __init__(self, monkeypatch):
        self.now_ns, self.day_ns, self.held_ns = 10**9, DAY_NS, []
        monkeypatch.setattr(arrivals, "_clock", self.clock)
        monkeypatch.setattr(arrivals, "_time_of_day", self.time_of_day)

    def clock(self):
        self.now_ns += self.held_ns.pop(0) if self.held_ns else LOOK_NS
        return self.now_ns

    def time_of_day(self):
        return self.clock() + self.day_ns

    def noted(self, at_ns, kind=64):
        """What the kernel hands over with bytes that arrived at that instant of the client's clock."""
        return [(socket.SOL_SOCKET, kind, struct.pack("=qq", *divmod(at_ns + self.day_ns, 10**9)))]


@pytest.fixture
def clocks(monkeypatch):
    return Clocks(monkeypatch)


def arrived(kernel, clocks, control, *, later_ns=0, not_before_ns=0, in_order=lambda: True):
    """When a read arrived that returns so much later; and when it returned."""
    clocks.now_ns += later_ns
    read_ns = clocks.clock()
    return kernel.arrived_ns(control, read_ns, not_before_ns, in_order), read_ns


@pytest.mark.parametrize("kind", [64, 35])
def test_bytes_came_when_the_kernel_says_however_late_they_are_read(clocks, kind):
    kernel = KernelClock()
    came_ns = clocks.now_ns + 7_000
    at_ns, _ = arrived(kernel, clocks, clocks.noted(came_ns, kind), later_ns=3 * 10**9)
    assert at_ns == pytest.approx(came_ns, abs=LOOK_NS)
    assert kernel.kernel_timed == 1.0


@pytest.mark.parametrize(
    "control",
    [
        [],
        [(socket.SOL_SOCKET, 37, bytes(48))],
        [(socket.SOL_SOCKET, 64, bytes(8))],
        [(socket.IPPROTO_TCP, 64, bytes(16))],
    ],
)
def test_bytes_of_which_the_kernel_says_nothing_came_when_they_were_read(clocks, control):
    kernel = KernelClock()
    at_ns, read_ns = arrived(kernel, clocks, control)
    assert at_ns == read_ns
    arrived(kernel, clocks, clocks.noted(clocks.now_ns))
    assert kernel.kernel_timed == 0.5


@pytest.mark.parametrize("came_after_ns", [-1, 60_000])
def test_no_time_is_taken_that_cannot_be(clocks, came_after_ns):
    """Before what it follows, which came at the very time; after it was read, 50 µs later."""
    kernel = KernelClock()
    before_ns = clocks.now_ns
    noted = clocks.noted(before_ns + came_after_ns)
    at_ns, read_ns = arrived(kernel, clocks, noted, later_ns=50_000, not_before_ns=before_ns + LOOK_NS)
    assert at_ns == read_ns


@pytest.mark.parametrize("step_ns", [50_000, 5_000_000, -5_000_000, 3600 * 10**9, -3600 * 10**9])
@pytest.mark.parametrize("set_when", ["before they came", "before they were read"])
def test_a_time_of_day_that_is_set_moves_no_arrival(clocks, step_ns, set_when):
    """Of many connections, all of whose bytes came before the first was read; a machine that slept is the same."""
    kernel = KernelClock()
    came_ns = clocks.now_ns
    if set_when == "before they came":
        clocks.day_ns += step_ns
        noted = [clocks.noted(came_ns + i) for i in range(64)]
    else:
        noted = [clocks.noted(came_ns + i) for i in range(64)]
        clocks.day_ns += step_ns
    clocks.now_ns += 200_000
    for control in noted:
        at_ns, read_ns = arrived(kernel, clocks, control)
        assert at_ns == read_ns
    came_ns = clocks.now_ns
    noted = clocks.noted(came_ns)  # the next ones: their new relation to our clock is known
    at_ns, _ = arrived(kernel, clocks, noted, later_ns=200_000)
    assert at_ns == pytest.approx(came_ns, abs=LOOK_NS)


def test_a_process_held_up_between_its_two_clocks_believes_the_kernel_all_the_same(clocks):
    """After the read, and then at four of five looks at the clocks' difference: the fifth tells it."""
    kernel = KernelClock()
    came_ns = clocks.now_ns
    noted = clocks.noted(came_ns)
    clocks.now_ns += LATE_NS // 2
    read_ns = clocks.clock()
    held = 10 * TOLERANCE_NS
    clocks.held_ns = [held, *[LOOK_NS, held, LOOK_NS] * 2, *[LOOK_NS] * 3, *[LOOK_NS, LOOK_NS, held] * 2]
    assert kernel.arrived_ns(noted, read_ns, 0, lambda: True) == pytest.approx(came_ns, abs=LOOK_NS)


def test_the_difference_of_the_clocks_lies_amid_a_look(clocks):
    """The time of day is read in the middle of two readings of the other clock: nothing is left over."""
    came_ns = clocks.now_ns
    at_ns, _ = arrived(KernelClock(), clocks, clocks.noted(came_ns), later_ns=50_000)
    assert at_ns == came_ns


@pytest.mark.parametrize("late_ns", [LATE_NS - LOOK_NS - 1, LATE_NS])
def test_a_late_read_that_may_have_waited_for_a_lost_packet_came_when_it_was_read(clocks, late_ns):
    kernel = KernelClock()
    came_ns = clocks.now_ns
    at_ns, read_ns = arrived(kernel, clocks, clocks.noted(came_ns), later_ns=late_ns, in_order=lambda: False)
    assert at_ns == (read_ns if late_ns >= LATE_NS else pytest.approx(came_ns, abs=LOOK_NS))
    assert kernel.kernel_timed == (late_ns < LATE_NS)


@pytest.mark.parametrize(("told", "number"), [(bytes(224) + (7).to_bytes(4, sys.byteorder), 7), (bytes(224), 0)])
def test_packets_out_of_order_are_counted_where_the_kernel_counts_them(told, number):
    """Since Linux 5.4, behind the 224 bytes that it told before."""

    class Connected:
        def getsockopt(self, level, option, size):
            assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO)
            return told[:size]

    assert num_out_of_order(Connected()) == number


class Noting:
    """Keeps when bytes came."""

    def __init__(self):
        self.taken = []

    def connection_made(self, transport):
        self.transport = transport

    def connection_lost(self, exc):
        pass

    def take_in(self, at_ns, data):
        self.taken.append((at_ns, data))


def sent_and_arrived_ns(away_s, once_ready=lambda: None):
    """Over a real socket, the loop blocked for so long each time: just before a byte is sent, just after, and when it
    arrived. One triple for each of `away_s`. `once_ready`: before the first of them.
    """

    async def drive(listening):
        kernel, found = KernelClock(), []
        reader = await plain_connection(socket.AF_INET, listening.getsockname(), kernel, Noting)
        there, _ = listening.accept()
        with there:
            async with asyncio.timeout(20):
                while kernel.kernel_timed < 0.5:  # the kernel begins a moment after it was first asked to
                    there.send(b"x")
                    await asyncio.sleep(0.005)
            once_ready()
            for seconds in away_s:
                reader.taken.clear()
                before_ns = time.perf_counter_ns()
                there.send(b"y")
                after_ns = time.perf_counter_ns()
                time.sleep(seconds)  # noqa: ASYNC251 - the client is meant to be elsewhere
                while not reader.taken:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.001)
                ((at_ns, data),) = reader.taken
                assert data == b"y"
                found.append((before_ns, after_ns, at_ns))
            reader.transport.abort()
        return found

    with socket.create_server(("127.0.0.1", 0)) as listening:
        return run(drive(listening))


@LINUX
def test_what_came_while_the_client_was_elsewhere_has_the_time_at_which_it_came():
    ((before_ns, after_ns, at_ns),) = sent_and_arrived_ns([0.2])
    assert before_ns - TOLERANCE_NS <= at_ns <= after_ns + TOLERANCE_NS


@LINUX
def test_a_late_read_of_a_connection_that_lost_packets_has_its_own_time_and_the_next_the_kernel_s(monkeypatch):
    lost = []
    monkeypatch.setattr(plain, "num_out_of_order", lambda _: len(lost))
    (_, after_ns, first_ns), (_, later_ns, second_ns) = sent_and_arrived_ns([0.05, 0.05], lambda: lost.append("one"))
    assert first_ns >= after_ns + 50_000_000
    assert second_ns <= later_ns + TOLERANCE_NS


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
