"""What two versions of a study differ in, setting by setting: why a changed file does not go on where another began.

Only what is measured counts (`Study.measured`): more blocks, another verdict, a comment or the order of keys change
nothing of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from specprof.errors import InputError
from specprof.study.config import Study
from specprof.study.reading import parse_study

_LONGEST = 60  # characters of a value that are shown


def changes(then_text: str, now: Study) -> tuple[str, ...]:
    """One line per setting that differs: `protocols.forced.output_tokens: 32 → 48`.

    Empty where nothing that is measured differs, or where the earlier text is no study that this specprof can read.
    """
    try:
        then = parse_study(then_text, "as measured")
    except InputError:
        return ()
    return tuple(_differences("", then.measured(), now.measured()))


def _differences(place: str, then: Any, now: Any) -> Iterator[str]:
    then, now = _by_tag(then), _by_tag(now)
    if not (isinstance(then, Mapping) and isinstance(now, Mapping)):
        if then != now:
            yield f"{place}: {_shown(then)} → {_shown(now)}"
        return
    for key in dict.fromkeys((*then, *now)):
        where = f"{place}.{_one_line(key)}" if place else _one_line(key)
        yield from _differences(where, then.get(key), now.get(key))


def _by_tag(value: Any) -> Any:
    """Workloads stand in a list and are known by their tag: one that was put in between changes no other."""
    tagged = isinstance(value, list) and value and all(isinstance(item, Mapping) and "tag" in item for item in value)
    return {item["tag"]: item for item in value} if tagged else value


def _shown(value: Any) -> str:
    if value is None:
        return "(not set)"
    said = {key: item for key, item in value.items() if item is not None} if isinstance(value, Mapping) else value
    text = json.dumps(said, ensure_ascii=False)
    if not text.isprintable():
        text = json.dumps(said)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _one_line(key: str) -> str:
    return key if key.isprintable() else json.dumps(key)
