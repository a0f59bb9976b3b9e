"""Which specprof this is: the version, and the commit it was made from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import specprof

COMMIT_FILE = "commit.txt"  # written into a built package by hatch_build.py; a checkout has none

_PACKAGE = Path(specprof.__file__).resolve().parent


def version_line() -> str:
    """What `specprof --version` says: `specprof 0.1.0 (3f2a91bc77d0)`."""
    return f"specprof {specprof.__version__} ({git_commit() or 'commit unknown'})"


def git_commit() -> str | None:
    """Commit that specprof was made from, 12 digits, with `+` if files were changed since; None where nobody knows.

    Of a checkout git tells it; a package that was built from one carries it along.
    """
    top = _git("rev-parse", "--show-toplevel")
    if top is None or Path(top) / "specprof" != _PACKAGE:
        return _built_from()  # installed as a package, perhaps inside a checkout of something else
    commit = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", str(_PACKAGE))
    return commit and commit + ("+" if changed else "")


def _built_from() -> str | None:
    try:
        return (_PACKAGE / COMMIT_FILE).read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def _git(*arguments: str) -> str | None:
    """What git answers, None where it has no answer."""
    command = ["git", "-C", str(_PACKAGE), *arguments]
    try:
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
