"""What somebody said about a gate that asks for an explanation (gate 12, "too good"): `explained.json` of a study.

A list that only grows. The measurement does not change by it, nor does the hash of the study.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from specprof.errors import StoreError
from specprof.store.files import read_json, write_json

FILE = "explained.json"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a cell's draft is hardly ever wrong, in whose words, and since when (ISO 8601 UTC)."""

    tag: str
    protocol: str
    arm: str
    concurrency: int
    text: str
    author: str
    written_at: str

    @property
    def cell(self) -> tuple[str, str, str, int]:
        """The cell it speaks of."""
        return self.tag, self.protocol, self.arm, self.concurrency


def read_explanations(root: Path) -> tuple[Explanation, ...]:
    """Every explanation of a study's folder, the oldest first. StoreError where the file is none of ours."""
    path = root / FILE
    if not path.exists():
        return ()
    told = read_json(path)
    if not isinstance(told, list):
        raise StoreError(f"{path}: holds no list of explanations. Restore it, or remove it.")
    return tuple(_explanation(path, entry) for entry in told)


def add_explanation(root: Path, explanation: Explanation) -> Path:
    """Write one more explanation down; returns the file. What was said before stays."""
    path = root / FILE
    write_json(path, [asdict(known) for known in (*read_explanations(root), explanation)])
    return path


def _explanation(path: Path, entry: Any) -> Explanation:
    kinds = {field.name: int if field.name == "concurrency" else str for field in fields(Explanation)}
    if not isinstance(entry, dict) or set(entry) != set(kinds):
        raise StoreError(f"{path}: an explanation has the keys {', '.join(kinds)}. Restore it, or remove it.")
    for name, kind in kinds.items():
        if not isinstance(entry[name], kind) or isinstance(entry[name], bool):
            raise StoreError(f"{path}: {name} of an explanation is no {kind.__name__}. Restore it, or remove it.")
    return Explanation(**entry)
