"""card.md: a study's quotable numbers as one pastes them into a model card or an issue."""

from __future__ import annotations

from collections.abc import Iterator

from specprof.analyse.results import StudyFigures
from specprof.publish.context import Engine, engine_of, gate_codes
from specprof.publish.fitness import Fitness, address, assess
from specprof.publish.grid import protocol_of
from specprof.publish.markdown import escaped, fenced
from specprof.publish.numbers import UNKNOWN, count, number, one_line, quantity, times
from specprof.publish.quoted import Quoted, held_back, quoted
from specprof.publish.service_text import service_sentences

_COLUMNS = {  # heading → set right
    "content": False,
    "stop rule": False,
    "prompt": True,
    "N": True,
    "arm": False,
    "tok/s [95%]": True,
    "gain [95%]": True,
    "AL": True,
    "tokens per step": True,
    "rests on": False,
    "gates": False,
}


def card_markdown(figures: StudyFigures) -> str:
    """The card of a study as Markdown; only what is fit to be quoted stands in its table.

    `figures`: those its card.json is made of, or those read back from a card (`card_reading.figures_of`).
    """
    fitness, engine = assess(figures), engine_of(figures.environment)
    parts = (
        _heading(figures, engine),
        _table(fitness),
        _lines_to_copy(fitness),
        _service(figures, fitness),
        _how_measured(figures),
        _gates(fitness),
        _not_fit(fitness),
        _how_to_reproduce(figures),
    )
    return "\n\n".join("\n".join(lines) for lines in map(list, parts) if lines) + "\n"


def measured_on(figures: StudyFigures) -> str:
    """The day of the first run, `2026-11-29`; empty where the environment does not tell."""
    return one_line(figures.environment.get("recorded_at") or "")[:10]


def _heading(figures: StudyFigures, engine: Engine) -> Iterator[str]:
    yield f"## {escaped(figures.study)}: what speculative decoding gave"
    yield ""
    told = {"Engine": engine.words, "model": engine.model, "measured": measured_on(figures)}
    yield f"{' · '.join(f'{name}: {escaped(text)}' for name, text in told.items() if text)}."


def _table(fitness: Fitness) -> Iterator[str]:
    if not fitness.fit:
        if fitness.service:
            return
        yield "No number of this study is fit to be quoted."
        return
    yield f"| {' | '.join(_COLUMNS)} |"
    yield f"|{'|'.join('--:' if right else ':--' for right in _COLUMNS.values())}|"
    for row in quoted(fitness.fit):
        yield f"| {' | '.join(map(escaped, _entries(row)))} |"


def _entries(row: Quoted) -> tuple[str, ...]:
    cell = row.cell
    return (
        one_line(cell.tag),
        protocol_of(cell).words,
        count(cell.prompt_tokens.value),
        str(cell.concurrency),
        one_line(cell.method),
        quantity(row.throughput.number.figure) if row.throughput else UNKNOWN,
        times(row.gain.number.figure) if row.gain else UNKNOWN,
        number(cell.acceptance_length.value) if cell.acceptance_length else UNKNOWN,
        number(cell.tokens_per_engine_step.value),
        row.basis.words,
        gate_codes(row.gates) or "none",
    )


def _lines_to_copy(fitness: Fitness) -> Iterator[str]:
    if fitness.fit:
        yield "Every number with its context, one per line:"
        yield ""
        yield fenced("\n".join(one_line(fit.context) for fit in fitness.fit))


def _service(figures: StudyFigures, fitness: Fitness) -> Iterator[str]:
    """What the open loops say, and their numbers."""
    if figures.service is None:
        return
    yield "### Service: requests arrive by the clock"
    yield ""
    for sentence in service_sentences(figures):
        yield f"* {escaped(sentence)}."
    if fitness.service:
        yield ""
        yield fenced("\n".join(found.context for found in fitness.service))


def _how_measured(figures: StudyFigures) -> Iterator[str]:
    """Prompts, blocks, and what the words of the table mean."""
    cells = figures.cells
    if not cells:
        return
    yield "### How it was measured"
    yield ""
    requests, launches = (_range(getattr(cell, name) for cell in cells) for name in ("num_requests", "num_launches"))
    starts = "engine launch" if launches == "1" else "engine launches"
    yield f"* {requests} requests a cell from {launches} {starts} of each arm (a block starts every arm once)."
    yield "* tok/s: all output tokens over the wall time, counted by the server. Prompt: median tokens."
    yield "* Gain: tok/s over that of the arm without speculation, same prompts, same N (requests at once)."
    yield (
        "* Forced: every text is exactly as long as stated. Natural: it ends where its writer ends it, at most at the "
        "length stated."
    )
    yield (
        "* AL: tokens per verification step that carried a draft. Tokens per step: over all engine steps. Brackets: "
        "95% intervals."
    )
    yield "* Rests on: a first look (one launch of each arm) shows nothing of how another launch would differ."
    for note in figures.notes:
        yield f"* {escaped(note)}"


def _range(found: Iterator[int]) -> str:
    told = sorted(set(found))
    return str(told[0]) if len(told) == 1 else f"{told[0]}–{told[-1]}"


def _gates(fitness: Fitness) -> Iterator[str]:
    """Cautions that must be read beside the numbers, in words."""
    rows = quoted(fitness.fit)
    if not rows:
        return
    found: dict[tuple[int, str, str], list[tuple[str, str]]] = {}
    for row in rows:
        for gate in row.gates:
            found.setdefault((gate.gate, gate.name, gate.remedy), []).append((address(row.cell), gate.evidence))
    yield "### Gates"
    yield ""
    if not found:
        yield "Every cell behind these numbers passed every gate."
    for (gate_number, name, remedy), where in sorted(found.items()):
        place, evidence = where[0]
        yield (
            f"* Gate {gate_number}, {escaped(name)}: {len(where)} of {len(rows)} rows; {escaped(place)}: "
            f"{escaped(evidence)}. {escaped(remedy)}"
        )


def _not_fit(fitness: Fitness) -> Iterator[str]:
    if not fitness.unfit:
        return
    yield "### Not fit to be quoted"
    yield ""
    for held in held_back(fitness.unfit):
        against = " ".join(dict.fromkeys(objection.words for objection in held.objections))
        numbers = ", ".join(number.words for number in held.numbers)
        yield f"* {escaped(address(held.cell))} ({escaped(numbers)}). {escaped(against)}"


def _how_to_reproduce(figures: StudyFigures) -> Iterator[str]:
    version, commit = (one_line(figures.environment.get(name) or "") for name in ("specprof", "git_commit"))
    told = " ".join(part for part in ("specprof", version, f"(commit {commit})" if commit else "") if part)
    yield "### How to reproduce"
    yield ""
    yield f"With {escaped(told)} and the study file, `study.yaml` in the folder these results came in:"
    yield ""
    yield "```bash"
    yield "specprof run study.yaml"
    yield "```"
    yield ""
    yield "The same figures as data, with the environment of every engine launch: `card.json`."
