"""JSON as it is printed and written: to be read by people, and harmless wherever it is shown."""

from __future__ import annotations

import json
import math
from typing import Any

from specprof.errors import InputError
from specprof.publish.numbers import UNSAFE


def wants_json(output: str) -> bool:
    """Whether `--format` asks for JSON and not for text. Raises InputError for anything else."""
    if output not in ("text", "json"):
        raise InputError(f"--format {output}: is not known. Use text or json.")
    return output == "json"


def json_text(value: Any, indent: int = 1) -> str:
    r"""A value as JSON. What could steer a terminal or turn a line around is written as \uXXXX: the same text.

    Raises ValueError for a number that JSON does not know (`finite` puts null in its place).
    """
    told = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", told)


def finite(value: Any) -> Any:
    """JSON knows no infinity: what is not a number is not known."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
