"""Measured cells as the step-time model reads them, and the few of them it is tried on."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specprof.analyse.results import CellFigures
from specprof.analyse.steptime import Observation
from specprof.records import arm_in_words
from specprof.study.drafters import drafter_of

OFF = arm_in_words(None)
QUEUEING_GATE = 1  # requests that waited are not concurrency: such a cell's N is another


@dataclass(frozen=True, slots=True)
class Seen:
    """A measured cell, the K it was asked for, and the share of its decoding steps that carried a draft."""

    cell: CellFigures
    asked: int
    drafter: str
    draft_share: float
    as_observed: Observation

    @property
    def is_off(self) -> bool:
        """Whether speculation was off."""
        return not self.drafter


def observe(cell: CellFigures, drafter: str) -> Seen | None:
    """None for a cell that may not speak: a gate forbids it, fewer than N streams ran, or its counts are missing.

    `drafter`: what drafts on the cell's arm (`drafters`); of no meaning with speculation off.
    """
    throughput, per_step = cell.throughput_tok_s.value, cell.tokens_per_engine_step.value
    queued = any(gate.gate == QUEUEING_GATE for gate in cell.gates)
    prompts = cell.num_requests // max(cell.num_launches, 1)
    if not cell.valid or queued or prompts < cell.concurrency or not throughput or not per_step:
        return None
    if cell.method == OFF:
        plain = Observation(cell.tag, cell.arm, cell.concurrency, 0.0, 1.0, throughput)
        return Seen(cell, 0, "", 0.0, plain)
    counts, asked = cell.acceptance_counts, _draft_tokens(cell)
    if counts is None or not asked or (counts.num_drafted and not counts.num_steps):
        return None  # the last: a server that counts drafted tokens and not the steps that carried them
    # Of a text's engine steps the first reads the prompt and carries no draft.
    decoding = max(cell.num_requests * ((cell.output_tokens.value or 0.0) / per_step - 1), 1.0)
    share = min(counts.num_steps / decoding, 1.0)
    drafted = min(counts.num_drafted / decoding, float(asked))
    observed = Observation(cell.tag, cell.arm, cell.concurrency, drafted, per_step, throughput, drafter)
    return Seen(cell, asked, drafter, share, observed)


def _draft_tokens(cell: CellFigures) -> int:
    """K as the arm asks for it; 0 for off, and where the arm does not name one number."""
    named = re.search(r" K=(\d+)$", cell.method)
    return int(named[1]) if named else 0


def drafters(arms: Iterable[str], flags: Mapping[str, Mapping[str, Any] | None]) -> dict[str, str]:
    """The drafter of each arm, named after the first arm that has it: arms that differ by K alone share one.

    `flags`: the speculative flags of each arm. An arm whose flags are not known is a drafter of its own.
    """
    first: dict[str, str] = {}
    named = {}
    for arm in arms:
        config = flags.get(arm)
        same = drafter_of(config) if config else arm
        named[arm] = first.setdefault(same, arm)
    return named


def few_and_rest(seen: Sequence[Seen]) -> tuple[list[Seen], list[Seen]]:
    """Smallest and largest N of every arm of the smallest and largest K, what a frugal study measures; and the rest."""
    asked: dict[tuple[str, str], set[int]] = defaultdict(set)
    streams: dict[tuple[str, str], set[int]] = defaultdict(set)
    for one in seen:
        asked[one.cell.tag, one.drafter].add(one.asked)
        streams[one.cell.tag, one.cell.arm].add(one.cell.concurrency)
    few: list[Seen] = []
    rest: list[Seen] = []
    for one in seen:
        k, n = asked[one.cell.tag, one.drafter], streams[one.cell.tag, one.cell.arm]
        is_extreme = one.asked in (min(k), max(k)) and one.cell.concurrency in (min(n), max(n))
        (few if is_extreme else rest).append(one)
    return few, rest
