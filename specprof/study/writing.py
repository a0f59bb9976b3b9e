"""A study as a file: what was set, in YAML, with its suites and traces named from where the file lies."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from specprof.errors import InputError
from specprof.study.config import Study
from specprof.study.paths import with_paths


def write_study(study: Study, path: Path) -> None:
    """Write a study file. Raises InputError where a file stands already, or none can be written."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(study_text(study, path.parent))
    except FileExistsError:
        raise InputError(f"{path}: exists already. Name a new file, or remove that one.") from None
    except OSError as problem:
        raise InputError(f"{path}: cannot be written ({problem}). Name a file in a folder that exists.") from None


def study_text(study: Study, folder: Path) -> str:
    """A study file in YAML that loads as this study from `folder`: what its author set, files named from there."""
    placed = with_paths(study, lambda named, _: _from(folder, named))
    said = placed.model_dump(mode="json", exclude_unset=True)
    told = {key: value for key, value in said.items() if value not in (None, [])}  # nothing is what a file leaves out
    return yaml.safe_dump(told, sort_keys=False, allow_unicode=True, width=120)


def _from(folder: Path, named: Path) -> Path:
    """A file as a study in `folder` names it: relative to a folder above both, absolute where there is none."""
    path = Path(os.path.abspath(named))  # noqa: PTH100 - resolve would follow links out of the project
    for base in (folder.resolve(), *folder.resolve().parents):
        if base != Path(base.anchor) and path.is_relative_to(base):
            return path.relative_to(base)
    return path
