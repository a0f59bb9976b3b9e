"""Names to connections in bounded time: the system's resolver may hang for minutes, which no socket time-out covers."""

from __future__ import annotations

import ipaddress
import socket
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

RESOLVE_S = 10.0  # a resolver that has not answered by then has lost its servers, or their answers


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """A connection to the first of a name's addresses that takes one, with `timeout_s` as its time limit.

    Raises OSError: TimeoutError, which names the name, where it is not resolved in time; gaierror where there is no
    such name; else what the last address said.
    """
    problem: OSError = socket.gaierror(f"the name {host!r} has no address")
    for family, kind, protocol, _, address in _addresses(host, port, min(timeout_s, RESOLVE_S)):
        found = socket.socket(family, kind, protocol)
        try:
            found.settimeout(timeout_s)
            found.connect(address)
        except OSError as refused:
            found.close()
            problem = refused
        else:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return found
    raise problem


def _addresses(host: str, port: int, timeout_s: float) -> list[tuple[Any, ...]]:
    """What `getaddrinfo` answers. Only a name needs a resolver, and only a resolver a thread that may hang with it."""
    if _is_numeric(host):
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
    answers: SimpleQueue[list[tuple[Any, ...]] | OSError | UnicodeError] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put(list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
        except (OSError, UnicodeError) as problem:
            answers.put(problem)

    Thread(target=ask, name=f"resolver of {host}", daemon=True).start()
    try:
        answer = answers.get(timeout=timeout_s)
    except Empty:
        raise TimeoutError(f"the name {host!r} was not resolved within {timeout_s:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
