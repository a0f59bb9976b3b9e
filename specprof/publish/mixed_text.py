"""Mixed traffic in words and tables: what a shared batch does to each content. No number here may be quoted alone."""

from __future__ import annotations

from collections.abc import Iterator

from specprof.analyse.results import Figure, GateFinding, MixFigures, StudyFigures
from specprof.publish.context import SEPARATOR, gate_code
from specprof.publish.grid import Grid, protocol_of
from specprof.publish.numbers import UNKNOWN, known, one_line, percent, times
from specprof.publish.table import ARM, GATES, STREAMS, Column, Entry, Group, Row, Table, protocol_tables, value

_COLUMNS = (
    STREAMS,
    ARM,
    Column("alone", "tok/s a stream"),
    Column("mixed", "tok/s a stream"),
    Column("decode speed", "mixed / alone"),
    Column("AL", "mixed / alone"),
    Column("steps per second", "mixed / alone"),
    Column("same, off", "mixed / alone"),
    Column("less the control", "90%"),
    Column("slowed by more than 5%?", words=True),
    Column("gain alone", "decode speed, on / off"),
    Column("gain mixed", "decode speed, on / off"),
    GATES,
)


def mixed_tables(grid: Grid, engine: str) -> tuple[Table, ...]:
    """One table per mixed protocol: every content beside the others, against itself alone."""

    def group(content: str, mixes: list[MixFigures]) -> Group:
        return Group(content, _context(mixes), tuple(_row(grid, mix) for mix in mixes))

    return protocol_tables(grid.figures.mixes, engine, _COLUMNS, group, content=_content)


def mixed_sentences(figures: StudyFigures) -> Iterator[str]:
    """One sentence per content, arm with speculation and N: the answer, its ratio and its context."""
    for mix in figures.mixes:
        if mix.control_ratio is not None:
            yield f"{_place(mix)}: {answer(mix)}"


def answer(mix: MixFigures) -> str:
    """What a mix did to one content under speculation: `slowed: 0.70× its decode speed alone [0.68, 0.72] (90%)`."""
    if not known(mix.tested_ratio.value):
        return f"{mix.verdict}: the content was not measured alone at full load"
    said = f"{mix.verdict}: {times(mix.tested_ratio)} its decode speed alone (90%)"
    gains = (mix.speculation_gain_alone, mix.speculation_gain_mixed)
    if all(gain is not None and known(gain.value) for gain in gains):
        said += f"; speculation gives {times(gains[0])} alone and {times(gains[1])} mixed"
    return said if mix.valid else f"{said}; a gate forbids to rely on it"


def _place(mix: MixFigures) -> str:
    return SEPARATOR.join((_content(mix), protocol_of(mix).words, f"N={mix.concurrency}", one_line(mix.method)))


def _content(mix: MixFigures) -> str:
    return f"{one_line(mix.tag)} beside {', '.join(map(one_line, mix.beside))}"


def _context(mixes: list[MixFigures]) -> str:
    """What the rows rest on, and what their gates saw."""
    prompts = "/".join(str(n) for n in sorted({mix.num_prompts for mix in mixes}))
    blocks = "/".join(str(n) for n in sorted({mix.num_blocks for mix in mixes}))
    alone = ", ".join(dict.fromkeys(one_line(mix.alone_protocol) or UNKNOWN for mix in mixes))
    found = {_finding(mix, gate): None for mix in mixes for gate in mix.gates}
    return "; ".join((f"alone: {alone}", f"{prompts} prompts", f"{blocks} blocks", *found))


def _finding(mix: MixFigures, gate: GateFinding) -> str:
    where = f"N={mix.concurrency}, {one_line(mix.method)}"
    return f"gate {gate_code(gate)} ({one_line(gate.name)}) at {where}: {one_line(gate.evidence)}"


def _row(grid: Grid, mix: MixFigures) -> Row:
    entries = (
        Entry(str(mix.concurrency)),
        Entry(one_line(grid.methods.get(mix.arm, mix.method))),
        value(mix.decode_speed_alone_tok_s),
        value(mix.decode_speed_mixed_tok_s),
        value(mix.decode_speed_ratio),
        value(mix.acceptance_length_ratio),
        value(mix.steps_per_s_ratio),
        value(mix.control_ratio),
        value(mix.tested_ratio),
        Entry(str(mix.verdict), _by(mix.tested_ratio)),
        value(mix.speculation_gain_alone),
        value(mix.speculation_gain_mixed),
        Entry("", gates=mix.gates),
    )
    return Row(entries, unfit=not mix.valid)


def _by(ratio: Figure) -> str:
    return f"({percent(ratio.value - 1, signed=True)})" if known(ratio.value) else ""
