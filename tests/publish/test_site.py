"""The published page in a real browser and as files: sorting and filtering, refusals, hostile text, the same twice."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from specprof.analyse.results import StudyFigures
from specprof.analyse.samples import Sample
from specprof.errors import InputError
from specprof.publish.card import card
from specprof.publish.site import publish
from specprof.publish.site_studies import Listed, listed, load, slug
from tests.publish.conftest import HOSTILE, STREAMS, TAGS
from tests.publish.test_report_page import (
    CHROMIUM,
    DESKTOP,
    FLAGS,
    PHONE,
    Looking,
    Page,
    browser_page,
    has_chinese_font,
)
from tests.running import ROOT, specprof

DEMO = ROOT / "results" / "demo"
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")

COLUMNS = (
    *("study", "model", "tag", "stop", "prompt", "n", "arm"),
    *("speed", "gain", "al", "per-step", "ttft", "basis", "engine", "gates", "date"),
)
# Off rows have no gain. On rows by gain, from conftest: the same for both stop rules, json between the two.
CODE_GAINS = ["2.16×", "2.16×", "1.72×", "1.72×", "1.31×", "1.31×", "1.04×", "1.04×"]


class Table(HTMLParser):
    """The rows of the page's table that are shown, as the texts of their cells, and its sorted headings."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.sorted: dict[str, str] = {}
        self.count = ""
        self._inside = self._shown = self._counting = self._small = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self._inside |= told.get("id") == "numbers"
        self._counting |= told.get("id") == "count"
        self._small = tag == "small"
        if tag == "th" and told.get("aria-sort"):
            self.sorted[str(told["data-key"])] = str(told["aria-sort"])
        if tag == "tr":
            self._shown = self._inside and "data-study" in told and "hidden" not in told
            if self._shown:
                self.rows.append([])
        elif tag == "td" and self._shown:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside &= tag != "table"
        self._counting &= tag != "output"
        self._small &= tag != "small"

    def handle_data(self, data: str) -> None:
        if self._counting:
            self.count += data
        if self._inside and self._shown and self.rows[-1] and not self._small:
            self.rows[-1][-1] = f"{self.rows[-1][-1]} {data.strip()}".strip()

    def column(self, name: str) -> list[str]:
        """A column of the shown rows."""
        return [row[COLUMNS.index(name)] for row in self.rows]


def table_of(html: str) -> Table:
    table = Table()
    table.feed(html)
    return table


def from_study(study: StudyFigures, samples: tuple[Sample, ...] | None = None) -> Listed:
    return listed(Path(f"results/{slug(study.study)}"), card(study), study, samples)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, study: StudyFigures, samples: tuple[Sample, ...]) -> Path:
    """The hand-made study published with its report: the path of the page."""
    return publish([from_study(study, samples)], tmp_path_factory.mktemp("site"))


def dumped(page: Path, state: str, folder: Path) -> Table:
    """The page as Chromium has it once its script has run, opened with a state in its address."""
    assert CHROMIUM is not None
    flags = [flag for flag in FLAGS if not flag.startswith("--remote-debugging")]
    command = [CHROMIUM, *flags, f"--user-data-dir={folder}", "--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run(
        [*command, f"{page.as_uri()}{state}"], capture_output=True, text=True, timeout=120, check=True
    )
    return table_of(done.stdout)


@pytest.fixture
def look(tmp_path: Path, site: Path) -> Callable[..., Page]:
    """Open the page at a size and state, look at it with a coroutine, and hand back what the browser noted."""

    def run(looking: Looking, size: tuple[int, int] = DESKTOP, state: str = "", page: Path = site) -> Page:
        async def whole() -> Page:
            async with browser_page(tmp_path / "profile") as tab:
                await tab.open(page.as_uri() + state, size)
                await looking(tab)
                return tab

        return asyncio.run(asyncio.wait_for(whole(), 120))

    return run


async def shown(page: Page) -> Table:
    return table_of(await page.evaluate("document.documentElement.outerHTML"))


async def press(page: Page, key: str) -> None:
    """A key as the keyboard sends it."""
    text = {"Enter": "\r", " ": " "}.get(key, key)
    await page.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, code=key)
    await page.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)


# -- the page without a browser ---------------------------------------------------------------------------------------


