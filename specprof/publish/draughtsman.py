"""A second process that draws some of the pictures, so that two cores share the work.

It loads what drawing needs while the study is still being analysed, and is then given the figures and one picture after
the other. Both ways go pickles, through pipes between a process and its own child; the child's input ends with its
parent, and it with that. Nothing depends on it: what it does not bring back is drawn here.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from subprocess import DEVNULL, PIPE, Popen
from threading import Thread
from typing import IO, Any

from specprof.analyse.results import StudyFigures
from specprof.publish.figures import Draw, Hand, each_in_turn, sketches
from specprof.publish.pictures.style import Sheet, house_style


@contextmanager
def draughtsman() -> Iterator[Hand]:
    """Somebody for `figures.draw` to draw with; nothing is left of it when the block ends."""
    process = _started() if _cores() > 1 else None
    if process is None:
        yield each_in_turn
        return
    beside = Draughtsman(process)
    try:
        yield beside.draw_all
    finally:
        beside.stop()


def _cores() -> int:
    """Of the machine, or as many of them as we may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _started() -> Popen[bytes] | None:
    """None where the system starts no more processes."""
    try:
        return Popen(
            [sys.executable, "-P", "-m", "specprof.publish.draughtsman"],
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,  # what goes wrong there goes wrong here once more, and is said then
            start_new_session=True,  # an interrupt at the terminal is ours to handle
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except OSError:
        return None


class Draughtsman:
    """The process as seen from here."""

    def __init__(self, process: Popen[bytes]) -> None:
        self._process = process
        self._asking: Thread | None = None

    def draw_all(self, figures: StudyFigures, drawings: Sequence[Draw]) -> list[bytes | None]:
        """Draw with it: this process begins with the first picture, the other with the last."""
        left = deque(range(len(drawings)))
        drawn: dict[int, bytes | None] = {}
        self._asking = Thread(target=self._let_it_draw, args=(figures, left, drawn), daemon=True)
        self._asking.start()
        for place in _each(left.popleft):
            drawn[place] = drawings[place]()
        self._asking.join()
        return [drawn[place] if place in drawn else draw() for place, draw in enumerate(drawings)]

    def stop(self) -> None:
        """End it now, whatever it does."""
        self._process.kill()
        if self._asking is not None:
            self._asking.join()  # before its pipes are closed under its hands
        with suppress(OSError), self._process:  # closes them, and waits for its end
            pass

    def _let_it_draw(self, figures: StudyFigures, left: deque[int], drawn: dict[int, bytes | None]) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101 - asked for as pipes
        with suppress(OSError, EOFError, pickle.UnpicklingError):  # it is gone
            _send(self._process.stdin, figures)
            for place in _each(left.pop):
                _send(self._process.stdin, place)
                drawn[place] = pickle.load(self._process.stdout)  # noqa: S301 - written by our own child


def _each(take: Callable[[], int]) -> Iterator[int]:
    """What is taken one after the other, until nothing is left."""
    with suppress(IndexError):
        while True:
            yield take()


def _send(pipe: IO[bytes], told: Any) -> None:
    pickle.dump(told, pipe)
    pipe.flush()


def main() -> None:
    """Draw for whoever started this process, until that ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whoever prints must not write among the answers
    with suppress(EOFError), house_style():
        Sheet(1).png()  # loads all that drawing needs while the figures are not there yet
        planned = sketches(pickle.load(sys.stdin.buffer))  # noqa: S301 - written by our own parent
        while True:
            _send(answers, planned[pickle.load(sys.stdin.buffer)].draw())  # noqa: S301


if __name__ == "__main__":
    main()
