"""Workers that are processes on this machine: called through pipes, gone with us however we end."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import count
from subprocess import PIPE, Popen, TimeoutExpired
from threading import Lock, Thread
from typing import IO, Any

from specprof.errors import ClientError
from specprof.measure.crew import Crew, WorkerLost
from specprof.measure.worker import HEADER, frame

_PATIENCE_S = 1.0  # for a process whose input has ended to leave by itself


@contextmanager
def process_crew(num_workers: int) -> Iterator[Crew]:
    """A crew of processes; none of them is left when the block ends."""
    workers = Crew(num_workers, ProcessHand)
    try:
        yield workers
    finally:
        workers.stop()


class ProcessHand:
    """A worker process (`measure.crew.Hand`). Bearer tokens reach it through the environment it inherits."""

    def __init__(self) -> None:
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process, closed in `stop`
        self._process = Popen(
            [sys.executable, "-P", "-m", "specprof.measure.worker"],
            stdin=PIPE,
            stdout=PIPE,
            stderr=self._said,
            start_new_session=True,  # an interrupt at the terminal is ours to handle
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._numbers = count()
        self._waiting: dict[int, Future[Any]] = {}
        self._lock, self._writing = Lock(), Lock()
        self._is_over = False
        self._listening = Thread(target=self._listen, name=f"worker {self._process.pid}", daemon=True)
        self._listening.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    async def call(self, method: str, *arguments: Any) -> Any:
        """What the method returns. Raises WorkerLost if the process is gone, ClientError if the method failed."""
        number, answer = next(self._numbers), Future[Any]()
        with self._lock:
            if self._is_over:
                raise WorkerLost(self._ending())
            self._waiting[number] = answer
        data = frame((number, method, arguments))
        if len(data) > 2**16:  # more than a pipe takes at once: whoever reads it may be busy
            await asyncio.to_thread(self._write, data)
        else:
            self._write(data)
        return await asyncio.wrap_future(answer)

    def stop(self) -> None:
        """End the process: ask by closing its input, and where that does not help, kill it.

        One that does not read what is just being written to it cannot be asked: closing would wait for that write.
        """
        if not self._writing.acquire(timeout=_PATIENCE_S):
            self._process.kill()
            self._writing.acquire()
        try:
            self._input.close()
        except OSError:
            pass
        finally:
            self._writing.release()
        try:
            self._process.wait(_PATIENCE_S)
        except TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listening.join()
        self._output.close()
        self._said.close()

    @property
    def _input(self) -> IO[bytes]:
        assert self._process.stdin is not None  # noqa: S101 - asked for above; tells the type checker
        return self._process.stdin

    @property
    def _output(self) -> IO[bytes]:
        assert self._process.stdout is not None  # noqa: S101 - asked for above; tells the type checker
        return self._process.stdout

    def _write(self, data: bytes) -> None:
        with self._writing, suppress(OSError):  # it is gone: `_listen` notices, and says so to whoever waits
            self._input.write(data)
            self._input.flush()

    def _listen(self) -> None:
        """Hand answers to whoever waits for them, until the process is gone; then tell all that are left."""
        while (answer := self._next()) is not None:
            number, went_well, result = answer
            with self._lock:
                waiting = self._waiting.pop(number)
            if waiting.set_running_or_notify_cancel():  # nobody may want it any more
                if went_well:
                    waiting.set_result(result)
                else:
                    waiting.set_exception(ClientError(str(result)))
        self._process.wait()
        with self._lock:
            self._is_over = True
            left = [*self._waiting.values()]
            self._waiting.clear()
        for waiting in left:
            if waiting.set_running_or_notify_cancel():
                waiting.set_exception(WorkerLost(self._ending()))

    def _next(self) -> tuple[int, bool, Any] | None:
        head = self._output.read(HEADER.size)
        if len(head) < HEADER.size:
            return None
        (length,) = HEADER.unpack(head)
        body = self._output.read(length)
        if len(body) < length:
            return None
        answer: tuple[int, bool, Any] = pickle.loads(body)  # noqa: S301 - written by our own child
        return answer

    def _ending(self) -> str:
        """How it ended, and the last thing it said."""
        code = self._process.wait()
        if code < 0:
            return f"its process was killed by signal {-code}"
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return f"its process exited with code {code}" + (f": {lines[-1]}" if lines else "")
