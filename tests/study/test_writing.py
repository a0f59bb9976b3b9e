"""Studies written as files: each ready study, written and read again from elsewhere, is the study it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from specprof.study.config import Study
from specprof.study.paths import with_paths
from specprof.study.reading import load_study
from specprof.study.writing import study_text, write_study
from tests.running import ROOT

STUDIES = sorted(
    path for path in (ROOT / "configs").glob("*.yaml") if "\nstudy: " in f"\n{path.read_text(encoding='utf-8')}"
)


def files_of(study: Study) -> list[Path]:
    """Every file a study names."""
    found: list[Path] = []

    def note(named: Path, _what: str) -> Path:
        found.append(named.resolve())
        return named

    with_paths(study, note)
    return found


@pytest.mark.parametrize("config", STUDIES, ids=lambda path: path.stem)
def test_a_study_comes_back_from_its_file_as_it_was(config: Path, tmp_path: Path) -> None:
    study = load_study(config)
    write_study(study, tmp_path / "again.yaml")
    again = load_study(tmp_path / "again.yaml")
    assert again.content_hash() == study.content_hash()
    assert files_of(again) == files_of(study) != []
    assert again.verdicts == study.verdicts
    assert again.blocks == study.blocks
    assert [work.targets for work in again.workloads] == [work.targets for work in study.workloads]


def test_files_are_named_from_a_folder_above_both(tmp_path: Path) -> None:
    """So that a results folder can be moved together with its suites, and holds no path of this machine."""
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "code.jsonl").write_bytes((ROOT / "prompts" / "code.jsonl").read_bytes())
    study = Study.parse(
        {
            "study": "near",
            "engine": {"kind": "sim", "preset": "small"},
            "arms": {"off": {}},
            "workloads": [{"tag": "code", "suite": str(tmp_path / "prompts" / "code.jsonl")}],
            "protocols": {"forced": {"stop": "forced", "output_tokens": 8}},
        }
    )
    text = study_text(study, tmp_path / "results" / "near")
    assert "suite: prompts/code.jsonl" in text
    assert "null" not in text, "what was not set is not written"
