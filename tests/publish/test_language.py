"""Both pages in two languages: the catalogue is complete and has nothing over, and a reader can switch in a browser."""

from __future__ import annotations

import ast
import asyncio
import json
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from string import Formatter

import pytest
from jinja2 import Environment, nodes

from specprof.analyse import explained
from specprof.analyse.results import MixVerdict, Outcome, Severity, StudyFigures
from specprof.publish import cost_page, pictures
from specprof.publish.advice import ACTIONS, Advice, Effect, Step, advice
from specprof.publish.card import card
from specprof.publish.language import catalogue, chinese, say, say_clauses, say_parts
from specprof.publish.report import DEFINITIONS, render_html
from specprof.publish.site import publish
from specprof.study.bounds import Bound
from tests.publish.conftest import HOSTILE
from tests.publish.test_report_page import DESKTOP, PHONE, Looking, Page, browser_page
from tests.publish.test_site import from_study, needs_chromium, press, shown
from tests.running import ROOT

PACKAGE = ROOT / "specprof"
TEMPLATES = ("report.html.j2", "site.html.j2", "cost.html.j2")
HAN = re.compile(r"[\u4e00-\u9fff]")

# Said in Chinese as in English: names, units and formulas.
NAMES = {
    "heading": {"AL", "AR", "E2EL", "N", "TPOT", "TTFT"},
    "unit": {
        "×",
        "90%",
        "a / b",
        "a / b, 90%",
        "tokens",
        "tokens, N={n}",
        "N / 1",
        "nats",
        "ms, p50",
        "p50",
        "p99",
        "req/s",
        "tok/s",
        "tok/s [95%]",
        "X · TPOT",
    },
    "words": {"{flagged} of {requests}"},
    "definition": {"TTFT, TPOT, ITL, E2EL"},
}


# -- what the sources say ---------------------------------------------------------------------------------------------


def said_in_templates() -> dict[str, set[str]]:
    """The fixed texts of all templates by kind: of `say` and `chinese`, and of the macros that call them."""
    macros = {"heading": ((1, "heading"), (2, "unit")), "choice": ((1, "text"),), "text_of": ((0, "text"),)}
    found: dict[str, set[str]] = {}
    for name in TEMPLATES:
        tree = Environment(autoescape=True).parse(
            (PACKAGE / "publish" / "templates" / name).read_text(encoding="utf-8")
        )
        for call in tree.find_all(nodes.Call):
            words = [item.value if isinstance(item, nodes.Const) else None for item in call.args]
            called = getattr(call.node, "name", "")
            if called in ("say", "chinese") and words[0] is not None:
                found.setdefault(words[1] if len(words) > 1 else "text", set()).add(words[0])
            for place, kind in macros.get(called, ()):
                if len(words) > place and words[place] is not None:
                    found.setdefault(kind, set()).add(words[place])
    return found


def calls(folder: Path) -> Iterator[tuple[str, ast.Call]]:
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield node.func.id, node


