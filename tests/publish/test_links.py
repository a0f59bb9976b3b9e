"""A results folder of somebody else's is told of without leaving it: no link is followed, no command of its run."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from specprof.errors import InputError, StoreError
from specprof.publish.files import folder_in, put
from specprof.records import EngineFacts, TextMarks, TextScores
from specprof.store import Store
from specprof.store.explained import Explanation, add_explanation
from tests.factory import make_record
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


def test_an_explanation_is_written_into_the_folder_alone(tmp_path: Path) -> None:
    root, outside = foreign(tmp_path), tmp_path / "outside"
    outside.write_text("mine", encoding="utf-8")
    (root / ".explained.json.tmp").symlink_to(outside)
    (root / "explained.json").symlink_to(tmp_path / "absent")
    path = add_explanation(root, Explanation("code", "forced", "a", 1, "it copies its prompt", "me", "2026-01-01"))
    assert not path.is_symlink() and not (tmp_path / "absent").exists()
    (root / ".lock").symlink_to(outside)
    code, seen = told("explain", root, "code/forced/ngram-k4/1", "it copies its prompt", "--by", "me")
    assert code == StoreError.exit_code
    assert ".lock: is a link or no file" in " ".join(seen.split())
    assert outside.read_text(encoding="utf-8") == "mine"


def test_a_lock_that_is_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(StoreError, match=r"\.lock: is a link or no file"), Store(tmp_path).lock():
        pass


def test_what_is_measured_goes_through_no_link_of_a_file(tmp_path: Path) -> None:
    """Folders may lie on another disk. No file in them that is somebody's is written, whatever its name."""
    root, record = tmp_path / "results", make_record()
    store, key = Store.create(root, "study: demo\n", "a" * 64), record.cell.key
    for name in ("cells", "scores", "quality", "launches"):
        (tmp_path / "disk" / name).mkdir(parents=True)
        (root / name).symlink_to(tmp_path / "disk" / name)
    mine = tmp_path / "mine"
    mine.write_text("mine", encoding="utf-8")
    for place in (f"scores/.{key}.parquet.tmp", f"quality/.{key}.json.tmp", f"quality/{key}.json", "launches/0"):
        (root / place).symlink_to(mine)
    (root / "cells" / key).symlink_to(tmp_path)
    with pytest.raises(StoreError, match="cannot be written"):
        store.seal(record)
    (root / "cells" / key).unlink()
    store.seal(record)
    store.seal_scores(key, 1, (TextScores("code-000", (-0.5,), (1,), ((-0.5,),)),))
    store.seal_quality(key, TextMarks({}, "digest", (True,) * len(record.requests), ("",) * len(record.requests)))
    number, _ = store.new_launch()
    store.write_facts(number, EngineFacts("sim", "simulated", "1", "m", "hash"))
    assert (number, mine.read_text(encoding="utf-8")) == (1, "mine")
    assert set(store.scores()) == set(store.marks()) == {key}
    assert store.facts()[1].model == "m"


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    contents = {letter * 200_000 for letter in (b"a", b"b")}
    with ThreadPoolExecutor(2) as threads:
        done = [threads.submit(put, tmp_path / "x.json", content) for _ in range(50) for content in contents]
        for each in done:
            each.result()
    assert (tmp_path / "x.json").read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_what_interrupted_writers_left_goes_and_what_another_writes_now_stays(tmp_path: Path) -> None:
    left, present, other = (tmp_path / f".{name}.tmp" for name in ("a.0123abcd", "a.89abcdef", "b.0123abcd"))
    for path in (left, present, other):
        path.write_bytes(b"half")
    for path in (left, other):
        os.utime(path, (0, 0))
    put(tmp_path / "a", b"whole")
    assert {path.name for path in tmp_path.iterdir()} == {"a", present.name, other.name}


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    put(tmp_path / "a", b"one")
    put(tmp_path / "a", b"two")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        put(tmp_path / "folder", b"three")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert folder_in(tmp_path, "folder") == tmp_path / "folder"
    assert {path.name for path in tmp_path.iterdir()} == {"a", "folder"}, "nothing half done is left"
