"""Do the 95% intervals hold 95%? Simulated studies with known truth, through the whole analysis path.

    python -m benchmarks.coverage [--studies 500] [--blocks 4] [--prompts 32] [--sigma 0 0.5] [--write docs/coverage.md]

Each study is another world: other prompts, another machine's luck, other launches. The truth never comes from the code
under test: acceptance is integrated over the population of prompts (`engine.sim.truth`), and the ratios are averaged
over many other simulated cells straight from token counts and walls. Texts are forced to one length, or, with a sigma,
end where they end: a few long ones then weigh as much as many short ones.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log
from pathlib import Path

import numpy as np

from benchmarks.cells import forced_cell
from specprof.analyse.evidence import Evidence
from specprof.analyse.results import Figure
from specprof.analyse.study import analyse
from specprof.columns import cell_data
from specprof.engine.sim import Content, Machine, Noise, VirtualEngine, machine_of
from specprof.engine.sim.truth import acceptance_truth
from specprof.records import CellRecord, Launch, Phase, Prompt, Stop

TOKENS = 96
DRAFT_TOKENS = 4
STREAMS = (1, 8)
LONGEST = 20  # times the typical text: none is cut off
SPECULATION = {"method": "draft", "num_speculative_tokens": DRAFT_TOKENS}


@dataclass(frozen=True)
class Design:
    """How large each simulated study is."""

    blocks: int
    prompts: int
    sigma: float = 0.0  # of the log of the texts' lengths; 0: forced, all of one length


def world(seed: int, design: Design) -> Machine:
    """A machine with all that makes measuring hard: prompts that differ, launches that differ, steps that jitter."""
    content = Content((0.75, 0.68, 0.62, 0.58), prompt_spread=0.5, drift_per_100_tokens=0.1, eos_mean_tokens=5000)
    if design.sigma:
        content = replace(content, eos_mean_tokens=TOKENS, eos_sigma=design.sigma)
    noise = Noise(launch_sigma=0.02, step_sigma=0.05)
    return replace(machine_of("small"), contents={"code": content}, noise=noise, seed=seed)


def prompts_of(seed: int, count: int) -> tuple[Prompt, ...]:
    """`count` prompts nobody else has."""
    names = [f"{seed}-{i}" for i in range(count)]
    return tuple(
        Prompt(id=name, tag="code", lang="en", text=f"def step_{name.replace('-', '_')}(x):\n    return x + {seed}\n")
        for name in names
    )


def records(seed: int, design: Design) -> Iterator[CellRecord]:
    """One study's cells, in ABBA order."""
    machine, prompts = world(seed, design), prompts_of(seed, design.prompts)
    suite = {p.id: p for p in prompts}
    launches = []
    for block in range(design.blocks):
        ordered = random.Random(f"{seed}/{block}").sample(prompts, len(prompts))
        for arm in ("off", "on") if block % 2 == 0 else ("on", "off"):
            speculation, ids = SPECULATION if arm == "on" else None, [prompt.id for prompt in ordered]
            cells = tuple(forced_cell(arm, speculation, block, n, ids, tokens=TOKENS) for n in STREAMS)
            if design.sigma:
                natural = {"stop": Stop.NATURAL, "protocol": "natural", "max_tokens": LONGEST * TOKENS}
                cells = tuple(replace(cell, **natural) for cell in cells)
            launches.append(Launch(len(launches), block, arm, speculation, cells))
    for launch in launches:
        engine = VirtualEngine(machine, launch.speculative_config, launch_index=launch.index)
        for cell in launch.cells:
            yield engine.measure(cell, suite)


def figures(seed: int, design: Design) -> dict[str, Figure]:
    """What the analysis says of one study."""
    found = analyse("coverage", Evidence(cell_data(record) for record in records(seed, design)), {})
    gain = {g.concurrency: g for g in found.gains}
    on = {c.concurrency: c for c in found.cells if c.arm == "on"}
    nothing = Figure(None)
    return {
        "AL": on[1].acceptance_length or nothing,
        "speculation gain, N=1": gain[1].speculation_gain,
        "speculation gain, N=8": gain[8].speculation_gain,
        "batching gain, on": gain[8].batching_gain,
        "batching gain, off": gain[8].batching_gain_off,
        "interaction": gain[8].interaction,
    }


@dataclass(frozen=True)
class Block:
    """One block, from the records alone: ln(tokens / wall) by arm and streams, tokens accepted and steps they took."""

    log_throughputs: dict[tuple[str, int], float]
    accepted: int
    steps: int


