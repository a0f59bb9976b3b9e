"""report.html and report.md as files: whole, self-contained, and safe with what a model wrote."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from specprof.analyse.results import Figure, StudyFigures
from specprof.errors import InputError
from specprof.publish.advice import Effect, effect
from specprof.publish.markdown import escaped, fenced
from specprof.publish.report import write_report
from specprof.publish.summary import answer, gate_groups


@pytest.fixture(scope="module")
def folder(report: Path) -> Path:
    return report.parent


@pytest.fixture(scope="module")
def html(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def markdown(folder: Path) -> str:
    return (folder / "report.md").read_text(encoding="utf-8")


class Outline(HTMLParser):
    """Every element with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def outline(html: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Outline()
    parser.feed(html)
    return parser.elements


def test_all_files_are_there_and_no_temporary_one(folder: Path) -> None:
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    kinds = {"decisions", "speculation-gain", "acceptance", "throughput", "gains", "wall"}
    pictures = {f"figures/{kind}{more}.png" for kind in kinds for more in ("", "-natural")}
    assert names == {"report.html", "report.md", "card.json", "card.md", *pictures}


def test_pictures_are_small_and_twice_the_size_they_are_shown_at(folder: Path) -> None:
    from PIL import Image

    for path in (folder / "figures").glob("*.png"):
        assert path.stat().st_size < 120_000
        with Image.open(path) as picture:
            assert picture.width == 2000


def test_page_refers_to_nothing_outside(html: str) -> None:
    for tag, attributes in outline(html):
        for name in ("src", "href", "action", "data", "srcset"):
            address = attributes.get(name)
            assert address is None or address.startswith(("data:", "#")), (tag, address)
    assert "url(" not in html
    assert "default-src 'none'" in html


def test_hostile_text_is_escaped(html: str) -> None:
    elements = outline(html)
    assert sum(tag == "script" for tag, _ in elements) == 1
    assert not any(name.startswith("on") for _, attributes in elements for name in attributes)
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert" in html
    assert "\x1b" not in html
    assert "\u202e" not in html


def test_every_section_is_there(html: str) -> None:
    ids = {attributes.get("id") for _, attributes in outline(html)}
    wanted = {"todo", "figures", "pictures", "wall", "waiting", "prefill", "content", "acceptance", "loops", "gates"}
    assert wanted | {"gate-7", "verdicts", "notes", "environment", "definitions"} <= ids


def test_links_lead_somewhere(html: str) -> None:
    ids = {attributes.get("id") for _, attributes in outline(html)}
    targets = {str(a["href"])[1:] for tag, a in outline(html) if tag == "a"}
    assert targets <= ids


@pytest.mark.parametrize("form", ["html", "markdown"])
def test_both_forms_say_what_matters(form: str, request: pytest.FixtureRequest) -> None:
    text = str(request.getfixturevalue(form))
    for said in (
        "speculation pays for code at N=1, 2, 4",
        "must not be multiplied",
        "3 of 16",
        "它是一种机制",
        "about 6 more blocks would decide it",
        "d41d8cd98f00b204",
        "one long prompt",
        "2.13.0+cpu",
        "engine.argv (launch 1, 2)",
        "Content matters: at N=8",
        "token-weighted",
        "code · forced 128 · prompt 42 · N=8 · ngram K=4 · 133.9 tok/s",
    ):
        assert said in text, said
    assert "hf_very_secret" not in text


def test_markdown_tables_are_rectangular(markdown: str) -> None:
    blocks = re.findall(r"(?:^\|.*\n)+", markdown, flags=re.MULTILINE)
    assert len(blocks) >= 10
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_markdown_renders_hostile_text_as_text(markdown: str) -> None:
    from markdown_it import MarkdownIt

    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)
    assert "<script" not in rendered
    assert "<img src=x" not in rendered
    assert 'href="javascript' not in rendered
    assert rendered.count("<img ") == 12
    assert rendered.count("<table>") >= 10


