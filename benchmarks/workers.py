"""How much more several clients take in than one: chunks per second of the same work, side by side.

    python benchmarks/workers.py [--backend process|ray] [--workers 2] [--rounds 5]

The servers (`benchmarks/blocks.py`) write whole blocks of chunks, so that nearly all of the machine is left to the
clients; one whose chunks cost as much to write as to read would show what it can write itself. Chunks are counted, and
not reads: a client that has fallen behind finds many in one. The CPU that a chunk costs clients and servers is printed
beside, and the most that it allows: m cores carry m / (c + s) chunks a second, one client 1 / c. Rounds alternate, so
that what else the machine does falls on both. Needs a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

ROOT = Path(__file__).parents[1]
STREAMS = 64  # of all clients together
CHUNKS = 20_000  # of each stream, in blocks of 500


@dataclass(frozen=True, slots=True)
class Run:
    """Chunks per second of wall time, and seconds of CPU per chunk of clients and servers."""

    chunks_per_s: float
    client_s: float
    server_s: float


@contextmanager
def servers(count: int) -> Iterator[tuple[str, list[int]]]:
    """The one address of `count` server processes, among which the kernel shares connections, and their ids."""
    with ExitStack() as stack:
        port, pids = 0, []
        for _ in range(count):
            command = [sys.executable, "-I", "-S", str(ROOT / "benchmarks" / "blocks.py"), str(port)]
            server = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            stack.callback(server.kill)
            assert server.stdout is not None
            port = int(server.stdout.readline())
            pids.append(server.pid)
        yield f"http://127.0.0.1:{port}", pids


def cpu_s(pids: list[int]) -> float:
    """Seconds of CPU that processes have used."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def measure(clients: int, num_servers: int, backend: str) -> Run:
    """The whole work, by so many clients."""
    from specprof.engine.access import OPEN
    from specprof.measure.crew import Crew
    from specprof.measure.load import Order, run
    from specprof.measure.processes import process_crew
    from specprof.measure.split import Work
    from specprof.records import Phase

    body = json.dumps({"max_tokens": CHUNKS}).encode()
    orders = tuple(Order(str(i), Phase.MEASURED, body) for i in range(STREAMS))

    async def taken_in(crew: Crew, url: str, served_by: list[int]) -> Run:
        async with crew.at(Work("/v1/completions", (), (orders,), STREAMS), url, OPEN) as client:
            sent_by = _workers()
            assert len(sent_by) == clients, sent_by
            before = cpu_s(sent_by), cpu_s(served_by)
            driven = await client.drive(lambda: None)
            client_s, server_s = cpu_s(sent_by) - before[0], cpu_s(served_by) - before[1]
        problems = {stream.error for stream in driven.streams} - {None}
        assert not problems, problems
        assert sum(stream.reads.body().count(b"data:") for stream in driven.streams) == STREAMS * CHUNKS
        wall_s = (max(s.done_ns for s in driven.streams) - min(s.sent_ns for s in driven.streams)) / 1e9
        return Run(STREAMS * CHUNKS / wall_s, client_s / (STREAMS * CHUNKS), server_s / (STREAMS * CHUNKS))

    with servers(num_servers) as (url, served_by), ExitStack() as stack:
        if backend == "ray":
            from specprof.measure.ray_crew import ray_crew

            crew = stack.enter_context(ray_crew(clients, url, OPEN))
        else:
            crew = stack.enter_context(process_crew(clients))
        return run(taken_in(crew, url, served_by))


def _workers() -> list[int]:
    """The worker processes below this one, whatever they run in."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            line = process.cmdline()
            if "specprof.measure.worker" in line or line[:1] == ["ray::Worker"]:
                found.append(process.pid)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("process", "ray"), default="process")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    cores = len(os.sched_getaffinity(0))
    busy = os.getloadavg()[0]
    print(f"{asked.backend}, {STREAMS} streams of {CHUNKS:,} chunks, {cores} cores, load average {busy:.1f}")
    counts = (1, asked.workers)
    rounds = [tuple(measure(count, asked.workers, asked.backend) for count in counts) for _ in range(asked.rounds)]
    report(counts, cores, rounds)


def report(counts: tuple[int, int], cores: int, rounds: list[tuple[Run, ...]]) -> None:
    """Medians, the ratio of each round, and what the machine allows."""
    most = []
    for count, runs in zip(counts, zip(*rounds, strict=True), strict=True):
        rate = median(each.chunks_per_s for each in runs)
        c, s = median(each.client_s for each in runs), median(each.server_s for each in runs)
        most.append(min(count / c, cores / (c + s)))
        print(
            f"{count} clients: {rate:>11,.0f} chunks/s, "
            f"{c * 1e6:.2f} µs of CPU of a client and {s * 1e6:.2f} µs of a server per chunk"
        )
    ratios = sorted(several.chunks_per_s / one.chunks_per_s for one, several in rounds)
    allowed = f"what the CPU allows: {most[1] / most[0]:.2f}"
    print(f"ratio {median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}], {allowed}")


if __name__ == "__main__":
    main()
