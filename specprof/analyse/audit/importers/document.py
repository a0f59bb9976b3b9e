"""Somebody else's JSON, read without trusting it: what is absent is None, what is of another kind is an InputError."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specprof.errors import InputError


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON object, the file it is from, and where in that file it stands."""

    data: Mapping[str, Any]
    name: str
    path: str = ""

    def __contains__(self, key: str) -> bool:
        return self.data.get(key) is not None

    def number(self, key: str, *, scale: float = 1.0) -> float | None:
        """A number times `scale`; None where absent or not finite (JSON's NaN means that nothing was measured)."""
        value = self.data.get(key)
        if value is None:
            return None
        return _finite(value, scale, self._at(key))

    def whole(self, key: str) -> int | None:
        """A number that counts something."""
        value = self.number(key)
        if value is not None and value != int(value):
            raise InputError(f"{self._at(key)}: is {value!r}, which counts nothing. A whole number belongs there.")
        return None if value is None else int(value)

    def text(self, key: str) -> str | None:
        """A string; None where absent or empty. Long ones are cut: they are names, not texts."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise InputError(f"{self._at(key)}: is {_kind(value)}, a text belongs there.")
        return value[:200] or None

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers, those that are not finite left out; empty where absent."""
        values = self._list(key)
        found = (_finite(value, 1.0, f"{self._at(key)}[{i}]") for i, value in enumerate(values) if value is not None)
        return tuple(value for value in found if value is not None)

    def section(self, *keys: str) -> Document:
        """The object found by following `keys`; an empty one where any of them is absent."""
        here = self
        for key in keys:
            value = here.data.get(key)
            if value is not None and not isinstance(value, Mapping):
                raise InputError(f"{here._at(key)}: is {_kind(value)}, an object belongs there.")
            here = Document(value or {}, self.name, here._inner(key))
        return here

    def sections(self, key: str) -> Iterator[Document]:
        """The objects of a list; nothing where it is absent."""
        for i, value in enumerate(self._list(key)):
            if not isinstance(value, Mapping):
                raise InputError(f"{self._at(key)}[{i}]: is {_kind(value)}, an object belongs there.")
            yield Document(value, self.name, f"{self._inner(key)}[{i}]")

    def _list(self, key: str) -> list[Any]:
        value = self.data.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise InputError(f"{self._at(key)}: is {_kind(value)}, a list belongs there.")
        return value

    def _inner(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _at(self, key: str) -> str:
        return f"{self.name}: {self._inner(key)}"


def _finite(value: Any, scale: float, where: str) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{where}: is {_kind(value)}, a number belongs there.")
    try:
        number = float(value) * scale
    except OverflowError:
        raise InputError(f"{where}: is too large for a measurement.") from None
    return number if math.isfinite(number) else None


def _kind(value: Any) -> str:
    names = {
        bool: "a truth value",
        str: "a text",
        list: "a list",
        dict: "an object",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), type(value).__name__)
