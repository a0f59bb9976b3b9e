"""Who arrives when in an open loop: drawn once from the study's seed, before anything runs, equal for every arm."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from specprof.records import Arrivals, Prompt
from specprof.study.load import Goodput, Load, Rates, Trace
from specprof.study.replay import replay

TAIL = 1.0  # the load is kept up for this share of the time-out after the window, then the schedule ends


@dataclass(frozen=True, slots=True)
class Schedule:
    """The arrivals of one open-loop cell: `prompts[i]` is due at `arrivals.due_s[i]`. `notes`: what to know of them."""

    arrivals: Arrivals
    prompts: tuple[Prompt, ...]
    notes: tuple[str, ...] = ()


def open_schedules(
    load: Load, prompts: Mapping[str, Sequence[Prompt]], seed: str, max_tokens: int
) -> Iterator[list[Schedule]]:
    """One list per ladder: the rungs of one content, rising. A trace is one rung, of all contents that it names.

    `max_tokens`: the most a text of the protocol may have; longer answers of a trace are cut to it.
    """
    if isinstance(load, Trace):
        recorded = replay(load, prompts, seed, max_tokens, TAIL * load.timeout)
        yield [Schedule(recorded.arrivals, recorded.prompts, recorded.notes)]
        return
    for tag, of_tag in prompts.items():
        yield [_drawn(load, rate, of_tag, f"{seed}/{tag}") for rate in rates_of(load)]


def rates_of(load: Rates | Goodput) -> tuple[float, ...]:
    """Every rate that may be measured, rising: those asked for, or the places that `rungs` halvings can come to.

    Halving is by ratio, so that each rung costs the interval the same share wherever it lies.
    """
    if isinstance(load, Rates):
        return load.rates
    low, high = load.between
    parts = 2**load.rungs
    return tuple(low * (high / low) ** (part / parts) for part in range(1, parts))


def _drawn(load: Rates | Goodput, rate: float, prompts: Sequence[Prompt], seed: str) -> Schedule:
    """The same draw at every rate, only faster: rungs differ by their rate and not by their luck."""
    rng = random.Random(seed)
    order = rng.sample(list(prompts), len(prompts))
    end = load.warmup + load.duration + TAIL * load.timeout
    due: list[float] = []
    at = _gap(load, rng) / rate
    while at < end:
        due.append(at)
        at += _gap(load, rng) / rate
    turns = cycle(order)
    arrivals = Arrivals(
        kind=load.arrivals,
        rate_per_s=rate,
        burstiness=load.burstiness,
        warmup_s=load.warmup,
        duration_s=load.duration,
        timeout_s=load.timeout,
        due_s=tuple(due),
        max_concurrency=load.max_concurrency,
    )
    return Schedule(arrivals, tuple(next(turns) for _ in due))


def _gap(load: Rates | Goodput, rng: random.Random) -> float:
    """A gap between arrivals at a rate of one per second: mean 1, coefficient of variation 1/sqrt(burstiness)."""
    if load.arrivals == "constant":
        return 1.0
    return rng.gammavariate(load.burstiness, 1 / load.burstiness)
