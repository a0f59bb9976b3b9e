"""`specprof cost` on a terminal or as JSON; its page and its sensitivity chart as files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specprof.analyse.cost import Standing
from specprof.analyse.results import as_json
from specprof.decide.bill import Bill, BreakEven, make_bill
from specprof.errors import InputError
from specprof.publish.cost_numbers import Form, amount, bare, parts, percent
from specprof.publish.cost_page import GENERATOR, render_bill
from specprof.publish.cost_sentences import (
    break_even_sentences,
    payback_sentences,
    ranking_lines,
    reversal_sentences,
    share_words,
    source_lines,
)
from specprof.publish.files import put
from specprof.publish.json_text import json_text, wants_json
from specprof.publish.numbers import one_line
from specprof.publish.paragraphs import bare_table, bullets, paragraph, verbatim
from specprof.publish.pictures import sensitivity
from specprof.publish.pictures.style import house_style
from specprof.study.cost_file import CostFile, load_cost_file

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

WHOLE_NAME = 9  # columns that an option's name keeps on a narrow terminal
SCHEMA_VERSION = 1


def cost_command(path: Path, *, out: Path | None, output: str, console: Console) -> None:
    """Price the options of a cost file, print them as text or JSON, and write the page and the chart beside it.

    `out`: another PNG file, or folder, for the chart; the page stands beside it under the same name. Raises InputError
    for a file, study, cell, format or place that cannot be used.
    """
    in_json = wants_json(output)
    chart = _chart_path(path, out)
    page = _page_path(chart)
    file = load_cost_file(path)
    bill = make_bill(file)
    if in_json:
        console.file.write(bill_json(bill, chart, page) + "\n")
    else:
        print_bill(bill, console)
    _write(chart, _chart(bill))  # after it was told: a folder that takes no files is no reason not to see the bill
    _write(page, render_bill(bill, _reports(file), page.parent).encode())
    if not in_json:
        verbatim(f"\nChart: {chart}\nPage: {page}", console)


def bill_json(bill: Bill, chart: Path, page: Path) -> str:
    """The whole bill. `low` and `high` are null where nothing measured stands behind a figure, or one prompt."""
    told = {
        "schema_version": SCHEMA_VERSION,
        **_plain(as_json(bill)),
        "sentences": [*reversal_sentences(bill), *payback_sentences(bill)],
        "chart": str(chart),
        "page": str(page),
    }
    return json_text(told)


def print_bill(bill: Bill, console: Console) -> None:
    """Prices, rankings, what reverses them, break-even, payback, and where every figure comes from."""
    paragraph(f"Cost of {bill.title} · {bill.currency} per million tokens", console, style="bold")
    console.print(_table(bill))
    bullets("Ranking", ranking_lines(bill), console)
    bullets("Break-even", break_even_sentences(bill), console)
    bullets("Payback", payback_sentences(bill), console)
    bullets("Where the figures come from", source_lines(bill), console)


# -- the table and its numbers ----------------------------------------------------------------------------------------


def _table(bill: Bill) -> Table:
    """Intervals stand beneath the price they lead to; those of the inputs are in the JSON."""
    from rich.text import Text

    against = {tie.option: tie for tie in bill.break_evens}
    idle = any((option.utilisation.figure.value or 1.0) < 1 for option in bill.options)
    table = bare_table()
    longest = max(len(one_line(option.name)) for option in bill.options)
    table.add_column("option", min_width=min(longest, WHOLE_NAME))
    busy = ("busy",) if idle else ()
    for heading in ("per\nhour", *busy, "raw\ntok/s", "share", "effective\ntok/s", "raw\nprice", "effective\nprice"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for option in bill.options:
        table.add_row(
            Text(one_line(option.name)),
            amount(option.cost_per_hour.figure),
            *((percent(option.utilisation.figure),) if idle else ()),
            bare(option.throughput_tok_s.figure if option.throughput_tok_s else None),
            share_words(option),
            bare(option.effective_throughput_tok_s.figure),
            bare(option.raw_cost_per_million),
            Text("\n".join(parts(option.cost_per_million, Form.AMOUNT)), style="bold"),
            _standing(against.get(option.name), cheapest=option.name == bill.ranking_effective[0]),
        )
    return table


def _standing(tie: BreakEven | None, *, cheapest: bool) -> Text:
    from rich.text import Text

    if tie is None:
        return Text()
    if tie.standing is Standing.EQUAL:
        return Text("cheapest,\nnot alone" if cheapest else "as cheap")
    if tie.standing is Standing.UNDECIDED:
        lines = ["cheapest on\nthe estimate"] if cheapest else ["undecided", *parts(tie.cost_change, Form.CHANGE)]
        return Text("\n".join(lines), style="yellow")
    if cheapest:
        return Text("cheapest", style="green")
    value, *interval = parts(tie.cost_change, Form.SHARE)
    return Text("\n".join([f"{value} dearer", *interval]), style="red")


# -- files and lines --------------------------------------------------------------------------------------------------


def _chart_path(path: Path, out: Path | None) -> Path:
    if out is None or out.is_dir():
        out = (out or path.parent) / f"{path.stem}.png"
    if out.suffix != ".png" or out == path:
        raise InputError(f"--out {out}: is neither a folder nor a PNG file. Write for example --out {path.stem}.png.")
    return out


def _page_path(chart: Path) -> Path:
    """The chart's name with .html; never over a page of another kind, a study's report least of all."""
    page = chart.with_suffix(".html")
    with suppress(OSError):
        if GENERATOR.encode() not in page.read_bytes():
            raise InputError(f"{page}: exists and is no page of costs. Name another place with --out.")
    return page


def _chart(bill: Bill) -> bytes:
    with house_style():
        return sensitivity.draw(bill)


def _reports(file: CostFile) -> dict[str, Path]:
    """The report of each option's study, where it lies beside the measurements."""
    found = {
        option.name: file.study_folder(index) / "report.html"
        for index, option in enumerate(file.spec.options)
        if option.study is not None
    }
    return {name: report for name, report in found.items() if report.is_file()}


def _write(path: Path, content: bytes) -> None:
    try:
        put(path, content)
    except OSError as problem:
        raise InputError(f"{path}: cannot be written ({problem.strerror}). Name another place with --out.") from None


def _plain(told: Any) -> Any:
    """Figures as everywhere: a source beside value and limits, null for the limits where nothing was measured."""
    if isinstance(told, list):
        return [_plain(item) for item in told]
    if not isinstance(told, dict):
        return told
    if set(told) == {"figure", "source"}:
        return {**_plain(told["figure"]), "source": told["source"]}
    if set(told) == {"value", "low", "high"} and told["low"] == told["value"] == told["high"]:
        return {"value": told["value"], "low": None, "high": None}
    return {key: _plain(item) for key, item in told.items()}
