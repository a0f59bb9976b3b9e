"""Does a small plan decide what a large one does? Random worlds, measured both ways on the virtual clock.

    python -m benchmarks.decisions [--worlds 50] [--first-seed 0] [--write docs/performance.md]

Each world is another machine: how well drafts are guessed, what a draft and a verified token cost, how launches differ.
One content is measured at N = 1, 2, 4, 8 and 16 without speculation and with K = 1, 3 and 5:

* the full grid: every arm, every N, 12 blocks, looked at once, and after 4 of its blocks;
* the policy plan (`specprof plan --for policy`: N = 1, 4, 16 and K = 1, 5; `until: decided`) with `blocks: auto`.

All are asked what to do at each of the five N: on, off or undecided, by the same policy. Engine time is the virtual
wall from a cell's first request to its last, warm-ups and all, plus a stated cost of each launch.

The truth is the world's own: the same cells without step and launch noise on prompts no study uses, as often as it
takes to say on which side of the policy's line (a gain of 3%) a gain lies. A decision is wrong where the truth lies on
the other side by more than the equivalence band (1%): on, and the arm it chose gains too little; off, and some arm of
the full grid gains more. Undecided is never wrong.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import log, sqrt
from statistics import fmean, stdev

from scipy import stats as distributions

from benchmarks import page
from benchmarks.cells import forced_cell
from specprof.analyse.evidence import Evidence
from specprof.analyse.modelled import model_study
from specprof.analyse.results import StudyFigures
from specprof.analyse.study import analyse
from specprof.columns import CellData, cell_data
from specprof.decide.looks import settled
from specprof.decide.policy import MARGIN, Decision, decisions
from specprof.decide.ranges import make_policy
from specprof.engine.sim import Content, Drafter, Hardware, Machine, Noise, VirtualEngine, machine_of
from specprof.records import Cell, CellRecord, Launch, Phase, Prompt
from specprof.study.config import Study
from specprof.study.smallest import smallest_grid

TAG, PROTOCOL = "code", "forced"
STREAMS = (1, 2, 4, 8, 16)
DRAFTS = (1, 3, 5)
PROMPTS, TOKENS = 32, 64
BLOCKS = 12
LAUNCH_S = 60.0  # an engine of a few billion parameters: load, compile, warm up
BAND = 0.01
FEWEST_DRAWS, MOST_DRAWS = 6, 40  # of fresh prompts, for the truth of one gain
SURE = 4.0  # standard errors


def world(seed: int) -> Machine:
    """A machine on which speculation may pay at every load, at none, or up to some load."""
    rng = random.Random(f"decisions/{seed}")
    first, fade = rng.uniform(0.35, 0.9), rng.uniform(0.85, 1.0)
    content = Content(
        tuple(first * fade**position for position in range(max(DRAFTS))),
        prompt_spread=rng.uniform(0.2, 0.6),
        eos_mean_tokens=5000,
    )
    hardware = Hardware(
        fixed_s=0.010, per_sequence_s=rng.uniform(0.0001, 0.0006), per_token_s=rng.choice([1, 2, 4, 8]) * 1e-4
    )
    return replace(
        machine_of("small"),
        contents={TAG: content},
        hardware=hardware,
        drafters={"*": Drafter(fixed_s=rng.uniform(0.0, 0.002), per_draft_token_s=rng.uniform(0.0002, 0.0015))},
        noise=Noise(launch_sigma=rng.uniform(0.005, 0.025), step_sigma=0.05),
        seed=seed,
    )


def full_study() -> Study:
    """Everything that is asked."""
    arms = {f"k{k}": {"speculative_config": {"method": "draft", "num_speculative_tokens": k}} for k in DRAFTS}
    return Study.model_validate(
        {
            "study": "decisions",
            "engine": {"kind": "sim", "preset": "small"},
            "arms": {"off": {}, **arms},
            "workloads": [{"tag": TAG, "suite": "code.jsonl"}],
            "protocols": {PROTOCOL: {"stop": "forced", "output_tokens": TOKENS}},
            "concurrency": STREAMS,
            "prompts": PROMPTS,
            "blocks": BLOCKS,
        }
    )


def policy_study() -> Study:
    """What `specprof plan --for policy` makes of it, to be measured until it has decided."""
    return smallest_grid(full_study().model_copy(update={"blocks": "auto"})).study


# -- measuring --------------------------------------------------------------------------------------------------------


def prompts_of(name: str) -> dict[str, Prompt]:
    """Prompts nobody else has."""
    names = [f"{name}-{i}" for i in range(PROMPTS)]
    return {one: Prompt(one, TAG, "en", f"def step_{one}(x):\n    return x\n") for one in names}


def launches(study: Study, seed: int, first: int, last: int) -> Iterator[Launch]:
    """The study's launches of some blocks, arms in turn from both ends."""
    loads = study.protocols[PROTOCOL].concurrency or study.concurrency
    suite = list(prompts_of(f"world-{seed}"))
    for block in range(first, last):
        order = tuple(random.Random(f"{seed}/{block}").sample(suite, len(suite)))
        arms = list(study.arms) if block % 2 == 0 else list(study.arms)[::-1]
        for place, arm in enumerate(arms):
            flags = study.arms[arm].speculative_config
            cells = tuple(_cell(arm, flags, block, n, order) for n in loads)
            yield Launch(block * len(arms) + place, block, arm, flags, cells)


