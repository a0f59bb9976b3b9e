"""HTTP/1.1 as a load client needs it: one request at a time on a connection, and every read of its answer is kept.

What a general client does for each read costs more than the read (`make bench`). Here a read, which comes with its
time (`measure.plain`), is stripped of the chunked coding and kept; what it says is read later (`measure.wire`).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol, cast

from specprof.measure.reads import Reads
from specprof.measure.wire import RawStream

MAX_LINE_BYTES = 64 * 1024  # of a head, a chunk's size line, or trailers
MAX_LENGTH_DIGITS = 18
CLOSE_S = 1.0
LOOKS = 10  # in which the silence of a stream is measured: seconds also pass while this process stands still

_END_OF_LINE = b"\r\n"
_END_OF_HEAD = b"\r\n\r\n"
_NO_BODY = (204, 304)

_clock = time.perf_counter_ns


class Silent(Exception):
    """Nothing came for too long."""


class BadAnswer(Exception):
    """What came is not HTTP/1.1, or not what was asked for."""


@dataclass(frozen=True, slots=True)
class Head:
    """What of an answer's head matters to whoever reads its body. `length` None: it ends with the connection."""

    status: int
    chunked: bool
    length: int | None
    keeps_alive: bool


def parse_head(head: bytes) -> Head:
    """An answer's head, without the empty line. Raises BadAnswer."""
    first, *lines = head.split(_END_OF_LINE)
    version, _, rest = first.partition(b" ")
    code = rest[:3]
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or len(code) != 3 or not code.isdigit() or code < b"100":
        raise BadAnswer(f"it begins with {_shown(first)}")
    fields = _fields(lines)
    coding = fields.get(b"content-encoding", b"identity").lower()
    if coding != b"identity":
        raise BadAnswer(f"it has Content-Encoding: {_shown(coding)}, and identity was asked for")
    transfer = fields.get(b"transfer-encoding", b"").lower()
    if transfer not in (b"", b"chunked"):
        raise BadAnswer(f"it has Transfer-Encoding: {_shown(transfer)}")
    status, said = int(code), {part.strip() for part in fields.get(b"connection", b"").lower().split(b",")}
    keeps_alive = b"close" not in said if version == b"HTTP/1.1" else b"keep-alive" in said
    if status in _NO_BODY:
        return Head(status, chunked=False, length=0, keeps_alive=keeps_alive)
    if transfer:
        return Head(status, chunked=True, length=None, keeps_alive=keeps_alive)
    length = fields.get(b"content-length")
    if length is None:
        return Head(status, chunked=False, length=None, keeps_alive=False)
    if not length.isdigit() or len(length) > MAX_LENGTH_DIGITS:
        raise BadAnswer(f"it has Content-Length: {_shown(length)}")
    return Head(status, chunked=False, length=int(length), keeps_alive=keeps_alive)


def _fields(lines: list[bytes]) -> dict[bytes, bytes]:
    """Header fields by lower-case name; of one that comes again the values are joined, which no length survives."""
    fields: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise BadAnswer(f"its head holds {_shown(line)}")
        key, value = name.strip().lower(), value.strip()
        same = key == b"content-length" and fields.get(key, value) == value
        fields[key] = value if same or key not in fields else fields[key] + b"," + value
    return fields


def _shown(said: bytes) -> str:
    return repr(said[:60].decode("ascii", "replace"))


class Body(Protocol):
    """An answer's body on its way into a stream's reads."""

    ends_with_connection: bool

    def feed(self, at_ns: int, data: bytes) -> bool:
        """Take in one read; whether the body has ended with it. Raises BadAnswer."""


class SizedBody:
    """A body whose length was announced."""

    ends_with_connection = False

    def __init__(self, reads: Reads, length: int) -> None:
        self._reads, self._missing = reads, length

    def feed(self, at_ns: int, data: bytes) -> bool:
        """See `Body`."""
        if len(data) > self._missing:
            raise BadAnswer("more came than its Content-Length")
        self._missing -= len(data)
        if data:
            self._reads.append(at_ns, data)
        return not self._missing


class OpenBody:
    """A body that ends when the server closes the connection."""

    ends_with_connection = True

    def __init__(self, reads: Reads) -> None:
        self._reads = reads

    def feed(self, at_ns: int, data: bytes) -> bool:
        """See `Body`."""
        if data:
            self._reads.append(at_ns, data)
        return False


