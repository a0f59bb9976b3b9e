"""One engine as a process tree under its guard: started, watched, and ended whole."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from specprof.engine.command import Command
from specprof.engine.log import root_cause
from specprof.errors import EngineStartError

GRACE_S = 10.0  # between TERM and KILL
_GUARD_EXTRA_S = 10.0  # the guard's own clean-up after that
_WORKER_PREFIX = "VLLM::"  # how vLLM names its processes


class GuardedProcess:
    """The guard and, below it, the engine. Counts as alive while all of the engine's named processes are."""

    def __init__(self, guard: subprocess.Popen[bytes]) -> None:
        self._guard = guard
        self._known: set[psutil.Process] = set()  # every process ever seen below the guard
        self._watched: tuple[psutil.Process, ...] = ()

    @property
    def exit_code(self) -> int | None:
        """The engine's exit code once it is gone (128 + n for signal n), else None."""
        return self._guard.poll()

    def await_start(self, what: str, log: Path) -> None:
        """Return once the guard has started the engine, whose process id it then prints."""
        line = self._guard.stdout.readline() if self._guard.stdout is not None else b""
        if not line.strip().isdigit():
            cause = root_cause(log) or "its guard process failed"
            raise EngineStartError(f"{what} could not be started.", cause=cause, log=log)
        self.look()

    def look(self) -> None:
        """Note which processes there are, so that they can be ended even if the guard cannot do it any more."""
        with suppress(psutil.Error, OSError):  # without a descriptor left nothing can be looked at
            self._known.update(psutil.Process(self._guard.pid).children(recursive=True))

    def watch_workers(self) -> None:
        """From here on each of the engine's named processes must live: it is ready, so none has a reason to leave."""
        self.look()
        self._watched = tuple(process for process in self._known if _is_named(process))

    def lost(self) -> str | None:
        """Which process is missing, or None while all live. Cheap: one look at /proc per process."""
        code = self._guard.poll()
        if code is not None:
            return _ending(code)
        gone = next((process.pid for process in self._watched if not _lives(process)), None)
        return None if gone is None else f"vLLM's process {gone} is gone"

    def listens_on(self, port: int) -> bool:
        """Whether it is one of the engine's own processes that takes connections there; True where nobody can see."""
        self.look()
        return any(port in _listening_ports(process) for process in self._known) or not _sees_sockets()

    def stop(self, grace_s: float = GRACE_S) -> None:
        """End everything: ask the guard, and where that fails, kill the tree from here."""
        self.look()
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._guard.wait(grace_s + _GUARD_EXTRA_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        for process in self._known:
            with suppress(psutil.Error, OSError):
                process.kill()


@contextmanager
def guarded(command: Command, log: Path, *, what: str, grace_s: float = GRACE_S) -> Iterator[GuardedProcess]:
    """Run `command` under a guard with its output in `log`; at the end of the block nothing of it runs any more."""
    with log.open("ab") as output:
        guard = subprocess.Popen(
            [sys.executable, "-P", "-m", "specprof.engine.guard", str(grace_s), *command.argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env={**command.unless_set, **_inherited(), **command.env},
            start_new_session=True,  # Ctrl-C in the terminal is for specprof alone
        )
    process = GuardedProcess(guard)
    try:
        process.await_start(what, log)
        yield process
    finally:
        process.stop(grace_s)


def _inherited() -> dict[str, str]:
    """What the engine gets of our environment: no key, which its one client on this machine would have to show it."""
    return {name: value for name, value in os.environ.items() if name != "VLLM_API_KEY"}


@contextmanager
def socket_folder() -> Iterator[Path]:
    """A short-named folder for the engine's sockets (their paths may have 107 bytes), gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="specprof-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ending(guard_code: int) -> str:
    """The guard's exit code in words: the engine's own, 128 + n for an engine killed by signal n."""
    if guard_code < 0:
        return f"vLLM's guard process was killed by signal {-guard_code}"
    if guard_code > 128:
        return f"vLLM was killed by signal {guard_code - 128}"
    return f"vLLM exited with code {guard_code}"


def _listening_ports(process: psutil.Process) -> set[int]:
    try:
        places = process.net_connections("tcp")
    except (psutil.Error, OSError):
        return set()
    return {place.laddr.port for place in places if place.status == psutil.CONN_LISTEN}


def _sees_sockets() -> bool:
    """Whether this system shows who listens: it does if it shows a socket of our own."""
    with socket.create_server(("127.0.0.1", 0)) as own:
        return own.getsockname()[1] in _listening_ports(psutil.Process())


def _is_named(process: psutil.Process) -> bool:
    try:
        return any(part.startswith(_WORKER_PREFIX) for part in process.cmdline()[:1])
    except (psutil.Error, OSError):
        return False


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
    except OSError:  # no descriptor is left to look with
        return True