def test_page_can_be_read_without_its_script(site: Path, study: StudyFigures) -> None:
    table = table_of(site.read_text(encoding="utf-8"))
    fit = [cell for cell in study.cells if cell.valid]
    assert table.column("tag") == [cell.tag for cell in fit]
    assert table.column("n") == [str(cell.concurrency) for cell in fit]
    assert table.column("gain")[:2] == ["—", "—"]
    # TTFT: a quarter of the prefill share, 0.031, of the wall of 16 × 128 tokens at 44.064 tok/s: see conftest
    assert table.rows[4][:16] == [
        *("demo", "builtin: gemma-3-270m", "code", "forced 128", "42", "1", "ngram K=4"),
        *("44.1", "2.16×", "2.99", "2.43", "360 ms"),
        *("2 launches (fewer than 4) 16 prompts", "vLLM 0.32.0 CPU", "none", "2026-11-29"),
    ]


def test_intervals_stand_beside_their_numbers(site: Path) -> None:
    html = site.read_text(encoding="utf-8")
    assert re.search(r"44\.1<small>\[41\.9, 46\.3\]</small>", html)
    assert re.search(r"2\.16×<small>\[1\.99, 2\.33\]</small>", html)


def test_unfit_numbers_stand_in_a_table_of_their_own(site: Path) -> None:
    numbers, _, unfit = site.read_text(encoding="utf-8").partition('<section id="unfit">')
    assert unfit
    held = unfit.partition("</table>")[0]
    assert "speculation gain 0.97×" in held
    assert "gate 7 (loop)" in held
    assert "3 of 16 texts repeat themselves" in held
    assert "Use the unflagged figures, or a natural stop." in held
    rows = table_of(numbers).rows
    assert not [row for row in rows if row[2:4] == [TAGS[2], "forced 128"] and row[5:7] == ["8", "ngram K=4"]]


def test_report_cards_and_figures_lie_in_the_study_s_folder(site: Path) -> None:
    html = site.read_text(encoding="utf-8")
    links = set(re.findall(r'(?:href|src)="([^"#]+)"', html))
    assert {"demo/report.html", "demo/card.json", "demo/card.md", "demo/figures/throughput.png"} <= links
    for link in links:
        assert not re.match(r"[a-z]+:|/", link), "a link that leaves the folder"
        assert (site.parent / link).is_file(), link


def test_every_fit_gain_has_a_badge(site: Path, study: StudyFigures) -> None:
    # valid cells with speculation: a gain each; those at more than one stream a batching gain too
    on = [cell for cell in study.cells if cell.arm == "on" and cell.valid]
    expected = len(on) + sum(cell.concurrency > 1 for cell in on)
    badges = sorted((site.parent / "badges").glob("*.svg"))
    assert len(badges) == expected
    told = (site.parent / "badges" / "demo-code-forced-on-8-speculation.svg").read_text(encoding="utf-8")
    assert "speculation · code · forced 128 · N=8" in told


def test_badge_of_an_earlier_page_goes_and_other_files_stay(
    study: StudyFigures, small: StudyFigures, tmp_path: Path
) -> None:
    def page(figures: StudyFigures) -> set[str]:
        publish([from_study(figures)], tmp_path)
        return {path.name for path in (tmp_path / "badges").iterdir()}

    before = page(study)
    (tmp_path / "badges" / "logo.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    after = page(small)
    assert "logo.svg" in after
    assert after - {"logo.svg"} < before


def test_two_studies_of_one_name_are_told_apart(small: StudyFigures, tmp_path: Path) -> None:
    paths = []
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        paths.append(tmp_path / place / "card.json")
        paths[-1].write_text(json.dumps(card(small)), encoding="utf-8")
    studies = load([*paths, paths[0]])
    assert [(study.label, study.folder) for study in studies] == [("demo", "demo"), ("demo (2)", "demo-2")]
    page = publish(studies, tmp_path / "site")
    assert table_of(page.read_text(encoding="utf-8")).column("study") == ["demo"] * 8 + ["demo (2)"] * 8
    assert (tmp_path / "site" / "demo-2" / "card.json").is_file()
    assert not (tmp_path / "site" / "demo" / "report.html").exists(), "a card brings no report"


@pytest.mark.parametrize("name", ["badges", "index.html", "../../up", "..", "/etc", "散文", "a" * 300])
def test_folder_of_a_study_stays_in_the_page_s(small: StudyFigures, tmp_path: Path, name: str) -> None:
    path = tmp_path / "card.json"
    path.write_text(json.dumps(card(replace(small, study=name))), encoding="utf-8")
    out = tmp_path / "site"
    publish(load([path]), out)
    (made,) = out.glob("*/card.json")
    assert made.parent.parent == out
    assert (out / "index.html").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"card.json", "site"}


