"""The page of `specprof cost`: the seed's claims on it, figures traced, hostile names harmless, no network."""

from __future__ import annotations

import asyncio
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from rich.console import Console

from specprof.errors import InputError
from specprof.publish.cost_text import cost_command
from tests.publish.conftest import HOSTILE
from tests.publish.test_report_page import DESKTOP, PHONE, Page, browser_page
from tests.publish.test_site import needs_chromium
from tests.running import ROOT

SEED = ROOT / "configs" / "cost-reversal.yaml"


class Document(HTMLParser):
    """What a page holds: its words, its tags with attributes, its links."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._skipped = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._skipped += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._skipped -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def attributes(self, name: str) -> list[str]:
        return [value for _, told in self.tags if (value := told.get(name))]


def page_of(path: Path, folder: Path) -> Path:
    """Where the command says it wrote the page."""
    stream = io.StringIO()
    cost_command(path, out=folder, output="text", console=Console(file=stream, width=200))
    page = Path(re.findall(r"^Page: (.*)$", stream.getvalue(), re.MULTILINE)[0])
    assert page == folder / f"{path.stem}.html"
    return page


def read(page: Path) -> Document:
    return Document(page.read_text(encoding="utf-8"))


def written(folder: Path, options: str, more: str = "", title: str = "test", currency: str = "EUR") -> Path:
    path = folder / "costs.yaml"
    path.write_text(f"cost: {title}\ncurrency: {currency}\noptions:\n{options}{more}", encoding="utf-8")
    return path


def yaml_string(text: str) -> str:
    """Any text as a double-quoted YAML scalar."""
    return '"' + "".join(f"\\U{ord(char):08x}" for char in text) + '"'


@pytest.fixture(scope="module")
def seed_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the seed's example."""
    return page_of(SEED, tmp_path_factory.mktemp("seed"))


@pytest.fixture(scope="module")
def measured_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cells of the committed demo, one of them with a given share, and an option that is given."""
    folder = tmp_path_factory.mktemp("measured")
    cells = "".join(
        f"  - {{name: '{arm}', cost_per_hour: 2, study: {ROOT}/results/demo, cell: code/forced/{arm}/8{more}}}\n"
        for arm, more in (("off", ""), ("ngram-k4", ", effective_share: 0.5"))
    )
    return page_of(written(folder, cells + "  - {name: bought, cost_per_hour: 3, throughput_tok_s: 50}\n"), folder)


def test_the_seeds_claims_stand_on_the_page(seed_page: Path) -> None:
    """Seed 004: 2.92398 against 3.08642, B 5.5556% dearer, a tie at 7,600 tok/s, 63.333% of B's raw output; never."""
    told = read(seed_page).text
    for figure in ("2.92398", "3.08642", "5.5556%", "63.333%", "7,600", "9,500", "7,200"):
        assert figure in told, figure
    assert "Reversed: B is 33.333% cheaper per raw token than A" in told
    assert "never, running it costs 4,000 CNY a month more for the same work" in told
    assert "A is cheapest: 2.92398 CNY per million effective tokens, against B 3.08642, 5.5556% dearer." in told


def test_the_chart_marks_the_options_and_the_tie_where_the_axes_have_them(seed_page: Path) -> None:
    """The tie lies on the level of A's price, between B's own share and A's: 60% < 63.333% < 95%."""
    document = read(seed_page)
    assert "B ties at 63.33%" in document.text
    marks = [told["transform"] for tag, told in document.tags if tag == "path" and "transform" in told]
    # the keys of the legend come first, each at its own middle
    a, b = (tuple(map(float, re.findall(r"[\d.]+", str(mark)))) for mark in marks if mark != "translate(17 7)")
    rings = [told for tag, told in document.tags if tag == "circle" and told.get("cx") != "17"]
    tie = tuple(float(str(rings[0][name])) for name in ("cx", "cy"))
    assert b[0] < tie[0] < a[0]
    assert tie[1] == a[1] > b[1]
    # the share axis is linear, so the tie divides the way from B's share to A's as the shares do
    assert (tie[0] - b[0]) / (a[0] - b[0]) == pytest.approx((0.63333 - 0.60) / (0.95 - 0.60), abs=0.005)


def test_measured_figures_lead_to_their_report_and_given_ones_say_so(measured_page: Path) -> None:
    document = read(measured_page)
    links = [link for link in document.attributes("href") if not link.startswith(("#", "data:"))]
    assert len(links) == 2  # the raw output of both measured options; nothing of the given one
    for link in links:
        assert (measured_page.parent / unquote(link)).resolve() == ROOT / "results" / "demo" / "report.html"
    assert f"measured: {ROOT}/results/demo code/forced/off/8" in document.text
    assert "every token counted: no latency or quality target was applied" in document.text
    assert "forced length: what was written past a text's own end is counted too" in document.text
    assert re.search(r"cost per hour 3 given", document.text)