def as_entry(node: ast.expr) -> str:
    """A string as an entry holds it: the places of an f-string as `{}`."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return str(ast.literal_eval(node))


def columns() -> dict[str, set[str]]:
    """Headings and units of every column of the report."""
    found: dict[str, set[str]] = {"heading": set(), "unit": set()}
    for name, call in calls(PACKAGE / "publish"):
        if name == "Column":
            for kind, argument in zip(found, call.args, strict=False):
                found[kind].add(as_entry(argument))
    return found


def gate_names() -> set[str]:
    """The names of all gates, as the analysis gives them."""
    makers = {"invalid", "caution", "GateFinding"}
    found = [call.args[1] for name, call in calls(PACKAGE) if name in makers and len(call.args) > 1]
    literal = {argument.value for argument in found if isinstance(argument, ast.Constant)}
    constants = {argument.id for argument in found if isinstance(argument, ast.Name) and argument.id.isupper()}
    return literal | {getattr(explained, constant) for constant in constants}


def picture_words() -> set[str]:
    modules = (
        import_module(f"{pictures.__name__}.{module.name}") for module in pkgutil.iter_modules(pictures.__path__)
    )
    return {getattr(m, name) for m in modules for name in ("TITLE", "CAPTION") if hasattr(m, name)}


def without_names(entries: set[str]) -> set[str]:
    """Places as `{}`, whatever they are called."""
    return {re.sub(r"\{\w+\}", "{}", entry) for entry in entries}


def words_of_python() -> str:
    """Every string of the publishing floor, and of what names outcomes, shapes of prefill, bounds and bills."""
    names = ("analyse/results.py", "analyse/prefill.py", "study/bounds.py", "decide/bill.py")
    paths = [*(PACKAGE / "publish").glob("*.py"), *(PACKAGE / name for name in names)]
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in paths)
    strings = (
        n.value for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    )
    return "\n".join(strings)


# -- the catalogue ----------------------------------------------------------------------------------------------------


def test_every_fixed_text_has_an_entry_and_every_entry_is_said() -> None:
    in_templates, in_columns = said_in_templates(), columns()
    expected = {
        "text": in_templates["text"],
        "heading": in_templates["heading"] | in_columns["heading"],
        "unit": in_templates["unit"] | in_columns["unit"],
        "action": in_templates["action"] | set(ACTIONS.values()),
        "status": {str(status) for kind in (Severity, Outcome) for status in kind},
        "gate": gate_names(),
        "picture": picture_words(),
        "definition": {*DEFINITIONS, *DEFINITIONS.values(), *cost_page.DEFINITIONS, *cost_page.DEFINITIONS.values()},
    }
    found = {kind: set(catalogue()[kind]) for kind in expected}
    assert {kind: without_names(texts) for kind, texts in found.items()} == {
        kind: without_names(texts) for kind, texts in expected.items()
    }


@pytest.mark.parametrize("kind", ["words", "cost", "part", "clause"])
def test_every_entry_for_what_python_fills_in_stands_in_the_source(kind: str) -> None:
    source = words_of_python()
    for english in catalogue()[kind]:
        for words, _, _, _ in Formatter().parse(english):
            assert words.strip() in source, english


def test_no_entry_is_left_in_english() -> None:
    for kind, entries in catalogue().items():
        assert {english for english, told in entries.items() if not HAN.search(told)} == NAMES.get(kind, set()), kind


def test_both_languages_have_the_same_places() -> None:
    for entries in catalogue().values():
        for english, told in entries.items():
            places = [sorted(place for _, place, _, _ in Formatter().parse(text) if place) for text in (english, told)]
            assert places[0] == places[1], english
            assert len(set(places[0])) == len(places[0]), english


def test_numbers_of_a_text_are_the_same_in_both_languages() -> None:
    for entries in catalogue().values():
        for english, told in entries.items():
            numbers = [set(re.findall(r"\d+(?:\.\d+)?%?", text)) for text in (english, told)]
            assert numbers[0] <= numbers[1], english


# -- what is said -----------------------------------------------------------------------------------------------------


def test_text_stands_beside_its_chinese() -> None:
    assert say("What to do") == '<span data-zh="该怎么做">What to do</span>'
    assert say("{count} badges", count=3) == '<span data-zh="3 个徽章">3 badges</span>'


def test_text_without_an_entry_stays() -> None:
    assert say("a heading nobody knows", "heading") == "a heading nobody knows"
    assert chinese("a heading nobody knows", "heading") is None


def test_name_of_a_gate_is_translated_in_its_place() -> None:
    told = say("Gate {number}: {gate}", number=7, gate="loops")
    assert told == '<span data-zh="门禁 7：循环">Gate 7: loops</span>'
    assert chinese("gate 7 (loops)", "part") == "门禁 7（循环）"
    assert chinese("gate 7 (of another tool)", "part") == "门禁 7（of another tool）"


def test_parts_of_a_title_are_translated_and_names_kept() -> None:
    told = say_parts("forced 128 · off against ngram K=4 · vLLM 0.32.0 CPU")
    assert 'data-zh="forced 128 · 关投机对 ngram K=4 · vLLM 0.32.0 CPU"' in told
    assert say_parts("forced 128 · vLLM") == "forced 128 · vLLM"
    told = say_parts("alone: forced; 8 prompts; 2 blocks; gate 2 (short stops) at N=4, off: 61 tokens")
    assert 'data-zh="单独运行：forced; 8 条提示; 2 个区组; gate 2 (short stops) at N=4, off: 61 tokens"' in told


def test_every_action_is_translated(study: StudyFigures) -> None:
    item = advice(study)[0]
    steps = tuple(Step(n, effect, item.steps[0].gain) for n, effect in enumerate(Effect, 1))
    told = say_clauses(replace(item, steps=steps).action)
    words = told.partition('data-zh="')[2].partition('"')[0]
    assert set(re.findall(r"[A-Za-z]+", words)) == {"N"}
    assert {n for group in re.findall(r"N=([\d, ]+)", words) for n in re.findall(r"\d+", group)} == {
        str(step.concurrency) for step in steps
    }
    nothing = Advice(item.tag, item.protocol, item.arm, item.method, ())
    assert HAN.search(say_clauses(nothing.action).partition(">")[0])


@pytest.mark.parametrize("word", [*map(str, Bound), "yes", "no", *(str(v).replace("_", " ") for v in MixVerdict)])
def test_words_in_cells_are_translated(word: str) -> None:
    assert HAN.search(chinese(word, "words") or "")


def test_hostile_text_is_escaped_in_both_languages() -> None:
    attack = f'"><b>{HOSTILE}{{0.__class__}}'
    for told in (
        say(attack, "heading"),
        say("measured {date}", date=attack),
        say_parts(f"off against {attack}"),
        say_clauses(f"no figure at {attack}."),
    ):
        inside = told.removeprefix("<span data-zh=").removesuffix("</span>").replace('">', "", 1)
        assert "<" not in inside
        assert "&lt;script&gt;" in inside
        assert "\x1b" not in told
        assert "\u202e" not in told
        assert "{0.__class__}" in told


def test_pages_say_everything_once_without_their_script(report: Path) -> None:
    html = report.read_text(encoding="utf-8")
    assert '<html lang="en">' in html
    shown_text = re.sub(r"<(script|style).*?</\1>|<[^>]+>", "", html, flags=re.DOTALL)
    assert "What to do" in shown_text
    assert "该怎么做" not in shown_text
    assert "该怎么做" in html


def test_foreign_gate_and_arm_names_that_hold_braces_are_kept(small: StudyFigures) -> None:
    odd = replace(small, cells=tuple(replace(cell, method=f"{cell.method} {{arm}}") for cell in small.cells))
    assert "ngram K=4 {arm}" in render_html(odd, (), (), card(odd))


# -- in a browser -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, study: StudyFigures) -> Path:
    """The hand-made study published: the path of the page."""
    return publish([from_study(study, ())], tmp_path_factory.mktemp("site"))


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., Page]:
    """Open an address at a size, look at it with a coroutine, and hand back what the browser noted."""

    def run(address: str, looking: Looking, size: tuple[int, int] = DESKTOP) -> Page:
        async def whole() -> Page:
            async with browser_page(tmp_path / "profile") as page:
                await page.open(address, size)
                await looking(page)
                return page

        return asyncio.run(asyncio.wait_for(whole(), 120))

    return run


HEADINGS = "[...document.querySelectorAll('h2, thead th:not(.copying), nav a, .legend dt')].map((e) => e.innerText)"
CHOSEN = "[...document.querySelectorAll('[data-language]')].map((button) => button.ariaPressed).join()"
CHINESE = "document.querySelector('[data-language=zh]')"


def in_chinese(headings: list[str]) -> None:
    """Every heading that has words is Chinese, but for names and streams."""
    names = NAMES["heading"] | {"", *(f"N={n}" for n in (1, 2, 4, 8))}
    assert len(headings) > 10
    assert {first for text in headings if not HAN.search(first := text.split("\n")[0])} <= names


@needs_chromium
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_report_is_chinese_where_its_address_says_so(
    look: Callable[..., Page], report: Path, size: tuple[int, int]
) -> None:
    async def looking(page: Page) -> None:
        in_chinese(await page.evaluate(HEADINGS))
        assert await page.evaluate("document.documentElement.lang") == "zh-Hans"
        assert await page.evaluate(CHOSEN) == "false,true"
        width = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width[0] <= width[1], "the page scrolls sideways"
        assert "英文原文" in await page.evaluate("document.querySelector('header').innerText")
        assert {"开", "关", "未定"} <= set(
            await page.evaluate("[...document.querySelectorAll('.matrix .word')].map((word) => word.innerText)")
        )
        assert await page.evaluate("document.querySelectorAll('[onerror], a[href^=javascript]').length") == 0
        assert await page.evaluate("document.scripts.length") == 1

    assert look(f"{report.as_uri()}#lang=zh", looking, size).complaints == []


@needs_chromium
@pytest.mark.parametrize("state", ["", "#todo", "#lang=en", "#lang=constructor"])
def test_report_is_english_without_it(look: Callable[..., Page], report: Path, state: str) -> None:
    async def looking(page: Page) -> None:
        assert not [text for text in await page.evaluate(HEADINGS) if HAN.search(text)]
        assert await page.evaluate("document.documentElement.lang") == "en"
        assert await page.evaluate(CHOSEN) == "true,false"
        assert await page.evaluate("document.querySelector('header').innerText.includes('英文原文')") is False

    assert look(f"{report.as_uri()}{state}", looking).complaints == []


@needs_chromium
def test_browser_that_speaks_chinese_gets_chinese_unless_asked(look: Callable[..., Page], report: Path) -> None:
    async def looking(page: Page) -> None:
        await page.call("Network.setUserAgentOverride", userAgent="any", acceptLanguage="zh-CN")
        for state, language in (("", "zh-Hans"), ("#todo", "zh-Hans"), ("#lang=en", "en")):
            await page.evaluate(f"location.hash = {json.dumps(state)}")
            await page.reload()
            assert await page.evaluate("document.documentElement.lang") == language, state

    assert look(report.as_uri(), looking).complaints == []


@needs_chromium
def test_keyboard_switches_there_and_back_and_links_within_the_page_keep_it(
    look: Callable[..., Page], report: Path
) -> None:
    async def looking(page: Page) -> None:
        before = await page.evaluate("document.body.innerText")
        await page.evaluate(f"{CHINESE}.focus()")
        await press(page, "Enter")
        in_chinese(await page.evaluate(HEADINGS))
        assert await page.evaluate("location.hash") == "#lang=zh"
        await page.heard("hashchange", "document.querySelector('a[href=\"#gates\"]').click()")
        assert await page.evaluate("location.hash") == "#gates"
        in_chinese(await page.evaluate(HEADINGS))
        await page.reload()
        assert await page.evaluate("location.hash") == "#gates"
        in_chinese(await page.evaluate(HEADINGS))
        await page.evaluate("document.querySelector('[data-language=en]').focus()")
        await press(page, "Enter")
        assert await page.evaluate("document.body.innerText") == before

    assert look(report.as_uri(), looking).complaints == []


@needs_chromium
def test_site_switches_and_keeps_its_filters(look: Callable[..., Page], site: Path) -> None:
    async def looking(page: Page) -> None:
        await page.evaluate(f"{CHINESE}.click()")
        in_chinese(await page.evaluate(HEADINGS))
        assert await page.evaluate("location.hash") == "#tag=code&sort=gain&lang=zh"
        assert set((await shown(page)).column("tag")) == {"code"}
        assert await page.evaluate("document.getElementById('count').innerText") == "16 / 46 行"
        assert "关键词" in await page.evaluate("document.getElementById('search').placeholder")
        assert await page.evaluate("document.querySelector('select option').text") == "全部"
        link = "[...document.querySelectorAll('article a')].find((a) => a.pathname.endsWith('/report.html')).hash"
        assert await page.evaluate(link) == "#lang=zh"
        await page.evaluate("document.querySelector('button[type=reset]').click()")
        assert await page.evaluate("location.hash") == "#lang=zh"
        for words in ("自报速度之和", "sum of rates"):
            await page.evaluate("document.getElementById('search').select()")
            await page.call("Input.insertText", text=words)
            found = await shown(page)
            assert found.rows, words
            assert all("自报速度之和" in row[14] for row in found.rows), words
        await page.evaluate("document.querySelector('[data-language=en]').click()")
        assert not [text for text in await page.evaluate(HEADINGS) if HAN.search(text)]
        assert await page.evaluate("document.querySelector('select option').text") == "all"
        assert (await shown(page)).count == f"{len(found.rows)} of 46 rows"

    assert look(f"{site.as_uri()}#tag=code&sort=gain", looking).complaints == []


@needs_chromium
def test_copying_is_answered_in_chinese(look: Callable[..., Page], report: Path) -> None:
    async def looking(page: Page) -> None:
        await page.evaluate("document.querySelector('details.long').open = true")
        button = "document.querySelector('.quotes button.copy')"
        assert await page.evaluate(f"{button}.innerText") == "复制"
        said, held = await page.copied(button)
        assert said == "已复制"
        assert held == await page.evaluate("document.querySelector('.quotes code').textContent")

    assert look(f"{report.as_uri()}#lang=zh", looking).complaints == []