def _cell(arm: str, flags: Mapping[str, object] | None, block: int, streams: int, order: tuple[str, ...]) -> Cell:
    return forced_cell(arm, flags, block, streams, order, tokens=TOKENS, num_warmup=streams, warmup_tokens=8)


@dataclass(frozen=True)
class Spent:
    """Engine time: launches, and seconds in which cells were measured."""

    num_launches: int = 0
    cells_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Both together."""
        return self.num_launches * LAUNCH_S + self.cells_s


def measured(study: Study, machine: Machine, first: int, last: int) -> tuple[list[CellData], Spent]:
    """Some blocks of a study on a machine, and what they took."""
    suite, found, seconds, count = prompts_of(f"world-{machine.seed}"), [], 0.0, 0
    for launch in launches(study, machine.seed, first, last):
        engine, count = VirtualEngine(machine, launch.speculative_config, launch_index=launch.index), count + 1
        for cell in launch.cells:
            record = engine.measure(cell, suite)
            seconds += _seconds(record)
            found.append(cell_data(record))
    return found, Spent(count, seconds)


def _seconds(record: CellRecord) -> float:
    return (max(r.done_ns for r in record.requests) - min(r.sent_ns for r in record.requests)) / 1e9


# -- deciding ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What to do at one load: `on` with this arm, `off` or `undecided`."""

    decision: str
    arm: str | None


Answers = dict[int, Answer]  # by number of streams


def answers(study: Study, cells: Sequence[CellData]) -> tuple[Answers, StudyFigures, Evidence]:
    """The policy at every load of the full grid, as far as this study's largest reaches."""
    evidence = Evidence(cells)
    figures = analyse(study.study, evidence, {})
    figures = replace(figures, decisions=tuple(decisions(study, figures, evidence)))
    policy = make_policy(study, figures, evidence, margin=MARGIN, models=model_study(figures))
    (tag,) = policy.tags
    told = {
        n: Answer(part.decision.value, part.arm) for part in tag.ranges for n in STREAMS if part.low <= n <= part.high
    }
    return told, figures, evidence


def by_looks(study: Study, machine: Machine) -> tuple[Answers, Spent]:
    """Measure block by block of a plan, and stop at the first look that settles everything."""
    cells: list[CellData] = []
    spent, told, done = Spent(), Answers(), 0
    for look in study.looks:
        more, cost = measured(study, machine, done, look)
        cells, done = cells + more, look
        spent = Spent(spent.num_launches + cost.num_launches, spent.cells_s + cost.cells_s)
        told, figures, evidence = answers(study, cells)
        if settled(figures, evidence, 1 + MARGIN):
            break
    return told, spent


# -- truth ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gain:
    """ln of a true gain over the policy's line, with its standard error."""

    beyond_line: float
    error: float


def true_gain(machine: Machine, draft_tokens: int, streams: int) -> Gain:
    """Averaged over prompts of no study, until it surely lies on one side of the line."""
    quiet = replace(machine, noise=Noise())
    seen: list[float] = []
    for draw in range(MOST_DRAWS):
        suite = prompts_of(f"truth-{machine.seed}-{draw}")
        on, off = (_log_throughput(quiet, k, streams, suite) for k in (draft_tokens, 0))
        seen.append(on - off - log(1 + MARGIN))
        if len(seen) >= FEWEST_DRAWS and abs(fmean(seen)) > SURE * stdev(seen) / sqrt(len(seen)):
            break
    return Gain(fmean(seen), stdev(seen) / sqrt(len(seen)))


def _log_throughput(machine: Machine, draft_tokens: int, streams: int, suite: Mapping[str, Prompt]) -> float:
    flags = {"method": "draft", "num_speculative_tokens": draft_tokens} if draft_tokens else None
    record = VirtualEngine(machine, flags).measure(_cell("", flags, 0, streams, tuple(suite)), suite)
    texts = [r for r in record.requests if r.phase is Phase.MEASURED]
    wall_ns = max(r.done_ns for r in texts) - min(r.sent_ns for r in texts)
    return log(sum(len(r.token_ids) for r in texts) / wall_ns)


