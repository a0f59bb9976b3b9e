"""How figures are written: enough digits to act on, the interval beside the value, a dash where nothing is known."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:  # every command prints through here, `--help` too, and figures take long to load
    from specprof.analyse.results import Figure

UNKNOWN = "—"
# Control characters but tab and line feed, the controls of writing direction, and halves of surrogate pairs
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def number(value: float | None) -> str:
    """A measured value, four digits or so: 1,204 · 135.5 · 44.1 · 3.36."""
    return UNKNOWN if not known(value) else _rounded(value, small=2, middle=1, large=1)


def bound(value: float) -> str:
    """A limit of an interval, which deserves a digit less: 1,190 · 128 · 41.2 · 3.31."""
    return _rounded(value, small=2, middle=1, large=0)


def interval(figure: Figure | None) -> str:
    """`[128, 143]`, or nothing where there is no interval."""
    if figure is None or not known(figure.low) or not known(figure.high):
        return ""
    return f"[{bound(figure.low)}, {bound(figure.high)}]"


def percent_interval(figure: Figure | None) -> str:
    """`[12%, 15%]`, or nothing where there is no interval."""
    if figure is None or not known(figure.low) or not known(figure.high):
        return ""
    return f"[{percent(figure.low)}, {percent(figure.high)}]"


def quantity(figure: Figure | None, unit: str = "") -> str:
    """A value with its unit and interval: `135.5 tok/s [128, 143]`."""
    if figure is None or not known(figure.value):
        return UNKNOWN
    return " ".join(part for part in (number(figure.value), unit, interval(figure)) if part)


def times(figure: Figure | None) -> str:
    """A ratio with its interval: `1.91× [1.70, 2.10]`."""
    if figure is None or not known(figure.value):
        return UNKNOWN
    return " ".join(part for part in (f"{number(figure.value)}×", interval(figure)) if part)


def percent(value: float | None, *, signed: bool = False) -> str:
    """A share, `12%`, with a decimal where it is small; signed for errors, `+1.3%`."""
    if not known(value):
        return UNKNOWN
    hundred = value * 100
    digits = 1 if abs(hundred) < 9.95 else 0
    text = f"{hundred:{'+' if signed else ''}.{digits}f}"
    return f"{text.lstrip('+-') if float(text) == 0 else text}%".replace("-", "−")


def count(value: float | None) -> str:
    """A count of whole things: 48,266."""
    return UNKNOWN if not known(value) else f"{value:,.0f}"


def count_range(values: Iterable[float | None]) -> str:
    """The least and the largest of several counts: `352–5,600`, or `352` where all are alike."""
    told = [value for value in values if known(value)]
    if not told:
        return UNKNOWN
    low, high = count(min(told)), count(max(told))
    return low if low == high else f"{low}–{high}"


def rate(value: float | None) -> str:
    """A rate somebody set or found, as short as it can be said: `2`, `0.5`, `1.19`."""
    if not known(value):
        return UNKNOWN
    return (f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}").replace("-", "−")


def rate_interval(figure: Figure | None) -> str:
    """`[1.1, 1.4]`; `≥ 1.1` or `≤ 1.4` where only one end is known; nothing where none is."""
    low, high = (figure.low, figure.high) if figure is not None else (None, None)
    if known(low) and known(high):
        return f"[{rate(low)}, {rate(high)}]"
    return f"≥ {rate(low)}" if known(low) else f"≤ {rate(high)}" if known(high) else ""


def p_value(value: float | None) -> str:
    """A probability that chance did it: `0.34`, `0.002`, `<0.001`."""
    if not known(value):
        return UNKNOWN
    return "<0.001" if value < 0.001 else f"{value:.3f}" if value < 0.0995 else f"{value:.2f}"


def seconds(value: float | None) -> str:
    """A duration in the unit that reads best: `84 ms`, `1.26 s`."""
    if not known(value):
        return UNKNOWN
    return f"{value * 1000:.0f} ms" if abs(value) < 0.9995 else f"{number(value)} s"


def seconds_interval(figure: Figure) -> str:
    """`[79, 91]` beside a duration in the same unit, `[0.91 s, 1.1 s]` where the units differ; nothing without ends."""
    told = [seconds(part) for part in (figure.value, figure.low, figure.high)]
    if UNKNOWN in told:
        return ""
    units = {text.split()[1] for text in told}
    low, high = (text.split()[0] if len(units) == 1 else text for text in told[1:])
    return f"[{low}, {high}]"


def known(value: float | None) -> TypeGuard[float]:
    """Whether there is a finite number to write."""
    return value is not None and math.isfinite(value)


def plain(text: object) -> str:
    """Text from outside made safe to print: no control characters (ANSI escapes), no reordering of the line."""
    return UNSAFE.sub("\N{REPLACEMENT CHARACTER}", str(text))


def one_line(text: object) -> str:
    """The same on a single line."""
    return " ".join(plain(text).split())


def _rounded(value: float, *, small: int, middle: int, large: int) -> str:
    size = abs(value)
    digits = 0 if size >= 999.5 else large if size >= 99.95 else middle if size >= 9.995 else small
    return f"{value:,.{digits}f}".replace("-", "−")
