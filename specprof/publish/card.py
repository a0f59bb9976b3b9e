"""card.json: the published numbers as data, each with the context it must not be quoted without.

The body is the figures as data. `headlines` are the numbers fit to be quoted: one entry each, with tag,
protocol, stop rule, lengths, concurrency, arm, engine, interval, launches, prompts, gates and one line to copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any

from specprof.analyse.results import CellFigures, Figure, GainFigures, Severity, StudyFigures, as_json
from specprof.errors import InputError, SpecprofError
from specprof.publish.basis import Basis
from specprof.publish.context import Engine, context_line, engine_of, place
from specprof.publish.grid import Grid
from specprof.publish.json_text import finite, json_text
from specprof.publish.numbers import known, one_line, quantity, times
from specprof.publish.service_card import service_headlines
from specprof.publish.settings import without_secrets

SCHEMA_VERSION = 1

QUOTED_GAINS = {
    "speculation_gain": "speculation gain",
    "batching_gain": "batching gain",
    "interaction": "interaction",
}

_INTERVAL = ("value", "low", "high")
# Parts that were added to the card since: without them an older card of the same study stays as it is
_ONLY_WHERE_MEASURED = ("frontiers", "service", "cache", "interference", "quality", "guided", "pipeline")


def card(figures: StudyFigures) -> dict[str, Any]:
    """The card of a study, valid under `card.schema.json`."""
    made = {"schema_version": SCHEMA_VERSION, **_body(figures), "headlines": finite(headlines(figures))}
    if figures.service is not None:
        made["service"] = {**made["service"], "headlines": finite(service_headlines(figures))}
    validate(made)
    return made


def figures_json(figures: StudyFigures) -> str:
    """What `specprof report --format json` prints: the card's body, figures alone."""
    return json_text(_body(figures))


def _body(figures: StudyFigures) -> dict[str, Any]:
    told = as_json(figures)
    for later in _ONLY_WHERE_MEASURED:
        if not told[later]:
            del told[later]
    return dict(finite({**told, "environment": without_secrets(told["environment"])}))


def headlines(figures: StudyFigures) -> list[dict[str, Any]]:
    """Every number fit to be quoted: with an interval, and no invalid gate behind it or what it is made of."""
    grid, engine = Grid(figures), engine_of(figures.environment)
    of_cells = (throughput_headline(cell, engine) for cell in grid.figures.cells if cell.valid)
    of_gains = (
        line for gain in grid.figures.gains if _quotable(grid, gain) for line in _gain_headlines(grid, gain, engine)
    )
    return [line for line in (*of_cells, *of_gains) if all(known(line["figure"][name]) for name in _INTERVAL)]


def headline_key(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """Which number of a study a headline is."""
    return tuple(line[name] for name in ("metric", "tag", "protocol", "arm", "concurrency"))


def throughput_headline(cell: CellFigures, engine: Engine) -> dict[str, Any]:
    """A cell's throughput as a headline. Refuses a cell that fails an invalid gate."""
    _require_valid(cell)
    basis, said = Basis.of_cell(cell), quantity(cell.throughput_tok_s, "tok/s")
    told = _headline(cell, engine, "throughput_tok_s", "tok/s", cell.throughput_tok_s, basis, against=None)
    return {**told, "context": context_line(cell, engine, basis, said)}


def validate(made: Mapping[str, Any]) -> None:
    """Hold a card that was made here against its schema."""
    problem = schema_problem(made)
    if problem is not None:
        raise SpecprofError(
            f"card.json would break its own schema at {problem}. Nothing was written; this is a fault of specprof, "
            "please report it."
        )


def schema_problem(document: Mapping[str, Any]) -> str | None:
    """Where and how a card breaks its schema, `$.cells[0].arm: 3 is not of type 'string'`; None where it does not."""
    jsonschema: Any = import_module("jsonschema")  # only for a card, and it ships without types
    validator = jsonschema.Draft202012Validator(schema())
    problem = jsonschema.exceptions.best_match(validator.iter_errors(document))
    return None if problem is None else f"{problem.json_path}: {one_line(problem.message)[:300]}"


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) that ships with the package."""
    return dict(json.loads(files("specprof.publish").joinpath("card.schema.json").read_text(encoding="utf-8")))


def _quotable(grid: Grid, gain: GainFigures) -> bool:
    """Whether all the cells behind a gain are fit: a ratio is no better than its worse half."""
    return gain.valid and all(cell.valid for cell in grid.parts(gain))


def _gain_headlines(grid: Grid, gain: GainFigures, engine: Engine) -> Iterator[dict[str, Any]]:
    cell = grid.cell(gain.tag, gain.protocol, gain.arm, gain.concurrency)
    if cell is None:
        return
    lowest, parts = min(grid.concurrencies(gain.tag, gain.protocol)), grid.parts(gain)
    gates = {(gate.gate, gate.name): gate for part in parts for gate in part.gates}
    guarded = replace(cell, gates=tuple(gates.values()))
    for metric, words in QUOTED_GAINS.items():
        against = _baseline(metric, grid.off_arm or "off", gain, lowest)
        if metric != "speculation_gain" and gain.concurrency == lowest:
            continue  # one by definition
        figure: Figure = getattr(gain, metric)
        basis = Basis.of_gain(metric, gain, parts)
        told = _headline(guarded, engine, metric, "×", figure, basis, against=against)
        said = f"{words} {times(figure)} against {against}"
        yield {**told, "context": context_line(guarded, engine, basis, said)}


def _baseline(metric: str, off: str, gain: GainFigures, lowest: int) -> str:
    """What a gain is held against, in words."""
    return {
        "speculation_gain": f"{off}, N={gain.concurrency}",
        "batching_gain": f"{gain.method}, N={lowest}",
        "interaction": f"the product of both gains (1 = they multiply), N={lowest}",
    }[metric]


def _headline(
    cell: CellFigures, engine: Engine, metric: str, unit: str, figure: Figure, basis: Basis, *, against: str | None
) -> dict[str, Any]:
    return {
        "metric": metric,
        "unit": unit,
        "figure": as_json(figure),
        "against": against,
        "tag": cell.tag,
        "protocol": cell.protocol,
        "stop": cell.stop,
        "length": cell.length,
        "prompt_tokens": as_json(cell.prompt_tokens),
        "output_tokens": as_json(cell.output_tokens),
        "concurrency": cell.concurrency,
        "arm": cell.arm,
        "method": cell.method,
        "engine": engine.document,
        "num_launches": basis.num_launches,
        "num_prompts": basis.num_asked,
        "acceptance_length": as_json(cell.acceptance_length),
        "tokens_per_engine_step": as_json(cell.tokens_per_engine_step),
        "gates": as_json(list(cell.gates)),
    }


def _require_valid(cell: CellFigures) -> None:
    for gate in cell.gates:
        if gate.severity is Severity.INVALID:
            raise InputError(
                f"{place(cell)}, {quantity(cell.throughput_tok_s, 'tok/s')}: gate {gate.gate} ({gate.name}) forbids a "
                f"headline. {gate.evidence} {gate.remedy}"
            )
