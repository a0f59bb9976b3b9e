"""Running the real command in a process of its own, and looking at what it leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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

    def ended(self, timeout_s: float = 60) -> str:
        """Wait for its end; what it wrote."""
        self.process.wait(timeout_s)
        self.output.seek(0)
        return self.output.read()

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


def sealed(results: Path) -> dict[str, bytes]:
    """Sealed cells by key, with the content of their seals."""
    return {path.parent.name: path.read_bytes() for path in results.glob("cells/*/sealed.json")}


def gone(processes: Sequence[psutil.Process], timeout_s: float = 30) -> bool:
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
