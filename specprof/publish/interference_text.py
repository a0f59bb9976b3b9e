"""Interference in words and tables: what one long prompt did to the decoders it came among, and what it waited."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specprof.analyse.interference import CHUNKED, UNREAD, WHOLE, InterferenceFigures
from specprof.analyse.results import Figure, StudyFigures
from specprof.publish.context import SEPARATOR, gate_code
from specprof.publish.grid import Grid
from specprof.publish.numbers import count, known, number, one_line, seconds
from specprof.publish.table import ARM, GATES, Column, Entry, Group, Row, Table, share, value

Newcomer = tuple[str, str, int]  # what the decoders write, who comes, and how many decoders there are

_COLUMNS = (
    Column("prompt read", "tokens per step", words=True),
    ARM,
    Column("ITL per step", "p50, before"),
    Column("ITL per step", "p99, before"),
    Column("ITL per step", "p99, while reading"),
    Column("longest stall", "of any decoder"),
    Column("newcomer's part", "of the stall"),
    Column("TTFT", "of the newcomer"),
    Column("engine steps", "until then"),
    Column("longest stall", "chunked / whole"),
    Column("TTFT", "chunked / whole"),
    Column("longest stall", "on / off"),
    Column("TTFT", "on / off"),
    GATES,
)

READINGS = {WHOLE: "whole", CHUNKED: "in chunks", UNREAD: "not read"}


def by_newcomer(figures: StudyFigures) -> dict[Newcomer, list[InterferenceFigures]]:
    """The cells that share a newcomer and a number of decoders: they differ by arm and by how the prompt is read."""
    found: dict[Newcomer, list[InterferenceFigures]] = {}
    for met in figures.interference:
        found.setdefault((met.tag, met.newcomer_id, met.decoders), []).append(met)
    return found


def interference_tables(grid: Grid, engine: str) -> tuple[Table, ...]:
    """One table per newcomer and number of decoders: every arm, the prompt read whole and in chunks."""
    return tuple(
        Table(
            SEPARATOR.join((*newcomer_words(cells), engine)),
            _COLUMNS,
            (Group(one_line(cells[0].tag), _context(cells), tuple(_row(grid, met) for met in cells)),),
        )
        for cells in by_newcomer(grid.figures).values()
    )


def newcomer_words(cells: Sequence[InterferenceFigures]) -> tuple[str, ...]:
    """Who comes among how many: `long-code-006`, `912 prompt tokens`, `among 4 decoders`."""
    first = cells[0]
    tokens = next((met.prompt_tokens for met in cells if met.prompt_tokens is not None), None)
    return one_line(first.newcomer_id), f"{count(tokens)} prompt tokens", f"among {first.decoders} decoders"


def interference_sentences(figures: StudyFigures) -> Iterator[str]:
    """One sentence per newcomer, number of decoders and arm: who waited how long, for each way to read the prompt."""
    grid = Grid(figures)
    for cells in by_newcomer(grid.figures).values():
        for arm in dict.fromkeys(met.arm for met in cells):
            own = [met for met in cells if met.arm == arm]
            place = (one_line(own[0].tag), *newcomer_words(cells), _method(grid, own[0]))
            yield f"{SEPARATOR.join(place)}: {'; '.join(map(waiting, own))}"


def waiting(met: InterferenceFigures) -> str:
    """What one cell says: `read whole (max_num_batched_tokens 2048) it stalled a decoder for 1.52 s (…)`."""
    if met.reading == UNREAD:
        return f"with max_num_batched_tokens {met.max_num_batched_tokens} it was not read"
    how = f"read {READINGS[met.reading]} (max_num_batched_tokens {met.max_num_batched_tokens})"
    stall, step, ttft = (seconds(f.value) for f in (met.longest_stall_s, met.baseline_itl_p50_s, met.ttft_s))
    said = f"{how} it stalled a decoder for {stall} (a step before: {step}) and waited {ttft} itself"
    return said if met.valid else f"{said}, and a gate forbids to rely on it"


def _context(cells: Sequence[InterferenceFigures]) -> str:
    """What the rows rest on, and what their gates saw."""
    blocks = "/".join(str(n) for n in sorted({met.num_blocks for met in cells}))
    found = {
        f"gate {gate_code(gate)} ({one_line(gate.name)}) at {met.max_num_batched_tokens}, {one_line(met.method)}: "
        f"{one_line(gate.evidence)}": None
        for met in cells
        for gate in met.gates
    }
    return "; ".join((f"every decoder writes {cells[0].output_tokens} tokens", f"{blocks} blocks", *found))


def _row(grid: Grid, met: InterferenceFigures) -> Row:
    whole, off = met.against_whole, met.against_off
    entries = (
        Entry(READINGS[met.reading], f"({met.max_num_batched_tokens})"),
        Entry(_method(grid, met)),
        _time(met.baseline_itl_p50_s),
        _time(met.baseline_itl_p99_s),
        _time(met.reading_itl_p99_s),
        _time(met.longest_stall_s),
        share(met.newcomer_share),
        _time(met.ttft_s),
        Entry(number(met.steps_while_reading.value)),
        value(whole.longest_stall if whole else None),
        value(whole.ttft if whole else None),
        value(off.longest_stall if off else None),
        value(off.ttft if off else None),
        Entry("", gates=met.gates),
    )
    return Row(entries, unfit=not met.valid)


def _method(grid: Grid, met: InterferenceFigures) -> str:
    """The arm in words, told apart from others that do alike."""
    return one_line(grid.methods.get(met.arm, met.method))


def _time(figure: Figure) -> Entry:
    """A time with its interval: no speed of another table carries it."""
    if not known(figure.low) or not known(figure.high):
        return Entry(seconds(figure.value))
    return Entry(seconds(figure.value), f"[{seconds(figure.low)}, {seconds(figure.high)}]")
