"""What the documentation tells people to type works."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from specprof.study.reading import parse_study
from tests.running import ROOT, specprof

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
# Typed by `make test` and CI themselves, or in need of the network, a GPU or many minutes.
NOT_RUN = ("make ", "pip install", "specprof run my-", "specprof doctor my-", "python -m pip", "git clone")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def commands() -> list[tuple[str, str]]:
    lines = [
        (page.name, line.split("  #")[0].strip())
        for page in PAGES
        for block in blocks(page, "bash")
        for line in block.replace("\\\n", " ").splitlines()
        if line.strip() and not line.startswith("#")
    ]
    return [(page, line) for page, line in lines if not line.startswith(NOT_RUN)]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the checkout, with the README's example study in it, where commands may write."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("prompts", "configs", "examples", "tests"):
        (folder / name).symlink_to(ROOT / name)
    for results in (ROOT / "results").glob("*/study.yaml"):
        target = folder / "results" / results.parent.name
        target.parent.mkdir(exist_ok=True)
        shutil.copytree(results.parent, target)
    (folder / "my-draft.yaml").write_text(next(b for b in blocks(ROOT / "README.md", "yaml") if "my-draft" in b))
    return folder


def test_the_documentation_has_commands() -> None:
    assert len(commands()) >= 2


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_run(page: str, line: str, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *arguments = shlex.split(line)
    assert program == "specprof", f"{page}: {line} is neither run nor named in NOT_RUN"
    if arguments[:2] == ["report", "results/my-draft"]:
        pytest.skip("reports on the study the reader has just run on a GPU")
    monkeypatch.chdir(workplace)
    done = specprof(*arguments)
    assert done.returncode == 0, f"{page}: {line}\n{done.stderr}"


def test_the_studies_in_the_documentation_are_valid() -> None:
    for page in PAGES:
        for block in blocks(page, "yaml"):
            if re.search(r"^study:", block, flags=re.MULTILINE):
                parse_study(block, page.name)


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_no_placeholder_was_left() -> None:
    for page in PAGES:
        assert "<!--" not in page.read_text(encoding="utf-8"), page.name
