"""A card.json from elsewhere: any bytes are a study that can be published harmlessly, or are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specprof.errors import InputError
from specprof.publish.site import publish
from specprof.publish.site_studies import load
from tests.fuzz.conftest import fuzz
from tests.fuzz.hostile import any_bytes, as_json, deep, mutated, or_refused

ROOT = Path(__file__).parents[2]
CARD = (ROOT / "results" / "demo" / "card.json").read_bytes()


def small(card: Any) -> Any:
    """The card with the cells, gains and headlines of one content alone."""

    def kept(items: list[Any]) -> list[Any]:
        return [item for item in items if item.get("tag") in (None, "code") and item.get("concurrency", 1) in (1, 8)]

    return {
        name: kept(part) if isinstance(part, list) and part and isinstance(part[0], dict) else part
        for name, part in card.items()
    }


SMALL = small(json.loads(CARD))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "card.json"


def published(file: Path) -> bool:
    """Whether a card is put on a page; what is written then is whole, and of the page's own folder alone."""
    studies = or_refused(lambda: load([file]))
    if studies is None:
        return False
    site = file.parent / "site"
    publish(studies, site)
    page = (site / "index.html").read_text(encoding="utf-8")
    assert not any(char in page for char in "\x00\x1b\r\x9b\u202e\u2066")
    for made in site.rglob("*.json"):
        json.loads(made.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert {path.name for path in file.parent.iterdir()} == {"site", "card.json"}
    return True


def test_the_card_that_is_mutated_is_published(file: Path) -> None:
    file.write_text(json.dumps(SMALL), encoding="utf-8")
    assert published(file)


@fuzz
@given(data=st.data())
def test_anything_anywhere_in_a_card_is_published_or_refused(data: st.DataObject, file: Path) -> None:
    file.write_text(as_json(data.draw(mutated(SMALL))), encoding="utf-8")
    published(file)


@fuzz
@given(content=any_bytes(CARD[:3000]))
def test_any_bytes_are_published_or_refused(content: bytes, file: Path) -> None:
    file.write_bytes(content)
    published(file)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"environment": {"deep": deep(200)}}, "nests deeper than 64 levels"),
        ({"environment": {"none": float("nan")}}, "is not JSON"),
        ({"study": "half \ud800 of a pair"}, "is not JSON"),
    ],
)
def test_what_no_page_can_hold_is_refused_by_name(change: dict[str, Any], why: str, file: Path) -> None:
    file.write_text(json.dumps({**SMALL, **change}), encoding="utf-8")
    with pytest.raises(InputError, match=why):
        load([file])


@pytest.mark.parametrize(
    "name", ["../../evil", "/etc/evil", "..", "a/../../b", "C:\\evil", "\x00", "badges", "x" * 5000]
)
def test_no_name_of_a_study_leads_out_of_the_page_s_folder(name: str, file: Path) -> None:
    file.write_text(json.dumps({**SMALL, "study": name}), encoding="utf-8")
    assert published(file)