class ChunkedBody:
    """A body in chunks (RFC 9112, section 7.1). What is kept of a read are the bytes between the sizes."""

    ends_with_connection = False

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._missing = 0  # bytes of the present chunk that are still to come, its line end included
        self._line = b""  # the beginning of a size line or trailer
        self._in_trailers = False

    def feed(self, at_ns: int, data: bytes) -> bool:
        """See `Body`. Nearly always a read is one write of the server's, which is one chunk: that is tried first."""
        parts: list[bytes] = []
        at = 0
        if not (self._missing or self._line or self._in_trailers):
            end = data.find(_END_OF_LINE)
            digits = data[:end]
            if end > 0 and digits.isalnum() and (size := _size(digits)) and len(data) == end + size + 4:
                self._reads.append(at_ns, data[end + 2 : -2])
                return False
            at = _whole_chunks(data, parts)
        try:
            return at < len(data) and self._walk(data, at, parts)
        finally:  # whole chunks came, whatever came behind them
            if parts:
                self._reads.append(at_ns, b"".join(parts))

    def _walk(self, data: bytes, at: int, parts: list[bytes]) -> bool:
        """Any read at all from `at` on: a chunk's end, a size line cut in two, the last chunk and its trailers."""
        while at < len(data):
            if self._missing:
                taken = min(self._missing, len(data) - at)
                of_chunk = min(taken, self._missing - len(_END_OF_LINE))
                if of_chunk > 0:
                    parts.append(data[at : at + of_chunk])
                at, self._missing = at + taken, self._missing - taken
                continue
            end = data.find(b"\n", at)
            self._line += data[at : end + 1] if end >= 0 else data[at:]
            if len(self._line) > MAX_LINE_BYTES:
                raise BadAnswer("a chunk's size line does not end")
            if end < 0:
                break
            at, line, self._line = end + 1, self._line, b""
            if self._ends(line):
                if at < len(data):
                    raise BadAnswer("more came than its last chunk")
                return True
        return False

    def _ends(self, line: bytes) -> bool:
        """Whether a size line or trailer is the last of the body."""
        if not line.endswith(_END_OF_LINE):
            raise BadAnswer(f"a chunk begins with {_shown(line)}")
        if self._in_trailers:
            return line == _END_OF_LINE
        size = _size(line[:-2].partition(b";")[0].rstrip())
        if size:
            self._missing = size + len(_END_OF_LINE)
        self._in_trailers = not size
        return False


def _body(head: Head, reads: Reads) -> Body:
    if head.chunked:
        return ChunkedBody(reads)
    return OpenBody(reads) if head.length is None else SizedBody(reads, head.length)


def _whole_chunks(data: bytes, parts: list[bytes]) -> int:
    """Take the data of the chunks that a read begins with and holds whole; where the rest begins."""
    at, length = 0, len(data)
    while at < length:
        end = data.find(_END_OF_LINE, at)
        digits = data[at:end]
        if end < 0 or not digits.isalnum():
            break
        try:
            size = int(digits, 16)
        except ValueError:
            break
        after = end + size + 4
        if not size or after > length:
            break
        parts.append(data[end + 2 : after - 2])
        at = after
    return at


def _size(digits: bytes) -> int:
    try:
        if digits.isalnum():  # int() would take a sign, spaces and underscores as well
            return int(digits, 16)
    except ValueError:
        pass
    raise BadAnswer(f"a chunk begins with {_shown(digits)}")


