"""How fast the virtual clock is, what limits it, and how soon a command is there.

    python -m benchmarks.simulator [--studies 40] [--write docs/performance.md]

Studies are those of `benchmarks.coverage` (4 blocks, 32 prompts × 96 tokens, N = 1 and 8), once only measured and once
analysed too, on one core; the profile says in which functions the time of measuring is spent, callees left out.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks import page
from benchmarks.coverage import Design, figures, records

DESIGN = Design(blocks=4, prompts=32)
MOST_SHOWN = 6
COMMANDS = ((("--help",), 0.3), (("plan", "configs/demo.yaml"), 1.0))  # with the seconds each may take
STARTS = 5


def seconds(work: Callable[[int], Any], studies: int) -> float:
    """CPU seconds of one study, on average."""
    began = time.process_time()
    for seed in range(studies):
        work(seed)
    return (time.process_time() - began) / studies


def measured(seed: int) -> int:
    """Output tokens of one study's cells, measured and dropped."""
    return sum(len(request.token_ids) for record in records(seed, DESIGN) for request in record.requests)


def profile(seed: int) -> str:
    """The functions in which measuring spends its time, with their shares of it."""
    run = cProfile.Profile()
    run.runcall(measured, seed)
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, Any]] = pstats.Stats(run).stats  # type: ignore[attr-defined]
    whole = sum(own for _, _, own, _, _ in stats.values())
    ranked = sorted(stats.items(), key=lambda item: -item[1][2])[:MOST_SHOWN]
    return ", ".join(f"`{name}` {own / whole:.0%}" for (_, _, name), (_, _, own, _, _) in ranked)


def start_s(arguments: tuple[str, ...]) -> float:
    """Median seconds of a command's whole life, the first run (cold caches) left out."""
    taken = []
    for _ in range(STARTS + 1):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "specprof.cli", *arguments], check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - began)
    return median(taken[1:])


def main() -> None:
    """Print the table; write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=40)
    page.add_write(parser)
    options = parser.parse_args()
    tokens = measured(0)
    alone, whole = (seconds(work, options.studies) for work in (measured, lambda seed: figures(seed, DESIGN)))
    rows = [
        ("simulated tokens/s, one core", f"{tokens / alone:,.0f}"),
        ("studies/s, one core, measured", f"{1 / alone:.1f}"),
        ("studies/s, one core, measured and analysed", f"{1 / whole:.1f}"),
        ("500 studies on two cores", f"{500 * whole / 2:.0f} s (target 300)"),
    ]
    rows += [(f"`specprof {' '.join(of)}`", f"{start_s(of):.2f} s (target {limit})") for of, limit in COMMANDS]
    text = page.table(("", ""), rows) + (
        f"\n\nMeasuring is limited by, own time of each: {profile(1)}. "
        f"{page.made('python -m benchmarks.simulator', 'numpy', 'scipy')}"
    )
    print(text)
    if options.write:
        page.write_section(options.write, "simulator", text)


if __name__ == "__main__":
    main()
