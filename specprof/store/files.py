"""Files that are there whole or not at all, and what is said of a disk that does not take them.

A results folder may come from somebody else, and may hold links. No file is written through one, since where it leads
is for its author to say.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from specprof.errors import StoreError, reason

_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)  # some network file systems know no fsync of a folder
_ABANDONED_S = 3600.0  # no writer takes so long: a temporary file of that age is what an interrupted one left


def now() -> str:
    """Wall-clock time for people, ISO 8601 UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def sha256(content: bytes) -> str:
    """Hash of a file's content, in hex."""
    return hashlib.sha256(content).hexdigest()


def write(path: Path, content: bytes) -> None:
    """All or nothing: a reader sees the old file or the new one, whatever happens in between, a power cut included."""
    with writing(path), replacing(path) as handle:
        handle.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """What is written in the block takes the file's place at its end, all or nothing; a link there is replaced.

    The temporary file is new and this writer's alone, so that no link is followed and two writers never meet.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
            _remove_abandoned(path, before_s=os.fstat(handle.fileno()).st_mtime - _ABANDONED_S)
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _remove_abandoned(path: Path, before_s: float) -> None:
    """Drop what writers of this file left that were interrupted before that time, by the file system's own clock."""
    with suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            is_of_it = entry.name.startswith(f".{path.name}.") and entry.name.endswith("tmp")
            if is_of_it and entry.stat(follow_symlinks=False).st_mtime < before_s:
                Path(entry).unlink()


def write_json(path: Path, value: Any) -> None:
    """A value as JSON, all or nothing."""
    write(path, json.dumps(value, ensure_ascii=False, indent=1, default=str).encode())


def read_text(path: Path) -> str:
    """The text of a file. StoreError if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise StoreError(f"{path}: cannot be read ({reason(problem)}). Restore it, or remove it.") from None


def read_json(path: Path) -> Any:
    """The value a JSON file holds. StoreError if it holds none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise StoreError(f"{path}: cannot be read ({reason(problem)}). Restore it, or remove it.") from None


def sync(path: Path) -> None:
    """Return once the file's content is on the disk itself."""
    with path.open("rb") as handle:
        os.fsync(handle.fileno())


def sync_folder(path: Path) -> None:
    """Return once the folder's entries are on the disk itself: what was renamed into it is there after a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as problem:
        if problem.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """A disk that will not take what is written: say where, and that nothing sealed is lost."""
    try:
        yield
    except OSError as problem:
        raise StoreError(
            f"{place}: cannot be written ({problem.strerror or problem}). "
            "Sealed cells are safe; free space or choose another folder with --results, then run again."
        ) from None
