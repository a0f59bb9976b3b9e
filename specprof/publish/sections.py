"""The report's tables of cells: what stands in which column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from specprof.analyse.results import (
    CellFigures,
    Figure,
    GainFigures,
    Loops,
    Percentiles,
)
from specprof.analyse.sampled import SurpriseFigures
from specprof.publish.context import one_per_gate
from specprof.publish.grid import Grid, Protocol, protocol_of
from specprof.publish.numbers import UNKNOWN, count, count_range, known, number, one_line, p_value, percent
from specprof.publish.table import (
    ARM,
    GATES,
    STREAMS,
    Column,
    Entry,
    Group,
    Row,
    Table,
    duration,
    groups_of,
    share,
    value,
)

SAMPLED_GATE = 8  # whose evidence the surprise table is

_HEADLINE = (
    STREAMS,
    Column("off", "tok/s"),
    Column("on", "tok/s"),
    Column("speculation gain", "on / off"),
    Column("batching gain, off", "N / 1"),
    Column("batching gain, on", "N / 1"),
    Column("interaction", "on / off"),
    Column("AL", "tokens"),
    Column("tokens per step", "engine step"),
    Column("prefill", "of wall"),
    Column("prediction error", "of wall"),
    GATES,
)


def headline_tables(grid: Grid, engine: str) -> tuple[Table, ...]:
    """Throughput and gains, one table per protocol and speculating arm."""
    return tuple(
        Table(
            f"{protocol.words} · off against {one_line(grid.methods[arm])} · {engine}",
            _HEADLINE,
            tuple(_headline_group(grid, tag, protocol, arm) for tag in grid.tags_of(protocol)),
        )
        for protocol in grid.protocols
        for arm in grid.on_arms
    )


def _headline_group(grid: Grid, tag: str, protocol: Protocol, arm: str) -> Group:
    streams = grid.concurrencies(tag, protocol.name)
    rows = tuple(_headline_row(grid, tag, protocol, arm, n) for n in streams)
    return Group(one_line(tag), _lengths(grid, tag, protocol), rows)


def _headline_row(grid: Grid, tag: str, protocol: Protocol, arm: str, concurrency: int) -> Row:
    on = grid.cell(tag, protocol.name, arm, concurrency)
    off = grid.cell(tag, protocol.name, grid.off_arm, concurrency)
    cells = [cell for cell in (off, on) if cell is not None]
    entries = (
        Entry(str(concurrency)),
        value(off.throughput_tok_s if off else None),
        value(on.throughput_tok_s if on else None),
        *_gain_entries(grid.gain(tag, protocol.name, arm, concurrency)),
        value(on.acceptance_length if on else None),
        value(on.tokens_per_engine_step if on else None),
        share(on.prefill_share if on else None),
        share(on.prediction_error if on else None, signed=True),
        Entry("", gates=one_per_gate(gate for cell in cells for gate in cell.gates)),
    )
    return Row(entries, unfit=not all(cell.valid for cell in cells))


def _gain_entries(gain: GainFigures | None) -> tuple[Entry, ...]:
    """The four gains of the headline table."""
    if gain is None:
        return (Entry(UNKNOWN),) * 4
    return tuple(map(value, (gain.speculation_gain, gain.batching_gain_off, gain.batching_gain, gain.interaction)))


_Fill = Callable[[CellFigures], tuple[Entry, ...]]


def wall_tables(grid: Grid, engine: str) -> tuple[Table, ...]:
    """The wall audit: what the wall held, and whether the parts explain the whole."""
    columns = (
        STREAMS,
        ARM,
        Column("wall", "measured"),
        Column("wall", "predicted"),
        Column("queue", "of wall"),
        Column("prefill", "of wall"),
        Column("decode", "of wall"),
        Column("throughput", "tok/s"),
        Column("predicted", "tok/s"),
        Column("error", "of wall"),
        Column("N effective", "X · TPOT"),
        Column("sum of rates", "tok/s, never used"),
        Column("inflation", "sum / X"),
        GATES,
    )
    return _cell_tables(grid, engine, columns, _wall_entries, grid.methods)


def _wall_entries(cell: CellFigures) -> tuple[Entry, ...]:
    return (
        duration(cell.wall_s),
        duration(cell.predicted_wall_s),
        share(cell.queue_share),
        share(cell.prefill_share),
        share(cell.decode_share),
        value(cell.throughput_tok_s),
        value(cell.predicted_throughput_tok_s),
        share(cell.prediction_error, signed=True),
        value(cell.effective_concurrency),
        value(cell.sum_of_rates_tok_s),
        Entry(_inflation(cell)),
        Entry("", gates=cell.gates),
    )


def latency_tables(grid: Grid, engine: str) -> tuple[Table, ...]:
    """What one user waits for."""
    columns = (
        STREAMS,
        ARM,
        Column("TTFT", "p50"),
        Column("TTFT", "p99"),
        Column("TPOT", "p50"),
        Column("TPOT", "p99"),
        Column("ITL per step", "p50"),
        Column("ITL per step", "p99"),
        Column("E2EL", "p50"),
        Column("E2EL", "p99"),
        Column("decode speed", "tok/s"),
        Column("text speed", "chars/s"),
        GATES,
    )
    return _cell_tables(grid, engine, columns, _latency_entries, grid.methods)


def _latency_entries(cell: CellFigures) -> tuple[Entry, ...]:
    four = (cell.ttft_s, cell.tpot_s, cell.itl_s, cell.e2el_s)
    waits = tuple(entry for latency in four for entry in _median_and_tail(latency))
    return (*waits, value(cell.decode_speed_tok_s), value(cell.chars_per_s), Entry("", gates=cell.gates))


def _median_and_tail(latency: Percentiles | None) -> tuple[Entry, Entry]:
    return (Entry(UNKNOWN), Entry(UNKNOWN)) if latency is None else (duration(latency.p50), duration(latency.p99))


def acceptance_tables(grid: Grid, engine: str) -> tuple[Table, ...]:
    """Acceptance with the raw counts under it."""
    columns = (
        STREAMS,
        ARM,
        Column("steps", "with a draft"),
        Column("drafted", "tokens"),
        Column("accepted", "tokens"),
        Column("AL", "token-weighted"),
        Column("AL", "request mean"),
        Column("AR", "accepted / drafted"),
        Column("tokens per step", "engine step"),
        Column("survival", "(conditional), by position"),
        GATES,
    )
    return _cell_tables(grid, engine, columns, _acceptance_entries, grid.on_arms)


def _acceptance_entries(cell: CellFigures) -> tuple[Entry, ...]:
    counts = cell.acceptance_counts
    return (
        Entry(count(counts.num_steps if counts else None)),
        Entry(count(counts.num_drafted if counts else None)),
        Entry(count(counts.num_accepted if counts else None)),
        value(cell.acceptance_length),
        value(cell.acceptance_length_request_mean),
        share(cell.acceptance_rate),
        value(cell.tokens_per_engine_step),
        Entry(_positions(cell.survival), f"({_positions(cell.conditional)})" if cell.conditional else ""),
        Entry("", gates=cell.gates),
    )


def _cell_tables(
    grid: Grid, engine: str, columns: tuple[Column, ...], fill: _Fill, arms: Iterable[str]
) -> tuple[Table, ...]:
    """One table per protocol with a row per concurrency and arm."""
    chosen = tuple(arms)
    if not chosen:
        return ()
    return tuple(
        Table(
            f"{protocol.words} · {engine}",
            columns,
            tuple(_cell_group(grid, tag, protocol, chosen, fill) for tag in grid.tags_of(protocol)),
        )
        for protocol in grid.protocols
    )


def _cell_group(grid: Grid, tag: str, protocol: Protocol, arms: Sequence[str], fill: _Fill) -> Group:
    rows = []
    for concurrency in grid.concurrencies(tag, protocol.name):
        for arm in arms:
            cell = grid.cell(tag, protocol.name, arm, concurrency)
            if cell is not None:
                entries = (Entry(str(concurrency)), Entry(one_line(cell.method)), *fill(cell))
                rows.append(Row(entries, unfit=not cell.valid))
    return Group(one_line(tag), _lengths(grid, tag, protocol), tuple(rows))


def prefill_table(grid: Grid, engine: str) -> Table | None:
    """Reading speed in both shapes, which differ: the wall of short prompts needs the second."""
    if not grid.figures.prefill:
        return None
    columns = (
        Column("shape", words=True),
        ARM,
        STREAMS,
        Column("prompt", "tokens, median"),
        Column("prefill speed", "tok/s"),
        GATES,
    )
    rows: dict[str, list[Row]] = {}
    for found in grid.figures.prefill:
        entries = (
            Entry(one_line(found.shape)),
            Entry(one_line(grid.methods.get(found.arm, found.arm))),
            Entry(str(found.concurrency)),
            Entry(count(found.prompt_tokens.value)),
            value(found.speed_tok_s),
            Entry("", gates=found.gates),
        )
        rows.setdefault(one_line(found.tag), []).append(Row(entries, unfit=not found.valid))
    return Table(f"output of one token · {engine}", columns, groups_of(rows))


def loops_table(grid: Grid, engine: str) -> Table | None:
    """Figures with and without the text that repeats itself, for every cell where some did."""
    looped = [cell for cell in grid.figures.cells if cell.loops is not None and cell.loops.num_requests_flagged]
    if not looped:
        return None
    columns = (
        Column("protocol", words=True),
        ARM,
        STREAMS,
        Column("flagged", "requests"),
        Column("flagged", "of tokens"),
        Column("AL", "all"),
        Column("AL", "unflagged"),
        Column("tokens per step", "all"),
        Column("tokens per step", "unflagged"),
        Column("tokens per step", "before the end"),
        Column("decode speed", "tok/s, all"),
        Column("decode speed", "tok/s, unflagged"),
    )
    groups: dict[str, list[CellFigures]] = {}
    for cell in looped:
        groups.setdefault(cell.tag, []).append(cell)
    told = tuple(
        Group(
            one_line(tag), _flagged_prompts(cells), tuple(_loop_row(cell, cell.loops) for cell in cells if cell.loops)
        )
        for tag, cells in groups.items()
    )
    return Table(engine, columns, told)


def _flagged_prompts(cells: Iterable[CellFigures]) -> str:
    found = dict.fromkeys(one_line(prompt) for cell in cells if cell.loops for prompt in cell.loops.prompt_ids)
    return f"looping prompts: {', '.join(found)}" if found else ""


def _loop_row(cell: CellFigures, loops: Loops) -> Row:
    entries = (
        Entry(protocol_of(cell).words),
        Entry(one_line(cell.method)),
        Entry(str(cell.concurrency)),
        Entry(f"{loops.num_requests_flagged} of {cell.num_requests}"),
        Entry(percent(loops.share_of_tokens_flagged)),
        value(cell.acceptance_length),
        value(loops.acceptance_length_unflagged),
        value(
            loops.tokens_per_engine_step_all
            if known(loops.tokens_per_engine_step_all.value)
            else cell.tokens_per_engine_step
        ),
        value(loops.tokens_per_engine_step_unflagged),
        value(loops.tokens_per_engine_step_before_eos),
        value(cell.decode_speed_tok_s),
        value(loops.decode_speed_unflagged_tok_s),
    )
    return Row(entries, unfit=not cell.valid)


def surprise_table(grid: Grid, engine: str) -> Table | None:
    """What the target thinks of the sampled texts, arm beside arm: shown even where there is nothing to object to."""
    columns = (
        Column("protocol", words=True),
        STREAMS,
        ARM,
        Column("tokens", "scored"),
        Column("impossible", "tokens"),
        Column("largest", "nats"),
        Column("beyond 10 nats", "per 1,024"),
        Column("beyond 8 nats", "per 1,024"),
        Column("mean", "nats"),
        Column("p, tail", "against off"),
        Column("p, mean", "against off"),
        GATES,
    )
    rows: dict[str, list[Row]] = {}
    for found in grid.figures.surprise:
        rows.setdefault(one_line(found.tag), []).append(_surprise_row(grid, found))
    title = f"sampled texts under the target, speculation off · {engine}"
    return Table(title, columns, groups_of(rows)) if rows else None


def _surprise_row(grid: Grid, found: SurpriseFigures) -> Row:
    cell = grid.cell(found.tag, found.protocol, found.arm, found.concurrency)
    protocol = protocol_of(found).words
    unscored = f"{found.num_unscored} texts not" if found.num_unscored else ""
    entries = (
        Entry(f"{protocol}, T = {found.temperature:g}"),
        Entry(str(found.concurrency)),
        Entry(one_line(grid.methods.get(found.arm, found.method))),
        Entry(count(found.num_tokens), unscored),
        Entry(count(found.impossible)),
        Entry(number(found.largest_nats)),
        value(found.beyond_10_per_1024),
        value(found.beyond_8_per_1024),
        value(found.mean_nats),
        Entry(p_value(found.tail_p_value)),
        Entry(p_value(found.mean_p_value)),
        Entry("", gates=tuple(gate for gate in cell.gates if gate.gate == SAMPLED_GATE) if cell else ()),
    )
    return Row(entries, unfit=cell is not None and not cell.valid)


def _lengths(grid: Grid, tag: str, protocol: Protocol) -> str:
    """Median prompt and output lengths of a content, as a range where its cells differ."""
    cells = [cell for cell in grid.figures.cells if (cell.tag, cell.protocol) == (tag, protocol.name)]
    prompt = count_range(cell.prompt_tokens.value for cell in cells)
    output = count_range(cell.output_tokens.value for cell in cells)
    requests = count_range(cell.num_requests for cell in cells)
    launches = max((cell.num_launches for cell in cells), default=0)
    starts = f"{launches} launches" if launches != 1 else "1 launch"
    return f"prompt {prompt}, output {output} tokens (medians) · {requests} requests, {starts} per cell"


def _positions(figures: Iterable[Figure]) -> str:
    told = (f"{figure.value:.0%}" if known(figure.value) else UNKNOWN for figure in figures)
    return " · ".join(told) or UNKNOWN


def _inflation(cell: CellFigures) -> str:
    total, measured = cell.sum_of_rates_tok_s.value, cell.throughput_tok_s.value
    return number(total / measured) if known(total) and known(measured) and measured else UNKNOWN
