"""Names to connections in bounded time: the system's resolver may hang for minutes, which no socket time-out covers."""

from __future__ import annotations

import errno
import ipaddress
import socket
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

# What this machine lacks says nothing of a server: descriptors, ports, buffers.
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})
RESOLVE_S = 10.0  # a resolver that has not answered by then has lost its servers, or their answers

Answer = tuple[int, int, int, str, tuple[Any, ...]]  # of getaddrinfo: family, kind, protocol, name, address


def place_of(base_url: str) -> tuple[str, int]:
    """The host and port that a server's address names."""
    url = urlsplit(base_url)
    return url.hostname or "", url.port or (443 if url.scheme == "https" else 80)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, reached by nobody else."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """A connection to the first of a name's addresses that takes one, with `timeout_s` as its time limit.

    Raises what `addresses` raises, or else what the last address said.
    """
    problem: OSError = socket.gaierror(f"the name {host!r} has no address")
    for family, kind, protocol, _, address in addresses(host, port, timeout_s):
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


def refusal(host: str, port: int, timeout_s: float) -> OSError | None:
    """How a server refuses connections; None where it takes them, or is too busy to say so.

    A name that is not resolved just now, and what this machine itself lacks, are no refusal.
    """
    try:
        connect(host, port, timeout_s).close()
    except (TimeoutError, socket.gaierror):
        return None
    except OSError as problem:
        return None if problem.errno in _OURS else problem
    return None


def addresses(host: str, port: int, timeout_s: float = RESOLVE_S) -> list[Answer]:
    """What `getaddrinfo` answers within `timeout_s`, or within `RESOLVE_S` if that is less.

    Raises OSError: TimeoutError, which names the name, where no answer comes in time; gaierror where there is no such
    name. Only a name needs a resolver, and only a resolver a thread that may hang with it.
    """
    if _is_numeric(host):
        return _asked(host, port, socket.AI_NUMERICHOST)
    answers: SimpleQueue[list[Answer] | OSError] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put(_asked(host, port))
        except OSError as problem:
            answers.put(problem)
        except UnicodeError as problem:
            answers.put(socket.gaierror(f"{host!r} can be no name: {problem}"))

    limit_s = min(timeout_s, RESOLVE_S)
    Thread(target=ask, name=f"resolver of {host}", daemon=True).start()
    try:
        answer = answers.get(timeout=limit_s)
    except Empty:
        raise TimeoutError(f"the name {host!r} was not resolved within {limit_s:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _asked(host: str, port: int, flags: int = 0) -> list[Answer]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags))


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
