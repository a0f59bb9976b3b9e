"""How long a report takes, and how much memory: a generated study through `specprof report`, from disk to page.

    python -m benchmarks.analysis [--requests 1000000] [--folder FOLDER] [--write docs/performance.md]

The study is written by `benchmarks.generated`. What is timed is the command itself, in a process of its own, from its
start to its end; memory is that of the process and its children together, read twenty times a second.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import page
from benchmarks.generated import NUM_CELLS, TOKENS, write_study

TARGETS = {1_000_000: (60.0, 3000.0), 10_000: (3.0, None)}  # requests: seconds, MB


@dataclass(frozen=True, slots=True)
class Cost:
    """What one command took: seconds of the wall, and the most memory its process tree held at once, bytes."""

    seconds: float
    peak_bytes: int


def run(command: list[str]) -> Cost:
    """Run it to its end. Raises CalledProcessError if it fails."""
    began, peak = time.perf_counter(), 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        tree = psutil.Process(process.pid)
        while process.poll() is None:
            peak = max(peak, _resident(tree))
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        seconds = time.perf_counter() - began
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Cost(seconds, peak)


def _resident(tree: psutil.Process) -> int:
    total = 0
    with suppress(psutil.NoSuchProcess):
        for process in (tree, *tree.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
    return total


def measure(num_requests: int, folder: Path) -> tuple[int, Cost]:
    """Bytes of a generated study on disk, and what its report costs."""
    root = folder / f"generated-{num_requests}"
    if not root.exists():
        write_study(root, num_requests)
    size = sum(path.stat().st_size for path in (root / "cells").rglob("*") if path.is_file())
    return size, run([sys.executable, "-m", "specprof.cli", "report", str(root)])


def main() -> None:
    """Print the table; write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--folder", type=Path, help="keep the studies here; a study that is there is not made again")
    page.add_write(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        rows = []
        for count in options.requests:
            size, cost = measure(count, options.folder or Path(temporary))
            seconds, megabytes = TARGETS.get(count, (None, None))
            rows.append(
                (
                    f"{count:,}",
                    f"{count * TOKENS / 1e6:,.0f} million",
                    f"{size / 1e6:,.0f} MB",
                    f"{cost.seconds:.1f} s" + (f" (target {seconds:.0f})" if seconds else ""),
                    f"{cost.peak_bytes / 1e6:,.0f} MB" + (f" (target {megabytes:,.0f})" if megabytes else ""),
                )
            )
    text = page.table(("requests", "tokens", "on disk", "`specprof report`", "peak memory"), rows)
    made = page.made("python -m benchmarks.analysis", "numpy", "pyarrow", "scipy")
    text += f"\n\n{NUM_CELLS} cells. {made}"
    print(text)
    if options.write:
        page.write_section(options.write, "analysis", text)


if __name__ == "__main__":
    main()
