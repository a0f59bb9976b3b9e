"""An SVG badge for a gain: what was measured on the left, the gain with its interval and what it means on the right.

A gain of few launches says so behind that (`first look`, `2 launches`). The stop rule stands on the badge itself and
the whole context in its title, so that a badge pasted anywhere hides nothing. The colour says no more than the word
beside it.
"""

from __future__ import annotations

import unicodedata
from xml.sax.saxutils import escape, quoteattr

from specprof.analyse.results import Figure
from specprof.errors import InputError
from specprof.publish.context import SEPARATOR
from specprof.publish.fitness import SPECULATION, Fit, address
from specprof.publish.grid import protocol_of
from specprof.publish.numbers import interval, known, one_line, times

MARK = '<svg xmlns="http://www.w3.org/2000/svg" class="specprof-badge"'  # how every badge begins

SAME = 0.05  # an interval inside ±5% of 1 is "no difference", METHOD 4

_HEIGHT, _SIZE, _PADDING = 20, 11, 7  # pixels
_LABEL_COLOUR = "#2f3742"
_COLOURS = {
    "faster": "#00639b",
    "slower": "#9c3f00",
    "no difference": "#4d5764",
    "undecided": "#6b4f00",
}  # white on each of them: a contrast above 6:1

# Advance widths of DejaVu Sans (Verdana's metrics) in hundredths of the size, rounded; `textLength` does the rest.
_WIDTHS = {
    30: " ,.IJijl·'",
    35: "-/:;\\f|",
    40: "!()[]rt",
    50: '*_`sz"',
    55: "?Lc",
    60: "FPTYaekovxy",
    70: "ABCRVXZ",
    75: "DGHNU",
    80: "&OQw",
    85: "#+<=>M^~×≤−",
    95: "%m",
    100: "@W—…",
}
_WIDTH_OF = {char: width for width, chars in _WIDTHS.items() for char in chars}
_OTHER_WIDTH, _WIDE = 65, 100


def badge(fit: Fit, *, name_arm: bool) -> str:
    """The badge of a gain fit to be quoted. `name_arm`: the study has several speculating arms to tell apart.

    Raises InputError for a gain without an interval.
    """
    figure = fit.number.figure
    word = meaning(figure)
    told = (f"{times(figure)} {word}", fit.number.basis.mark)
    label, value = _label(fit, name_arm), SEPARATOR.join(part for part in told if part)
    left, right = (2 * _PADDING + text_width(text) for text in (label, value))
    return (
        f'{MARK} width="{left + right}" height="{_HEIGHT}" role="img" aria-label={quoteattr(f"{label}: {value}")}>'
        f"<title>{escape(one_line(fit.context))}</title>"
        f'<rect width="{left}" height="{_HEIGHT}" fill="{_LABEL_COLOUR}"/>'
        f'<rect x="{left}" width="{right}" height="{_HEIGHT}" fill="{_COLOURS[word]}"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,Noto Sans,Noto Sans CJK SC,Microsoft YaHei,PingFang SC,'
        f'sans-serif" font-size="{_SIZE}">'
        f"{_text(label, _PADDING)}{_text(value, left + _PADDING)}</g></svg>\n"
    )


def meaning(figure: Figure) -> str:
    """What an interval lets a badge say, as printed: `faster`, `slower`, `no difference` (within ±5%), `undecided`."""
    if not interval(figure) or not known(figure.low) or not known(figure.high):
        raise InputError("A gain without an interval gets no badge. Measure more prompts or more blocks.")
    if figure.low >= 1 - SAME and figure.high <= 1 + SAME:
        return "no difference"
    if round(figure.low, 2) > 1:
        return "faster"
    return "slower" if round(figure.high, 2) < 1 else "undecided"


def text_width(text: str) -> int:
    """How wide a line is drawn, pixels."""
    return round(sum(map(_hundredths, text)) * _SIZE / 100)


def badge_name(fit: Fit) -> str:
    """What tells a badge from the others of its study: `code/forced/ngram-k4/8/speculation`."""
    return f"{address(fit.number.cell)}/{_kind(fit)}"


def _kind(fit: Fit) -> str:
    return "speculation" if fit.number.metric == SPECULATION else "batching"


def _label(fit: Fit, name_arm: bool) -> str:
    cell = fit.number.cell
    kind = f"{_kind(fit)} ({one_line(cell.method)})" if name_arm else _kind(fit)
    return SEPARATOR.join((kind, one_line(cell.tag), protocol_of(cell).words, f"N={cell.concurrency}"))


def _text(text: str, x: int) -> str:
    return f'<text x="{x}" y="14" textLength="{text_width(text)}">{escape(text)}</text>'


def _hundredths(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return _WIDE if unicodedata.east_asian_width(char) in "WF" else _WIDTH_OF.get(char, _OTHER_WIDTH)
