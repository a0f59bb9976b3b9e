"""Standard output and standard error that outlast whoever reads them: in `specprof report X | head`, `head` goes first.

From then on what is written goes nowhere, and the command goes on: a report's files are written, a run measures to its
end. The exit code is the one it would have had: 0 where all was done, for whoever left had read what was wanted.
"""

from __future__ import annotations

import codecs
import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import TextIOWrapper
from typing import Any, TextIO, cast

_ESCAPES = "specprof-escapes"


@contextmanager
def outlasting_readers() -> Iterator[None]:
    """While the block lasts, all that is printed may lose its reader. A stream that was closed to us has none."""
    codecs.register_error(_ESCAPES, _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=_ESCAPES)
    with redirect_stdout(_outlet(sys.stdout)), redirect_stderr(_outlet(sys.stderr)):
        try:
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError):
                    stream.flush()


def _escaped(problem: UnicodeError) -> tuple[str, int]:
    r"""What a terminal has no signs for as \uXXXX, which in JSON is the same text. For `codecs.register_error`."""
    assert isinstance(problem, UnicodeEncodeError)  # noqa: S101 - of a stream that is written to
    units = problem.object[problem.start : problem.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)), problem.end


def _outlet(stream: TextIO | None) -> TextIO:
    return cast("TextIO", Outlet(stream or open(os.devnull, "w", encoding="utf-8")))  # noqa: PTH123


class Outlet:
    """A stream that is written to for as long as somebody reads it. In all else it is that stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text. Raises OSError, once, where a disk does not take it."""
        with self._while_read():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Hand on what was written. Raises as `write` does."""
        with self._while_read():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _while_read(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            has_no_reader = self._has_no_reader(problem)
            self._lead_nowhere()  # or what is left in a buffer would fail once more as the process ends
            if not has_no_reader:
                raise

    def _has_no_reader(self, problem: OSError) -> bool:
        """Of a pipe its other end is closed; of a terminal that is gone, reading and writing fail."""
        if problem.errno == errno.EIO:
            return stat.S_ISCHR(os.fstat(self._stream.fileno()).st_mode)
        return problem.errno == errno.EPIPE

    def _lead_nowhere(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
