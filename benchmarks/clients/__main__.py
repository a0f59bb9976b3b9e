"""specprof's load client beside bare loops and other benchmarks, against one server, in one run.

    python -m benchmarks.clients [--rounds 5] [--peers vllm,aiperf] [--write docs/performance.md]

The server has one core and the client the other. Rounds of the clients alternate, so that what else the machine does
falls on all of them alike. Needs a quiet machine; takes about ten minutes, and longer where peers must be installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks import page
from benchmarks.clients import board, fixed
from benchmarks.clients.board import Board
from benchmarks.clients.measuring import Load, Seen, cores, cpu_of_children_s, drive, run, seen_by, serving
from benchmarks.clients.peers import PEERS, VLLM, Peer, Place, Said, installed, write_tokenizer

CEILING = Load(streams=64, requests=512, chunks=256)
PACED = Load(streams=512, requests=512, chunks=256, pace_ms=20.0, phases=512)
TIMING = {
    "spread": Load(streams=64, requests=64, chunks=256, pace_ms=20.0, phases=64),
    "tick": Load(streams=64, requests=64, chunks=256, pace_ms=20.0, phases=1),
}
NEXT_TO_NOTHING = Load(streams=64, requests=64, chunks=2)  # what a peer's CPU time has besides the load


Command = Callable[[Path, str], list[str]]  # a folder to write in, the server's address → a command line

errors = Console(stderr=True)


def drive_all(found: Board, clients: list[str], rounds: int) -> None:
    """The clients of `drivers.py`: ceiling, paced cost, and timing errors, round by round."""
    for number in range(rounds):
        errors.print(f"round {number + 1} of {rounds}")
        rates = {client: _ceiling(found, client) for client in clients}
        for client, rate in rates.items():
            if "vllm" in rates:
                found.add(board.TIMES_VLLM, client, rate / rates["vllm"])
        for client in (name for name in clients if name in ("specprof", "vllm")):
            seen, said = drive(client, PACED)
            found.add(board.PACED_CPU, client, said["cpu_s"] / seen.num_chunks * 1e6)
            found.add(board.PACED_ITL, client, (said["itl_p99_s"] - seen.itl_p99_s) * 1e3)
            for name, load in TIMING.items():
                seen, said = drive(client, load)
                _errors(found, client, name, seen, Said(said["ttft_mean_s"], said["itl_p99_s"], said["tpot_mean_s"]))
                found.add(board.CONNECT, client, said["connect_s"] and said["connect_s"] * 1e3)


def _ceiling(found: Board, client: str) -> float:
    """Chunks per second, which is also noted."""
    seen, said = drive(client, CEILING)
    rate = seen.num_chunks / seen.span_s
    found.add(board.TAKEN_IN, client, rate)
    found.add(board.CPU, client, said["cpu_s"] / seen.num_chunks * 1e6)
    found.add(board.DECODE, client, said["decode_cpu_s"] and said["decode_cpu_s"] / seen.num_chunks * 1e6)
    return rate


def _errors(found: Board, client: str, name: str, seen: Seen, said: Said) -> None:
    """What a client says less what the server knows, milliseconds."""
    found.add(board.TTFT[name], client, (said.ttft_mean_s - seen.ttft_mean_s) * 1e3)
    found.add(board.ITL[name], client, None if said.itl_p99_s is None else (said.itl_p99_s - seen.itl_p99_s) * 1e3)
    found.add(board.TPOT[name], client, (said.tpot_mean_s - seen.tpot_mean_s) * 1e3)


def run_peer(peer: Peer, place: Place, load: Load) -> tuple[float, Seen, Said]:
    """Its CPU seconds from start to end, what the server saw of it, and what it says."""
    with serving(load) as url, tempfile.TemporaryDirectory(dir=place.folder) as folder:
        own = replace(place, folder=Path(folder))
        before_s = cpu_of_children_s()
        run(peer.command(own, url, load))
        return cpu_of_children_s() - before_s, seen_by(url, load), peer.said(own.folder, load)


def measure_peer(found: Board, peer: Peer, place: Place) -> None:
    """One peer by its command line, once each: ceiling, paced cost, timing errors."""
    base_s, _, _ = run_peer(peer, place, NEXT_TO_NOTHING)
    cpu_s, seen, _ = run_peer(peer, place, CEILING)
    rate = seen.num_chunks / seen.span_s
    found.add(board.TAKEN_IN, peer.name, rate)
    found.add(board.CPU, peer.name, (cpu_s - base_s) / seen.num_chunks * 1e6)
    if (beside := found.median(board.TAKEN_IN, "vllm")) is not None:
        found.add(board.TIMES_VLLM, peer.name, rate / beside)
    cpu_s, seen, said = run_peer(peer, place, PACED)
    found.add(board.PACED_CPU, peer.name, (cpu_s - base_s) / seen.num_chunks * 1e6)
    found.add(board.PACED_ITL, peer.name, None if said.itl_p99_s is None else (said.itl_p99_s - seen.itl_p99_s) * 1e3)
    for name, load in TIMING.items():
        _, seen, said = run_peer(peer, place, load)
        _errors(found, peer.name, name, seen, said)


def measure_fixed(found: Board, client: str, command: Command, folder: Path) -> None:
    """What a client costs before it measures anything; `command` makes its command line for a server's address."""
    with serving(fixed.LOAD) as url:
        costs = fixed.fixed_costs(url, command(folder, url))
    found.add(board.START, client, costs.start_s)
    found.add(board.MEMORY, client, costs.memory_mb)


