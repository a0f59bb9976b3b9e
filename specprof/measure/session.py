"""A server's connections: opened before anything is measured, kept alive, and used again."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Any
from urllib.parse import quote, urlsplit

from specprof.engine import names
from specprof.engine.access import Access
from specprof.measure.arrivals import KernelClock
from specprof.measure.http1 import Connection
from specprof.measure.plain import plain_connection
from specprof.measure.reads import Reads, Spool
from specprof.measure.wire import RawStream
from specprof.records import Phase

CONNECT_S = 10.0

_clock = time.perf_counter_ns


class Session:
    """Sends requests to one server. None waits for a connection in use: where none is free, another is opened.

    A connection that was idle for `idle_s` is not used again; an answer that says nothing for `silence_s` has failed.
    """

    def __init__(self, base_url: str, access: Access, *, idle_s: float, silence_s: float) -> None:
        url = urlsplit(base_url)
        self._access = access
        self._host, self._port = names.place_of(base_url)
        self._tls: ssl.SSLContext | None = access.tls() if url.scheme == "https" else None
        self._place = quote(url.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
        headers = {
            "Host": url.netloc if url.netloc.isascii() else url.netloc.encode("idna").decode(),
            "User-Agent": "specprof",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
            "Connection": "keep-alive",
            "Content-Type": "application/json",
            **access.headers(),
        }
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._idle_s, self._silence_s = idle_s, silence_s
        self._addresses: asyncio.Future[list[names.Answer]] | None = None
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._spool = Spool()
        self._kernel = KernelClock()

    async def warm_up(self, num_connections: int) -> None:
        """Resolve the server's name, open so many connections and use each once (GET /health).

        One that fails is left to the request that needs it.
        """
        await asyncio.gather(*(self._touch() for _ in range(num_connections)), return_exceptions=True)

    async def _touch(self) -> None:
        connection = await self._connect()
        try:
            async with asyncio.timeout(CONNECT_S):
                await connection.exchange(self._request("GET", "/health", b""), RawStream("", Phase.WARMUP, 0, 0))
        finally:
            self._give_back(connection)

    async def post(self, path: str, body: bytes, raw: RawStream) -> None:
        """One request to its answer's end. What connecting took, if it came to that, is `raw.connect_ns`.

        What a server says of a request that it refused may repeat the token, and is kept without. Raises what
        `Connection.exchange` raises, and OSError where the server cannot be reached.
        """
        raw.reads.spool = self._spool
        connection = self._take()
        if connection is None:
            began_ns = _clock()
            try:
                connection = await self._connect()
            finally:
                raw.connect_ns = _clock() - began_ns
        try:
            await connection.exchange(self._request("POST", path, body), raw)
        finally:
            raw.reads.close()
            self._give_back(connection)
            if raw.status != 200 and raw.reads:
                raw.reads = Reads([(raw.done_ns, self._access.scrubbed(raw.reads.body()))])

    @property
    def kernel_timed(self) -> float:
        """The share of reads whose time is the kernel's: none of an encrypted connection."""
        return self._kernel.kernel_timed

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        """A request as one block, so that it leaves in one write."""
        head = f"{method} {self._place}{path} HTTP/1.1\r\n{self._headers}Content-Length: {len(body)}\r\n\r\n"
        return head.encode("ascii") + body

    def _take(self) -> Connection | None:
        """A connection that is open and was not idle for too long; None if there is none."""
        oldest = asyncio.get_running_loop().time() - self._idle_s
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.idle_since > oldest:
                return connection
            self._drop(connection)
        return None

    def _give_back(self, connection: Connection) -> None:
        if connection.is_open:
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        connection.close()
        self._all.discard(connection)

    async def _connect(self) -> Connection:
        connection = await self._opened(await self._resolved())
        self._all.add(connection)
        return connection

    async def _resolved(self) -> list[names.Answer]:
        """Where the name leads: asked once for all connections, so that no request waits for a resolver of its own.

        Raises OSError, in bounded time, where it leads nowhere; the next connection then asks again.
        """
        if self._addresses is None:
            self._addresses = asyncio.ensure_future(asyncio.to_thread(names.addresses, self._host, self._port))
        asked = self._addresses
        try:
            return await asyncio.shield(asked)
        except OSError:
            if self._addresses is asked:
                self._addresses = None
            raise

    async def _opened(self, addresses: list[names.Answer]) -> Connection:
        """A connection to the first of the addresses that takes one, which is tried first from then on.

        `CONNECT_S` is for all of them together: what is left of it is shared evenly by those that are left. Raises what
        the last of them said.
        """
        deadline_s = asyncio.get_running_loop().time() + CONNECT_S
        problem: OSError = ConnectionError(f"the name {self._host!r} has no address")
        for num_tried, answer in enumerate(tuple(addresses)):
            left_s = deadline_s - asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(left_s / (len(addresses) - num_tried)):
                    connection = await self._open(answer)
            except TimeoutError:
                problem = ConnectionError(f"no connection within {CONNECT_S:g} s")
            except OSError as refused:
                problem = refused
            else:
                addresses.remove(answer)
                addresses.insert(0, answer)
                return connection
        self._addresses = None  # by now the name may lead elsewhere
        raise problem

    async def _open(self, answer: names.Answer) -> Connection:
        family, _, _, _, address = answer
        if self._tls is None:
            return await plain_connection(family, address, self._kernel, self._connection)
        return await self._encrypted(self._tls, address)

    async def _encrypted(self, tls: ssl.SSLContext, address: tuple[Any, ...]) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            self._connection, *address[:2], ssl=tls, server_hostname=self._host
        )
        return connection

    def _connection(self) -> Connection:
        return Connection(self._silence_s)

    async def close(self) -> None:
        """Close every connection, and wait until they are gone."""
        every = tuple(self._all)
        for connection in every:
            connection.close()
        self._all.clear()
        self._idle.clear()
        await asyncio.gather(*(connection.closed() for connection in every))
