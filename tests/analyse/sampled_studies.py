"""Sampled studies on the virtual clock: both arms written, sealed in memory, and scored by the simulated target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from specprof.analyse.evidence import Evidence
from specprof.columns import CellData, cell_data, score_table
from specprof.engine.sim import Machine, VirtualEngine, machine_of
from specprof.records import Cell, CellRecord, Prompt, Sampling
from tests.factory import NGRAM, make_cell, make_prompt

TAGS = ("code", "json")


def machine(seed: int = 0, **faults: Any) -> Machine:
    """The small machine with faults planted."""
    small = machine_of("small")
    return replace(small, seed=seed, faults=replace(small.faults, **faults))


def sampled_cell(tag: str, concurrency: int, num_prompts: int, **changes: Any) -> Cell:
    """A forced cell at T = 0.8."""
    return make_cell(
        tag=tag,
        concurrency=concurrency,
        prompt_ids=tuple(f"{tag}-{i:03d}" for i in range(num_prompts)),
        **{"max_tokens": 128, "sampling": Sampling(temperature=0.8, seed=7), **changes},
    )


def suite(num_prompts: int) -> dict[str, Prompt]:
    """Prompts of every tag."""
    names = [(f"{tag}-{i:03d}", tag) for tag in TAGS for i in range(num_prompts)]
    return {name: make_prompt(name, tag=tag, text=f"{tag} prompt number {name} ") for name, tag in names}


def written(
    on: Machine, *, num_prompts: int = 16, streams: tuple[int, ...] = (1, 8), **changes: Any
) -> tuple[list[CellData], dict[str, pa.Table]]:
    """Cells of both arms with their scores. The off arm runs on the same machine, where speculation's faults sleep."""
    prompts = suite(num_prompts)
    cells, scores = [], {}
    for arm, config in (("off", None), ("ngram-k4", NGRAM)):
        engine = VirtualEngine(on, config)
        for tag in TAGS:
            for concurrency in streams:
                settings = {"arm": arm, "speculative_config": config}
                cell = sampled_cell(tag, concurrency, num_prompts, **settings, **changes)
                record = engine.measure(cell, prompts)
                cells.append(cell_data(record))
                scores[cell.key] = scored(engine, record, prompts)
    return cells, scores


def scored(engine: VirtualEngine, record: CellRecord, prompts: Mapping[str, Prompt]) -> pa.Table:
    """The cell's texts under the target."""
    return score_table(engine.score(record, prompts))


def evidence(on: Machine, **changes: Any) -> Evidence:
    """A study's evidence, scores included."""
    cells, scores = written(on, **changes)
    return Evidence(cells, scores)
