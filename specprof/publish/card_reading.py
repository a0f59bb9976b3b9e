"""A card from elsewhere: read, held against its schema and its own cells, and turned back into figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from specprof.analyse.cache import CacheFigures
from specprof.analyse.frontier import FrontierFigures
from specprof.analyse.guided import GuidedFigures
from specprof.analyse.interference import InterferenceFigures
from specprof.analyse.pipeline import PipelineFigures
from specprof.analyse.prefill import PrefillFigures
from specprof.analyse.quality import QualityFigures
from specprof.analyse.results import StudyFigures
from specprof.analyse.sampled import SurpriseFigures
from specprof.analyse.service_results import ServiceFigures
from specprof.errors import LONGEST_REASON, InputError, reason, shortened
from specprof.publish.card import SCHEMA_VERSION, headline_key, headlines, schema_problem
from specprof.publish.fitness import claim_address, claim_objections
from specprof.publish.numbers import one_line
from specprof.publish.service_card import service_headlines

_DEEPEST = 64  # levels of nesting
_DIGITS = 1e-5  # relative: a card keeps six significant digits
# Named in the annotations of `results`, which sees them in a type checker alone: they import it
_LATE = (
    CacheFigures,
    FrontierFigures,
    GuidedFigures,
    InterferenceFigures,
    PipelineFigures,
    PrefillFigures,
    QualityFigures,
    ServiceFigures,
    SurpriseFigures,
)
_NAMED_LATE = {kind.__name__: kind for kind in _LATE}


def figures_of(card: Mapping[str, Any]) -> StudyFigures:
    """The figures a valid card holds: the inverse of `analyse.results.as_json`, to six significant digits."""
    made: StudyFigures = _typed(StudyFigures, card)
    return made


def read_card(path: Path) -> dict[str, Any]:
    """A card.json that may have been edited by hand.

    Raises InputError, naming the headline and the rule it breaks, where one lacks its interval or stop rule, mixes
    contents, fails an invalid gate, or says what the card's own cells do not; and where the file is no valid card.
    Lines to copy are written anew from the cells.
    """
    card = _document(path)
    for claim in card["headlines"]:
        _require_claim(path, claim)
    _require_schema(path, card)
    read = {**card, "headlines": _backed(path, card)}
    if "service" in card:
        read["service"] = {**card["service"], "headlines": service_headlines(figures_of(card))}
    return read


def _document(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_bytes())
        json.dumps(told, ensure_ascii=False, allow_nan=False).encode()  # neither NaN nor half a surrogate pair
        _require_flat(told)
    except OSError as problem:
        raise InputError(f"{path}: cannot be read ({problem.strerror}).") from None
    except (ValueError, RecursionError) as problem:
        raise InputError(
            f"{path}: is not JSON ({reason(problem)}). Give a card.json that 'specprof report' wrote."
        ) from None
    if not isinstance(told, dict) or not isinstance(told.get("headlines"), list):
        raise InputError(f"{path}: is no card: it has no headlines. Give a card.json that 'specprof report' wrote.")
    if told.get("schema_version") != SCHEMA_VERSION:
        found = shortened(one_line(told.get("schema_version", "none")))
        raise InputError(
            f"{path}: schema_version {found}, this specprof reads {SCHEMA_VERSION}. Use the version that wrote it."
        )
    return told


def _require_flat(value: Any) -> None:
    """Raise ValueError for what nests deeper than anything that is measured."""
    layer = [value]
    for _ in range(_DEEPEST):
        nested = [
            child.values() if isinstance(child, dict) else child for child in layer if isinstance(child, dict | list)
        ]
        layer = [item for children in nested for item in children]
        if not layer:
            return
    raise ValueError(f"it nests deeper than {_DEEPEST} levels")


def _require_claim(path: Path, claim: Any) -> None:
    if not isinstance(claim, Mapping):
        raise InputError(f"{path}: a headline is no JSON object. Give a card.json that 'specprof report' wrote.")
    for objection in claim_objections(claim):
        raise InputError(f"{path}: headline {_address(claim)} cannot be published. {objection.words}")


def _address(claim: Mapping[str, Any]) -> str:
    return shortened(claim_address(claim), LONGEST_REASON)


def _require_schema(path: Path, card: Mapping[str, Any]) -> None:
    problem = schema_problem(card)
    if problem is not None:
        raise InputError(f"{path}: is no valid card at {problem}. Write it again with 'specprof report STUDY'.")


def _backed(path: Path, card: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The headlines as the card's own cells and gains tell them; every one of the card must be among them."""
    lines = {headline_key(line): line for line in headlines(figures_of(card))}
    for claim in card["headlines"]:
        line = lines.get(headline_key(claim))
        if line is None or not _same(claim, line):
            says = "no fit cell of this card stands behind it" if line is None else "its cell says something else"
            raise InputError(
                f"{path}: headline {_address(claim)} cannot be published: {says}. Write the card again with "
                "'specprof report STUDY', or publish the results folder."
            )
    return [lines[headline_key(claim)] for claim in card["headlines"]]


def _same(claim: Mapping[str, Any], line: Mapping[str, Any]) -> bool:
    settings = ("stop", "length", "unit")
    bounds = ("value", "low", "high")
    return all(claim[name] == line[name] for name in settings) and all(
        _close(claim["figure"][name], line["figure"][name]) for name in bounds
    )


def _close(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return abs(a - b) <= _DIGITS * max(abs(a), abs(b))


def _typed(kind: Any, value: Any) -> Any:
    """Plain JSON as the type an annotation asks for."""
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        told = {field.name: value[field.name] for field in fields(kind) if field.name in value}
        return kind(**{name: _typed(hints[name], item) for name, item in told.items()})
    if get_origin(kind) is UnionType:
        (wanted,) = (option for option in get_args(kind) if option is not NoneType)
        return None if value is None else _typed(wanted, value)
    if get_origin(kind) is tuple:
        return tuple(_typed(get_args(kind)[0], item) for item in value)
    return kind(value) if isinstance(kind, type) and issubclass(kind, Enum) else value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, localns=_NAMED_LATE)