@pytest.mark.parametrize("below", [".", "site", "cells/site"])
def test_page_never_lies_in_the_results_of_a_study(small: StudyFigures, tmp_path: Path, below: str) -> None:
    path = tmp_path / "card.json"
    path.write_text(json.dumps(card(small)), encoding="utf-8")
    measured = tmp_path / "measured"
    measured.mkdir()
    (measured / "study.sha256").write_text("x 1\n")
    with pytest.raises(InputError, match="lies in the results of a study"):
        publish(load([path]), measured / below)
    assert [found.name for found in measured.iterdir()] == ["study.sha256"]


def test_page_never_lies_over_a_study(small: StudyFigures, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    path = tmp_path / "demo" / "card.json"
    path.write_text(json.dumps(card(small)), encoding="utf-8")
    before = path.read_bytes()
    with pytest.raises(InputError, match="would write over the study"):
        publish(load([path]), tmp_path)
    (tmp_path / "other" / "demo").mkdir(parents=True)
    (tmp_path / "other" / "demo" / "study.sha256").write_text("x 1\n")
    with pytest.raises(InputError, match="would write over the study"):
        publish(load([path]), tmp_path / "other")
    assert path.read_bytes() == before
    assert not (tmp_path / "index.html").exists()


def test_folder_that_cannot_be_written_is_named(small: StudyFigures, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file: the page cannot be written"):
        publish([from_study(small)], tmp_path / "file")


def test_model_in_a_folder_is_named_by_its_last_part(small: StudyFigures, tmp_path: Path) -> None:
    environment: Any = {**small.environment, "launches": {"0": {"name": "vllm", "model": "/data/me/models/target-7b/"}}}
    page = publish([from_study(replace(small, environment=environment))], tmp_path)
    html = page.read_text(encoding="utf-8")
    assert "target-7b" in html
    assert "/data/me" not in html


@pytest.fixture
def card_path(study: StudyFigures, tmp_path: Path) -> Path:
    path = tmp_path / "card.json"
    path.write_text(json.dumps(card(study)), encoding="utf-8")
    return path


def test_only_chosen_cells_stand_on_the_page(card_path: Path, tmp_path: Path) -> None:
    page = publish(load([card_path], ["code/forced/on/8", "json/natural/off/1"]), tmp_path / "site")
    html = page.read_text(encoding="utf-8")
    table = table_of(html)
    assert list(
        zip(table.column("tag"), table.column("stop"), table.column("n"), table.column("arm"), strict=True)
    ) == [
        ("code", "forced 128", "8", "ngram K=4"),
        ("json", "natural ≤256", "1", "off"),
    ]
    assert 'id="unfit"' not in html


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("zh-散文/forced/on/8", r"zh-散文/forced/on/8.*Gate 7 \(loop\).*Use the unflagged figures"),
        ("code/forced/on/16", r"--only code/forced/on/16: is no measured cell.*'code/forced/on/1'"),
        ("code", "content/protocol/arm/streams"),
    ],
)
def test_asking_for_what_is_unfit_or_unknown_is_refused(card_path: Path, cell: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load([card_path], [cell])


def test_what_is_no_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a results folder nor a card"):
        load([tmp_path / "missing"])
    with pytest.raises(InputError, match="is not a results folder"):
        load([tmp_path])


# -- the page in a browser --------------------------------------------------------------------------------------------


@needs_chromium
def test_address_sorts_and_filters(site: Path, tmp_path: Path) -> None:
    table = dumped(site, "#sort=gain&tag=code", tmp_path)
    assert table.sorted == {"gain": "descending"}
    assert set(table.column("tag")) == {"code"}
    assert table.column("gain") == [*CODE_GAINS, *["—"] * 8]
    assert table.count == "16 of 46 rows"


STATES = [
    ("#sort=gain&order=ascending&tag=code", "gain", [*reversed(CODE_GAINS), *["—"] * 8]),
    ("#sort=n&tag=json&protocol=forced&arm=off", "n", [str(n) for n in STREAMS]),
    ("#sort=n&order=descending&tag=json&protocol=forced&arm=off", "n", [str(n) for n in reversed(STREAMS)]),
    ("#n=8&protocol=natural&arm=on", "tag", list(TAGS)),
    ("#q=natural%20ngram%20zh&n=4", "tag", [TAGS[2]]),
    ("#q=nothing%20like%20this", "tag", []),
    ("#study=demo&n=2&arm=off&protocol=forced", "tag", list(TAGS)),
    ("#sort=no-such-column&tag=no-such-tag&n=1&arm=off&protocol=forced", "tag", list(TAGS)),
    ("#sort=tag&order=descending&n=1&arm=off&protocol=forced", "tag", list(reversed(TAGS))),
]


@needs_chromium
def test_every_state_of_the_address(look: Callable[..., Page]) -> None:
    async def looking(page: Page) -> None:
        for state, column, expected in STATES:
            await page.heard("hashchange", f"location.hash = {json.dumps(state)}")
            assert (await shown(page)).column(column) == expected, state

    assert look(looking).complaints == []


@needs_chromium
def test_clicks_and_keys_sort_and_stand_in_the_address(look: Callable[..., Page]) -> None:
    async def looking(page: Page) -> None:
        heading = "document.querySelector('th[data-key=gain] button')"
        await page.evaluate(f"{heading}.click()")
        assert (await shown(page)).column("gain")[:3] == ["2.16×", "2.16×", "1.87×"]
        assert await page.evaluate("location.hash") == "#sort=gain"
        await page.evaluate(f"{heading}.focus()")
        await press(page, "Enter")
        table = await shown(page)
        assert table.sorted == {"gain": "ascending"}
        assert table.column("gain")[0] == "0.84×"
        assert table.column("gain")[-1] == "—", "what is not known comes last, whichever way"
        assert await page.evaluate("location.hash") == "#sort=gain&order=ascending"

    assert look(looking).complaints == []


@needs_chromium
def test_typing_and_choosing_filter_and_show_all_undoes_it(look: Callable[..., Page]) -> None:
    async def looking(page: Page) -> None:
        await page.evaluate("document.getElementById('search').focus()")
        await page.call("Input.insertText", text="natural NGRAM")
        table = await shown(page)
        assert set(table.column("stop")) == {"natural ≤256"}
        assert set(table.column("arm")) == {"ngram K=4"}
        assert table.count == "12 of 46 rows"
        assert await page.evaluate("document.activeElement.id") == "search"
        choose = "const s = document.querySelector('select[name=tag]'); s.value = 'json'; "
        await page.evaluate(f"{{ {choose} s.dispatchEvent(new Event('input', {{bubbles: true}})) }}")
        assert set((await shown(page)).column("tag")) == {"json"}
        assert await page.evaluate("location.hash") == "#q=natural+NGRAM&tag=json"
        await page.evaluate("document.querySelector('button[type=reset]').click()")
        assert (await shown(page)).count == "46 of 46 rows"
        assert await page.evaluate("location.hash") == ""
        assert await page.evaluate("document.getElementById('search').value") == ""

    assert look(looking).complaints == []


@needs_chromium
def test_link_within_the_page_leaves_the_table_as_it_is(look: Callable[..., Page]) -> None:
    async def looking(page: Page) -> None:
        await page.heard("hashchange", "document.querySelector('a[href=\"#studies\"]').click()")
        assert set((await shown(page)).column("tag")) == {"code"}
        await page.evaluate("document.querySelector('th[data-key=n] button').click()")
        assert await page.evaluate("location.hash") == "#tag=code&sort=n"

    look(looking, state="#tag=code")


@needs_chromium
def test_button_copies_the_line_with_its_whole_context(look: Callable[..., Page]) -> None:
    async def looking(page: Page) -> None:
        _, held = await page.copied("document.querySelector('#numbers tbody tr:not([hidden]) button.copy')")
        assert held == (
            "code · forced 128 · prompt 42 · N=8 · ngram K=4 · 133.9 tok/s [129, 139] · speculation gain 1.04× "
            "[0.96, 1.12] against off · 2 launches (fewer than 4), 16 prompts · AL 2.85, 2.33 tokens per engine step · "
            "vLLM 0.32.0 CPU · gates: none"
        )

    look(looking, state="#tag=code&protocol=forced&arm=on&n=8")


@needs_chromium
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_renders_without_complaint_or_request_elsewhere(
    look: Callable[..., Page], site: Path, size: tuple[int, int], scheme: str
) -> None:
    async def looking(page: Page) -> None:
        await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        width = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width[0] <= width[1], "the page scrolls sideways"
        await page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
        eager = "[...document.images].map((image) => { image.loading = 'eager'; return image.decode(); })"
        await page.evaluate(f"Promise.all({eager}).then(() => true)")
        assert await page.evaluate("document.images.length") > 20
        assert await page.evaluate("[...document.images].filter((image) => !image.naturalWidth).length") == 0
        background, ink = await page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        lightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (background, ink)]
        assert (lightness[0] > lightness[1]) is (scheme == "light")
        assert len(await page.screenshot()) > 50_000

    page = look(looking, size)
    assert page.complaints == []
    folder = site.parent.as_uri()
    assert {url for url in page.requests if not url.startswith(f"{folder}/")} == set()


