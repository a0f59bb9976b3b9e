"""What the figures mean, in sentences: where speculation pays, where it does not, and where nobody can say yet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specprof.analyse.interference import InterferenceFigures
from specprof.analyse.prefill import PrefillFigures
from specprof.analyse.results import (
    CellFigures,
    ContentFigures,
    GainFigures,
    GateFinding,
    Outcome,
    Severity,
    StudyFigures,
    VerdictFigures,
)
from specprof.analyse.service_results import RungFigures
from specprof.decide.verdict import PUBLISHABLE_BLOCKS
from specprof.publish.advice import Advice, advice, sentence, streams_words
from specprof.publish.context import encounter_words, engine_of, rate_words, step_words
from specprof.publish.grid import Grid, protocol_of
from specprof.publish.ladders import rungs_named_apart
from specprof.publish.numbers import known, number, one_line, percent, times
from specprof.publish.service_text import service_sentences

Measured = CellFigures | RungFigures | InterferenceFigures | PrefillFigures


def answer(figures: StudyFigures) -> tuple[str, str]:
    """The study in one paragraph, intervals left to the tables: where speculation pays, and the rest.

    A rehearsal is called one before anything else, and of its numbers none is told.
    """
    grid = Grid(figures)
    stamp = engine_of(figures.environment).rehearsal
    parts = (_what_is_unfit,) if stamp else _PARTS
    first, rest = _where_it_pays(grid), [told for part in parts if (told := part(grid))]
    if stamp:
        return sentence(stamp), " ".join((first, *rest))
    service = [f"{told.rstrip('.')}." for told in service_sentences(figures)]
    if first:
        return first, " ".join((*service, *rest))
    return " ".join(service), " ".join(rest)


def _where_it_pays(grid: Grid) -> str:
    if not grid.protocols:
        return ""
    if not grid.on_arms:
        return "Speculation was not measured: this study has one arm only."
    first = [item for item in advice(grid.figures) if item.protocol == grid.protocols[0] and item.steps]
    if not first:
        return "Speculation was not compared with an arm without it."
    looked = _by_method(first, first_look=True)
    if any(item.provisional for item in first):
        looked.insert(0, f"First look, no decision (one launch per arm; blocks: {PUBLISHABLE_BLOCKS} would show more).")
    told = " ".join([*_by_method(first, first_look=False), *looked])
    return f"{told} (Measured at {grid.protocols[0].words} tokens.)"


def _by_method(items: Sequence[Advice], *, first_look: bool) -> list[str]:
    """A sentence per way of speculating, of the loads that were launched several times or of the others."""
    methods = dict.fromkeys(item.method for item in items)
    told = ((name, _by_outcome([i for i in items if i.method == name], first_look=first_look)) for name in methods)
    return [f"With {one_line(name)}, {words}." for name, words in told if words]


def _by_outcome(items: Sequence[Advice], *, first_look: bool) -> str:
    """`speculation pays for code at N=1, 2; it does not pay for json at N=8; it is undecided for …`."""
    templates = (
        ("on", "would pay for {}" if first_look else "pays for {}"),
        ("off", "would not pay for {}" if first_look else "does not pay for {}"),
        ("undecided", "is undecided for {}"),
        ("level", "is not told apart from a faster arm for {}"),
        ("slower", "is slower than another arm for {}"),
        ("repeat", "has one prompt and so no interval for {}"),
        ("unfit", "has no valid figure for {}"),
        ("unknown", "has no figure for {}"),
    )
    said: list[str] = []
    for name, text in templates:
        where = [(one_line(item.tag), item.where(name, first_look=first_look)) for item in items]
        places = [f"{tag} at {streams_words(streams)}" for tag, streams in where if streams]
        if places:
            said.append(f"{'it' if said else 'speculation'} {text.format(listed(places))}")
    return "; ".join(said)


def _what_batching_gives(grid: Grid) -> str:
    gains = [gain for gain in _at_most_streams(grid) if known(gain.batching_gain_off.value)]
    if not gains:
        return ""
    told = [f"{number(gain.batching_gain_off.value)}× for {one_line(gain.tag)}" for gain in gains]
    return f"Batching by itself gives {listed(told)} at N={gains[0].concurrency}."


def _whether_they_multiply(grid: Grid) -> str:
    gains = [gain for gain in _at_most_streams(grid) if gain.valid and known(gain.interaction.value)]
    if not gains:
        return ""
    apart = [gain for gain in gains if not gain.multiply]
    if not apart:
        return "The two gains may be multiplied: every interaction lies within ±5% of 1."
    told = [f"{percent(gain.interaction.value)} for {one_line(gain.tag)}" for gain in apart]
    return f"The two gains must not be multiplied: together they give this share of their product: {listed(told)}."


def _at_most_streams(grid: Grid) -> list[GainFigures]:
    """The gains at the highest concurrency, first protocol and first speculating arm, one per tag."""
    most = max(grid.concurrencies(), default=1)
    if most == 1 or not grid.on_arms or not grid.protocols:
        return []
    found = (grid.gain(tag, grid.protocols[0].name, grid.on_arms[0], most) for tag in grid.tags)
    return [gain for gain in found if gain is not None]


def _what_content_does(grid: Grid) -> str:
    """The two contents furthest apart with speculation, and how far apart they are without it."""
    if not grid.protocols or not grid.on_arms or grid.off_arm is None:
        return ""
    protocol, arm, most = grid.protocols[0].name, grid.on_arms[0], max(grid.concurrencies())
    found = {
        (c.tag, c.other_tag, c.arm): c for c in grid.figures.contents if (c.protocol, c.concurrency) == (protocol, most)
    }
    pairs = [c for c in found.values() if c.arm == arm and _fit_pair(grid, c) and known(c.throughput_ratio.value)]
    if not pairs:
        return ""
    widest = max(pairs, key=lambda pair: abs(math.log(pair.throughput_ratio.value or 1)))
    without = found.get((widest.tag, widest.other_tag, grid.off_arm))
    if without is None or not known(without.throughput_ratio.value) or not _fit_pair(grid, without):
        return ""
    with_drafts, bare = number(widest.throughput_ratio.value), number(without.throughput_ratio.value)
    pair = f"{one_line(widest.tag)} writes {with_drafts}× as fast as {one_line(widest.other_tag)}"
    return f"Content matters: at N={most} {pair} with speculation, {bare}× without."


def _fit_pair(grid: Grid, pair: ContentFigures) -> bool:
    cells = (grid.cell(tag, pair.protocol, pair.arm, pair.concurrency) for tag in (pair.tag, pair.other_tag))
    return all(cell is not None and cell.valid for cell in cells)


def _what_is_unfit(grid: Grid) -> str:
    cells = _measured(grid.figures)
    unfit = [cell for cell in cells if not cell.valid]
    if not cells:
        return "Nothing was measured yet."
    if not unfit:
        return f"All {len(cells)} cells pass every gate that forbids publication."
    names = dict.fromkeys(
        f"{one_line(gate.name)}, gate {gate.gate}"
        for cell in unfit
        for gate in cell.gates
        if gate.severity is Severity.INVALID
    )
    are = "is" if len(unfit) == 1 else "are"
    return f"{len(unfit)} of {len(cells)} cells {are} shown but unfit to be published ({listed(list(names))})."


def _how_verdicts_fell(grid: Grid) -> str:
    verdicts = grid.figures.verdicts
    told = [f"“{one_line(verdict.name)}” {_OUTCOMES[verdict.outcome]}" for verdict in verdicts]
    return sentence(f"Verdicts: {listed(told)}") if told else ""


_PARTS = (_what_batching_gives, _whether_they_multiply, _what_content_does, _what_is_unfit, _how_verdicts_fell)

_OUTCOMES = {Outcome.PASS: "passes", Outcome.FAIL: "fails", Outcome.UNDECIDED: "is undecided"}


def verdict_sentence(verdict: VerdictFigures) -> str:
    """The verdict with its ratio, threshold and, if undecided, what would settle it."""
    needs = f" {sentence(one_line(verdict.needs))}" if verdict.needs and verdict.outcome is Outcome.UNDECIDED else ""
    drawn = " (the line was drawn after the measurement)" if verdict.post_hoc else ""
    line = f"{times(verdict.ratio)} against a line of {number(verdict.threshold)}×"
    return f"Verdict “{one_line(verdict.name)}”: {verdict.outcome.value}, {line}{drawn}.{needs}"


@dataclass(frozen=True, slots=True)
class GateGroup:
    """One gate over all the cells it speaks of: said once, not once per cell."""

    gate: int
    name: str
    severity: Severity
    remedy: str
    cells: tuple[tuple[Measured, str], ...]  # each with its own evidence

    @property
    def where(self) -> str:
        """The cells, shortened: `zh-prose forced 128, ngram K=4: N=1, 2, 4, 8`."""
        rows: dict[str, list[Measured]] = {}
        for cell, _ in self.cells:
            rows.setdefault(_but_for_load(cell), []).append(cell)
        return "; ".join(f"{row}: {_loads(cells)}" for row, cells in rows.items())


def gate_groups(figures: StudyFigures) -> tuple[GateGroup, ...]:
    """Every finding, grouped by gate and remedy, forbidding gates first."""
    found: dict[tuple[Severity, int, str, str], list[tuple[Measured, str]]] = {}
    for cell in (*_measured(figures), *_read(figures)):
        for gate in cell.gates:
            found.setdefault(_gate_key(gate), []).append((cell, gate.evidence))
    groups = [
        GateGroup(number_, name, severity, remedy, tuple(where))
        for (severity, number_, name, remedy), where in found.items()
    ]
    return tuple(sorted(groups, key=lambda group: (group.severity is not Severity.INVALID, group.gate)))


def _measured(figures: StudyFigures) -> tuple[Measured, ...]:
    """Cells of closed loops, rungs of open ones, long prompts among decoders; arms that sound alike told apart."""
    service, grid = rungs_named_apart(figures).service, Grid(figures)
    met = (replace(found, method=grid.methods.get(found.arm, found.method)) for found in figures.interference)
    return (*grid.figures.cells, *(service.rungs if service is not None else ()), *met)


def _read(figures: StudyFigures) -> tuple[PrefillFigures, ...]:
    """Reading speeds, of arms in words. They explain walls, and nobody publishes them."""
    methods = Grid(figures).methods
    return tuple(replace(found, arm=methods.get(found.arm, found.arm)) for found in figures.prefill)


def _but_for_load(cell: Measured) -> str:
    """`zh-prose forced 128, ngram K=4`, `zh-prose short prompts at once, off`."""
    if isinstance(cell, PrefillFigures):
        return f"{one_line(cell.tag)} {one_line(cell.shape)}, {one_line(cell.arm)}"
    where = encounter_words(cell) if isinstance(cell, InterferenceFigures) else protocol_of(cell).words
    return f"{one_line(cell.tag)} {where}, {one_line(cell.method)}"


def _loads(cells: Sequence[Measured]) -> str:
    """`N=1, 2, 4`, or `0.5 req/s poisson, 1 req/s poisson`, or `512 tokens a step, 2048 tokens a step`."""
    streams = sorted({cell.concurrency for cell in cells if isinstance(cell, CellFigures | PrefillFigures)})
    rates = dict.fromkeys(rate_words(cell) for cell in cells if isinstance(cell, RungFigures))
    steps = dict.fromkeys(step_words(cell) for cell in cells if isinstance(cell, InterferenceFigures))
    return ", ".join([*([streams_words(streams)] if streams else []), *rates, *steps])


def _gate_key(gate: GateFinding) -> tuple[Severity, int, str, str]:
    return gate.severity, gate.gate, gate.name, gate.remedy


def listed(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
