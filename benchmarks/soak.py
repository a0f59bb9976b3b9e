"""Does a long run stay what it was? Sixty-four streams for half an hour, and nothing grows.

    python benchmarks/soak.py [--minutes 30] [--write FILE.csv]

Every round measures what a run measures, the way it does: a closed loop of 64 streams, then requests by the clock, each
cell reset, warmed up, driven, counted, sealed to disk and read back. The simulated engine runs in a process of its own.
After each round the process looks at itself. The rules, by thirds of the rounds; in the first one caches fill:

* memory: the slope of the resident set after the first third (Theil-Sen, 95% interval). It grows if the interval lies
  above zero and the slope amounts to more than 2% of the memory over these rounds. The engine's process is held to it
  as well.
* descriptors and threads: the most of the last third is not above the most of the second.
* timing error: how late the client sent what was due, and how late its event loop woke (p99 of each round). It drifts
  if the last third is later than the first beyond chance (Mann-Whitney, one-sided 1%) and by more than 0.2 ms.

Exit status 1 if anything grew.
"""

from __future__ import annotations

import argparse
import csv
import gc
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray
from scipy import stats

from specprof.engine.protocol import Engine
from specprof.engine.start import start
from specprof.measure.loop import measure
from specprof.records import Role
from specprof.store import Store
from specprof.study.plan import Plan, make_plan
from specprof.study.reading import parse_study

MIB = 2**20
STREAMS = 64
MEMORY_SHARE = 0.02
LATER_S = 0.0002
CHANCE = 0.01
CONFIDENCE = 0.95
FEWEST_ROUNDS = 6

STUDY = """
study: soak
engine: {{kind: sim, preset: small, parameters: {{scheduler: {{max_num_seqs: {streams}}}}}}}
arms: {{"off": {{}}}}
workloads: [{{tag: code, suite: {root}/prompts/code.jsonl}}]
protocols:
  closed: {{stop: forced, output_tokens: {tokens}}}
  due:
    stop: forced
    output_tokens: {tokens}
    load: {{kind: rates, rates: [{rate}], duration: {window}, warmup: {warmup}}}
concurrency: [{streams}]
prompts: {streams}
"""