@needs_chromium
def test_foreign_script_is_refused_by_the_page_itself(look: Callable[..., Page]) -> None:
    async def looking(page: Page) -> None:
        inject = "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)"
        await page.evaluate(inject)
        assert await page.evaluate("window.ran") is None

    look(looking)


@needs_chromium
def test_chinese_is_drawn_with_a_chinese_font(look: Callable[..., Page]) -> None:
    if not has_chinese_font():
        pytest.skip("no Chinese font here: apt-get install fonts-noto-cjk")

    async def looking(page: Page) -> None:
        fonts = await page.fonts_of("tr[data-tag^=zh] td:nth-child(3)")
        assert any(re.search("CJK|WenQuanYi|Han|Fallback|YaHei|PingFang", name) for name in fonts), fonts

    look(looking)


@pytest.fixture(scope="module")
def hostile_site(tmp_path_factory: pytest.TempPathFactory, small: StudyFigures) -> Path:
    """A card in which study, content, arm, model and engine attack the page; nothing of it is a quoted mixture."""
    environment = {
        **small.environment,
        "launches": {"0": {"name": HOSTILE, "model": f'"><b>{HOSTILE}', "device": HOSTILE}},
    }
    attacked = replace(
        small,
        study=f'{HOSTILE}"><i>',
        environment=environment,
        cells=tuple(replace(cell, tag=f'{HOSTILE}"', method=HOSTILE) for cell in small.cells),
        gains=tuple(replace(gain, tag=f'{HOSTILE}"') for gain in small.gains),
        notes=(HOSTILE,),
    )
    folder = tmp_path_factory.mktemp("hostile")
    path = folder / "card.json"
    path.write_text(json.dumps(card(attacked)), encoding="utf-8")
    return publish(load([path]), folder / "site")