def measure(found: Board, peers: Sequence[Peer], rounds: int, cache: Path) -> None:
    """Everything."""
    places, tokenizer = {}, write_tokenizer(cache / "tokenizer")
    with tempfile.TemporaryDirectory() as folder:
        for peer in peers:
            try:
                errors.print(f"{peer.name}: looking for it, or installing it")
                places[peer] = Place(installed(peer, cache), Path(folder), tokenizer)
            except RuntimeError as problem:
                found.left_out[peer.name] = str(problem)
        drivers = ["specprof", *(["vllm"] if VLLM in places else []), "aiohttp-store", "aiohttp-decode"]
        drive_all(found, drivers, rounds)
        program, found_mb = fixed.base_install(cache / "specprof")
        found.add(board.DISK, "specprof", found_mb)
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(dir=folder) as own:
                measure_fixed(found, "specprof", partial(fixed.specprof_command, program), Path(own))
        for peer, place in places.items():
            _peer(found, peer, place, cache)


def _peer(found: Board, peer: Peer, place: Place, cache: Path) -> None:
    """Whatever a peer cannot do is said, and the others go on. vLLM's client was driven with ours."""
    errors.print(f"{peer.name}: running it")
    try:
        if peer is not VLLM:
            measure_peer(found, peer, place)
            found.add(board.DISK, peer.name, fixed.size_mb(cache / peer.name))
        with tempfile.TemporaryDirectory(dir=place.folder) as own:
            command = partial(_peer_command, peer, place)
            measure_fixed(found, peer.name, command, Path(own))
    except (RuntimeError, OSError, LookupError, ValueError, TypeError, subprocess.TimeoutExpired) as problem:
        found.left_out[peer.name] = f"{type(problem).__name__}: {problem}"


def _peer_command(peer: Peer, place: Place, folder: Path, url: str) -> list[str]:
    return peer.command(replace(place, folder=folder), url, fixed.LOAD)


def page_section(found: Board, rounds: int) -> str:
    """The page's part: where and how it was measured, and the table."""
    how = "server and client share the one core" if cores()[1] is None else "a core for the server, one for the client"
    rows = f"Median of {rounds} rounds and their range; of other benchmarks one round. {how.capitalize()}."
    return f"{page.made('python -m benchmarks.clients', 'aiohttp', 'uvloop')}\n\n{rows}\n\n{found.markdown()}"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", default=",".join(peer.name for peer in PEERS), help="comma separated; empty: none")
    page.add_write(parser)
    asked = parser.parse_args()
    cache = Path(os.environ.get("SPECPROF_CACHE") or Path.home() / ".cache" / "specprof") / "bench"
    found = Board()
    measure(found, [peer for peer in PEERS if peer.name in asked.peers.split(",")], asked.rounds, cache)
    console = Console(width=max(200, Console().width))
    console.print(found.table())
    for client, why in found.left_out.items():
        console.print(f"{client} is left out, in whole or in part: {why}", markup=False)
    if asked.write:
        page.write_section(asked.write, "clients", page_section(found, asked.rounds))


if __name__ == "__main__":
    main()
