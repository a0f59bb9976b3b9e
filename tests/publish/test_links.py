"""A results folder of somebody else's is told of without leaving it: no link is followed, no command of its run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from specprof.errors import InputError
from specprof.publish.files import folder_in, put
from tests.untrusted import told

ROOT = Path(__file__).parents[2]
NAMES = ("report.html", "report.md", "card.json", "card.md", "policy.yaml", "litellm.yaml")


def foreign(folder: Path) -> Path:
    """Four cells of the demo, in a folder that somebody else made."""
    root = folder / "foreign"
    root.mkdir()
    for name in ("study.yaml", "study.sha256", "environment.json"):
        shutil.copy(ROOT / "results" / "demo" / name, root / name)
    shutil.copytree(ROOT / "results" / "demo" / "launches", root / "launches")
    for cell in (ROOT / "results" / "demo" / "cells").glob("*-code-forced-n[18]-*"):
        shutil.copytree(cell, root / "cells" / cell.name)
    return root


def test_a_report_and_a_policy_leave_what_links_lead_to_as_it_is(tmp_path: Path) -> None:
    root, outside = foreign(tmp_path), tmp_path / "outside"
    outside.mkdir()
    for name in NAMES:
        (outside / name).write_text("mine", encoding="utf-8")
        (root / name).symlink_to(outside / name)
        (root / f".{name}.tmp").symlink_to(outside / name)
    study = root / "study.yaml"
    text = study.read_text(encoding="utf-8")
    ran = tmp_path / "ran"
    assert "tag: code, suite: prompts/code.jsonl" in text
    commanded = f"tag: code, quality: {{command: [touch, {ran}]}}, suite: prompts/code.jsonl"
    study.write_text(text.replace("tag: code, suite: prompts/code.jsonl", commanded), encoding="utf-8")
    for command in ("report", "policy"):
        code, seen = told(command, root)
        assert code == 0, seen
    assert {path.read_text(encoding="utf-8") for path in outside.iterdir()} == {"mine"}
    assert not any((root / name).is_symlink() for name in NAMES)
    assert not ran.exists(), "a study's command judges texts in a run alone"


def test_pictures_are_not_drawn_into_a_folder_that_a_link_leads_to(tmp_path: Path) -> None:
    root, outside = foreign(tmp_path), tmp_path / "outside"
    outside.mkdir()
    (outside / "holiday.png").write_bytes(b"mine")
    (root / "figures").symlink_to(outside)
    code, seen = told("report", root)
    assert code == InputError.exit_code
    assert "figures: is a link to somewhere else" in " ".join(seen.split())
    assert [path.name for path in outside.iterdir()] == ["holiday.png"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    put(tmp_path / "a", b"one")
    put(tmp_path / "a", b"two")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        put(tmp_path / "folder", b"three")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert folder_in(tmp_path, "folder") == tmp_path / "folder"
    assert {path.name for path in tmp_path.iterdir()} == {"a", "folder"}, "nothing half done is left"
