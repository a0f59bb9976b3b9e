"""The pages in two languages: English as it is written, Chinese from a catalogue, switched by the reader.

Every fixed text of a page passes through `say`, which sets the Chinese beside the English, in an attribute:
`<span data-zh="该做什么">What to do</span>`. The page's script puts one in the place of the other, as text, never as
markup. Without the script the page is English, and in any language it says everything once: to a reader, to a search
and to whoever copies from it.

The catalogue, messages.zh.json, holds for each kind of text: English → Chinese. A text that is filled in carries its
places in braces (`{count} badges`). An entry with places also translates a text that Python filled in (`off against
ngram K=4` by `off against {arm}`). A place named like a kind, `{gate}`, is translated in its turn. What has no entry
stays as it is: sentences made from measurements, and everything a study brings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from string import Formatter
from typing import TYPE_CHECKING

from specprof.publish.context import SEPARATOR
from specprof.publish.numbers import plain

if TYPE_CHECKING:
    from markupsafe import Markup

TEXT = "text"  # the kind of what stands in the templates themselves

_BETWEEN = f"({SEPARATOR}|; )"  # parts of a title or context; the group keeps what separates them

Catalogue = Mapping[str, Mapping[str, str]]  # kind → English → Chinese


def say(text: object, kind: str = TEXT, **values: object) -> Markup:
    """`text` in both languages, escaped, with `values` in its places; in English alone where it has no entry."""
    english = plain(text)
    return _both(english.format(**_plain(values)) if values else english, chinese(english, kind, **values))


def say_parts(text: str) -> Markup:
    """The same for a title or context made of parts: those that have an entry are translated, the others kept."""
    english = plain(text)
    return _both(english, "".join(chinese(part, "part") or part for part in re.split(_BETWEEN, english)))


def say_clauses(text: str) -> Markup:
    """The same for what to do (`advice.Advice.action`): clauses between semicolons, closed by a full stop."""
    english = plain(text)
    clauses = english.rstrip(".").split("; ")
    return _both(english, f"{'；'.join(chinese(clause, 'clause') or clause for clause in clauses)}。")


def chinese(text: str, kind: str = TEXT, **values: object) -> str | None:
    """The Chinese of a text, with `values` in its places; None where it has no entry. Not escaped."""
    entries, filled = catalogue()[kind], _plain(values)
    entry = entries.get(text) or entries.get(f"{text[:1].lower()}{text[1:]}")  # at a sentence's beginning
    if entry is None:
        entry, filled = _matching(text, kind)
    if entry is None or not filled:
        return entry
    told = {
        place: value if place not in catalogue() else chinese(value, place) or value for place, value in filled.items()
    }
    return entry.format(**told)


@cache
def catalogue() -> Catalogue:
    """The catalogue as it is packaged."""
    text = files("specprof.publish").joinpath("messages.zh.json").read_text(encoding="utf-8")
    found: Catalogue = json.loads(text)
    return found


def _matching(text: str, kind: str) -> tuple[str | None, dict[str, str]]:
    """The entry whose English, its places filled, reads like `text`, whatever the case; and what fills them."""
    for pattern, entry in _patterns(kind):
        if found := pattern.fullmatch(text):
            return entry, found.groupdict()
    return None, {}


@cache
def _patterns(kind: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple(
        (re.compile(_pattern(english), re.IGNORECASE), entry)
        for english, entry in catalogue()[kind].items()
        if "{" in english
    )


def _pattern(english: str) -> str:
    """`off against {arm}` as a regular expression."""
    pieces = Formatter().parse(english)
    return "".join(re.escape(words) + (f"(?P<{place}>.+)" if place else "") for words, place, _, _ in pieces)


def _plain(values: Mapping[str, object]) -> dict[str, str]:
    return {place: plain(value) for place, value in values.items()}


def _both(english: str, told: str | None) -> Markup:
    from markupsafe import Markup, escape

    if told is None or told == english:
        return escape(english)
    return Markup('<span data-zh="{}">{}</span>').format(told, english)
