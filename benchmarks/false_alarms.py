"""Do the gates keep quiet when nothing is wrong? Clean simulated studies through the whole analysis path.

    python -m benchmarks.false_alarms [--studies 200] [--first-seed 0]

Each study is another world: other prompts, another machine's luck, other launches, with the noise of
`benchmarks/coverage.py`. It measures one content (code, json, zh-prose in turn) at N = 1, 4, 8, forced and natural,
speculation off and on, in two blocks, with sentinels before and after every launch: 12 figures of 24 cells.

What counts as a false alarm:

* any finding of severity `invalid`: nothing in these worlds makes a number unfit;
* any `caution` but one that says something true of the cell. Two do. Gate 4 reports arithmetic, not a suspicion:
  decode speeds that add up to more than 1.10 × the aggregate, and for a gain that its account does not explain the
  streams that had work in either arm, are counted here a second time, straight from the records, and agree. Gate 2
  does so wherever a median natural text is under 128 tokens. Every other caution is false.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from statistics import fmean, geometric_mean, median

from benchmarks.cells import forced_cell
from specprof.analyse.evidence import Evidence, Key, key_of
from specprof.analyse.results import GateFinding, Severity
from specprof.analyse.study import analyse
from specprof.columns import cell_data
from specprof.engine.sim import Content, Machine, Noise, VirtualEngine, machine_of
from specprof.records import Cell, CellRecord, Launch, Phase, Prompt, Request, Role, Sampling, Stop

TAGS = ("code", "json", "zh-prose")
STREAMS = (1, 4, 8)
SPECULATION: Mapping[str, object] = {"method": "draft", "num_speculative_tokens": 4}
WARMUP_TOKENS = 8
SENTINEL_PROMPTS, SENTINEL_TOKENS = 4, 32

_WORDS: Mapping[str, tuple[str, ...]] = {
    "code": ("parse", "merge", "index", "score", "queue", "graph", "token", "cache", "frame", "store"),
    "json": ("order", "price", "city", "owner", "stock", "route", "colour", "weight", "label", "state"),
    "zh-prose": ("山路", "渡口", "旧信", "雨夜", "灯火", "茶馆", "远行", "老屋", "春雪", "稻田"),
}


@dataclass(frozen=True)
class Design:
    """What a simulated study measures."""

    tags: Sequence[str] = ("code",)
    streams: Sequence[int] = STREAMS
    stops: Sequence[Stop] = (Stop.FORCED, Stop.NATURAL)
    blocks: int = 2
    prompts: int = 12
    forced_tokens: int = 128
    natural_tokens: int = 400
    sampling: Sampling = field(default_factory=Sampling)


def world(seed: int) -> Machine:
    """A sound machine and what makes measuring hard: prompts that differ, launches that differ, steps that jitter."""
    noise = Noise(launch_sigma=0.02, step_sigma=0.05)
    content = Content((0.75, 0.68, 0.62, 0.58), prompt_spread=0.5, drift_per_100_tokens=0.1, eos_mean_tokens=220)
    contents = {
        "code": replace(content, chars_per_token=3.5),
        "json": replace(content, conditional_acceptance=(0.90, 0.86, 0.84, 0.82), chars_per_token=3.0),
        "zh-prose": replace(content, conditional_acceptance=(0.45, 0.38, 0.32, 0.30), chars_per_token=1.5),
    }
    return replace(machine_of("small"), contents=contents, noise=noise, seed=seed)


def suite_of(seed: int, design: Design) -> dict[str, Prompt]:
    """Prompts nobody else has, of different lengths."""
    rng = random.Random(seed)
    found = {}
    for tag in design.tags:
        for i in range(design.prompts):
            words = " ".join(rng.choices(_WORDS[tag], k=rng.randint(8, 40)))
            found[f"{tag}-{i:03d}"] = Prompt(f"{tag}-{i:03d}", tag, "", f"{tag} {seed} {i}: {words}")
    return found


def launches_of(seed: int, design: Design) -> Iterator[Launch]:
    """The study's launches in ABBA order; within a block, both arms run the same cells in the same order."""
    number = 0
    for block in range(design.blocks):
        rng = random.Random(f"{seed}/{block}")
        figures = [
            _cell(tag, stop, n, rng.sample(range(design.prompts), design.prompts), design)
            for tag in design.tags
            for stop in design.stops
            for n in design.streams
        ]
        rng.shuffle(figures)
        cells = [_sentinel("before", design), *figures, _sentinel("after", design)]
        for arm in ("off", "on") if block % 2 == 0 else ("on", "off"):
            speculation = SPECULATION if arm == "on" else None
            own = tuple(replace(cell, block=block, arm=arm, speculative_config=speculation) for cell in cells)
            yield Launch(number, block, arm, speculation, own)
            number += 1


def _cell(tag: str, stop: Stop, concurrency: int, order: Iterable[int], design: Design) -> Cell:
    plain = forced_cell(
        arm="",
        speculation=None,
        block=0,
        streams=concurrency,
        prompt_ids=[f"{tag}-{i:03d}" for i in order],
        tokens=design.forced_tokens if stop is Stop.FORCED else design.natural_tokens,
        num_warmup=concurrency,
        warmup_tokens=WARMUP_TOKENS,
    )
    return replace(plain, key="", tag=tag, protocol=stop.value, stop=stop, sampling=design.sampling)


