"""Connections: kept, opened, lost, cut off; what is sent on them; and the instants that a request is given."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from itertools import pairwise

import pytest
import uvloop

from specprof.engine import names
from specprof.engine.access import OPEN, Access
from specprof.measure import http1, load, session
from specprof.measure.http1 import Connection
from specprof.measure.load import connected, run, send
from specprof.measure.wire import RawStream, decode
from specprof.records import Phase
from tests.measure.scripted import CLOSE, RESET, Scripted, scripted
from tests.measure.virtual import MOMENT_S, Server, virtual
from tests.running import refusing, taking_no_more

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b"data: {}\n\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
END = b"0\r\n\r\n"
WHOLE = (HEAD + CHUNK + END,)
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def stream():
    return RawStream("p", Phase.MEASURED, 0, 0)


def ask(server, num_requests=1, *, warm=1, access=OPEN, idle_s=300.0):
    """So many requests, one after the other."""

    async def drive():
        async with connected(server.base_url, warm, access=access, idle_s=idle_s) as client:
            streams = []
            for _ in range(num_requests):
                streams.append(stream())
                await send(client, "/v1/completions", b'{"max_tokens": 1}', streams[-1])
            return streams

    return run(drive())


async def until(happened):
    """Wait for what nobody tells, a minute at most."""
    async with asyncio.timeout(60):
        while not happened():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


def ask_once(server, *, read, goes_on):
    """One request, whose server goes on once something of its answer has been read."""

    async def drive():
        async with connected(server.base_url, 1) as client:
            raw = stream()
            sending = asyncio.create_task(send(client, "/v1/completions", b"", raw))
            await until(lambda: len(raw.reads) >= read)
            goes_on.set()
            await sending
            return raw

    return run(drive())


# -- connections -------------------------------------------------------------------------------------------------------


def test_a_connection_is_used_again():
    with scripted(WHOLE) as server:
        streams = ask(server, 3)
    assert [number for number, _ in server.asked] == [1, 1, 1]
    assert [(raw.error, raw.reads.body()) for raw in streams] == [(None, EVENT)] * 3
    assert [raw.connect_ns for raw in streams] == [0, 0, 0]


@pytest.mark.parametrize(
    "answer",
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", CLOSE),
        (b"HTTP/1.1 200 OK\r\n\r\nok", CLOSE),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", CLOSE),
    ],
)
def test_a_connection_that_the_server_ends_with_its_answer_is_not_used_again(answer):
    with scripted(answer, (PLAIN,)) as server:
        first, second = ask(server, 2)
    assert [raw.reads.body() for raw in (first, second)] == [b"ok", b"ok"]
    assert [raw.error for raw in (first, second)] == [None, None]
    assert server.num_connections == 2
    assert first.connect_ns == 0 < second.connect_ns


def test_a_connection_that_was_closed_while_it_rested_is_not_used_again():
    with scripted((PLAIN, CLOSE), (PLAIN,)) as server:

        async def drive():
            async with connected(server.base_url, 1) as client:
                (resting,) = client._idle
                first, second = stream(), stream()
                await send(client, "/", b"", first)
                await until(lambda: not resting.is_open)
                await send(client, "/", b"", second)
                return first, second

        assert [raw.error for raw in run(drive())] == [None, None]
    assert [number for number, _ in server.asked] == [1, 2]


def test_a_connection_that_rested_for_too_long_is_not_used_again():
    with scripted(WHOLE) as server:
        ask(server, 2, idle_s=0.0)
    assert [number for number, _ in server.asked] == [2, 3]


def test_what_comes_unasked_ends_a_connection():
    """The next answer could not be told from it."""
    rests = threading.Event()
    with scripted((PLAIN, rests, b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"), WHOLE) as server:

        async def drive():
            async with connected(server.base_url, 1) as client:
                first, second = stream(), stream()
                await send(client, "/", b"", first)
                (resting,) = client._idle
                rests.set()
                await until(lambda: not resting.is_open)
                await send(client, "/", b"", second)
                return first, second

        first, second = run(drive())
    assert (first.reads.body(), second.reads.body(), second.status) == (b"ok", EVENT, 200)
    assert [number for number, _ in server.asked] == [1, 2]


# -- what is sent ------------------------------------------------------------------------------------------------------


def test_the_request_is_plain_http(monkeypatch):
    monkeypatch.setenv("PLANTED", "sk-planted")
    with scripted(WHOLE) as server:
        server.base_url += "/below/this"
        ask(server, access=Access("PLANTED"))
    head, _, body = server.asked[0][1].partition(b"\r\n\r\n")
    first, *fields = head.decode().split("\r\n")
    assert first == "POST /below/this/v1/completions HTTP/1.1"
    told = dict(field.split(": ") for field in fields)
    assert told["Host"] == server.base_url.removeprefix("http://").removesuffix("/below/this")
    assert told["Authorization"] == "Bearer sk-planted"
    assert told["Accept-Encoding"] == "identity"
    assert (told["Content-Length"], body) == ("17", b'{"max_tokens": 1}')


def test_tls_is_verified(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with scripted(WHOLE, tls=context) as server:
        trusted = ask(server, 2, access=Access(ca_file=certificate[0]))
        assert [(raw.error, raw.reads.body()) for raw in trusted] == [(None, EVENT)] * 2
        assert server.num_connections == 1
        (refused,) = ask(server)
    assert refused.error.startswith("connection failed: SSLCertVerificationError")
    assert len(server.asked) == 2


# -- answers -----------------------------------------------------------------------------------------------------------


def test_an_error_body_is_kept_whatever_its_framing():
    said = b'{"error": {"message": "out of memory"}}'
    sized = b"HTTP/1.1 503 Unavailable\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said)
    in_chunks = b"HTTP/1.1 503 Unavailable\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (
        len(said),
        said,
    )
    with scripted((sized,), (in_chunks,)) as server:
        assert [decode(raw).error for raw in ask(server, 2)] == ["HTTP 503: out of memory"] * 2
    assert server.num_connections == 1


def test_what_a_server_says_of_a_refused_request_is_kept_without_the_token(monkeypatch):
    monkeypatch.setenv("PLANTED", "sk-planted/x")
    said = rb'{"error": "invalid key: sk-planted/x sk-planted\/x"}'
    refused = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n%b"
    whole, cut_short = (refused % (len(said), said),), (refused % (len(said) + 1, said), 0.05, CLOSE)
    with scripted(whole, cut_short) as server:
        streams = ask(server, 2, access=Access("PLANTED"))
    assert [raw.reads.body() for raw in streams] == [b'{"error": "invalid key: (token) (token)"}'] * 2


def test_a_redirection_is_not_followed():
    """It could carry the token elsewhere."""
    with scripted(WHOLE) as elsewhere:
        away = b"HTTP/1.1 307 Elsewhere\r\nLocation: %b/\r\nContent-Length: 0\r\n\r\n" % elsewhere.base_url.encode()
        with scripted((away,)) as server:
            (raw,) = ask(server)
    assert decode(raw).error == "HTTP 307: no message"
    assert elsewhere.asked == []


def test_an_interim_answer_is_passed_over():
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n" * 3
    with scripted((b"HTTP/1.1 100 Continue\r\n\r\n" + interim[:20], 0.02, interim[20:] + WHOLE[0])) as server:
        (raw,) = ask(server)
    assert (raw.status, raw.error, raw.reads.body()) == (200, None, EVENT)


@pytest.mark.parametrize("pause_s", [0.05, 0.0])
@pytest.mark.parametrize("end", [CLOSE, RESET])
@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (b"", b""),
        (HEAD[:30], b""),
        (HEAD, b""),
        (HEAD + CHUNK, EVENT),
        (HEAD + CHUNK + CHUNK[:9], EVENT + CHUNK[3:9]),
        (HEAD + CHUNK + b"0\r\n", EVENT),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", b"half"),
    ],
)
def test_a_server_that_closes_early_fails_the_request_and_what_came_is_kept(said, kept, end, pause_s):
    """What is reset at once may take with it what nobody has read yet: so TCP has it."""
    with scripted((said, pause_s, end)) as server:
        (raw,) = ask(server)
    assert raw.error.startswith("connection failed: Connection")
    assert raw.reads.body() == kept or (end == RESET and not pause_s and kept.startswith(raw.reads.body()))
    assert raw.done_ns >= raw.sent_ns > 0


def test_a_connection_that_is_reset_behind_its_answer_is_not_used_again():
    """The answer is whole, and what the server did not read of the request resets the connection."""
    with scripted((PLAIN, RESET), WHOLE) as server:

        async def drive():
            async with connected(server.base_url, 1) as client:
                first, second = stream(), stream()
                await send(client, "/", b"", first)
                await asyncio.sleep(0.1)
                await send(client, "/", b"", second)
                return first, second

        first, second = run(drive())
    assert (first.reads.body(), second.error, second.reads.body()) == (b"ok", None, EVENT)
    assert [number for number, _ in server.asked] == [1, 2]


def test_what_came_before_it_was_asked_for_is_no_earlier_than_the_request():
    """A server hangs up on an idle connection, while the client, which is elsewhere, is about to send on it."""
    rests, hung_up = threading.Event(), threading.Event()
    goodbye = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 2\r\n\r\nno"
    with scripted((PLAIN, rests, goodbye, hung_up)) as server:

        async def drive():
            async with connected(server.base_url, 1) as client:
                first, second = stream(), stream()
                await send(client, "/", b"", first)
                rests.set()
                time.sleep(0.1)  # noqa: ASYNC251 - elsewhere
                await send(client, "/", b"", second)
                hung_up.set()
                return second

        second = run(drive())
    assert second.status == 408
    assert second.done_ns >= second.sent_ns


def test_what_is_not_http_fails_the_request():
    with scripted((b"SSH-2.0-OpenSSH_9.6\r\n\r\n",)) as server:
        (raw,) = ask(server)
    assert raw.error == "malformed answer: it begins with 'SSH-2.0-OpenSSH_9.6'"


def test_a_head_of_bare_line_feeds_is_refused_at_once():
    with scripted((b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",)) as server:
        (raw,) = ask(server)
    assert raw.error == "malformed answer: the lines of its head end with LF alone, not with CR LF"


def test_a_body_that_breaks_off_its_framing_fails_the_request_and_what_came_is_kept():
    goes_on = threading.Event()
    with scripted((HEAD + CHUNK, goes_on, b"data: no size\n\n")) as server:
        raw = ask_once(server, read=1, goes_on=goes_on)
    assert raw.error.startswith("malformed answer: a chunk begins with")
    assert raw.reads.body() == EVENT


def test_silence_fails_the_request_and_slowness_does_not():
    """Chunks 0.12 s apart, and then none: 0.48 s in all, and never 0.3 s without a word, by the loop's own clock."""

    async def answered(*chunks):
        clock = asyncio.get_running_loop()
        connection, raw, began_s = Connection(silence_s=0.3), stream(), clock.time()
        connection.connection_made(Transport([]))
        asking = asyncio.create_task(connection.exchange(b"", raw))
        for chunk in (HEAD, *chunks):
            await asyncio.sleep(0.12)
            connection.data_received(chunk)
        await asyncio.wait({asking})
        return raw, asking.exception(), clock.time() - began_s

    with virtual(Server()) as clock:
        lasting, problem, took_s = clock.run_until_complete(answered(CHUNK, CHUNK, END))
        assert (problem, lasting.reads.body()) == (None, 2 * EVENT)
        assert took_s == pytest.approx(0.48, abs=MOMENT_S)
        silent, problem, took_s = clock.run_until_complete(answered(CHUNK))
        assert isinstance(problem, http1.Silent)
        assert silent.reads.body() == EVENT
        assert 0.24 + 0.3 - MOMENT_S <= took_s <= 0.24 + 0.3 * (1 + 1 / http1.LOOKS) + MOMENT_S


