"""The service view on a terminal: a sentence per goodput and frontier, and one short table per load curve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specprof.analyse.results import Percentiles, StudyFigures
from specprof.analyse.service_results import RungFigures
from specprof.publish.context import SEPARATOR, gate_codes
from specprof.publish.ladders import Ladder, ladders
from specprof.publish.numbers import UNKNOWN, known, number, one_line, percent, rate, seconds
from specprof.publish.paragraphs import bare_table, paragraph
from specprof.publish.service_text import frontier_sentences, ladder_place, service_sentences, target_words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDE = 100  # from here on raw output and waiting requests are shown, too
COLLAPSED = "×: collapsed (under half on target, over a tenth lost, or under 80% of the offered completed)"

_HEADINGS = {  # heading → only on a wide terminal
    "raw\ntok/s": True,
    "effective\ntok/s": False,
    "on\ntarget": False,
    "TTFT p99\nfrom due": False,
    "TPOT\np99": False,
    "waiting\nmean": True,
    "lost": False,
}


def print_service(figures: StudyFigures, console: Console) -> None:
    """Print what the open loops say, and the frontier; nothing where a study has neither."""
    if figures.service is not None:
        console.print()
        paragraph("Service: requests arrive by the clock", console, style="bold")
        for sentence in service_sentences(figures):
            paragraph(sentence, console)
        for ladder in ladders(figures):
            heading = f"{ladder_place(ladder)}{SEPARATOR}targets: {target_words(ladder.targets, quality=True)}"
            paragraph(heading, console, style="bold cyan")
            console.print(_table(ladder, wide=console.width >= WIDE))
            if any(rung.collapsed for rungs in ladder.rungs.values() for rung in rungs):
                paragraph(COLLAPSED, console, style="dim")
        for note in figures.service.notes:
            paragraph(f"Note: {one_line(note)}", console)
    if figures.frontiers:
        console.print()
        paragraph("Frontier: how many streams keep the TPOT target (median request)", console, style="bold")
    for sentence in frontier_sentences(figures):
        paragraph(sentence, console)


def _table(ladder: Ladder, *, wide: bool) -> Table:
    from rich.text import Text

    table = bare_table()
    table.add_column("req/s", justify="right", no_wrap=True)
    table.add_column("arm", overflow="fold")
    for heading, only_wide in _HEADINGS.items():
        if wide or not only_wide:
            table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("gates", min_width=5)
    for offered in ladder.rates:
        for arm in ladder.rungs:
            rung = ladder.rung(arm, offered)
            if rung is not None:
                table.add_row(*(Text(text, style="" if rung.valid else "dim") for text in _row(rung, wide=wide)))
    return table


def _row(rung: RungFigures, *, wide: bool) -> tuple[str, ...]:
    lost = rung.fates.failed + rung.fates.timed_out
    told = (
        number(rung.waterfall.raw_tok_s.value),
        number(rung.waterfall.effective_tok_s.value),
        percent(rung.on_target_share.value),
        _tail(rung.ttft_s),
        _tail(rung.tpot_s),
        number(rung.num_waiting.value),
        f"{lost} of {rung.fates.offered}",
    )
    shown = (text for text, only_wide in zip(told, _HEADINGS.values(), strict=True) if wide or not only_wide)
    offered = f"{rate(rung.rate_per_s)}{'×' if rung.collapsed else ''}"
    return offered, one_line(rung.method), *shown, gate_codes(rung.gates)


def _tail(latency: Percentiles | None) -> str:
    if latency is None:
        return UNKNOWN
    return seconds(latency.p99.value) if known(latency.p99.value) else "lost"
