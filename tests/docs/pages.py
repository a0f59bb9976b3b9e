"""The documentation taken apart: its pages, and the headings, links and blocks of code on each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.running import ROOT

README, CHINESE = ROOT / "README.md", ROOT / "README.zh.md"
MANUAL = sorted([README, ROOT / "examples" / "README.md", *(ROOT / "docs").rglob("*.md")])  # typed after, page by page
_WITH_PAGES = ("docs", "examples", "prompts", "results", "tests", "benchmarks")  # not what a run or an install leaves

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*)\]\((?P<target>[^()\s]+)\)")
_HEADING = re.compile(r"^(?P<level>#{1,6}) (?P<text>.+)$", re.MULTILINE)


def all_pages() -> list[Path]:
    """Every Markdown file of the checkout."""
    below = (path for folder in _WITH_PAGES for path in (ROOT / folder).rglob("*.md"))
    return sorted([*ROOT.glob("*.md"), *below])


def name_of(page: Path) -> str:
    """A page as a test calls it."""
    return str(page.relative_to(ROOT))


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, its text without the fence's indentation, and the line its fence is on."""

    language: str
    text: str
    line: int


def blocks(page: Path, *languages: str) -> list[Block]:
    """The fenced blocks of a page, in order; of these languages alone, if any is named."""
    text = page.read_text(encoding="utf-8")
    found = [
        Block(match["language"], re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE), line)
        for match in _FENCE.finditer(text)
        for line in [text.count("\n", 0, match.start()) + 1]
    ]
    return [block for block in found if not languages or block.language in languages]


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def headings(page: Path) -> list[tuple[int, str]]:
    """Level and text of each heading."""
    return [(len(match["level"]), match["text"]) for match in _HEADING.finditer(prose(page))]


def anchors(page: Path) -> set[str]:
    """What a link to a place on the page may name, by GitHub's rule."""
    seen: Counter[str] = Counter()
    found = set()
    for _, text in headings(page):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


@dataclass(frozen=True, slots=True)
class Link:
    """A link or a picture: what it names, and whether it is a picture."""

    target: str
    image: bool


def links(page: Path) -> Iterator[Link]:
    """Every link and picture of a page; a picture may stand inside a link."""
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    for match in _LINK.finditer(text):
        yield Link(match["target"], bool(match["image"]))
        for inner in re.finditer(r"!\[[^\]]*\]\(([^()\s]+)\)", match["text"]):
            yield Link(inner[1], image=True)


@dataclass(frozen=True, slots=True)
class Command:
    """A line somebody is told to type, and what it is said to print (None where nothing is said)."""

    line: str
    output: str | None
    place: str  # page:line, for whoever has to mend it


def commands(page: Path) -> Iterator[Command]:
    """The commands of a page in the order in which a reader meets them."""
    for block in blocks(page, "bash", "console"):
        place = f"{name_of(page)}:{block.line}"
        if block.language == "bash":
            lines = block.text.replace("\\\n", " ").splitlines()
            said = (re.sub(r"\s+#.*$", "", line).strip() for line in lines)
            yield from (Command(line, None, place) for line in said if line and not line.startswith("#"))
        else:
            for typed in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                line, _, output = typed.partition("\n")
                yield Command(line, output, place)
