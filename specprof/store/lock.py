"""One run at a time: who measures a study holds its lock, and says who that is."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from specprof.errors import StoreError
from specprof.store.files import now, writing

_MOST = 1000  # characters of a lock file that are looked at


@contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Hold the folder's lock while the block lasts. The system frees it when the process ends, however it ends.

    StoreError, naming the process and host that hold it, if another run has it.
    """
    with _opened(root / ".lock") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"{root}: another run is measuring this study{_holder(handle)}. Wait for it, or stop it."
            ) from None
        except OSError as problem:
            raise StoreError(
                f"{root}: cannot be locked ({problem.strerror}), so nothing keeps two runs apart there. Choose a "
                "folder on another file system with --results."
            ) from None
        with suppress(OSError):  # a courtesy to whoever comes next: the lock itself holds without it
            _sign(handle)
        try:
            yield
        finally:
            with suppress(OSError):
                handle.truncate(0)  # results that are handed on name no host


def _opened(path: Path) -> IO[str]:
    """The lock file, made if need be. StoreError where a link or the like stands in its place: it is written to."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with writing(path.parent):
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise StoreError(f"{path}: is a link or no file, and nothing is written through it. Remove it.")
        return os.fdopen(os.open(path, flags, 0o666), "a+", encoding="utf-8", errors="replace")


def _sign(handle: IO[str]) -> None:
    handle.truncate(0)
    handle.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now()}))
    handle.flush()


def _holder(handle: IO[str]) -> str:
    """Who holds the lock, in words; empty where that is not written there."""
    try:
        handle.seek(0)
        told = json.loads(handle.read(_MOST))
        pid, host, since = int(told["pid"]), str(told["host"]), str(told["since"])
    except (OSError, ValueError, TypeError, KeyError):
        return ""
    said = f" (process {pid} on {host}, since {since})"
    return said if said.isprintable() else ""
