"""What every strict YAML file shares: where a key stands, the nearest valid key, an error on one line."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from specprof.errors import InputError

# Beside its own errors PyYAML lets those of its converters through: `!!int ''`, `!!timestamp x`, `1:59:…` without end.
_NOT_YAML = (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, RecursionError, OverflowError)


class Strict(BaseModel):
    """Base of every section of a file: frozen, and no key it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def yaml_mapping(text: str, name: str, otherwise: str) -> tuple[dict[Any, Any], yaml.Node]:
    """A file's mapping, and its nodes for `find`. InputError, with `otherwise` where the text holds no mapping."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except _NOT_YAML as problem:
        raise InputError(f"{name}: is not valid YAML: {one_line(problem)}") from None
    if not isinstance(data, dict) or node is None:
        raise InputError(f"{name}: {otherwise}")
    return data, node


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


def one_line(problem: Exception) -> str:
    """An error's text without its line breaks."""
    return " ".join(str(problem).split())
