"""The settings that the installed vLLM knows, read from its source without importing it, and those that are mistyped.

A setting nobody knows may still be one of another version or of a plug-in: only what lies near a known one is taken for
a slip of the pen.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from specprof.study.config import Study
from specprof.study.engines import VllmEngine

_NEAR = 0.8  # of `difflib`: one or two letters of a word
_ENGINE_ARGS = ("engine/arg_utils.py", "entrypoints/openai/cli_args.py", "entrypoints/launchers/cli_args.py")
_SPECULATION = "config/speculative.py"


def mistyped(study: Study, spec: VllmEngine) -> Iterator[tuple[str, str, str]]:
    """Where a setting stands, the setting, and the one that was meant."""
    for name, meant in _slips(spec.args_by_name, engine_arguments()):
        yield "engine.args", name, meant
    for arm, settings in study.arms.items():
        for name, meant in _slips(settings.speculative_config or {}, speculative_settings()):
            yield f"arms.{arm}.speculative_config", name, meant


@cache
def engine_arguments() -> frozenset[str]:
    """Arguments of the server, with underscores; empty if the source cannot be read."""
    return frozenset(name for file in _ENGINE_ARGS for name in _fields(file, "Args"))


@cache
def speculative_settings() -> frozenset[str]:
    """Settings of a `speculative_config`; empty if the source cannot be read."""
    return frozenset(_fields(_SPECULATION, "SpeculativeConfig"))


def source(file: str) -> ast.Module | None:
    """A module of the installed vLLM; None where there is none that can be read."""
    spec = importlib.util.find_spec("vllm")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        try:
            return ast.parse((Path(place) / file).read_text(encoding="utf-8"))
        except (OSError, SyntaxError):
            continue
    return None


def _slips(settings: Mapping[str, object], known: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in settings:
        head = name.partition(".")[0]  # `compilation_config.mode` sets a part of one
        if head not in known and head.removeprefix("no_") not in known:
            for meant in get_close_matches(name, known, 1, _NEAR):
                yield name, meant


def _fields(file: str, of_classes: str) -> Iterator[str]:
    """The fields of the classes whose names end so."""
    tree = source(file)
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.ClassDef) and node.name.endswith(of_classes):
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    yield part.target.id
