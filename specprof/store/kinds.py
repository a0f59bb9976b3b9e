"""Whether files of results hold what their records say: a seal proves that nothing changed, not that it was true.

A folder may come from somebody else, and whoever made up a cell could seal it. What is of the wrong kind is refused
here, once, so that no analysis meets a text where a number belongs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
from pydantic import PositiveFloat, TypeAdapter, ValidationError

from specprof.columns import LATER_COLUMNS, REQUEST_SCHEMA
from specprof.errors import shortened
from specprof.records import Cell, ClientLoad, Counters, EngineFacts, HardwareReading

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


@dataclass(frozen=True, slots=True)
class _Card:
    """A GPU, as a launch or an environment tells of it."""

    index: int | None = None
    name: str | None = None
    max_pcie_generation: int | None = None
    max_pcie_width: int | None = None


@dataclass(frozen=True, slots=True)
class _Hardware:
    gpus: tuple[_Card, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Extra:
    """Of what an engine told beyond its facts that which figures and gates are made of."""

    rehearsal: str | None = None
    stage_shares: tuple[float, ...] | None = None
    step_bytes: int | None = None
    time_scale: PositiveFloat = 1.0
    dtype: str | None = None
    tensor_parallel_size: int | None = None
    data_parallel_size: int | None = None
    arm: str = ""
    not_reported: tuple[str, ...] = ()
    fields_left_out: tuple[str, ...] = ()
    hardware: _Hardware | None = None


def require_kinds(told: Mapping[str, Any], requests: pa.Schema) -> None:
    """Raise ValueError naming the first value of a wrong kind in a cell's parts, or column of one in its requests."""
    for name, kind in _PARTS.items():
        if name in told:
            _require_kind(name, kind, told[name])
    for field in REQUEST_SCHEMA:
        found = requests.field(field.name).type if field.name in requests.names else None
        if found != field.type and not (found is None and field.name in LATER_COLUMNS):
            raise ValueError(f"requests.{field.name} is {'missing' if found is None else f'of type {found}'}")


def require_facts(told: Mapping[str, Any]) -> None:
    """Raise ValueError naming the first value of a wrong kind in the facts of an engine."""
    _require_kind("facts", EngineFacts, told)
    _require_kind("extra", _Extra, told.get("extra", {}))


def require_machine(told: Mapping[str, Any]) -> None:
    """Raise ValueError naming the first value of a wrong kind in what an environment tells of its hardware."""
    _require_kind("environment", _Hardware, told)


def _require_kind(name: str, kind: Any, value: Any) -> None:
    try:
        _checker(kind).validate_json(json.dumps(value), strict=True)  # of JSON alone a list may stand for a tuple
    except ValidationError as problem:
        first = problem.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, (name, *first["loc"])))
        raise ValueError(f"{shortened(place)}: {first['msg']}") from None


@cache
def _checker(kind: Any) -> Any:
    return TypeAdapter(kind)
