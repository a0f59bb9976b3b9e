"""The study file: YAML in, a checked, frozen `Study` out.

Unknown or mistyped keys are refused with file, line, key and the nearest key that would have been valid, because a
key that is silently ignored is a measurement of something else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from specprof.errors import InputError, shortened
from specprof.study.attach import AttachEngine
from specprof.study.config import (
    Arm,
    HubDataset,
    PrefillProbe,
    Protocol,
    SamplingSpec,
    Selector,
    Study,
    VerdictSpec,
    Workload,
)
from specprof.study.engines import SimEngine, VllmEngine
from specprof.study.interference import InterferenceSpec
from specprof.study.load import Command, Goodput, Rates, Targets, Trace
from specprof.study.paths import with_paths
from specprof.study.starter import is_in_starter
from specprof.study.strict import LONGEST_MESSAGE, Strict, find, nearest, says, together, yaml_mapping
from specprof.study.withheld import secret_among


def load_study(path: Path) -> Study:
    """Read and check a study file; find its suites from the file's folder upwards, then from the working folder.

    Raises InputError naming file, line, key and what to write instead.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise InputError(f"{path}: cannot be read ({problem}). Give the path of a study file in YAML.") from None
    return _with_resolved_paths(parse_study(text, str(path)), path)


def parse_study(text: str, name: str) -> Study:
    """Check the text of a study file; `name` stands in its errors. Suites need not exist: a report reads no prompts."""
    data, node = yaml_mapping(text, name, "holds no study. It must be a mapping that begins with 'study: NAME'.")
    for place in (("arms",), ("engine", "arms")):
        section = data if len(place) == 1 else data.get("engine")
        arms = section.get("arms") if isinstance(section, dict) else None
        if isinstance(arms, dict) and (False in arms or True in arms):
            where = f"{name}:{find(node, place)[0]}: {'.'.join(place)}"
            raise InputError(f'{where}: YAML reads a bare off or on as a truth value; write "off": in quotes.')
    try:
        return Study.model_validate(data)
    except ValidationError as problem:
        raise InputError(together(_explain(name, node, problem))) from None


def study_of(source: str | Mapping[str, Any], name: str = "study") -> Study:
    """Check the text of a study file, or a mapping of the same keys; find its files from the working folder upwards.

    Raises InputError naming `name`, key and what to write instead.
    """
    if isinstance(source, str):
        return _with_resolved_paths(parse_study(source, name), Path(name))
    try:
        study = Study.model_validate(dict(source))
    except ValidationError as problem:
        node = yaml.compose(json.dumps({**source}, default=str), Loader=yaml.SafeLoader) or yaml.MappingNode("", [])
        raise InputError(together(_explain(name, node, problem, with_lines=False))) from None
    return _with_resolved_paths(study, Path(name))


def _explain(name: str, node: yaml.Node, problem: ValidationError, *, with_lines: bool = True) -> Iterator[str]:
    for error in _causes(problem):
        location = _without_kinds(error["loc"])
        line, depth = find(node, location)
        where = f"{name}:{line}" if with_lines else name
        if error["type"] not in ("extra_forbidden", "missing"):
            location = location[:depth]  # what follows are the types pydantic tried
        key = shortened(".".join(map(str, location)))
        if error["type"] == "extra_forbidden":
            yield f"{where}: unknown key '{key}'.{nearest(str(location[-1]), _valid_keys(location[:-1]))}"
        elif error["type"] == "missing":
            yield f"{where}: '{key}' is missing. Add it."
        elif error["type"] in ("union_tag_invalid", "union_tag_not_found"):
            kinds = _kinds(Rates, Goodput, Trace) if location[-1:] == ("load",) else _kinds(*_ENGINES)
            alone = " Only workers: and backend: may stand without one." if location == ("load",) else ""
            yield f"{where}: {key}: kind must be one of {', '.join(kinds)}.{alone}"
        else:
            given = error.get("input")
            shown = "" if isinstance(given, dict | list | tuple | BaseModel) else says(given)
            message = shortened(error["msg"].removeprefix("Value error, "), LONGEST_MESSAGE)
            if isinstance(given, bool) and error["type"] == "string_type":
                message, shown = "YAML reads a bare on, off, yes or no as a truth value; write it in quotes", ""
            if error["type"] == "string_pattern_mismatch":
                message = "use letters, digits and . _ - only, a letter or digit first"
            yield f"{where}: {key or 'study'}: {message}{shown}"


