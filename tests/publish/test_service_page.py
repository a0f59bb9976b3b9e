"""The service view in a real browser: nothing runs, nothing is fetched, and both languages are whole."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from specprof.publish.report import write_report
from tests.publish.served import make_both, make_hostile, make_served
from tests.publish.test_language import HAN, NAMES
from tests.publish.test_report_page import DESKTOP, PHONE, Looking, Page, browser_page, has_chinese_font
from tests.publish.test_site import needs_chromium

pytestmark = needs_chromium
HEADINGS = "[...document.querySelectorAll('h2, #service thead th, #frontier thead th, nav a')].map((e) => e.innerText)"
WIDTHS = "[document.documentElement.scrollWidth, innerWidth]"


def looked_at(address: str, profile: Path, looking: Looking, size: tuple[int, int] = DESKTOP) -> Page:
    async def whole() -> Page:
        async with browser_page(profile) as page:
            await page.open(address, size)
            await looking(page)
            return page

    return asyncio.run(asyncio.wait_for(whole(), 120))


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_open_and_closed_loops_render_without_complaint_or_request(tmp_path: Path, size: tuple[int, int]) -> None:
    address = write_report(make_both(), tmp_path / "study").as_uri()

    async def looking(page: Page) -> None:
        width = await page.evaluate(WIDTHS)
        assert width[0] <= width[1], "the page scrolls sideways"
        assert await page.evaluate("document.querySelectorAll('#service img').length") == 3
        assert await page.evaluate("document.querySelectorAll('#frontier img').length") == 2
        assert not [text for text in await page.evaluate(HEADINGS) if HAN.search(text)]

    page = looked_at(address, tmp_path / "profile", looking, size)
    assert page.complaints == []
    assert {url for url in page.requests if not url.startswith("data:")} == {address}


def test_open_loops_alone_are_told_in_chinese(tmp_path: Path) -> None:
    if not has_chinese_font():
        pytest.skip("no Chinese font here: apt-get install fonts-noto-cjk")
    page = write_report(make_served(), tmp_path / "study")

    async def looking(page: Page) -> None:
        headings: list[Any] = await page.evaluate(HEADINGS)
        names = NAMES["heading"] | {""}
        assert len(headings) > 30
        assert {first for text in headings if not HAN.search(first := text.split("\n")[0])} <= names
        units = await page.evaluate("[...document.querySelectorAll('#service thead small')].map((e) => e.innerText)")
        plain = {unit for unit in units if not HAN.search(unit)}
        assert plain <= NAMES["unit"] | {"token"}  # what tokens are called in Chinese
        words = await page.evaluate("document.querySelector('#service tbody .group small').innerText")
        assert re.search("poisson 到达 · 目标：TTFT", words), words

    assert looked_at(f"{page.as_uri()}#lang=zh", tmp_path / "profile", looking).complaints == []


def test_hostile_names_stay_text_in_a_browser(tmp_path: Path) -> None:
    page = write_report(make_hostile(), tmp_path / "study")

    async def looking(page: Page) -> None:
        assert await page.evaluate("document.scripts.length") == 1
        assert await page.evaluate("document.querySelectorAll('img[onerror], a[href^=javascript]').length") == 0
        assert "<script>alert('x')</script>" in await page.evaluate("document.querySelector('#service').textContent")

    assert looked_at(page.as_uri(), tmp_path / "profile", looking).complaints == []
