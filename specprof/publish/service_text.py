"""The service view in words: targets, what speculation does to the goodput, and which load a frontier allows."""

from __future__ import annotations

from collections.abc import Iterator

from specprof.analyse.frontier import FrontierFigures, FrontierPoint, Keeping
from specprof.analyse.results import Figure, StudyFigures
from specprof.analyse.service_results import GoodputFigures, GoodputGain, TargetFigures
from specprof.publish.context import SEPARATOR
from specprof.publish.grid import Grid, protocol_of
from specprof.publish.ladders import Ladder, ladders
from specprof.publish.numbers import known, number, one_line, percent, rate, rate_interval, times

NO_TARGETS = "no targets named"


def target_words(targets: TargetFigures, *, quality: bool = False) -> str:
    """`TTFT ≤ 0.5 s, TPOT ≤ 60 ms`, with the quality check where an answer must pass it, too."""
    if targets.by_content:
        return "of each content, as the study file says"
    told = []
    if targets.ttft_s is not None:
        told.append(f"TTFT ≤ {targets.ttft_s:g} s")
    if targets.tpot_s is not None:
        told.append(f"TPOT ≤ {tpot_words(targets.tpot_s)}")
    if targets.e2el_s is not None:
        told.append(f"E2EL ≤ {targets.e2el_s:g} s")
    if quality and targets.quality:
        told.append(f"quality: {one_line(targets.quality)}")
    return ", ".join(told) or NO_TARGETS


def tpot_words(tpot_s: float) -> str:
    """`60 ms`."""
    return f"{tpot_s * 1000:.4g} ms"


def service_sentences(figures: StudyFigures) -> tuple[str, ...]:
    """What the open loops say, a sentence per arm with speculation, or per arm where none was without it."""
    return tuple(sentence for ladder in ladders(figures) for sentence in _of_ladder(ladder))


def _of_ladder(ladder: Ladder) -> Iterator[str]:
    for gain in ladder.gains.values():
        yield f"{ladder_place(ladder, gain.method)}: {gain_sentence(gain)}"
    told = {gain.off.arm for gain in ladder.gains.values()} | set(ladder.gains)
    for goodput in ladder.goodputs.values():
        if goodput.arm not in told:
            yield f"{ladder_place(ladder, goodput.method)}: {goodput_sentence(goodput)}"


def gain_sentence(gain: GoodputGain) -> str:
    """`under these targets (…) speculation moves goodput from 1.2 to 1.5 req/s [0.1, 0.5]`, or why it is undecided."""
    targets = f"under these targets ({target_words(gain.off.targets)})"
    share = f"{percent(gain.off.share)} of requests on target"
    unfit = "" if gain.off.valid and gain.on.valid else "; a gate forbids to rely on it"
    if gain.outcome not in ("raises", "lowers"):
        goodputs = f"{goodput_words(gain.off)} without speculation and {goodput_words(gain.on)} with it"
        needs = f"; to decide it: {one_line(gain.needs).rstrip('.')}" if gain.needs else ""
        return f"undecided: {targets} goodput is {goodputs} ({share}){needs}{unfit}"
    moved = f"from {_about(gain.off.rate_per_s)} to {_about(gain.on.rate_per_s)} req/s"
    interval = rate_interval(gain.difference_per_s)
    spread = f" {interval}" if interval else ""
    ratio = f"{times(gain.ratio)}, " if known(gain.ratio.value) else ""
    return f"{targets} speculation moves goodput {moved}{spread} ({ratio}{share}){unfit}"


def goodput_sentence(goodput: GoodputFigures) -> str:
    """The goodput of one arm by itself."""
    targets = f"under these targets ({target_words(goodput.targets)})"
    why = f"; {one_line(goodput.sentence).rstrip('.')}" if goodput.sentence else ""
    unfit = "" if goodput.valid else "; a gate forbids to rely on it"
    return f"{targets} goodput is {goodput_words(goodput)} ({percent(goodput.share)} of requests on target){why}{unfit}"


