"""Build hook: a wheel or sdist carries the git commit it was made from, which `specprof --version` then tells."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMMIT_FILE = "specprof/commit.txt"  # read by specprof/version.py


class CommitHook(BuildHookInterface[Any]):
    """Adds `specprof/commit.txt` to what is built. The checkout stays as it is; an editable install has git."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before each build; `version` is that of the target, e.g. "editable"."""
        root = Path(self.root)
        if version == "editable" or (root / COMMIT_FILE).is_file():  # an sdist has it already
            return
        commit = commit_of(root)
        if commit is None:
            return
        with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
            file.write(f"{commit}\n")
        self._written = Path(file.name)
        build_data["force_include"][file.name] = COMMIT_FILE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called after each build."""
        del version, build_data, artifact_path
        written = getattr(self, "_written", None)
        if written is not None:
            written.unlink(missing_ok=True)


def commit_of(root: Path) -> str | None:
    """The commit of the checkout at `root`, with `+` if a packaged file was changed; None if it is no checkout."""
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top) != root.resolve():
        return None  # unpacked somewhere inside a checkout of something else
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "specprof")
    return commit and commit + ("+" if changed else "")


def _git(root: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), *arguments], check=False, capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
