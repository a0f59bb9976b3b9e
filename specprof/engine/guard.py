"""Watchdog between specprof and an engine: whatever becomes of specprof, no process of the engine stays.

    python -m specprof.engine.guard GRACE_S COMMAND…

Standard input is a pipe that specprof holds. Its end means "stop", and it ends by itself when specprof dies, kill -9
included. The guard starts the engine in a session of its own, adopts every process the engine leaves behind, and when
the end comes sends TERM to all, waits GRACE_S seconds, and kills what is left. It prints the engine's process id as
its first and only line, and exits with the engine's exit code (128 + n for signal n).
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.2
_REAP_S = 5.0
_SHM = Path("/dev/shm")  # noqa: S108 - the system's place for shared memory, and only names seen in maps are touched


class _Stopped(Exception):
    """A signal asked the guard to end the engine."""


def main(argv: Sequence[str]) -> int:
    """Run and watch one engine; the exit code is the engine's."""
    grace_s, *command = argv
    return watch(command, grace_s=float(grace_s))


def watch(command: Sequence[str], *, grace_s: float) -> int:
    """Start `command` and leave only when it and everything it started is gone."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _on_signal)
    adopt = _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    adopt()
    engine = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=True,
        preexec_fn=_prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 - this process has one thread
    )
    memory = SharedMemory()
    try:
        sys.stdout.write(f"{engine.pid}\n")
        sys.stdout.flush()
        _wait_for_an_end(engine, memory)
    except (_Stopped, BrokenPipeError):
        pass
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    memory.look()
    _end_all(engine, grace_s)
    memory.clear()
    code = engine.wait()
    return code if code >= 0 else 128 - code


def _wait_for_an_end(engine: subprocess.Popen[bytes], memory: SharedMemory) -> None:
    """Return when the engine has exited or specprof has: end of the pipe, or another parent."""
    parent = os.getppid()
    while engine.poll() is None and os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin], [], [], _POLL_S)
        if readable and not os.read(sys.stdin.fileno(), 1024):
            return
        memory.look_when_due()


def _end_all(engine: subprocess.Popen[bytes], grace_s: float) -> None:
    """TERM to the whole tree, time to leave, then KILL until nothing is left."""
    _signal_all(engine.pid, signal.SIGTERM)
    _wait_until_gone(engine, grace_s)
    until = time.monotonic() + _REAP_S
    while _descendants() and time.monotonic() < until:
        _signal_all(engine.pid, signal.SIGKILL)
        _wait_until_gone(engine, 0.5)


def _wait_until_gone(engine: subprocess.Popen[bytes], wait_s: float) -> None:
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        engine.poll()
        _reap_adopted(engine.pid)
        if not _descendants():
            return
        time.sleep(0.05)


def _signal_all(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # the group may be empty; strays are met below
        os.killpg(group, number)
    for process in _descendants():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) != group:
                process.send_signal(number)


def _descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _reap_adopted(engine_pid: int) -> None:
    """Collect exit states of adopted orphans; the engine's own is left to Popen."""
    for process in psutil.Process().children():
        if process.pid != engine_pid:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


class SharedMemory:
    """Segments in /dev/shm that the engine's processes have mapped, so that a killed engine leaves none behind."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._pids: set[int] = set()
        self._pause_s = 2.0
        self._due = time.monotonic() + self._pause_s

    def look_when_due(self) -> None:
        """Look again after 2, 4, 8, … seconds, at most every minute: reading maps must not disturb a measurement."""
        if time.monotonic() >= self._due:
            self.look()
            self._pause_s = min(60.0, self._pause_s * 2)
            self._due = time.monotonic() + self._pause_s

    def look(self) -> None:
        """Note what the engine's processes map now."""
        for process in _descendants():
            self._pids.add(process.pid)
            self._names |= _mapped_segments(process.pid)

    def clear(self) -> None:
        """Remove noted segments that no living process maps. Only names seen in the engine's own processes go."""
        own = {name for name in self._names if (_SHM / name).exists()}
        # Intel's OpenMP registers itself under its process id and never cleans up after a kill.
        own |= {path.name for pid in self._pids for path in _SHM.glob(f"__KMP_REGISTERED_LIB_{pid}_*")}
        if own:
            own -= set().union(*(_mapped_segments(pid) for pid in psutil.pids()))
        for name in own:
            (_SHM / name).unlink(missing_ok=True)


def _mapped_segments(pid: int) -> set[str]:
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return set()
    mapped = (line.partition(f"{_SHM}/")[2] for line in maps.splitlines())
    return {name for name in mapped if name and not name.endswith(" (deleted)") and "/" not in name}


def _prctl(option: int, value: int) -> Callable[[], None]:
    """A call that sets a process attribute on Linux and does nothing elsewhere; safe between fork and exec."""
    if sys.platform != "linux":
        return lambda: None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(option, value, 0, 0, 0) and None


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    raise _Stopped


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
