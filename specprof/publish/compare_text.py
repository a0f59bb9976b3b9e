"""A comparison on a terminal or as JSON: what differs and what is equal, tables per protocol, one line to end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from specprof.analyse.results import Figure, as_json
from specprof.decide.changes import DECIDING, Change, Comparison, Metric, RatioFigures, Row
from specprof.decide.compare_notes import refusal_words
from specprof.decide.fairness import Difference, Dimension
from specprof.publish.context import gate_codes
from specprof.publish.json_text import json_text
from specprof.publish.numbers import UNKNOWN, known, number
from specprof.publish.paragraphs import bare_table, paragraph
from specprof.records import arm_in_words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

SCHEMA_VERSION = 1
_CLEAR_ALONE = "*"

_KINDS = {
    Dimension.DRAFT: "draft against draft",
    Dimension.DRAFT_LENGTH: "K against K",
    Dimension.VERSION: "version against version",
    Dimension.MACHINE: "machine against machine",
    Dimension.SETTINGS: "settings against settings",
    Dimension.MODEL: "model against model",
}
_COLUMNS = {
    Metric.THROUGHPUT: "throughput\nB/A",
    Metric.DECODE_SPEED: "decode\nspeed B/A",
    Metric.ACCEPTANCE_LENGTH: "AL\nB/A",
    Metric.TOKENS_PER_STEP: "tok/step\nB/A",
    Metric.TTFT_P50: "TTFT p50\nB/A",
}
_SAID = {
    Change.REGRESSION: ("regression", "bold red"),
    Change.IMPROVEMENT: ("improved", "bold green"),
    Change.EQUIVALENT: ("equivalent", "green"),
    Change.NOT_SHOWN: ("not shown", ""),
    Change.UNDECIDED: ("undecided", "yellow"),
    Change.UNFIT: ("unfit", "dim"),
}


def comparison_json(comparison: Comparison) -> str:
    """The whole comparison; ratios are B/A with 95% intervals, p-values one-sided and adjusted (`decide.changes`)."""
    told = {
        "schema_version": SCHEMA_VERSION,
        "kind": kind(comparison),
        **as_json(comparison),
        "summary": summary(comparison),
    }
    return json_text(told)


def kind(comparison: Comparison) -> str:
    """What the comparison is about, in words."""
    named = [_KINDS[Dimension(of)] for of in comparison.dimensions if of in _KINDS]
    if not named and comparison.arms_left_out and all(row.method_a == arm_in_words(None) for row in comparison.rows):
        return "only the arm without speculation"
    return " and ".join(named) or "the same thing measured twice"


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print header, tables, what was not compared, notes and the summary."""
    _print_header(comparison, console)
    for protocol, rows in groupby(comparison.rows, key=lambda row: (row.protocol, row.stop, row.length)):
        _print_protocol(protocol, list(rows), comparison.margin, console)
    console.print()
    for refusal in comparison.refused:
        paragraph(f"Not compared: {refusal_words(refusal)}", console, style="yellow")
    if any(row.clear_alone(comparison.margin) for row in comparison.rows):
        paragraph(_clear_alone_words(comparison), console)
    for note in comparison.notes:
        paragraph(f"Note: {note}", console)
    found = comparison.count(Change.REGRESSION)
    paragraph(summary(comparison), console, style="bold red" if found else "bold")


def summary(comparison: Comparison) -> str:
    """How the rows ended, and how many questions shared the error."""
    margin = f"±{comparison.margin:.1%}".replace(".0%", "%")
    words = {
        Change.REGRESSION: "regression",
        Change.IMPROVEMENT: "improvement",
        Change.EQUIVALENT: f"equivalent within {margin}",
        Change.NOT_SHOWN: f"with no difference beyond {margin} shown",
        Change.UNDECIDED: "undecided",
        Change.UNFIT: "unfit (a gate forbids it)",
    }
    plural = (Change.REGRESSION, Change.IMPROVEMENT)
    counts = [(change, comparison.count(change)) for change in words]
    told = [
        f"{count} {words[change]}{'s' if change in plural and count != 1 else ''}"
        for change, count in counts
        if count or change is Change.REGRESSION
    ]
    shared = f"{comparison.num_comparisons} comparisons share a 5% chance of any false mark (Holm)"
    return f"{', '.join(told)}; {shared if comparison.num_comparisons else 'nothing was decided'}."


