"""The environment as it is published: without secrets, launches that agree told once, one line per setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specprof.publish.numbers import one_line
from specprof.study.withheld import names_secret

WITHHELD = "(withheld)"


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the environment: `engine.version` and what it was."""

    name: str
    value: str


def settings(environment: Mapping[str, Any]) -> tuple[Setting, ...]:
    """An environment flattened to lines; what launches share stands once, what differs names its launches."""
    told = without_secrets(environment)
    launches = told.get("launches")
    if not isinstance(launches, Mapping) or not all(isinstance(facts, Mapping) for facts in launches.values()):
        return tuple(_flat(told))
    rest = {key: value for key, value in told.items() if key != "launches"}
    return (*_flat(rest), *_launches(launches))


def _launches(launches: Mapping[str, Mapping[str, Any]]) -> Iterator[Setting]:
    """Facts of every engine start, grouped by what they say."""
    by_name: dict[str, dict[str, list[str]]] = {}
    for number, facts in launches.items():
        for setting in _flat(facts):
            by_name.setdefault(setting.name, {}).setdefault(setting.value, []).append(str(number))
    for name, said in by_name.items():
        for value, numbers in said.items():
            where = "" if len(numbers) == len(launches) else f" (launch {', '.join(numbers)})"
            yield Setting(f"engine.{name}{where}", value)


def _flat(value: Any, name: str = "") -> Iterator[Setting]:
    """Nested values as dotted names, lists of plain values on one line."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in value):
        for index, item in enumerate(value):
            yield from _flat(item, f"{name}.{index}")
    elif isinstance(value, list | tuple):
        yield Setting(one_line(name), one_line(" ".join(map(str, value))) or "none")
    else:
        yield Setting(one_line(name), "none" if value is None else one_line(value))


def without_secrets(value: Any) -> Any:
    """An environment as it may be published: values of keys and flags that name a secret are withheld."""
    if isinstance(value, Mapping):
        return {key: WITHHELD if names_secret(key) else without_secrets(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_argument(item, before) for before, item in zip((None, *value), value, strict=False)]
    return value


def _argument(item: Any, before: Any) -> Any:
    """An item of a list, which may be a command line: the flag whose value it is stands `before` it."""
    if _is_secret_flag(before):
        return WITHHELD
    if isinstance(item, str):
        flag, equals, _ = item.partition("=")
        if equals and _is_secret_flag(flag):
            return f"{flag}={WITHHELD}"
    return without_secrets(item)


def _is_secret_flag(item: Any) -> bool:
    return isinstance(item, str) and item.startswith("-") and names_secret(item)