def one_block(seed: int, design: Design) -> Block:
    """A block of a world that no study uses."""
    speeds, accepted, steps = {}, 0, 0
    for record in records(seed, replace(design, blocks=1)):
        measured = [r for r in record.requests if r.phase is Phase.MEASURED]
        wall_ns = max(r.done_ns for r in measured) - min(r.sent_ns for r in measured)
        speeds[record.cell.arm, record.cell.concurrency] = log(sum(len(r.token_ids) for r in measured) / wall_ns)
        told = [r.speculation for r in measured if r.speculation is not None]
        accepted += sum(one.num_accepted for one in told)
        steps += sum(one.num_steps for one in told)
    return Block(speeds, accepted, steps)


def truth(design: Design, draws: int, pool: ProcessPoolExecutor) -> dict[str, float]:
    """The values the intervals must hold, from `draws` worlds no study uses."""
    worlds = pool.map(partial(one_block, design=design), range(10**6, 10**6 + draws), chunksize=8)
    seen = list(worlds)
    x = {place: float(np.mean([one.log_throughputs[place] for one in seen])) for place in seen[0].log_throughputs}
    spec1, spec8 = (x["on", n] - x["off", n] for n in STREAMS)
    batch_on, batch_off = (x[arm, 8] - x[arm, 1] for arm in ("on", "off"))
    if design.sigma:
        length = 1 + sum(one.accepted for one in seen) / sum(one.steps for one in seen)
    else:
        length = acceptance_truth(world(0, design).contents["code"], DRAFT_TOKENS, TOKENS).acceptance_length
    return {
        "AL": length,
        "speculation gain, N=1": exp(spec1),
        "speculation gain, N=8": exp(spec8),
        "batching gain, on": exp(batch_on),
        "batching gain, off": exp(batch_off),
        "interaction": exp(batch_on - batch_off),
    }


@dataclass(frozen=True)
class Coverage:
    """How often a figure's interval held its truth, and how wide it was."""

    name: str
    truth: float
    covered: float
    half_width: float
    studies: int

    @property
    def error(self) -> float:
        """Standard error of `covered`."""
        return float(np.sqrt(self.covered * (1 - self.covered) / self.studies))


def coverage(num_studies: int, design: Design, draws: int) -> list[Coverage]:
    """Simulate, analyse, count."""
    with ProcessPoolExecutor() as pool:
        expected = truth(design, draws, pool)
        studies = list(pool.map(partial(figures, design=design), range(num_studies), chunksize=4))
    table = []
    for name, value in expected.items():
        found = [study[name] for study in studies]
        held = [f.low is not None and f.high is not None and f.low <= value <= f.high for f in found]
        width = float(np.median([f.half_width or float("nan") for f in found]))
        table.append(Coverage(name, value, float(np.mean(held)), width, num_studies))
    return table


def as_markdown(table: Sequence[Coverage], design: Design, seconds: float) -> str:
    """The table, with what it was made of."""
    lengths = f"ln-normal around {TOKENS}, sigma {design.sigma:g}" if design.sigma else f"{TOKENS}, all alike"
    head = (
        f"{table[0].studies} simulated studies, {design.prompts} prompts, output tokens {lengths}, {design.blocks} "
        f"blocks, N = {STREAMS[0]} and {STREAMS[1]}, K = {DRAFT_TOKENS}; {seconds:.0f} s.\n\n"
        "| figure | truth | 95% interval covers | median half-width |\n|---|---|---|---|\n"
    )
    rows = (f"| {c.name} | {c.truth:.3f} | {c.covered:.1%} ± {c.error:.1%} | ±{c.half_width:.1%} |" for c in table)
    return head + "\n".join(rows) + "\n"


def main() -> None:
    """Print the table; write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=500)
    parser.add_argument("--draws", type=int, default=1000, help="worlds the truth of the ratios is averaged over")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=32, help="32 is publishing grade")
    parser.add_argument("--sigma", type=float, nargs="+", default=[0.0, 0.5], help="of the log of the texts' lengths")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    told = []
    for sigma in options.sigma:
        design = Design(options.blocks, options.prompts, sigma)
        began = time.perf_counter()
        table = coverage(options.studies, design, options.draws)
        told.append(as_markdown(table, design, time.perf_counter() - began))
        print(told[-1])
    if options.write:
        options.write.write_text("\n".join(told), encoding="utf-8")


if __name__ == "__main__":
    main()