def test_a_client_that_stands_still_for_longer_reads_what_came_meanwhile():
    ours, theirs = socket.socketpair()

    async def answered():
        loop, raw = asyncio.get_running_loop(), stream()
        _, connection = await loop.create_connection(lambda: Connection(silence_s=0.3), sock=ours)

        def stand_still():
            theirs.sendall(HEAD + CHUNK + END)
            time.sleep(0.6)

        loop.call_later(0.01, stand_still)
        await connection.exchange(b"asked", raw)
        connection.close()
        return raw

    with theirs:
        assert run(answered()).reads.body() == EVENT


def test_silence_over_a_socket_fails_the_request_and_says_for_how_long(monkeypatch):
    monkeypatch.setattr(load, "SILENCE_S", 0.3)
    with scripted((HEAD + CHUNK, threading.Event())) as server:
        (raw,) = ask(server)
    assert raw.error == "timed out: no data for 0.3 s"


def test_a_stream_that_is_cancelled_closes_its_connection_and_grows_no_more():
    goes_on = threading.Event()
    with scripted((HEAD + CHUNK, goes_on, *[CHUNK] * 200, END), WHOLE) as server:

        async def drive():
            async with connected(server.base_url, 1) as client:
                raw, other = stream(), stream()
                sending = asyncio.create_task(send(client, "/", b"", raw))
                await until(lambda: len(raw.reads) == 1)
                sending.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sending
                goes_on.set()
                await send(client, "/", b"", other)
                await asyncio.sleep(0.05)
                return raw, other

        raw, other = run(drive())
    assert raw.reads.body() == EVENT
    assert (other.error, other.reads.body()) == (None, EVENT)
    assert [number for number, _ in server.asked] == [1, 2]


