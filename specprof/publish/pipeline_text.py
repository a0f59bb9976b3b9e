"""The pipeline in words and tables: how full its stages were, what handing over costs, what batching owes to each."""

from __future__ import annotations

from collections.abc import Iterator

from specprof.analyse.pipeline import PipelineFigures, PipelineLoad
from specprof.analyse.results import Figure, StudyFigures
from specprof.publish.context import SEPARATOR
from specprof.publish.grid import Grid, protocol_of
from specprof.publish.numbers import bound, count, known, number, one_line, percent, percent_interval, quantity, times
from specprof.publish.table import ARM, STREAMS, Column, Entry, Group, Row, Table, protocol_tables

_COLUMNS = (
    STREAMS,
    ARM,
    Column("batches", "under way"),
    Column("stages filled", "by the streams"),
    Column("stages computing", "of their time"),
    Column("batching gain", "over N = 1"),
    Column("filling", "up to N = P"),
    Column("larger batches", "beyond it"),
)


def pipeline_tables(grid: Grid, engine: str) -> tuple[Table, ...]:
    """One table per protocol: every content and arm over its streams; none where the engine has one stage."""

    def group(content: str, arms: list[PipelineFigures]) -> Group:
        told = [shape_words(arms[0])]
        told += [f"{_method(grid, piped)}: {said}" for piped in arms if (said := _hand_over(piped))]
        rows = tuple(_row(_method(grid, piped), load) for piped in arms for load in piped.loads)
        return Group(content, "; ".join(told), rows)

    return protocol_tables(grid.figures.pipeline, engine, _COLUMNS, group)


def pipeline_sentences(figures: StudyFigures) -> Iterator[str]:
    """One sentence per content, protocol and arm: the hand-over, and what filling and larger batches gave at most N."""
    grid = Grid(figures)
    for piped in figures.pipeline:
        place = SEPARATOR.join((one_line(piped.tag), protocol_of(piped).words, _method(grid, piped)))
        yield f"{place}: {'; '.join(part for part in (_gains(piped), _hand_over(piped)) if part)}"


def shape_words(piped: PipelineFigures) -> str:
    """`3 stages, the slowest with 37% of the layers`."""
    even = "" if piped.split_known else " (the layer split is not stated: taken as even)"
    return f"{piped.stages} stages, the slowest with {percent(piped.slowest_share)} of the layers{even}"


def _gains(piped: PipelineFigures) -> str:
    most = piped.loads[-1]
    unfit = "" if most.valid else ", and a gate forbids to rely on it"
    gain = f"batching gives {times(most.batching_gain)} at N={most.concurrency}"
    if most.concurrency <= piped.stages:
        return f"{gain}, all of it by filling stages{unfit}"
    filling, sharing = most.filling_gain, most.sharing_gain
    if known(filling.value):
        return f"{gain}: {times(filling)} by filling {piped.stages} stages, {times(sharing)} by larger batches{unfit}"
    return (
        f"{gain}; filling {piped.stages} stages gives {piped.stages}× at most, so larger batches give at least "
        f"{_low(sharing)}× (N={piped.stages} has no fit figure){unfit}"
    )


def _hand_over(piped: PipelineFigures) -> str:
    found = piped.hand_over_s
    if found is None:
        return ""
    if known(found.value):
        return f"a hand-over costs {_milliseconds(found)} per stage and step"
    if not known(found.low) or not known(found.high):
        return ""
    return (
        f"a hand-over costs between {number(found.low * 1e3)} and {number(found.high * 1e3)} ms per stage and step: no "
        "N here keeps the slowest stage busy, so waiting cannot be told from computing"
    )


def _milliseconds(figure: Figure) -> str:
    scaled = (None if value is None else value * 1e3 for value in (figure.value, figure.low, figure.high))
    return quantity(Figure(*scaled), "ms")


def _row(method: str, load: PipelineLoad) -> Row:
    entries = (
        Entry(count(load.concurrency)),
        Entry(method),
        Entry(count(load.batches)),
        Entry(percent(load.filled_share)),
        _busy(load.busy_share),
        _gain(load.batching_gain),
        _gain(load.filling_gain),
        _gain(load.sharing_gain),
    )
    return Row(entries, unfit=not load.valid)


def _busy(figure: Figure | None) -> Entry:
    """A share with its interval; bounds alone where there is no value."""
    if figure is None or known(figure.value):
        return Entry(percent(figure.value if figure else None), percent_interval(figure))
    return Entry(percent_interval(figure))


def _gain(figure: Figure) -> Entry:
    """A ratio with its interval, or its bounds where there is no value."""
    if known(figure.value):
        return Entry(number(figure.value), f"[{_low(figure)}, {_high(figure)}]" if known(figure.low) else "")
    return Entry(f"{_low(figure)} to {_high(figure)}") if known(figure.low) else Entry(number(None))


def _low(figure: Figure) -> str:
    return bound(figure.low) if known(figure.low) else number(None)


def _high(figure: Figure) -> str:
    return bound(figure.high) if known(figure.high) else number(None)


def _method(grid: Grid, piped: PipelineFigures) -> str:
    return one_line(grid.methods.get(piped.arm, piped.method))
