"""The engine adapter: a simulated server in a process of its own, so that it never shares the client's event loop."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import IO, Any

from specprof.engine.protocol import Engine
from specprof.engine.sim.machine import Machine
from specprof.engine.sim.presets import launched_with, machine_of
from specprof.engine.sim.server import VERSION, serve
from specprof.errors import EngineDied, EngineStartError
from specprof.records import EngineFacts

_SOURCE_ROOT = Path(__file__).resolve().parents[3]
_PATIENCE_S = 5.0
_DEATH_EXIT_CODE = 1
_NO_ARGS: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class _Launch:
    """What the child needs to know, sent to it pickled on its standard input."""

    machine: Machine
    speculative_config: Mapping[str, Any] | None
    launch_index: int
    time_scale: float
    host: str = "127.0.0.1"
    port: int = 0
    engine_args: Mapping[str, Any] = field(default_factory=dict)  # vLLM's names; `launched_with` knows which apply

    @property
    def launched(self) -> Machine:
        """The machine as this launch runs it: the same one, whatever its arguments."""
        return launched_with(self.machine, self.engine_args)


class SimEngine:
    """A running simulated server (`specprof.engine.protocol.Engine`)."""

    def __init__(self, launch: _Launch, process: Popen[bytes], base_url: str, start_s: float, log: Path) -> None:
        self._launch = launch
        self._process = process
        self._base_url = base_url
        self._start_s = start_s
        self._began = time.monotonic()
        self._log = log

    @property
    def base_url(self) -> str:
        """Where it listens."""
        return self._base_url

    @property
    def served_model(self) -> str:
        """The name to send as `model`."""
        return f"sim-{self._launch.machine.name}"

    def facts(self) -> EngineFacts:
        """What is simulated; `extra` holds the time scale by which every client time must be multiplied."""
        machine = self._launch.machine
        shares = machine.hardware.stage_shares
        return EngineFacts(
            kind="sim",
            name="specprof simulated engine",
            version=VERSION,
            model=self.served_model,
            model_hash=sha256(repr(machine).encode()).hexdigest(),
            device="simulated",
            pipeline_parallel_size=machine.hardware.num_stages,
            max_num_seqs=machine.scheduler.max_num_seqs,
            start_s=self._start_s,
            extra={
                "preset": machine.name,
                "seed": machine.seed,
                "time_scale": self._launch.time_scale,
                "launch_index": self._launch.launch_index,
                **({"stage_shares": list(shares)} if len(shares) > 1 else {}),
                **self._launch.engine_args,
            },
        )

    def death(self) -> EngineDied | None:
        """None while the child lives. A silent death leaves it alive, as vLLM's front end does."""
        code = self._process.poll()
        if code is None:
            return None
        lived_s = time.monotonic() - self._began
        what = f"The simulated engine exited with code {code} after {lived_s:.0f} s."
        return EngineDied(what, cause=_last_line(self._log), log=self._log)


@contextmanager
def start(
    machine: Machine,
    *,
    speculative_config: Mapping[str, Any] | None,
    launch_index: int,
    time_scale: float = 1.0,
    log: Path,
    engine_args: Mapping[str, Any] = _NO_ARGS,
) -> Iterator[Engine]:
    """A ready simulated engine; its process is gone when the block ends, however it ends."""
    launch = _Launch(machine, speculative_config, launch_index, time_scale, engine_args=engine_args)
    began = time.monotonic()
    with log.open("ab") as log_file, _child(launch, log_file) as process:
        yield SimEngine(launch, process, _await_url(process, log), time.monotonic() - began, log)


@contextmanager
def _child(launch: _Launch, log_file: IO[bytes]) -> Iterator[Popen[bytes]]:
    path = os.pathsep.join(filter(None, (str(_SOURCE_ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-P", "-m", "specprof.engine.sim.engine"]
    # A session of its own: an interrupt at the terminal is the parent's to handle.
    process = Popen(
        command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=log_file,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdin is not None and process.stdout is not None  # noqa: S101 - asked for above; tells the type checker
    try:
        # The pipe stays open: its end tells the child that we are gone, even if we were killed.
        with suppress(BrokenPipeError):
            pickle.dump(launch, process.stdin)
            process.stdin.flush()
        yield process
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_PATIENCE_S)
        except TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _await_url(process: Popen[bytes], log: Path) -> str:
    """The child's first and only line of output says where it listens."""
    assert process.stdout is not None  # noqa: S101 - asked for in `_child`
    url = process.stdout.readline().decode().strip()
    if not url:
        code = process.wait()
        raise EngineStartError(
            f"The simulated engine exited with code {code} at its start.", cause=_last_line(log), log=log
        )
    return url


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing."


def run_forever(
    preset: str,
    host: str,
    port: int,
    time_scale: float,
    speculative_config: Mapping[str, Any] | None,
    announce: Callable[[str], None],
) -> None:
    """Serve a preset in this process until interrupted: what `specprof sim` does. `announce` is told the address.

    Raises OSError where it cannot listen.
    """
    launch = _Launch(machine_of(preset), speculative_config, 0, time_scale, host, port)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(launch, asyncio.Event(), announce))


def _tell_parent(base_url: str) -> None:
    print(base_url, flush=True)


async def _serve(launch: _Launch, done: asyncio.Event, announce: Callable[[str], None] = _tell_parent) -> None:
    faults = launch.machine.faults
    server = await serve(
        launch.launched,
        speculative_config=launch.speculative_config,
        launch_index=launch.launch_index,
        host=launch.host,
        port=launch.port,
        time_scale=launch.time_scale,
        on_death=_mourn if faults.death_is_silent else _die,
    )
    announce(server.base_url)
    try:
        await done.wait()
    finally:
        await server.close()


def _mourn() -> None:
    print("EngineDeadError: EngineCore encountered an issue (planted, silent).", file=sys.stderr, flush=True)


def _die() -> None:
    print("EngineDeadError: EngineCore encountered an issue (planted).", file=sys.stderr, flush=True)
    os._exit(_DEATH_EXIT_CODE)


async def serve_parent() -> None:
    """The child: read the launch, serve until the parent closes the pipe."""
    launch: _Launch = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by our own parent, through its pipe
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), done.set)  # nothing more is ever written: readable means closed
    await _serve(launch, done)


if __name__ == "__main__":
    from specprof.engine.sim import engine  # noqa: PLW0406 - see below

    asyncio.run(engine.serve_parent())  # through its importable name, the one the pickle was written under
