"""The page of a bill: prices, what reverses them, sensitivity, payback, and the source of every figure; one file.

Names, labels and notes come from a cost file and from studies: the template engine escapes them. The page allows
itself no network; a measured figure links to the report of its study, where that lies beside the measurements.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from specprof.analyse.cost import Repayment, Standing
from specprof.analyse.results import Figure
from specprof.decide.bill import MEASURED, Bill, BreakEven, Payback, Priced, Traced
from specprof.publish.cost_chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, chart_of
from specprof.publish.cost_numbers import Form, amount, given, parts
from specprof.publish.cost_sentences import (
    answer,
    break_even_sentences,
    inputs,
    payback_sentences,
    reversal_sentences,
)
from specprof.publish.language import chinese, say
from specprof.publish.numbers import UNKNOWN, one_line
from specprof.publish.table import Column, Entry, Row
from specprof.publish.web import csp_hash, packaged, page_environment

if TYPE_CHECKING:
    from jinja2 import Environment

GENERATOR = 'content="specprof cost"'  # tells a page of costs from any other

_OPTION, _STANDING = Column("option", words=True), Column("standing", words=True)
_PRICES = (
    _OPTION,
    Column("cost", "an hour"),
    Column("utilisation", "of paid hours"),
    Column("raw output", "tok/s"),
    Column("effective share", "of tokens"),
    Column("effective output", "tok/s"),
    Column("raw price", "a million tokens"),
    Column("effective price", "a million effective tokens"),
    _STANDING,
)
_TIES = (
    _OPTION,
    Column("against", words=True),
    Column("price", "against it"),
    Column("ties at", "effective tok/s"),
    Column("now", "effective tok/s"),
    Column("ties at", "share of its tokens"),
    Column("now", "share of its tokens"),
)
_PAYBACKS = (
    _OPTION,
    Column("paid hours", "a period"),
    Column("running cost", "a period"),
    Column("saved in running", "a period"),
    Column("extra upkeep", "a period"),
    Column("net saving", "a period"),
    Column("spent once"),
    Column("paid back after", "periods"),
)


DEFINITIONS = {
    "effective tokens": (
        "Tokens of answers that kept their latency targets and passed the quality check. The share of tokens is not "
        "the share of requests."
    ),
    "cost per million effective tokens": (
        "Cost per hour ÷ (utilisation × effective tok/s × 3,600) × 1,000,000. Idle hours are paid too."
    ),
    "break-even": (
        "The effective output at which an option costs per token what its rival does: the rival's effective output × "
        "own cost per hour ÷ the rival's. As a share of its own raw output, above 100%: out of reach."
    ),
    "reversed": "Cheaper per raw token and dearer per effective token: less of what is written counts.",
    "paid back after": "Spent once ÷ (saved in running − extra upkeep), in periods. Never, where nothing is saved.",
    "given, measured": (
        "Given: somebody's figure, written with all its digits. Measured: a cell of a study, with its 95% interval. "
        "What is made of both carries the measured interval."
    ),
}


@dataclass(frozen=True, slots=True)
class PlainTable:
    """Columns and rows; the first entry of a row is its name, which is never translated."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One input of an option: its name, its value, where it comes from, and the address of that report, if any."""

    name: str
    entry: Entry
    source: str
    href: str

    @property
    def measured(self) -> bool:
        """Whether a study stands behind it."""
        return self.source.startswith(MEASURED)


@dataclass(frozen=True, slots=True)
class Sources:
    """Where one option's figures come from, and what is to be kept in mind about them."""

    option: str
    lines: tuple[SourceLine, ...]
    notes: tuple[str, ...]


