"""Running the real command in a process of its own, and looking at what it leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

ROOT = Path(__file__).parent.parent


def specprof(*arguments: str | Path, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    """`specprof ARGUMENTS`, run to its end."""
    return subprocess.run(
        _command(arguments), check=False, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
    )


def measured_study(folder: Path, name: str, text: str, timeout_s: float = 850) -> Path:
    """The results folder of a study file, really run: `text` must name the study `name`."""
    config = folder / f"{name}.yaml"
    config.write_text(text, encoding="utf-8")
    run = specprof("run", config, "--results", folder, timeout_s=timeout_s)
    assert run.returncode == 0, run.stderr + run.stdout
    return folder / name


@contextmanager
def started(*arguments: str | Path) -> Iterator[Run]:
    """`specprof ARGUMENTS`, running; killed at the end if it still runs."""
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(
            _command(arguments),
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield Run(process, output)
        finally:
            process.kill()


@dataclass
class Run:
    """A running command."""

    process: subprocess.Popen[str]
    output: IO[str]

    def ended(self, timeout_s: float = 180) -> str:
        """Wait for its end; what it wrote."""
        self.process.wait(timeout_s)
        self.output.seek(0)
        return self.output.read()

    def said(self) -> str:
        """What it wrote so far. Read where it lies: it shares its place in the file with the process that writes."""
        return os.pread(self.output.fileno(), 1 << 20, 0).decode("utf-8", "replace")

    def address(self) -> str:
        """Where it listens, once `specprof sim --port 0` has said so."""
        wait_until(lambda: "(Ctrl-C ends it)" in self.said() or self.process.poll() is not None)
        found = re.search(r" listens on (http://\S+) \(", self.said())
        assert found is not None, self.said()
        return found[1]

    def family(self) -> list[psutil.Process]:
        """The process and everything below it."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def kill(self) -> None:
        """What `kill -9` does: no chance to tidy up."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def _command(arguments: Sequence[str | Path]) -> list[str]:
    return [sys.executable, "-m", "specprof.cli", *map(str, arguments)]


def figures(results: Path) -> dict[str, Any]:
    """`specprof report RESULTS --format json`."""
    told = specprof("report", results, "--format", "json")
    assert told.returncode == 0, told.stderr
    return dict(json.loads(told.stdout))


def wait_until(happened: Callable[[], bool], timeout_s: float = 120) -> None:
    """Poll until something has happened."""
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


@contextmanager
def taking_no_more() -> Iterator[tuple[str, int]]:
    """The address of a server that lets connections wait and takes none: another one is neither made nor refused."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # more than it lets wait
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield listening.getsockname()


@contextmanager
def refusing() -> Iterator[str]:
    """The address of a server that is not there. Its port is held, so that nobody else comes to listen on it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@contextmanager
def when(happened: Callable[[], bool], act: Callable[[], object], timeout_s: float = 120) -> Iterator[threading.Event]:
    """While the block lasts, a thread waits for something and then acts, once; the event tells that it has.

    The block must not end before: a test of what an act does would have tested nothing.
    """
    acted, over = threading.Event(), threading.Event()

    def watch() -> None:
        deadline = time.monotonic() + timeout_s
        while not over.is_set() and time.monotonic() < deadline:
            if happened():
                act()
                acted.set()
                return
            time.sleep(0.01)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield acted
    finally:
        over.set()
        watching.join()
    assert acted.is_set(), "it never happened"


def sealed(results: Path) -> dict[str, bytes]:
    """Sealed cells by key, with the content of their seals."""
    return {path.parent.name: path.read_bytes() for path in results.glob("cells/*/sealed.json")}


def gone(processes: Sequence[psutil.Process], timeout_s: float = 60) -> bool:
    """Whether all of them end within the time."""
    _, alive = psutil.wait_procs(list(processes), timeout=timeout_s)
    return not alive


def wait_gone(pids: Sequence[int], timeout_s: float) -> bool:
    """Whether none of these processes runs any more within the time; one that nobody has buried yet is gone too."""
    until = time.monotonic() + timeout_s
    while any(_runs(pid) for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
