"""The numbers of open loops as data: the `service` part of card.json, and each with one line to copy.

A line reads: content · stop rule · prompt · rate and arrivals · arm · engine · what was found [interval] · AL · targets
· gates. Only what has an interval, and no forbidding gate behind it, gets one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from specprof.analyse.results import Figure, GateFinding, StudyFigures, as_json
from specprof.analyse.service_results import GoodputFigures, GoodputGain, RungFigures
from specprof.publish.context import SEPARATOR, Engine, engine_of, gate_names, place
from specprof.publish.ladders import Ladder, ladders
from specprof.publish.numbers import (
    count,
    known,
    number,
    one_line,
    percent,
    percent_interval,
    quantity,
    rate,
    rate_interval,
    seconds,
    seconds_interval,
    times,
)
from specprof.publish.sections import each_once
from specprof.publish.service_text import target_words

GOODPUT, GOODPUT_GAIN = "goodput_per_s", "goodput_gain"


def service_headlines(figures: StudyFigures) -> list[dict[str, Any]]:
    """Every number of the open loops that is fit to be quoted, ladder by ladder; [] without open loops."""
    engine = engine_of(figures.environment)
    return [line for ladder in ladders(figures) for line in _of_ladder(ladder, engine)]


def _of_ladder(ladder: Ladder, engine: Engine) -> Iterator[dict[str, Any]]:
    for goodput in ladder.goodputs.values():
        if goodput.arm in ladder.rungs and goodput.valid and _bounded(goodput.rate_per_s):
            yield _goodput_line(ladder, goodput, engine)
    for gain in ladder.gains.values():
        if gain.arm in ladder.rungs and gain.off.valid and gain.on.valid and _bounded(gain.ratio):
            yield _gain_line(ladder, gain, engine)
    for rungs in ladder.rungs.values():
        for rung in rungs:
            if rung.valid:
                yield from _rung_lines(rung, engine)


def _rung_lines(rung: RungFigures, engine: Engine) -> Iterator[dict[str, Any]]:
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
    for metric, unit, figure, words in told:
        if figure is not None and _bounded(figure):
            said = f"{words} {_written(figure, unit)}"
            quality = metric.startswith(("effective", "good"))
            yield {
                **_line(rung, engine, metric, unit, figure, rung.rate_per_s),
                "gates": as_json(list(rung.gates)),
                "context": _context(
                    (place(rung), engine.words, said, *_acceptance(rung)), rung, rung.gates, quality=quality
                ),
            }


def _written(figure: Figure, unit: str) -> str:
    if unit == "share":
        return f"{percent(figure.value)} {percent_interval(figure)}"
    if unit == "s":
        return f"{seconds(figure.value)} {seconds_interval(figure)}"
    return quantity(figure, unit)


def _goodput_line(ladder: Ladder, goodput: GoodputFigures, engine: Engine) -> dict[str, Any]:
    rungs = ladder.relied_on(goodput.arm)
    gates = _gates(rungs)
    figure = goodput.rate_per_s
    said = (
        f"goodput {rate(figure.value)} req/s {rate_interval(figure)} ({percent(goodput.share)} of requests on target)"
    )
    return {
        **_line(rungs[0], engine, GOODPUT, "req/s", figure, None),
        "gates": as_json(list(gates)),
        "context": _context((_place(ladder, rungs), engine.words, said), rungs[0], gates, quality=False),
    }


def _gain_line(ladder: Ladder, gain: GoodputGain, engine: Engine) -> dict[str, Any]:
    rungs = ladder.relied_on(gain.arm)
    gates = _gates((*rungs, *ladder.relied_on(gain.off.arm)))
    moved = f"from {rate(gain.off.rate_per_s.value)} to {rate(gain.on.rate_per_s.value)} req/s"
    said = f"goodput gain {times(gain.ratio)} against off, {moved} ({percent(gain.off.share)} of requests on target)"
    return {
        **_line(rungs[0], engine, GOODPUT_GAIN, "×", gain.ratio, None),
        "gates": as_json(list(gates)),
        "context": _context((_place(ladder, rungs), engine.words, said), rungs[0], gates, quality=False),
    }


def _line(
    rung: RungFigures, engine: Engine, metric: str, unit: str, figure: Figure, rate_per_s: float | None
) -> dict[str, Any]:
    """What every line says of where it stands; `rate_per_s` is None for what all rates together say."""
    return {
        "metric": metric,
        "unit": unit,
        "figure": as_json(figure),
        "tag": rung.tag,
        "protocol": rung.protocol,
        "stop": rung.stop,
        "length": rung.length,
        "prompt_tokens": as_json(rung.prompt_tokens),
        "arrivals": rung.arrivals,
        "rate_per_s": as_json(rate_per_s),
        "arm": rung.arm,
        "method": rung.method,
        "engine": {"name": engine.name, "version": engine.version, "device": engine.device, "model": engine.model},
        "targets": as_json(rung.targets),
    }


def _context(said: Sequence[str], rung: RungFigures, gates: Sequence[GateFinding], *, quality: bool) -> str:
    targets = f"targets: {target_words(rung.targets, quality=quality)}"
    return SEPARATOR.join((*said, targets, f"gates: {gate_names(gates)}"))


def _acceptance(rung: RungFigures) -> list[str]:
    al = rung.acceptance_length
    return [f"AL {number(al.value)}"] if al is not None and known(al.value) else []


def _place(ladder: Ladder, rungs: Sequence[RungFigures]) -> str:
    """Where a goodput stands: on all the rates of an arm."""
    rates = f"{rate(rungs[0].rate_per_s)}–{rate(rungs[-1].rate_per_s)} req/s {one_line(rungs[0].arrivals)}"
    prompt = f"prompt {count(rungs[0].prompt_tokens.value)}"
    words = (one_line(ladder.tag), one_line(ladder.protocol.words), prompt, rates, one_line(rungs[0].method))
    return SEPARATOR.join(words)


def _gates(rungs: Iterable[RungFigures]) -> tuple[GateFinding, ...]:
    return each_once(gate for rung in rungs for gate in rung.gates)


def _bounded(figure: Figure) -> bool:
    return known(figure.value) and known(figure.low) and known(figure.high)
