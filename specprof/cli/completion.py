"""What a shell offers after TAB where a command wants a study file or a results folder. Light: every TAB runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

STUDY_FOLDERS = ("", "configs")
RESULTS_FOLDERS = ("results", "runs")
_HEAD = 4096  # characters of a file in which a study names itself


def study_files(incomplete: str) -> list[str]:
    """Study files here, in `configs/`, and in the folder being typed. None found: the shell offers any file."""
    return sorted(
        {
            str(path)
            for folder in (*STUDY_FOLDERS, _folder(incomplete))
            for path in _inside(folder)
            if path.suffix in (".yaml", ".yml") and str(path).startswith(incomplete) and _is_study(path)
        }
    )


def results_folders(incomplete: str) -> list[str]:
    """Results folders in `results/`, `runs/` and the folder being typed."""
    return sorted(
        {
            str(path)
            for folder in (*RESULTS_FOLDERS, _folder(incomplete))
            for path in _inside(folder)
            if str(path).startswith(incomplete) and (path / "study.sha256").is_file()
        }
    )


def _folder(incomplete: str) -> str:
    """The folder that is typed already: `mine/` of `mine/dem`."""
    return incomplete.rpartition("/")[0] or ("/" if incomplete.startswith("/") else "")


def _inside(folder: str) -> Iterator[Path]:
    try:
        yield from Path(folder).iterdir()
    except OSError:
        return


def _is_study(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            return any(line.startswith("study:") for line in file.read(_HEAD).splitlines())
    except (OSError, ValueError):
        return False
