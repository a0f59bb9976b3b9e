"""What a shell offers after TAB, asked as its completion script asks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specprof.cli.completion import results_folders, study_files


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with studies, files that are none, and results."""
    for name in ("mine.yaml", "configs/demo.yaml", "configs/deep.yml", "other/far.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("# ours\nstudy: some\n", encoding="utf-8")
    (tmp_path / "configs" / "prices.yaml").write_text("options: []\n", encoding="utf-8")
    (tmp_path / "configs" / "binary.yaml").write_bytes(b"study: \xff\xfe")
    for name in ("results/demo", "runs/first", "elsewhere/old"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "study.sha256").touch()
    (tmp_path / "results" / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("", ["configs/deep.yml", "configs/demo.yaml", "mine.yaml"]),
        ("configs/de", ["configs/deep.yml", "configs/demo.yaml"]),
        ("other/", ["other/far.yaml"]),
        ("nowhere/", []),
    ],
)
def test_study_files_are_offered(typed: str, offered: list[str], workplace: Path) -> None:
    assert study_files(typed) == offered


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("", ["results/demo", "runs/first"]), ("res", ["results/demo"]), ("elsewhere/", ["elsewhere/old"])],
)
def test_results_folders_are_offered(typed: str, offered: list[str], workplace: Path) -> None:
    assert results_folders(typed) == offered


def test_an_absolute_path_is_completed_too(workplace: Path) -> None:
    assert study_files(f"{workplace}/other/f") == [f"{workplace}/other/far.yaml"]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("specprof pl", ["plan"]),
        ("specprof report --fo", ["--format"]),
        ("specprof run ", ["configs/deep.yml", "configs/demo.yaml", "mine.yaml"]),
        ("specprof compare results/", ["results/demo"]),
    ],
)
def test_bash_is_told(line: str, offered: list[str], workplace: Path) -> None:
    asked = {"_SPECPROF_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    command = "import sys; sys.argv[0] = 'specprof'; from specprof.cli import main; main()"
    told = subprocess.run(
        [sys.executable, "-c", command], check=True, capture_output=True, text=True, env={**os.environ, **asked}
    )
    assert told.stdout.split() == offered