def goodput_words(goodput: GoodputFigures) -> str:
    """`1.2 req/s [1.1, 1.4]`, `at least 2 req/s`, `below 0.5 req/s`."""
    figure, about = goodput.rate_per_s, _about(goodput.rate_per_s)
    bounds = rate_interval(figure) if about == rate(figure.value) else ""
    return f"{about} req/s{f' {bounds}' if bounds else ''}"


def _about(figure: Figure) -> str:
    """A goodput without its interval. Where no measured rate missed, or none held, it is only bounded."""
    if known(figure.low) and not known(figure.high) and figure.value in (None, figure.low):
        return f"at least {rate(figure.low)}"
    if known(figure.value):
        return rate(figure.value)
    return f"below {rate(figure.high)}" if known(figure.high) else "unknown"


def ladder_place(ladder: Ladder, method: str = "") -> str:
    """`code · natural ≤96 · poisson arrivals · ngram K=4`: what no goodput is told without."""
    arrivals = f"{one_line(ladder.any_rung.arrivals)} arrivals"
    words = (one_line(ladder.tag), ladder.protocol.words, arrivals, one_line(method))
    return SEPARATOR.join(word for word in words if word)


def frontier_sentences(figures: StudyFigures) -> tuple[str, ...]:
    """How many streams each arm may have under the TPOT target, and where that is undecided."""
    methods = Grid(figures).methods
    return tuple(f"{_frontier_place(f, methods[f.arm])}: {_allowed(f)}" for f in figures.frontiers)


def _frontier_place(frontier: FrontierFigures, method: str) -> str:
    protocol = protocol_of(frontier).words
    return SEPARATOR.join(map(one_line, (frontier.tag, protocol, method)))


def _allowed(frontier: FrontierFigures) -> str:
    target = f"TPOT ≤ {tpot_words(frontier.target_tpot_s)}"
    by_streams = {point.concurrency: point for point in frontier.points}
    largest, in_doubt = frontier.largest_concurrency, frontier.open_concurrency
    if largest is not None:
        best = by_streams[largest]
        told = f"{target} holds up to N={largest} ({number(best.throughput_tok_s.value)} tok/s)"
    else:
        told = f"{target} surely holds at no measured N"
    if in_doubt is not None:
        return f"{told}; {_doubt(by_streams[in_doubt], frontier.target_tpot_s)}"
    missed = next((p for p in frontier.points if p.keeping is Keeping.MISSES and p.valid), None)
    if missed is not None:
        return f"{told}; N={missed.concurrency} misses it ({tpot_figure(missed.tpot_s)})"
    return f"{told}, the largest measured"


def _doubt(point: FrontierPoint, target_s: float) -> str:
    low, high = point.tpot_s.low, point.tpot_s.high
    if not point.valid:
        return f"N={point.concurrency} is undecided: a gate forbids its figures"
    if low is None or high is None:
        return f"N={point.concurrency} is undecided: too few prompts for an interval ({tpot_figure(point.tpot_s)})"
    if point.keeping is Keeping.UNDECIDED and low <= target_s < high:
        return f"N={point.concurrency} is undecided: the target lies inside {tpot_figure(point.tpot_s)}"
    if point.keeping is Keeping.UNDECIDED:
        told = "one launch does not tell how the next would differ; measure two blocks at least"
        return f"N={point.concurrency} is undecided: {told}"
    return f"N={point.concurrency} is undecided"


def tpot_figure(figure: Figure) -> str:
    """`58.1 ms [55.0, 63.2]`."""
    value = f"{number(1000 * figure.value)} ms" if known(figure.value) else "unknown"
    if not known(figure.low) or not known(figure.high):
        return value
    return f"{value} [{number(1000 * figure.low)}, {number(1000 * figure.high)}]"


def milliseconds(figure: Figure) -> Figure:
    """A figure of seconds in milliseconds."""
    return Figure(*(None if end is None else 1000 * end for end in (figure.value, figure.low, figure.high)))
