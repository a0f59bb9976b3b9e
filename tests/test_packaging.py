"""What a user of the wheel has: everything `specprof` needs to begin with, and the commit it was made from.

`make package` does the whole of it once: a fresh environment, a real install, a study on the simulator.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import specprof
from specprof.version import git_commit
from tests.running import ROOT

COMMIT = re.compile(r"[0-9a-f]{12}\+?")
HEAD = subprocess.run(
    ["git", "rev-parse", "HEAD"], check=False, capture_output=True, text=True, cwd=ROOT
).stdout.strip()
in_git = pytest.mark.skipif(not HEAD, reason="this tree is no git checkout, so nobody knows its commit")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the checkout, as `python -m build --wheel` does."""
    return Path(next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")))))


@pytest.fixture(scope="module")
def unpacked(wheel: Path) -> Path:
    """What pip puts into site-packages."""
    folder = wheel.parent / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def files(folder: Path) -> Iterator[str]:
    return (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def as_wheel_user(unpacked: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`specprof ARGUMENTS` of the unpacked wheel, in a folder where nothing of the checkout can be seen."""
    return subprocess.run(
        [sys.executable, "-m", "specprof.cli", *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
    )


def test_the_wheel_holds_all_that_runs_and_nothing_else(unpacked: Path) -> None:
    held = set(files(unpacked))
    package = {f"specprof/{name}" for name in files(ROOT / "specprof") if "__pycache__" not in name}
    starter = {
        f"specprof/starter/{kind}/{name}"
        for kind in ("configs", "prompts", "examples")
        for name in files(ROOT / kind)
        if "__pycache__" not in name and not name.endswith(".png")
    }
    info = {name for name in held if name.startswith(f"specprof-{specprof.__version__}.dist-info/")}
    assert held == package | starter | info | ({"specprof/commit.txt"} if HEAD else set())
    assert "specprof/py.typed" in held
    assert f"specprof-{specprof.__version__}.dist-info/licenses/LICENSE" in info


def test_the_wheel_names_its_commands(unpacked: Path) -> None:
    told = (unpacked / f"specprof-{specprof.__version__}.dist-info" / "entry_points.txt").read_text()
    assert "[console_scripts]\nspecprof = specprof.cli:main\n" in told
    assert "specprof_rehearsal = specprof.engine.rehearsal:register" in told


def test_an_sdist_builds_the_same_wheel(unpacked: Path, tmp_path: Path) -> None:
    """There is no git in an sdist: it brings its commit along."""
    sdist = next(SdistBuilder(str(ROOT)).build(directory=str(tmp_path)))
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / f"specprof-{specprof.__version__}"
    wheel = next(WheelBuilder(str(source)).build(directory=str(tmp_path / "wheel")))
    with zipfile.ZipFile(wheel) as archive:
        assert set(archive.namelist()) == set(files(unpacked))
        if HEAD:
            assert archive.read("specprof/commit.txt") == (unpacked / "specprof" / "commit.txt").read_bytes()


@in_git
def test_the_version_names_the_commit_of_a_wheel(unpacked: Path, tmp_path: Path) -> None:
    told = as_wheel_user(unpacked, "--version", cwd=tmp_path)
    (commit,) = COMMIT.findall((unpacked / "specprof" / "commit.txt").read_text())
    assert told.stdout == f"specprof {specprof.__version__} ({commit})\n"


@in_git
def test_the_version_names_the_commit_of_a_checkout() -> None:
    commit = git_commit()
    assert commit is not None
    assert COMMIT.fullmatch(commit)
    assert HEAD.startswith(commit.rstrip("+"))


@in_git
def test_where_nobody_knows_the_commit_the_version_says_so(unpacked: Path, tmp_path: Path) -> None:
    commit = unpacked / "specprof" / "commit.txt"
    known = commit.read_bytes()
    commit.unlink()
    try:
        told = as_wheel_user(unpacked, "--version", cwd=tmp_path)
    finally:
        commit.write_bytes(known)
    assert told.stdout == f"specprof {specprof.__version__} (commit unknown)\n"


def test_a_wheel_user_begins_with_the_ready_studies(unpacked: Path, tmp_path: Path) -> None:
    made = as_wheel_user(unpacked, "init", "mine", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "mine" / "prompts" / "code.jsonl").read_bytes() == (ROOT / "prompts" / "code.jsonl").read_bytes()
    planned = as_wheel_user(unpacked, "plan", "mine/configs/seed-machine.yaml", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    again = as_wheel_user(unpacked, "init", "mine", cwd=tmp_path)
    assert again.returncode == 2
    assert "mine/configs: exists already. Name a new folder" in again.stderr


def test_a_study_whose_suite_comes_with_specprof_says_where_to_get_it(unpacked: Path, tmp_path: Path) -> None:
    """It is not taken silently: a suite of one's own, mislaid, would be measured as ours."""
    (tmp_path / "study.yaml").write_text(
        "study: own\nengine: {kind: sim, preset: small}\narms: {'off': {}}\n"
        "workloads: [{tag: code, suite: prompts/code.jsonl}]\nprotocols: {forced: {stop: forced, output_tokens: 8}}\n"
    )
    refused = as_wheel_user(unpacked, "plan", "study.yaml", cwd=tmp_path)
    assert refused.returncode == 2
    assert "suite prompts/code.jsonl does not exist" in refused.stderr
    assert "'specprof init' copies it here." in refused.stderr
    assert as_wheel_user(unpacked, "init", cwd=tmp_path).returncode == 0
    assert as_wheel_user(unpacked, "plan", "study.yaml", cwd=tmp_path).returncode == 0
