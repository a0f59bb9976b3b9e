"""No process of an engine outlives specprof, whichever way specprof goes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from specprof.engine.command import Command
from specprof.engine.process import guarded
from tests.running import wait_gone, wait_until

# Stands for vLLM: a server with a worker in a session of its own; the worker ignores TERM, as a hung one would.
ENGINE = """
import os, signal, subprocess, sys, time
from multiprocessing import shared_memory
worker = subprocess.Popen(
    [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"],
    start_new_session=True,
)
memory = shared_memory.SharedMemory(create=True, size=4096)
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{os.getpid()} {worker.pid} {memory.name}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(float(sys.argv[2]))
os._exit(7)
"""


@pytest.fixture
def engine(tmp_path: Path) -> Command:
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    return Command((sys.executable, str(script), str(tmp_path / "ready"), "600"), {})


def await_ready(ready: Path) -> tuple[int, int, Path]:
    """(server pid, worker pid, shared memory) once the engine has started."""
    until = time.monotonic() + 120
    while not ready.exists():
        assert time.monotonic() < until, "the engine never started"
        time.sleep(0.02)
    server, worker, segment = ready.read_text().split()
    return int(server), int(worker), Path("/dev/shm") / segment


@pytest.fixture
def specprof(tmp_path: Path, engine: Command) -> Iterator[subprocess.Popen[bytes]]:
    """Another specprof that holds a guarded engine and sleeps."""
    script = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from specprof.engine.command import Command
        from specprof.engine.process import guarded
        with guarded(Command({engine.argv!r}, {{}}), Path({str(tmp_path / "log")!r}), what="test", grace_s=0.5):
            time.sleep(600)
    """)
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    yield process
    process.kill()
    process.wait()


def test_block_end_stops_all_and_cleans_shared_memory(tmp_path: Path, engine: Command) -> None:
    with guarded(engine, tmp_path / "log", what="test", grace_s=0.5) as process:
        server, worker, segment = await_ready(tmp_path / "ready")
        assert process.lost() is None
        assert segment.exists()
    assert wait_gone([server, worker], 60)
    assert not segment.exists()


def test_an_exception_stops_all(tmp_path: Path, engine: Command) -> None:
    with contextlib.suppress(ZeroDivisionError), guarded(engine, tmp_path / "log", what="test", grace_s=0.5):
        server, worker, _ = await_ready(tmp_path / "ready")
        raise ZeroDivisionError
    assert wait_gone([server, worker], 60)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_orphan_when_specprof_is_killed(
    number: signal.Signals, tmp_path: Path, specprof: subprocess.Popen[bytes]
) -> None:
    server, worker, segment = await_ready(tmp_path / "ready")
    specprof.send_signal(number)
    assert wait_gone([server, worker], 60)
    until = time.monotonic() + 60
    while segment.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not segment.exists()


def test_no_orphan_when_the_guard_is_killed(tmp_path: Path, engine: Command) -> None:
    with guarded(engine, tmp_path / "log", what="test", grace_s=0.5) as process:
        server, worker, _ = await_ready(tmp_path / "ready")
        process.look()
        guard = psutil.Process(server).ppid()
        os.kill(guard, signal.SIGKILL)
        assert wait_gone([server], 60)
        wait_until(lambda: process.lost() is not None)
    assert wait_gone([worker], 60)


def test_an_engine_that_exits_takes_its_workers_along(tmp_path: Path, engine: Command) -> None:
    brief = Command((*engine.argv[:-1], "0.3"), {})
    with guarded(brief, tmp_path / "log", what="test", grace_s=0.5) as process:
        _, worker, _ = await_ready(tmp_path / "ready")
        assert wait_gone([worker], 60)
        until = time.monotonic() + 60
        while (code := process.exit_code) is None and time.monotonic() < until:
            time.sleep(0.05)
        assert code == 7
        assert "code 7" in str(process.lost())


def test_what_the_user_or_the_study_sets_goes_before_what_lies_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SET_BY_USER", "user")
    names = ("SET_BY_USER", "SET_BY_STUDY", "SET_BY_NOBODY")
    script = "import os, sys; open(sys.argv[1], 'w').write(' '.join(map(os.environ.get, sys.argv[2:])))"
    argv = (sys.executable, "-c", script, str(tmp_path / "told"), *names)
    command = Command(argv, {"SET_BY_STUDY": "study"}, dict.fromkeys(names, "under"))
    with guarded(command, tmp_path / "log", what="test", grace_s=0.5) as process:
        until = time.monotonic() + 120
        while process.exit_code is None and time.monotonic() < until:
            time.sleep(0.02)
    assert (tmp_path / "told").read_text() == "user study under"


def test_a_command_that_does_not_exist_is_an_engine_that_did_not_start(tmp_path: Path) -> None:
    from specprof.errors import EngineStartError

    missing = Command((str(tmp_path / "no-such-program"),), {})
    with pytest.raises(EngineStartError, match="could not be started"), guarded(missing, tmp_path / "log", what="it"):
        pass
