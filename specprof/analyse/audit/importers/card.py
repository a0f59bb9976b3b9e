"""specprof's own card.json: one claim per cell, one for the gains and verdicts of the whole study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from typing import Any

from specprof.analyse.audit.claim import Aggregation, Claim, Note, claim_of
from specprof.analyse.audit.importers.document import Document
from specprof.analyse.stats import t_quantile
from specprof.errors import InputError
from specprof.records import Stop

TOOL = "specprof"


def is_card(data: Document) -> bool:
    """Whether this is a card (or the output of `specprof report --format json`)."""
    return {"study", "environment", "cells", "gains", "verdicts"} <= data.data.keys()


def read_card(data: Document) -> Iterator[Claim]:
    """Every cell of the card that has a throughput, then the study's gains and verdicts."""
    cells = [cell for cell in data.sections("cells") if _value(cell, "throughput_tok_s")]
    if not cells:
        raise InputError(f"{data.name}: no cell of this card has a throughput, so there is no number to audit.")
    arms_on = {gain.text("arm") for gain in data.sections("gains")}
    off: set[str | None] = {cell.text("arm") for cell in cells} - arms_on if arms_on else {"off"}
    headlines = {_key(line): line for line in data.sections("headlines") if line.text("metric") == "throughput_tok_s"}
    for cell in cells:
        yield _cell(data, cell, off, headlines.get(_key(cell)) or Document({}, data.name))
    whole = _study(data, cells, off)
    if whole.factorials or whole.lines:
        yield whole


def _cell(data: Document, cell: Document, off: set[str | None], headline: Document) -> Claim:
    tag, protocol, arm, n = _key(cell)
    engine = headline.section("engine")
    fields = {
        "name": f"{tag} {protocol} {arm} N={n}",
        "source": data.name,
        "tool": TOOL,
        "concurrency": n,
        "prompt_tokens": _value(cell, "prompt_tokens"),
        "output_tokens_per_request": _value(cell, "output_tokens"),
        "max_tokens": headline.whole("length"),
        "throughput_tok_s": _value(cell, "throughput_tok_s"),
        "decode_speed_tok_s": _value(cell, "decode_speed_tok_s"),
        "ttft_s": _value(cell.section("ttft_s"), "p50"),
        "latency_statistic": "median",
        "sum_of_rates_tok_s": _value(cell, "sum_of_rates_tok_s"),
        "stop": _stop(headline.text("stop") or protocol),
        "content": tag,
        "speculation": {"method": "off"} if arm in off else _speculation(cell, headline.text("method") or arm),
        "prefix_cache": _prefix_cache(data, cell, headline),
        "aggregation": Aggregation.TOTAL_OVER_WALL,
        "noise": _noise(cell.section("throughput_tok_s")),
        "engine": engine.text("name"),
        "model": engine.text("model"),
        "hardware": engine.text("device"),
        "notes": tuple(_gates(cell)),
    }
    return claim_of(fields, data.name)


def _prefix_cache(data: Document, cell: Document, headline: Document) -> bool | None:
    """Whether prompts came from a cache; None where nobody vouches that they did not."""
    if "cache" in data:
        return True
    return False if headline.data and not any(g.whole("gate") == 5 for g in cell.sections("gates")) else None


def _study(data: Document, cells: Sequence[Document], off: set[str | None]) -> Claim:
    """Four corners per content, protocol and arm, and every verdict with the interval it was given."""
    fields = {
        "name": f"study {data.text('study') or ''}".strip(),
        "source": data.name,
        "tool": TOOL,
        "factorials": tuple(_factorials(cells, off)),
        "lines": tuple(_lines(data)),
    }
    return claim_of(fields, data.name)


def _factorials(cells: Sequence[Document], off: set[str | None]) -> Iterator[dict[str, Any]]:
    speeds = {_key(cell): _value(cell, "throughput_tok_s") for cell in cells}
    for tag, protocol, arm, n in speeds:
        if arm in off or n in (1, None):
            continue
        base = next((name for name in sorted(filter(None, off)) if (tag, protocol, name, n) in speeds), None)
        corners = {
            "off_1": speeds.get((tag, protocol, base, 1)),
            "off_n": speeds.get((tag, protocol, base, n)),
            "on_1": speeds.get((tag, protocol, arm, 1)),
            "on_n": speeds.get((tag, protocol, arm, n)),
        }
        if all(corners.values()):
            yield {"content": f"{tag} {protocol} {arm}", "concurrency": n, **corners}


def _lines(data: Document) -> Iterator[dict[str, Any]]:
    for verdict in data.sections("verdicts"):
        ratio, threshold = _value(verdict, "ratio"), verdict.number("threshold")
        if ratio and threshold:
            noise = _noise(verdict.section("ratio"))
            yield {
                "name": verdict.text("name") or "verdict",
                "at_least": threshold,
                "numerator": ratio,
                "denominator": 1.0,
                "numerator_noise": noise,
                "denominator_noise": 0.0 if noise is not None else None,
                "says": verdict.text("outcome"),
            }


def _speculation(cell: Document, told: str | None) -> dict[str, Any]:
    """`told` is the arm in words, `ngram K=4`, or just its name."""
    method, _, drafted = (told or "").rpartition(" K=")
    known = bool(method) and drafted.isascii() and drafted.isdigit() and 0 < len(drafted) < 5
    return {
        "method": method if known else told,
        "draft_tokens": int(drafted) or None if known else None,
        "acceptance_rate": _value(cell, "acceptance_rate"),
        "acceptance_length": _value(cell, "acceptance_length"),
        "survival": tuple(s for s in (figure.number("value") for figure in cell.sections("survival")) if s is not None),
    }


def _gates(cell: Document) -> Iterator[Note]:
    for gate in cell.sections("gates"):
        name, severity = gate.text("name") or "gate", gate.text("severity") or "caution"
        yield Note(
            f"gate {gate.whole('gate') or '?'} ({name}, {severity}): {gate.text('evidence') or ''}",
            gate.text("remedy") or "",
        )


def _key(cell: Document) -> tuple[str | None, str | None, str | None, int | None]:
    return cell.text("tag"), cell.text("protocol"), cell.text("arm"), cell.whole("concurrency")


def _value(cell: Document, key: str) -> float | None:
    return cell.section(key).number("value")


def _noise(figure: Document) -> float | None:
    """Relative standard deviation behind a 95% interval; None without one."""
    low, high = figure.number("low"), figure.number("high")
    if low is None or high is None or not 0 < low <= high:
        return None
    return log(high / low) / 2 / t_quantile(float("inf"))


def _stop(told: str | None) -> Stop | None:
    return Stop(told) if told in tuple(Stop) else None