# -- instants ----------------------------------------------------------------------------------------------------------


def test_a_slow_connect_is_told_apart_and_not_in_the_time_to_the_first_token(monkeypatch):
    """The request is sent when the connection stands, and the time until then, all of it, is the connect's."""
    planted_s = 0.4
    connects, instants_ns = session.Session._connect, []

    async def slow(self):
        instants_ns.append(http1._clock())
        await asyncio.sleep(planted_s)
        connection = await connects(self)
        instants_ns.append(http1._clock())
        return connection

    monkeypatch.setattr(session.Session, "_connect", slow)
    with scripted(WHOLE) as server:
        (raw,) = ask(server, warm=0)
    began_ns, stood_ns = instants_ns
    assert raw.connect_ns >= stood_ns - began_ns
    assert stood_ns - began_ns >= planted_s * 1e9 - 2e6, "timers are no finer than a millisecond"
    assert stood_ns <= raw.sent_ns <= next(iter(raw.reads))[0]


def test_a_server_that_cannot_be_reached_is_an_error_with_instants():
    with refusing() as address:
        (raw,) = ask(Scripted((), base_url=address))
    assert raw.error.startswith("connection failed: ConnectionRefusedError")
    assert raw.done_ns == raw.sent_ns > 0
    assert raw.connect_ns > 0


