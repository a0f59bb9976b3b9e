"""How the figures of a bill are written.

Given figures keep the digits that a reader who checks them by hand needs; measured ones those that their interval
supports.
"""

from __future__ import annotations

from enum import Enum
from math import floor, log10

from specprof.analyse.cost import is_exact
from specprof.analyse.results import Figure
from specprof.publish.numbers import UNKNOWN, known

GIVEN_DIGITS, MEASURED_DIGITS, LIMIT_DIGITS = 6, 4, 3  # of an amount
GIVEN_SHARE_DIGITS, MEASURED_SHARE_DIGITS = 5, 3


class Form(Enum):
    """How a figure is written: scale, unit, digits where given and where measured, and whether a plus is shown."""

    AMOUNT = (1.0, "", GIVEN_DIGITS, MEASURED_DIGITS, False)
    SHARE = (100.0, "%", GIVEN_SHARE_DIGITS, MEASURED_SHARE_DIGITS, False)
    CHANGE = (100.0, "%", GIVEN_SHARE_DIGITS, MEASURED_SHARE_DIGITS, True)


def amount(figure: Figure | None) -> str:
    """A figure as it deserves: `2.92398` where all of it was given, `3.086 [2.9, 3.28]` where it was measured."""
    return " ".join(parts(figure, Form.AMOUNT))


def percent(figure: Figure) -> str:
    """A share: `5.5556%` where all of it was given, `18.9% [14.6%, 23.3%]` where it was measured."""
    return " ".join(parts(figure, Form.SHARE))


def bare(figure: Figure | None) -> str:
    """A figure without its interval."""
    return parts(figure, Form.AMOUNT)[0]


def given(value: float) -> str:
    """A plain number somebody wrote down."""
    return digits(value, GIVEN_DIGITS)


def parts(figure: Figure | None, form: Form) -> tuple[str, ...]:
    """The value, and its interval where it has one."""
    if figure is None or (figure.value is None and figure.low is None and figure.high is None):
        return (UNKNOWN,)
    scale, unit, of_given, of_measured, signed = form.value

    def written(value: float | None, significant: int, missing: str) -> str:
        if not known(value):
            return missing
        plus = "+" if signed and value > 0 else ""
        return f"{plus}{digits(value * scale, significant)}{unit}"

    value = written(figure.value, of_given if is_exact(figure) else of_measured, UNKNOWN)
    if is_exact(figure) or (figure.low is None and figure.high is None):
        return (value,)
    return value, f"[{written(figure.low, LIMIT_DIGITS, UNKNOWN)}, {written(figure.high, LIMIT_DIGITS, '∞')}]"


def digits(value: float, significant: int) -> str:
    """So many significant digits, never an exponent, whole numbers whole: `2.92398`, `7,600`, `0.000012`."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{significant}g}")
    decimals = max(0, significant - 1 - floor(log10(abs(rounded))))
    text = f"{value:,.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")


def positive(figure: Figure) -> Figure:
    """A loss told as a loss: the size of a negative figure."""
    if (figure.value or 0.0) >= 0:
        return figure
    return Figure(*(None if v is None else -v for v in (figure.value, figure.high, figure.low)))
