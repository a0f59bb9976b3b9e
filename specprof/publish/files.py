"""How a published file reaches the disk: whole or not at all, and never outside the folder it is written into.

A results folder may come from somebody else, and may hold links. Nothing is written through one, since where it leads
is for its author to say.
"""

from __future__ import annotations

from pathlib import Path

from specprof.errors import InputError
from specprof.store.files import replacing


def put(path: Path, content: bytes) -> None:
    """Write a file; readers see the old one or the new one. A link in its place is replaced, never followed."""
    with replacing(path) as handle:
        handle.write(content)


def folder_in(parent: Path, name: str) -> Path:
    """A folder below another, made if need be. Raises InputError where a link stands in its place."""
    folder = parent / name
    if folder.is_symlink():
        raise InputError(f"{folder}: is a link to somewhere else, and nothing is written through it. Remove it.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
