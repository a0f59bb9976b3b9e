"""When a read's bytes arrived: as the kernel noted it, on the client's own clock.

A process notes a read when it gets round to it: of 64 chunks that come at once the last waits until 63 were read, and
a process that was elsewhere notes all of them late. The kernel notes each packet as it comes in, and hands the time
over with the bytes (`SO_TIMESTAMPNS`). Of several packets in one read it is the last one's.

The kernel's time is that of day, which can be set while a study runs. Both clocks are slewed alike and only steps come
between them, so their difference is measured once and looked at again with each read.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

TOLERANCE_NS = 20_000  # between two looks at the clocks' difference; a step of less is an error of less

_STAMPS = 64  # SO_TIMESTAMPNS_NEW of Linux, option and message type alike
_TIMESPEC = struct.Struct("=qq")  # seconds, nanoseconds
CONTROL_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)  # what a read has to leave room for
_LOOKS = 5

_clock = time.perf_counter_ns
_time_of_day = time.time_ns


class KernelClock:
    """Puts the kernel's times on the client's clock."""

    def __init__(self) -> None:
        self._ahead_ns = _difference_ns()
        self._num_asked = self._num_told = 0

    @property
    def told_share(self) -> float:
        """Of the reads it was asked about, how many the kernel's time is known of."""
        return self._num_told / max(self._num_asked, 1)

    def arrived_ns(self, control: Sequence[tuple[int, int, bytes]], read_ns: int, not_before_ns: int) -> int:
        """When the bytes of a read arrived that returned at `read_ns`; that itself where the kernel's word is not to
        be had, or cannot be: before what they follow, after they were read, or across a step of the time of day.
        """
        self._num_asked += 1
        if abs(_time_of_day() - read_ns - self._ahead_ns) > TOLERANCE_NS and self._was_set():
            return read_ns
        if not control:
            return read_ns
        seconds: int
        nanoseconds: int
        seconds, nanoseconds = _TIMESPEC.unpack(control[0][2])
        at_ns = seconds * 1_000_000_000 + nanoseconds - self._ahead_ns
        if not not_before_ns <= at_ns <= read_ns:
            return read_ns
        self._num_told += 1
        return at_ns

    def _was_set(self) -> bool:
        """Whether the time of day was set since the last look, and not this process held up between its two clocks."""
        before_ns, self._ahead_ns = self._ahead_ns, _difference_ns()
        return abs(self._ahead_ns - before_ns) > TOLERANCE_NS


def _difference_ns() -> int:
    """How far the time of day is ahead of the client's clock: of several looks the one that took least."""
    looks = []
    for _ in range(_LOOKS):
        before_ns, day_ns, after_ns = _clock(), _time_of_day(), _clock()
        looks.append((after_ns - before_ns, day_ns - (before_ns + after_ns) // 2))
    return min(looks)[1]


def ask_for_times(connected: socket.socket) -> None:
    """Have the kernel note when this connection's bytes arrive; where it cannot, reads have their own time."""
    if sys.platform == "linux":
        with suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, _STAMPS, 1)
