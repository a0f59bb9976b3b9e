"""The service view in tables: load and output, latencies with their measuring points, goodput, waterfall, frontier."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specprof.analyse.frontier import FrontierFigures, FrontierPoint
from specprof.analyse.results import Figure, Percentiles, StudyFigures
from specprof.analyse.service_results import GoodputFigures, GoodputGain, RungFigures
from specprof.publish.context import SEPARATOR, one_per_gate
from specprof.publish.grid import Grid, Protocol
from specprof.publish.ladders import Ladder, ladders
from specprof.publish.numbers import (
    UNKNOWN,
    count,
    count_range,
    interval,
    known,
    number,
    one_line,
    percent,
    rate,
    rate_interval,
    seconds,
    seconds_interval,
)
from specprof.publish.service_text import milliseconds, target_words, tpot_words
from specprof.publish.table import ARM, GATES, STREAMS, Column, Entry, Group, Row, Table, protocol_tables, share, value

RATE = Column("rate", "req/s offered")

_Fill = Callable[[RungFigures], tuple[Entry, ...]]


def load_tables(figures: StudyFigures, engine: str) -> tuple[Table, ...]:
    """What was offered, what came of it, and how much of that was of use: a row per rate and arm."""
    columns = (
        RATE,
        ARM,
        Column("completed", "req/s"),
        Column("raw output", "tok/s"),
        Column("effective output", "tok/s"),
        Column("good", "of requests"),
        Column("good", "of tokens"),
        Column("on target", "of requests"),
        Column("timed out", "requests"),
        Column("failed", "requests"),
        Column("AL", "tokens"),
        Column("tokens per step", "engine step"),
        GATES,
    )
    return _rung_tables(figures, engine, columns, _load_entries)


def _load_entries(rung: RungFigures) -> tuple[Entry, ...]:
    return (
        value(rung.completed_per_s),
        value(rung.waterfall.raw_tok_s),
        value(rung.waterfall.effective_tok_s),
        share(rung.good_request_share),
        share(rung.good_token_share),
        share(rung.on_target_share),
        Entry(count(rung.fates.timed_out)),
        Entry(count(rung.fates.failed)),
        value(rung.acceptance_length),
        value(rung.tokens_per_engine_step),
        Entry("", gates=rung.gates),
    )


def latency_tables(figures: StudyFigures, engine: str) -> tuple[Table, ...]:
    """What a user waits for, from when the request was due and from when it was sent."""
    columns = (
        RATE,
        ARM,
        Column("TTFT", "p50, from due"),
        Column("TTFT", "p99, from due"),
        Column("TTFT", "p50, from sent"),
        Column("TTFT", "p99, from sent"),
        Column("TPOT", "p50"),
        Column("TPOT", "p99"),
        Column("ITL per step", "p99"),
        Column("E2EL", "p99, from due"),
        Column("E2EL", "p99, from sent"),
        GATES,
    )
    return _rung_tables(figures, engine, columns, _latency_entries)


def _latency_entries(rung: RungFigures) -> tuple[Entry, ...]:
    return (
        _time(rung.ttft_s, "p50"),
        _time(rung.ttft_s, "p99"),
        _time(rung.ttft_sent_s, "p50"),
        _time(rung.ttft_sent_s, "p99"),
        _time(rung.tpot_s, "p50"),
        _time(rung.tpot_s, "p99"),
        _time(rung.itl_s, "p99"),
        _time(rung.e2el_s, "p99"),
        _time(rung.e2el_sent_s, "p99"),
        Entry("", gates=rung.gates),
    )


def queue_tables(figures: StudyFigures, engine: str) -> tuple[Table, ...]:
    """Where requests waited: in the client, whose own lateness stands beside, and in the engine, by its own words."""
    columns = (
        RATE,
        ARM,
        Column("client queue", "p99, due to sent"),
        Column("sent late", "p99, client"),
        Column("server queue", "p99, engine's word"),
        Column("running", "requests, mean"),
        Column("waiting", "requests, mean"),
        Column("preemptions", "engine's count"),
        GATES,
    )
    return _rung_tables(figures, engine, columns, _queue_entries)


def _queue_entries(rung: RungFigures) -> tuple[Entry, ...]:
    return (
        _time(rung.client_queue_s, "p99"),
        Entry(seconds(rung.dispatch_lag_p99_s)),
        _time(rung.server_queue_s, "p99"),
        value(rung.num_running),
        value(rung.num_waiting),
        Entry(count(rung.num_preemptions)),
        Entry("", gates=rung.gates),
    )


def _time(latency: Percentiles | None, name: str) -> Entry:
    """A percentile with its interval beneath. One that lies among the lost requests is only known to be later."""
    figure: Figure | None = getattr(latency, name) if latency is not None else None
    if figure is None:
        return Entry(UNKNOWN)
    if not known(figure.value):
        return Entry("lost", f"> {seconds(figure.low)}" if known(figure.low) else "")
    if known(figure.low) and known(figure.high):
        return Entry(seconds(figure.value), seconds_interval(figure))
    return Entry(seconds(figure.value), f"≥ {seconds(figure.low)}" if known(figure.low) else "")


def waterfall_tables(figures: StudyFigures, engine: str) -> tuple[Table, ...]:
    """Output tok/s, each stage a part of the one before, and how the requests ended."""
    columns = (
        RATE,
        ARM,
        Column("raw", "tok/s"),
        Column("finished", "tok/s"),
        Column("on time", "tok/s"),
        Column("good", "tok/s"),
        Column("good", "of raw"),
        Column("offered", "requests"),
        Column("good", "requests"),
        Column("late", "requests"),
        Column("failed the check", "requests"),
        Column("failed", "requests"),
        Column("timed out", "requests"),
        GATES,
    )
    return _rung_tables(figures, engine, columns, _waterfall_entries)


def _waterfall_entries(rung: RungFigures) -> tuple[Entry, ...]:
    fall, fates = rung.waterfall, rung.fates
    stages = (fall.raw_tok_s, fall.finished_tok_s, fall.on_time_tok_s, fall.effective_tok_s)
    ends = (fates.offered, fates.good, fates.late, fates.bad, fates.failed, fates.timed_out)
    return (
        *map(value, stages),
        Entry(percent(_part(fall.effective_tok_s, fall.raw_tok_s))),
        *(Entry(count(number_)) for number_ in ends),
        Entry("", gates=rung.gates),
    )


def _part(part: Figure, whole: Figure) -> float | None:
    return part.value / whole.value if known(part.value) and known(whole.value) and whole.value else None


def _rung_tables(figures: StudyFigures, engine: str, columns: tuple[Column, ...], fill: _Fill) -> tuple[Table, ...]:
    """One table per protocol, its contents one below the other, with a row per rate and arm."""
    return tuple(
        Table(f"{protocol.words}{SEPARATOR}{engine}", columns, tuple(_rung_group(of, fill) for of in found))
        for protocol, found in _by_protocol(figures).items()
    )


def _rung_group(ladder: Ladder, fill: _Fill) -> Group:
    rows = []
    for offered in ladder.rates:
        for arm in ladder.rungs:
            rung = ladder.rung(arm, offered)
            if rung is not None:
                entries = (
                    Entry(rate(offered), "collapsed" if rung.collapsed else ""),
                    Entry(one_line(rung.method)),
                    *fill(rung),
                )
                rows.append(Row(entries, unfit=not rung.valid))
    return Group(one_line(ladder.tag), _ladder_context(ladder), tuple(rows))


def _ladder_context(ladder: Ladder) -> str:
    """Arrivals, targets, lengths and how much was measured: what all rows share."""
    rungs = [rung for of_arm in ladder.rungs.values() for rung in of_arm]
    first = ladder.any_rung
    prompt = count_range(rung.prompt_tokens.value for rung in rungs)
    output = count_range(rung.output_tokens.value for rung in rungs)
    cap = [f"at most {first.max_concurrency} requests at once"] if first.max_concurrency is not None else []
    parts = (
        f"{one_line(first.arrivals)} arrivals",
        *cap,
        f"targets: {target_words(ladder.targets, quality=True)}",
        f"prompt {prompt}, output {output} tokens (medians)",
        f"{count_range(rung.fates.offered for rung in rungs)} requests, {_starts(rungs)} per rung",
    )
    return SEPARATOR.join(parts)


def _starts(rungs: Sequence[RungFigures]) -> str:
    launches = count_range(rung.num_launches for rung in rungs)
    return "1 launch" if launches == "1" else f"{launches} launches"


def _by_protocol(figures: StudyFigures) -> dict[Protocol, list[Ladder]]:
    found: dict[Protocol, list[Ladder]] = {}
    for ladder in ladders(figures):
        found.setdefault(ladder.protocol, []).append(ladder)
    return found


# -- goodput ----------------------------------------------------------------------------------------------------------


def goodput_table(figures: StudyFigures, engine: str) -> Table | None:
    """The largest rate that keeps the targets, arm beside arm, and what speculation does to it."""
    told = [ladder for ladder in ladders(figures) if ladder.goodputs]
    if not told:
        return None
    columns = (
        ARM,
        Column("goodput", "req/s"),
        Column("effective output", "tok/s, at it"),
        Column("knee", "req/s"),
        Column("rates measured"),
        Column("goodput", "on / off"),
        Column("speculation", words=True),
        GATES,
    )
    groups = tuple(Group(_content(ladder), _goodput_context(ladder), _goodput_rows(ladder)) for ladder in told)
    return Table(f"largest rate that keeps the targets{SEPARATOR}{engine}", columns, groups)


def _content(ladder: Ladder) -> str:
    """Content and stop rule: a goodput is told with both."""
    return SEPARATOR.join((one_line(ladder.tag), ladder.protocol.words))


def _goodput_context(ladder: Ladder) -> str:
    arrivals = f"{one_line(ladder.any_rung.arrivals)} arrivals"
    kept = f"kept by at least {percent(ladder.share)} of requests"
    return SEPARATOR.join((arrivals, f"targets: {target_words(ladder.targets)}", kept))


def _goodput_rows(ladder: Ladder) -> tuple[Row, ...]:
    return tuple(_goodput_row(ladder, ladder.goodputs[arm]) for arm in ladder.rungs if arm in ladder.goodputs)


def _goodput_row(ladder: Ladder, goodput: GoodputFigures) -> Row:
    gain = ladder.gains.get(goodput.arm)
    gates = one_per_gate(gate for rung in ladder.relied_on(goodput.arm) for gate in rung.gates)
    entries = (
        Entry(one_line(ladder.rungs[goodput.arm][0].method)),
        Entry(rate(goodput.rate_per_s.value), rate_interval(goodput.rate_per_s)),
        value(goodput.effective_tok_s),
        Entry(rate(goodput.knee_per_s)),
        Entry(str(goodput.num_rungs)),
        _ratio(gain),
        Entry(one_line(gain.outcome) if gain else UNKNOWN),
        Entry("", gates=gates),
    )
    return Row(entries, unfit=not goodput.valid)


def _ratio(gain: GoodputGain | None) -> Entry:
    if gain is None:
        return Entry(UNKNOWN)
    return Entry(number(gain.ratio.value), interval(gain.ratio) or rate_interval(gain.ratio))


# -- frontier ---------------------------------------------------------------------------------------------------------


def frontier_tables(figures: StudyFigures, engine: str) -> tuple[Table, ...]:
    """TPOT against throughput, N by N: one table per protocol."""
    columns = (
        STREAMS,
        ARM,
        Column("TPOT", "ms, p50"),
        Column("throughput", "tok/s"),
        Column("keeps the target", words=True),
        Column("on the frontier", words=True),
        GATES,
    )
    methods = Grid(figures).methods

    def group(content: str, found: list[FrontierFigures]) -> Group:
        context = (
            f"targets: TPOT ≤ {tpot_words(found[0].target_tpot_s)}",
            f"prompt {count_range(frontier.prompt_tokens.value for frontier in found)} tokens (median)",
        )
        rows = tuple(_frontier_row(methods[frontier.arm], point) for frontier in found for point in frontier.points)
        return Group(content, SEPARATOR.join(context), rows)

    return protocol_tables(figures.frontiers, engine, columns, group)


def _frontier_row(method: str, point: FrontierPoint) -> Row:
    entries = (
        Entry(str(point.concurrency)),
        Entry(one_line(method)),
        value(milliseconds(point.tpot_s)),
        value(point.throughput_tok_s),
        Entry(str(point.keeping)),
        Entry("yes" if point.pareto else "no"),
        Entry("", gates=point.gates),
    )
    return Row(entries, unfit=not point.valid)
