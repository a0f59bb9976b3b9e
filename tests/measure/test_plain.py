"""An unencrypted connection over real sockets: what it writes, how it ends, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from contextlib import suppress

import pytest

from specprof.measure.arrivals import KernelClock
from specprof.measure.load import run
from specprof.measure.plain import plain_connection
from tests.running import taking_no_more

LARGE = bytes(range(256)) * 64 * 1024  # 16 MiB: no socket takes it at once


class Owner:
    """Keeps what it is given."""

    def __init__(self):
        self.data, self.instants, self.lost = b"", [], []

    def connection_made(self, transport):
        self.transport = transport

    def take_in(self, at_ns, data):
        self.instants.append(at_ns)
        self.data += data

    def connection_lost(self, exc):
        self.lost.append(exc)


async def pair(listening):
    """An owner with its connection, and the other end."""
    owner = await plain_connection(socket.AF_INET, listening.getsockname(), KernelClock(), Owner)
    there, _ = listening.accept()
    there.setblocking(False)
    return owner, there


async def until(happened):
    async with asyncio.timeout(60):
        while not happened():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


async def received(there, num_bytes):
    """So many bytes at the other end; fewer if the connection ends before."""
    loop, got = asyncio.get_running_loop(), bytearray()
    while len(got) < num_bytes and (data := await loop.sock_recv(there, 2**20)):
        got += data
    return bytes(got)


def driven(work):
    """A test's work with a pair, which is closed afterwards."""

    async def drive(listening):
        owner, there = await pair(listening)
        with there:
            try:
                return await work(owner, there)
            finally:
                owner.transport.abort()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        return run(drive(listening))


class Asked(KernelClock):
    """Notes what no arrival may be before, and what it answered."""

    def __init__(self):
        super().__init__()
        self.bounds, self.answers = [], []

    def arrived_ns(self, control, read_ns, not_before_ns, in_order):
        self.bounds.append(not_before_ns)
        self.answers.append(super().arrived_ns(control, read_ns, not_before_ns, in_order))
        return self.answers[-1]


def test_what_arrives_is_no_earlier_than_what_came_before_it(monkeypatch):
    kernel = Asked()
    monkeypatch.setattr(f"{__name__}.KernelClock", lambda: kernel)

    async def work(owner, there):
        for number in range(5):
            there.send(b"%d" % number)
            await until(lambda wanted=number: len(owner.data) > wanted)
        return owner

    assert driven(work).instants == kernel.answers
    assert kernel.bounds == [0, *kernel.answers[:-1]]


def test_what_arrives_is_handed_over_with_instants_that_do_not_go_back():
    async def work(owner, there):
        for number in range(50):
            there.send(b"%02d" % number)
            await asyncio.sleep(0.001)
        await until(lambda: len(owner.data) == 100)
        return owner

    owner = driven(work)
    assert owner.data == b"".join(b"%02d" % number for number in range(50))
    assert owner.instants == sorted(owner.instants)


def test_a_write_has_left_when_it_returns():
    async def work(owner, there):
        owner.transport.write(b"request")
        return there.recv(100)

    assert driven(work) == b"request"


def test_what_the_socket_does_not_take_follows_in_order():
    """The second write finds room, for the other end has read on meanwhile, and waits for the first all the same."""

    async def work(owner, there):
        owner.transport.write(LARGE)
        got = bytearray()
        with suppress(BlockingIOError):
            while data := there.recv(2**20):
                got += data
        time.sleep(0.05)  # noqa: ASYNC251 - the loop must not write on before the next line does
        owner.transport.write(b"and this")
        return bytes(got) + await received(there, len(LARGE) + 8 - len(got))

    assert driven(work) == LARGE + b"and this"


def test_a_connection_that_is_closed_sends_the_rest_first_and_nothing_later():
    async def work(owner, there):
        owner.transport.write(LARGE)
        owner.transport.close()
        owner.transport.write(b"too late")
        got = await received(there, len(LARGE) + 1)
        await until(lambda: owner.lost)
        return got, owner.lost

    got, lost = driven(work)
    assert got == LARGE
    assert lost == [None]