@needs_chromium
def test_hostile_text_stays_text(look: Callable[..., Page], hostile_site: Path) -> None:
    async def looking(page: Page) -> None:
        assert await page.evaluate("document.scripts.length") == 1
        assert (
            await page.evaluate("document.querySelectorAll('[onerror], a[href^=javascript], td b, td i').length") == 0
        )
        table = await shown(page)
        assert len(table.rows) == 8
        assert all("<script>alert('x')</script>" in said for said in table.column("tag"))
        await page.evaluate(
            "{ const s = document.querySelector('select[name=tag]'); s.selectedIndex = 1;"
            " s.dispatchEvent(new Event('input', {bubbles: true})) }"
        )
        assert (await shown(page)).count == "8 of 8 rows"

    assert look(looking, page=hostile_site).complaints == []


def test_no_control_character_reaches_the_page(hostile_site: Path) -> None:
    for path in hostile_site.parent.rglob("*"):
        if path.suffix in {".html", ".svg", ".md"}:
            assert not re.search("[\x00-\x08\x1b\u202e]", path.read_text(encoding="utf-8")), path


# -- the command ------------------------------------------------------------------------------------------------------


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The committed study, published from the command line."""
    out = tmp_path_factory.mktemp("command") / "site"
    done = specprof("publish", DEMO, "--out", out)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_command_publishes_the_committed_study(published: tuple[Path, str]) -> None:
    out, said = published
    assert re.search(r"demo: \d+ numbers fit to be quoted; 2 not fit to be quoted \(gate 7 \(loops\): 2\)", said)
    assert f"Page: {out / 'index.html'}" in said
    table = table_of((out / "index.html").read_text(encoding="utf-8"))
    assert set(table.column("tag")) == {"code", "json", "zh-prose"}
    assert {"demo/report.html", "demo/card.md", "demo/figures/throughput.png"} <= set(files(out))


def test_publishing_twice_makes_the_same_files(published: tuple[Path, str], tmp_path: Path) -> None:
    done = specprof("publish", DEMO, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == files(published[0])


def test_page_names_no_place_of_the_machine(published: tuple[Path, str]) -> None:
    out, _ = published
    for name, content in files(out).items():
        if not name.endswith(".png"):
            for place in (str(ROOT), str(out.parent), "/root/", "/home/"):
                assert place.encode() not in content, (name, place)


def test_command_refuses_an_unfit_cell_with_gate_and_remedy(tmp_path: Path) -> None:
    refused = specprof("publish", DEMO, "--out", tmp_path / "site", "--only", "zh-prose/unpenalised/ngram-k4/8")
    assert refused.returncode == 2
    assert "Gate 7 (loops)" in refused.stderr
    assert "repetition penalty" in refused.stderr
    assert not (tmp_path / "site").exists()


def test_a_study_of_which_nothing_is_fit_stands_among_what_is_not_and_never_alone(tmp_path: Path) -> None:
    rehearsal = ROOT / "results" / "rehearsal-pp3"
    refused = specprof("publish", rehearsal, "--out", tmp_path / "alone")
    assert refused.returncode == 2
    assert "Gate 15 (rehearsal)" in refused.stderr
    assert not (tmp_path / "alone").exists()
    beside = specprof("publish", DEMO, rehearsal, "--out", tmp_path / "site")
    assert beside.returncode == 0, beside.stderr
    assert "rehearsal-pp3: 0 numbers fit to be quoted; 16 not fit to be quoted (gate 15 (rehearsal)" in beside.stdout
    html = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert set(table_of(html).column("study")) == {"demo"}
    assert "rehearsal: not a pipeline figure" in html
    assert list((tmp_path / "site" / "badges").glob("*rehearsal*")) == []


def test_command_publishes_a_card_from_elsewhere(published: tuple[Path, str], tmp_path: Path) -> None:
    done = specprof(
        "publish", published[0] / "demo" / "card.json", "--out", tmp_path, "--only", "code/forced/ngram-k4/8"
    )
    assert done.returncode == 0, done.stderr
    assert len(table_of((tmp_path / "index.html").read_text(encoding="utf-8")).rows) == 1


# -- every committed study on one page --------------------------------------------------------------------------------

COMMITTED = sorted(path.parent for path in (ROOT / "results").glob("*/card.json"))


@pytest.fixture(scope="module")
def all_published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `specprof publish results/* --out site/` makes of this repository: the path of its page."""
    out = tmp_path_factory.mktemp("all") / "site"
    done = specprof("publish", *COMMITTED, "--out", out)
    assert done.returncode == 0, done.stderr
    return out / "index.html"


