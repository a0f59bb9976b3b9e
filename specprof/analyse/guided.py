"""Guided against free: what writing under a JSON Schema does to acceptance, speed and validity, speculation on and off.

A grammar masks tokens, and most of what it leaves open is easily guessed: punctuation, keys, closing brackets. So it
may raise acceptance; it also costs time in every step. Both protocols send the same prompts, and differ by `guided`
alone. Their texts differ, in length too. So decode speed and acceptance are compared prompt by prompt, while the ratio
of throughputs holds the shorter or longer texts as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log

import numpy as np

from specprof.analyse import stats
from specprof.analyse.evidence import Evidence, Key, Series, alike, contrast, key_of
from specprof.analyse.gates.found import each_once
from specprof.analyse.pairs import Pair, count_gap
from specprof.analyse.quality import QualityFigures
from specprof.analyse.results import NOTHING, CellFigures, Figure, GateFinding
from specprof.records import Cell


@dataclass(frozen=True, slots=True)
class GuidedFigures:
    """One content on one arm at one N, under its schemas and without. Ratios are guided / free.

    `decode_speed_ratio` and `acceptance_length_ratio` are paired by prompt. Acceptance is None with speculation off and
    where nothing was drafted; speculation gains (throughput on / off, and the guided one over the free one) are None
    for the off arm. Shares of good texts are None where nothing was judged. `gates` are those of both cells, each once;
    `valid` also asks the cells that the gains are made of.
    """

    tag: str
    free_protocol: str
    guided_protocol: str
    stop: str
    length: int
    arm: str
    method: str
    concurrency: int
    num_prompts: int
    acceptance_length_free: Figure | None
    acceptance_length_guided: Figure | None
    acceptance_length_ratio: Figure | None
    decode_speed_free_tok_s: Figure
    decode_speed_guided_tok_s: Figure
    decode_speed_ratio: Figure
    throughput_free_tok_s: Figure
    throughput_guided_tok_s: Figure
    throughput_ratio: Figure
    good_request_share_free: Figure
    good_request_share_guided: Figure
    speculation_gain_free: Figure | None
    speculation_gain_guided: Figure | None
    speculation_gain_ratio: Figure | None
    gates: tuple[GateFinding, ...]
    valid: bool


def guided_effects(
    evidence: Evidence, shown: Sequence[CellFigures], quality: Sequence[QualityFigures]
) -> Iterator[GuidedFigures]:
    """Every guided cell beside the cell that is like it but free, in the order shown."""
    pairs = _Pairs(evidence, shown, quality)
    cells = [(key, evidence.series[key].cell) for key in map(key_of, shown)]
    for (guided, cell), (free, other) in product(cells, repeat=2):
        if _differ_by_guidance(cell, other):
            yield pairs.figures(guided, free)


def _differ_by_guidance(guided: Cell, free: Cell) -> bool:
    if free.guided or not guided.guided:
        return False
    same = ("tag", "arm", "concurrency", "stop", "max_tokens", "mask_eos", "sampling", "chat")
    return alike(guided, free, *same) and set(guided.prompt_ids) == set(free.prompt_ids)


class _Pairs:
    """The cells of a study by key: what is shown of them, their series, and the quality of their texts."""

    def __init__(self, evidence: Evidence, shown: Sequence[CellFigures], quality: Sequence[QualityFigures]) -> None:
        self._series: Mapping[Key, Series] = evidence.series
        self._off_arm = evidence.off_arm
        self._shown = {key_of(cell): cell for cell in shown}
        self._good = {(q.tag, q.protocol, q.arm, q.concurrency): q.good_request_share for q in quality}

    def figures(self, guided: Key, free: Key) -> GuidedFigures:
        """One pair."""
        of_guided, of_free = self._shown[guided], self._shown[free]
        behind = [guided, free]
        speculates = guided[2] != self._off_arm
        if speculates:
            behind += [key for key in map(self._without, behind) if key in self._shown]
        series = self._series[guided], self._series[free]
        drafted = of_guided.acceptance_length is not None and of_free.acceptance_length is not None
        return GuidedFigures(
            tag=of_guided.tag,
            free_protocol=of_free.protocol,
            guided_protocol=of_guided.protocol,
            stop=of_guided.stop,
            length=of_guided.length,
            arm=of_guided.arm,
            method=of_guided.method,
            concurrency=of_guided.concurrency,
            num_prompts=len(_speeds_by_prompt(*series)),
            acceptance_length_free=of_free.acceptance_length,
            acceptance_length_guided=of_guided.acceptance_length,
            acceptance_length_ratio=acceptance_ratio(*series) if drafted else None,
            decode_speed_free_tok_s=of_free.decode_speed_tok_s,
            decode_speed_guided_tok_s=of_guided.decode_speed_tok_s,
            decode_speed_ratio=decode_speed_ratio(*series),
            throughput_free_tok_s=of_free.throughput_tok_s,
            throughput_guided_tok_s=of_guided.throughput_tok_s,
            throughput_ratio=self._throughputs(guided, free, speculation=False),
            good_request_share_free=self._good.get(free, NOTHING),
            good_request_share_guided=self._good.get(guided, NOTHING),
            speculation_gain_free=self._gain(free) if speculates else None,
            speculation_gain_guided=self._gain(guided) if speculates else None,
            speculation_gain_ratio=self._throughputs(guided, free, speculation=True) if speculates else None,
            gates=each_once((*of_guided.gates, *of_free.gates)),
            valid=all(self._shown[key].valid for key in behind),
        )

    def _without(self, key: Key) -> Key:
        tag, protocol, _, concurrency = key
        return tag, protocol, self._off_arm or "", concurrency

    def _gain(self, key: Key) -> Figure:
        return contrast([(self._series.get(key), 1), (self._series.get(self._without(key)), -1)])

    def _throughputs(self, guided: Key, free: Key, *, speculation: bool) -> Figure:
        """X guided / X free, or with `speculation` the same ratio of the two gains."""
        terms = [(self._series.get(guided), 1), (self._series.get(free), -1)]
        if speculation:
            terms += [(self._series.get(self._without(guided)), -1), (self._series.get(self._without(free)), 1)]
        return contrast(terms)


# -- paired by prompt -------------------------------------------------------------------------------------------------


def decode_speed_ratio(guided: Series, free: Series) -> Figure:
    """Geometric mean over prompts of decode speed guided / free, blocks and prompts both in its interval."""
    per_block = [np.mean(list(found.values())) for found in _log_ratios(guided, free).values() if found]
    by_prompt = [float(np.mean(found)) for found in _speeds_by_prompt(guided, free).values()]
    if not per_block:
        return NOTHING
    return stats.two_way([float(mean) for mean in per_block], stats.variance_of_mean(np.array(by_prompt)))


def _speeds_by_prompt(guided: Series, free: Series) -> dict[str, list[float]]:
    """ln(decode speed guided / free) of each prompt, one entry per block that has both."""
    found: dict[str, list[float]] = defaultdict(list)
    for ratios in _log_ratios(guided, free).values():
        for name, value in ratios.items():
            found[name].append(value)
    return found


def _log_ratios(guided: Series, free: Series) -> dict[int, dict[str, float]]:
    over, under = _log_speeds(guided), _log_speeds(free)
    return {
        block: {name: over[block][name] - under[block][name] for name in over[block] if name in under[block]}
        for block in over
        if block in under
    }


def _log_speeds(series: Series) -> dict[int, dict[str, float]]:
    """ln(decode speed) by block and prompt; without texts too short to have one."""
    return {
        frame.cell.block: {
            name: log(speed)
            for name, speed in zip(frame.requests.prompt_id, frame.requests.decode_speed, strict=True)
            if speed > 0
        }
        for frame in series.frames
    }


def acceptance_ratio(guided: Series, free: Series) -> Figure:
    """Token-weighted acceptance length guided / free over the prompts that drafted in both."""
    steps = [series.by_prompt("num_steps") for series in (guided, free)]
    names = tuple(name for name in steps[0] if steps[0][name] and steps[1].get(name))
    gap = count_gap(Pair(free, guided, names), "num_accepted", "num_steps", offset=1.0)
    return NOTHING if gap is None else gap.ratio
