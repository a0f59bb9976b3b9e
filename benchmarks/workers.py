"""How much more several clients take in than one: reads per second, side by side, from servers that cost nothing.

    python benchmarks/workers.py [--backend process|ray] [--workers 2] [--rounds 5]

A server that writes every chunk by itself costs the kernel a delivery per chunk, on the cores that the clients want.
Where a read costs a client c seconds of CPU and its server s, m cores carry m / (c + s) reads a second at most, whoever
sends, and one client 1 / c. So two ratios are printed:

per core   one client and one server on one core, n of each on n cores: what splitting the work costs. At most n.
machine    one client and n servers on all m cores, n clients and n servers: what n clients gain here. At most what
           c and s allow: nothing where one client already takes in all that m cores can serve, n with cores to spare.

A read is counted, not a chunk: a client that has fallen behind finds several chunks in one read, under one time. More
and more chunks a second are offered, and the most reads at any pace count (as in `measure.ceiling`); the server is
`benchmarks/ticking.py`. Rounds alternate, so that what else the machine does falls on all. Needs a quiet machine.
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
STREAMS = 32  # of each client
OFFERED_PER_S = (10_000, 20_000, 40_000, 80_000, 160_000)  # chunks, to each client
STAGE_S = 0.5


@dataclass(frozen=True, slots=True)
class Setting:
    """So many clients and servers on so many cores."""

    name: str
    clients: int
    servers: int
    cores: int


@dataclass(frozen=True, slots=True)
class Run:
    """Reads per second of wall time, and seconds of CPU per read of clients and servers."""

    reads_per_s: float
    client_s: float
    server_s: float


def settings(workers: int, cores: int) -> tuple[tuple[Setting, Setting], ...]:
    """What is set against what."""
    return (
        (Setting("per core", 1, 1, 1), Setting("per core", workers, workers, min(workers, cores))),
        (Setting("machine", 1, workers, cores), Setting("machine", workers, workers, cores)),
    )


@contextmanager
def servers(count: int) -> Iterator[tuple[str, list[int]]]:
    """The one address of `count` server processes, among which the kernel shares connections, and their ids."""
    with ExitStack() as stack:
        port, pids = 0, []
        for _ in range(count):
            command = [sys.executable, "-I", "-S", str(ROOT / "benchmarks" / "ticking.py"), str(port)]
            server = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            stack.callback(server.kill)
            assert server.stdout is not None
            port = int(server.stdout.readline())
            pids.append(server.pid)
        yield f"http://127.0.0.1:{port}", pids


def on_cores(pids: list[int], cores: int) -> None:
    """Let these processes, with all their threads, run on the first `cores` of ours alone."""
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    for pid in pids:
        for thread in psutil.Process(pid).threads():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread.id, chosen)


def cpu_s(pids: list[int]) -> float:
    """Seconds of CPU that processes have used."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def measure(setting: Setting, backend: str) -> Run:
    """The pace at which most reads were taken in."""
    from specprof.engine.access import OPEN
    from specprof.measure.crew import Crew
    from specprof.measure.load import Order, run
    from specprof.measure.processes import process_crew
    from specprof.measure.split import Work
    from specprof.records import Phase

    async def stage(crew: Crew, url: str, served_by: list[int], offered_per_s: int) -> Run:
        streams = STREAMS * setting.clients
        asked = {"max_tokens": round(offered_per_s * STAGE_S / STREAMS), "pace_s": STREAMS / offered_per_s}
        orders = tuple(Order(str(i), Phase.MEASURED, json.dumps(asked).encode()) for i in range(streams))
        async with crew.at(Work("/v1/completions", (), (orders,), streams), url, OPEN) as client:
            sent_by = _workers()
            assert len(sent_by) == setting.clients, sent_by
            on_cores([*served_by, *sent_by], setting.cores)
            before = cpu_s(sent_by), cpu_s(served_by)
            driven = await client.drive(lambda: None)
            client_s, server_s = cpu_s(sent_by) - before[0], cpu_s(served_by) - before[1]
        problems = {stream.error for stream in driven.streams} - {None}
        assert not problems, problems
        begun, ended = min(s.sent_ns for s in driven.streams), max(s.done_ns for s in driven.streams)
        reads, wall_s = sum(len(stream.reads) for stream in driven.streams), (ended - begun) / 1e9
        return Run(reads / wall_s, client_s / reads, server_s / reads)

    with servers(setting.servers) as (url, served_by), ExitStack() as stack:
        if backend == "ray":
            from specprof.measure.ray_crew import ray_crew

            crew = stack.enter_context(ray_crew(setting.clients, url, OPEN))
        else:
            crew = stack.enter_context(process_crew(setting.clients))
        stages = [run(stage(crew, url, served_by, offered)) for offered in OFFERED_PER_S]
        return max(stages, key=lambda found: found.reads_per_s)


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
    print(f"{asked.backend}, {asked.workers} workers, {cores} cores, {STREAMS} streams each, load average {busy:.1f}")
    for one, several in settings(asked.workers, cores):
        rounds = [tuple(measure(setting, asked.backend) for setting in (one, several)) for _ in range(asked.rounds)]
        report(one, several, rounds)


def report(one: Setting, several: Setting, rounds: list[tuple[Run, ...]]) -> None:
    """Medians, the ratio of each round, and what the machine allows."""
    for setting, runs in zip((one, several), zip(*rounds, strict=True), strict=True):
        rate, c, s = (
            median(values) for values in zip(*((r.reads_per_s, r.client_s, r.server_s) for r in runs), strict=True)
        )
        print(
            f"{setting.name:<9} {setting.clients} clients, {setting.servers} servers, {setting.cores} cores: "
            f"{rate:>9,.0f} reads/s, {c * 1e6:.1f} µs of a client and {s * 1e6:.1f} µs of a server per read"
        )
    ratios = sorted(b.reads_per_s / a.reads_per_s for a, b in rounds)
    c, s = (median(values) for values in zip(*((a.client_s, a.server_s) for a, _ in rounds), strict=True))
    most = [min(each.clients / c, each.cores / (c + s)) for each in (one, several)]
    print(
        f"{one.name:<9} ratio {median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}], "
        f"at most {most[1] / most[0]:.2f}\n"
    )


if __name__ == "__main__":
    main()