def test_a_server_that_takes_no_connection_is_given_up(monkeypatch):
    monkeypatch.setattr(session, "CONNECT_S", 0.05)

    with taking_no_more() as (host, port):
        (raw,) = ask(Scripted((), base_url=f"http://{host}:{port}"), warm=0)
    assert raw.error == "connection failed: ConnectionError: no connection within 0.05 s"


def test_an_address_that_leads_nowhere_costs_the_next_one_nothing_and_is_tried_last_from_then_on(monkeypatch):
    monkeypatch.setattr(session, "CONNECT_S", 1.0)
    with taking_no_more() as nowhere, scripted(WHOLE, WHOLE) as server:
        there = names.place_of(server.base_url)
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", place) for place in (nowhere, there)]
        monkeypatch.setattr(names, "addresses", lambda *_: found)
        first, second = ask(Scripted((), base_url="http://two.example"), 2, warm=0, idle_s=0.0)
    assert (first.error, second.error) == (None, None)
    assert first.connect_ns >= 0.5e9 > second.connect_ns
    assert found[0][-1] == there


class Transport(asyncio.Transport):
    """Notes when it was written to."""

    def __init__(self, written):
        super().__init__()
        self.written = written

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def write(self, data):
        self.written.append(http1._clock())

    def abort(self):
        pass

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return False


def test_a_connection_that_is_gone_before_anything_is_sent_fails_at_once():
    """Its end has been told already, so that nothing but the limit of silence would end the request."""

    async def drive():
        connection = Connection(silence_s=600.0)
        connection.connection_made(Transport([]))
        connection.connection_lost(None)
        with pytest.raises(ConnectionError, match="before anything was sent"):
            await connection.exchange(b"", stream())

    run(drive())


def test_each_request_is_sent_at_its_own_write_and_not_when_all_were_begun():
    async def drive():
        written, streams, tasks = [], [stream() for _ in range(50)], []
        for raw in streams:
            connection = Connection(silence_s=600.0)
            connection.connection_made(Transport(written))
            tasks.append(asyncio.create_task(connection.exchange(b"", raw)))
            tasks[-1].connection = connection
        await asyncio.sleep(0)
        for task in tasks:
            task.connection.data_received(PLAIN)
        await asyncio.gather(*tasks)
        return written, streams

    written, streams = run(drive())
    instants = [at_ns for raw, wrote_ns in zip(streams, written, strict=True) for at_ns in (raw.sent_ns, wrote_ns)]
    assert all(earlier <= later for earlier, later in pairwise(instants))


def test_a_write_has_left_before_the_loop_turns():
    """uvloop would hold it back to the end of its round, and 64 requests begun in one round would all be late."""

    async def drive():
        here, there = socket.socketpair()
        there.setblocking(False)
        with there:
            clock = asyncio.get_running_loop()
            transport, _ = await clock.create_connection(lambda: Connection(silence_s=600.0), sock=here)
            transport.write(b"request")
            arrived = there.recv(100)
            transport.abort()
            return arrived

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(drive()) == b"request"
