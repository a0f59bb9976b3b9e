"""The report on a terminal: sentences first, then one compact table per content and protocol, then the gates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from specprof.analyse.results import CellFigures, Figure, GainFigures, Severity, StudyFigures
from specprof.publish.advice import Advice, advice
from specprof.publish.cache_text import cache_sentences
from specprof.publish.context import engine_of, gate_codes
from specprof.publish.grid import Grid, Protocol
from specprof.publish.guided_text import guided_sentences, quality_sentences
from specprof.publish.interference_text import interference_sentences
from specprof.publish.mixed_text import mixed_sentences
from specprof.publish.numbers import UNKNOWN, count, interval, known, number, one_line, percent
from specprof.publish.paragraphs import bare_table, paragraph
from specprof.publish.pipeline_text import pipeline_sentences, shape_words
from specprof.publish.service_terminal import print_service
from specprof.publish.summary import GateGroup, gate_groups, verdict_sentence

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

WIDE = 100  # from here on intervals stand beside their values, below under them
CACHE_HEADING = "Traffic replayed with a warm prefix cache: no figure here may stand beside one without"

_GAIN_HEADINGS = ("N", "off\ntok/s", "on\ntok/s", "spec.\ngain", "batch.\noff/on", "inter-\naction")
_STEP_HEADINGS = ("AL", "tok/\nstep", "pre-\nfill", "pred.\nerror")


def print_report(figures: StudyFigures, console: Console) -> None:
    """Print a study: what to do, the tables behind it, the gates, the verdicts and the notes."""
    grid = Grid(figures)
    _print_heading(figures, console)
    for item in advice(figures):
        if item.protocol == grid.protocols[0]:
            _print_advice(item, console, named=len(grid.on_arms) > 1)
    for protocol in grid.protocols:
        for arm in grid.on_arms or (grid.off_arm,):
            _print_tables(grid, protocol, arm, console)
    for heading, sentences in _told(figures):
        _print_told(heading, sentences, console)
    print_service(figures, console)
    _print_told(CACHE_HEADING, cache_sentences(figures), console)
    _print_surprise(figures, console)
    _print_gates(gate_groups(figures), console)
    for verdict in figures.verdicts:
        paragraph(verdict_sentence(verdict), console)
    for note in figures.notes:
        paragraph(f"Note: {one_line(note)}", console)


def _print_heading(figures: StudyFigures, console: Console) -> None:
    engine = engine_of(figures.environment)
    words = " · ".join(part for part in (engine.words, engine.model) if part)
    paragraph(f"Study {one_line(figures.study)} · {words}", console, style="bold")


def _print_advice(item: Advice, console: Console, *, named: bool) -> None:
    paragraph(f"{item.sentence}{f' ({one_line(item.method)})' if named else ''}", console)
    paragraph(f"→ {item.action}", console, style="cyan", indent=2)


def _print_tables(grid: Grid, protocol: Protocol, arm: str | None, console: Console) -> None:
    """The tables of one protocol and arm under one heading: what differs between them is the content."""
    if arm is None:
        return
    console.print()
    method = grid.methods[arm]
    heading = protocol.words if arm == grid.off_arm else f"{protocol.words} · off against {one_line(method)}"
    paragraph(heading, console, style="bold")
    for tag in grid.tags:
        streams = grid.concurrencies(tag, protocol.name)
        if streams:
            paragraph(f"{one_line(tag)}{_prompt_words(grid, tag, protocol)}", console, style="bold cyan")
            console.print(_table(grid, tag, protocol, arm, wide=console.width >= WIDE))


def _print_told(heading: str, sentences: Iterable[str], console: Console) -> None:
    """A heading and the sentences under it; nothing where there is nothing to say."""
    told = tuple(sentences)
    if told:
        console.print()
        paragraph(heading, console, style="bold")
    for sentence in told:
        paragraph(sentence, console)


def _told(figures: StudyFigures) -> Iterator[tuple[str, Iterable[str]]]:
    """Headings and their sentences; a part that was not measured has none."""
    yield "Mixed traffic: each content against itself alone", mixed_sentences(figures)
    yield "Good answers", quality_sentences(figures)
    yield "Guided against free", guided_sentences(figures)
    yield "Interference: a long prompt arrives among steady decoders", interference_sentences(figures)
    if figures.pipeline:
        yield f"Pipeline: {shape_words(figures.pipeline[0])}", pipeline_sentences(figures)


def _print_surprise(figures: StudyFigures, console: Console) -> None:
    """Gate 8 for sampled texts, one line per cell: seen even where there is nothing to object to."""
    if not figures.surprise:
        return
    console.print()
    paragraph("Sampled texts under the target, speculation off (surprise in nats)", console, style="bold")
    table = bare_table()
    for heading in ("sampled", "arm"):
        table.add_column(heading)
    for heading in ("T", "N", "tokens", "impos-\nsible", "largest", ">10 per\n1,024", ">8 per\n1,024", "mean"):
        table.add_column(heading, justify="right", no_wrap=True)
    for found in figures.surprise:
        rates = (found.beyond_10_per_1024, found.beyond_8_per_1024, found.mean_nats)
        table.add_row(
            *map(_plain, (f"{found.tag} {found.protocol}", found.method, f"{found.temperature:g}", found.concurrency)),
            *map(_plain, (count(found.num_tokens), count(found.impossible), number(found.largest_nats))),
            *(_plain(_value(figure)) for figure in rates),
        )
    console.print(table)


def _plain(text: object) -> Text:
    """Never read as markup."""
    from rich.text import Text

    return Text(one_line(text))


def _prompt_words(grid: Grid, tag: str, protocol: Protocol) -> str:
    """Median prompt and output length of the content, which are the same for both arms or gate 10 says so."""
    cells = [cell for cell in grid.figures.cells if (cell.tag, cell.protocol) == (tag, protocol.name)]
    prompt, output = cells[0].prompt_tokens.value, cells[0].output_tokens.value
    return f" · prompt {count(prompt)} tokens, output {count(output)} (medians)"


def _table(grid: Grid, tag: str, protocol: Protocol, arm: str, *, wide: bool) -> Table:
    table = bare_table(gap=int(wide))
    for heading in (*_GAIN_HEADINGS, *_STEP_HEADINGS):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("gates", min_width=5)
    for concurrency in grid.concurrencies(tag, protocol.name):
        on = grid.cell(tag, protocol.name, arm, concurrency)
        off = grid.cell(tag, protocol.name, grid.off_arm, concurrency)
        table.add_row(*_row(concurrency, off, on, grid.gain(tag, protocol.name, arm, concurrency), wide=wide))
    return table


def _row(
    concurrency: int, off: CellFigures | None, on: CellFigures | None, gain: GainFigures | None, *, wide: bool
) -> tuple[Text, ...]:
    from rich.text import Text

    if on is off:  # a study without a speculating arm
        on = None
    shown = on or off
    findings = [gate for cell in (off, on) if cell is not None for gate in cell.gates]
    style = "" if all(cell is None or cell.valid for cell in (off, on)) else "dim"
    texts = (
        str(concurrency),
        _value(off.throughput_tok_s if off else None),
        _spread(on.throughput_tok_s if on else None, wide=wide),
        _spread(gain.speculation_gain if gain else None, wide=wide),
        _batching(gain, wide=wide) if gain else UNKNOWN,
        _value(gain.interaction if gain else None),
        _value(on.acceptance_length if on else None),
        _value(shown.tokens_per_engine_step if shown else None),
        percent(shown.prefill_share.value) if shown else UNKNOWN,
        percent(shown.prediction_error.value, signed=True) if shown else UNKNOWN,
    )
    return (*(Text(text, style=style) for text in texts), _styled_codes(gate_codes(findings)))


def _value(figure: Figure | None) -> str:
    return number(figure.value if figure else None)


def _batching(gain: GainFigures, *, wide: bool) -> str:
    between = " " if wide else "\n"
    return f"{_value(gain.batching_gain_off)}{between}/ {_value(gain.batching_gain)}"


def _spread(figure: Figure | None, *, wide: bool) -> str:
    """The value with its interval, beside it or, on a narrow terminal, beneath."""
    if figure is None or not known(figure.value):
        return UNKNOWN
    return (" " if wide else "\n").join(part for part in (number(figure.value), interval(figure)) if part)


def _styled_codes(codes: str) -> Text:
    from rich.text import Text

    text = Text()
    for code in codes.split():
        text.append(f"{code} ", style="bold red" if code.endswith("!") else "yellow")
    text.rstrip()
    return text


def _print_gates(groups: Sequence[GateGroup], console: Console) -> None:
    """Each gate once, with the cells it speaks of, the evidence of the first and the remedy."""
    console.print()
    if not groups:
        paragraph("Gates: none failed.", console, style="green")
        return
    paragraph("Gates (! forbids a headline; the table's codes)", console, style="bold")
    for group in groups:
        forbids = group.severity is Severity.INVALID
        code = f"{group.gate}{'!' if forbids else ''}"
        paragraph(f"{code} {one_line(group.name)} · {group.where}", console, style="red" if forbids else "yellow")
        more = f" (and {len(group.cells) - 1} more in the report)" if len(group.cells) > 1 else ""
        paragraph(f"{one_line(group.cells[0][1])}{more}", console, indent=3)
        paragraph(f"→ {one_line(group.remedy)}", console, indent=3)