def _clear_alone_words(comparison: Comparison) -> str:
    several = len({(row.arm_a, row.arm_b) for row in comparison.rows}) > 1
    fewer = " Compare fewer with --arm-a and --arm-b." if several else ""
    shared = f"with {comparison.num_comparisons} comparisons sharing 5% (Holm) that is not enough"
    return f"{_CLEAR_ALONE} Its own 95% interval lies beyond the margin; {shared}.{fewer}"


def _print_header(comparison: Comparison, console: Console) -> None:
    paragraph(f"A {comparison.a} → B {comparison.b} · {kind(comparison)}", console, style="bold")
    _print_differences("Differs", comparison.differs, console)
    _print_differences("Came with it", comparison.came_along, console)
    _print_differences("Not fair by itself, allowed", comparison.allowed, console, style="yellow")
    paragraph(f"Equal: {', '.join(comparison.equal)}", console, indent=2)


def _print_differences(heading: str, differences: Sequence[Difference], console: Console, *, style: str = "") -> None:
    if differences:
        paragraph(f"{heading}: {'; '.join(map(str, differences))}", console, indent=2, style=style)


def _print_protocol(protocol: tuple[str, str, int], rows: Sequence[Row], margin: float, console: Console) -> None:
    name, stop, length = protocol
    console.print()
    asked = f"{length} tokens" if stop == "forced" else f"at most {length} tokens"
    paragraph(f"{name} ({stop}, {asked})", console, style="bold")
    for (tag, *arms), of_tag in groupby(rows, key=lambda row: (row.tag, row.arm_a, row.arm_b)):
        shown = list(of_tag)
        arm = arms[0] if arms[0] == arms[1] else f"{arms[0]} → {arms[1]}"
        prompts = "–".join(map(str, sorted({row.num_prompts for row in shown})))
        launches = " + ".join("–".join(map(str, sorted(set(n)))) for n in zip(*map(_blocks, shown), strict=True))
        paragraph(f"{tag} · {arm} · {prompts} prompts · {launches} launches", console, style="bold cyan")
        console.print(_table(shown, margin))


def _blocks(row: Row) -> tuple[int, int]:
    return row.num_blocks_a, row.num_blocks_b


def _table(rows: Sequence[Row], margin: float) -> Table:
    table = bare_table(gap=0)  # so that nine columns stand in 80
    unit = rows[0].of(Metric.THROUGHPUT).unit
    for heading in ("N", f"{unit}\nA, B", *_COLUMNS.values()):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("gates\nA, B", min_width=len("gates"))  # the one that wraps, and is never dropped
    table.add_column("B is", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row, margin))
    return table


def _cells(row: Row, margin: float) -> tuple[Text, ...]:
    from rich.text import Text

    speed = row.of(Metric.THROUGHPUT)
    said, style = _SAID[row.change]
    dim = "dim" if row.change is Change.UNFIT else ""
    ratios = [row.of(metric) for metric in _COLUMNS]
    return (
        Text(str(row.concurrency), style=dim),
        Text(f"{number(speed.a)}\n{number(speed.b)}", style=dim),
        *(Text(_ratio_words(ratio), style=dim or _style(ratio)) for ratio in ratios),
        Text(f"{gate_codes(row.gates_a) or UNKNOWN}\n{gate_codes(row.gates_b) or UNKNOWN}", style=dim),
        Text(said + _CLEAR_ALONE * row.clear_alone(margin), style=style),
    )


def _style(ratio: RatioFigures) -> str:
    return _SAID[ratio.change][1] if ratio.change in (Change.REGRESSION, Change.IMPROVEMENT) else ""


def _ratio_words(ratio: RatioFigures) -> str:
    """The ratio over its interval; a digit more where a margin of a few percent is decided."""
    digits = 3 if ratio.metric in DECIDING else 2
    figure: Figure = ratio.ratio
    if not known(figure.value):
        return UNKNOWN
    if not known(figure.low) or not known(figure.high) or figure.low == figure.high:
        return f"{figure.value:.{digits}f}"
    return f"{figure.value:.{digits}f}\n{figure.low:.{digits}f}–{figure.high:.{digits}f}"
