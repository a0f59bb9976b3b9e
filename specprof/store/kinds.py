"""Whether a sealed cell's files hold what their records say: a seal proves that nothing changed, not that it was true.

A folder may come from somebody else, and whoever made up a cell could seal it. What is of the wrong kind is refused
here, once, so that no analysis meets a text where a number belongs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pyarrow as pa

from specprof.columns import REQUEST_SCHEMA
from specprof.records import Cell, ClientLoad, Counters, HardwareReading

_PARTS: Mapping[str, Any] = {
    "cell": Cell,
    "launch": int,
    "started_at": str,
    "client": ClientLoad | None,
    "hardware": tuple[HardwareReading, ...],
    "before": Counters | None,
    "after": Counters | None,
    "gauges": tuple[Counters, ...],
}


def require_kinds(told: Mapping[str, Any], requests: pa.Schema) -> None:
    """Raise ValueError naming the first value of a wrong kind in a cell's parts, or column of one in its requests."""
    for name, kind in _PARTS.items():
        if name in told:
            _require_kind(name, kind, told[name])
    for field in REQUEST_SCHEMA:
        found = requests.field(field.name).type if field.name in requests.names else None
        if found != field.type:
            raise ValueError(f"requests.{field.name} is {'missing' if found is None else f'of type {found}'}")


def _require_kind(name: str, kind: Any, value: Any) -> None:
    from pydantic import ValidationError

    try:
        _checker(kind).validate_python(value)
    except ValidationError as problem:
        first = problem.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, (name, *first["loc"])))
        raise ValueError(f"{place[:80]}: {first['msg']}") from None


@cache
def _checker(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
