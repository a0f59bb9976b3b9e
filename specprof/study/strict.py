"""What every strict YAML file shares: where a key stands, the nearest valid key, an error on one line.

A file may come from anybody. What it could do to its reader is refused before it is built: aliases that stand for
millions of values, a key given twice, of which YAML would quietly keep the last, and whole numbers without end.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

from specprof.errors import LONGEST_SHOWN, InputError, reason, shortened

MOST = 2**31 - 1  # of anything counted: what engines and records keep in 32 bits
MOST_REPEATED = 10_000  # values that aliases may stand for; a study's own repeat a few dozen
MOST_ERRORS = 20  # of one file, told at once
LONGEST_MESSAGE = 800  # of one error, which may name several

# Beside its own errors PyYAML lets those of its converters through: `!!int ''`, `!!timestamp x`, `1:59:…` for ever.
_NOT_YAML = (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, RecursionError, OverflowError)
_MERGE = "tag:yaml.org,2002:merge"
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = LONGEST_SHOWN

Count = Annotated[int, Field(gt=0, le=MOST)]


class Strict(BaseModel):
    """Base of every section of a file: frozen, and no key it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, for whole numbers that a float can hold."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value: int = super().construct_yaml_int(node)
        float(value)  # raises OverflowError
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def yaml_document(text: str, name: str, otherwise: str = "is not valid YAML") -> tuple[Any, yaml.Node | None]:
    """What a YAML text holds, and its nodes for `find`. InputError, beginning with `otherwise`, where it is no YAML."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, None
        _require_plain(node)
        return loader.construct_document(node), node
    except _NOT_YAML as problem:
        raise InputError(f"{name}: {otherwise}: {reason(problem)}") from None


def yaml_mapping(text: str, name: str, otherwise: str) -> tuple[dict[Any, Any], yaml.Node]:
    """A file's mapping, and its nodes for `find`. InputError, with `otherwise` where the text holds no mapping."""
    data, node = yaml_document(text, name)
    if not isinstance(data, dict) or node is None:
        raise InputError(f"{name}: {otherwise}")
    return data, node


def _require_plain(root: yaml.Node) -> None:
    """Raise ValueError where aliases stand for too much, or for themselves, and where a key is given twice."""
    sizes: dict[int, int] = {}
    if _size(root, sizes, set()) - len(sizes) > MOST_REPEATED:
        raise ValueError(f"its aliases stand for more than {MOST_REPEATED:,} values; write out what is meant")


def _size(node: yaml.Node, sizes: dict[int, int], around: set[int]) -> int:
    """How many nodes this one stands for, aliases written out. `sizes`: of every node, once; `around`: those above."""
    if id(node) in around:
        raise ValueError(f"line {node.start_mark.line + 1}: an alias holds itself; write out what is meant")
    if id(node) not in sizes:
        around.add(id(node))
        sizes[id(node)] = 1 + sum(_size(inner, sizes, around) for inner in _inner(node))
        around.remove(id(node))
    return sizes[id(node)]


def _inner(node: yaml.Node) -> Iterator[yaml.Node]:
    """The nodes directly below one. Raises ValueError for a key that stands twice, and for half a surrogate pair."""
    if isinstance(node, yaml.ScalarNode):
        node.value.encode()  # what UTF-8 cannot hold can be neither stored nor sent
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        seen: set[tuple[str, str]] = set()
        for key, value in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE else None
            if name in seen:
                raise ValueError(f"line {key.start_mark.line + 1}: '{shortened(key.value)}' stands twice; keep one")
            if name is not None:
                seen.add(name)
            yield key
            yield value


def nearest(key: str, valid: Sequence[str]) -> str:
    """What the key was probably meant to be, among the keys valid in that place."""
    close = difflib.get_close_matches(key, valid, n=1, cutoff=0.5)
    if close:
        return f" Did you mean '{close[0]}'?"
    return f" Valid here: {', '.join(valid)}." if valid else ""


def find(node: yaml.Node, location: tuple[Any, ...]) -> tuple[int, int]:
    """The line of the deepest part of `location` that the file really holds, and how deep that is."""
    line = node.start_mark.line + 1
    for depth, part in enumerate(location):
        if isinstance(node, yaml.MappingNode):
            pairs = {str(key.value): (key, value) for key, value in node.value}
            if str(part) not in pairs:
                return line, depth
            key_node, node = pairs[str(part)]
            line = key_node.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            return line, depth
    return line, len(location)


def shown(given: object) -> str:
    """A value from a file as Python writes it, what is long or deep in it left out."""
    return _SHORT.repr(given)


def says(given: object) -> str:
    """` (it says 5)`: the value that is wrong, as far as it can be read."""
    return f" (it says {shown(given)})"


def together(lines: Iterable[str]) -> str:
    """The errors of a file, one a line, the first few of many."""
    told = iter(lines)
    shown = list(islice(told, MOST_ERRORS))
    more = sum(1 for _ in told)
    return "\n".join([*shown, *([f"… and {more} more."] if more else [])])
