"""The numbers of open loops that are fit to be quoted, each with one line to copy; the `service` part of card.json.

A line reads: content · stop rule · prompt · rate and arrivals · arm · engine · what was found [interval] · launches and
requests · AL and tokens per engine step · targets · gates. Only what has an interval, and no forbidding gate behind it,
gets one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specprof.analyse.results import Figure, GateFinding, StudyFigures, as_json
from specprof.analyse.service_results import GoodputFigures, GoodputGain, RungFigures
from specprof.publish.basis import Basis
from specprof.publish.context import (
    SEPARATOR,
    Engine,
    acceptance_words,
    engine_of,
    gate_names,
    one_per_gate,
    place,
    rate_words,
)
from specprof.publish.ladders import Ladder, ladders
from specprof.publish.numbers import (
    count,
    interval,
    known,
    number,
    one_line,
    percent,
    percent_interval,
    rate,
    rate_interval,
    seconds,
    seconds_interval,
)
from specprof.publish.service_text import target_words

GOODPUT, GOODPUT_GAIN = "goodput_per_s", "goodput_gain"

_CHECKED = ("effective_tok_s", "good_request_share", "good_token_share")  # of answers that pass the quality check, too


@dataclass(frozen=True, slots=True)
class ServiceNumber:
    """A number of the open loops: what it is, where it stands, and its line to copy.

    `rung` tells content, stop rule, prompt, arm and targets. A goodput is what all rates of an arm say together: its
    `rung` is the lowest of them, and `rate_per_s` None.
    """

    metric: str  # as card.json names it
    unit: str  # "share" is written in per cent
    words: str  # `effective output`
    figure: Figure
    rung: RungFigures
    rate_per_s: float | None
    load: str  # `1.5 req/s poisson`, `0.5–3 req/s poisson`
    gates: tuple[GateFinding, ...]
    basis: Basis
    context: str

    @property
    def written(self) -> tuple[str, str]:
        """Its value with the unit, and its interval: `1.2 req/s`, `[1.1, 1.3]`."""
        return _written(self.figure, self.unit)

    @property
    def targets(self) -> str:
        """What an answer had to keep to be counted."""
        return _targets(self.rung, self.metric)


def service_numbers(figures: StudyFigures) -> tuple[ServiceNumber, ...]:
    """Every number of the open loops that is fit to be quoted, ladder by ladder; none without open loops."""
    engine = engine_of(figures.environment)
    return tuple(found for ladder in ladders(figures) for found in _of_ladder(ladder, engine))


def service_headlines(figures: StudyFigures) -> list[dict[str, Any]]:
    """The same as card.json holds them."""
    engine = engine_of(figures.environment)
    return [_headline(found, engine) for found in service_numbers(figures)]


def _of_ladder(ladder: Ladder, engine: Engine) -> Iterator[ServiceNumber]:
    for goodput in ladder.goodputs.values():
        if goodput.arm in ladder.rungs and goodput.valid and _bounded(goodput.rate_per_s):
            yield _goodput(ladder, goodput, engine)
    for gain in ladder.gains.values():
        if gain.arm in ladder.rungs and gain.off.valid and gain.on.valid and _bounded(gain.ratio):
            yield _goodput_gain(ladder, gain, engine)
    for rungs in ladder.rungs.values():
        for rung in rungs:
            if rung.valid:
                yield from _of_rung(rung, engine)


def _goodput(ladder: Ladder, goodput: GoodputFigures, engine: Engine) -> ServiceNumber:
    rungs = ladder.relied_on(goodput.arm)
    return _of_all_rates(
        ladder,
        rungs,
        engine,
        metric=GOODPUT,
        unit="req/s",
        words="goodput",
        figure=goodput.rate_per_s,
        made_of=rungs,
        more=f"({percent(goodput.share)} of requests on target)",
    )


def _goodput_gain(ladder: Ladder, gain: GoodputGain, engine: Engine) -> ServiceNumber:
    rungs = ladder.relied_on(gain.arm)
    moved = f"from {rate(gain.off.rate_per_s.value)} to {rate(gain.on.rate_per_s.value)} req/s"
    return _of_all_rates(
        ladder,
        rungs,
        engine,
        metric=GOODPUT_GAIN,
        unit="×",
        words="goodput gain",
        figure=gain.ratio,
        made_of=(*rungs, *ladder.relied_on(gain.off.arm)),
        more=f"against off, {moved} ({percent(gain.off.share)} of requests on target)",
    )


def _of_all_rates(
    ladder: Ladder,
    rungs: Sequence[RungFigures],
    engine: Engine,
    *,
    metric: str,
    unit: str,
    words: str,
    figure: Figure,
    made_of: Sequence[RungFigures],
    more: str,
) -> ServiceNumber:
    """What all the rates of an arm say together, `made_of` both arms or one; `more` stands behind the number."""
    lowest, gates, basis = rungs[0], _gates(made_of), Basis.of_rungs(made_of, ratio=metric == GOODPUT_GAIN)
    load = f"{rate(lowest.rate_per_s)}–{rate(rungs[-1].rate_per_s)} req/s {one_line(lowest.arrivals)}"
    prompt = f"prompt {count(lowest.prompt_tokens.value)}"
    place_of = (one_line(ladder.tag), ladder.protocol.words, prompt, load, one_line(lowest.method))
    said = f"{words} {_in_words(figure, unit)} {more}"
    context = _context((*place_of, engine.words, said, basis.words), _targets(lowest, metric), gates)
    return ServiceNumber(metric, unit, words, figure, lowest, None, load, gates, basis, context)


def _of_rung(rung: RungFigures, engine: Engine) -> Iterator[ServiceNumber]:
    """Output raw and effective, the shares that were of use, and the tail of the first wait."""
    tail = rung.ttft_s.p99 if rung.ttft_s is not None else None
    checked = bool(rung.targets.quality)  # without a check, on target and good are one
    told: tuple[tuple[str, str, Figure | None, str], ...] = (
        ("raw_tok_s", "tok/s", rung.waterfall.raw_tok_s, "raw output"),
        ("effective_tok_s", "tok/s", rung.waterfall.effective_tok_s, "effective output"),
        ("good_request_share", "share", rung.good_request_share, "good requests"),
        ("good_token_share", "share", rung.good_token_share, "good tokens"),
        ("on_target_share", "share", rung.on_target_share if checked else None, "requests on target"),
        ("ttft_p99_s", "s", tail, "TTFT p99 from due"),
    )
    load, basis = rate_words(rung), Basis.of_rungs((rung,))
    rests_on = (basis.words, *acceptance_words(rung))
    for metric, unit, figure, words in told:
        if figure is not None and _bounded(figure):
            said = (place(rung), engine.words, f"{words} {_in_words(figure, unit)}", *rests_on)
            context = _context(said, _targets(rung, metric), rung.gates)
            yield ServiceNumber(metric, unit, words, figure, rung, rung.rate_per_s, load, rung.gates, basis, context)


def _context(said: Sequence[str], targets: str, gates: Sequence[GateFinding]) -> str:
    return SEPARATOR.join((*said, f"targets: {targets}", f"gates: {gate_names(gates)}"))


def _targets(rung: RungFigures, metric: str) -> str:
    return target_words(rung.targets, quality=metric in _CHECKED)


def _written(figure: Figure, unit: str) -> tuple[str, str]:
    if unit == "share":
        return percent(figure.value), percent_interval(figure)
    if unit == "s":
        return seconds(figure.value), seconds_interval(figure)
    if unit == "req/s":
        return f"{rate(figure.value)} req/s", rate_interval(figure)
    return f"{number(figure.value)}{'' if unit == '×' else ' '}{unit}", interval(figure)


def _in_words(figure: Figure, unit: str) -> str:
    return " ".join(_written(figure, unit))


def _gates(rungs: Iterable[RungFigures]) -> tuple[GateFinding, ...]:
    return one_per_gate(gate for rung in rungs for gate in rung.gates)


def _bounded(figure: Figure) -> bool:
    return known(figure.value) and known(figure.low) and known(figure.high)


def _headline(found: ServiceNumber, engine: Engine) -> dict[str, Any]:
    rung = found.rung
    return {
        "metric": found.metric,
        "unit": found.unit,
        "figure": as_json(found.figure),
        "tag": rung.tag,
        "protocol": rung.protocol,
        "stop": rung.stop,
        "length": rung.length,
        "prompt_tokens": as_json(rung.prompt_tokens),
        "arrivals": rung.arrivals,
        "rate_per_s": as_json(found.rate_per_s),
        "arm": rung.arm,
        "method": rung.method,
        "engine": engine.document,
        "num_launches": found.basis.num_launches,
        "num_requests": found.basis.num_asked,
        "targets": as_json(rung.targets),
        "gates": as_json(list(found.gates)),
        "context": found.context,
    }