class Connection(asyncio.Protocol):
    """One connection. `idle_since` is the loop's time when it was last done with a request."""

    def __init__(self, silence_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._silence_s = silence_s
        self._raw: RawStream | None = None
        self._ended: asyncio.Future[None] | None = None
        self._head = b""
        self._body: Body | None = None
        self._last_ns = self._heard_ns = 0
        self._looks = 0
        self._may_stay = True
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self.idle_since = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands, its TLS as well."""
        self._transport = cast("asyncio.Transport", transport)  # as uvloop's is, though of no common class
        self._transport.set_write_buffer_limits(high=0)  # uvloop then writes at once, and not when its round is over

    @property
    def is_open(self) -> bool:
        """Whether another request may be sent on it."""
        return self._may_stay and not self._transport.is_closing()

    async def exchange(self, request: bytes, raw: RawStream) -> None:
        """Send a request and take in its answer: `sent_ns` is the instant of the write, `done_ns` of the last read.

        Raises BadAnswer, Silent, and OSError for a connection that broke, be it before anything was sent. It is then
        closed, as it is if this is cancelled.
        """
        if not self.is_open:  # nothing would ever come of it, not even its end, which has been
            raise ConnectionError("the server closed it before anything was sent")
        self._raw, self._head, self._body = raw, b"", None
        self._ended = self._loop.create_future()
        self._watching = self._loop.call_later(self._silence_s / LOOKS, self._watch)
        raw.sent_ns = self._last_ns = self._heard_ns = _clock()
        self._looks = 0
        self._transport.write(request)
        try:
            await self._ended
        except BaseException:
            self._may_stay = False
            self._transport.abort()
            raise
        finally:
            self._watching.cancel()
            self._raw = None
        self.idle_since = self._loop.time()

    def _watch(self) -> None:
        """Fail an exchange that was silent at so many looks; look again later at one that was not.

        A pause of this process is one look, however long it lasts: what came meanwhile is read before the next.
        """
        self._looks = self._looks + 1 if self._last_ns == self._heard_ns else 0
        self._heard_ns = self._last_ns
        if self._looks >= LOOKS:
            self._fail(Silent())
        elif self._raw is not None:
            self._watching = self._loop.call_later(self._silence_s / LOOKS, self._watch)

    def data_received(self, data: bytes) -> None:
        """Keep a read, its time first: of an encrypted connection nothing better is known than when it is read."""
        self.take_in(_clock(), data)

    def take_in(self, at_ns: int, data: bytes) -> None:
        """Keep a read that came at `at_ns`."""
        self._last_ns = at_ns
        if self._raw is None:
            self._may_stay = False  # nothing was asked: whatever it is, the next answer cannot be told from it
            return
        at_ns = max(at_ns, self._raw.sent_ns)  # it may have lain there unread from before anything was asked
        try:
            ended = self._body.feed(at_ns, data) if self._body is not None else self._begins(at_ns, data)
        except BadAnswer as problem:
            self._fail(problem)
        else:
            if ended:
                self._end(at_ns)

    def _begins(self, at_ns: int, data: bytes) -> bool:
        """Take in a part of the head and what follows it; whether the answer has ended."""
        assert self._raw is not None  # noqa: S101 - only asked during an exchange
        self._head += data
        while True:
            head, found, rest = self._head.partition(_END_OF_HEAD)
            if len(head) > MAX_LINE_BYTES:
                raise BadAnswer("its head does not end")
            if not found:
                if b"\n\n" in head:
                    raise BadAnswer("the lines of its head end with LF alone, not with CR LF")
                return False
            told = parse_head(head)
            if told.status >= 200:
                break
            self._head = rest  # "go on" and its like come before the answer
        self._raw.status, self._may_stay = told.status, told.keeps_alive
        self._body = _body(told, self._raw.reads)
        return self._body.feed(at_ns, rest)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: an end to some bodies, a failure to the others."""
        self._may_stay = False
        if not self._gone.done():
            self._gone.set_result(None)
        if self._raw is None:
            return
        if exc is None and self._body is not None and self._body.ends_with_connection:
            self._end(_clock())
        elif isinstance(exc, OSError):
            self._fail(exc)
        else:
            self._fail(ConnectionError("the server closed it before the answer had ended"))

    def _end(self, at_ns: int) -> None:
        assert self._raw is not None  # noqa: S101 - only ended during an exchange
        self._raw.done_ns = at_ns
        self._raw = None
        if self._transport.get_write_buffer_size():  # refused before it had all left: nothing may follow on its heels
            self._may_stay = False
            self._transport.abort()
        elif not self._may_stay:
            self._transport.close()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _fail(self, problem: Exception) -> None:
        self._raw = None
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(problem)

    def close(self) -> None:
        """Close the connection."""
        self._may_stay = False
        self._transport.close()

    async def closed(self) -> None:
        """Wait until it is gone; one that takes long over its farewell (TLS) is cut off."""
        await asyncio.wait({self._gone}, timeout=CLOSE_S)
        self._transport.abort()