def test_fence_is_longer_than_any_inside() -> None:
    assert fenced("````\nx").startswith("`````text\n")


def test_escaped_text_stays_on_its_line() -> None:
    assert escaped("a\n# b | *c* <d> [e](f)") == r"a # b \| \*c\* &lt;d> [e]\(f)"


def test_second_report_replaces_the_first_and_its_pictures(small: StudyFigures, tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "wall-natural.png").write_bytes(b"of an earlier report")
    (tmp_path / "report.html").write_text("an earlier report")
    write_report(small, tmp_path)
    assert not (tmp_path / "figures" / "wall-natural.png").exists()
    assert "<h1>demo</h1>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_folder_that_cannot_be_written_is_named(small: StudyFigures, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file: the report cannot be written"):
        write_report(small, tmp_path / "file")


@pytest.mark.parametrize("lacking", ["off", "on", "gains", "cells", "values"])
def test_studies_that_lack_something_still_report(small: StudyFigures, tmp_path: Path, lacking: str) -> None:
    cells, gains = small.cells, small.gains
    if lacking in ("off", "on"):
        cells = tuple(cell for cell in cells if cell.arm != lacking)
    if lacking != "values":
        gains = ()
    if lacking == "cells":
        cells = ()
    if lacking == "values":
        unknown = Figure(None)
        cells = tuple(
            replace(c, throughput_tok_s=unknown, wall_s=unknown, prefill_share=unknown, survival=(unknown,))
            for c in cells
        )
        gains = tuple(
            replace(g, speculation_gain=unknown, interaction=unknown, batching_gain_off=unknown) for g in gains
        )
    page = write_report(replace(small, cells=cells, gains=gains, environment={}), tmp_path)
    assert page.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.2, 1.4, Effect.GAINS),
        (1.001, 1.4, Effect.UNDECIDED),
        (0.9, 1.1, Effect.UNDECIDED),
        (1.04, 1.4, Effect.GAINS),
        (1.03, 1.4, Effect.UNDECIDED),  # the gain worth having is inside
        (0.97, 1.02, Effect.SAME),
        (0.97, 1.03, Effect.UNDECIDED),
        (0.7, 0.9, Effect.LOSES),
        (None, None, Effect.UNREPEATED),
    ],
)
def test_effect_follows_the_interval(
    study: StudyFigures, low: float | None, high: float | None, expected: Effect
) -> None:
    middle = (low + high) / 2 if low is not None and high is not None else 1.5
    gain = replace(study.gains[0], speculation_gain=Figure(middle, low, high))
    assert effect(gain) is expected
    assert effect(replace(gain, valid=False)) is Effect.UNFIT


def test_importing_the_floor_loads_no_drawing_and_no_engine() -> None:
    modules = ("card", "report", "tables", "figures", "summary", "sections", "markdown", "settings")
    imports = "; ".join(f"import specprof.publish.{name}" for name in modules)
    heavy = "('matplotlib', 'seaborn', 'jinja2', 'jsonschema', 'PIL', 'rich', 'specprof.engine', 'specprof.measure')"
    check = f"import sys; {imports}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("form", ["html", "markdown"])
def test_a_reading_speed_that_a_gate_forbids_is_marked_and_its_evidence_told(
    form: str, request: pytest.FixtureRequest
) -> None:
    text = str(request.getfixturevalue(form))
    assert "long-code one long prompt, off: N=1" in text
    assert "90.0% of the prompt tokens came from the cache" in text
    prefill = text[text.index("Prefill speed in both shapes") :].split("What the content does", maxsplit=1)[0]
    assert "5!" in prefill
    assert "Intervals hold launches alone" in prefill


def test_reading_speeds_are_not_among_the_cells_that_are_fit_to_be_published(study: StudyFigures) -> None:
    """They explain walls: the sentence counts the cells of the study, whatever was only read."""
    without = replace(study, prefill=())
    assert answer(study) == answer(without)
    assert len(gate_groups(study)) == len(gate_groups(without)) + 1
