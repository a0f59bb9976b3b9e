"""The report's tables between cells: where a gain comes from, what content does, and the two cuts."""

from __future__ import annotations

from collections.abc import Iterable

from specprof.analyse.results import ContentFigures, CutFigures, GainFigures
from specprof.publish.grid import Grid
from specprof.publish.numbers import one_line
from specprof.publish.table import ARM, STREAMS, Column, Entry, Group, Row, Table, groups_of, share, value

_DETAIL = (
    STREAMS,
    Column("speculation gain", "on / off"),
    Column("of which tokens per step", "share of ln gain"),
    Column("step time", "on / off"),
    Column("residual", "measured / product − 1"),
    Column("may be multiplied", words=True),
    Column("blocks"),
)


def gain_tables(grid: Grid, engine: str) -> tuple[Table, ...]:
    """Where each speculation gain comes from, and what the factors leave unexplained."""
    found = []
    for protocol in grid.protocols:
        for arm in grid.on_arms:
            rows = {tag: grid.gains_row(tag, protocol, arm) for tag in grid.tags_of(protocol)}
            groups = tuple(Group(one_line(tag), "", tuple(map(_detail_row, row))) for tag, row in rows.items() if row)
            if groups:
                title = f"{protocol.words} · off against {one_line(grid.methods[arm])} · {engine}"
                found.append(Table(title, _DETAIL, groups))
    return tuple(found)


def _detail_row(gain: GainFigures) -> Row:
    entries = (
        Entry(str(gain.concurrency)),
        value(gain.speculation_gain),
        share(gain.mediated_share),
        value(gain.step_time_ratio),
        share(gain.residual, signed=True),
        Entry("yes" if gain.multiply else "no"),
        Entry(str(gain.num_blocks)),
    )
    return Row(entries, unfit=not gain.valid)


_CONTENT = (
    STREAMS,
    ARM,
    Column("throughput", "a / b"),
    Column("tokens per step", "a / b"),
    Column("steps per second", "a / b, 90%"),
    Column("decode share", "a / b"),
    Column("by acceptance", "share of ln ratio"),
    Column("only by acceptance?", words=True),
)


def content_tables(grid: Grid, engine: str) -> tuple[Table, ...]:
    """One content against another: how much faster, and whether acceptance alone explains it."""
    found = []
    for protocol in grid.protocols:
        rows: dict[str, list[Row]] = {}
        for pair in grid.figures.contents:
            if pair.protocol == protocol.name:
                names = f"{one_line(pair.tag)} / {one_line(pair.other_tag)}"
                rows.setdefault(names, []).append(_content_row(grid, pair))
        if rows:
            found.append(Table(f"{protocol.words} · {engine}", _CONTENT, groups_of(rows)))
    return tuple(found)


def _content_row(grid: Grid, pair: ContentFigures) -> Row:
    entries = (
        Entry(str(pair.concurrency)),
        Entry(one_line(grid.methods.get(pair.arm, pair.arm))),
        value(pair.throughput_ratio),
        value(pair.tokens_per_step_ratio),
        value(pair.steps_per_s_ratio),
        value(pair.decode_share_ratio),
        share(pair.mediated_share),
        Entry(_EQUIVALENCE.get(pair.only_acceptance, one_line(pair.only_acceptance))),
    )
    places = ((tag, pair.protocol, pair.arm, pair.concurrency) for tag in (pair.tag, pair.other_tag))
    return Row(entries, unfit=_any_unfit(grid, places))


_EQUIVALENCE = {"pass": "yes", "fail": "no", "undecided": "undecided"}

_CUT = (
    STREAMS,
    ARM,
    Column("natural", "tok/s"),
    Column("forced", "tok/s"),
    Column("other content, forced", "tok/s"),
    Column("stop rule", "×"),
    Column("content", "×"),
    Column("both", "×"),
)


def cut_table(grid: Grid, engine: str) -> Table | None:
    """The two cuts: first the stop rule on the same prompts, then the content."""
    rows: dict[str, list[Row]] = {}
    for cut in grid.figures.cuts:
        way = f"{one_line(cut.tag)}, {one_line(cut.natural_protocol)} → {one_line(cut.forced_protocol)}"
        other = "" if cut.other_protocol in ("", cut.forced_protocol) else f", {one_line(cut.other_protocol)}"
        rows.setdefault(f"{way} → {one_line(cut.other_tag)}{other}", []).append(_cut_row(grid, cut))
    return Table(f"same prompts, then other content · {engine}", _CUT, groups_of(rows)) if rows else None


def _cut_row(grid: Grid, cut: CutFigures) -> Row:
    measured = (cut.natural_tok_s, cut.forced_tok_s, cut.other_tok_s, cut.stop_rule, cut.content, cut.whole)
    arm = Entry(one_line(grid.methods.get(cut.arm, cut.arm)))
    places = (
        (cut.tag, cut.natural_protocol, cut.arm, cut.concurrency),
        (cut.tag, cut.forced_protocol, cut.arm, cut.concurrency),
        (cut.other_tag, cut.other_protocol or cut.forced_protocol, cut.arm, cut.concurrency),
    )
    return Row((Entry(str(cut.concurrency)), arm, *map(value, measured)), unfit=_any_unfit(grid, places))


def _any_unfit(grid: Grid, places: Iterable[tuple[str, str, str, int]]) -> bool:
    cells = (grid.cell(*place) for place in places)
    return any(cell is not None and not cell.valid for cell in cells)
