"""One client against the benchmark's server: what the server knows of the same run, and what the client made of it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TOKENS_PER_CHUNK = 4


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a client: a closed loop of `streams`, `requests` in all, each of `chunks` chunks.

    `pace_ms` 0: the server sends as fast as it can. `phases`: how many instants of a pace streams are spread over.
    """

    streams: int
    requests: int
    chunks: int
    pace_ms: float = 0.0
    phases: int = 1

    @property
    def tokens(self) -> int:
        """`max_tokens` of a request."""
        return self.chunks * TOKENS_PER_CHUNK


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run was by the server's account, seconds. `tpot_mean_s`: of the interval between two chunks."""

    num_chunks: int
    span_s: float
    ttft_mean_s: float
    itl_p99_s: float
    tpot_mean_s: float


def cores() -> tuple[int | None, int | None]:
    """One core for the server and one for the client; None where there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[1]) if len(usable) > 1 else (None, None)


@contextmanager
def serving(load: Load) -> Iterator[str]:
    """The server on its own core, set up for a load; its address."""
    core, _ = cores()
    command = [sys.executable, str(HERE / "server.py"), "--pace-ms", str(load.pace_ms), "--phases", str(load.phases)]
    command += [] if core is None else ["--core", str(core)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def run(command: Sequence[str], *, timeout_s: float = 240) -> str:
    """A client's standard output, run on the client's core. Raises RuntimeError with the end of what it complained."""
    _, core = cores()
    pinned = [] if core is None else ["taskset", "--cpu-list", str(core)]
    ended = subprocess.run(
        [*pinned, *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=ROOT,
    )
    if ended.returncode:
        raise RuntimeError(f"{command[0]}: {(ended.stderr or ended.stdout)[-800:]}")
    return ended.stdout


def cpu_of_children_s() -> float:
    """CPU seconds of every child that has ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _logged(url: str) -> list[list[int]]:
    """Of each request since this was last asked: its chunks, when it had been received, when chunks were sent."""
    with urllib.request.urlopen(f"{url}/log", timeout=60) as answer:
        told: list[list[int]] = json.load(answer)
    return told


def first_heard_s(url: str, *, besides: int) -> float:
    """When the server had received the first request, by `time.perf_counter`; any of `besides` chunks is a probe."""
    return min(received_ns for chunks, received_ns, *_ in _logged(url) if chunks != besides) / 1e9


def seen_by(url: str, load: Load) -> Seen:
    """What the server logged of the requests of this load; probes and test runs of other lengths are left out."""
    streams = [stream for chunks, *stream in _logged(url) if chunks == load.chunks]
    if len(streams) < load.requests // 2:  # one peer sends a few less than it is told to
        raise RuntimeError(f"{len(streams)} requests of {load.chunks} chunks arrived, {load.requests} were asked for")
    gaps = [later - sent for stream in streams for sent, later in pairwise(stream[1:])]
    began_ns = min(stream[0] for stream in streams)
    return Seen(
        num_chunks=len(streams) * load.chunks,
        span_s=(max(stream[-1] for stream in streams) - began_ns) / 1e9,
        ttft_mean_s=sum(stream[1] - stream[0] for stream in streams) / len(streams) / 1e9,
        itl_p99_s=p99(gaps) / 1e9 if gaps else 0.0,
        tpot_mean_s=sum(stream[-1] - stream[1] for stream in streams) / max(load.chunks - 1, 1) / len(streams) / 1e9,
    )


def p99(values: Sequence[float]) -> float:
    """The smallest value that 99% of all do not exceed."""
    return sorted(values)[ceil(0.99 * len(values)) - 1]


def drive(client: str, load: Load) -> tuple[Seen, dict[str, Any]]:
    """One of `drivers.py` against a server of its own: what the server saw, and what the client says."""
    with serving(load) as url:
        asked = ["--streams", str(load.streams), "--requests", str(load.requests), "--tokens", str(load.tokens)]
        said = run([sys.executable, "-m", "benchmarks.clients.drivers", client, url, *asked])
        return seen_by(url, load), json.loads(said.splitlines()[-1])
