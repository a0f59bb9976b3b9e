"""Links lead somewhere, pictures exist, and no page stands apart."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pytest

from tests.docs.pages import MANUAL, all_pages, anchors, links, name_of, prose
from tests.running import ROOT

DOCS = ROOT / "docs"
PICTURES = (".png", ".svg")


@pytest.mark.parametrize("page", all_pages(), ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        target, _, anchor = unquote(link.target).partition("#")
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        found = (page.parent / target) if target else page
        assert found.exists(), f"{name_of(page)} links to {link.target}"
        if link.image:
            assert found.suffix in PICTURES and found.stat().st_size > 0, f"{name_of(page)} shows {link.target}"
        if anchor:
            assert anchor in anchors(found), (
                f"{name_of(page)} links to {link.target}; there are {sorted(anchors(found))}"
            )


def test_a_link_to_nowhere_would_be_found() -> None:
    """The finder sees plain links, pictures, pictures inside links and anchors, and nothing inside code."""
    page = ROOT / "README.md"
    assert any(link.image for link in links(page))
    assert {"docs/definitions.md", "docs/statistics.md"} <= {link.target for link in links(page)}
    assert "how-to-read-it" in anchors(page)


def test_every_page_is_reached_from_the_table_of_contents() -> None:
    reached: set[Path] = set()
    waiting = [DOCS / "README.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        targets = (unquote(link.target).partition("#")[0] for link in links(page))
        near = ((page.parent / target).resolve() for target in targets if target and "://" not in target)
        waiting += [found for found in near if found.is_relative_to(DOCS)]
    assert set(DOCS.rglob("*.md")) <= reached
    assert any(link.target == "docs/README.md" for link in links(ROOT / "README.md"))


def test_drawings_are_whole_and_say_what_they_show() -> None:
    for drawing in DOCS.rglob("*.svg"):
        root = ET.parse(drawing).getroot()
        names = {child.tag.rpartition("}")[2]: (child.text or "").strip() for child in root}
        assert names["title"] and names["desc"], drawing.name


def test_no_placeholder_was_left() -> None:
    for page in MANUAL:
        text = prose(page)
        for mark in ("TODO", "TBD", "XXX", "lorem"):
            assert mark not in text, name_of(page)


def test_what_a_benchmark_writes_into_a_page_has_been_written() -> None:
    """Comments are the ends of such parts, `<!-- name -->` and `<!-- /name -->`, with something between them."""
    for page in MANUAL:
        text = page.read_text(encoding="utf-8")
        parts = re.findall(r"<!-- (\w+) -->(.*?)<!-- /\1 -->", text, flags=re.DOTALL)
        assert text.count("<!--") == 2 * len(parts), name_of(page)
        assert all(written.strip() for _, written in parts), f"{name_of(page)}: make bench writes what is missing"


def test_the_front_page_is_short() -> None:
    for name in ("README.md", "README.zh.md"):
        assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) < 200, name
