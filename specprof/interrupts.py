"""Interrupts that wait: Ctrl-C, SIGTERM and a terminal that is closed, while something must not be cut in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

FORCED = 3  # interrupts of somebody who does not wait for what is being done


@contextmanager
def interrupts_held(on_interrupt: Callable[[], None] = lambda: None) -> Iterator[None]:
    """What would raise KeyboardInterrupt while the block lasts calls `on_interrupt` instead, and raises it afterwards.

    The third one is raised at once. Whoever handles a signal in another way is left alone, and so is every thread but
    the main one, which alone is interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) >= FORCED:
            signal.default_int_handler(number, frame)
        on_interrupt()

    interrupts = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    raising = [number for number in interrupts if signal.getsignal(number) is signal.default_int_handler]
    try:
        for number in raising:
            signal.signal(number, hold)
        yield
    finally:
        for number in raising:
            signal.signal(number, signal.default_int_handler)
        if came:
            signal.raise_signal(came[0])