def render_bill(bill: Bill, reports: Mapping[str, Path], folder: Path) -> str:
    """The page. `reports`: by option, the report of the study behind it; `folder`: where the page will lie."""
    script = packaged("report.js")
    style = packaged("report.css") + packaged("cost.css")
    return (
        _environment()
        .get_template("cost.html.j2")
        .render(
            bill=bill,
            answer=answer(bill),
            reversals=tuple(reversal_sentences(bill)),
            rankings=_rankings(bill),
            prices=_price_table(bill),
            chart=chart_of(bill),
            break_evens=tuple(break_even_sentences(bill)),
            ties=_tie_table(bill),
            paybacks=tuple(payback_sentences(bill)),
            payback_table=_payback_table(bill),
            sources=tuple(_sources(option, reports, folder) for option in bill.options),
            frame={"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM},
            definitions=DEFINITIONS,
            generator=GENERATOR,
            script=script,
            style=style,
            script_hash=csp_hash(script),
            style_hash=csp_hash(style),
        )
    )


# -- tables -----------------------------------------------------------------------------------------------------------


def _rankings(bill: Bill) -> dict[str, list[tuple[str, str]]]:
    """Names and prices from the cheapest up, by raw and by effective tokens."""
    options = {option.name: option for option in bill.options}
    raw = [(one_line(name), amount(options[name].raw_cost_per_million)) for name in bill.ranking_raw]
    effective = [(one_line(name), amount(options[name].cost_per_million)) for name in bill.ranking_effective]
    return {"raw": raw, "effective": effective}


def _price_table(bill: Bill) -> PlainTable:
    against = {tie.option: tie for tie in bill.break_evens}
    best = bill.ranking_effective[0]
    rows = (
        (
            Entry(one_line(option.name)),
            _entry(option.cost_per_hour.figure),
            _entry(option.utilisation.figure, Form.SHARE),
            _traced(option.throughput_tok_s),
            _traced(option.effective_share, Form.SHARE),
            _entry(option.effective_throughput_tok_s.figure),
            _entry(option.raw_cost_per_million),
            _entry(option.cost_per_million),
            _standing(against.get(option.name), cheapest=option.name == best),
        )
        for option in bill.options
    )
    return _table(_PRICES, rows)


def _tie_table(bill: Bill) -> PlainTable:
    options = {option.name: option for option in bill.options}
    return _table(_TIES, (_tie_row(tie, options[tie.option]) for tie in bill.break_evens))


def _tie_row(tie: BreakEven, own: Priced) -> tuple[Entry, ...]:
    return (
        Entry(one_line(tie.option)),
        Entry(one_line(tie.rival)),
        _entry(tie.cost_change, Form.CHANGE),
        _entry(tie.effective_throughput_tok_s),
        _entry(own.effective_throughput_tok_s.figure),
        _entry(tie.effective_share, Form.SHARE),
        _traced(own.effective_share, Form.SHARE),
    )


def _payback_table(bill: Bill) -> PlainTable | None:
    if bill.payback is None:
        return None
    return _table(_PAYBACKS, map(_payback_row, bill.payback.options))


def _payback_row(option: Payback) -> tuple[Entry, ...]:
    return (
        Entry(one_line(option.option)),
        _entry(option.paid_hours),
        _entry(option.running_cost),
        _entry(option.running_saving),
        Entry(given(option.extra_upkeep)),
        _entry(option.net_saving),
        Entry(given(option.one_off)),
        _repaid(option),
    )


def _repaid(option: Payback) -> Entry:
    if option.repayment is Repayment.NEVER:
        return Entry("never")
    if option.repayment is Repayment.UNDECIDED:
        return Entry("undecided", " ".join(parts(option.periods, Form.AMOUNT)))
    return _entry(option.periods) if option.one_off else Entry("at once")


def _standing(tie: BreakEven | None, *, cheapest: bool) -> Entry:
    if tie is None:
        return Entry(UNKNOWN)
    if tie.standing is Standing.EQUAL:
        return Entry("cheapest, not alone" if cheapest else "as cheap as the cheapest")
    if tie.standing is Standing.UNDECIDED:
        return Entry("cheapest on the estimate") if cheapest else Entry("undecided")
    if cheapest:
        return Entry("cheapest")
    value, *interval = parts(tie.cost_change, Form.SHARE)
    return Entry(f"{value} dearer", " ".join(interval))


def _table(columns: tuple[Column, ...], rows: Iterator[tuple[Entry, ...]]) -> PlainTable:
    return PlainTable(columns, tuple(Row(entries) for entries in rows))


def _traced(traced: Traced | None, form: Form = Form.AMOUNT) -> Entry:
    return _entry(traced.figure if traced is not None else None, form)


def _entry(figure: Figure | None, form: Form = Form.AMOUNT) -> Entry:
    value, *interval = parts(figure, form)
    return Entry(value, " ".join(interval))


# -- sources ----------------------------------------------------------------------------------------------------------


def _sources(option: Priced, reports: Mapping[str, Path], folder: Path) -> Sources:
    href = _address(reports[option.name], folder) if option.name in reports else ""
    lines = []
    for name, traced in inputs(option):
        form = Form.SHARE if name in ("effective share", "utilisation") else Form.AMOUNT
        line = SourceLine(name, _entry(traced.figure, form), one_line(traced.source), href)
        lines.append(line)
    return Sources(one_line(option.name), tuple(lines), tuple(map(one_line, option.notes)))


def _address(report: Path, folder: Path) -> str:
    """A report as the page refers to it: by the way from one to the other, so that both can move together."""
    try:
        way = os.path.relpath(report.resolve(), folder.resolve())
    except ValueError:  # on another drive
        return report.resolve().as_uri()
    return quote(Path(way).as_posix())


@cache
def _environment() -> Environment:
    environment = page_environment()
    environment.filters |= {"line": one_line, "given": given}
    environment.globals |= {"say": say, "chinese": chinese}
    return environment
