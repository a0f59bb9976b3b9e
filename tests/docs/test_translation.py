"""README.zh.md says what README.md says: the same parts, commands, numbers, links and pictures, in the same order."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import CHINESE, README, blocks, headings, links, prose

OWN_LINKS = {"README.md", "README.zh.md"}


def bare(text: str) -> str:
    """Code without its comments, which are translated."""
    return "\n".join(line for raw in text.splitlines() if (line := re.sub(r"(^|\s+)#.*$", "", raw).rstrip()))


def test_the_same_parts() -> None:
    assert [level for level, _ in headings(CHINESE)] == [level for level, _ in headings(README)]


def test_the_same_code() -> None:
    mine, theirs = ([(block.language, bare(block.text)) for block in blocks(page)] for page in (CHINESE, README))
    assert mine == theirs


def numbers(page: Path) -> list[list[str]]:
    """The numbers of each part of a page, in no order: languages put their words differently."""
    parts = re.split(r"^#+ ", re.sub(r"\]\([^)]*\)", "]", prose(page)), flags=re.MULTILINE)
    return [sorted(re.findall(r"(?<![\w.])\d+(?:[.,]\d+)*", part)) for part in parts]


def test_the_same_numbers() -> None:
    titles = ["(top)", *(text for _, text in headings(README))]
    for title, mine, theirs in zip(titles, numbers(CHINESE), numbers(README), strict=True):
        assert mine == theirs, title


def test_the_same_links_and_pictures() -> None:
    mine, theirs = ([link for link in links(page) if link.target not in OWN_LINKS] for page in (CHINESE, README))
    assert sorted(link.target for link in mine) == sorted(link.target for link in theirs)
    assert [link.target for link in mine if link.image] == [link.target for link in theirs if link.image]


def test_each_leads_to_the_other() -> None:
    assert "README.zh.md" in {link.target for link in links(README)}
    assert "README.md" in {link.target for link in links(CHINESE)}


def test_it_is_chinese() -> None:
    """Most letters of its prose are Han; English names and code stay."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", prose(CHINESE))
    han, latin = len(re.findall(r"[\u4e00-\u9fff]", text)), len(re.findall(r"[A-Za-z]", text))
    assert han > 1500 and han > latin
