"""Which study a folder holds, and in which format it was written: the line in `study.sha256`.

A format says how a folder is laid out. New facts within it (a field of a cell, a file of its own) need no new format:
older results lack them and stay readable, and a reader that meets one it does not know refuses the cell by name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from difflib import unified_diff
from pathlib import Path

from specprof.errors import StoreError
from specprof.store.files import read_text, write

FORMAT = 1  # of the folder; a reader refuses what it does not know

_FILE = "study.sha256"
_LONGEST_VERSION = 40  # characters

Explain = Callable[[str], Sequence[str]]  # the study file as it was measured → what the new one changes, line by line


def is_written(root: Path) -> bool:
    """Whether the folder holds a study at all."""
    return os.path.isfile(root / _FILE)  # noqa: PTH113 - Path.is_file raises for a name the system refuses


def write_identity(root: Path, study_hash: str) -> None:
    """Make the folder that of a study, in this format."""
    write(root / _FILE, f"{study_hash} {FORMAT}\n".encode())


def require_known_format(root: Path) -> str:
    """The hash of the study the folder holds. StoreError, naming who wrote it, if its format is not this one."""
    words = read_text(root / _FILE).split()
    if len(words) != 2 or not words[1].isdecimal():
        raise StoreError(f"{root / _FILE}: names no hash and format. Restore it from where the folder came from.")
    found = int(words[1])
    if found == FORMAT:
        return words[0]
    age = "a newer" if found > FORMAT else "an older"
    remedy = "" if found > FORMAT else ", or measure anew into another folder (--results)"
    raise StoreError(
        f"{root}: was written by {age} specprof{_writer(root)}, in format {found}; this one reads format {FORMAT}. "
        f"Use that version{remedy}."
    )


def require_same_study(root: Path, study_text: str, study_hash: str, explain: Explain) -> None:
    """StoreError, with what was changed and what to do, if the folder holds another study than the hash's."""
    if require_known_format(root) == study_hash:
        return
    then = read_text(root / "study.yaml")
    changes = explain(then) or _changed_lines(then, study_text)
    if not changes:
        raise StoreError(
            f"{root}: its study.yaml is this study, but what was measured there is another one: the file was changed "
            "by hand afterwards, or another version of specprof measured it. Restore it, or give the study a new name."
        )
    lines = "\n".join(f"  {line}" for line in changes)
    raise StoreError(
        f"{root}: holds another study of this name. What was changed since it was measured:\n{lines}\n"
        "Give the changed study a new name (study: …) to keep both, or undo the change to go on."
    )


def _changed_lines(then: str, now: str) -> list[str]:
    return list(unified_diff(then.splitlines(), now.splitlines(), "as measured", "now", lineterm="", n=0))


def _writer(root: Path) -> str:
    """The version that wrote a folder, as its environment tells; empty where it does not."""
    try:
        told = json.loads((root / "environment.json").read_text(encoding="utf-8"))["specprof"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    named = isinstance(told, str) and told.isprintable() and len(told) <= _LONGEST_VERSION
    return f" ({told})" if named else ""
