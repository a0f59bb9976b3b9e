"""When a read's bytes arrived: as the kernel noted it, on the client's own clock.

A process notes a read when it gets round to it: of 64 chunks that come at once the last waits until 63 were read, and
a process that was elsewhere notes all of them late. The kernel notes each packet as it comes in, and hands the time
over with the bytes (`SO_TIMESTAMPNS`). Of several packets in one read it is that of the last one in their order.

The kernel's time is that of day, which can be set while a study runs. Both clocks are slewed alike and only steps come
between them, so their difference is measured once and looked at again with each read.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

TOLERANCE_NS = 20_000  # between two looks at the clocks' difference; a step of less is an error of less
LATE_NS = 1_000_000  # after its packet came: such a read may have waited for a lost one. A shorter wait goes unseen

_STAMPS = (64, 35)  # SO_TIMESTAMPNS of Linux, the one since 5.1 and the one before: option and message type alike
_TIMESPEC = struct.Struct("=qq")  # seconds, nanoseconds
CONTROL_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)  # what a read has to leave room for
_OUT_OF_ORDER = struct.Struct("=224xI")  # of the kernel's `struct tcp_info`: segments that came before an earlier one
_LOOKS = 5

_clock = time.perf_counter_ns
_time_of_day = time.time_ns

Control = Sequence[tuple[int, int, bytes]]


class KernelClock:
    """Puts the kernel's times on the client's clock."""

    def __init__(self) -> None:
        self._ahead_ns = _difference_ns()
        self._set_ns = 0  # when the time of day was last seen to have been set
        self._num_asked = self._num_told = 0

    @property
    def kernel_timed(self) -> float:
        """The share of the reads it was asked about whose time is the kernel's."""
        return self._num_told / max(self._num_asked, 1)

    def arrived_ns(self, control: Control, read_ns: int, not_before_ns: int, in_order: Callable[[], bool]) -> int:
        """When the bytes of a read arrived that returned at `read_ns`; that itself where the kernel's word is not to
        be had, or cannot be: before what they follow, after they were read, or across a step of the time of day.

        `in_order` is asked of a read that is `LATE_NS` late, and says whether this connection's packets came in order
        since it was last asked.
        """
        self._num_asked += 1
        if abs(_time_of_day() - read_ns - self._ahead_ns) > TOLERANCE_NS and self._was_set_again():
            self._set_ns = read_ns  # whatever was noted before this was noted by another time of day
        noted_ns = _noted_ns(control)
        if noted_ns is None:
            return read_ns
        at_ns = noted_ns - self._ahead_ns
        if not max(not_before_ns, self._set_ns) <= at_ns <= read_ns:
            return read_ns
        if read_ns - at_ns > LATE_NS and not in_order():
            return read_ns
        self._num_told += 1
        return at_ns

    def _was_set_again(self) -> bool:
        """Look anew: whether the time of day was set since the last look, or this process only held up between two
        clocks.
        """
        before_ns, self._ahead_ns = self._ahead_ns, _difference_ns()
        return abs(self._ahead_ns - before_ns) > TOLERANCE_NS


def _difference_ns() -> int:
    """How far the time of day is ahead of the client's clock: of several looks the one that took least."""
    looks = []
    for _ in range(_LOOKS):
        before_ns, day_ns, after_ns = _clock(), _time_of_day(), _clock()
        looks.append((after_ns - before_ns, day_ns - (before_ns + after_ns) // 2))
    return min(looks)[1]


def _noted_ns(control: Control) -> int | None:
    """The time of day in what the kernel handed over beside the bytes; None where there is none that we can read."""
    for level, kind, told in control:
        if level == socket.SOL_SOCKET and kind in _STAMPS and len(told) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(told)
            return int(seconds * 1_000_000_000 + nanoseconds)
    return None


def ask_for_times(connected: socket.socket) -> None:
    """Have the kernel note when this connection's bytes arrive; where it cannot, reads have their own time."""
    if sys.platform != "linux":
        return
    for option in _STAMPS:
        with suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, option, 1)
            return


def num_out_of_order(connected: socket.socket) -> int:
    """So many packets of this connection came before an earlier one: lost ones were sent again, or took another way.

    The kernel's time of a read is that of its last packet in order, which may have lain there waiting for the others.
    """
    try:
        told = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _OUT_OF_ORDER.size)
        return int(_OUT_OF_ORDER.unpack(told)[0])
    except (OSError, AttributeError, struct.error):  # no such call, or an older kernel that does not count them
        return 0