def _sentinel(when: str, design: Design) -> Cell:
    cell = _cell(design.tags[0], Stop.FORCED, SENTINEL_PROMPTS, range(SENTINEL_PROMPTS), design)
    return replace(cell, role=Role.SENTINEL, protocol=f"sentinel-{when}", max_tokens=SENTINEL_TOKENS)


def records(
    seed: int,
    design: Design,
    machine: Machine | None = None,
    suite: Mapping[str, Prompt] | None = None,
    on_machine: Machine | None = None,
) -> Iterator[CellRecord]:
    """A study measured on the virtual clock. `on_machine`: another machine for the arm with speculation."""
    off_machine = machine or world(seed)
    suite = suite or suite_of(seed, design)
    for launch in launches_of(seed, design):
        measured_on = (on_machine or off_machine) if launch.speculative_config else off_machine
        engine = VirtualEngine(measured_on, launch.speculative_config, launch_index=launch.index)
        for cell in launch.cells:
            yield engine.measure(cell, suite)


def findings(cells: Iterable[CellRecord]) -> dict[Key, tuple[GateFinding, ...]]:
    """What the gates say of every figure of a study."""
    shown = analyse("clean", Evidence(cell_data(record) for record in cells), {}).cells
    return {key_of(cell): cell.gates for cell in shown}


# -- which findings are true -----------------------------------------------------------------------------------------


def clean_design(seed: int) -> Design:
    """One content per study, in turn."""
    return Design(tags=(TAGS[seed % len(TAGS)],))


def false_alarms(seed: int) -> list[tuple[Key, GateFinding]]:
    """Every finding of a clean study that says what is not so."""
    design = clean_design(seed)
    cells = list(records(seed, design))
    by_key: dict[Key, list[CellRecord]] = {}
    for record in cells:
        by_key.setdefault(key_of(record.cell), []).append(record)
    return [
        (key, finding)
        for key, found in findings(cells).items()
        for finding in found
        if finding.severity is Severity.INVALID or not _is_true(finding, by_key[key], by_key[_without(key)])
    ]


def _without(key: Key) -> Key:
    tag, protocol, _, concurrency = key
    return tag, protocol, "off", concurrency


def _is_true(finding: GateFinding, cells: Sequence[CellRecord], off: Sequence[CellRecord]) -> bool:
    """Whether a caution holds, from the records alone. `off`: those of the same figure without speculation."""
    if finding.name == "unexplained gain":
        ratios = [_streams_at_work(one) / _streams_at_work(other) for one, other in zip(cells, off, strict=True)]
        return abs(geometric_mean(ratios) - 1) > 0.05
    return any(_is_true_of(record, finding) for record in cells)


def _is_true_of(record: CellRecord, finding: GateFinding) -> bool:
    measured = _measured(record)
    if finding.gate == 2:
        return median(len(r.token_ids) for r in measured) < 128
    return finding.gate == 4 and _rate_inflation(measured, record.cell.concurrency) > 1.10


def _rate_inflation(requests: Sequence[Request], streams: int) -> float:
    """Mean decode speed times streams, over tokens per second of the whole cell."""
    speeds = [(len(r.token_ids) - r.chunk_tokens[0]) / (r.chunk_ns[-1] - r.chunk_ns[0]) for r in requests]
    return fmean(speeds) * min(streams, len(requests)) * _wall_ns(requests) / sum(len(r.token_ids) for r in requests)


def _streams_at_work(record: CellRecord) -> float:
    """How many had a request, on average over the wall."""
    requests = _measured(record)
    return sum(r.done_ns - r.sent_ns for r in requests) / _wall_ns(requests)


def _measured(record: CellRecord) -> list[Request]:
    return [r for r in record.requests if r.phase is Phase.MEASURED]


def _wall_ns(requests: Sequence[Request]) -> int:
    return max(r.done_ns for r in requests) - min(r.sent_ns for r in requests)


def main() -> None:
    """Print how many studies had a false alarm, and which."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=0, help="another set of worlds")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.studies)
    began = time.perf_counter()
    with ProcessPoolExecutor(options.processes) as pool:
        found = list(pool.map(false_alarms, seeds, chunksize=4))
    counts = Counter((f.gate, f.name, f.severity.value) for alarms in found for _, f in alarms)
    figures = 2 * len(STREAMS) * len(Stop)
    print(
        f"{options.studies} clean studies of {figures} figures: {sum(map(bool, found))} with a false alarm; "
        f"{sum(n for (*_, severity), n in counts.items() if severity == 'invalid')} invalid, "
        f"{sum(n for (*_, severity), n in counts.items() if severity == 'caution')} false cautions; "
        f"{time.perf_counter() - began:.0f} s"
    )
    for (gate, name, severity), count in sorted(counts.items()):
        print(f"  gate {gate} {name} ({severity}): {count}")
        seed, (key, finding) = next(
            (seed, alarm)
            for seed, alarms in zip(seeds, found, strict=True)
            for alarm in alarms
            if alarm[1].name == name
        )
        print(f"    e.g. study {seed}, {key}: {finding.evidence}")


if __name__ == "__main__":
    main()
