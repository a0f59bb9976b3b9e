"""How many answers are good, and what writing under a schema does, in words and tables. Nothing here is a headline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from specprof.analyse.guided import GuidedFigures
from specprof.analyse.quality import QualityFigures
from specprof.analyse.results import StudyFigures
from specprof.publish.context import SEPARATOR
from specprof.publish.grid import Grid, Protocol, protocol_of
from specprof.publish.numbers import count, known, one_line, percent, percent_interval, times
from specprof.publish.table import ARM, GATES, STREAMS, Column, Entry, Group, Row, Table, protocol_tables, share, value

_QUALITY = (
    STREAMS,
    ARM,
    Column("check", words=True),
    Column("texts", "judged or failed"),
    Column("good", "of requests"),
    Column("good", "of tokens"),
    Column("good output", "tok/s"),
    Column("bad", "requests"),
    Column("failed", "requests"),
    Column("not judged", "requests"),
    GATES,
)

_GUIDED = (
    STREAMS,
    ARM,
    Column("good, free", "of requests"),
    Column("good, guided", "of requests"),
    Column("AL, free"),
    Column("AL, guided"),
    Column("AL", "guided / free"),
    Column("decode speed, free", "tok/s"),
    Column("decode speed, guided", "tok/s"),
    Column("decode speed", "guided / free"),
    Column("throughput", "guided / free"),
    Column("gain, free", "on / off"),
    Column("gain, guided", "on / off"),
    Column("gain", "guided / free"),
    GATES,
)


def quality_tables(grid: Grid, engine: str) -> tuple[Table, ...]:
    """One table per protocol whose texts are judged."""

    def group(content: str, judged: list[QualityFigures]) -> Group:
        return Group(content, "", tuple(_quality_row(grid, found) for found in judged))

    return protocol_tables(grid.figures.quality, engine, _QUALITY, group)


def guided_tables(grid: Grid, engine: str) -> tuple[Table, ...]:
    """One table per pair of protocols that differ by `guided` alone."""
    of_pair: dict[tuple[str, str, str], dict[str, list[GuidedFigures]]] = {}
    for pair in grid.figures.guided:
        rule = Protocol("", pair.stop, pair.length).rule
        contents = of_pair.setdefault((pair.guided_protocol, pair.free_protocol, rule), {})
        contents.setdefault(one_line(pair.tag), []).append(pair)
    return tuple(
        Table(
            f"{one_line(guided)} against {one_line(free)} ({rule}){SEPARATOR}{engine}",
            _GUIDED,
            tuple(Group(tag, _prompts(of), tuple(_guided_row(grid, pair) for pair in of)) for tag, of in found.items()),
        )
        for (guided, free, rule), found in of_pair.items()
    )


def quality_sentences(figures: StudyFigures) -> Iterator[str]:
    """One sentence per content, arm and N whose texts are judged: both shares, side by side."""
    for found in figures.quality:
        words = (one_line(found.tag), protocol_of(found).words, f"N={found.concurrency}", one_line(found.method))
        requests, tokens = found.good_request_share, found.good_token_share
        said = (
            f"{percent(requests.value)} of requests {percent_interval(requests)} and {percent(tokens.value)} of tokens "
            f"{percent_interval(tokens)} are good by {one_line(found.check)}"
            if known(requests.value)
            else f"no text could be judged by {one_line(found.check)}"
        )
        yield f"{SEPARATOR.join(words)}: {said}"


def guided_sentences(figures: StudyFigures) -> Iterator[str]:
    """One sentence per content, arm and N: what guidance does to validity, acceptance and speed."""
    for pair in figures.guided:
        words = (
            one_line(pair.tag),
            f"{one_line(pair.guided_protocol)} against {one_line(pair.free_protocol)}",
            f"N={pair.concurrency}",
            one_line(pair.method),
        )
        yield f"{SEPARATOR.join(words)}: {'; '.join(_clauses(pair))}"


def _clauses(pair: GuidedFigures) -> Iterator[str]:
    free, guided = pair.good_request_share_free, pair.good_request_share_guided
    if known(free.value) and known(guided.value):
        yield (
            f"good texts {percent(guided.value)} {percent_interval(guided)} guided and {percent(free.value)} "
            f"{percent_interval(free)} free"
        )
    yield f"decode speed {times(pair.decode_speed_ratio)}"
    if pair.acceptance_length_ratio is not None:
        yield f"acceptance length {times(pair.acceptance_length_ratio)}"
    if pair.speculation_gain_guided is not None and pair.speculation_gain_free is not None:
        yield (
            f"speculation gives {times(pair.speculation_gain_guided)} guided and {times(pair.speculation_gain_free)} "
            "free"
        )
    if not pair.valid:
        yield "a gate forbids to rely on it"


def _quality_row(grid: Grid, found: QualityFigures) -> Row:
    entries = (
        Entry(str(found.concurrency)),
        Entry(one_line(grid.methods.get(found.arm, found.method))),
        Entry(one_line(found.check)),
        Entry(count(found.num_requests - found.num_unjudged)),
        share(found.good_request_share),
        share(found.good_token_share),
        value(found.good_tok_s),
        Entry(count(found.num_bad)),
        Entry(count(found.num_failed)),
        Entry(count(found.num_unjudged)),
        Entry("", gates=found.gates),
    )
    return Row(entries, unfit=not found.valid)


def _guided_row(grid: Grid, pair: GuidedFigures) -> Row:
    entries = (
        Entry(str(pair.concurrency)),
        Entry(one_line(grid.methods.get(pair.arm, pair.method))),
        share(pair.good_request_share_free),
        share(pair.good_request_share_guided),
        value(pair.acceptance_length_free),
        value(pair.acceptance_length_guided),
        value(pair.acceptance_length_ratio),
        value(pair.decode_speed_free_tok_s),
        value(pair.decode_speed_guided_tok_s),
        value(pair.decode_speed_ratio),
        value(pair.throughput_ratio),
        value(pair.speculation_gain_free),
        value(pair.speculation_gain_guided),
        value(pair.speculation_gain_ratio),
        Entry("", gates=pair.gates),
    )
    return Row(entries, unfit=not pair.valid)


def _prompts(pairs: Iterable[GuidedFigures]) -> str:
    return f"{'/'.join(str(n) for n in sorted({pair.num_prompts for pair in pairs}))} prompts"