def test_a_connection_that_is_cut_off_is_gone_with_what_was_unsent():
    async def work(owner, there):
        owner.transport.write(LARGE)
        owner.transport.abort()
        got = await received(there, len(LARGE))
        return len(got), owner.transport.is_closing(), owner.lost

    num_bytes, is_closing, lost = driven(work)
    assert num_bytes < len(LARGE)
    assert (is_closing, lost) == (True, [None])


def test_a_connection_that_is_closed_reads_no_more():
    async def work(owner, there):
        owner.transport.write(LARGE)  # so that it stays for a while
        owner.transport.close()
        there.send(b"too late")
        await asyncio.sleep(0.05)
        return owner.data

    assert driven(work) == b""


def test_its_end_is_told_after_whoever_ended_it_is_through():
    async def work(owner, there):
        owner.transport.abort()
        told_at_once = list(owner.lost)
        await asyncio.sleep(0)
        return told_at_once, owner.lost

    assert driven(work) == ([], [None])


def test_what_cannot_be_taken_in_ends_the_connection_and_leaves_no_hole():
    """An error in the middle, of which a loop would only make a note, and read on behind it."""
    noted = []

    async def work(owner, there):
        def take_in(_, data):
            owner.data += data
            if data == b"2":
                raise MemoryError

        owner.take_in = take_in
        asyncio.get_running_loop().set_exception_handler(lambda _, context: noted.append(context["exception"]))
        for part in (b"1", b"2", b"3"):
            with suppress(OSError):
                there.send(part)
            await asyncio.sleep(0.02)
        await until(lambda: owner.lost)
        return owner

    owner = driven(work)
    assert owner.data == b"12"
    assert isinstance(owner.lost[0], ConnectionAbortedError)
    assert [type(problem) for problem in noted] == [MemoryError]


def test_it_writes_at_once_and_waits_for_no_more_to_send():
    async def work(owner, there):
        return owner.transport._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    assert driven(work)


def test_the_other_end_closes_it():
    async def work(owner, there):
        there.send(b"the last")
        there.shutdown(socket.SHUT_WR)
        await until(lambda: owner.lost)
        owner.transport.close()  # once more, and too late
        await asyncio.sleep(0)
        return owner

    owner = driven(work)
    assert (owner.data, owner.lost) == (b"the last", [None])


@pytest.mark.parametrize("unsent", [b"", LARGE])
@pytest.mark.parametrize("last", [b"", b"its last words", bytes(200_000)])
def test_the_other_end_breaks_it(unsent, last):
    """Whether or not there is something to read before that; it is seen in the same turn."""

    async def work(owner, there):
        owner.transport.write(unsent)
        assert there.send(last) == len(last)
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        there.close()
        await until(lambda: owner.lost)
        owner.transport.write(b"to nobody")
        return owner.lost

    (problem,) = driven(work)  # of last words nothing is sure to come: a reset overtakes them
    assert isinstance(problem, ConnectionError)


def test_an_address_is_taken_as_it_is(monkeypatch):
    """An IPv6 address of one link has a scope, the fourth of its parts; and no name is asked for again."""
    asked = []

    async def drive(address):
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", asked.append, raising=False)
        owner = await plain_connection(socket.AF_INET6, address, KernelClock(), Owner)
        owner.transport.abort()

    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listening:
        asyncio.run(drive(listening.getsockname()))
    assert not asked


def test_one_that_is_given_up_while_it_connects_leaves_no_socket():
    async def drive(address):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await plain_connection(socket.AF_INET, address, KernelClock(), Owner)

    with taking_no_more() as address:
        run(drive(address))


def test_one_that_is_refused_is_an_error_and_leaves_no_socket():
    async def drive(address):
        with pytest.raises(ConnectionRefusedError):
            await plain_connection(socket.AF_INET, address, KernelClock(), Owner)

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        run(drive(bound.getsockname()))  # a socket that is left warns, which ends a test


def test_one_that_pours_lets_others_have_their_turn():
    """A read a turn, however much is there."""

    async def work(owner, there):
        taken, turns = [], 0
        owner.take_in = lambda _, data: taken.append(len(data))
        there.send(LARGE)
        while len(taken) < 3:
            before = len(taken)
            await asyncio.sleep(0)
            turns += 1
            assert len(taken) <= before + 1
            with suppress(BlockingIOError):
                there.send(LARGE)
        return turns

    assert driven(work) >= 3