def is_wrong(answer: Answer, gains: Mapping[str, Gain]) -> bool:
    """Whether the truth lies on the other side of the line, beyond the band."""
    if answer.decision == Decision.ON and answer.arm is not None:
        return gains[answer.arm].beyond_line < -log(1 + BAND)
    if answer.decision == Decision.OFF:
        return max(gain.beyond_line for gain in gains.values()) > log(1 + BAND)
    return False


# -- worlds -----------------------------------------------------------------------------------------------------------

FULL, FEW, POLICY = f"full grid, {BLOCKS} blocks", "full grid, 4 blocks", "policy plan, blocks: auto"


@dataclass(frozen=True)
class Outcome:
    """One world by one plan."""

    spent: Spent
    answers: Answers
    wrong: tuple[int, ...]  # loads


def world_outcomes(seed: int) -> dict[str, Outcome]:
    """One world, by every plan."""
    machine, study = world(seed), full_study()
    cells, spent = measured(study, machine, 0, BLOCKS)
    early, early_spent = [c for c in cells if c.cell.block < 4], measured(study, machine, 0, 4)[1]
    found = {
        FULL: (answers(study, cells)[0], spent),
        FEW: (answers(study.model_copy(update={"blocks": 4}), early)[0], early_spent),
        POLICY: by_looks(policy_study(), machine),
    }
    decided = {n for told, _ in found.values() for n, answer in told.items() if answer.decision != Decision.UNDECIDED}
    gains = {n: {f"k{k}": true_gain(machine, k, n) for k in DRAFTS} for n in sorted(decided)}
    return {
        name: Outcome(cost, told, tuple(n for n, answer in told.items() if n in gains and is_wrong(answer, gains[n])))
        for name, (told, cost) in found.items()
    }


def rows(worlds: Sequence[Mapping[str, Outcome]]) -> Iterator[tuple[str, ...]]:
    """One line of the table per plan."""
    whole = sum(one[FULL].spent.seconds for one in worlds)
    for name in (FULL, FEW, POLICY):
        outcomes = [one[name] for one in worlds]
        pairs = [(one[name].answers[n].decision, one[FULL].answers[n].decision) for one in worlds for n in STREAMS]
        decided = sum(mine != Decision.UNDECIDED for mine, _ in pairs)
        both = [(mine, full) for mine, full in pairs if Decision.UNDECIDED not in (mine, full)]
        wrong = sum(len(outcome.wrong) for outcome in outcomes)
        low, high = distributions.binomtest(wrong, decided).proportion_ci(method="wilson") if decided else (0.0, 1.0)
        yield (
            name,
            f"{sum(outcome.spent.seconds for outcome in outcomes) / whole:.0%}",
            f"{sum(outcome.spent.cells_s for outcome in outcomes) / sum(o[FULL].spent.cells_s for o in worlds):.0%}",
            f"{decided} of {len(pairs)}",
            f"{sum(mine == full for mine, full in both)} of {len(both)}",
            f"{wrong}: {wrong / max(decided, 1):.1%} [{low:.1%}, {high:.1%}]",
        )


HEAD = (
    "plan",
    "engine time",
    "without launches",
    "decided (tag, N)",
    "as the full grid, where both decide",
    "wrong of those decided [95%]",
)


def main() -> None:
    """Print the table; write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=50)
    parser.add_argument("--first-seed", type=int, default=0, help="other worlds, to develop on")
    parser.add_argument("--processes", type=int, default=2)
    page.add_write(parser)
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.worlds)
    began = time.perf_counter()
    with ProcessPoolExecutor(options.processes) as pool:
        worlds = list(pool.map(world_outcomes, seeds))
    looks = sorted(one[POLICY].spent.num_launches for one in worlds)
    command = f"python -m benchmarks.decisions --worlds {options.worlds} --first-seed {options.first_seed}"
    text = page.table(HEAD, rows(worlds)) + (
        f"\n\n{options.worlds} worlds × {len(STREAMS)} loads; a launch is {LAUNCH_S:.0f} s; the policy plan took "
        f"{looks[0]} to {looks[-1]} launches (median {looks[len(looks) // 2]}), the full grid "
        f"{BLOCKS * (1 + len(DRAFTS))}. {time.perf_counter() - began:.0f} s. {page.made(command, 'numpy', 'scipy')}"
    )
    print(text)
    for seed, one in zip(seeds, worlds, strict=True):
        for name, outcome in one.items():
            for n in outcome.wrong:
                print(f"  wrong: world {seed}, {name}, N = {n}: {outcome.answers[n]}")
    if options.write:
        page.write_section(options.write, "decisions", text)


if __name__ == "__main__":
    main()