def _causes(problem: ValidationError) -> list[ErrorDetails]:
    """The errors, without those of lists that seem too short for nothing but the wrong items in them."""
    found = problem.errors()
    places = [error["loc"] for error in found]

    def follows(error: ErrorDetails) -> bool:
        where = error["loc"]
        return error["type"] == "too_short" and any(p[: len(where)] == where for p in places if p != where)

    return [error for error in found if not follows(error)]


_ENGINES: tuple[type[Strict], ...] = (VllmEngine, SimEngine, AttachEngine)
_CHOSEN = ("engine", "load", "quality")  # sections of several kinds


def _without_kinds(location: tuple[Any, ...]) -> tuple[Any, ...]:
    """The place without the kinds that were chosen, which pydantic names there and which stand in no file."""
    steps = zip(location, (None, *location), (None, None, *location), strict=False)
    return tuple(
        part
        for part, before, section in steps
        if before not in _CHOSEN or section in ("arms", "protocols")  # there it is a name that the user chose
    )


def _kinds(*models: type[Strict]) -> list[str]:
    return [get_args(model.model_fields["kind"].annotation)[0] for model in models]


_SECTIONS: Mapping[str, tuple[type[Strict], ...]] = {
    "engine": _ENGINES,
    "arms": (Arm,),
    "workloads": (Workload,),
    "hub": (HubDataset,),
    "protocols": (Protocol,),
    "verdicts": (VerdictSpec,),
    "numerator": (Selector,),
    "denominator": (Selector,),
    "prefill": (PrefillProbe,),
    "interference": (InterferenceSpec,),
    "load": (Rates, Goodput, Trace),
    "targets": (Targets,),
    "quality": (Command,),
}


def _valid_keys(parents: tuple[Any, ...]) -> list[str]:
    if parents[:1] in (("arms",), ("protocols",)):
        parents = (*parents[:1], *parents[2:])  # what follows is a name the user chose
    named = [part for part in parents if isinstance(part, str)]
    if not named:
        return list(Study.model_fields)
    if named[-1] == "sampling":
        return list(SamplingSpec.model_fields)
    models = next((_SECTIONS[part] for part in reversed(named) if part in _SECTIONS), ())
    return sorted({key for model in models for key in model.model_fields})


def _require_no_secret(study: Study, path: Path) -> None:
    """Older results may hold one, and stay readable; nothing new is measured with it."""
    sections = {f"arms.{name}.speculative_config": arm.speculative_config for name, arm in study.arms.items()}
    if isinstance(study.engine, VllmEngine):
        sections |= {"engine.args": study.engine.args, "engine.env": study.engine.env}
    for place, values in sections.items():
        if (found := secret_among(values)) is not None:
            raise InputError(
                f"{path}: {place}.{found}: holds a secret, and a study file is kept with its results. Export it in the "
                "shell that runs specprof, which the engine inherits, and remove it from the file."
            )


def _with_resolved_paths(study: Study, path: Path) -> Study:
    """Suites, traces and certificates may be named from the study's folder, one above it, or the working folder."""
    _require_no_secret(study, path)
    bases = (*path.resolve().parents, Path.cwd())

    def found(named: Path, what: str) -> Path:
        places = [named] if named.is_absolute() else [base / named for base in bases]
        for place in places:
            if os.path.isfile(place):  # noqa: PTH113 - unlike Path.is_file, False for a name the system refuses
                return place
        hint = " 'specprof init' copies it here." if is_in_starter(named) else ""
        told = shortened(str(named), LONGEST_MESSAGE)
        raise InputError(f"{path}: {what} {told} does not exist (looked from {path.resolve().parent} upwards).{hint}")

    return with_paths(study, found)