@dataclass(frozen=True, slots=True)
class Round:
    """What the process was after one round."""

    at_s: float
    num_requests: int
    memory_mib: float
    engine_memory_mib: float
    num_descriptors: int
    num_threads: int
    loop_lag_s: float
    dispatch_lag_s: float


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was watched, in words, and whether it grew."""

    what: str
    grew: bool


def soak(
    seconds: float,
    *,
    on_round: Callable[[Round], None],
    at_least: int = FEWEST_ROUNDS,
    tokens: int = 64,
    window_s: float = 4,
) -> list[Round]:
    """Measure rounds for so long. How long one takes hangs on a request's `tokens` and on the clock's `window_s`."""
    root = Path(__file__).resolve().parents[1]
    rate = round(STREAMS / (0.03 * tokens + 0.5))  # a step of 64 takes 30 ms, so about 64 are under way
    text = STUDY.format(root=root, streams=STREAMS, tokens=tokens, rate=rate, window=window_s, warmup=window_s / 4)
    study = parse_study(text, "soak")
    plan = make_plan(study)
    rounds: list[Round] = []
    others = set(psutil.Process().children())  # of whoever calls: multiprocessing, for one, leaves a helper behind
    with (
        tempfile.TemporaryDirectory() as folder,
        start(study.engine, plan.launches[0], Path(folder), lambda _: None) as engine,
    ):
        (child,) = set(psutil.Process().children()) - others
        began = time.monotonic()
        while time.monotonic() - began < seconds or len(rounds) < at_least:
            rounds.append(_round(plan, engine, Path(folder) / "results", child, began))
            on_round(rounds[-1])
    return rounds


def _round(plan: Plan, engine: Engine, folder: Path, child: psutil.Process, began: float) -> Round:
    store = Store.create(folder, "study: soak\n", "0" * 64)
    clients, num_requests = {}, 0
    for cell in plan.cells:
        if cell.role not in (Role.FIGURE, Role.OPEN):
            continue
        record = measure(cell, plan.prompts, engine, 0)
        failed = [request.error for request in record.requests if request.error and "cancelled" not in request.error]
        if failed:
            raise RuntimeError(f"{len(failed)} requests of {cell.key} failed: {failed[0]}")
        clients[cell.role] = record.client
        num_requests += len(record.requests)
        store.seal(record)
    if len(list(store.cells())) != len(clients):
        raise RuntimeError(f"{folder}: not every cell came back")
    shutil.rmtree(folder)
    gc.collect()
    process = psutil.Process()
    return Round(
        at_s=time.monotonic() - began,
        num_requests=num_requests,
        memory_mib=process.memory_info().rss / MIB,
        engine_memory_mib=child.memory_info().rss / MIB,
        num_descriptors=process.num_fds(),
        num_threads=process.num_threads(),
        loop_lag_s=clients[Role.FIGURE].loop_lag_p99_s,
        dispatch_lag_s=clients[Role.OPEN].dispatch_lag_p99_s,
    )


def judge(rounds: Sequence[Round]) -> Iterator[Finding]:
    """What grew over the rounds, by the rules above. ValueError with too few of them."""
    if len(rounds) < FEWEST_ROUNDS:
        raise ValueError(f"{len(rounds)} rounds are too few to judge; at least {FEWEST_ROUNDS} are needed")
    third = len(rounds) // 3
    first, second, last = rounds[:third], rounds[third : len(rounds) - third], rounds[len(rounds) - third :]
    settled = rounds[third:]
    yield memory("memory", settled, "memory_mib")
    yield memory("the engine's memory", settled, "engine_memory_mib")
    yield count("descriptors", second, last, "num_descriptors")
    yield count("threads", second, last, "num_threads")
    yield lateness("sent after it was due (p99)", first, last, "dispatch_lag_s")
    yield lateness("event loop woke late (p99)", first, last, "loop_lag_s")


def memory(what: str, rounds: Sequence[Round], name: str) -> Finding:
    """Whether the resident set has a slope beyond its scatter, and one that matters."""
    held, at_s = _column(rounds, name), _column(rounds, "at_s")
    slope, _, low, high = stats.theilslopes(held, at_s, CONFIDENCE)
    lasting_s = float(at_s[-1] - at_s[0])
    grew = low > 0 and slope * lasting_s > MEMORY_SHARE * float(np.median(held))
    per_hour = f"{slope * 3600:+.1f} [{low * 3600:+.1f}, {high * 3600:+.1f}] MiB/h"
    return Finding(f"{what} {np.median(held):.1f} MiB, {per_hour}", bool(grew))


def count(what: str, second: Sequence[Round], last: Sequence[Round], name: str) -> Finding:
    """Whether there are more of them at the end than there were in between."""
    before, after = (int(_column(rounds, name).max()) for rounds in (second, last))
    return Finding(f"{what} {before} → {after}", after > before)


def lateness(what: str, first: Sequence[Round], last: Sequence[Round], name: str) -> Finding:
    """Whether the end is later than the beginning, beyond chance and by something that shows in a figure."""
    before, after = _column(first, name), _column(last, name)
    by_chance = stats.mannwhitneyu(after, before, alternative="greater").pvalue
    later_s = float(np.median(after) - np.median(before))
    told = f"{what} {np.median(before) * 1e3:.2f} → {np.median(after) * 1e3:.2f} ms"
    return Finding(told, bool(by_chance < CHANCE and later_s > LATER_S))


def _column(rounds: Sequence[Round], name: str) -> NDArray[np.float64]:
    return np.array([getattr(one, name) for one in rounds], dtype=np.float64)


def verdict(rounds: Sequence[Round]) -> tuple[str, bool]:
    """The last line, and whether all stayed as it was."""
    findings = list(judge(rounds))
    grew = [finding.what for finding in findings if finding.grew]
    requests = sum(one.num_requests for one in rounds)
    span = f"{STREAMS} streams, {rounds[-1].at_s / 60:.1f} min, {len(rounds)} rounds, {requests:,} requests"
    if grew:
        return f"soak: GROWTH in {'; '.join(grew)} ({span})", False
    return f"soak: steady ({span}): {'; '.join(finding.what for finding in findings)}", True


def main() -> int:
    """Soak, print each round and the verdict; 1 if anything grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--write", type=Path, help="every round as a line of CSV")
    options = parser.parse_args()

    def show(one: Round) -> None:
        print(
            f"{one.at_s:7.0f} s  {one.memory_mib:7.1f} MiB  engine {one.engine_memory_mib:7.1f} MiB  "
            f"{one.num_descriptors} descriptors  {one.num_threads} threads  sent {one.dispatch_lag_s * 1e3:.2f} ms "
            f"late  loop {one.loop_lag_s * 1e3:.2f} ms late",
            flush=True,
        )

    rounds = soak(options.minutes * 60, on_round=show)
    if options.write:
        with options.write.open("w", newline="") as file:
            table = csv.DictWriter(file, [field.name for field in fields(Round)])
            table.writeheader()
            table.writerows(map(asdict, rounds))
    line, steady = verdict(rounds)
    print(line)
    return 0 if steady else 1


if __name__ == "__main__":
    sys.exit(main())