def test_measured_prices_carry_their_intervals(measured_page: Path) -> None:
    table = read(measured_page).text.partition("a million effective tokens standing")[2]
    row = table.partition("bought")[0]
    assert len(re.findall(r"\[[\d.,]+, [\d.,]+\]", row)) >= 6  # raw and effective output, and both prices, twice


def test_a_study_without_a_report_is_named_but_not_linked(tmp_path: Path) -> None:
    """The records are enough to price a cell; a link that leads nowhere is worse than none."""
    demo = tmp_path / "results" / "demo"
    demo.mkdir(parents=True)
    for part in (ROOT / "results" / "demo").iterdir():
        if part.name != "report.html":
            (demo / part.name).symlink_to(part)
    path = written(tmp_path, "  - {name: 'off', cost_per_hour: 2, study: results/demo, cell: code/forced/off/8}\n")
    document = read(page_of(path, tmp_path))
    assert "measured: results/demo code/forced/off/8" in document.text
    assert not [link for link in document.attributes("href") if not link.startswith(("#", "data:"))]


def test_the_study_that_is_priced_stays_as_it_is(tmp_path: Path, measured_page: Path) -> None:
    """No page of costs is written over a report, whatever the chart is called."""
    del measured_page
    report = tmp_path / "report.html"
    report.write_text("<html>a study's own</html>", encoding="utf-8")
    with pytest.raises(InputError, match="no page of costs"):
        cost_command(SEED, out=tmp_path / "report.png", output="text", console=Console(file=io.StringIO()))
    assert report.read_text(encoding="utf-8") == "<html>a study's own</html>"
    assert not (tmp_path / "report.png").exists()


def test_the_page_is_written_anew_over_its_own(tmp_path: Path) -> None:
    assert page_of(SEED, tmp_path).read_bytes() == page_of(SEED, tmp_path).read_bytes()


def test_hostile_labels_stay_text(tmp_path: Path) -> None:
    attack = f'"><b>{HOSTILE}'[:80]
    name = yaml_string(attack)
    path = written(
        tmp_path,
        f"  - {{name: {name}, cost_per_hour: 1, throughput_tok_s: 10, effective_share: 0.5}}\n"
        "  - {name: plain, cost_per_hour: 2, throughput_tok_s: 12}\n",
        f"payback: {{baseline: {name}, period: {name}, effective_tokens_per_period: 1e6}}\n",
        title=name,
        currency=name,
    )
    page = page_of(path, tmp_path)
    html, document = page.read_text(encoding="utf-8"), read(page)
    assert [tag for tag, _ in document.tags].count("script") == 1
    assert not {tag for tag, _ in document.tags} & {"b-attack", "img", "iframe"}
    assert "<b><script" not in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert not [told for _, told in document.tags for key in told if key.startswith("on")]
    assert attack[:8] in document.text


@pytest.mark.parametrize(
    "options",
    [
        ("{name: alone, cost_per_hour: 1, effective_throughput_tok_s: 5}",),
        ("{name: twin, cost_per_hour: 1, throughput_tok_s: 5}", "{name: b, cost_per_hour: 2, throughput_tok_s: 10}"),
        (
            "{name: near, cost_per_hour: 1, throughput_tok_s: 5, effective_share: 0.0001}",
            "{name: far, cost_per_hour: 1000, throughput_tok_s: 5, utilisation: 0.3}",
        ),
    ],
)
def test_every_kind_of_bill_has_a_page(tmp_path: Path, options: tuple[str, ...]) -> None:
    """One option, two that cost the same, prices ten millionfold apart and a share beyond the axis."""
    document = read(page_of(written(tmp_path, "".join(f"  - {option}\n" for option in options)), tmp_path))
    assert "nan" not in {word.lower() for word in document.words}
    assert [tag for tag, _ in document.tags].count("polyline") == len(options)


@needs_chromium
@pytest.mark.parametrize(("size", "state"), [(DESKTOP, ""), (PHONE, "#lang=zh")], ids=["desktop", "phone in Chinese"])
def test_the_page_renders_without_complaint_or_request(
    tmp_path: Path, seed_page: Path, size: tuple[int, int], state: str
) -> None:
    async def looking() -> Page:
        async with browser_page(tmp_path / "profile") as page:
            await page.open(f"{seed_page.as_uri()}{state}", size)
            width = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert width[0] <= width[1], "the page scrolls sideways"
            drawn = await page.evaluate("document.querySelector('figure svg[role=img]').getBoundingClientRect().height")
            assert drawn > 150
            said = await page.evaluate("document.querySelector('#prices h2').innerText")
            axis = await page.evaluate("document.querySelector('svg[role=img] > text[data-zh]').textContent")
            assert (said, axis) == (
                ("每百万 token 的成本", "CNY / 百万有效 token")
                if state
                else ("What a million tokens cost", "CNY per million effective tokens")
            )
            return page

    page = asyncio.run(asyncio.wait_for(looking(), 120))
    assert page.complaints == []
    assert {url.partition("#")[0] for url in page.requests if not url.startswith("data:")} == {seed_page.as_uri()}
