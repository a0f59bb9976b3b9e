"""What comes with specprof to begin with: ready studies, the prompt suites they name, and examples."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import specprof
from specprof.errors import InputError

KINDS = ("configs", "prompts", "examples")


def starter_folder() -> Path:
    """The folder that holds `KINDS`: inside an installed package, or the checkout itself."""
    package = Path(specprof.__file__).resolve().parent
    packed = package / "starter"
    return packed if packed.is_dir() else package.parent


def is_in_starter(named: Path) -> bool:
    """Whether a file of that name comes with specprof: `prompts/code.jsonl` does."""
    if not named.parts or named.parts[0] not in KINDS:
        return False
    return os.path.isfile(starter_folder() / named)  # noqa: PTH113 - Path.is_file raises for a name the system refuses


def copy_starter(folder: Path) -> list[Path]:
    """Copy studies, suites and examples into `folder`, making it if need be; the folders made.

    Raises InputError where one of them stands already, before anything is copied, or where none can be written.
    """
    source = starter_folder()
    missing = [kind for kind in KINDS if not (source / kind).is_dir()]
    if missing:
        raise InputError(f"{source}: holds no {', '.join(missing)}. Install specprof anew, or use a checkout of it.")
    made = [folder / kind for kind in KINDS]
    for target in made:
        if target.exists():
            raise InputError(f"{target}: exists already. Name a new folder, e.g. specprof init studies.")
    try:
        for kind, target in zip(KINDS, made, strict=True):
            shutil.copytree(source / kind, target, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
    except OSError as problem:
        raise InputError(f"{folder}: cannot be written ({problem}). Name a folder that can be.") from None
    return made