@needs_chromium
def test_all_committed_studies_stand_on_one_page_and_filter(look: Callable[..., Page], all_published: Path) -> None:
    async def looking(page: Page) -> None:
        everything = await shown(page)
        told = {folder.name: json.loads((folder / "card.json").read_text(encoding="utf-8")) for folder in COMMITTED}
        with_rows = {name for name, card_of in told.items() if card_of["headlines"] and card_of["cells"]}
        assert len(with_rows) >= 3
        assert set(everything.column("study")) == with_rows
        one = COMMITTED[0].name
        await page.evaluate(
            f"{{ const s = document.querySelector('select[name=study]'); s.value = {one!r};"
            " s.dispatchEvent(new Event('input', {bubbles: true})) }"
        )
        filtered = await shown(page)
        assert set(filtered.column("study")) == {one}
        of_open_loops = sum(len(card_of.get("service", {}).get("headlines", ())) for card_of in told.values())
        in_all = len(everything.rows) + of_open_loops
        assert filtered.count == f"{everything.column('study').count(one)} of {in_all} rows"

    page = look(looking, page=all_published)
    assert page.complaints == []
    folder = all_published.parent.as_uri()
    assert {url for url in page.requests if not url.startswith(f"{folder}/")} == set()
    for folder_of_study in COMMITTED:
        assert (all_published.parent / folder_of_study.name / "report.html").is_file()
