"""How near each measured cell came to its bound (METHOD 9), or what is missing to say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specprof.analyse.hardware import names, served_on
from specprof.analyse.results import NOTHING, CellFigures, Figure, StudyFigures
from specprof.analyse.roofline import Hardware, ModelShape, tpot_s


@dataclass(frozen=True, slots=True)
class BoundShare:
    """A cell's throughput beside its bound: streams · tokens per engine step / shortest plain step.

    Taking the plain step keeps it a bound: verifying a draft takes no less. None where the cell lacks a figure.
    """

    tag: str
    protocol: str
    arm: str
    concurrency: int
    context: float  # tokens, in the middle of an answer
    throughput_tok_s: Figure
    bound_tok_s: float | None
    share: Figure
    valid: bool


@dataclass(frozen=True, slots=True)
class StudyShares:
    """Shares of a study's cells; none, and the reason in `missing`, where model or machine is unknown."""

    study: str
    machine: Hardware | None
    measured_on: str
    model: str
    cells: tuple[BoundShare, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...] = ()


def bound_shares(figures: StudyFigures, shape: ModelShape | None, machine: Hardware | None) -> StudyShares:
    """Every measured cell as a share of its bound.

    `shape`: of the served model; without it the study's own step_bytes count, which is the weights alone. `machine`:
    what it was measured on; without it the study's own GPU.
    """
    launch, facts = _first_launch(figures.environment)
    served = str(facts.get("model") or "")
    read = facts.get("extra", {}).get("step_bytes")
    measured_on = _measured_on(figures.environment)
    notes = []
    if shape is None and isinstance(read, int) and read > 0:
        shape = ModelShape(weight_bytes=read, num_parameters=0, kv_bytes_per_token=0)
        notes.append("Of the model only its weights' bytes are known: keys, values and arithmetic are left out.")
    machine = machine or served_on(figures.environment, launch)
    if shape is None or machine is None:
        missing = tuple(_missing(measured_on, served, shape, machine))
        return StudyShares(figures.study, machine, measured_on, served, (), missing)
    stages = int(facts.get("pipeline_parallel_size") or 1)
    cells = tuple(_share(cell, shape, machine, stages) for cell in figures.cells)
    return StudyShares(figures.study, machine, measured_on, served, cells, (), tuple(notes))


def _share(cell: CellFigures, shape: ModelShape, machine: Hardware, stages: int) -> BoundShare:
    prompts = cell.num_requests // max(cell.num_launches, 1)  # fewer of them than streams leave some without work
    streams = min(cell.concurrency, max(prompts, 1))
    context = (cell.prompt_tokens.value or 0.0) + (cell.output_tokens.value or 0.0) / 2
    per_step = cell.tokens_per_engine_step.value
    batch = max(streams // stages, 1)  # a pipeline's stages work on different batches, each of which passes them all
    bound = streams * per_step / tpot_s(shape, machine, batch, context) if per_step else None
    return BoundShare(
        tag=cell.tag,
        protocol=cell.protocol,
        arm=cell.arm,
        concurrency=cell.concurrency,
        context=context,
        throughput_tok_s=cell.throughput_tok_s,
        bound_tok_s=bound,
        share=cell.throughput_tok_s.scaled(1.0, bound) if bound else NOTHING,
        valid=cell.valid,
    )


def _missing(measured_on: str, served: str, shape: ModelShape | None, machine: Hardware | None) -> Iterator[str]:
    """What is not known, and how to give it."""
    if shape is None:
        name = f"the study served {served}" if served else "the study does not name what it served"
        yield f"The model's bytes are not in the study. Give --model ({name})."
    if machine is None:
        known = ", ".join(names())
        yield (
            f"The machine ({measured_on}) has no ceilings here. Give --hardware ({known}), or --probe on that machine."
        )


def _measured_on(environment: Mapping[str, Any]) -> str:
    """The study's own words for its machine."""
    gpus = [str(gpu.get("name")) for gpu in environment.get("gpus") or ()]
    return ", ".join(gpus) or str(environment.get("cpu") or "an unknown machine")


def _first_launch(environment: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
    launches = environment.get("launches") or {}
    return next(((int(number), facts) for number, facts in launches.items()), (0, {}))
